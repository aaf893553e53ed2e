//! Workloads with a proxy: pods of the mesh and external workloads.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use linkerd_k8s::{ExternalWorkload, Key, Pod, PortSet, labels};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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

/// A workload, shared with whoever else holds the object.
#[derive(Clone, Debug)]
pub(crate) enum Workload {
    Pod(Arc<Pod>),
    External(Arc<ExternalWorkload>),
}

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

impl Workload {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Pod(pod) => &pod.metadata,
            Self::External(workload) => &workload.metadata,
        }
    }

    pub(crate) fn labels(&self) -> &BTreeMap<String, String> {
        self.metadata().labels.as_ref().unwrap_or(&NO_LABELS)
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata()
            .annotations
            .as_ref()?
            .get(name)
            .map(String::as_str)
    }

    /// Ports that have the name. A pod may have several, an external workload has at most one.
    pub(crate) fn has_port_named(&self, name: &str, port: u16) -> bool {
        match self {
            Self::Pod(pod) => pod.container_ports().any(|declared| {
                declared.name.as_deref() == Some(name)
                    && declared.container_port == port
                    && is_tcp(declared.protocol.as_deref())
            }),
            Self::External(workload) => {
                let named = workload
                    .spec
                    .ports
                    .iter()
                    .flatten()
                    .find(|declared| declared.name.as_deref() == Some(name));
                named.is_some_and(|declared| declared.port == port)
            }
        }
    }

    /// The policy of a port no Server is for.
    pub(crate) fn default_policy(&self, port: u16, cluster: &Cluster) -> DefaultPolicy {
        let annotated = self.annotation(labels::DEFAULT_INBOUND_POLICY).and_then(|name| {
            name.parse().inspect_err(|error| tracing::warn!(%error, "Ignoring annotation {}", labels::DEFAULT_INBOUND_POLICY)).ok()
        });
        let policy: DefaultPolicy = annotated.unwrap_or(cluster.default_policy);
        if self
            .ports_annotation(labels::REQUIRE_IDENTITY_ON_INBOUND_PORTS)
            .contains(port)
        {
            return policy.authenticated();
        }
        policy
    }

    /// Whether a port no Server is for is opaque.
    pub(crate) fn is_opaque(&self, port: u16) -> bool {
        self.ports_annotation(labels::OPAQUE_PORTS).contains(port)
    }

    fn ports_annotation(&self, name: &str) -> PortSet {
        let Some(list) = self.annotation(name) else {
            return PortSet::default();
        };
        let named = |entry: &str| match self {
            Self::Pod(pod) => pod
                .container_ports()
                .filter(|declared| declared.name.as_deref() == Some(entry))
                .map(|declared| declared.container_port)
                .collect::<Vec<_>>(),
            Self::External(_) => Vec::new(),
        };
        PortSet::parse_named(list, named, |entry| {
            tracing::warn!(entry, "Ignoring a port of annotation {name}")
        })
    }

    /// Paths the kubelet probes on the port.
    pub(crate) fn probe_paths(&self, port: u16) -> BTreeSet<String> {
        let Self::Pod(pod) = self else {
            return BTreeSet::new();
        };
        let mut paths = BTreeSet::new();
        for container in pod.all_containers() {
            let probes = [
                &container.liveness_probe,
                &container.readiness_probe,
                &container.startup_probe,
            ];
            for get in probes
                .into_iter()
                .flatten()
                .filter_map(|probe| probe.http_get.as_ref())
            {
                let probed = match &get.port {
                    IntOrString::Int(number) => u16::try_from(*number).ok(),
                    IntOrString::String(name) => container
                        .ports
                        .iter()
                        .find(|declared| {
                            declared.name.as_deref() == Some(name)
                                && is_tcp(declared.protocol.as_deref())
                        })
                        .map(|declared| declared.container_port),
                };
                if probed == Some(port) {
                    let path = get.path.as_deref().unwrap_or("/");
                    let path = path.split_once('?').map_or(path, |(path, _)| path);
                    paths.insert(if path.is_empty() {
                        "/".to_owned()
                    } else {
                        path.to_owned()
                    });
                }
            }
        }
        paths
    }
}

fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

/// Equal if nothing that policy reads differs.
impl PartialEq for Workload {
    fn eq(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.metadata(), other.metadata());
        let same_spec = match (self, other) {
            (Self::Pod(a), Self::Pod(b)) => a.spec == b.spec,
            (Self::External(a), Self::External(b)) => a.spec == b.spec,
            _ => false,
        };
        mine.labels == theirs.labels && mine.annotations == theirs.annotations && same_spec
    }
}

impl Stored for Pod {
    type Model = Workload;

    fn read(object: &Arc<Self>, _: &Cluster) -> Result<Option<Workload>, String> {
        let meshed = object
            .metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(labels::CONTROL_PLANE_NS));
        Ok(meshed.then(|| Workload::Pod(object.clone())))
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

    fn read(object: &Arc<Self>, _: &Cluster) -> Result<Option<Workload>, String> {
        Ok(Some(Workload::External(object.clone())))
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
