//! Whether the pod's other containers still hold TCP sockets. The kubelet stops all containers of a
//! pod at once, and an application may need the network to finish what it has begun: the proxy
//! leaves after it.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    time::Duration,
};

/// The tables of this network namespace, which is the pod's.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Where to look for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// In the namespace's sockets: those of any user but our own.
    OtherUsers,
    /// Nowhere: it is never waited for.
    Unknown,
}

impl Presence {
    /// Ends when the application holds no socket any more.
    pub async fn gone(self) {
        let own = rustix::process::geteuid().as_raw();
        while self == Self::OtherUsers && is_present(own) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// A table that cannot be read tells of nobody.
fn is_present(own: u32) -> bool {
    TABLES.iter().any(|table| {
        File::open(table).is_ok_and(|file| names_another_user(BufReader::new(file), own))
    })
}

/// Looks for a socket that some process holds (it has an inode) and whose user is not `own`.
fn names_another_user(table: impl BufRead, own: u32) -> bool {
    let sockets = table.lines().map_while(Result::ok).skip(1);
    sockets.into_iter().any(|line| {
        // sl, local, remote, state, queues, timer, retransmits, uid, timeout, inode
        let mut fields = line.split_ascii_whitespace().skip(7);
        let uid = fields.next().and_then(|uid| uid.parse().ok());
        let inode = fields.nth(1);
        uid.is_some_and(|uid: u32| uid != own) && inode.is_some_and(|inode| inode != "0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    #[test]
    fn sockets_of_others() {
        let line = |state: &str, uid: u32, inode: u32| {
            format!(
                "   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
            )
        };
        for (name, table, present) in [
            ("nobody", String::new(), false),
            ("only ourselves", line("0A", 2102, 77), false),
            ("a listener of the application", line("0A", 65534, 78), true),
            (
                "a connection of a root application",
                line("01", 0, 79),
                true,
            ),
            ("one that closed and waits", line("06", 0, 0), false),
            (
                "ourselves first",
                line("01", 2102, 80) + &line("01", 1000, 81),
                true,
            ),
            (
                "a line cut short",
                "   0: 0100007F:1F90\n".to_owned(),
                false,
            ),
        ] {
            let table = format!("{HEAD}{table}");
            assert_eq!(
                names_another_user(table.as_bytes(), 2102),
                present,
                "{name}"
            );
        }
    }

    #[tokio::test]
    async fn an_application_nobody_looks_for_is_gone() {
        Presence::Unknown.gone().await;
    }
}
