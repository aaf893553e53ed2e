//! Which endpoint of a service gets the next request: power of two choices over peak-EWMA latency,
//! among endpoints that are not backing off and to which a connection was made. Others are connected to
//! beside the requests. Per worker, no locks. Discovery updates are taken in when somebody looks, not
//! by a task.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::{
    connect::Payload,
    control::Discovery,
    endpoint::{Endpoint, EndpointFactory},
    metrics::balancer::BalancerMetrics,
    policy::endpoint::Endpoints,
};

/// Latency of one endpoint: a new peak counts at once, older ones fade.
#[derive(Debug)]
pub struct Load {
    /// Nanoseconds.
    rtt: Cell<f64>,
    updated: Cell<Instant>,
    /// Nanoseconds.
    decay: f64,
    in_flight: Cell<u32>,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "latencies stay far below 2^52 ns"
)]
fn nanos(d: Duration) -> f64 {
    d.as_nanos() as f64
}

impl Load {
    /// An endpoint not used yet.
    pub fn new(default_rtt: Duration, decay: Duration, now: Instant) -> Self {
        Self {
            rtt: Cell::new(nanos(default_rtt.max(Duration::from_millis(1)))),
            updated: Cell::new(now),
            decay: nanos(decay.max(Duration::from_millis(1))),
            in_flight: Cell::new(0),
        }
    }

    /// The estimate as it has faded until now.
    fn faded(&self, now: Instant) -> f64 {
        let elapsed = nanos(now.saturating_duration_since(self.updated.get()));
        self.rtt.get() * (-elapsed / self.decay).exp()
    }

    /// Takes in a measured latency.
    pub fn sample(&self, rtt: Duration, now: Instant) {
        let rtt = nanos(rtt);
        let old = self.rtt.get();
        let next = if rtt > old {
            rtt
        } else {
            let elapsed = nanos(now.saturating_duration_since(self.updated.get()));
            let weight = (-elapsed / self.decay).exp();
            old * weight + rtt * (1.0 - weight)
        };
        self.rtt.set(next);
        self.updated.set(now);
    }

    /// What is compared: estimate times requests in flight.
    pub fn cost(&self, now: Instant) -> f64 {
        self.faded(now) * (f64::from(self.in_flight.get()) + 1.0)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    pub(crate) fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    pub(crate) fn end(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
    }
}

/// Two distinct numbers below `n`, or the only one.
fn two_of(n: usize, random: &mut dyn FnMut(usize) -> usize) -> Option<(usize, usize)> {
    match n {
        0 => None,
        1 => Some((0, 0)),
        n => {
            let a = random(n);
            let b = random(n - 1);
            Some((a, if b >= a { b + 1 } else { b }))
        }
    }
}

/// What can be expected of an endpoint, from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// It rests after a failure.
    Resting,
    /// Whether it takes connections is not known.
    Untried,
    /// It took the last connection.
    Open,
}

/// Two random ones of `n` and which of them it is: one that is open, and of two the one that costs less,
/// or the first drawn. When neither is open, the same among those that are, or else among the untried.
fn choose(
    n: usize,
    fit: impl Fn(usize) -> Fit,
    cost: impl Fn(usize) -> f64,
    random: &mut dyn FnMut(usize) -> usize,
) -> Option<Choice> {
    let better = |a, b| if cost(b) < cost(a) { b } else { a };
    let drawn = two_of(n, random)?;
    let (a, b) = drawn;
    let chosen = match (fit(a), fit(b)) {
        (Fit::Open, Fit::Open) => better(a, b),
        (Fit::Open, _) => a,
        (_, Fit::Open) => b,
        _ => {
            let best = (0..n).map(&fit).max().filter(|fit| *fit > Fit::Resting)?;
            let those: Vec<_> = (0..n).filter(|i| fit(*i) == best).collect();
            let (a, b) = two_of(those.len(), random)?;
            better(those[a], those[b])
        }
    };
    Some(Choice { drawn, chosen })
}

/// Which were drawn, and which of all is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    drawn: (usize, usize),
    chosen: usize,
}

/// The endpoints of one service on one worker.
#[derive(Debug)]
pub struct Balancer {
    updates: RefCell<watch::Receiver<Endpoints>>,
    endpoints: RefCell<Vec<Rc<Endpoint>>>,
    known: Cell<Known>,
    /// Nothing was ready for the failfast time: fail at once until something is.
    shut: Cell<bool>,
    waiting: Cell<usize>,
    factory: EndpointFactory,
    metrics: BalancerMetrics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Pending,
    Unknown,
    Yes,
}

/// Why there is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// None became ready in time.
    FailFast,
    /// None was ready for long, or too many wait.
    Shed,
}

/// How much longer to wait while the control plane is away: it is back within seconds.
const CUT_OFF: Duration = Duration::from_secs(7);
/// How many times more requests may wait then.
const CUT_OFF_ROOM: usize = 10;

impl Balancer {
    /// Balances over what `updates` says; `factory` makes endpoints.
    pub fn new(
        updates: watch::Receiver<Endpoints>,
        factory: EndpointFactory,
        metrics: BalancerMetrics,
    ) -> Self {
        let mut updates = updates;
        updates.mark_changed();
        let factory = EndpointFactory {
            // Nobody else's endpoints matter to who waits here.
            waiters: Rc::default(),
            ..factory
        };
        Self {
            updates: RefCell::new(updates),
            endpoints: RefCell::default(),
            known: Cell::new(Known::Pending),
            shut: Cell::new(false),
            waiting: Cell::new(0),
            factory,
            metrics,
        }
    }

    /// Until when to wait for an endpoint. Without the control plane all that are known may be gone
    /// and others have come: failing then would be a guess, so its return is waited for.
    pub fn patience(&self, deadline: Instant) -> Instant {
        match self.is_cut_off() {
            true => deadline + CUT_OFF,
            false => deadline,
        }
    }

    /// Whether what is known of the endpoints may be old.
    pub fn is_cut_off(&self) -> bool {
        let source = self.factory.connector.source.as_ref();
        source.is_some_and(Discovery::is_cut_off)
    }

    /// Takes in what discovery has said since the last look.
    fn refresh(&self) {
        let mut updates = self.updates.borrow_mut();
        if !updates.has_changed().unwrap_or(false) {
            return;
        }
        let snapshot = updates.borrow_and_update().clone();
        let map = match snapshot {
            Endpoints::Pending => return,
            Endpoints::Unknown => {
                self.known.set(Known::Unknown);
                let old = std::mem::take(&mut *self.endpoints.borrow_mut());
                self.metrics.updated(old.len(), 0, 0);
                return;
            }
            Endpoints::Known(map) => map,
        };
        self.known.set(Known::Yes);
        let mut endpoints = self.endpoints.borrow_mut();
        let old = std::mem::take(&mut *endpoints);
        let mut kept = 0;
        *endpoints = map
            .iter()
            .map(|(addr, meta)| {
                let same = old
                    .iter()
                    .find(|e| e.addr() == *addr && **e.meta() == **meta);
                kept += usize::from(same.is_some());
                same.cloned()
                    .unwrap_or_else(|| self.factory.make(*addr, meta.clone()))
            })
            .collect();
        self.metrics.updated(old.len(), endpoints.len(), kept);
    }

    /// Tells the metrics which endpoints are ready.
    pub fn observe(&self, now: Instant) {
        self.refresh();
        let endpoints = self.endpoints.borrow();
        let ready = endpoints.iter().filter(|e| e.is_ready(now)).count();
        self.metrics.states(ready, endpoints.len());
    }

    /// Every endpoint there is now.
    pub fn endpoints(&self) -> Vec<Rc<Endpoint>> {
        self.refresh();
        self.endpoints.borrow().clone()
    }

    /// How many endpoints there are now.
    pub fn len(&self) -> usize {
        self.refresh();
        self.endpoints.borrow().len()
    }

    /// Whether there are no endpoints now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The better of two random endpoints that are ready. One that was drawn and has no connection yet is
    /// connected to meanwhile, when the request need not wait for it.
    pub fn pick(&self, payload: Payload, now: Instant) -> Option<Rc<Endpoint>> {
        self.refresh();
        let endpoints = self.endpoints.borrow();
        let fit = |i: usize| fit(&endpoints[i], payload, now);
        let cost = |i: usize| endpoints[i].load().cost(now);
        let random = &mut |n| rand::random_range(0..n);
        let Choice { drawn, chosen } = choose(endpoints.len(), fit, cost, random)?;
        for i in [drawn.0, drawn.1] {
            if i != chosen && fit(i) == Fit::Untried && fit(chosen) == Fit::Open {
                endpoints[i].connect_behind(payload);
            }
        }
        if self.shut.replace(false) {
            self.metrics.gate_opened();
        }
        Some(endpoints[chosen].clone())
    }

    /// The better of two random endpoints that are ready and not this one.
    pub fn pick_other(
        &self,
        avoid: &Rc<Endpoint>,
        payload: Payload,
        now: Instant,
    ) -> Option<Rc<Endpoint>> {
        self.refresh();
        let endpoints = self.endpoints.borrow();
        let others: Vec<_> = endpoints.iter().filter(|e| !Rc::ptr_eq(e, avoid)).collect();
        let fit = |i: usize| fit(others[i], payload, now);
        let cost = |i: usize| others[i].load().cost(now);
        let random = &mut |n| rand::random_range(0..n);
        choose(others.len(), fit, cost, random).map(|choice| others[choice.chosen].clone())
    }

    /// Whether an endpoint that is not this one has a connection.
    pub fn has_other(&self, avoid: &Rc<Endpoint>, payload: Payload, now: Instant) -> bool {
        self.refresh();
        let endpoints = self.endpoints.borrow();
        endpoints.iter().any(|e| {
            !Rc::ptr_eq(e, avoid) && fit(e, payload, now) == Fit::Open && e.has_connection(payload)
        })
    }

    /// Whether a request would find an endpoint at once.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.refresh();
        self.endpoints.borrow().iter().any(|e| e.is_ready(now))
    }

    /// An endpoint, waiting for one to become ready until `deadline`. When the first has waited in
    /// vain, all do, unless what is known of the endpoints may be old.
    pub async fn ready(
        &self,
        payload: Payload,
        deadline: Instant,
        capacity: usize,
    ) -> Result<Rc<Endpoint>, NotReady> {
        self.metrics.requests.inc();
        let began = Instant::now();
        if let Some(endpoint) = self.pick(payload, began) {
            self.metrics.latency.observe_zero();
            return Ok(endpoint);
        }
        let room = match self.is_cut_off() {
            true => capacity * CUT_OFF_ROOM,
            false => capacity,
        };
        if self.shut.get() || self.waiting.get() >= room {
            return Err(NotReady::Shed);
        }
        self.waiting.set(self.waiting.get() + 1);
        self.metrics.waiting.inc();
        let _waiting = Waiting(self);
        let mut looked = began;
        loop {
            let now = Instant::now();
            let deadline = self.patience(deadline);
            if now >= deadline && !self.shut.replace(true) {
                self.metrics.gate_shut();
                self.factory.waiters.notify_waiters();
            }
            if now >= deadline || (self.shut.get() && !self.is_cut_off()) {
                return Err(NotReady::FailFast);
            }
            let wake = {
                let endpoints = self.endpoints.borrow();
                next_look(endpoints.iter().filter_map(|e| e.ready_at()), looked)
                    .map_or(deadline, |at| at.min(deadline))
            };
            let mut updates = self.updates.borrow().clone();
            tokio::select! {
                () = tokio::time::sleep_until(wake.into()) => {}
                () = self.factory.waiters.notified() => {}
                // An error means that discovery is gone: only the others can help.
                Ok(()) = updates.changed() => {}
            }
            looked = Instant::now();
            if let Some(endpoint) = self.pick(payload, looked) {
                let waited = looked.saturating_duration_since(began);
                self.metrics.latency.observe(waited.as_secs_f64());
                return Ok(endpoint);
            }
        }
    }
}

/// What can be expected of an endpoint now. Only HTTP connections can be made before they are needed.
fn fit(endpoint: &Endpoint, payload: Payload, now: Instant) -> Fit {
    match endpoint.is_ready(now) {
        false => Fit::Resting,
        true if endpoint.is_reached() || payload == Payload::Opaque => Fit::Open,
        true => Fit::Untried,
    }
}

/// When the first of those that rest has rested. One that had when it was `looked` at is out because a
/// probe is on its way, and the end of that is told.
fn next_look(rested: impl Iterator<Item = Instant>, looked: Instant) -> Option<Instant> {
    rested.filter(|at| *at > looked).min()
}

struct Waiting<'a>(&'a Balancer);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
        self.0.metrics.waiting.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_count_at_once_and_fade() {
        let start = Instant::now();
        let decay = Duration::from_secs(10);
        let load = Load::new(Duration::from_millis(30), decay, start);
        assert!((load.cost(start) - 30e6).abs() < 1.0);
        load.sample(Duration::from_millis(100), start);
        assert!((load.cost(start) - 100e6).abs() < 1.0, "a peak replaces");
        let later = start + decay;
        let faded = 100e6 * (-1f64).exp();
        assert!((load.cost(later) - faded).abs() < 1.0, "reading fades");
        load.sample(Duration::from_millis(10), later);
        let mixed = 100e6 * (-1f64).exp() + 10e6 * (1.0 - (-1f64).exp());
        assert!(
            (load.cost(later) - mixed).abs() < 1.0,
            "{}",
            load.cost(later)
        );
    }

    #[test]
    fn requests_in_flight_weigh() {
        let now = Instant::now();
        let load = Load::new(Duration::from_millis(10), Duration::from_secs(1), now);
        load.begin();
        load.begin();
        assert!((load.cost(now) - 30e6).abs() < 1.0);
        load.end();
        assert_eq!(load.in_flight(), 1);
    }

    #[test]
    fn who_waits_does_not_look_again_and_again() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (name, rested, want) in [
            ("nobody rests", vec![], None),
            ("the first to be ready", vec![at(30), at(20)], Some(at(20))),
            ("one that is probed", vec![at(5)], None),
            ("one that was ready at that moment", vec![at(10)], None),
            (
                "one that is probed and one that rests",
                vec![at(5), at(30)],
                Some(at(30)),
            ),
        ] {
            assert_eq!(next_look(rested.into_iter(), at(10)), want, "{name}");
        }
    }

    #[test]
    fn the_better_of_two_is_chosen() {
        use Fit::{Open, Resting, Untried};
        let even = [5.0; 4];
        let rising = [1.0, 2.0, 3.0, 4.0];
        // The second draw is among what the first left.
        for (name, fit, cost, draws, want) in [
            (
                "equal: the first drawn",
                [Open; 4],
                even,
                &[2, 0][..],
                Some(2),
            ),
            (
                "equal, the other way round",
                [Open; 4],
                even,
                &[0, 1],
                Some(0),
            ),
            ("the second costs less", [Open; 4], rising, &[3, 0], Some(0)),
            ("the first costs less", [Open; 4], rising, &[0, 2], Some(0)),
            (
                "the first rests",
                [Resting, Open, Open, Open],
                rising,
                &[0, 2],
                Some(3),
            ),
            (
                "the second rests",
                [Resting, Open, Open, Open],
                rising,
                &[3, 0],
                Some(3),
            ),
            (
                "the first has no connection, though it costs less",
                [Untried, Open, Open, Open],
                rising,
                &[0, 2],
                Some(3),
            ),
            (
                "both rest: the better of those that do not",
                [Resting, Open, Resting, Open],
                [1.0, 9.0, 1.0, 2.0],
                &[0, 1, 0, 0],
                Some(3),
            ),
            (
                "one rests, one has no connection: one that has",
                [Resting, Untried, Open, Resting],
                rising,
                &[0, 0],
                Some(2),
            ),
            (
                "nobody has a connection: the better of those that may",
                [Resting, Untried, Resting, Untried],
                rising,
                &[3, 2, 1, 0],
                Some(1),
            ),
            (
                "both rest, and one does not",
                [Resting, Resting, Resting, Untried],
                rising,
                &[0, 0],
                Some(3),
            ),
            ("all rest", [Resting; 4], even, &[0, 0], None),
        ] {
            let mut draws = draws.iter().copied();
            let random = &mut |_| draws.next().expect("no more draws");
            let got = choose(4, |i| fit[i], |i| cost[i], random);
            assert_eq!(got.map(|choice| choice.chosen), want, "{name}");
            assert_eq!(draws.next(), None, "{name}: all draws were used");
        }
        let of = |n, fit| choose(n, |_| fit, |_| 0.0, &mut |_| 0).map(|choice| choice.chosen);
        assert_eq!(of(0, Open), None);
        assert_eq!(of(1, Open), Some(0));
        assert_eq!(of(1, Untried), Some(0));
        assert_eq!(of(1, Resting), None);
    }

    #[test]
    fn two_choices_are_distinct() {
        for n in 2..6 {
            for a in 0..n {
                for b in 0..n - 1 {
                    let mut draws = [a, b].into_iter();
                    let pair = two_of(n, &mut |_| draws.next().expect("two draws"));
                    let (x, y) = pair.expect("enough");
                    assert!(x != y && x < n && y < n, "{n}: {x} {y}");
                }
            }
        }
        assert_eq!(two_of(1, &mut |_| 0), Some((0, 0)));
        assert_eq!(two_of(0, &mut |_| 0), None);
    }
}
