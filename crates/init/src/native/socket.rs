//! The netfilter netlink socket: one transaction out, acknowledgements and dumps in.
//! The kernel handles a transaction inside `send`, so its answers are queued when `send` returns.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};

use super::wire::{
    Attrs, BATCH_BEGIN, BATCH_END, F_DUMP, F_DUMP_INTERRUPTED, MSG_DONE, MSG_ERROR, Message,
    Writer, messages,
};

/// Dump datagrams are at most 32 KiB.
const BUFFER: usize = 64 * 1024;
/// A dump is started again when the rules changed under it, but not for ever.
const DUMP_ATTEMPTS: usize = 8;
/// No dump we ask for is longer than this many datagrams.
const DUMP_DATAGRAMS: usize = 4096;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why the kernel did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("cannot open a netfilter netlink socket: {}", explain(*.0))]
    Open(Errno),
    #[error("cannot send to nf_tables: {}", explain(*.0))]
    Send(Errno),
    #[error("cannot receive from nf_tables: {}", explain(*.0))]
    Receive(Errno),
    #[error("nf_tables refused to {what}: {}", explain(*.errno))]
    Refused { what: String, errno: Errno },
    #[error("nf_tables gave no answer")]
    Silent,
    #[error("the rules kept changing while they were read")]
    Busy,
}

/// Messages that take effect together or not at all.
#[derive(Debug)]
pub struct Transaction {
    writer: Writer,
    /// What each message does, by sequence number; for error texts.
    what: Vec<String>,
    last: usize,
}

#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

// === impl NetlinkError ===

impl NetlinkError {
    pub fn errno(&self) -> Option<Errno> {
        match self {
            NetlinkError::Open(errno)
            | NetlinkError::Send(errno)
            | NetlinkError::Receive(errno)
            | NetlinkError::Refused { errno, .. } => Some(*errno),
            NetlinkError::Silent | NetlinkError::Busy => None,
        }
    }
}

/// The error with its likely cause and what to do about it.
fn explain(errno: Errno) -> String {
    let hint = match errno {
        Errno::PERM | Errno::ACCESS => {
            "the process lacks CAP_NET_ADMIN in this network namespace, or a security module forbids it; add NET_ADMIN to the container's capabilities"
        }
        Errno::PROTONOSUPPORT => {
            "the kernel has no nfnetlink; load nf_tables on the node or choose --iptables-mode legacy"
        }
        Errno::AFNOSUPPORT => "the kernel lacks nf_tables support for this address family",
        Errno::NOENT | Errno::OPNOTSUPP => {
            "the kernel lacks an nf_tables feature; load nf_tables, nft_chain_nat and nft_redir on the node"
        }
        Errno::BUSY => "the object is in use by a rule this program did not make",
        Errno::NOBUFS | Errno::MSGSIZE | Errno::NOMEM => {
            "the rule list is too large for the kernel's buffers"
        }
        _ => return errno.to_string(),
    };
    format!("{errno} ({hint})")
}

// === impl Transaction ===

impl Default for Transaction {
    fn default() -> Self {
        let mut writer = Writer::default();
        writer.batch(BATCH_BEGIN, 0);
        Self {
            writer,
            what: vec!["commit".to_owned()],
            last: 0,
        }
    }
}

impl Transaction {
    /// Adds one message; `what` completes "refused to …".
    pub fn add(
        &mut self,
        what: impl Into<String>,
        msg: u8,
        family: u8,
        flags: u16,
        fill: impl FnOnce(&mut Attrs<'_>),
    ) {
        let seq = u32::try_from(self.what.len()).expect("messages are far fewer than 2^32");
        self.last = self.writer.bytes().len();
        self.writer.nft(msg, family, flags, seq, fill);
        self.what.push(what.into());
    }

    pub fn is_empty(&self) -> bool {
        self.what.len() == 1
    }
}

// === impl Socket ===

impl Socket {
    pub fn open() -> Result<Self, NetlinkError> {
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::NETFILTER),
        )
        .map_err(NetlinkError::Open)?;
        rustix::net::bind(&fd, &netlink::SocketAddrNetlink::new(0, 0))
            .map_err(NetlinkError::Open)?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(ANSWER_WITHIN))
            .map_err(NetlinkError::Open)?;
        Ok(Self { fd })
    }

    /// Sends a transaction and waits for the kernel's verdict on it.
    pub fn commit(&self, mut transaction: Transaction) -> Result<(), NetlinkError> {
        if transaction.is_empty() {
            return Ok(());
        }
        transaction.writer.acknowledge(transaction.last);
        let last = u32::try_from(transaction.what.len() - 1).expect("checked when it was added");
        transaction.writer.batch(BATCH_END, last + 1);
        let bytes = transaction.writer.bytes();
        // A transaction is one datagram: make room for it. Plain limits are enough for small ones.
        let room = bytes.len() * 2 + BUFFER;
        let _ = sockopt::set_socket_send_buffer_size_force(&self.fd, room);
        rustix::net::send(&self.fd, bytes, SendFlags::empty()).map_err(NetlinkError::Send)?;

        let mut buffer = vec![0; BUFFER];
        let mut flags = RecvFlags::empty();
        let mut acknowledged = false;
        let mut refused = None;
        for _ in 0..DUMP_DATAGRAMS {
            let len = match rustix::net::recv(&self.fd, &mut buffer, flags) {
                Ok((len, _)) => len,
                Err(Errno::INTR) => continue,
                // Nothing more is queued: what was said is the whole answer.
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(NetlinkError::Receive(errno)),
            };
            flags = RecvFlags::DONTWAIT;
            for message in messages(&buffer[..len]).filter(|message| message.kind == MSG_ERROR) {
                match message.errno() {
                    Some(0) => acknowledged |= message.seq == last,
                    Some(errno) if refused.is_none() => {
                        let what = usize::try_from(message.seq)
                            .ok()
                            .and_then(|at| transaction.what.get(at));
                        refused = Some(NetlinkError::Refused {
                            what: what.cloned().unwrap_or_else(|| "commit".to_owned()),
                            errno: Errno::from_raw_os_error(errno),
                        });
                    }
                    _ => {}
                }
            }
        }
        match refused {
            Some(error) => Err(error),
            None if acknowledged => Ok(()),
            None => Err(NetlinkError::Silent),
        }
    }

    /// Asks for a list and gives each message of it to `take`; an absent object is an empty list.
    pub fn dump<T>(
        &self,
        msg: u8,
        family: u8,
        fill: impl Fn(&mut Attrs<'_>),
        take: impl Fn(Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for attempt in 1..=DUMP_ATTEMPTS {
            let seq = u32::try_from(attempt).unwrap_or(u32::MAX);
            let mut writer = Writer::default();
            writer.nft(msg, family, F_DUMP, seq, &fill);
            rustix::net::send(&self.fd, writer.bytes(), SendFlags::empty())
                .map_err(NetlinkError::Send)?;
            if let Some(list) = self.read_dump(seq, &take)? {
                return Ok(list);
            }
        }
        Err(NetlinkError::Busy)
    }

    /// `None` when the dump was torn by a change and must be asked for again.
    fn read_dump<T>(
        &self,
        seq: u32,
        take: impl Fn(Message<'_>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, NetlinkError> {
        let mut list = Vec::new();
        let mut torn = false;
        let mut buffer = vec![0; BUFFER];
        for _ in 0..DUMP_DATAGRAMS {
            let len = match rustix::net::recv(&self.fd, &mut buffer, RecvFlags::empty()) {
                Ok((len, _)) => len,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(NetlinkError::Silent),
                Err(errno) => return Err(NetlinkError::Receive(errno)),
            };
            for message in messages(&buffer[..len]).filter(|message| message.seq == seq) {
                torn |= message.flags & F_DUMP_INTERRUPTED != 0;
                match message.kind {
                    MSG_DONE => return Ok((!torn).then_some(list)),
                    MSG_ERROR => match message.errno().map(Errno::from_raw_os_error) {
                        Some(Errno::NOENT) => return Ok(Some(Vec::new())),
                        Some(errno) => {
                            return Err(NetlinkError::Refused {
                                what: "list rules".to_owned(),
                                errno,
                            });
                        }
                        None => return Err(NetlinkError::Silent),
                    },
                    _ => list.extend(take(message)),
                }
            }
        }
        Err(NetlinkError::Busy)
    }
}
