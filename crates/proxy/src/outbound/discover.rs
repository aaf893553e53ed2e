//! Outbound targets on one worker: the policy last seen, with this worker's backends beside it.
//! Targets and balancers are shared by connections and forgotten some time after the last one.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::HashMap,
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::{
    balance::Balancer,
    control::{Outbound, Target},
    endpoint::{Endpoint, EndpointFactory},
    http::Backend,
    metrics::{
        Labels,
        route::{RouteLabels, RouteMetrics},
        transport::TransportMetrics,
    },
    policy::client::{self, ClientPolicy, Dispatch, Distribution, FailureAccrual, RouteBackend},
    worker::Worker,
};

/// Targets and balancers in use.
#[derive(Debug, Default)]
pub struct Cache {
    targets: RefCell<HashMap<Target, Entry>>,
    balancers: RefCell<HashMap<BalancerKey, Weak<Balancer>>>,
}

#[derive(Debug)]
struct Entry {
    target: Rc<LocalTarget>,
    used: Cell<Instant>,
}

/// Balancers differ by what they resolve and by the labels they count under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BalancerKey {
    path: Arc<str>,
    logical: Option<String>,
    /// As text: numbers with fractions have no hash.
    accrual: Option<String>,
}

impl Cache {
    /// The target, looked up once per worker.
    pub fn target(&self, worker: &Worker, target: Target) -> Rc<LocalTarget> {
        if let Some(entry) = self.targets.borrow().get(&target) {
            return entry.target.clone();
        }
        let local = Rc::new(LocalTarget {
            updates: RefCell::new(worker.discovery.outbound(&target)),
            target: target.clone(),
            policy: RefCell::new(None),
            transport: OnceCell::new(),
        });
        self.targets.borrow_mut().insert(
            target,
            Entry {
                target: local.clone(),
                used: Cell::new(Instant::now()),
            },
        );
        local
    }

    /// Forgets targets without connections.
    pub fn sweep(&self, now: Instant, idle: Duration) {
        let mut dropped = Vec::new();
        self.targets.borrow_mut().retain(|_, entry| {
            if Rc::strong_count(&entry.target) > 1 {
                entry.used.set(now);
                return true;
            }
            let keep = now.saturating_duration_since(entry.used.get()) < idle;
            if !keep {
                dropped.push(entry.target.clone());
            }
            keep
        });
        drop(dropped);
        self.balancers
            .borrow_mut()
            .retain(|_, balancer| balancer.strong_count() > 0);
    }

    fn balancer(
        &self,
        worker: &Worker,
        balance: &client::Balance,
        logical: Option<&String>,
        accrual: Option<&FailureAccrual>,
    ) -> Rc<Balancer> {
        let key = BalancerKey {
            path: balance.path.clone(),
            logical: logical.cloned(),
            accrual: accrual.map(|a| format!("{a:?}")),
        };
        if let Some(balancer) = self.balancers.borrow().get(&key).and_then(Weak::upgrade) {
            return balancer;
        }
        let updates = worker.discovery.endpoints(&balance.path);
        let mut factory = factory(worker, logical.cloned());
        factory.default_rtt = balance.default_rtt;
        factory.decay = balance.decay;
        factory.accrual = accrual.cloned();
        let balancer = Rc::new(Balancer::new(updates, factory));
        self.balancers
            .borrow_mut()
            .insert(key, Rc::downgrade(&balancer));
        balancer
    }
}

fn factory(worker: &Worker, authority: Option<String>) -> EndpointFactory {
    let config = &worker.config.outbound;
    EndpointFactory {
        connector: worker.outbound_connector.clone(),
        registry: worker.registry.clone(),
        direction: "outbound",
        authority,
        default_rtt: Duration::from_millis(30),
        decay: Duration::from_secs(10),
        backoff: config.backoff,
        pool: config.pool,
        upgrade_threshold: config.upgrade_threshold,
        labels: None,
        swept: worker.swept.clone(),
        accrual: None,
    }
}

/// One target on one worker.
#[derive(Debug)]
pub struct LocalTarget {
    target: Target,
    updates: RefCell<watch::Receiver<Outbound>>,
    policy: RefCell<Option<Rc<LocalPolicy>>>,
    transport: OnceCell<Rc<TransportMetrics>>,
}

/// A policy with this worker's backends.
#[derive(Debug)]
pub struct LocalPolicy {
    /// As discovered.
    pub policy: Arc<ClientPolicy>,
    /// One per backend of the policy.
    pub backends: Vec<Backend>,
    /// Series by rule and backend, resolved when first used.
    series: RefCell<HashMap<(usize, usize), Rc<RouteMetrics>>>,
}

/// Why nothing is known about a target.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiscoverError {
    /// The control plane refuses.
    #[error("discovery failed: {0}")]
    Refused(Arc<str>),
    /// Discovery has ended.
    #[error("discovery has ended")]
    Gone,
}

impl LocalTarget {
    /// What was looked up.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Series of accepted connections.
    pub fn transport(&self, worker: &Worker) -> &Rc<TransportMetrics> {
        self.transport.get_or_init(|| {
            let labels = Labels::direction("outbound").with("peer", "src");
            let labels = match &self.target {
                Target::Addr(addr) => labels.target(*addr),
                Target::Name(..) => labels,
            };
            let labels = labels
                .with("tls", "no_identity")
                .with("no_tls_reason", "loopback");
            TransportMetrics::new(&worker.registry, labels.finish())
        })
    }

    /// The policy, once the control plane has answered.
    pub async fn ready(&self, worker: &Rc<Worker>) -> Result<Rc<LocalPolicy>, DiscoverError> {
        if let Some(policy) = self.current(worker)? {
            return Ok(policy);
        }
        let mut updates = self.updates.borrow().clone();
        loop {
            let known = updates
                .wait_for(|state| !matches!(state, Outbound::Pending))
                .await;
            if known.is_err() {
                return Err(DiscoverError::Gone);
            }
            drop(known);
            if let Some(policy) = self.current(worker)? {
                return Ok(policy);
            }
        }
    }

    /// The policy as of now; costs an atomic load when nothing has changed.
    pub fn current(&self, worker: &Worker) -> Result<Option<Rc<LocalPolicy>>, DiscoverError> {
        let known = self.policy.borrow().clone();
        let mut updates = self.updates.borrow_mut();
        if known.is_some() && !updates.has_changed().unwrap_or(false) {
            return Ok(known);
        }
        let state = updates.borrow_and_update().clone();
        drop(updates);
        match state {
            Outbound::Pending => Ok(known),
            Outbound::Failed(message) => match known {
                Some(policy) => Ok(Some(policy)),
                None => Err(DiscoverError::Refused(message)),
            },
            Outbound::Ready(policy) => {
                let local = Rc::new(build(worker, policy, known.as_deref()));
                *self.policy.borrow_mut() = Some(local.clone());
                Ok(Some(local))
            }
        }
    }
}

fn build(worker: &Worker, policy: Arc<ClientPolicy>, old: Option<&LocalPolicy>) -> LocalPolicy {
    let backends = policy
        .backends
        .iter()
        .map(|backend| match &backend.dispatch {
            Dispatch::Balance(balance) => Backend::Balance(worker.outbound.balancer(
                worker,
                balance,
                policy.logical.as_ref(),
                policy.accrual(),
            )),
            Dispatch::Forward(addr, meta) => {
                let same = |e: &&Rc<Endpoint>| e.addr() == *addr && **e.meta() == **meta;
                let kept = old.and_then(|old| {
                    old.backends
                        .iter()
                        .filter_map(|b| match b {
                            Backend::Forward(endpoint) => Some(endpoint),
                            _ => None,
                        })
                        .find(same)
                        .cloned()
                });
                Backend::Forward(kept.unwrap_or_else(|| {
                    factory(worker, policy.logical.clone()).make(*addr, meta.clone())
                }))
            }
            Dispatch::None => Backend::None(backend.meta.to_string().into()),
        })
        .collect();
    LocalPolicy {
        policy,
        backends,
        series: RefCell::default(),
    }
}

impl LocalPolicy {
    /// The series of a rule and one of its backends.
    pub fn route_metrics(
        &self,
        worker: &Worker,
        route: &client::HttpRoute,
        rule: &client::HttpRule,
        backend: usize,
    ) -> Rc<RouteMetrics> {
        let mut series = self.series.borrow_mut();
        let metrics = series.entry((rule.index, backend)).or_insert_with(|| {
            let about = RouteLabels {
                parent: &self.policy.parent,
                route: &route.meta,
                backend: &self.policy.backends[backend].meta,
                grpc: rule.grpc,
            };
            RouteMetrics::new(&worker.registry, &about)
        });
        metrics.clone()
    }

    /// The backend a request or connection goes to.
    pub fn choose<'a>(
        &self,
        distribution: &'a Distribution,
        now: Instant,
    ) -> Option<&'a RouteBackend> {
        let ready = |b: &RouteBackend| self.backends[b.backend].is_ready(now);
        match distribution {
            Distribution::Empty => None,
            Distribution::First(list) => match list.as_slice() {
                [only] => Some(only),
                list => list.iter().find(|b| ready(b)).or_else(|| list.first()),
            },
            Distribution::Random(list) => {
                if let [(only, _)] = list.as_slice() {
                    return Some(only);
                }
                let ready: Vec<_> = list.iter().filter(|(b, w)| *w > 0 && ready(b)).collect();
                let total: u64 = ready.iter().map(|(_, w)| u64::from(*w)).sum();
                if total == 0 {
                    let weighted = list.iter().find(|(_, w)| *w > 0);
                    return weighted.or_else(|| list.first()).map(|(b, _)| b);
                }
                let mut draw = rand::random_range(0..total);
                for (backend, weight) in ready {
                    let weight = u64::from(*weight);
                    if draw < weight {
                        return Some(backend);
                    }
                    draw -= weight;
                }
                None
            }
        }
    }
}
