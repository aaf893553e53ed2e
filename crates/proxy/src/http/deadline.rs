//! Timeouts of one request: from routing, from the end of the request, between frames. One timer for
//! all three, and none when none is set.

use std::{
    cell::Cell,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::time::Sleep;

use super::{Routed, server1::Failed};
use crate::{errors::HttpError, metrics::http::Outcome, policy::client::Timeouts};

/// A limit that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    Request(Duration),
    Response(Duration),
    Headers(Duration),
    Idle(Duration),
    Profile(Duration),
}

impl Expired {
    /// What the client is told when nothing has been answered yet.
    pub(super) fn error(self) -> HttpError {
        match self {
            Self::Profile(d) => HttpError::profile_timeout(d),
            _ => HttpError::stream_timeout(&self.what()),
        }
    }

    /// What a gRPC client is told in the middle of an answer.
    pub(super) fn mid_stream(self) -> HttpError {
        HttpError::late_stream_timeout(&self.what())
    }

    fn what(self) -> String {
        match self {
            Self::Request(d) => format!("request timeout: {d:?}"),
            Self::Response(d) => format!("response stream timeout: {d:?}"),
            Self::Headers(d) => format!("response header timeout: {d:?}"),
            Self::Idle(d) => format!("idle timeout: {d:?}"),
            Self::Profile(d) => format!("response timeout: {d:?}"),
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Request(_) => "REQUEST_TIMEOUT",
            Self::Response(_) => "RESPONSE_STREAM_TIMEOUT",
            Self::Headers(_) => "RESPONSE_HEADERS_TIMEOUT",
            Self::Idle(_) => "IDLE_TIMEOUT",
            Self::Profile(_) => "RESPONSE_HEADERS_TIMEOUT",
        }
    }
}

/// The limits of one try.
#[derive(Debug)]
pub(super) struct Deadlines {
    limits: Timeouts,
    /// Wait for headers, of a try that may be repeated.
    headers: Option<Duration>,
    started: Instant,
    requested: Option<Instant>,
    moved: Instant,
    timer: Pin<Box<Sleep>>,
    at: Instant,
}

/// How far an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) requested: bool,
    pub(super) answered: bool,
}

impl Deadlines {
    /// `None` when there is nothing to limit. `started` is when the request was routed.
    pub(super) fn new(
        limits: Timeouts,
        headers: Option<Duration>,
        started: Instant,
    ) -> Option<Box<Self>> {
        if limits == Timeouts::default() && headers.is_none() {
            return None;
        }
        let now = Instant::now();
        Some(Box::new(Self {
            limits,
            headers,
            started,
            requested: None,
            moved: now,
            timer: Box::pin(tokio::time::sleep_until(now.into())),
            at: now,
        }))
    }

    fn next(&self, stage: Stage) -> Option<(Instant, Expired)> {
        let requested = self.requested;
        [
            self.limits
                .request
                .map(|d| (self.started + d, Expired::Request(d))),
            self.limits
                .response
                .zip(requested)
                .map(|(d, at)| (at + d, Expired::Response(d))),
            self.headers
                .zip(requested)
                .filter(|_| !stage.answered)
                .map(|(d, at)| (at + d, Expired::Headers(d))),
            self.limits.idle.map(|d| (self.moved + d, Expired::Idle(d))),
            self.limits
                .profile
                .filter(|_| !stage.answered)
                .map(|d| (self.started + d, Expired::Profile(d))),
        ]
        .into_iter()
        .flatten()
        .min_by_key(|(at, _)| *at)
    }

    /// Called whenever an exchange was polled and is not done. Something has moved unless it was the
    /// timer that woke us.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, stage: Stage) -> Poll<Expired> {
        let now = Instant::now();
        if stage.requested && self.requested.is_none() {
            self.requested = Some(now);
        }
        let fired = now >= self.at && self.timer.is_elapsed();
        if !fired {
            self.moved = now;
        }
        loop {
            let Some((at, expired)) = self.next(stage) else {
                return Poll::Pending;
            };
            if at <= Instant::now() {
                return Poll::Ready(expired);
            }
            if at != self.at {
                self.at = at;
                self.timer.as_mut().reset(at.into());
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// Waits for what comes before a request is sent, no longer than the limits that run since it was
/// routed.
pub(super) fn before<T>(
    limits: &Timeouts,
    routed: Instant,
    mut wait: Pin<&mut impl Future<Output = T>>,
) -> impl Future<Output = Result<T, Expired>> {
    let request = limits.request.map(|d| (routed + d, Expired::Request(d)));
    let profile = limits.profile.map(|d| (routed + d, Expired::Profile(d)));
    let nearest = request.into_iter().chain(profile).min_by_key(|(at, _)| *at);
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(done) = wait.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        let Some((at, expired)) = nearest else {
            return Poll::Pending;
        };
        // Armed only when there is something to wait for.
        let sleep = || Box::pin(tokio::time::sleep_until(at.into()));
        let timer = timer.get_or_insert_with(sleep);
        timer.as_mut().poll(cx).map(|()| Err(expired))
    })
}

/// How long a head may take once its first byte is there. Nothing is armed while heads come whole.
#[derive(Debug, Default)]
pub(super) struct HeadTimer(Option<Pin<Box<Sleep>>>);

impl HeadTimer {
    /// Called when a head has begun and more of it must come; whether it took too long.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>, limit: Duration) -> bool {
        let timer = self
            .0
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        timer.as_mut().poll(cx).is_ready()
    }
}

/// How far an exchange is, told by the exchange.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) requested: Cell<bool>,
    pub(super) answered: Cell<bool>,
}

impl Progress {
    fn stage(&self) -> Stage {
        Stage {
            requested: self.requested.get(),
            answered: self.answered.get(),
        }
    }
}

/// Runs an exchange within its limits.
pub(super) async fn limited(
    mut deadlines: Option<Box<Deadlines>>,
    progress: &Progress,
    mut step: impl FnMut(&mut Context<'_>) -> Poll<Result<(), Failed>>,
) -> Result<(), Failed> {
    std::future::poll_fn(|cx| {
        let result = step(cx);
        if result.is_pending()
            && let Some(deadlines) = &mut deadlines
            && let Poll::Ready(expired) = deadlines.poll(cx, progress.stage())
        {
            return Poll::Ready(Err(Failed::Expired(expired)));
        }
        result
    })
    .await
}

/// What a failed exchange means for the client; the request learns how it is counted.
pub(super) fn conclude(
    routed: &Routed,
    failed: Failed,
    progress: &Progress,
    replayable: bool,
    status: u16,
    label: &'static str,
) -> Failed {
    let (failed, outcome) = match failed {
        Failed::Expired(expired) => {
            let failed = match expired {
                _ if progress.answered.get() => Failed::Abort,
                Expired::Headers(_) if replayable => Failed::Retry(expired.error(), None),
                _ => Failed::Answer(expired.error()),
            };
            (failed, Outcome::broken(status, expired.label()))
        }
        Failed::Retry(error, Some(outcome)) => (Failed::Retry(error, Some(outcome)), outcome),
        Failed::Unsent(..) => (failed, Outcome::broken(status, "REFUSED")),
        Failed::Gone if status == 0 => (failed, Outcome::UNANSWERED),
        Failed::Gone => (failed, routed.classify(status, None).cut_off()),
        failed => (failed, Outcome::broken(status, label)),
    };
    routed.conclude(outcome);
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn expire(limits: Timeouts, headers: Option<Duration>, stage: Stage) -> (Expired, u128) {
        let start = tokio::time::Instant::now();
        let mut deadlines = Deadlines::new(limits, headers, start.into_std()).expect("limits");
        let expired = std::future::poll_fn(|cx| deadlines.poll(cx, stage)).await;
        (expired, start.elapsed().as_millis())
    }

    #[tokio::test]
    async fn waiting_is_part_of_the_request() {
        let ms = Duration::from_millis;
        let limits = |request, profile| Timeouts {
            request,
            profile,
            idle: Some(ms(1)),
            ..Timeouts::default()
        };
        let (never, now) = (std::future::pending::<()>, Instant::now());
        for (name, limits, want) in [
            (
                "request",
                limits(Some(ms(5)), None),
                Expired::Request(ms(5)),
            ),
            (
                "profile",
                limits(None, Some(ms(5))),
                Expired::Profile(ms(5)),
            ),
            (
                "the nearer one",
                limits(Some(ms(5)), Some(ms(9))),
                Expired::Request(ms(5)),
            ),
        ] {
            let late = before(&limits, now, std::pin::pin!(never())).await;
            assert_eq!(late, Err(want), "{name}");
        }
        let limits = limits(Some(ms(0)), None);
        let ready = before(&limits, now, std::pin::pin!(std::future::ready(7))).await;
        assert_eq!(ready, Ok(7), "what is there needs no waiting");
    }

    #[tokio::test]
    async fn the_longest_limits_do_not_pass() {
        let longest = crate::config::value::duration("18446744073709551615s").expect("valid");
        let limits = Timeouts {
            request: Some(longest),
            response: Some(longest),
            idle: Some(longest),
            profile: Some(longest),
        };
        let sent = Stage {
            requested: true,
            answered: false,
        };
        let moment = Duration::from_millis(5);
        let passed = tokio::time::timeout(moment, expire(limits, Some(longest), sent)).await;
        assert!(passed.is_err(), "{passed:?}");
        let never = std::pin::pin!(std::future::pending::<()>());
        let passed = tokio::time::timeout(moment, before(&limits, Instant::now(), never)).await;
        assert!(passed.is_err(), "{passed:?}");
    }

    #[tokio::test]
    async fn the_nearest_limit_counts() {
        let ms = Duration::from_millis;
        let sent = Stage {
            requested: true,
            answered: false,
        };
        let sending = Stage {
            requested: false,
            answered: false,
        };
        let limits = Timeouts {
            request: Some(ms(60)),
            response: Some(ms(30)),
            ..Timeouts::default()
        };
        let (expired, after) = expire(limits, None, sent).await;
        assert_eq!(expired, Expired::Response(ms(30)));
        assert!(after >= 30, "{after}");
        let (expired, _) = expire(limits, None, sending).await;
        assert_eq!(
            expired,
            Expired::Request(ms(60)),
            "the request is not sent yet"
        );
        let (expired, _) = expire(Timeouts::default(), Some(ms(5)), sent).await;
        assert_eq!(expired, Expired::Headers(ms(5)));
        assert!(Deadlines::new(Timeouts::default(), None, Instant::now()).is_none());
    }
}
