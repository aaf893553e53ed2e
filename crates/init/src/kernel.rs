//! The kernel's switches around the rules: network namespace, conntrack timeout, IPv6 state, and
//! whether the legacy tables are in use. Everything is read for the calling thread's namespace.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::thread::LinkNameSpaceType;

use crate::rules::Family;

const CLOSE_WAIT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
/// How logs and errors call it.
pub const CLOSE_WAIT_KEY: &str = "net.netfilter.nf_conntrack_tcp_timeout_close_wait";

const NETNS: &str = "/proc/thread-self/ns/net";
/// A run takes milliseconds, or seconds while it waits for the xtables lock.
const TURN_DEADLINE: Duration = Duration::from_secs(30);
const TURN_POLL: Duration = Duration::from_millis(5);

/// A switch that could not be set.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("cannot enter the network namespace {path}: {source}")]
    Netns { path: String, source: io::Error },
    #[error("cannot set {CLOSE_WAIT_KEY} to {value}: {source}{hint}")]
    CloseWait {
        value: i64,
        source: io::Error,
        hint: &'static str,
    },
}

/// Whether IPv6 traffic can exist here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv6 {
    On,
    /// `net.ipv6.conf.all.disable_ipv6` is set; it can be cleared later.
    SwitchedOff,
    /// The kernel has none at all.
    Absent,
}

/// Whether the legacy `nat` table exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyTable {
    Present,
    Absent,
    Unknown,
}

/// The right to change this network namespace, until dropped.
#[derive(Debug)]
pub struct Turn {
    _netns: fs::File,
}

/// Moves the calling thread (and what it starts) into a network namespace.
pub fn enter_netns(path: &str) -> Result<(), KernelError> {
    let enter = || -> io::Result<()> {
        let file = fs::File::open(path)?;
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    };
    enter().map_err(|source| KernelError::Netns {
        path: path.to_owned(),
        source,
    })
}

/// Waits for other runs in the calling thread's network namespace: what one finds must still hold
/// when it changes it. The lock is on the namespace itself, so it needs no writable folder.
#[expect(
    clippy::disallowed_methods,
    reason = "the thread has nothing else to do, and a blocking flock has no deadline"
)]
pub fn take_turn() -> io::Result<Turn> {
    let netns = fs::File::open(NETNS)?;
    let deadline = Instant::now() + TURN_DEADLINE;
    loop {
        match rustix::fs::flock(&netns, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Turn { _netns: netns }),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(TURN_POLL);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

pub fn set_close_wait(value: i64) -> Result<(), KernelError> {
    fs::write(CLOSE_WAIT, value.to_string()).map_err(|source| {
        let hint = match source.kind() {
            io::ErrorKind::NotFound => " (conntrack is not loaded on the node)",
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                " (this needs root in a privileged container: proxyInit.runAsRoot and proxyInit.privileged)"
            }
            io::ErrorKind::InvalidInput => " (the kernel accepts whole seconds from 0 up)",
            _ => "",
        };
        KernelError::CloseWait {
            value,
            source,
            hint,
        }
    })
}

pub fn ipv6() -> Ipv6 {
    if fs::metadata("/proc/thread-self/net/if_inet6").is_err() {
        return Ipv6::Absent;
    }
    match fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6") {
        Ok(text) if text.trim() == "1" => Ipv6::SwitchedOff,
        _ => Ipv6::On,
    }
}

pub fn legacy_nat(family: Family) -> LegacyTable {
    let name = match family {
        Family::V4 => "ip_tables_names",
        Family::V6 => "ip6_tables_names",
    };
    match fs::read_to_string(format!("/proc/thread-self/net/{name}")) {
        Ok(names) if names.lines().any(|name| name == "nat") => LegacyTable::Present,
        Ok(_) => LegacyTable::Absent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => LegacyTable::Absent,
        Err(_) => LegacyTable::Unknown,
    }
}
