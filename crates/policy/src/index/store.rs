//! The objects the index knows, kind by kind, and the two joins every lookup needs: which Service
//! has an address, and which routes attach to a parent.

use linkerd_k8s::Key;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    authentication::{MeshTls, Networks},
    authorization::{AuthorizationPolicy, ServerAuthorization},
    egress::EgressNetwork,
    rate_limit::RateLimit,
    route::{Connection, Grpc, Http, ParentId, Route, RouteHead, RouteId, RouteKind},
    server::Server,
    service::Service,
    workload::{Workload, WorkloadId, WorkloadKind},
};

/// Objects of one kind by namespace and name.
#[derive(Debug)]
pub(crate) struct Table<M>(BTreeMap<String, BTreeMap<String, Arc<M>>>);

/// Everything the index knows.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) pods: Table<Workload>,
    pub(crate) external_workloads: Table<Workload>,
    pub(crate) servers: Table<Server>,
    pub(crate) server_authorizations: Table<ServerAuthorization>,
    pub(crate) authorization_policies: Table<AuthorizationPolicy>,
    pub(crate) mesh_tls: Table<MeshTls>,
    pub(crate) networks: Table<Networks>,
    pub(crate) rate_limits: Table<RateLimit>,
    pub(crate) services: Table<Service>,
    pub(crate) egress_networks: Table<EgressNetwork>,
    pub(crate) gateway_http: Table<Route<Http>>,
    pub(crate) policy_http: Table<Route<Http>>,
    pub(crate) grpc: Table<Route<Grpc>>,
    pub(crate) tls: Table<Route<Connection>>,
    pub(crate) tcp: Table<Route<Connection>>,
    /// Services by ClusterIP. Two may claim an address for a moment; the first by name has it.
    pub(crate) cluster_ips: BTreeMap<IpAddr, BTreeSet<Key>>,
    /// Routes by what they attach to.
    pub(crate) attached: BTreeMap<ParentId, BTreeSet<RouteId>>,
}

impl<M> Default for Table<M> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<M> Table<M> {
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&Arc<M>> {
        self.0.get(namespace)?.get(name)
    }

    pub(crate) fn contains(&self, namespace: &str, name: &str) -> bool {
        self.get(namespace, name).is_some()
    }

    pub(crate) fn namespace(&self, namespace: &str) -> impl Iterator<Item = (&str, &Arc<M>)> {
        let objects = self.0.get(namespace).into_iter().flatten();
        objects.map(|(name, object)| (name.as_str(), object))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, &Arc<M>)> {
        self.0.iter().flat_map(|(namespace, objects)| {
            objects
                .iter()
                .map(|(name, object)| (namespace.as_str(), name.as_str(), object))
        })
    }

    pub(crate) fn has_namespace(&self, namespace: &str) -> bool {
        self.0.contains_key(namespace)
    }

    pub(crate) fn insert(&mut self, key: &Key, object: Arc<M>) -> Option<Arc<M>> {
        let objects = self.0.entry(key.namespace.clone()).or_default();
        objects.insert(key.name.clone(), object)
    }

    /// Removes the object, and the namespace with its last object.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<M>> {
        let objects = self.0.get_mut(&key.namespace)?;
        let removed = objects.remove(&key.name);
        if objects.is_empty() {
            self.0.remove(&key.namespace);
        }
        removed
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.iter()
            .map(|(namespace, name, _)| Key::new(namespace, name))
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// How many objects each namespace has.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0
            .iter()
            .map(|(namespace, objects)| (namespace.as_str(), objects.len()))
    }
}

impl Store {
    pub(crate) fn workload(&self, id: &WorkloadId) -> Option<&Arc<Workload>> {
        match id.kind {
            WorkloadKind::Pod => self.pods.get(&id.namespace, &id.name),
            WorkloadKind::External => self.external_workloads.get(&id.namespace, &id.name),
        }
    }

    /// The Service that has the address.
    pub(crate) fn service_at(&self, ip: IpAddr) -> Option<(&Key, &Arc<Service>)> {
        let key = self.cluster_ips.get(&ip)?.first()?;
        self.services
            .get(&key.namespace, &key.name)
            .map(|service| (key, service))
    }

    /// Routes that name the parent, in no particular order.
    pub(crate) fn routes_of(&self, parent: &ParentId) -> impl Iterator<Item = &RouteId> {
        self.attached.get(parent).into_iter().flatten()
    }

    /// An HTTP route of either group.
    pub(crate) fn http_route(&self, id: &RouteId) -> Option<&Arc<Route<Http>>> {
        match id.kind {
            RouteKind::GatewayHttp => self.gateway_http.get(&id.namespace, &id.name),
            RouteKind::PolicyHttp => self.policy_http.get(&id.namespace, &id.name),
            _ => None,
        }
    }

    /// What all kinds of routes have in common.
    pub(crate) fn route_head(&self, id: &RouteId) -> Option<&RouteHead> {
        let (namespace, name) = (&id.namespace, &id.name);
        match id.kind {
            RouteKind::GatewayHttp => self
                .gateway_http
                .get(namespace, name)
                .map(|route| &route.head),
            RouteKind::PolicyHttp => self
                .policy_http
                .get(namespace, name)
                .map(|route| &route.head),
            RouteKind::Grpc => self.grpc.get(namespace, name).map(|route| &route.head),
            RouteKind::Tls => self.tls.get(namespace, name).map(|route| &route.head),
            RouteKind::Tcp => self.tcp.get(namespace, name).map(|route| &route.head),
        }
    }

    /// What all routes have in common.
    pub(crate) fn route_heads(&self) -> impl Iterator<Item = &RouteHead> {
        let http = self
            .gateway_http
            .iter()
            .chain(self.policy_http.iter())
            .map(|(_, _, route)| &route.head);
        let grpc = self.grpc.iter().map(|(_, _, route)| &route.head);
        let rest = self
            .tls
            .iter()
            .chain(self.tcp.iter())
            .map(|(_, _, route)| &route.head);
        http.chain(grpc).chain(rest)
    }
}
