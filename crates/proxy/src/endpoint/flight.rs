//! One request on its way to an endpoint: what it weighs, and what its answer says about the endpoint.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use super::Endpoint;
use crate::{breaker::Verdict, metrics::http::Outcome};

/// One request on its way: counts in the endpoint's load until dropped.
#[derive(Debug)]
pub struct InFlight {
    /// Where it went.
    pub endpoint: Rc<Endpoint>,
    /// When it was dispatched.
    pub started: Instant,
    sampled: Cell<bool>,
    /// The request finds out whether the endpoint is well again.
    probe: Cell<bool>,
}

impl InFlight {
    /// Dispatches to an endpoint.
    pub fn new(endpoint: Rc<Endpoint>, now: Instant) -> Self {
        endpoint.load.begin();
        let probe = endpoint.breaker.as_ref().is_some_and(|b| b.begin(now));
        Self {
            endpoint,
            started: now,
            sampled: Cell::new(false),
            probe: Cell::new(probe),
        }
    }

    /// Whether it finds out if the endpoint is well again: nobody else can.
    pub fn is_probe(&self) -> bool {
        self.probe.get()
    }

    /// How the answer counts for circuit breaking.
    pub fn judged(&self, outcome: Outcome) {
        let Some(breaker) = &self.endpoint.breaker else {
            return;
        };
        let verdict = match (outcome.status, outcome.grpc) {
            (429, _) | (_, Some(8)) => Verdict::Throttled,
            _ if outcome.failure => Verdict::Failure,
            _ => Verdict::Success,
        };
        self.probe.set(false);
        if breaker.record(verdict, Instant::now(), rand::random()) {
            self.endpoint.shared.waiters.notify_waiters();
        }
    }

    /// Whether failed answers are held against the endpoint's latency.
    pub fn penalizes(&self) -> bool {
        self.endpoint.shared.penalty.is_some()
    }

    /// A failed answer began, with a hint when to come back: it counts as slow.
    pub fn penalized(&self, hint: Option<Duration>, now: Instant) {
        if let Some(penalty) = self.endpoint.shared.penalty
            && !self.sampled.replace(true)
        {
            let rtt = now.saturating_duration_since(self.started);
            let hint = hint.unwrap_or_default().min(penalty.max_retry_after);
            let rtt = rtt.max(penalty.base).max(hint);
            self.endpoint.load.sample(rtt, now);
        }
    }

    /// The answer began: its latency counts once.
    pub fn answered(&self, now: Instant) {
        if !self.sampled.replace(true) {
            let rtt = now.saturating_duration_since(self.started);
            self.endpoint.load.sample(rtt, now);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.load.end();
        if self.probe.get()
            && let Some(breaker) = &self.endpoint.breaker
        {
            breaker.lost_probe(Instant::now(), rand::random());
            self.endpoint.shared.waiters.notify_waiters();
        }
    }
}
