//! How fast the API server may be asked: a rate with a burst, and a bound on those who wait.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Nobody waits longer; a proxy that is refused backs off and comes again.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Turns a rate and a burst into waiting times; whoever would wait too long is refused.
#[derive(Debug)]
pub struct Limiter {
    /// Time between two calls at the sustained rate.
    interval: Duration,
    /// How far the schedule may run ahead of the clock without anybody waiting.
    slack: Duration,
    next: Mutex<Option<Instant>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many certificate requests, retry later")]
pub struct TooBusy;

impl Limiter {
    pub fn new(per_second: f64, burst: u32) -> Self {
        let per_second = if per_second.is_finite() && per_second > 0.0 {
            per_second
        } else {
            100.0
        };
        let interval = Duration::from_secs_f64(1.0 / per_second.max(0.001));
        Self {
            interval,
            slack: interval * burst.saturating_sub(1),
            next: Mutex::new(None),
        }
    }

    /// Reserves the next call and says how long to wait for it.
    pub fn reserve(&self, now: Instant) -> Result<Duration, TooBusy> {
        let mut next = self.next.lock();
        let scheduled = next.map_or(now, |at| at.max(now));
        let ahead = scheduled.duration_since(now);
        let wait = ahead.saturating_sub(self.slack);
        if wait > MAX_WAIT {
            return Err(TooBusy);
        }
        *next = Some(scheduled + self.interval);
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_rate_then_refusal() {
        let limiter = Limiter::new(10.0, 3);
        let start = Instant::now();
        let ms = |n| Ok(Duration::from_millis(n));
        let waits: Vec<_> = (0..5).map(|_| limiter.reserve(start)).collect();
        assert_eq!(waits, [ms(0), ms(0), ms(0), ms(100), ms(200)]);
        let admitted = (0..1000).filter(|_| limiter.reserve(start).is_ok()).count();
        assert_eq!(admitted, 48, "five seconds' worth may wait in all");
        assert_eq!(limiter.reserve(start), Err(TooBusy));
        let later = start + Duration::from_secs(60);
        assert_eq!(limiter.reserve(later), ms(0), "time heals");
    }
}
