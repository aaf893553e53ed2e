//! The parts of one process: each ends when the process drains, and the process ends with an error
//! when one of them ends before.

use anyhow::{Context as _, bail};
use linkerd_runtime::drain;
use tokio::task::JoinSet;

/// The parts that run.
#[derive(Debug)]
pub(crate) struct Parts {
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    drain: drain::Watch,
}

impl Parts {
    pub(crate) fn new(drain: drain::Watch) -> Self {
        Self {
            tasks: JoinSet::new(),
            drain,
        }
    }

    /// Runs a part; `name` is what it is called when it fails.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        part: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { (name, part.await) });
    }

    /// Ends with the last part, or with the first that fails or ends without having been told to.
    pub(crate) async fn all_ended(mut self) -> anyhow::Result<()> {
        while let Some(part) = self.tasks.join_next().await {
            let (name, ended) = part.context("a part of the controller panicked")?;
            ended.with_context(|| format!("{name} failed"))?;
            if !self.drain.is_draining() {
                bail!("{name} ended by itself");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn parts() -> (drain::Signal, Parts) {
        let (signal, watch) = drain::channel();
        (signal, Parts::new(watch))
    }

    async fn until_drained(mut drain: drain::Watch) -> anyhow::Result<()> {
        drain.signaled().await;
        Ok(())
    }

    #[tokio::test]
    async fn a_part_that_ends_by_itself_ends_the_process_with_an_error() {
        let (signal, mut parts) = parts();
        parts.spawn("the long one", until_drained(signal.watch()));
        parts.spawn("the short one", async { Ok(()) });
        let error = parts.all_ended().await.expect_err("it should not end");
        assert_eq!(error.to_string(), "the short one ended by itself");
    }

    #[tokio::test]
    async fn a_part_that_fails_ends_the_process_with_its_error() {
        let (signal, mut parts) = parts();
        parts.spawn("the long one", until_drained(signal.watch()));
        parts.spawn("the bad one", async { bail!("no luck") });
        let error = parts.all_ended().await.expect_err("it failed");
        assert_eq!(format!("{error:#}"), "the bad one failed: no luck");
    }

    #[tokio::test]
    async fn a_part_that_panics_ends_the_process() {
        let (_signal, mut parts) = parts();
        parts.spawn("the worst one", async { panic!("on purpose") });
        assert!(parts.all_ended().await.is_err());
    }

    #[tokio::test]
    async fn parts_that_were_told_to_end_do_so_well() {
        let (signal, mut parts) = parts();
        parts.spawn("one", until_drained(signal.watch()));
        parts.spawn("two", until_drained(signal.watch()));
        let ended = pin!(parts.all_ended());
        let (ended, ()) = tokio::join!(ended, signal.drain());
        ended.expect("all is well");
    }
}
