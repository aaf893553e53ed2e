//! Readiness as values one holds: a daemon is ready when nobody holds a [`Block`].

use tokio::sync::watch;

/// Answers whether everything that had to happen first has happened.
#[derive(Clone, Debug)]
pub struct Readiness {
    blocks: watch::Sender<Vec<&'static str>>,
}

/// One reason not to be ready yet. Dropping it is the signal.
#[derive(Debug)]
#[must_use = "a block that is dropped at once blocks nothing"]
pub struct Block {
    name: &'static str,
    blocks: watch::Sender<Vec<&'static str>>,
}

// === impl Readiness ===

impl Readiness {
    /// Ready until the first block is taken: take them all before serving.
    pub fn new() -> Self {
        Self {
            blocks: watch::Sender::new(Vec::new()),
        }
    }

    /// Holds readiness back until the block is dropped or released.
    pub fn block(&self, name: &'static str) -> Block {
        self.blocks.send_modify(|names| names.push(name));
        Block {
            name,
            blocks: self.blocks.clone(),
        }
    }

    pub fn is_ready(&self) -> bool {
        self.blocks.borrow().is_empty()
    }

    /// What is still being waited for, in the order it was asked for.
    pub fn waiting_for(&self) -> Vec<&'static str> {
        self.blocks.borrow().clone()
    }

    /// Ends when no block is held.
    pub async fn ready(&self) {
        // `self` owns a sender, so the channel cannot close meanwhile.
        let _ = self.blocks.subscribe().wait_for(Vec::is_empty).await;
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Block ===

impl Block {
    /// The same as dropping it, for when a name reads better.
    pub fn release(self) {}
}

impl Drop for Block {
    fn drop(&mut self) {
        self.blocks.send_modify(|names| {
            if let Some(at) = names.iter().position(|name| *name == self.name) {
                names.remove(at);
            }
        });
        tracing::debug!(block = self.name, "No longer holds readiness back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ready_when_all_blocks_are_gone() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());

        let identity = readiness.block("identity");
        let watches = readiness.block("watches");
        assert_eq!(readiness.waiting_for(), ["identity", "watches"]);

        identity.release();
        assert!(!readiness.is_ready());
        let waiting = tokio::task::LocalSet::new();
        waiting
            .run_until(async {
                let ready = crate::spawn_local("wait", {
                    let readiness = readiness.clone();
                    async move { readiness.ready().await }
                });
                tokio::task::yield_now().await;
                assert!(!ready.is_finished());
                drop(watches);
                ready.await.expect("task ends");
            })
            .await;
        assert!(readiness.is_ready());
    }

    #[test]
    fn equal_names_count_one_by_one() {
        let readiness = Readiness::new();
        let first = readiness.block("watch");
        let second = readiness.block("watch");
        drop(first);
        assert_eq!(readiness.waiting_for(), ["watch"]);
        drop(second);
        assert!(readiness.is_ready());
    }
}
