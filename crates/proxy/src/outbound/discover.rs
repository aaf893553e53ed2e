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
    budget::{Budget, Terms},
    control::{Outbound, Target},
    endpoint::{Endpoint, EndpointFactory},
    http::Backend,
    metrics::{
        Counter, Family, Histogram, Labels,
        balancer::{BalancerMetrics, Kind},
        route::{RouteLabels, RouteMetrics},
        stack::Stacks,
        transport::TransportMetrics,
    },
    policy::client::{
        self, ClientPolicy, Dispatch, Distribution, FailureAccrual, Protocol, RouteBackend,
    },
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
    settings: String,
    kind: Kind,
    labels: Arc<str>,
}

/// Host names told apart in the series of one target.
const MAX_HOSTNAMES: usize = 1000;

/// What a balancer is made for.
struct Use<'a> {
    balance: &'a client::Balance,
    logical: Option<&'a String>,
    accrual: Option<&'a FailureAccrual>,
    kind: Kind,
    labels: Labels,
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
            budget: Rc::new(Budget::new(Terms::default())),
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
        let mut live = Vec::new();
        self.balancers.borrow_mut().retain(|_, balancer| {
            live.extend(balancer.upgrade());
            balancer.strong_count() > 0
        });
        for balancer in live {
            balancer.observe(now);
        }
    }

    fn balancer(&self, worker: &Worker, wanted: Use<'_>) -> Rc<Balancer> {
        let Use {
            balance,
            logical,
            accrual,
            kind,
            labels,
        } = wanted;
        let labels = match kind {
            Kind::Tcp => labels
                .with("logical", logical.map(String::as_str).unwrap_or_default())
                .with("concrete", &balance.path),
            Kind::Tls => labels.with("concrete", &balance.path),
            _ => labels,
        };
        let key = BalancerKey {
            path: balance.path.clone(),
            logical: logical.cloned(),
            settings: format!("{balance:?} {accrual:?}"),
            kind,
            labels: labels.finish(),
        };
        if let Some(balancer) = self.balancers.borrow().get(&key).and_then(Weak::upgrade) {
            return balancer;
        }
        let updates = worker.discovery.endpoints(&balance.path);
        let protocol = match kind {
            Kind::Tcp => "tcp",
            Kind::Tls => "tls",
            _ => "http",
        };
        let mut factory = factory(worker, protocol, logical.cloned());
        factory.default_rtt = balance.default_rtt;
        factory.decay = balance.decay;
        factory.accrual = accrual.cloned();
        factory.penalty = balance.penalty;
        let config = &worker.config.outbound;
        let failfast = match kind {
            Kind::Http => config.http_queue.failfast,
            _ => config.tcp_queue.failfast,
        };
        let metrics = BalancerMetrics::new(&worker.registry, kind, &key.labels, failfast);
        let balancer = Rc::new(Balancer::new(updates, factory, metrics));
        self.balancers
            .borrow_mut()
            .insert(key, Rc::downgrade(&balancer));
        balancer
    }
}

fn factory(worker: &Worker, protocol: &str, authority: Option<String>) -> EndpointFactory {
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
        http2_life: config.http2_life,
        labels: None,
        no_tls_reason: "not_provided_by_service_discovery",
        stacks: Stacks::new(&worker.registry, "outbound", protocol, "endpoint"),
        swept: worker.swept.clone(),
        accrual: None,
        penalty: None,
        waiters: Rc::default(),
    }
}

/// One target on one worker.
#[derive(Debug)]
pub struct LocalTarget {
    target: Target,
    updates: RefCell<watch::Receiver<Outbound>>,
    policy: RefCell<Option<Rc<LocalPolicy>>>,
    transport: OnceCell<Rc<TransportMetrics>>,
    budget: Rc<Budget>,
}

/// A policy with this worker's backends.
#[derive(Debug)]
pub struct LocalPolicy {
    /// As discovered.
    pub policy: Arc<ClientPolicy>,
    /// One per backend of the policy.
    pub backends: Vec<Backend>,
    /// The same for opaque connections of a policy that looks for HTTP, made when there is one.
    opaque: Vec<OnceCell<Backend>>,
    /// What retries of a profile are taken from.
    retry_budget: Option<(Terms, Rc<Budget>)>,
    /// Series by rule and backend, resolved when first used.
    series: RefCell<HashMap<(usize, usize), Rc<RouteMetrics>>>,
    /// The same by host name, where that is switched on.
    by_hostname: RefCell<HashMap<(usize, usize, String), Rc<RouteMetrics>>>,
    /// Counters of connections, by what they are about.
    counters: RefCell<HashMap<(Family, &'static str), Arc<Counter>>>,
    detection: OnceCell<Arc<Histogram>>,
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

    /// What repetitions are taken from, with one more request in it.
    pub fn budget(&self, now: Instant) -> Rc<Budget> {
        self.budget.deposit(now);
        self.budget.clone()
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
                let local = Rc::new(build(worker, &self.target, policy, known.as_deref()));
                *self.policy.borrow_mut() = Some(local.clone());
                Ok(Some(local))
            }
        }
    }
}

/// A balancer of one of the policy's backends, for one kind of traffic.
fn balanced(
    worker: &Worker,
    policy: &ClientPolicy,
    backend: &client::Backend,
    balance: &client::Balance,
    kind: Kind,
) -> Rc<Balancer> {
    let wanted = Use {
        balance,
        logical: policy.logical.as_ref(),
        accrual: policy.accrual(),
        kind,
        labels: Labels::default()
            .referent("parent", &policy.parent)
            .referent("backend", &backend.meta),
    };
    worker.outbound.balancer(worker, wanted)
}

fn build(
    worker: &Worker,
    target: &Target,
    policy: Arc<ClientPolicy>,
    old: Option<&LocalPolicy>,
) -> LocalPolicy {
    let kind = match policy.protocol {
        Protocol::Opaque(_) => Kind::Tcp,
        Protocol::Tls(_) => Kind::Tls,
        _ => Kind::Http,
    };
    let backends = policy
        .backends
        .iter()
        .map(|backend| match &backend.dispatch {
            Dispatch::Balance(balance) => {
                Backend::Balance(balanced(worker, &policy, backend, balance, kind))
            }
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
                    let mut factory = factory(worker, "", policy.logical.clone());
                    if worker.config.outbound.ingress && matches!(target, Target::Addr(_)) {
                        factory.no_tls_reason = "ingress_without_override";
                    }
                    factory.make(*addr, meta.clone())
                }))
            }
            Dispatch::None => Backend::None(backend.meta.to_string().into()),
        })
        .collect();
    let retry_budget = policy.budget.map(|terms| {
        let kept = old
            .and_then(|old| old.retry_budget.as_ref())
            .filter(|(old, _)| *old == terms)
            .map(|(_, budget)| budget.clone());
        (terms, kept.unwrap_or_else(|| Rc::new(Budget::new(terms))))
    });
    LocalPolicy {
        opaque: policy.backends.iter().map(|_| OnceCell::new()).collect(),
        policy,
        backends,
        retry_budget,
        series: RefCell::default(),
        by_hostname: RefCell::default(),
        counters: RefCell::default(),
        detection: OnceCell::new(),
    }
}

impl LocalPolicy {
    /// A backend as opaque connections use it: they are balanced apart from requests.
    pub fn opaque_backend(&self, worker: &Worker, index: usize) -> &Backend {
        let backend = &self.policy.backends[index];
        match &backend.dispatch {
            Dispatch::Balance(balance)
                if !matches!(self.policy.protocol, Protocol::Opaque(_) | Protocol::Tls(_)) =>
            {
                self.opaque[index].get_or_init(|| {
                    let balancer = balanced(worker, &self.policy, backend, balance, Kind::Tcp);
                    Backend::Balance(balancer)
                })
            }
            _ => &self.backends[index],
        }
    }

    /// What retries of a profile are taken from, with one more request in it.
    pub fn retry_budget(&self, now: Instant) -> Option<Rc<Budget>> {
        let (_, budget) = self.retry_budget.as_ref()?;
        budget.deposit(now);
        Some(budget.clone())
    }

    /// Counts a connection under the parent's labels and one more.
    pub fn count(&self, worker: &Worker, family: Family, label: &'static str, value: &'static str) {
        let mut counters = self.counters.borrow_mut();
        let counter = counters.entry((family, value)).or_insert_with(|| {
            let labels = Labels::default()
                .referent("parent", &self.policy.parent)
                .with(label, value);
            worker.registry.counter(family, &labels.finish())
        });
        counter.inc();
    }

    /// Counts what looking at a connection found, and how long it took.
    pub fn detected(&self, worker: &Worker, result: &'static str, elapsed: Duration) {
        let family = Family::OutboundTcpDetectHttpResults;
        self.count(worker, family, "result", result);
        let duration = self.detection.get_or_init(|| {
            let labels = Labels::default().referent("parent", &self.policy.parent);
            let family = Family::OutboundTcpDetectHttpDuration;
            worker.registry.histogram(family, &labels.finish())
        });
        duration.observe(elapsed.as_secs_f64());
    }

    /// The series of a rule and one of its backends.
    pub fn route_metrics(
        &self,
        worker: &Worker,
        route: &client::HttpRoute,
        rule: &client::HttpRule,
        backend: usize,
        hostname: Option<&str>,
    ) -> Rc<RouteMetrics> {
        if let Some(hostname) = hostname {
            return self.hostname_metrics(worker, route, rule, backend, hostname);
        }
        let mut series = self.series.borrow_mut();
        let metrics = series.entry((rule.index, backend)).or_insert_with(|| {
            let about = RouteLabels {
                parent: &self.policy.parent,
                route: &route.meta,
                backend: &self.policy.backends[backend].meta,
                grpc: rule.grpc,
                profile: rule.profile.as_ref().map(|p| p.labels.clone()),
                hostname: "",
            };
            RouteMetrics::new(&worker.registry, &about)
        });
        metrics.clone()
    }

    /// The same with a `hostname` label. A bounded number of names is told apart.
    fn hostname_metrics(
        &self,
        worker: &Worker,
        route: &client::HttpRoute,
        rule: &client::HttpRule,
        backend: usize,
        hostname: &str,
    ) -> Rc<RouteMetrics> {
        let mut series = self.by_hostname.borrow_mut();
        let mut key = (rule.index, backend, hostname.to_ascii_lowercase());
        if !series.contains_key(&key) && series.len() >= MAX_HOSTNAMES {
            key.2 = String::new();
        }
        let metrics = series.entry(key).or_insert_with_key(|(_, _, hostname)| {
            let about = RouteLabels {
                parent: &self.policy.parent,
                route: &route.meta,
                backend: &self.policy.backends[backend].meta,
                grpc: rule.grpc,
                profile: rule.profile.as_ref().map(|p| p.labels.clone()),
                hostname,
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
