//! Circuit breaking of one endpoint: failures in a row, or a low success rate over a window, take it
//! out; after a backoff one request probes it. Pure: outcomes and time come in as arguments.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use crate::policy::client::{FailureAccrual, SuccessRate};

/// How an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It worked.
    Success,
    /// It failed.
    Failure,
    /// The server asks for fewer requests: lowers the rate, does not count in a row.
    Throttled,
}

/// The state of one endpoint.
#[derive(Debug)]
pub struct Breaker {
    config: FailureAccrual,
    state: Cell<State>,
    in_a_row: Cell<u32>,
    window: RefCell<Window>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Passing,
    /// Out until then; `step` is how often it was.
    Shut {
        until: Instant,
        step: u32,
    },
    /// One request is on its way to find out.
    Probing {
        step: u32,
    },
}

const BUCKETS: usize = 10;

#[derive(Debug, Default)]
struct Window {
    /// Successes and all, by time slot.
    slots: [(u32, u32); BUCKETS],
    /// The slot in use and when it began.
    at: usize,
    began: Option<Instant>,
}

impl Window {
    fn add(&mut self, success: bool, now: Instant, span: Duration) {
        let slot = span / u32::try_from(BUCKETS).unwrap_or(1);
        let began = *self.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began);
        let steps = if slot.is_zero() {
            0
        } else {
            usize::try_from(passed.as_nanos() / slot.as_nanos()).unwrap_or(usize::MAX)
        };
        for _ in 0..steps.min(BUCKETS) {
            self.at = (self.at + 1) % BUCKETS;
            self.slots[self.at] = (0, 0);
        }
        if steps > 0 {
            self.began = Some(now);
        }
        let (good, all) = &mut self.slots[self.at];
        *all += 1;
        *good += u32::from(success);
    }

    fn is_bad(&self, rate: &SuccessRate) -> bool {
        let good: u32 = self.slots.iter().map(|(good, _)| good).sum();
        let all: u32 = self.slots.iter().map(|(_, all)| all).sum();
        all > 0 && all >= rate.min_requests && f64::from(good) / f64::from(all) < rate.threshold
    }
}

impl Breaker {
    /// Lets everything pass at first.
    pub fn new(config: FailureAccrual) -> Self {
        Self {
            config,
            state: Cell::new(State::Passing),
            in_a_row: Cell::new(0),
            window: RefCell::default(),
        }
    }

    /// Whether a request may go.
    pub fn is_ready(&self, now: Instant) -> bool {
        match self.state.get() {
            State::Passing => true,
            State::Shut { until, .. } => until <= now,
            State::Probing { .. } => false,
        }
    }

    /// When it may be tried again, if that is known.
    pub fn ready_at(&self) -> Option<Instant> {
        match self.state.get() {
            State::Shut { until, .. } => Some(until),
            State::Passing | State::Probing { .. } => None,
        }
    }

    /// A request goes; the first one after a backoff is the probe. Gives whether it is.
    pub fn begin(&self, now: Instant) -> bool {
        match self.state.get() {
            State::Shut { until, step } if until <= now => {
                self.state.set(State::Probing { step });
                true
            }
            _ => false,
        }
    }

    /// A request has ended; `random` is uniform in 0..1. Gives whether it was the probe.
    pub fn record(&self, verdict: Verdict, now: Instant, random: f64) -> bool {
        // Only a success rate knows of servers that ask for less.
        let verdict = match verdict {
            Verdict::Throttled if self.config.success_rate.is_none() => Verdict::Success,
            verdict => verdict,
        };
        let state = self.state.get();
        match state {
            State::Probing { step } => {
                if verdict == Verdict::Success {
                    self.state.set(State::Passing);
                    self.in_a_row.set(0);
                    *self.window.borrow_mut() = Window::default();
                } else {
                    self.shut(step + 1, now, random);
                }
            }
            // What was sent before does not change the backoff.
            State::Shut { .. } => {}
            State::Passing => {
                match verdict {
                    Verdict::Success => self.in_a_row.set(0),
                    Verdict::Failure => self.in_a_row.set(self.in_a_row.get() + 1),
                    Verdict::Throttled => {}
                }
                let max = self.config.max_consecutive;
                let mut bad = max > 0 && self.in_a_row.get() >= max;
                if let Some(rate) = &self.config.success_rate {
                    let mut window = self.window.borrow_mut();
                    window.add(verdict == Verdict::Success, now, rate.window);
                    bad |= verdict != Verdict::Success && window.is_bad(rate);
                }
                if bad {
                    self.shut(0, now, random);
                }
            }
        }
        matches!(state, State::Probing { .. })
    }

    /// The probe never came back.
    pub fn lost_probe(&self, now: Instant, random: f64) {
        if let State::Probing { step } = self.state.get() {
            self.shut(step, now, random);
        }
    }

    fn shut(&self, step: u32, now: Instant, random: f64) {
        let until = now + self.config.backoff.delay(step, random);
        self.state.set(State::Shut { until, step });
        self.in_a_row.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Backoff;

    const SECOND: Duration = Duration::from_secs(1);

    fn accrual(max_consecutive: u32, success_rate: Option<SuccessRate>) -> FailureAccrual {
        let backoff = Backoff::new(SECOND, 60 * SECOND, 0.0).expect("valid");
        FailureAccrual {
            max_consecutive,
            success_rate,
            backoff,
        }
    }

    #[test]
    fn failures_in_a_row_shut_it() {
        let now = Instant::now();
        let breaker = Breaker::new(accrual(3, None));
        for verdict in [
            Verdict::Failure,
            Verdict::Failure,
            Verdict::Success,
            Verdict::Failure,
            Verdict::Failure,
        ] {
            breaker.record(verdict, now, 0.0);
            assert!(breaker.is_ready(now));
        }
        breaker.record(Verdict::Failure, now, 0.0);
        assert!(!breaker.is_ready(now));
        assert!(breaker.is_ready(now + SECOND));
    }

    #[test]
    fn a_probe_decides() {
        let now = Instant::now();
        let breaker = Breaker::new(accrual(1, None));
        breaker.record(Verdict::Failure, now, 0.0);
        let then = now + SECOND;
        assert!(breaker.begin(then), "the first request is the probe");
        assert!(!breaker.is_ready(then), "and the only one");
        breaker.record(Verdict::Failure, then, 0.0);
        assert_eq!(
            breaker.ready_at(),
            Some(then + 2 * SECOND),
            "the backoff grows"
        );
        let then = then + 2 * SECOND;
        breaker.begin(then);
        breaker.lost_probe(then, 0.0);
        assert_eq!(
            breaker.ready_at(),
            Some(then + 2 * SECOND),
            "a lost probe is tried again"
        );
        let then = then + 2 * SECOND;
        breaker.begin(then);
        breaker.record(Verdict::Success, then, 0.0);
        assert!(breaker.is_ready(then));
        assert_eq!(breaker.ready_at(), None);
    }

    #[test]
    fn a_server_that_asks_for_less_is_well_unless_a_rate_is_kept() {
        let now = Instant::now();
        let rate = SuccessRate {
            threshold: 0.1,
            window: 10 * SECOND,
            min_requests: 100,
        };
        for (name, rate, resets, opens) in [
            ("consecutive", None, true, true),
            ("unified", Some(rate), false, false),
        ] {
            let breaker = Breaker::new(accrual(2, rate));
            for verdict in [Verdict::Failure, Verdict::Throttled, Verdict::Failure] {
                assert!(!breaker.record(verdict, now, 0.0), "{name}: no probe");
            }
            assert_eq!(breaker.is_ready(now), resets, "{name}: between failures");
            breaker.record(Verdict::Failure, now, 0.0);
            let then = now + SECOND;
            assert!(breaker.begin(then), "{name}: a probe");
            assert!(breaker.record(Verdict::Throttled, then, 0.0), "{name}");
            assert_eq!(breaker.is_ready(then), opens, "{name}: as a probe");
        }
    }

    #[test]
    fn a_low_success_rate_shuts_it() {
        let rate = SuccessRate {
            threshold: 0.8,
            window: 10 * SECOND,
            min_requests: 5,
        };
        let now = Instant::now();
        let breaker = Breaker::new(accrual(0, Some(rate.clone())));
        for _ in 0..4 {
            breaker.record(Verdict::Failure, now, 0.0);
            assert!(breaker.is_ready(now), "too few requests");
        }
        breaker.record(Verdict::Throttled, now, 0.0);
        assert!(!breaker.is_ready(now));
        let breaker = Breaker::new(accrual(0, Some(rate)));
        for _ in 0..4 {
            breaker.record(Verdict::Failure, now, 0.0);
        }
        breaker.record(Verdict::Failure, now + 20 * SECOND, 0.0);
        assert!(
            breaker.is_ready(now + 20 * SECOND),
            "old failures are forgotten"
        );
    }
}
