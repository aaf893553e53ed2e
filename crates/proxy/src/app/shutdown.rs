//! The end: who asks for it.

use tokio::sync::mpsc;

/// Who asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The kubelet, which asks all containers at once.
    Signal,
    /// Somebody in the pod.
    Endpoint,
}

/// The application may use up so much of the grace period; connections it has left behind still get
/// an orderly end.
pub(super) const APPLICATION_SHARE: f64 = 0.9;

pub(super) async fn until_shutdown(mut asked: mpsc::Receiver<()>) -> Asked {
    let signals = linkerd_runtime::signal::shutdown();
    match signals {
        Ok(signals) => tokio::select! {
            _ = signals => Asked::Signal,
            _ = asked.recv() => Asked::Endpoint,
        },
        Err(error) => {
            tracing::warn!(%error, "Signals cannot be handled");
            asked.recv().await;
            Asked::Endpoint
        }
    }
}
