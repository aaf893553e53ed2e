//! Pods, cut down to what discovery and policy read: addresses, ports, owner, probes and the
//! listen addresses of the injected proxy.

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1 as core,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use serde::{Deserialize, Deserializer, Serialize};

use crate::object::{or_default, stands_for};

/// Name of the injected container.
pub const PROXY_CONTAINER: &str = "linkerd-proxy";
/// The only environment variables of it that we keep.
pub const PROXY_LISTEN_ENV: [&str; 3] = [
    "LINKERD2_PROXY_INBOUND_LISTEN_ADDR",
    "LINKERD2_PROXY_ADMIN_LISTEN_ADDR",
    "LINKERD2_PROXY_CONTROL_LISTEN_ADDR",
];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    pub spec: PodSpec,
    #[serde(default, deserialize_with = "or_default")]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
    pub node_name: Option<String>,
    pub service_account_name: Option<String>,
    pub host_network: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ContainerPort>,
    /// Only what [`PROXY_LISTEN_ENV`] names.
    #[serde(deserialize_with = "listen_env")]
    pub env: Vec<EnvVar>,
    pub liveness_probe: Option<Probe>,
    pub readiness_probe: Option<Probe>,
    pub startup_probe: Option<Probe>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    pub container_port: u16,
    pub host_port: Option<u16>,
    pub name: Option<String>,
    pub protocol: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: String,
    pub value: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    pub http_get: Option<HttpGet>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpGet {
    pub path: Option<String>,
    pub port: IntOrString,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(rename = "podIPs", deserialize_with = "or_default")]
    pub pod_ips: Vec<PodIp>,
    #[serde(rename = "hostIP")]
    pub host_ip: Option<String>,
    #[serde(rename = "hostIPs", deserialize_with = "or_default")]
    pub host_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodIp {
    pub ip: String,
}

stands_for!(Pod, core::Pod, NamespaceResourceScope, metadata_only: false);

impl Pod {
    /// Every container that may declare ports: native sidecars live among the init containers.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec
            .init_containers
            .iter()
            .chain(&self.spec.containers)
    }

    /// Declared ports of every container.
    pub fn container_ports(&self) -> impl Iterator<Item = &ContainerPort> {
        self.all_containers().flat_map(|container| &container.ports)
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }
}

fn listen_env<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EnvVar>, D::Error> {
    let mut env: Vec<EnvVar> = or_default(deserializer)?;
    env.retain(|var| PROXY_LISTEN_ENV.contains(&var.name.as_str()));
    env.shrink_to_fit();
    Ok(env)
}
