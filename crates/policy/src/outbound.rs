//! Outbound policy: finds what a client's traffic is for, and computes where it goes.

use linkerd_core::policy::outbound::Policy;
use linkerd_k8s::Key;
use std::{collections::BTreeSet, net::SocketAddr};

use crate::{
    cluster::Cluster,
    index::{
        Store,
        route::{ParentId, ParentKind},
    },
};

mod accept;
mod assemble;
mod defaults;

pub(crate) use accept::{Rejection, accepts};

/// What a client asks about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lookup {
    /// A Service by name, whether or not it exists.
    Service {
        /// Namespace of the Service.
        namespace: String,
        /// Name of the Service.
        name: String,
        /// Port of the Service.
        port: u16,
    },
    /// An address.
    Addr(SocketAddr),
}

/// What the traffic is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Service {
        key: Key,
        port: u16,
    },
    /// Outside the cluster, with an EgressNetwork that says what happens.
    EgressNetwork {
        key: Key,
        addr: SocketAddr,
    },
    /// Outside the cluster, and nothing said.
    Fallback(SocketAddr),
    /// A Service that has no such port.
    UndefinedPort {
        key: Key,
        port: u16,
    },
}

/// A policy and the objects it names as backends, there or not.
pub(crate) struct Computed {
    pub(crate) policy: Policy,
    pub(crate) backends: BTreeSet<Key>,
}

impl Target {
    /// What routes attach to.
    pub(crate) fn parent(&self) -> Option<ParentId> {
        match self {
            Self::Service { key, .. } => Some(ParentId::service(key)),
            Self::EgressNetwork { key, .. } => Some(ParentId::egress(key)),
            Self::Fallback(_) | Self::UndefinedPort { .. } => None,
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::Service { port, .. } | Self::UndefinedPort { port, .. } => *port,
            Self::EgressNetwork { addr, .. } | Self::Fallback(addr) => addr.port(),
        }
    }

    fn is_egress(&self) -> bool {
        self.parent()
            .is_some_and(|parent| parent.kind == ParentKind::EgressNetwork)
    }
}

/// What traffic of a client is for; `None` for addresses inside the cluster that are no Service's.
pub(crate) fn resolve(
    store: &Store,
    cluster: &Cluster,
    client: &str,
    lookup: &Lookup,
) -> Option<Target> {
    let addr = match lookup {
        Lookup::Service {
            namespace,
            name,
            port,
        } => {
            return Some(Target::Service {
                key: Key::new(namespace.as_str(), name.as_str()),
                port: *port,
            });
        }
        Lookup::Addr(addr) => *addr,
    };
    if let Some((key, service)) = store.service_at(addr.ip()) {
        let port = addr.port();
        let key = key.clone();
        return Some(match service.ports.contains_key(&port) {
            true => Target::Service { key, port },
            false => Target::UndefinedPort { key, port },
        });
    }
    if let Some(key) = store.egress_for(client, addr.ip(), cluster) {
        return Some(Target::EgressNetwork { key, addr });
    }
    (!cluster.contains(addr.ip())).then_some(Target::Fallback(addr))
}

/// The policy of a target, as clients of a namespace see it.
pub(crate) fn policy(store: &Store, cluster: &Cluster, client: &str, target: &Target) -> Computed {
    let fixed = |policy| Computed {
        policy,
        backends: BTreeSet::new(),
    };
    match target {
        Target::Fallback(addr) => fixed(defaults::fallback(*addr)),
        Target::UndefinedPort { key, port } => fixed(defaults::undefined_port(key, *port)),
        Target::Service { .. } | Target::EgressNetwork { .. } => {
            assemble::policy(store, cluster, client, target)
        }
    }
}

#[cfg(test)]
mod tests;
