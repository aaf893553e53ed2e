//! How many new streams a service takes on: a rate with a burst for all clients together, and a
//! smaller one for each, so that one that storms does not keep the others out. Streams that are
//! open are none of its business.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Clients told apart at the same time; more than that are only counted together.
const MAX_CLIENTS: usize = 20_000;

/// A full table is not searched for idle clients more often than this.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// A sustained rate, and how many may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u32,
    pub burst: u32,
}

/// Why a stream is not taken on, and after how long to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many new streams, retry in {0:?}")]
pub struct TooMany(pub Duration);

/// Lets new streams in, or says when to come again.
#[derive(Debug)]
pub struct Gate {
    all: Rate,
    each: Rate,
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    all: Option<Instant>,
    /// By hash of the client's name: when its next stream would come at the sustained rate.
    clients: HashMap<u64, Instant>,
    sweep_at: usize,
    swept: Option<Instant>,
}

// === impl Rate ===

impl Rate {
    fn interval(self) -> Duration {
        Duration::from_secs(1) / self.per_second.max(1)
    }

    /// When the stream after this one is due, or how long this one has to wait.
    fn next(self, due: Option<Instant>, now: Instant) -> Result<Instant, TooMany> {
        let due = due.map_or(now, |due| due.max(now));
        let slack = self.interval() * self.burst.saturating_sub(1);
        match due.duration_since(now).checked_sub(slack) {
            Some(wait) if !wait.is_zero() => Err(TooMany(wait)),
            _ => Ok(due + self.interval()),
        }
    }
}

// === impl Gate ===

impl Gate {
    pub fn new(all: Rate, each: Rate) -> Self {
        Self {
            all,
            each,
            hasher: RandomState::new(),
            state: Mutex::default(),
        }
    }

    /// Lets in whoever comes.
    pub fn open() -> Self {
        let rate = Rate {
            per_second: u32::MAX,
            burst: u32::MAX,
        };
        Self::new(rate, rate)
    }

    /// Takes on a stream of a client at `now`, or not. Clients that do not say who they are cannot
    /// be told apart: only what all may do together counts for them.
    pub fn enter(&self, client: Option<&str>, now: Instant) -> Result<(), TooMany> {
        let client = client.map(|client| self.hasher.hash_one(client));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let each = client
            .map(|client| {
                let due = state.clients.get(&client).copied();
                self.each.next(due, now).map(|due| (client, due))
            })
            .transpose()?;
        let all = self.all.next(state.all, now)?;
        state.all = Some(all);
        if let Some((client, due)) = each {
            state.note(client, due, now);
        }
        Ok(())
    }
}

impl State {
    fn note(&mut self, client: u64, due: Instant, now: Instant) {
        let known = self.clients.len();
        let rested = |at: Instant| now.duration_since(at) >= SWEEP_PAUSE;
        if known >= self.sweep_at && (known < MAX_CLIENTS || self.swept.is_none_or(rested)) {
            self.swept = Some(now);
            self.clients.retain(|_, due| *due > now);
            self.sweep_at = (self.clients.len() * 2).clamp(1024, MAX_CLIENTS);
        }
        if self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client) {
            self.clients.insert(client, due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(gate: &Gate, client: &str, now: Instant, tries: usize) -> usize {
        (0..tries)
            .filter(|_| gate.enter(Some(client), now).is_ok())
            .count()
    }

    fn gate() -> Gate {
        let rate = |per_second, burst| Rate { per_second, burst };
        Gate::new(rate(100, 50), rate(10, 20))
    }

    #[test]
    fn a_storm_of_one_client_does_not_keep_others_out() {
        let (gate, start) = (gate(), Instant::now());
        assert_eq!(admitted(&gate, "storm", start, 1000), 20, "its own burst");
        assert_eq!(
            gate.enter(Some("storm"), start),
            Err(TooMany(Duration::from_millis(100))),
            "it is told when to come again"
        );
        assert_eq!(admitted(&gate, "calm", start, 5), 5);
        let later = start + Duration::from_secs(1);
        assert_eq!(admitted(&gate, "storm", later, 1000), 10, "its own rate");
    }

    #[test]
    fn all_together_are_limited() {
        let (gate, start) = (gate(), Instant::now());
        let many = |now| {
            let clients = (0..1000).map(|n| n.to_string());
            clients
                .filter(|it| gate.enter(Some(it), now).is_ok())
                .count()
        };
        assert_eq!(many(start), 50);
        assert_eq!(many(start + Duration::from_millis(100)), 10);
        assert_eq!(many(start + Duration::from_secs(60)), 50, "time heals");
    }

    #[test]
    fn clients_without_a_name_are_only_limited_together() {
        let (gate, start) = (gate(), Instant::now());
        let unnamed = (0..1000).filter(|_| gate.enter(None, start).is_ok());
        assert_eq!(unnamed.count(), 50, "the burst of all, not of one");
        assert!(gate.enter(Some("calm"), start).is_err(), "all are one rate");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let rate = |per_second, burst| Rate { per_second, burst };
        let gate = Gate::new(rate(u32::MAX, u32::MAX), rate(1, 1));
        let start = Instant::now();
        for n in 0..MAX_CLIENTS + 1000 {
            assert_eq!(gate.enter(Some(&n.to_string()), start), Ok(()));
        }
        let known = |gate: &Gate| gate.state.lock().expect("no panic").clients.len();
        assert_eq!(known(&gate), MAX_CLIENTS);
        let later = start + Duration::from_secs(2);
        assert_eq!(gate.enter(Some("late"), later), Ok(()));
        assert_eq!(known(&gate), 1);
    }

    #[test]
    fn an_open_gate_stops_nobody() {
        let gate = Gate::open();
        assert_eq!(admitted(&gate, "x", Instant::now(), 100_000), 100_000);
    }
}
