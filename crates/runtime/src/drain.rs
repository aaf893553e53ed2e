//! Drain as values one holds: whoever serves somebody keeps a [`Watch`], stops taking new work
//! when it is signalled, and drops it when the work is done. The drain ends with the last one.

use std::time::Duration;

use tokio::sync::watch;

/// The side that starts the drain and waits for its end.
#[derive(Debug)]
pub struct Signal {
    draining: watch::Sender<bool>,
}

/// The side that is told. As long as one is held, the drain is not over.
#[derive(Clone, Debug)]
pub struct Watch {
    draining: watch::Receiver<bool>,
}

/// The grace period passed while somebody still held a [`Watch`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not drained within {0:?}")]
pub struct Incomplete(pub Duration);

pub fn channel() -> (Signal, Watch) {
    let (sender, receiver) = watch::channel(false);
    (Signal { draining: sender }, Watch { draining: receiver })
}

// === impl Signal ===

impl Signal {
    /// Another holder; the drain waits for it too.
    pub fn watch(&self) -> Watch {
        Watch {
            draining: self.draining.subscribe(),
        }
    }

    /// Tells every holder and ends when the last one let go.
    pub async fn drain(self) {
        self.draining.send_replace(true);
        self.draining.closed().await;
    }

    /// Like [`Signal::drain`], but gives up after `grace`.
    pub async fn drain_within(self, grace: Duration) -> Result<(), Incomplete> {
        if tokio::time::timeout(grace, self.drain()).await.is_err() {
            tracing::warn!("Graceful shutdown did not complete in {grace:?}, terminating now");
            return Err(Incomplete(grace));
        }
        Ok(())
    }
}

// === impl Watch ===

impl Watch {
    /// Ends when the drain starts, or when the [`Signal`] is gone without one.
    pub async fn signaled(&mut self) {
        let _ = self.draining.wait_for(|draining| *draining).await;
    }

    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_held_watch_delays_the_end() {
        let (signal, mut watch) = channel();
        let late = signal.watch();
        assert!(!watch.is_draining());

        let drained = crate::spawn("drain", signal.drain());
        watch.signaled().await;
        assert!(watch.is_draining());
        drop(watch);
        tokio::task::yield_now().await;
        assert!(!drained.is_finished());
        drop(late);
        drained.await.expect("task ends");
    }

    #[tokio::test(start_paused = true)]
    async fn the_grace_period_is_the_longest_it_takes() {
        let (signal, _watch) = channel();
        let grace = Duration::from_secs(120);
        assert_eq!(signal.drain_within(grace).await, Err(Incomplete(grace)));
    }

    #[tokio::test]
    async fn nobody_holding_ends_at_once() {
        let (signal, watch) = channel();
        drop(watch);
        assert_eq!(signal.drain_within(Duration::from_secs(1)).await, Ok(()));
    }

    #[tokio::test]
    async fn a_lost_signal_counts_as_drain() {
        let (signal, mut watch) = channel();
        drop(signal);
        watch.signaled().await;
    }
}
