//! Writes the EndpointSlices of Services that select ExternalWorkloads, as the cluster's own
//! controller does for pods. Only the replica that holds the lease writes.
//!
//! [`Slices`] is an index fed by the same watches as discovery. It notes which Services may need
//! other slices; [`Controller::run`] takes them one by one, plans and writes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::discovery::v1 as discovery;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use linkerd_k8s::{
    EndpointSlice, ExternalWorkload, Index, Key, ObjectMeta, Service, Watches, labels,
    lease::{self, Leadership},
};
use linkerd_runtime::{drain, ready::Readiness};
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokio::{sync::Notify, time::Instant};
use tracing::{debug, info, warn};

mod plan;

use plan::Plan;

/// Tries per Service before it is left alone until something changes.
const MAX_TRIES: u32 = 15;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What the controller counts.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    adds: Counter,
    retries: Counter,
    drops: Counter,
    depth: Gauge,
}

/// Objects the plans are made of, and the Services to plan for.
#[derive(Debug)]
pub struct Slices {
    services: HashMap<Key, Arc<Service>>,
    workloads: BTreeMap<String, BTreeMap<String, Arc<ExternalWorkload>>>,
    /// Our own slices by Service.
    slices: BTreeMap<Key, BTreeMap<String, Arc<EndpointSlice>>>,
    service_of: HashMap<Key, Key>,
    queue: BTreeSet<Key>,
    wake: Arc<Notify>,
    metrics: Metrics,
}

#[derive(Clone, Debug)]
pub struct Controller {
    state: Arc<Mutex<Slices>>,
    wake: Arc<Notify>,
    metrics: Metrics,
}

/// Services that could not be written, and when to try them again.
#[derive(Debug, Default)]
struct Failures {
    tries: HashMap<Key, u32>,
    later: BTreeSet<(Instant, Key)>,
}

// === impl Metrics ===

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let name = [("name".into(), "endpoints_controller_workqueue".into())];
        let registry = registry.sub_registry_with_prefix("workqueue");
        let registry = registry.sub_registry_with_labels(name.into_iter());
        registry.register("adds", "Services put into the queue", metrics.adds.clone());
        registry.register(
            "retries",
            "Services put back after a failure",
            metrics.retries.clone(),
        );
        registry.register(
            "drops",
            "Services given up after too many failures",
            metrics.drops.clone(),
        );
        registry.register("depth", "Services in the queue", metrics.depth.clone());
        metrics
    }
}

/// The lease that guards the writes.
pub fn lease_params(namespace: &str, identity: &str) -> lease::Params {
    lease::Params {
        namespace: namespace.to_owned(),
        name: "linkerd-destination-endpoint-write".to_owned(),
        identity: identity.to_owned(),
        field_manager: "linkerd-destination".to_owned(),
        labels: BTreeMap::new(),
        owner: None,
        duration: Duration::from_secs(30),
        renew_after: Duration::from_secs(2),
        retry: Duration::from_secs(2),
    }
}

// === impl Slices ===

impl Slices {
    fn new(metrics: Metrics) -> Self {
        Self {
            services: HashMap::new(),
            workloads: BTreeMap::new(),
            slices: BTreeMap::new(),
            service_of: HashMap::new(),
            queue: BTreeSet::new(),
            wake: Arc::new(Notify::new()),
            metrics,
        }
    }

    fn enqueue(&mut self, service: Key) {
        if self.queue.insert(service) {
            self.metrics.adds.inc();
            self.measure();
            self.wake.notify_one();
        }
    }

    fn measure(&self) {
        self.metrics
            .depth
            .set(i64::try_from(self.queue.len()).unwrap_or(i64::MAX));
    }

    /// Every Service that may need a plan.
    fn enqueue_all(&mut self) {
        let mut all: BTreeSet<Key> = self.slices.keys().cloned().collect();
        all.extend(
            self.services
                .iter()
                .filter(|(key, _)| self.workloads.contains_key(&key.namespace))
                .map(|(key, _)| key.clone()),
        );
        for service in all {
            self.enqueue(service);
        }
    }

    /// Notes the Services that select the workload.
    fn enqueue_selecting(&mut self, workload: &ExternalWorkload) {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let none = BTreeMap::new();
        let labels = workload.metadata.labels.as_ref().unwrap_or(&none);
        let selecting: Vec<Key> = self
            .services
            .iter()
            .filter(|(key, _)| key.namespace == namespace)
            .filter(|(_, service)| {
                service
                    .spec
                    .selector
                    .iter()
                    .all(|(key, value)| labels.get(key) == Some(value))
            })
            .map(|(key, _)| key.clone())
            .collect();
        for service in selecting {
            self.enqueue(service);
        }
    }

    /// The plan for a Service, unless it is none of ours.
    fn plan(&self, key: &Key) -> Plan {
        let none = BTreeMap::new();
        let existing: Vec<_> = self
            .slices
            .get(key)
            .unwrap_or(&none)
            .values()
            .cloned()
            .collect();
        let Some(service) = self.services.get(key) else {
            // Slices of a deleted Service go with it; those of one we should not touch are left.
            return Plan::default();
        };
        let none = BTreeMap::new();
        let workloads = self.workloads.get(&key.namespace).unwrap_or(&none);
        let workloads: Vec<_> = workloads.values().cloned().collect();
        plan::plan(service, &workloads, &existing)
    }

    fn put_slice(&mut self, slice: Arc<EndpointSlice>) {
        let key = Key::of(&slice.metadata);
        let service = service_of(&slice.metadata);
        let previous = self.service_of.get(&key).cloned();
        // News from the watch may be older than the answer to our own write.
        if let Some(known) = previous
            .as_ref()
            .and_then(|of| self.slices.get(of)?.get(&key.name))
            && version(&known.metadata) > version(&slice.metadata)
        {
            return;
        }
        self.take_slice(&key);
        if let Some(service) = service {
            self.slices
                .entry(service.clone())
                .or_default()
                .insert(key.name.clone(), slice);
            self.service_of.insert(key, service.clone());
            self.enqueue(service);
        }
    }

    fn take_slice(&mut self, key: &Key) {
        let Some(service) = self.service_of.remove(key) else {
            return;
        };
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(&key.name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.enqueue(service);
    }
}

fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version
        .as_ref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

/// The Service of a slice that is ours.
fn service_of(meta: &ObjectMeta) -> Option<Key> {
    let labels = meta.labels.as_ref()?;
    let ours = labels
        .get(labels::SLICE_MANAGED_BY)
        .is_some_and(|by| by == labels::SLICE_MANAGER);
    let service = labels.get(labels::SERVICE_NAME).filter(|_| ours)?;
    Some(Key::new(
        meta.namespace.clone().unwrap_or_default(),
        service,
    ))
}

/// Whether slices would look different.
fn differs(old: &ExternalWorkload, new: &ExternalWorkload) -> bool {
    old.metadata.labels != new.metadata.labels
        || old.metadata.uid != new.metadata.uid
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.is_ready() != new.is_ready()
        || old.spec.workload_ips != new.spec.workload_ips
        || old.spec.ports != new.spec.ports
}

impl Index<Service> for Slices {
    fn apply(&mut self, service: Arc<Service>) {
        let key = Key::of(&service.metadata);
        if !plan::is_managed(&service) {
            self.services.remove(&key);
            return;
        }
        let known = self.services.insert(key.clone(), service.clone());
        if known.is_none_or(|known| known != service)
            && (self.workloads.contains_key(&key.namespace) || self.slices.contains_key(&key))
        {
            self.enqueue(key);
        }
    }

    fn delete(&mut self, key: &Key) {
        self.services.remove(key);
    }

    fn reset(&mut self, services: Vec<Arc<Service>>) {
        self.services.clear();
        for service in services {
            if plan::is_managed(&service) {
                self.services.insert(Key::of(&service.metadata), service);
            }
        }
        self.enqueue_all();
    }
}

impl Index<ExternalWorkload> for Slices {
    fn apply(&mut self, workload: Arc<ExternalWorkload>) {
        let key = Key::of(&workload.metadata);
        let known = self
            .workloads
            .entry(key.namespace)
            .or_default()
            .insert(key.name, workload.clone());
        match known {
            Some(known) if !differs(&known, &workload) => {}
            Some(known) => {
                self.enqueue_selecting(&known);
                self.enqueue_selecting(&workload);
            }
            None => self.enqueue_selecting(&workload),
        }
    }

    fn delete(&mut self, key: &Key) {
        let Some(workloads) = self.workloads.get_mut(&key.namespace) else {
            return;
        };
        let Some(workload) = workloads.remove(&key.name) else {
            return;
        };
        if workloads.is_empty() {
            self.workloads.remove(&key.namespace);
        }
        self.enqueue_selecting(&workload);
    }

    fn reset(&mut self, workloads: Vec<Arc<ExternalWorkload>>) {
        self.enqueue_all();
        self.workloads.clear();
        for workload in workloads {
            let key = Key::of(&workload.metadata);
            self.workloads
                .entry(key.namespace)
                .or_default()
                .insert(key.name, workload);
        }
        self.enqueue_all();
    }
}

impl Index<EndpointSlice> for Slices {
    fn apply(&mut self, slice: Arc<EndpointSlice>) {
        if service_of(&slice.metadata).is_some()
            || self.service_of.contains_key(&Key::of(&slice.metadata))
        {
            self.put_slice(slice);
        }
    }

    fn delete(&mut self, key: &Key) {
        self.take_slice(key);
    }

    fn reset(&mut self, slices: Vec<Arc<EndpointSlice>>) {
        self.enqueue_all();
        self.slices.clear();
        self.service_of.clear();
        for slice in slices {
            Index::<EndpointSlice>::apply(self, slice);
        }
        self.enqueue_all();
    }
}

// === impl Failures ===

impl Failures {
    /// Notes a failure. Answers how many there were, or nothing when it is time to give up.
    fn add(&mut self, key: &Key, now: Instant) -> Option<u32> {
        let tries = self.tries.entry(key.clone()).or_default();
        *tries += 1;
        let tries = *tries;
        if tries > MAX_TRIES {
            self.forget(key);
            return None;
        }
        let pause = FIRST_PAUSE
            .saturating_mul(1 << tries.min(10))
            .min(LONGEST_PAUSE);
        self.later.insert((now + pause, key.clone()));
        Some(tries)
    }

    fn forget(&mut self, key: &Key) {
        if self.tries.remove(key).is_some() {
            self.later.retain(|(_, later)| later != key);
        }
    }

    /// Services whose pause is over.
    fn due(&mut self, now: Instant) -> Vec<Key> {
        let mut due = Vec::new();
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            due.extend(self.later.pop_first().map(|(_, key)| key));
        }
        due
    }

    /// Ends when the next pause is over.
    async fn wait(&self) {
        match self.later.first() {
            Some((at, _)) => tokio::time::sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }
}

// === impl Controller ===

impl Controller {
    pub fn new(metrics: Metrics) -> Self {
        let slices = Slices::new(metrics.clone());
        let wake = slices.wake.clone();
        Self {
            state: Arc::new(Mutex::new(slices)),
            wake,
            metrics,
        }
    }

    pub fn subscribe(&self, watches: &mut Watches) {
        watches.subscribe::<Service, _>(&self.state);
        watches.subscribe::<ExternalWorkload, _>(&self.state);
        watches.subscribe::<EndpointSlice, _>(&self.state);
    }

    /// Writes whenever this replica leads, until the process drains. What is being written then
    /// is written to its end, so that nothing is written once the lease has been let go. Nothing
    /// is written before everything has been listed: workloads that are not known yet would look
    /// like workloads that went.
    pub async fn run(
        self,
        client: Client,
        mut leadership: Leadership,
        listed: Readiness,
        mut drain: drain::Watch,
    ) {
        tokio::select! {
            () = listed.ready() => {}
            () = drain.signaled() => return,
        }
        while !drain.is_draining() {
            tokio::select! {
                () = leadership.acquired() => {}
                () = drain.signaled() => return,
            }
            info!("Writing EndpointSlices of ExternalWorkloads");
            self.state.lock().enqueue_all();
            let mut still = leadership.clone();
            tokio::select! {
                () = self.work(&client, &leadership, &mut drain) => {}
                () = still.lost() => info!("Another replica writes EndpointSlices now"),
            }
        }
    }

    async fn work(&self, client: &Client, leadership: &Leadership, drain: &mut drain::Watch) {
        let mut failures = Failures::default();
        while leadership.is_held() && !drain.is_draining() {
            let next = {
                let mut state = self.state.lock();
                for key in failures.due(Instant::now()) {
                    state.enqueue(key);
                }
                let next = state.queue.pop_first();
                state.measure();
                next
            };
            let Some(key) = next else {
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = failures.wait() => {}
                    () = drain.signaled() => {}
                }
                continue;
            };
            let plan = self.state.lock().plan(&key);
            if plan == Plan::default() {
                failures.forget(&key);
                continue;
            }
            match self.carry_out(client, &key, plan).await {
                Ok(()) => failures.forget(&key),
                Err(error) => self.failed(&mut failures, key, &error),
            }
        }
    }

    /// One Service that cannot be written does not hold up the others.
    fn failed(&self, failures: &mut Failures, key: Key, error: &kube::Error) {
        match failures.add(&key, Instant::now()) {
            Some(tries) => {
                debug!(service = %key, %error, tries, "Could not write EndpointSlices");
                self.metrics.retries.inc();
            }
            None => {
                warn!(service = %key, %error, "Gave up writing EndpointSlices");
                self.metrics.drops.inc();
            }
        }
    }

    async fn carry_out(
        &self,
        client: &Client,
        service: &Key,
        plan: Plan,
    ) -> Result<(), kube::Error> {
        let api: Api<discovery::EndpointSlice> =
            Api::namespaced(client.clone(), &service.namespace);
        let params = PostParams {
            field_manager: Some("linkerd-destination".to_owned()),
            ..PostParams::default()
        };
        for slice in plan.create {
            let written = api.create(&params, &full(&slice)).await?;
            self.seen(written);
        }
        for slice in plan.update {
            let name = slice.metadata.name.clone().unwrap_or_default();
            let written = api.replace(&name, &params, &full(&slice)).await?;
            self.seen(written);
        }
        for name in plan.delete {
            match api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
            self.state
                .lock()
                .take_slice(&Key::new(service.namespace.clone(), name));
        }
        Ok(())
    }

    /// Takes the API server's answer for true before the watch repeats it.
    fn seen(&self, written: discovery::EndpointSlice) {
        let slice = serde_json::to_value(written).and_then(serde_json::from_value);
        if let Ok(slice) = slice {
            self.state.lock().put_slice(Arc::new(slice));
        }
    }
}

/// The object as the API server wants it, with its kind.
fn full(slice: &EndpointSlice) -> discovery::EndpointSlice {
    let json = serde_json::to_value(slice).expect("a slice is plain data");
    serde_json::from_value(json).expect("our fields are a part of the kind's")
}

#[cfg(test)]
mod tests;
