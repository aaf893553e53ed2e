//! Asking a process to end, without a program that is not on every machine.

use rustix::process::{Pid, Signal, kill_process};

/// Sends SIGTERM to a process of ours.
///
/// # Panics
/// When there is no such process.
pub fn terminate(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("the id of a process"), Signal::TERM).expect("it runs");
}
