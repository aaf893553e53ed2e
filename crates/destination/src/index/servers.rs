//! Servers that say a port is opaque. A Server reaches only workloads of its own namespace.

use std::collections::BTreeMap;

use ahash::AHashMap;
use linkerd_k8s::{IntOrString, Selector, policy::Server};
use smallvec::SmallVec;

use super::{Dirty, Index, Records};
use crate::intern::{Name, ObjectId};

#[derive(Debug, Default)]
pub(crate) struct Servers {
    /// By namespace, then by name. Servers that make nothing opaque are not kept.
    opaque: AHashMap<Name, BTreeMap<Name, ServerRecord>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ServerRecord {
    pods: Option<Selector>,
    externals: Option<Selector>,
    port: Port,
}

/// A port as a Server writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Port {
    Number(u16),
    Named(Name),
}

/// The ports of one workload that Servers make opaque.
pub(crate) type OpaquePorts = SmallVec<[Port; 1]>;

/// Which workloads are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Workload {
    Pod,
    External,
}

impl Servers {
    /// What the Servers of the namespace say about a workload with these labels.
    pub(super) fn opaque_ports<'a>(
        &self,
        workload: Workload,
        namespace: &str,
        label: impl Fn(&str) -> Option<&'a str>,
    ) -> OpaquePorts {
        let servers = self
            .opaque
            .get(namespace)
            .into_iter()
            .flat_map(BTreeMap::values);
        let mut ports: OpaquePorts = servers
            .filter(|server| {
                let selector = match workload {
                    Workload::Pod => &server.pods,
                    Workload::External => &server.externals,
                };
                selector
                    .as_ref()
                    .is_some_and(|selector| selector.matches_with(&label))
            })
            .map(|server| server.port.clone())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

impl Index {
    fn read_server(&mut self, id: &ObjectId, server: &Server) -> Option<ServerRecord> {
        if server.spec.proxy_protocol.as_deref() != Some("opaque") {
            return None;
        }
        let compile = |selector: &Option<_>| {
            let compiled = selector.as_ref().map(Selector::compile);
            compiled.and_then(|compiled| {
                compiled
                    .inspect_err(|error| tracing::warn!(server = %id, %error, "Unusable selector"))
                    .ok()
            })
        };
        let port = match &server.spec.port {
            IntOrString::Int(number) => Port::Number(u16::try_from(*number).ok()?),
            IntOrString::String(name) => Port::Named(self.names.get(name)),
        };
        Some(ServerRecord {
            pods: compile(&server.spec.pod_selector),
            externals: compile(&server.spec.external_workload_selector),
            port,
        })
    }

    fn servers_changed(&mut self, namespace: &Name, dirty: &mut Dirty) {
        self.reconsider_pods(namespace, dirty);
        self.reconsider_externals(namespace, dirty);
    }
}

impl Records<Server> for Index {
    fn put(&mut self, server: &Server, dirty: &mut Dirty) {
        let meta = &server.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let id = self
            .names
            .id(namespace, meta.name.as_deref().unwrap_or_default());
        let Some(record) = self.read_server(&id, server) else {
            return Records::<Server>::remove(self, &id, dirty);
        };
        let servers = self.servers.opaque.entry(id.namespace.clone()).or_default();
        if servers.insert(id.name.clone(), record.clone()).as_ref() != Some(&record) {
            self.servers_changed(&id.namespace, dirty);
        }
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        let Some(servers) = self.servers.opaque.get_mut(&id.namespace) else {
            return;
        };
        if servers.remove(&id.name).is_none() {
            return;
        }
        if servers.is_empty() {
            self.servers.opaque.remove(&id.namespace);
        }
        self.servers_changed(&id.namespace, dirty);
    }

    fn known(&self) -> Vec<ObjectId> {
        let namespaces = self.servers.opaque.iter();
        namespaces
            .flat_map(|(namespace, servers)| {
                servers.keys().map(|name| ObjectId {
                    namespace: namespace.clone(),
                    name: name.clone(),
                })
            })
            .collect()
    }
}
