//! When to ask for a new certificate: a pure state machine over wall-clock times that come in as
//! arguments. A certificate is renewed at 70 % of its remaining life; failures are retried with
//! backoff, always early enough to leave time before the certificate in use ends.

use std::time::{Duration, SystemTime};

/// First retry of a process that has no certificate yet: pods should start fast.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// Longest pause between failed attempts while there is time left.
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// Longest sleep between two looks at the clock, so that a jump is noticed.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Share of a delay that is drawn at random, so that pods started together spread out.
const JITTER: f64 = 0.1;
const RENEW_AT: f64 = 0.7;

/// Clamps on the pause between renewals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    pub min_refresh: Duration,
    pub max_refresh: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_refresh: Duration::from_secs(10),
            max_refresh: Duration::from_secs(24 * 3600),
        }
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask for a certificate, then call [`Renewal::certified`] or [`Renewal::failed`].
    Renew,
    /// Look again after this long.
    Wait(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    not_before: SystemTime,
    not_after: SystemTime,
}

#[derive(Debug, Clone)]
pub struct Renewal {
    config: Config,
    held: Option<Held>,
    /// Failures since the last success.
    failures: u32,
    /// When the plan was made and when it is due; `None` means at once.
    plan: Option<(SystemTime, SystemTime)>,
}

impl Renewal {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            held: None,
            failures: 0,
            plan: None,
        }
    }

    /// End of the certificate in use.
    pub fn not_after(&self) -> Option<SystemTime> {
        self.held.map(|h| h.not_after)
    }

    /// When the next attempt is due, as far as planned.
    pub fn due(&self) -> Option<SystemTime> {
        self.plan.map(|(_, due)| due)
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Decides; `random` in 0..1 spreads re-planned delays.
    pub fn poll(&mut self, now: SystemTime, random: f64) -> Action {
        let Some((made, mut due)) = self.plan else {
            return Action::Renew;
        };
        if now < made {
            // The clock went back: the plan means nothing any more. A certificate from the future
            // is useless to us until then, so ask for one that is valid now.
            due = now + self.delay(now, random);
            self.plan = Some((now, due));
        }
        match due.duration_since(now) {
            Ok(left) if !left.is_zero() => Action::Wait(left.min(MAX_WAIT)),
            _ => Action::Renew,
        }
    }

    /// Something made the certificate in use less good than a new one: ask at the next poll.
    pub fn hasten(&mut self) {
        self.plan = None;
    }

    /// A certificate was obtained, verified and published.
    pub fn certified(
        &mut self,
        (not_before, not_after): (SystemTime, SystemTime),
        now: SystemTime,
        random: f64,
    ) {
        self.held = Some(Held {
            not_before,
            not_after,
        });
        self.failures = 0;
        self.plan = Some((now, now + self.delay(now, random)));
    }

    /// An attempt failed, in whatever way.
    pub fn failed(&mut self, now: SystemTime, random: f64) {
        self.failures = self.failures.saturating_add(1);
        self.plan = Some((now, now + self.delay(now, random)));
    }

    fn delay(&self, now: SystemTime, random: f64) -> Duration {
        let random = random.clamp(0.0, 1.0);
        let Config {
            min_refresh,
            max_refresh,
        } = self.config;
        let Some(held) = self.held else {
            // Nothing to lose yet: quick at first, then the usual minimum.
            let backoff = doubled(FIRST_RETRY, self.failures.saturating_sub(1)).min(min_refresh);
            return backoff.mul_f64(1.0 + JITTER * random);
        };
        let left = match held.not_after.duration_since(now) {
            Ok(left) if now >= held.not_before && !left.is_zero() => left,
            // Expired, or from the future.
            _ => return min_refresh.mul_f64(1.0 + JITTER * random),
        };
        let on_time = left.mul_f64(RENEW_AT * (1.0 - JITTER * random));
        let delay = if self.failures == 0 {
            on_time
        } else {
            let backoff = doubled(min_refresh, self.failures - 1).min(MAX_BACKOFF);
            on_time.min(backoff.mul_f64(1.0 + JITTER * random))
        };
        delay.clamp(min_refresh, max_refresh.max(min_refresh))
    }
}

fn doubled(base: Duration, times: u32) -> Duration {
    base.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX))
        .min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests;
