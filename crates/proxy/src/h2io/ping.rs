//! Pings on an HTTP/2 connection, which say two things: whether the peer is still there, and how much
//! it sends while one is on its way. A window that is mostly used up in that time is too small.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use h2::PingPong;
use tokio::time::{sleep, timeout};

use super::Gather;

/// When a peer is asked for a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// After so much time without one.
    pub interval: Duration,
    /// How long it may take.
    pub timeout: Duration,
    /// Also while nothing is asked of it.
    pub while_idle: bool,
}

/// Windows that grow with what is received: the next ones, for whoever drives the connection.
#[derive(Debug)]
pub struct Adaptive {
    gather: Gather,
    next: Cell<Option<u32>>,
}

impl Adaptive {
    /// Watches what is received over a connection.
    pub fn new(gather: &Gather) -> Self {
        Self {
            gather: gather.clone(),
            next: Cell::new(None),
        }
    }

    /// A new size of stream windows, once.
    pub fn grown(&self) -> Option<u32> {
        self.next.take()
    }
}

/// Stream and connection windows as they begin, whatever was configured.
pub const FIRST: (u32, u32) = (65_535, 1 << 20);
/// Windows do not become larger.
const LARGEST: u32 = 16 << 20;
/// Between two measurements, while windows grow and when they have not for long.
const OFTEN: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(10);

/// Pings as long as the peer answers. To be polled on every turn of the connection: that is how it
/// finds out that something was received.
pub async fn watch(
    mut pings: PingPong,
    keep_alive: Option<KeepAlive>,
    busy: impl Fn() -> bool,
    adaptive: Option<&Adaptive>,
) {
    let mut estimate = Estimate::default();
    loop {
        let silence = async {
            match keep_alive {
                Some(keep_alive) => sleep(keep_alive.interval).await,
                None => std::future::pending().await,
            }
        };
        let data = async {
            let Some(adaptive) = adaptive.filter(|_| estimate.window < LARGEST) else {
                return std::future::pending().await;
            };
            sleep(estimate.pause).await;
            let before = adaptive.gather.received();
            std::future::poll_fn(|_| match adaptive.gather.received() > before {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            })
            .await;
        };
        let silent = tokio::select! {
            biased;
            () = data => false,
            () = silence => true,
        };
        if silent && keep_alive.is_some_and(|k| !k.while_idle) && !busy() {
            continue;
        }
        let (began, before) = (Instant::now(), adaptive.map(|a| a.gather.received()));
        let pong = pings.ping(h2::Ping::opaque());
        let answered = match keep_alive {
            Some(keep_alive) => matches!(timeout(keep_alive.timeout, pong).await, Ok(Ok(_))),
            None => pong.await.is_ok(),
        };
        if !answered {
            return;
        }
        if let (Some(adaptive), Some(before)) = (adaptive, before)
            && let Some(window) = estimate.sample(adaptive.gather.received() - before)
        {
            let took = began.elapsed();
            tracing::trace!(window, ?took, "HTTP/2 windows grow");
            adaptive.next.set(Some(window));
            // The connection is to have its turn.
            tokio::task::yield_now().await;
        }
    }
}

/// How large a window must be so that the peer need not wait.
#[derive(Debug)]
struct Estimate {
    window: u32,
    pause: Duration,
}

impl Default for Estimate {
    fn default() -> Self {
        Self {
            window: FIRST.0,
            pause: OFTEN,
        }
    }
}

impl Estimate {
    /// So many bytes came while a ping was on its way. Gives a new window if that was much of it.
    fn sample(&mut self, received: u64) -> Option<u32> {
        let received = u32::try_from(received).unwrap_or(u32::MAX);
        if received / 2 < self.window / 3 {
            self.pause = (self.pause * 2).min(SELDOM);
            return None;
        }
        self.pause = OFTEN;
        self.window = received.saturating_mul(2).clamp(self.window, LARGEST);
        Some(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_while_they_are_used_up_and_never_shrink() {
        let mut estimate = Estimate::default();
        for (name, received, want) in [
            ("little", 1_000, None),
            ("half", 32_000, None),
            ("most", 60_000, Some(120_000)),
            ("most again", 120_000, Some(240_000)),
            ("less", 100_000, None),
            ("nothing", 0, None),
            ("all streams at once", 20_000_000, Some(LARGEST)),
            ("no more than that", u64::MAX, Some(LARGEST)),
        ] {
            assert_eq!(estimate.sample(received), want, "{name}");
        }
    }

    #[test]
    fn what_has_not_changed_for_long_is_seldom_measured() {
        let mut estimate = Estimate::default();
        for _ in 0..20 {
            estimate.sample(0);
        }
        assert_eq!(estimate.pause, SELDOM);
        estimate.sample(60_000);
        assert_eq!(estimate.pause, OFTEN);
    }
}
