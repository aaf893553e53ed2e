//! Starting tasks. The only place that calls `tokio::spawn`, so that no task loses the span
//! it was started in and every task has a name in the trace log.

use std::future::Future;

use tokio::task::JoinHandle;
use tracing::Instrument;

/// Runs `future` on the current runtime, inside the current span.
///
/// The caller owns the handle: await it, abort it, or let the task run on its own.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the wrapper the ban points to"
    )]
    tokio::spawn(named(name, future))
}

/// Like [`spawn`], for futures that stay on the thread of a current-thread worker.
///
/// # Panics
/// Outside a `LocalSet` or a local runtime.
pub fn spawn_local<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(named(name, future))
}

fn named<F: Future>(name: &'static str, future: F) -> impl Future<Output = F::Output> {
    tracing::trace!(task = name, "spawned");
    future.in_current_span()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_runs_in_the_span_it_was_started_in() {
        let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry());
        let span = tracing::info_span!("connection");
        let id = span.id();
        let seen = span.in_scope(|| spawn("probe", async { tracing::Span::current().id() }));
        assert!(id.is_some());
        assert_eq!(seen.await.expect("task ends"), id);
    }

    #[tokio::test]
    async fn a_local_task_may_hold_what_is_not_send() {
        let local = tokio::task::LocalSet::new();
        let value = std::rc::Rc::new(7);
        let got = local
            .run_until(async { spawn_local("local", async move { *value }).await })
            .await;
        assert_eq!(got.expect("task ends"), 7);
    }
}
