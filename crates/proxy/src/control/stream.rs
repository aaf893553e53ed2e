//! Keeps one server-streaming call open: limits on the first message, on silence and on age, retries
//! with backoff, and statuses that end it for good.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tonic::{Code, Status, Streaming};

use crate::config::{Backoff, StreamLimits};

/// How a stream is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    pub(super) limits: StreamLimits,
    pub(super) backoff: Backoff,
    /// Statuses that are not retried.
    pub(super) terminal: &'static [Code],
}

/// `Get`, `GetProfile`, `WatchPort`.
pub(super) const TERMINAL: &[Code] = &[Code::InvalidArgument, Code::FailedPrecondition];
/// `OutboundPolicies.Watch`.
pub(super) const TERMINAL_POLICY: &[Code] = &[
    Code::InvalidArgument,
    Code::FailedPrecondition,
    Code::NotFound,
    Code::Unimplemented,
];

/// How one life of a stream ended.
enum End {
    /// It spoke and then ended, or reached a limit: open the next at once.
    Renew,
    /// It failed: wait first.
    Failed(Status),
}

impl Keep {
    /// Runs the stream until a terminal status. `on` gets every message and whether it is the first
    /// of its stream.
    pub(super) async fn run<T, F>(
        self,
        name: &'static str,
        mut open: impl FnMut() -> F,
        mut on: impl FnMut(T, bool),
    ) -> Status
    where
        F: Future<Output = Result<Streaming<T>, Status>>,
    {
        let mut failures = 0;
        loop {
            let mut spoke = false;
            let end = self
                .one(open(), |message, first| {
                    spoke = true;
                    on(message, first);
                })
                .await;
            if spoke {
                failures = 0;
            }
            match end {
                End::Renew if spoke => continue,
                End::Failed(status) if self.terminal.contains(&status.code()) => return status,
                End::Failed(status) => {
                    tracing::debug!(stream = name, code = ?status.code(), message = status.message(), "Control stream failed");
                }
                End::Renew => {}
            }
            let delay = self.backoff.random_delay(failures);
            let prompt = failures < PROMPT_TRIES;
            tokio::time::sleep(if prompt { delay.min(PROMPT) } else { delay }).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn one<T>(
        &self,
        open: impl Future<Output = Result<Streaming<T>, Status>>,
        mut on: impl FnMut(T, bool),
    ) -> End {
        let started = Instant::now();
        let deadline = self.limits.lifetime.map(|life| started + life);
        let initial = self.limits.initial.unwrap_or(FOREVER);
        let opened = timeout(initial, async {
            let mut stream = open.await?;
            let first = stream.message().await?;
            Ok::<_, Status>((stream, first))
        });
        let (mut stream, first) = match opened.await {
            Err(_) => return End::Failed(Status::deadline_exceeded("initial update timed out")),
            Ok(Err(status)) => return End::Failed(status),
            Ok(Ok((_, None))) => return End::Renew,
            Ok(Ok((stream, Some(first)))) => (stream, first),
        };
        on(first, true);
        loop {
            let idle = self.limits.idle.unwrap_or(FOREVER);
            let left = deadline.map_or(FOREVER, |d| d.saturating_duration_since(Instant::now()));
            match timeout(idle.min(left), stream.message()).await {
                Err(_) => return End::Renew,
                Ok(Ok(Some(message))) => on(message, false),
                Ok(Ok(None)) => return End::Renew,
                Ok(Err(status)) => return End::Failed(status),
            }
        }
    }
}

/// A service that was replaced is back in seconds: until then nobody waits longer than this.
const PROMPT: Duration = Duration::from_secs(1);
/// After so many failures it is not a replacement, and asking often would only be a burden.
const PROMPT_TRIES: u32 = 14;

/// Long enough, and still addable to an instant.
pub(super) const FOREVER: Duration = Duration::from_secs(86_400 * 365 * 30);
