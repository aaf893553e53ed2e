//! Services, cut down to what discovery and policy read.

use std::collections::BTreeMap;

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1 as core,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use serde::{Deserialize, Serialize};

use crate::object::{or_default, stands_for};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Service {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    pub cluster_ips: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub ip_families: Vec<String>,
    pub internal_traffic_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ServicePort>,
    pub publish_not_ready_addresses: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    pub name: Option<String>,
    pub port: u16,
    pub protocol: Option<String>,
    pub app_protocol: Option<String>,
    pub target_port: Option<IntOrString>,
}

stands_for!(Service, core::Service, NamespaceResourceScope, metadata_only: false);

impl Service {
    pub fn is_external_name(&self) -> bool {
        self.spec.type_.as_deref() == Some("ExternalName")
    }

    pub fn is_headless(&self) -> bool {
        self.spec.cluster_ip.as_deref() == Some("None")
    }

    /// Addresses of the Service itself, without the marker for headless ones.
    pub fn cluster_ips(&self) -> impl Iterator<Item = std::net::IpAddr> {
        let single = self
            .spec
            .cluster_ip
            .iter()
            .filter(|_| self.spec.cluster_ips.is_empty());
        self.spec
            .cluster_ips
            .iter()
            .chain(single)
            .filter_map(|ip| ip.parse().ok())
    }
}
