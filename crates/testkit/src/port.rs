//! Free ports, for programs that cannot be told to bind port 0. Everybody else should.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{LazyLock, Mutex, PoisonError};

/// What this process has handed out, so that two tests in it never get the same port.
static TAKEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A TCP port of 127.0.0.1 that was free just now and that this process hands out only once.
pub fn free() -> u16 {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..1_000 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port to bind");
        let port = listener
            .local_addr()
            .expect("a bound socket has an address")
            .port();
        if taken.insert(port) {
            return port;
        }
    }
    panic!(
        "no port is free that was not handed out before ({} were)",
        taken.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_handed_out_once_and_can_be_bound() {
        let ports: HashSet<u16> = (0..50).map(|_| free()).collect();
        assert_eq!(ports.len(), 50);
        let port = free();
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port is free");
    }
}
