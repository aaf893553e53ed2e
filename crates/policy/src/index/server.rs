//! Servers, read: which ports of which workloads, and how they are spoken to.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use linkerd_k8s::{Key, Selector, intern::Names, policy as k8s};
use std::{collections::BTreeMap, sync::Arc};

use super::{
    Created, Dirty, Store, Stored, Table,
    workload::{Workload, WorkloadKind},
};
use crate::{cluster::Cluster, inbound::DefaultPolicy};

/// A Server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    pub(crate) created: Created,
    pub(crate) labels: BTreeMap<String, String>,
    kind: WorkloadKind,
    selector: Selector,
    port: Port,
    pub(crate) protocol: ServerProtocol,
    pub(crate) access: Option<DefaultPolicy>,
}

/// Which port of a workload: by number, or by the name the workload gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Number(u16),
    Name(String),
}

/// How a port is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerProtocol {
    Detect,
    Http1,
    Http2,
    Grpc,
    Opaque,
    Tls,
}

impl Server {
    /// Whether the Server is for the port of the workload.
    pub(crate) fn selects(&self, kind: WorkloadKind, workload: &Workload, port: u16) -> bool {
        let port_matches = match &self.port {
            Port::Number(number) => *number == port,
            Port::Name(name) => workload.has_port_named(name, port),
        };
        self.kind == kind && port_matches && self.selector.matches_with(|key| workload.label(key))
    }
}

impl Port {
    /// Reads the field of the resource.
    pub(crate) fn parse(port: &IntOrString) -> Result<Self, String> {
        match port {
            IntOrString::Int(number) => match u16::try_from(*number) {
                Ok(number) if number > 0 => Ok(Self::Number(number)),
                _ => Err(format!("invalid port {number}: not between 1 and 65535")),
            },
            IntOrString::String(name) if is_port_name(name) => Ok(Self::Name(name.clone())),
            IntOrString::String(name) => Err(format!(
                "invalid port {name:?}: a name has lower case letters, digits and dashes"
            )),
        }
    }
}

/// Whether a workload could call a port that.
fn is_port_name(name: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(inside)
        && name.contains(|c: char| c.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
}

impl ServerProtocol {
    /// Reads the field of the resource.
    pub(crate) fn parse(name: Option<&str>) -> Result<Self, String> {
        Ok(match name {
            None | Some("unknown") => Self::Detect,
            Some("HTTP/1") => Self::Http1,
            Some("HTTP/2") => Self::Http2,
            Some("gRPC") => Self::Grpc,
            Some("opaque") => Self::Opaque,
            Some("TLS") => Self::Tls,
            Some(other) => return Err(format!("unknown proxyProtocol {other:?}")),
        })
    }
}

impl Stored for k8s::Server {
    type Model = Server;

    fn read(object: &Arc<Self>, _: &Cluster, _: &mut Names) -> Result<Option<Server>, String> {
        let spec = &object.spec;
        let (kind, selector) = match (&spec.pod_selector, &spec.external_workload_selector) {
            (Some(selector), None) => (WorkloadKind::Pod, selector),
            (None, Some(selector)) => (WorkloadKind::External, selector),
            _ => {
                return Err(
                    "exactly one of podSelector and externalWorkloadSelector must be set"
                        .to_owned(),
                );
            }
        };
        Ok(Some(Server {
            created: Created::of(&object.metadata),
            labels: object.metadata.labels.clone().unwrap_or_default(),
            kind,
            selector: Selector::compile(selector).map_err(|error| error.to_string())?,
            port: Port::parse(&spec.port)?,
            protocol: ServerProtocol::parse(spec.proxy_protocol.as_deref())?,
            access: spec
                .access_policy
                .as_deref()
                .and_then(|name| name.parse().ok()),
        }))
    }

    fn table(store: &mut Store) -> &mut Table<Server> {
        &mut store.servers
    }

    fn changed(
        _: &mut Store,
        key: &Key,
        _: Option<&Server>,
        _: Option<&Server>,
        dirty: &mut Dirty,
    ) {
        dirty.namespaces.insert(key.namespace.clone());
        dirty.status = true;
    }
}
