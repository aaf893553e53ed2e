//! Everything discovery knows of one cluster, as one pure index: objects go in through
//! `apply`/`delete`/`reset`, snapshots come out on the views streams hold.
//!
//! ```text
//! EndpointSlice ─targetRef→ Pod ─owner→ ReplicaSet, Job      Node (zone of a client)
//!      │service-name          │labels, ports
//!   Service ←─name── ServiceProfile   Server (opaque ports)   ExternalWorkload ←─ EndpointSlice
//!      └ views: endpoints by (Service, port), profiles by (Service, port, client), by (Service,
//!        hostname, port), by (IP, port)
//! ```
//!
//! An object changes its own records, notes in [`Dirty`] which Services and addresses may look
//! different now, and [`Index::publish`] recomputes the views of those that somebody watches.
//! Objects may arrive in any order and refer to others that come later or never.

use std::{net::IpAddr, sync::Arc};

use ahash::{AHashMap, AHashSet};
use linkerd_k8s::{Key, Watched};
use tokio::sync::watch;

use crate::{
    config::Config,
    intern::{Name, Names, ObjectId},
    metrics::Metrics,
    view::Views,
};

mod address;
mod assemble;
mod external;
mod nodes;
mod owners;
mod pods;
mod profiles;
mod servers;
mod services;
mod slices;
#[cfg(test)]
mod tests;

pub use address::Resolved;
pub use assemble::NoService;
pub use services::Dispatch;

/// Zone of each node that has one.
pub type Zones = Arc<AHashMap<Name, Name>>;

#[derive(Debug)]
pub struct Index {
    config: Arc<Config>,
    names: Names,
    services: services::Services,
    slices: slices::Slices,
    pods: pods::Pods,
    externals: external::Externals,
    owners: owners::Owners,
    servers: servers::Servers,
    profiles: profiles::Profiles,
    zones: watch::Sender<Zones>,
    pub(crate) views: Views,
}

/// What may look different after a change.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) services: AHashSet<ObjectId>,
    pub(crate) addresses: AHashSet<IpAddr>,
}

/// The records of one kind.
pub(crate) trait Records<T> {
    fn put(&mut self, object: &T, dirty: &mut Dirty);
    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty);
    fn known(&self) -> Vec<ObjectId>;
}

// === impl Index ===

impl Index {
    pub fn new(config: Arc<Config>, metrics: Metrics) -> Self {
        Self {
            config,
            names: Names::default(),
            services: services::Services::default(),
            slices: slices::Slices::default(),
            pods: pods::Pods::default(),
            externals: external::Externals::default(),
            owners: owners::Owners::default(),
            servers: servers::Servers::default(),
            profiles: profiles::Profiles::default(),
            zones: watch::Sender::new(Zones::default()),
            views: Views::new(metrics),
        }
    }

    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Follows the zones of nodes.
    pub fn zones(&self) -> watch::Receiver<Zones> {
        self.zones.subscribe()
    }

    /// Recomputes what somebody watches of what may have changed.
    pub(crate) fn publish(&mut self, dirty: Dirty) {
        for id in &dirty.services {
            for (port, view) in self.views.endpoints_of(id) {
                let base = self.assemble(id, port, view.base());
                view.publish(base);
            }
            for (key, view) in self.views.profiles_of(id) {
                view.publish(self.service_profile(id, &key));
            }
            for (key, view) in self.views.instances_of(id) {
                let now = self.instance_profile(id, &key);
                view.publish(now.unwrap_or_else(|| self.bare_again(&view.now().value)));
            }
        }
        for ip in dirty.addresses {
            for (port, view) in self.views.addresses_of(ip) {
                view.publish(self.address_profile(ip, port));
            }
        }
    }
}

impl<T: Watched> linkerd_k8s::Index<T> for Index
where
    Index: Records<T>,
{
    fn apply(&mut self, object: Arc<T>) {
        let mut dirty = Dirty::default();
        self.put(&object, &mut dirty);
        self.publish(dirty);
    }

    fn delete(&mut self, key: &Key) {
        let mut dirty = Dirty::default();
        Records::<T>::remove(self, &ObjectId::new(&key.namespace, &key.name), &mut dirty);
        self.publish(dirty);
    }

    fn reset(&mut self, objects: Vec<Arc<T>>) {
        let mut dirty = Dirty::default();
        let mut gone: AHashSet<ObjectId> = Records::<T>::known(self).into_iter().collect();
        for object in objects {
            let meta = object.meta();
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            gone.remove(&ObjectId::new(
                namespace.unwrap_or_default(),
                name.unwrap_or_default(),
            ));
            self.put(&object, &mut dirty);
        }
        for id in gone {
            Records::<T>::remove(self, &id, &mut dirty);
        }
        self.publish(dirty);
    }
}

// === impl Dirty ===

impl Dirty {
    pub(crate) fn service(&mut self, id: &ObjectId) {
        if !self.services.contains(id) {
            self.services.insert(id.clone());
        }
    }
}
