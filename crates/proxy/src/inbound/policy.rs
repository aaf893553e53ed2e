//! Inbound ports on one worker: their policy as of now, the application behind each address, and
//! series shared by connections.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    net::SocketAddr,
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::profile::{self, LocalProfile};
use crate::{
    control::Target,
    endpoint::{Endpoint, EndpointFactory},
    metrics::{
        Counter, Family, Histogram, Labels, Registry, http::HttpMetrics, stack::Stacks,
        transport::TransportMetrics,
    },
    policy::{Meta, endpoint::EndpointMeta, server::ServerPolicy},
    worker::Worker,
};

/// Ports, applications and series in use.
#[derive(Debug, Default)]
pub struct Cache {
    ports: RefCell<HashMap<u16, Used<PortPolicy>>>,
    applications: RefCell<HashMap<SocketAddr, Used<Endpoint>>>,
    transports: RefCell<HashMap<Arc<str>, Weak<TransportMetrics>>>,
    http: RefCell<HashMap<Arc<str>, Weak<HttpMetrics>>>,
    profiles: RefCell<HashMap<Target, Used<LocalProfile>>>,
    /// Values of the `authority` label so far.
    authorities: RefCell<HashSet<Box<str>>>,
}

/// Names whose profiles are looked up at once: clients choose them.
const MAX_PROFILES: usize = 256;

/// Authorities told apart in the series of one worker.
const MAX_AUTHORITIES: usize = 1000;

/// Something shared, and when it was last in use.
type Used<T> = (Rc<T>, Cell<Instant>);

/// The policy of one port.
#[derive(Debug)]
pub struct PortPolicy {
    updates: RefCell<watch::Receiver<Arc<ServerPolicy>>>,
    current: RefCell<Arc<ServerPolicy>>,
    /// Series of detection, of the policy they were resolved for.
    detection: RefCell<Option<Detection>>,
}

#[derive(Debug)]
struct Detection {
    policy: Arc<ServerPolicy>,
    labels: Arc<str>,
    duration: Arc<Histogram>,
    results: Vec<(&'static str, Arc<Counter>)>,
}

impl Cache {
    /// The policy of a port, watched while connections use it.
    pub fn port(&self, worker: &Worker, port: u16) -> Rc<PortPolicy> {
        let mut ports = self.ports.borrow_mut();
        let (policy, _) = ports.entry(port).or_insert_with(|| {
            let updates = worker.discovery.inbound(port);
            let current = updates.borrow().clone();
            let policy = PortPolicy {
                updates: RefCell::new(updates),
                current: RefCell::new(current),
                detection: RefCell::default(),
            };
            (Rc::new(policy), Cell::new(Instant::now()))
        });
        policy.clone()
    }

    /// What the policy of a port belongs to. Nothing is watched on account of the question.
    pub fn server(&self, worker: &Worker, port: u16) -> Arc<Meta> {
        match self.ports.borrow().get(&port) {
            Some((policy, _)) => policy.current().meta.clone(),
            None => ServerPolicy::initial(&worker.config.inbound, port).meta,
        }
    }

    /// The application at an address.
    pub fn application(&self, worker: &Worker, addr: SocketAddr) -> Rc<Endpoint> {
        let mut applications = self.applications.borrow_mut();
        let (endpoint, _) = applications.entry(addr).or_insert_with(|| {
            let config = &worker.config.inbound;
            let labels = Labels::direction("inbound")
                .target(addr)
                .with("tls", "no_identity")
                .with("no_tls_reason", "loopback");
            let factory = EndpointFactory {
                connector: worker.inbound_connector.clone(),
                registry: worker.registry.clone(),
                direction: "inbound",
                authority: None,
                default_rtt: Duration::from_millis(30),
                decay: Duration::from_secs(10),
                backoff: config.backoff,
                pool: config.pool,
                upgrade_threshold: u32::MAX,
                http2_life: worker.config.outbound.http2_life,
                labels: Some(labels.finish()),
                no_tls_reason: "loopback",
                stacks: Stacks::new(&worker.registry, "inbound", "", "endpoint"),
                swept: worker.swept.clone(),
                accrual: None,
                penalty: None,
                waiters: Rc::default(),
            };
            let endpoint = factory.make(addr, Arc::new(EndpointMeta::default()));
            (endpoint, Cell::new(Instant::now()))
        });
        endpoint.clone()
    }

    /// Connection series with these labels.
    pub fn transport(&self, registry: &Arc<Registry>, labels: &Arc<str>) -> Rc<TransportMetrics> {
        let mut transports = self.transports.borrow_mut();
        if let Some(metrics) = transports.get(labels).and_then(Weak::upgrade) {
            return metrics;
        }
        let metrics = TransportMetrics::new(registry, labels.clone());
        transports.insert(labels.clone(), Rc::downgrade(&metrics));
        metrics
    }

    /// HTTP series with these labels.
    pub fn http(&self, registry: &Arc<Registry>, labels: &Arc<str>) -> Rc<HttpMetrics> {
        let mut http = self.http.borrow_mut();
        if let Some(metrics) = http.get(labels).and_then(Weak::upgrade) {
            return metrics;
        }
        let metrics = Rc::new(HttpMetrics::new(registry, labels.clone()));
        http.insert(labels.clone(), Rc::downgrade(&metrics));
        metrics
    }

    /// The service profile of a name that a request goes by, where one is looked up.
    pub fn profile(&self, worker: &Worker, name: &str) -> Option<Rc<LocalProfile>> {
        let target = profile::target(name)?;
        let mut profiles = self.profiles.borrow_mut();
        if let Some((profile, _)) = profiles.get(&target) {
            return Some(profile.clone());
        }
        if profiles.len() >= MAX_PROFILES {
            return None;
        }
        let updates = worker.discovery.profile(&target)?;
        let profile = Rc::new(LocalProfile::new(target.clone(), updates));
        profiles.insert(target, (profile.clone(), Cell::new(Instant::now())));
        Some(profile)
    }

    /// Whether an authority has a series of its own: the first thousand do.
    pub fn told_apart(&self, authority: &str) -> bool {
        let mut known = self.authorities.borrow_mut();
        if known.contains(authority) {
            return true;
        }
        known.len() < MAX_AUTHORITIES && known.insert(authority.into())
    }

    /// Forgets what nobody has used for `idle`.
    pub fn sweep(&self, now: Instant, idle: Duration) {
        let keep = |users: usize, used: &Cell<Instant>| {
            if users > 1 {
                used.set(now);
            }
            now.saturating_duration_since(used.get()) < idle
        };
        self.ports
            .borrow_mut()
            .retain(|_, (policy, used)| keep(Rc::strong_count(policy), used));
        self.profiles
            .borrow_mut()
            .retain(|_, (profile, used)| keep(Rc::strong_count(profile), used));
        let mut dropped = Vec::new();
        self.applications
            .borrow_mut()
            .retain(|_, (endpoint, used)| {
                let keep = keep(Rc::strong_count(endpoint), used);
                if !keep {
                    dropped.push(endpoint.clone());
                }
                keep
            });
        drop(dropped);
        self.transports
            .borrow_mut()
            .retain(|_, weak| weak.strong_count() > 0);
        self.http
            .borrow_mut()
            .retain(|_, weak| weak.strong_count() > 0);
    }
}

impl PortPolicy {
    /// The policy as of now; costs an atomic load when nothing has changed.
    pub fn current(&self) -> Arc<ServerPolicy> {
        let mut updates = self.updates.borrow_mut();
        if updates.has_changed().unwrap_or(false) {
            *self.current.borrow_mut() = updates.borrow_and_update().clone();
        }
        self.current.borrow().clone()
    }

    /// Counts what looking at a connection found, and how long it took.
    pub fn detected(
        &self,
        registry: &Registry,
        port: u16,
        result: &'static str,
        elapsed: Duration,
    ) {
        let policy = self.current();
        let mut detection = self.detection.borrow_mut();
        if !detection
            .as_ref()
            .is_some_and(|d| Arc::ptr_eq(&d.policy, &policy))
        {
            let labels = Labels::default().server(&policy.meta, port).finish();
            *detection = Some(Detection {
                duration: registry.histogram(Family::InboundTcpDetectHttpDuration, &labels),
                results: Vec::new(),
                labels,
                policy,
            });
        }
        let Some(detection) = detection.as_mut() else {
            return;
        };
        detection.duration.observe(elapsed.as_secs_f64());
        let found = detection.results.iter().find(|(r, _)| *r == result);
        if let Some((_, counter)) = found {
            counter.inc();
            return;
        }
        let labels = format!("{},result=\"{result}\"", detection.labels).into();
        let counter = registry.counter(Family::InboundTcpDetectHttpResults, &labels);
        counter.inc();
        detection.results.push((result, counter));
    }

    /// Ends when an update makes `denies` true.
    pub async fn revoked(&self, denies: impl Fn(&ServerPolicy) -> bool) {
        let mut updates = self.updates.borrow().clone();
        let denied = updates.wait_for(|policy| denies(policy)).await.is_ok();
        if !denied {
            // Nobody will ever change it again.
            std::future::pending::<()>().await;
        }
    }
}
