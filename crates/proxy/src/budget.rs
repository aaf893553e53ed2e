//! How many requests may be sent once more: a share of those of late, and some per second in any
//! case. Pure: time comes in as an argument.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

const SLOTS: usize = 10;
/// What one repetition costs.
const ONE: i64 = 1000;

/// Tokens of the last while, by time slot.
#[derive(Debug)]
pub struct Budget {
    slot: Duration,
    /// What one request brings.
    deposit: i64,
    /// What is there without any request.
    reserve: i64,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: [i64; SLOTS],
    at: usize,
    began: Option<Instant>,
}

/// The settings of a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Repetitions per request.
    pub ratio: f64,
    /// Repetitions per second that are always allowed.
    pub min_per_second: u32,
    /// How long a request counts.
    pub ttl: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            ratio: 0.2,
            min_per_second: 10,
            ttl: Duration::from_secs(10),
        }
    }
}

impl Budget {
    /// A budget nothing was taken from yet.
    pub fn new(terms: Terms) -> Self {
        let ttl = terms
            .ttl
            .clamp(Duration::from_secs(1), Duration::from_secs(60));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the ratio is clamped, so the product fits"
        )]
        let deposit = (terms.ratio.clamp(0.0, 1000.0) * 1000.0) as i64;
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(60);
        Self {
            slot: ttl / u32::try_from(SLOTS).unwrap_or(10),
            deposit,
            reserve: i64::from(terms.min_per_second) * seconds * ONE,
            state: RefCell::default(),
        }
    }

    /// A request has come.
    pub fn deposit(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        state.expire(now, self.slot);
        let at = state.at;
        state.slots[at] = state.slots[at].saturating_add(self.deposit);
    }

    /// A request is to be sent again; says whether it may.
    pub fn withdraw(&self, now: Instant) -> bool {
        let mut state = self.state.borrow_mut();
        state.expire(now, self.slot);
        let left = state
            .slots
            .iter()
            .fold(self.reserve, |sum, slot| sum.saturating_add(*slot));
        if left < ONE {
            return false;
        }
        let at = state.at;
        state.slots[at] = state.slots[at].saturating_sub(ONE);
        true
    }
}

impl State {
    fn expire(&mut self, now: Instant, slot: Duration) {
        let began = *self.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began);
        if passed < slot {
            return;
        }
        let steps = u32::try_from(passed.as_nanos() / slot.as_nanos()).unwrap_or(u32::MAX);
        for _ in 0..steps.min(u32::try_from(SLOTS).unwrap_or(10)) {
            self.at = (self.at + 1) % SLOTS;
            self.slots[self.at] = 0;
        }
        self.began = Some(began + slot * steps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn taken(budget: &Budget, now: Instant) -> usize {
        (0..10_000).take_while(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn table() {
        let now = Instant::now();
        for (name, ratio, min_per_second, requests, want) in [
            ("nothing at all", 0.0, 0, 100, 0),
            ("the reserve is for the whole while", 0.0, 2, 0, 20),
            ("a share of the requests", 0.2, 0, 100, 20),
            ("both together", 0.2, 10, 100, 120),
            ("more than all", 2.0, 0, 10, 20),
            ("too few requests for one", 0.2, 0, 4, 0),
        ] {
            let budget = Budget::new(Terms {
                ratio,
                min_per_second,
                ttl: 10 * SECOND,
            });
            for _ in 0..requests {
                budget.deposit(now);
            }
            assert_eq!(taken(&budget, now), want, "{name}");
        }
    }

    #[test]
    fn requests_and_repetitions_are_forgotten() {
        let now = Instant::now();
        let budget = Budget::new(Terms {
            ratio: 1.0,
            min_per_second: 1,
            ttl: 10 * SECOND,
        });
        for _ in 0..5 {
            budget.deposit(now);
        }
        assert_eq!(taken(&budget, now + 9 * SECOND), 15);
        assert_eq!(
            taken(&budget, now + 18 * SECOND),
            0,
            "taken nine seconds ago"
        );
        assert_eq!(taken(&budget, now + 19 * SECOND), 10, "all forgotten");
    }

    #[test]
    fn a_long_silence_is_cheap() {
        let now = Instant::now();
        let budget = Budget::new(Terms::default());
        budget.deposit(now);
        assert_eq!(taken(&budget, now + 86_400 * SECOND), 100);
    }
}
