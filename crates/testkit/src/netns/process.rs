//! A child process that does not outlive its test.

use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait_for_some;

/// A running process; dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Guards a process that was started some other way.
    pub fn new(child: Child) -> Self {
        Self { child }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal; a process that has already ended gets none.
    pub fn signal(&mut self, signal: Signal) {
        if self.is_running() {
            kill_process(Pid::from_child(&self.child), signal)
                .expect("our own child takes signals");
        }
    }

    /// Waits for its end; panics when it does not come within `deadline`.
    #[track_caller]
    pub fn ended(&mut self, deadline: Duration) -> ExitStatus {
        wait_for_some(deadline, "the process ends", || {
            self.child
                .try_wait()
                .expect("our own child can be waited for")
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
