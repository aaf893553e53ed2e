//! Pods: the workloads behind most endpoints, found by name, by pod IP and by host port.

use std::{
    hash::Hash,
    net::{IpAddr, SocketAddr},
};

use ahash::AHashMap;
use linkerd_k8s::{Pod, PortSet, labels, pod as kind};
use smallvec::SmallVec;

use super::{
    Dirty, Index, Records,
    owners::Owner,
    servers::{OpaquePorts, Port, Workload},
};
use crate::{
    endpoint::{Endpoint, Hint, Identity, Labels, Target},
    intern::{Name, ObjectId},
};

#[derive(Debug, Default)]
pub(crate) struct Pods {
    by_id: AHashMap<Name, AHashMap<Name, PodRecord>>,
    /// Pods with a network of their own that may receive traffic.
    by_ip: AHashMap<IpAddr, SmallVec<[ObjectId; 1]>>,
    by_host_port: AHashMap<(IpAddr, u16), SmallVec<[ObjectId; 1]>>,
    by_owner: AHashMap<(Name, ObjectId), Vec<Name>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodRecord {
    facts: Facts,
    /// Ports that Servers make opaque.
    servers: OpaquePorts,
    labels: Labels,
}

/// What the object itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    ips: SmallVec<[IpAddr; 2]>,
    host_ips: SmallVec<[IpAddr; 1]>,
    host_network: bool,
    life: Life,
    node: Option<Name>,
    owner: Option<Owner>,
    labels: Box<[(Name, Name)]>,
    service_account: Name,
    control_namespace: Option<Name>,
    identity: Option<Name>,
    template_hash: Option<Name>,
    ports: Box<[DeclaredPort]>,
    /// What the annotation says, which replaces the default list.
    opaque: Option<PortSet>,
    skip_inbound: PortSet,
    proxy: ProxyPorts,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// It runs, or will.
    Ahead,
    /// It is being deleted.
    Terminating,
    /// It succeeded or failed.
    Finished,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DeclaredPort {
    container: u16,
    host: Option<u16>,
    name: Option<Name>,
}

/// Where the pod's proxy listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProxyPorts {
    inbound: Option<u16>,
    admin: Option<u16>,
    control: Option<u16>,
}

impl Pods {
    pub(super) fn get(&self, id: &ObjectId) -> Option<&PodRecord> {
        self.by_id.get(&id.namespace)?.get(&id.name)
    }

    pub(super) fn with_ip(&self, ip: IpAddr) -> &[ObjectId] {
        self.by_ip.get(&ip).map_or(&[], |ids| ids.as_slice())
    }

    pub(super) fn with_host_port(&self, ip: IpAddr, port: u16) -> &[ObjectId] {
        self.by_host_port
            .get(&(ip, port))
            .map_or(&[], |ids| ids.as_slice())
    }
}

impl PodRecord {
    pub(super) fn first_ip(&self) -> Option<IpAddr> {
        self.facts.ips.first().copied()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.facts.life == Life::Finished
    }

    fn declares(&self, name: &str, port: u16) -> bool {
        let ports = self.facts.ports.iter();
        ports
            .filter(|declared| declared.name.as_deref() == Some(name))
            .any(|declared| declared.container == port || declared.host == Some(port))
    }

    fn is_opaque(&self, port: u16, default: &PortSet) -> bool {
        let by_server = self.servers.iter().any(|server| match server {
            Port::Number(number) => *number == port,
            Port::Named(name) => self.declares(name, port),
        });
        by_server || self.facts.opaque.as_ref().unwrap_or(default).contains(port)
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.facts.ips.iter().chain(&self.facts.host_ips).copied()
    }
}

impl Index {
    /// The endpoint a port of a pod is, before its slice adds hostname, zone and hints.
    pub(super) fn pod_endpoint(
        &self,
        id: &ObjectId,
        pod: &PodRecord,
        addr: SocketAddr,
    ) -> (Endpoint, bool) {
        let facts = &pod.facts;
        let port = addr.port();
        let opaque = pod.is_opaque(port, &self.config.default_opaque_ports);
        let meshed = facts.control_namespace.is_some() && !facts.skip_inbound.contains(port);
        let hint = match (meshed, opaque) {
            (false, _) => Hint::None,
            (true, true) => Hint::Opaque,
            (true, false) if self.config.enable_h2_upgrade => Hint::H2,
            (true, false) => Hint::Meshed,
        };
        let of_the_proxy = [facts.proxy.admin, facts.proxy.control].contains(&Some(port));
        let forced = self.config.transport_header || opaque;
        let endpoint = Endpoint {
            target: Target::Pod(id.clone()),
            identity: facts.identity.clone().filter(|_| meshed).map(Identity::Pod),
            hint,
            opaque_transport: facts
                .proxy
                .inbound
                .filter(|_| meshed && forced && !of_the_proxy),
            http2: meshed,
            labels: pod.labels.clone(),
            node: facts.node.clone(),
            ..Endpoint::bare(addr)
        };
        (endpoint, opaque)
    }

    /// Servers of the namespace changed: notes the pods for which that makes a difference.
    pub(super) fn reconsider_pods(&mut self, namespace: &Name, dirty: &mut Dirty) {
        let Some(pods) = self.pods.by_id.get_mut(namespace) else {
            return;
        };
        for (name, pod) in pods {
            let label = |key: &str| find(&pod.facts.labels, key);
            let servers = self.servers.opaque_ports(Workload::Pod, namespace, label);
            if servers != pod.servers {
                pod.servers = servers;
                dirty.addresses.extend(pod.addresses());
                let id = ObjectId {
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                self.slices.services_with(&Target::Pod(id), dirty);
            }
        }
    }

    /// A ReplicaSet or Job came, went or changed hands: its pods' metrics name another owner.
    pub(super) fn relabel_pods_of(&mut self, kind: &str, owner: &ObjectId, dirty: &mut Dirty) {
        let key = (self.names.get(kind), owner.clone());
        let Some(pods) = self.pods.by_owner.get(&key).cloned() else {
            return;
        };
        for name in pods {
            let id = ObjectId {
                namespace: owner.namespace.clone(),
                name,
            };
            let Some(facts) = self.pods.get(&id).map(|pod| pod.facts.clone()) else {
                continue;
            };
            let labels = self.pod_labels(&id, &facts);
            let pods = self.pods.by_id.get_mut(&id.namespace);
            let Some(pod) = pods.and_then(|pods| pods.get_mut(&id.name)) else {
                continue;
            };
            if pod.labels != labels {
                pod.labels = labels;
                dirty.addresses.extend(pod.addresses());
                self.slices.services_with(&Target::Pod(id), dirty);
            }
        }
    }

    fn pod_labels(&mut self, id: &ObjectId, facts: &Facts) -> Labels {
        let owner = match &facts.owner {
            Some(owner) => self.owners.top(&id.namespace, owner),
            None => Owner {
                kind: self.names.get("pod"),
                name: id.name.clone(),
            },
        };
        let kind = if &*owner.kind == "job" {
            self.names.get("k8s_job")
        } else {
            owner.kind
        };
        let mut labels = vec![
            (self.names.get("pod"), id.name.clone()),
            (
                self.names.get("serviceaccount"),
                facts.service_account.clone(),
            ),
        ];
        if &*kind != "pod" {
            labels.push((kind, owner.name));
        }
        if let Some(namespace) = &facts.control_namespace {
            labels.push((self.names.get("control_plane_ns"), namespace.clone()));
        }
        if let Some(hash) = &facts.template_hash {
            labels.push((self.names.get("pod_template_hash"), hash.clone()));
        }
        labels.into()
    }

    fn read_pod(&mut self, id: &ObjectId, pod: &Pod) -> Facts {
        let owner = self.single_owner(&pod.metadata);
        let names = &mut self.names;
        let none = std::collections::BTreeMap::new();
        let pod_labels = pod.metadata.labels.as_ref().unwrap_or(&none);
        let annotation = |key: &str| {
            pod.metadata
                .annotations
                .as_ref()?
                .get(key)
                .map(String::as_str)
        };

        let service_account = pod
            .spec
            .service_account_name
            .as_deref()
            .filter(|it| !it.is_empty());
        let service_account = names.get(service_account.unwrap_or("default"));
        let control_namespace = pod_labels
            .get(labels::CONTROL_PLANE_NS)
            .filter(|it| !it.is_empty())
            .map(|it| names.get(it));
        let ours = control_namespace.as_deref() == Some(self.config.controller_namespace.as_str());
        let trust_domain = &self.config.trust_domain;
        let identity = (ours && !trust_domain.is_empty()).then(|| {
            names.get(&format!(
                "{service_account}.{}.serviceaccount.identity.{}.{trust_domain}",
                id.namespace, self.config.controller_namespace,
            ))
        });
        let ports = pod.container_ports().map(|port| DeclaredPort {
            container: port.container_port,
            host: port.host_port.filter(|port| *port > 0),
            name: port.name.as_ref().map(|name| names.get(name)),
        });
        let ports: Box<[_]> = ports.collect();
        let named = |name: &str| {
            let same = ports
                .iter()
                .filter(|port| port.name.as_deref() == Some(name));
            same.map(|port| port.container)
                .collect::<SmallVec<[u16; 1]>>()
        };
        let opaque = annotation(labels::OPAQUE_PORTS).map(|list| {
            PortSet::parse_named(list, named, |entry| {
                tracing::debug!(pod = %id, entry, "Opaque ports name a port the pod has not");
            })
        });
        let skip = annotation(labels::SKIP_INBOUND_PORTS).unwrap_or_default();
        let ip = |ip: &String| ip.parse().ok().map(|ip: IpAddr| ip.to_canonical());
        let mut ips: SmallVec<[IpAddr; 2]> = pod
            .status
            .pod_ip
            .iter()
            .chain(pod.status.pod_ips.iter().map(|it| &it.ip))
            .filter_map(ip)
            .collect();
        dedup(&mut ips);
        let mut host_ips: SmallVec<[IpAddr; 1]> = pod
            .status
            .host_ip
            .iter()
            .chain(pod.status.host_ips.iter().map(|it| &it.ip))
            .filter_map(ip)
            .collect();
        dedup(&mut host_ips);
        Facts {
            ips,
            host_ips,
            host_network: pod.spec.host_network.unwrap_or(false),
            life: if pod.is_finished() {
                Life::Finished
            } else if pod.is_terminating() {
                Life::Terminating
            } else {
                Life::Ahead
            },
            node: pod.spec.node_name.as_ref().map(|node| names.get(node)),
            owner,
            labels: pod_labels
                .iter()
                .map(|(key, value)| (names.get(key), names.get(value)))
                .collect(),
            service_account,
            control_namespace,
            identity,
            template_hash: pod_labels
                .get(labels::POD_TEMPLATE_HASH)
                .map(|hash| names.get(hash)),
            ports,
            opaque,
            skip_inbound: PortSet::parse_named(skip, |_| None, |_| {}),
            proxy: proxy_ports(pod),
        }
    }

    fn list_pod(&mut self, id: &ObjectId, facts: &Facts) {
        let pods = &mut self.pods;
        if let Some(owner) = &facts.owner {
            let key = owner_key(id, owner);
            pods.by_owner.entry(key).or_default().push(id.name.clone());
        }
        if facts.life != Life::Ahead {
            return;
        }
        if !facts.host_network {
            for ip in &facts.ips {
                pods.by_ip.entry(*ip).or_default().push(id.clone());
            }
        }
        for key in host_ports(facts) {
            let ids = pods.by_host_port.entry(key).or_default();
            if !ids.contains(id) {
                ids.push(id.clone());
            }
        }
    }
}

impl Records<Pod> for Index {
    fn put(&mut self, pod: &Pod, dirty: &mut Dirty) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let id = self
            .names
            .id(namespace, pod.metadata.name.as_deref().unwrap_or_default());
        let facts = self.read_pod(&id, pod);
        if self.pods.get(&id).is_some_and(|known| known.facts == facts) {
            return;
        }
        Records::<Pod>::remove(self, &id, dirty);
        let label = |key: &str| find(&facts.labels, key);
        let servers = self
            .servers
            .opaque_ports(Workload::Pod, &id.namespace, label);
        let labels = self.pod_labels(&id, &facts);
        self.list_pod(&id, &facts);
        let pod = PodRecord {
            facts,
            servers,
            labels,
        };
        dirty.addresses.extend(pod.addresses());
        self.pods
            .by_id
            .entry(id.namespace.clone())
            .or_default()
            .insert(id.name.clone(), pod);
        self.slices.services_with(&Target::Pod(id), dirty);
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        let Some(pods) = self.pods.by_id.get_mut(&id.namespace) else {
            return;
        };
        let Some(pod) = pods.remove(&id.name) else {
            return;
        };
        if pods.is_empty() {
            self.pods.by_id.remove(&id.namespace);
        }
        if let Some(owner) = &pod.facts.owner {
            let key = owner_key(id, owner);
            if let Some(owned) = self.pods.by_owner.get_mut(&key) {
                owned.retain(|name| *name != id.name);
                if owned.is_empty() {
                    self.pods.by_owner.remove(&key);
                }
            }
        }
        for ip in &pod.facts.ips {
            unlist(&mut self.pods.by_ip, ip, id);
        }
        for key in host_ports(&pod.facts) {
            unlist(&mut self.pods.by_host_port, &key, id);
        }
        dirty.addresses.extend(pod.addresses());
        self.slices.services_with(&Target::Pod(id.clone()), dirty);
    }

    fn known(&self) -> Vec<ObjectId> {
        let namespaces = self.pods.by_id.iter();
        namespaces
            .flat_map(|(namespace, pods)| {
                pods.keys().map(|name| ObjectId {
                    namespace: namespace.clone(),
                    name: name.clone(),
                })
            })
            .collect()
    }
}

fn owner_key(id: &ObjectId, owner: &Owner) -> (Name, ObjectId) {
    (
        owner.kind.clone(),
        ObjectId {
            namespace: id.namespace.clone(),
            name: owner.name.clone(),
        },
    )
}

fn host_ports(facts: &Facts) -> impl Iterator<Item = (IpAddr, u16)> {
    let ports = facts.ports.iter().filter_map(|port| port.host);
    ports.flat_map(|port| facts.host_ips.iter().map(move |ip| (*ip, port)))
}

/// Listen ports of the injected proxy, which is an init container where sidecars are native.
fn proxy_ports(pod: &Pod) -> ProxyPorts {
    let Some(proxy) = pod
        .all_containers()
        .find(|it| it.name == kind::PROXY_CONTAINER)
    else {
        return ProxyPorts::default();
    };
    let port = |name: &str| {
        let value = proxy
            .env
            .iter()
            .find(|var| var.name == name)?
            .value
            .as_deref()?;
        value.parse::<SocketAddr>().ok().map(|addr| addr.port())
    };
    let [inbound, admin, control] = kind::PROXY_LISTEN_ENV.map(port);
    ProxyPorts {
        inbound,
        admin,
        control,
    }
}

pub(super) fn find<'a>(labels: &'a [(Name, Name)], key: &str) -> Option<&'a str> {
    // Read from a sorted map, so still in order.
    let at = labels
        .binary_search_by(|(name, _)| (**name).cmp(key))
        .ok()?;
    Some(&labels[at].1)
}

/// Takes an id out of a reverse table, and the entry with the last id.
pub(super) fn unlist<K: Eq + Hash, const N: usize>(
    table: &mut AHashMap<K, SmallVec<[ObjectId; N]>>,
    key: &K,
    id: &ObjectId,
) where
    [ObjectId; N]: smallvec::Array<Item = ObjectId>,
{
    if let Some(ids) = table.get_mut(key) {
        ids.retain(|listed| listed != id);
        if ids.is_empty() {
            table.remove(key);
        }
    }
}

fn dedup<const N: usize>(ips: &mut SmallVec<[IpAddr; N]>)
where
    [IpAddr; N]: smallvec::Array<Item = IpAddr>,
{
    let mut at = 0;
    while at < ips.len() {
        if ips[..at].contains(&ips[at]) {
            ips.remove(at);
        } else {
            at += 1;
        }
    }
}
