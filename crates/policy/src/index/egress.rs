//! EgressNetworks, read: which addresses outside the cluster, and which network a client gets.

use linkerd_core::policy::inbound::Network;
use linkerd_k8s::{Key, intern::Names, policy as k8s};
use std::{net::IpAddr, sync::Arc};

use super::{Created, Dirty, Store, Stored, Table, route::ParentId, service::Traffic};
use crate::{
    annotation::Annotations,
    cluster::{Cluster, all_networks},
    network,
};

/// An EgressNetwork.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EgressNetwork {
    pub(crate) created: Created,
    pub(crate) generation: Option<i64>,
    pub(crate) networks: Vec<Network>,
    pub(crate) policy: k8s::TrafficPolicy,
    pub(crate) traffic: Traffic,
    /// Whether it stays clear of the cluster's own networks.
    pub(crate) accepted: bool,
    /// What the API server has.
    pub(crate) status: Option<k8s::EgressNetworkStatus>,
}

impl EgressNetwork {
    /// Prefix length of the tightest network that has the address.
    fn fit(&self, ip: IpAddr) -> Option<u8> {
        let matching = self
            .networks
            .iter()
            .filter(|net| network::contains(net, ip));
        matching.map(|net| net.net.prefix_len()).max()
    }

    fn same_policy(&self, other: &Self) -> bool {
        self.networks == other.networks
            && self.policy == other.policy
            && self.traffic == other.traffic
            && self.created == other.created
    }
}

/// Everything outside the cluster.
fn outside(cluster: &Cluster) -> Vec<Network> {
    let mut networks = all_networks();
    for net in &mut networks {
        net.except = cluster
            .networks
            .iter()
            .filter(|inside| net.net.contains(*inside))
            .copied()
            .collect();
    }
    networks
}

impl Store {
    /// The network that is in force for a client's traffic to an address: of its own namespace if
    /// that has any network at all, else of the global one. Tightest first, then oldest.
    pub(crate) fn egress_for(&self, client: &str, ip: IpAddr, cluster: &Cluster) -> Option<Key> {
        let own = self.egress_networks.has_namespace(client);
        let namespace = if own {
            client
        } else {
            &cluster.global_egress_namespace
        };
        let candidates = self.egress_networks.namespace(namespace);
        let fitting =
            candidates.filter_map(|(name, net)| net.fit(ip).map(|fit| (fit, net.created, name)));
        let best =
            fitting.min_by_key(|(fit, created, name)| (std::cmp::Reverse(*fit), *created, *name));
        best.map(|(_, _, name)| Key::new(namespace, name))
    }
}

impl Stored for k8s::EgressNetwork {
    type Model = EgressNetwork;

    fn read(
        object: &Arc<Self>,
        cluster: &Cluster,
        _: &mut Names,
    ) -> Result<Option<EgressNetwork>, String> {
        let none = Annotations::new();
        let annotations = object.metadata.annotations.as_ref().unwrap_or(&none);
        let networks = match &object.spec.networks {
            None => outside(cluster),
            Some(networks) => network::parse_all(networks).map_err(|error| error.to_string())?,
        };
        let overlaps = |inside| networks.iter().any(|net| network::intersects(net, inside));
        Ok(Some(EgressNetwork {
            created: Created::of(&object.metadata),
            generation: object.metadata.generation,
            accepted: !cluster.networks.iter().any(overlaps),
            networks,
            policy: object.spec.traffic_policy,
            traffic: Traffic::read(annotations, cluster),
            status: object.status.clone(),
        }))
    }

    fn table(store: &mut Store) -> &mut Table<EgressNetwork> {
        &mut store.egress_networks
    }

    fn changed(
        _: &mut Store,
        key: &Key,
        old: Option<&EgressNetwork>,
        new: Option<&EgressNetwork>,
        dirty: &mut Dirty,
    ) {
        dirty.status = true;
        if let (Some(old), Some(new)) = (old, new)
            && old.same_policy(new)
        {
            return;
        }
        dirty.egress.insert(key.namespace.clone());
        dirty.parents.insert(ParentId::egress(key));
        if old.is_some() != new.is_some() {
            dirty.backends.insert(key.clone());
        }
    }
}
