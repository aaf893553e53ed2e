//! Workloads with a proxy: pods of the mesh and external workloads.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use linkerd_k8s::{
    ExternalWorkload, Key, Pod, PortSet,
    intern::{Name, Names},
    labels,
};
use std::{collections::BTreeSet, sync::Arc};

use super::{Dirty, Store, Stored, Table};
use crate::{cluster::Cluster, inbound::DefaultPolicy};

/// Names a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadId {
    /// Namespace. First, so that a namespace's workloads are neighbours.
    pub namespace: String,
    /// What it is.
    pub kind: WorkloadKind,
    /// Name.
    pub name: String,
}

/// What a workload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    /// A pod.
    Pod,
    /// An ExternalWorkload.
    External,
}

/// What policy reads of a workload. There are many of them, so that it is kept small.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Workload {
    /// Sorted by key.
    labels: Box<[(Name, Name)]>,
    /// Declared TCP ports that have a name. An external workload has a name only once.
    ports: Box<[(Name, u16)]>,
    /// What the annotation says about ports no Server is for.
    default_policy: Option<DefaultPolicy>,
    require_identity: PortSet,
    opaque: PortSet,
    /// Ports and paths the kubelet probes, sorted.
    probes: Box<[(u16, Name)]>,
}

impl Workload {
    fn read(
        meta: &ObjectMeta,
        ports: Box<[(Name, u16)]>,
        probes: Box<[(u16, Name)]>,
        names: &mut Names,
    ) -> Self {
        let annotation = |name: &str| meta.annotations.as_ref()?.get(name).map(String::as_str);
        let default_policy = annotation(labels::DEFAULT_INBOUND_POLICY).and_then(|name| {
            name.parse()
                .inspect_err(|error| {
                    tracing::warn!(%error, "Ignoring annotation {}", labels::DEFAULT_INBOUND_POLICY);
                })
                .ok()
        });
        // Numbers and ranges; a list that has anything else in it says nothing.
        let listed = |name: &'static str| {
            let ports = PortSet::parse(annotation(name).unwrap_or_default());
            ports.unwrap_or_else(|error| {
                tracing::warn!(%error, "Ignoring annotation {name}");
                PortSet::default()
            })
        };
        Self {
            require_identity: listed(labels::REQUIRE_IDENTITY_ON_INBOUND_PORTS),
            opaque: listed(labels::OPAQUE_PORTS),
            default_policy,
            labels: meta
                .labels
                .iter()
                .flatten()
                .map(|(key, value)| (names.get(key), names.get(value)))
                .collect(),
            ports,
            probes,
        }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(name, _)| (**name).cmp(key));
        at.ok().map(|at| &*self.labels[at].1)
    }

    /// Whether the port has the name. Several ports of a pod may.
    pub(crate) fn has_port_named(&self, name: &str, port: u16) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|(named, number)| **named == *name && *number == port)
    }

    /// The policy of a port no Server is for.
    pub(crate) fn default_policy(&self, port: u16, cluster: &Cluster) -> DefaultPolicy {
        let policy = self.default_policy.unwrap_or(cluster.default_policy);
        if self.require_identity.contains(port) {
            return policy.authenticated();
        }
        policy
    }

    /// Whether a port no Server is for is opaque.
    pub(crate) fn is_opaque(&self, port: u16) -> bool {
        self.opaque.contains(port)
    }

    /// Paths the kubelet probes on the port.
    pub(crate) fn probe_paths(&self, port: u16) -> impl Iterator<Item = &str> {
        let probes = self
            .probes
            .iter()
            .filter(move |(probed, _)| *probed == port);
        probes.map(|(_, path)| &**path)
    }
}

/// Ports and paths of a pod that the kubelet asks over HTTP.
fn probes(pod: &Pod, names: &mut Names) -> Box<[(u16, Name)]> {
    let mut found = BTreeSet::new();
    for container in pod.all_containers() {
        let probes = [
            &container.liveness_probe,
            &container.readiness_probe,
            &container.startup_probe,
        ];
        let probes = probes.into_iter().flatten();
        for get in probes.filter_map(|probe| probe.http_get.as_ref()) {
            let port = match &get.port {
                IntOrString::Int(number) => u16::try_from(*number).ok(),
                IntOrString::String(name) => container
                    .ports
                    .iter()
                    .find(|port| {
                        port.name.as_deref() == Some(name) && is_tcp(port.protocol.as_deref())
                    })
                    .map(|port| port.container_port),
            };
            let path = get.path.as_deref().unwrap_or("/");
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            let path = if path.is_empty() { "/" } else { path };
            found.extend(port.map(|port| (port, names.get(path))));
        }
    }
    found.into_iter().collect()
}

fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

impl Stored for Pod {
    type Model = Workload;

    fn read(
        object: &Arc<Self>,
        _: &Cluster,
        names: &mut Names,
    ) -> Result<Option<Workload>, String> {
        let meshed = object
            .metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(labels::CONTROL_PLANE_NS));
        if !meshed {
            return Ok(None);
        }
        let tcp = object.container_ports();
        let tcp = tcp.filter(|port| is_tcp(port.protocol.as_deref()));
        let ports =
            tcp.filter_map(|port| Some((names.get(port.name.as_ref()?), port.container_port)));
        let ports = ports.collect();
        let probes = probes(object, names);
        Ok(Some(Workload::read(&object.metadata, ports, probes, names)))
    }

    fn table(store: &mut Store) -> &mut Table<Workload> {
        &mut store.pods
    }

    fn changed(
        _: &mut Store,
        key: &Key,
        _: Option<&Workload>,
        _: Option<&Workload>,
        dirty: &mut Dirty,
    ) {
        dirty
            .workloads
            .insert(WorkloadId::new(WorkloadKind::Pod, key));
    }
}

impl Stored for ExternalWorkload {
    type Model = Workload;

    fn read(
        object: &Arc<Self>,
        _: &Cluster,
        names: &mut Names,
    ) -> Result<Option<Workload>, String> {
        let mut ports: Vec<(Name, u16)> = Vec::new();
        for port in object.spec.ports.iter().flatten() {
            // A name stands for the first port that has it.
            if let Some(name) = port.name.as_ref().map(|name| names.get(name))
                && !ports.iter().any(|(known, _)| *known == name)
            {
                ports.push((name, port.port));
            }
        }
        let none = Box::default();
        Ok(Some(Workload::read(
            &object.metadata,
            ports.into(),
            none,
            names,
        )))
    }

    fn table(store: &mut Store) -> &mut Table<Workload> {
        &mut store.external_workloads
    }

    fn changed(
        _: &mut Store,
        key: &Key,
        _: Option<&Workload>,
        _: Option<&Workload>,
        dirty: &mut Dirty,
    ) {
        dirty
            .workloads
            .insert(WorkloadId::new(WorkloadKind::External, key));
    }
}

impl WorkloadId {
    fn new(kind: WorkloadKind, key: &Key) -> Self {
        Self {
            namespace: key.namespace.clone(),
            kind,
            name: key.name.clone(),
        }
    }

    /// Names a pod.
    pub fn pod(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            kind: WorkloadKind::Pod,
            name: name.into(),
        }
    }

    /// Names an external workload.
    pub fn external(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            kind: WorkloadKind::External,
            name: name.into(),
        }
    }
}
