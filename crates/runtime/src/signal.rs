//! The signals that ask a daemon to end.

use std::future::Future;
use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Registers for SIGTERM and SIGINT at once; the future ends with the name of the first one.
///
/// Must be called inside a runtime. A signal between the call and the first poll is kept.
pub fn shutdown() -> io::Result<impl Future<Output = &'static str> + Send + use<>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "Shutting down");
        name
    })
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    #[tokio::test]
    async fn a_signal_before_the_first_poll_is_kept() {
        let ends = super::shutdown().expect("handlers install");
        kill_process(getpid(), Signal::TERM).expect("signal is sent");
        assert_eq!(ends.await, "SIGTERM");
    }
}
