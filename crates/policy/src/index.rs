//! The policy index: every object that matters, and the policies of those who asked.
//!
//! ```text
//!  Pod, ExternalWorkload ─┐                         ┌→ inbound watches   (workload, port)
//!  Server, authorizations ┼─apply/delete/reset→ Store ┼→ outbound watches  (client namespace, target)
//!  routes, Services, …  ──┘                         └→ statuses
//! ```
//!
//! Objects are read once when they come in; policies are computed from the store only for ports
//! and targets somebody watches, and sent only when they differ. Each kind says in
//! [`Stored::changed`] what its change touches; a list is applied as one change.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use linkerd_core::policy::{inbound::Server, outbound::Policy};
use linkerd_k8s::{Key, Watched, intern::Names};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};
use tokio::sync::watch;

pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod egress;
mod metrics;
pub(crate) mod rate_limit;
pub(crate) mod route;
pub(crate) mod server;
pub(crate) mod service;
mod store;
pub(crate) mod workload;

pub use self::metrics::Sizes;
pub(crate) use self::store::{Store, Table};
use self::{route::ParentId, workload::WorkloadId};
use crate::{
    cluster::Cluster,
    inbound,
    outbound::{self, Lookup, Target},
};

/// The index. One task feeds it; lookups share it behind a lock that is never held across I/O.
#[derive(Debug)]
pub struct Index {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) store: Store,
    names: Names,
    inbound: BTreeMap<(WorkloadId, u16), watch::Sender<Arc<Server>>>,
    outbound: BTreeMap<(String, Lookup), OutboundWatch>,
    /// Raised when statuses may need to be written.
    status: watch::Sender<u64>,
    /// How many watches there may be before the unused are looked for.
    sweep_at: usize,
}

#[derive(Debug)]
struct OutboundWatch {
    target: Target,
    /// Services and EgressNetworks the policy names as backends.
    backends: BTreeSet<Key>,
    policy: watch::Sender<Arc<Policy>>,
}

/// A kind the index stores.
pub(crate) trait Stored: Watched {
    /// What the index keeps of it.
    type Model: PartialEq;

    /// Reads an object; `None` if it is not for us.
    fn read(
        object: &Arc<Self>,
        cluster: &Cluster,
        names: &mut Names,
    ) -> Result<Option<Self::Model>, String>;
    fn table(store: &mut Store) -> &mut Table<Self::Model>;
    /// Keeps joins up to date and says what the change touches.
    fn changed(
        store: &mut Store,
        key: &Key,
        old: Option<&Self::Model>,
        new: Option<&Self::Model>,
        dirty: &mut Dirty,
    );
}

/// What a change touches.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Inbound policies of these workloads.
    workloads: BTreeSet<WorkloadId>,
    /// Inbound policies of these namespaces.
    namespaces: BTreeSet<String>,
    /// Outbound policies of these targets.
    parents: BTreeSet<ParentId>,
    /// Outbound policies that name these Services or EgressNetworks.
    backends: BTreeSet<Key>,
    /// Lookups of these addresses.
    addresses: BTreeSet<IpAddr>,
    /// Namespaces whose EgressNetworks changed.
    egress: BTreeSet<String>,
    /// Statuses.
    status: bool,
}

/// When an object was made. Those that do not say come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Created {
    unknown: bool,
    seconds: i64,
}

impl Created {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        let seconds = meta
            .creation_timestamp
            .as_ref()
            .map(|time| time.0.as_second());
        Self {
            unknown: seconds.is_none(),
            seconds: seconds.unwrap_or_default(),
        }
    }
}

impl Index {
    /// An index of an empty cluster.
    pub fn new(cluster: Cluster) -> Self {
        Self {
            cluster: Arc::new(cluster),
            store: Store::default(),
            names: Names::default(),
            inbound: BTreeMap::new(),
            outbound: BTreeMap::new(),
            status: watch::Sender::new(0),
            sweep_at: 1024,
        }
    }

    /// The inbound policy of a port now.
    pub fn inbound_policy(&self, workload: &WorkloadId, port: u16) -> Option<Server> {
        inbound::server(&self.store, &self.cluster, workload, port)
    }

    /// The inbound policy of a port from now on; the channel closes when the workload goes away.
    pub fn watch_inbound(
        &mut self,
        workload: WorkloadId,
        port: u16,
    ) -> Option<watch::Receiver<Arc<Server>>> {
        self.sweep();
        let key = (workload, port);
        if let Some(watch) = self.inbound.get(&key) {
            return Some(watch.subscribe());
        }
        let server = inbound::server(&self.store, &self.cluster, &key.0, port)?;
        let (sender, receiver) = watch::channel(Arc::new(server));
        self.inbound.insert(key, sender);
        Some(receiver)
    }

    /// The outbound policy of a target now, as clients of a namespace see it.
    pub fn outbound_policy(&self, client: &str, lookup: &Lookup) -> Option<Policy> {
        let target = outbound::resolve(&self.store, &self.cluster, client, lookup)?;
        Some(outbound::policy(&self.store, &self.cluster, client, &target).policy)
    }

    /// The outbound policy of a target from now on; the channel closes when the lookup has to be
    /// made again.
    pub fn watch_outbound(
        &mut self,
        client: &str,
        lookup: Lookup,
    ) -> Option<watch::Receiver<Arc<Policy>>> {
        self.sweep();
        let key = (client.to_owned(), lookup);
        if let Some(watch) = self.outbound.get(&key) {
            return Some(watch.policy.subscribe());
        }
        let target = outbound::resolve(&self.store, &self.cluster, client, &key.1)?;
        let computed = outbound::policy(&self.store, &self.cluster, client, &target);
        let (policy, receiver) = watch::channel(Arc::new(computed.policy));
        self.outbound.insert(
            key,
            OutboundWatch {
                target,
                backends: computed.backends,
                policy,
            },
        );
        Some(receiver)
    }

    /// Wakes whoever writes statuses.
    pub fn status_changes(&self) -> watch::Receiver<u64> {
        self.status.subscribe()
    }

    /// How many ports and targets are watched.
    pub fn watched(&self) -> (usize, usize) {
        (self.inbound.len(), self.outbound.len())
    }

    fn put<T: Stored>(&mut self, key: &Key, model: T::Model, dirty: &mut Dirty) {
        let model = Arc::new(model);
        let old = T::table(&mut self.store).insert(key, model.clone());
        if old.as_ref() != Some(&model) {
            T::changed(&mut self.store, key, old.as_deref(), Some(&model), dirty);
        }
    }

    fn take<T: Stored>(&mut self, key: &Key, dirty: &mut Dirty) {
        if let Some(old) = T::table(&mut self.store).remove(key) {
            T::changed(&mut self.store, key, Some(&old), None, dirty);
        }
    }

    fn refresh(&mut self, dirty: &Dirty) {
        if dirty.status {
            self.status.send_modify(|version| *version += 1);
        }
        if !dirty.workloads.is_empty() || !dirty.namespaces.is_empty() {
            self.refresh_inbound(dirty);
        }
        let outbound = [
            dirty.parents.len(),
            dirty.backends.len(),
            dirty.addresses.len(),
            dirty.egress.len(),
        ];
        if outbound.into_iter().sum::<usize>() > 0 {
            self.refresh_outbound(dirty);
        }
    }

    fn refresh_inbound(&mut self, dirty: &Dirty) {
        let Self {
            inbound,
            store,
            cluster,
            ..
        } = self;
        inbound.retain(|(workload, port), watch| {
            if !dirty.workloads.contains(workload)
                && !dirty.namespaces.contains(&workload.namespace)
            {
                return true;
            }
            if watch.is_closed() {
                return false;
            }
            let Some(server) = inbound::server(store, cluster, workload, *port) else {
                return false;
            };
            send(watch, server);
            true
        });
    }

    fn refresh_outbound(&mut self, dirty: &Dirty) {
        let Self {
            outbound,
            store,
            cluster,
            ..
        } = self;
        outbound.retain(|(client, lookup), watch| {
            if dirty.must_resolve_again(client, &watch.target, cluster) {
                return false;
            }
            if !dirty.touches(lookup, watch) {
                return true;
            }
            if watch.policy.is_closed() {
                return false;
            }
            if outbound::resolve(store, cluster, client, lookup).as_ref() != Some(&watch.target) {
                return false;
            }
            let computed = outbound::policy(store, cluster, client, &watch.target);
            watch.backends = computed.backends;
            send(&watch.policy, computed.policy);
            true
        });
    }

    /// Forgets what nobody watches any more, once enough has gathered.
    fn sweep(&mut self) {
        if self.inbound.len() + self.outbound.len() < self.sweep_at {
            return;
        }
        self.inbound.retain(|_, watch| !watch.is_closed());
        self.outbound.retain(|_, watch| !watch.policy.is_closed());
        self.sweep_at = 1024.max(2 * (self.inbound.len() + self.outbound.len()));
    }
}

/// Sends a policy to those who watch, if it differs.
fn send<T: PartialEq>(watch: &watch::Sender<Arc<T>>, value: T) {
    watch.send_if_modified(|current| {
        let differs = **current != value;
        if differs {
            *current = Arc::new(value);
        }
        differs
    });
}

impl Dirty {
    fn touches(&self, lookup: &Lookup, watch: &OutboundWatch) -> bool {
        let target = watch
            .target
            .parent()
            .is_some_and(|parent| self.parents.contains(&parent));
        let address = matches!(lookup, Lookup::Addr(addr) if self.addresses.contains(&addr.ip()));
        target
            || address
            || watch
                .backends
                .iter()
                .any(|backend| self.backends.contains(backend))
    }

    /// Clients look addresses outside the cluster up again when the networks that decide change.
    fn must_resolve_again(&self, client: &str, target: &Target, cluster: &Cluster) -> bool {
        match target {
            Target::Fallback(_) => !self.egress.is_empty(),
            Target::EgressNetwork { .. } => {
                self.egress.contains(client)
                    || self.egress.contains(&cluster.global_egress_namespace)
            }
            Target::Service { .. } | Target::UndefinedPort { .. } => false,
        }
    }
}

impl<T: Stored> linkerd_k8s::Index<T> for Index {
    fn apply(&mut self, object: Arc<T>) {
        let key = Key::of(object.meta());
        let mut dirty = Dirty::default();
        match T::read(&object, &self.cluster, &mut self.names) {
            Ok(Some(model)) => self.put::<T>(&key, model, &mut dirty),
            Ok(None) => self.take::<T>(&key, &mut dirty),
            // An object that makes no sense is none, whatever it said before.
            Err(error) => {
                skipped::<T>(&key, &error);
                self.take::<T>(&key, &mut dirty);
            }
        }
        self.refresh(&dirty);
    }

    fn delete(&mut self, key: &Key) {
        let mut dirty = Dirty::default();
        self.take::<T>(key, &mut dirty);
        self.refresh(&dirty);
    }

    fn reset(&mut self, objects: Vec<Arc<T>>) {
        let mut dirty = Dirty::default();
        let mut gone: BTreeSet<Key> = T::table(&mut self.store).keys().into_iter().collect();
        for object in objects {
            let key = Key::of(object.meta());
            match T::read(&object, &self.cluster, &mut self.names) {
                Ok(Some(model)) => {
                    gone.remove(&key);
                    self.put::<T>(&key, model, &mut dirty);
                }
                Ok(None) => {
                    gone.insert(key);
                }
                Err(error) => {
                    skipped::<T>(&key, &error);
                    gone.insert(key);
                }
            }
        }
        for key in gone {
            self.take::<T>(&key, &mut dirty);
        }
        self.refresh(&dirty);
    }
}

fn skipped<T: Stored>(key: &Key, error: &str) {
    tracing::warn!("skipping invalid {} resource {key}: {error}", T::kind(&()));
}

#[cfg(test)]
mod tests;
