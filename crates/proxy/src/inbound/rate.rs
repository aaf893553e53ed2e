//! Local rate limits of an inbound port: one for all clients, then one per client or one shared by
//! the clients an override names. Token buckets in GCRA form; time comes in as an argument.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use linkerd_core::identity::Id;
use parking_lot::Mutex;

use crate::policy::server::RateLimit;

/// Which limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// That of all clients.
    Total(u32),
    /// That of each client.
    Identity(u32),
    /// That of some clients.
    Override(u32),
}

/// The theoretical arrival time of the next request.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Option<Instant>);

impl Bucket {
    /// Takes one request if the rate allows; a second's worth may come at once.
    fn take(&mut self, rps: u32, now: Instant) -> bool {
        let interval = Duration::from_secs(1) / rps.max(1);
        let due = self.0.map_or(now, |due| due.max(now));
        if due + interval > now + Duration::from_secs(1) + interval / 2 {
            return false;
        }
        self.0 = Some(due + interval);
        true
    }
}

/// Clients remembered; beyond it all new ones share one bucket.
const MAX_CLIENTS: usize = 10_000;

/// The buckets of one policy, shared by all workers.
#[derive(Debug, Default)]
pub struct Buckets(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    total: Bucket,
    clients: HashMap<Option<Id>, Bucket>,
    overrides: Vec<Bucket>,
}

impl Buckets {
    /// Fresh buckets.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Counts a request of a client, or says which limit it exceeds.
    pub fn check(
        &self,
        limit: &RateLimit,
        client: Option<&Id>,
        now: Instant,
    ) -> Result<(), Exceeded> {
        let mut state = self.0.lock();
        if let Some(rps) = limit.total
            && !state.total.take(rps, now)
        {
            return Err(Exceeded::Total(rps));
        }
        let named = limit
            .overrides
            .iter()
            .enumerate()
            .find(|(_, (_, ids))| client.is_some_and(|id| ids.contains(id)));
        if let Some((at, (rps, _))) = named {
            if state.overrides.len() <= at {
                state.overrides.resize(at + 1, Bucket::default());
            }
            return if state.overrides[at].take(*rps, now) {
                Ok(())
            } else {
                Err(Exceeded::Override(*rps))
            };
        }
        let Some(rps) = limit.identity else {
            return Ok(());
        };
        let key = client
            .filter(|id| {
                state.clients.len() < MAX_CLIENTS
                    || state.clients.contains_key(&Some((*id).clone()))
            })
            .cloned();
        if state.clients.entry(key).or_default().take(rps, now) {
            Ok(())
        } else {
            Err(Exceeded::Identity(rps))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Meta;

    fn limit(
        total: Option<u32>,
        identity: Option<u32>,
        overrides: Vec<(u32, Vec<Id>)>,
    ) -> RateLimit {
        RateLimit {
            meta: Meta::default_named("test"),
            total,
            identity,
            overrides,
            buckets: Buckets::new(),
        }
    }

    #[test]
    fn limits() {
        let id = |s: &str| Id::parse(s).expect("identity");
        let (a, b, c) = (id("a.ns"), id("b.ns"), id("c.ns"));
        let now = Instant::now();
        let buckets = Buckets::new();
        let l = limit(None, Some(2), vec![(3, vec![c.clone()])]);
        for _ in 0..2 {
            assert_eq!(buckets.check(&l, Some(&a), now), Ok(()));
            assert_eq!(buckets.check(&l, Some(&b), now), Ok(()));
            assert_eq!(buckets.check(&l, None, now), Ok(()));
        }
        assert_eq!(buckets.check(&l, Some(&a), now), Err(Exceeded::Identity(2)));
        assert_eq!(buckets.check(&l, None, now), Err(Exceeded::Identity(2)));
        for _ in 0..3 {
            assert_eq!(buckets.check(&l, Some(&c), now), Ok(()));
        }
        assert_eq!(buckets.check(&l, Some(&c), now), Err(Exceeded::Override(3)));
        let later = now + Duration::from_millis(500);
        assert_eq!(
            buckets.check(&l, Some(&a), later),
            Ok(()),
            "half a second, one request"
        );
        assert_eq!(
            buckets.check(&l, Some(&a), later),
            Err(Exceeded::Identity(2))
        );
    }

    #[test]
    fn the_total_comes_first() {
        let now = Instant::now();
        let buckets = Buckets::new();
        let l = limit(Some(1), Some(100), Vec::new());
        assert_eq!(buckets.check(&l, None, now), Ok(()));
        assert_eq!(buckets.check(&l, None, now), Err(Exceeded::Total(1)));
    }
}
