//! ExternalWorkloads: meshed machines outside the cluster, found by name and by address.

use std::net::{IpAddr, SocketAddr};

use ahash::AHashMap;
use linkerd_api::ports;
use linkerd_k8s::{ExternalWorkload, PortSet, external_workload as kind, labels};
use smallvec::SmallVec;

use super::{
    Dirty, Index, Records,
    owners::Owner,
    pods::{find, unlist},
    servers::{OpaquePorts, Port, Workload},
};
use crate::{
    endpoint::{Endpoint, Hint, Identity, Labels, Target},
    intern::{Name, ObjectId},
};

#[derive(Debug, Default)]
pub(crate) struct Externals {
    by_id: AHashMap<Name, AHashMap<Name, ExternalRecord>>,
    by_ip: AHashMap<IpAddr, SmallVec<[ObjectId; 1]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExternalRecord {
    facts: Facts,
    servers: OpaquePorts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    ips: SmallVec<[IpAddr; 1]>,
    uri: Name,
    server_name: Name,
    ports: Box<[(u16, Option<Name>)]>,
    opaque: Option<PortSet>,
    /// Its own labels, by which Servers select it.
    own: Box<[(Name, Name)]>,
    /// Labels of metrics.
    labels: Labels,
}

impl Externals {
    pub(super) fn get(&self, id: &ObjectId) -> Option<&ExternalRecord> {
        self.by_id.get(&id.namespace)?.get(&id.name)
    }

    /// Workloads with that address that declare the port.
    pub(super) fn with_address(&self, ip: IpAddr, port: u16) -> impl Iterator<Item = &ObjectId> {
        let ids = self.by_ip.get(&ip).into_iter().flatten();
        ids.filter(move |id| {
            self.get(id)
                .is_some_and(|it| it.facts.ports.iter().any(|(number, _)| *number == port))
        })
    }
}

impl ExternalRecord {
    fn is_opaque(&self, port: u16, default: &PortSet) -> bool {
        let by_server = self.servers.iter().any(|server| match server {
            Port::Number(number) => *number == port,
            Port::Named(name) => {
                let mut ports = self.facts.ports.iter();
                ports.any(|(number, named)| *number == port && named.as_ref() == Some(name))
            }
        });
        by_server || self.facts.opaque.as_ref().unwrap_or(default).contains(port)
    }
}

impl Index {
    /// The endpoint a port of a workload is, before its slice adds zone and hints.
    pub(super) fn external_endpoint(
        &self,
        id: &ObjectId,
        workload: &ExternalRecord,
        addr: SocketAddr,
    ) -> (Endpoint, bool) {
        let facts = &workload.facts;
        let opaque = workload.is_opaque(addr.port(), &self.config.default_opaque_ports);
        let mut named = facts.ports.iter();
        let proxy = named.find(|(_, name)| name.as_deref() == Some(kind::PROXY_PORT));
        let inbound = proxy.map_or(ports::INBOUND, |(number, _)| *number);
        let endpoint = Endpoint {
            target: Target::ExternalWorkload(id.clone()),
            identity: Some(Identity::External {
                uri: facts.uri.clone(),
                server_name: facts.server_name.clone(),
            }),
            hint: if opaque { Hint::Opaque } else { Hint::H2 },
            opaque_transport: (self.config.transport_header || opaque).then_some(inbound),
            http2: true,
            labels: facts.labels.clone(),
            ..Endpoint::bare(addr)
        };
        (endpoint, opaque)
    }

    /// Servers of the namespace changed: notes the workloads for which that makes a difference.
    pub(super) fn reconsider_externals(&mut self, namespace: &Name, dirty: &mut Dirty) {
        let Some(workloads) = self.externals.by_id.get_mut(namespace) else {
            return;
        };
        for (name, workload) in workloads {
            let label = |key: &str| find(&workload.facts.own, key);
            let servers = self
                .servers
                .opaque_ports(Workload::External, namespace, label);
            if servers != workload.servers {
                workload.servers = servers;
                dirty.addresses.extend(&workload.facts.ips);
                let id = ObjectId {
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                self.slices
                    .services_with(&Target::ExternalWorkload(id), dirty);
            }
        }
    }

    fn read_external(&mut self, id: &ObjectId, workload: &ExternalWorkload) -> Facts {
        let owner = self.single_owner(&workload.metadata);
        let names = &mut self.names;
        let spec = &workload.spec;
        let ports = spec.ports.iter().flatten();
        let ports: Box<[(u16, Option<Name>)]> = ports
            .map(|port| (port.port, port.name.as_ref().map(|name| names.get(name))))
            .collect();
        let annotations = workload.metadata.annotations.as_ref();
        let opaque = annotations
            .and_then(|all| all.get(labels::OPAQUE_PORTS))
            .map(|list| {
                let named = |name: &str| {
                    let same = ports
                        .iter()
                        .filter(|(_, named)| named.as_deref() == Some(name));
                    same.map(|(number, _)| *number)
                        .collect::<SmallVec<[u16; 1]>>()
                };
                PortSet::parse_named(list, named, |_| {})
            });
        let mut shown = vec![(names.get("external_workload"), id.name.clone())];
        if let Some(Owner { kind, name }) = owner {
            shown.push((kind, name));
        }
        let own = workload.metadata.labels.iter().flatten();
        let ips = spec
            .workload_ips
            .iter()
            .flatten()
            .filter_map(|it| it.ip.parse().ok());
        Facts {
            ips: ips.map(|ip: IpAddr| ip.to_canonical()).collect(),
            uri: names.get(&spec.mesh_tls.identity),
            server_name: names.get(&spec.mesh_tls.server_name),
            ports,
            opaque,
            own: own
                .map(|(key, value)| (names.get(key), names.get(value)))
                .collect(),
            labels: shown.into(),
        }
    }
}

impl Records<ExternalWorkload> for Index {
    fn put(&mut self, workload: &ExternalWorkload, dirty: &mut Dirty) {
        let meta = &workload.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let id = self
            .names
            .id(namespace, meta.name.as_deref().unwrap_or_default());
        let facts = self.read_external(&id, workload);
        if self
            .externals
            .get(&id)
            .is_some_and(|known| known.facts == facts)
        {
            return;
        }
        Records::<ExternalWorkload>::remove(self, &id, dirty);
        let label = |key: &str| find(&facts.own, key);
        let servers = self
            .servers
            .opaque_ports(Workload::External, &id.namespace, label);
        for ip in &facts.ips {
            let ids = self.externals.by_ip.entry(*ip).or_default();
            if !ids.contains(&id) {
                ids.push(id.clone());
            }
        }
        dirty.addresses.extend(&facts.ips);
        let workload = ExternalRecord { facts, servers };
        self.externals
            .by_id
            .entry(id.namespace.clone())
            .or_default()
            .insert(id.name.clone(), workload);
        self.slices
            .services_with(&Target::ExternalWorkload(id), dirty);
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        let Some(workloads) = self.externals.by_id.get_mut(&id.namespace) else {
            return;
        };
        let Some(workload) = workloads.remove(&id.name) else {
            return;
        };
        if workloads.is_empty() {
            self.externals.by_id.remove(&id.namespace);
        }
        for ip in &workload.facts.ips {
            unlist(&mut self.externals.by_ip, ip, id);
        }
        dirty.addresses.extend(&workload.facts.ips);
        self.slices
            .services_with(&Target::ExternalWorkload(id.clone()), dirty);
    }

    fn known(&self) -> Vec<ObjectId> {
        let namespaces = self.externals.by_id.iter();
        namespaces
            .flat_map(|(namespace, workloads)| {
                workloads.keys().map(|name| ObjectId {
                    namespace: namespace.clone(),
                    name: name.clone(),
                })
            })
            .collect()
    }
}
