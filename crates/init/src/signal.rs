//! Waiting for SIGINT and SIGTERM. As process 1 of a container there is no default action, so the
//! signals are blocked in every thread and one thread waits for them. The crate's only unsafe code.
#![expect(
    unsafe_code,
    reason = "signal sets have no safe interface in the standard library"
)]

use std::io;
use std::mem::MaybeUninit;

/// The two signals that ask a process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
}

/// The set of both, blocked in the calling thread and those it starts.
pub struct Blocked {
    set: libc::sigset_t,
}

// === impl Signal ===

impl Signal {
    pub fn name(self) -> &'static str {
        match self {
            Signal::Interrupt => "SIGINT",
            Signal::Terminate => "SIGTERM",
        }
    }
}

// === impl Blocked ===

impl std::fmt::Debug for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocked").finish_non_exhaustive()
    }
}

impl Blocked {
    /// Call before any thread is started.
    pub fn block() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the whole set behind a valid pointer.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        let mut blocked = Self { set };
        // SAFETY: the set is initialised and outlives the calls; a null old set is allowed.
        let status = unsafe {
            libc::sigaddset(&raw mut blocked.set, libc::SIGINT);
            libc::sigaddset(&raw mut blocked.set, libc::SIGTERM);
            libc::pthread_sigmask(
                libc::SIG_BLOCK,
                &raw const blocked.set,
                std::ptr::null_mut(),
            )
        };
        match status {
            0 => Ok(blocked),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Blocks until one of the two arrives.
    pub fn wait(&self) -> io::Result<Signal> {
        let mut signal = 0;
        // SAFETY: both pointers are valid for the call; the set's signals are blocked in all threads.
        let status = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
        match (status, signal) {
            (0, libc::SIGINT) => Ok(Signal::Interrupt),
            (0, _) => Ok(Signal::Terminate),
            (errno, _) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}
