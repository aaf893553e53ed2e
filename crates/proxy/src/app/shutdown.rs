//! The end: who asks for it, and what ends in which order.

use std::time::{Duration, Instant};

use linkerd_runtime::drain;
use tokio::sync::mpsc;

use crate::presence::Presence;

/// Who asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The kubelet, which asks all containers at once.
    Signal,
    /// Somebody in the pod.
    Endpoint,
}

/// The application may use up so much of the grace period; connections it has left behind still get
/// an orderly end.
const APPLICATION_SHARE: f64 = 0.9;

/// The end, when it comes.
pub(super) struct Ending {
    /// Told by the admin port.
    pub(super) asked: mpsc::Receiver<()>,
    /// Tells workers that the pod leaves.
    pub(super) leave: drain::Signal,
    /// Tells workers that the application is gone.
    pub(super) end: drain::Signal,
    pub(super) application: Presence,
    /// For all of it.
    pub(super) grace: Duration,
}

impl Ending {
    /// Waits until somebody asks, and then until everything has ended or the time is over.
    pub(super) async fn run(self) {
        let grace = self.grace;
        let asked = until_shutdown(self.asked).await;
        let start = Instant::now();
        self.leave.drain().await;
        // Who asks over the admin port has ended already, or says so.
        if asked == Asked::Signal {
            let wait = grace.mul_f64(APPLICATION_SHARE);
            let _ = tokio::time::timeout(wait, self.application.gone()).await;
        }
        let left = grace.saturating_sub(start.elapsed());
        if tokio::time::timeout(left, self.end.drain()).await.is_err() {
            tracing::warn!("Graceful shutdown did not complete in {grace:?}, terminating now");
        }
    }
}

async fn until_shutdown(mut asked: mpsc::Receiver<()>) -> Asked {
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
