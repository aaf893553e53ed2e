//! What every connection of one worker shares: settings, discovery, connectors, caches, and the list
//! of connections to wake when a drain begins. Lives on one thread; nothing here is locked.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
    sync::Arc,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use linkerd_tls::Store;

use crate::{
    block,
    config::Config,
    connect::{Connector, LoopGuard},
    control::Discovery,
    endpoint::Swept,
    inbound,
    memory::{self, Ebb, Tide},
    metrics::{Counter, Registry},
    observe::Observers,
    outbound,
    tls::turnstile::Turnstile,
};

/// One worker's shared state.
#[derive(Debug)]
pub struct Worker {
    /// Settings.
    pub config: Arc<Config>,
    /// Lookups.
    pub discovery: Discovery,
    /// Certificates.
    pub store: Arc<Store>,
    /// Metrics.
    pub registry: Arc<Registry>,
    /// Who wants to know about requests.
    pub observers: Observers,
    /// Connections to peers.
    pub outbound_connector: Rc<Connector>,
    /// Connections to the application.
    pub inbound_connector: Rc<Connector>,
    /// Told when peers are to go elsewhere.
    pub inbound_drain: Rc<Drain>,
    /// Told when the application is gone.
    pub outbound_drain: Rc<Drain>,
    /// Outbound targets in use.
    pub outbound: outbound::Cache,
    /// Inbound ports in use.
    pub inbound: inbound::Cache,
    /// Endpoints to be swept.
    pub swept: Rc<Swept>,
    /// HTTP requests in flight, by direction, and connections.
    pub in_flight: InFlightLimits,
    /// Whose turn it is to take a step of a handshake.
    pub handshakes: Rc<Turnstile>,
    /// Memory is so short that work is refused.
    pub overloaded: Cell<bool>,
}

/// Requests in flight, by direction, and connections.
#[derive(Debug, Default)]
pub struct InFlightLimits {
    /// Outbound.
    pub outbound: Gate,
    /// Inbound.
    pub inbound: Gate,
    /// Connections that were accepted, either way.
    pub connections: Gate,
}

impl InFlightLimits {
    /// One set of gates per worker; each knows what the others have.
    pub fn for_workers(count: usize) -> Vec<Self> {
        let cells = || -> Arc<[Counter]> { (0..count).map(|_| Counter::default()).collect() };
        let (outbound, inbound, connections) = (cells(), cells(), cells());
        let gate = |cells: &Arc<[Counter]>, mine| Gate {
            cells: cells.clone(),
            mine,
        };
        (0..count)
            .map(|mine| Self {
                outbound: gate(&outbound, mine),
                inbound: gate(&inbound, mine),
                connections: gate(&connections, mine),
            })
            .collect()
    }

    /// What the process has to do.
    fn load(&self) -> u64 {
        let all = [&self.outbound, &self.inbound, &self.connections];
        all.into_iter().map(Gate::all).sum()
    }

    /// Whether this is the worker that does what has to be done once.
    fn is_first(&self) -> bool {
        self.connections.mine == 0
    }
}

/// Counts what is in flight in the process. Each worker writes its own cell and reads all.
#[derive(Debug)]
pub struct Gate {
    cells: Arc<[Counter]>,
    mine: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            cells: Arc::new([Counter::default()]),
            mine: 0,
        }
    }
}

impl Gate {
    /// Lets one more in, unless there are `max`.
    pub fn enter(&self, max: usize) -> bool {
        if self.all() >= max as u64 {
            return false;
        }
        self.cells[self.mine].inc();
        true
    }

    /// One has left.
    pub fn leave(&self) {
        self.cells[self.mine].dec();
    }

    /// How many this worker has.
    pub fn mine(&self) -> u64 {
        self.cells[self.mine].get()
    }

    fn all(&self) -> u64 {
        self.cells.iter().map(Counter::get).sum()
    }
}

/// How often idle things are looked for.
const SWEEP: Duration = Duration::from_secs(1);

impl Worker {
    /// A worker; `guards` are of outbound and inbound connections.
    pub fn new(
        config: Arc<Config>,
        discovery: Discovery,
        store: Arc<Store>,
        registry: Arc<Registry>,
        observers: Observers,
        guards: [LoopGuard; 2],
        in_flight: InFlightLimits,
    ) -> Rc<Self> {
        let connector = |timeout, socket, guard, source| {
            Rc::new(Connector {
                store: store.clone(),
                timeout,
                socket,
                local_ips: config.inbound.ips.clone(),
                guard,
                http2: config.http2_client,
                head_timeout: config.head_timeout,
                source,
            })
        };
        let [outbound_guard, inbound_guard] = guards;
        Rc::new(Self {
            outbound_connector: connector(
                config.outbound.connect_timeout,
                config.outbound.connect,
                outbound_guard,
                Some(discovery.clone()),
            ),
            inbound_connector: connector(
                config.inbound.connect_timeout,
                config.inbound.connect,
                inbound_guard,
                None,
            ),
            discovery,
            store,
            handshakes: Turnstile::new(&registry),
            registry,
            observers,
            inbound_drain: Rc::default(),
            outbound_drain: Rc::default(),
            outbound: outbound::Cache::default(),
            inbound: inbound::Cache::default(),
            swept: Rc::default(),
            in_flight,
            overloaded: Cell::new(false),
            config,
        })
    }

    /// Runs for the life of the worker: closes idle connections, forgets unused targets, gives memory
    /// back when a burst is over.
    pub async fn sweep(self: Rc<Self>) {
        let mut tide = Tide::default();
        loop {
            tokio::time::sleep(SWEEP).await;
            let now = Instant::now();
            if let Some(ceiling) = self.config.memory_ceiling {
                let was = self.overloaded.get();
                let is = memory::overloaded(memory::resident(), ceiling, was);
                if is != was {
                    tracing::warn!(ceiling, overloaded = is, "Memory ceiling");
                    self.overloaded.set(is);
                }
            }
            self.swept.sweep(now);
            self.outbound
                .sweep(now, self.config.outbound.discovery_idle);
            self.inbound.sweep(now, self.config.inbound.discovery_idle);
            block::sweep();
            match tide.look(self.in_flight.load()) {
                Some(Ebb::Cache) => memory::empty_cache(),
                Some(Ebb::Heap) if self.in_flight.is_first() => memory::give_back(),
                Some(Ebb::Heap) | None => {}
            }
        }
    }
}

/// Connections that want to know when a drain begins.
#[derive(Debug, Default)]
pub struct Drain {
    draining: Cell<bool>,
    next: Cell<u64>,
    wakers: RefCell<HashMap<u64, Waker>>,
}

impl Drain {
    /// Whether new work is refused.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Begins the drain.
    pub fn start(&self) {
        self.draining.set(true);
        for (_, waker) in self.wakers.borrow_mut().drain() {
            waker.wake();
        }
    }

    /// A place for one connection.
    pub fn slot(self: &Rc<Self>) -> DrainSlot {
        let id = self.next.get();
        self.next.set(id + 1);
        DrainSlot {
            drain: self.clone(),
            id,
            waker: None,
        }
    }
}

/// One connection's place in the drain.
#[derive(Debug)]
pub struct DrainSlot {
    drain: Rc<Drain>,
    id: u64,
    waker: Option<Waker>,
}

impl DrainSlot {
    /// Whether the drain has begun; if not, the task is woken when it does.
    pub fn poll_draining(&mut self, cx: &mut Context<'_>) -> bool {
        if self.drain.is_draining() {
            return true;
        }
        // A task keeps its waker, so this is done once per connection.
        if !self.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
            let mut wakers = self.drain.wakers.borrow_mut();
            wakers.insert(self.id, cx.waker().clone());
        }
        false
    }

    /// Whether the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.drain.is_draining()
    }

    /// Ends when the drain begins.
    pub async fn draining(&mut self) {
        std::future::poll_fn(|cx| {
            if self.poll_draining(cx) {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    }
}

impl Drop for DrainSlot {
    fn drop(&mut self) {
        if self.waker.is_some() {
            self.drain.wakers.borrow_mut().remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_for_all_workers_together() {
        let workers = InFlightLimits::for_workers(2);
        let [a, b] = workers.as_slice() else {
            panic!("two workers");
        };
        assert!(a.inbound.enter(3));
        assert!(b.inbound.enter(3));
        assert!(b.inbound.enter(3));
        assert!(!a.inbound.enter(3), "three are in");
        assert!(a.outbound.enter(3), "directions are counted apart");
        b.inbound.leave();
        assert!(a.inbound.enter(3));
    }
}
