//! Servers: a port of some workloads, and how it is spoken to.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// What a Server says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1beta3",
    kind = "Server",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ServerSpec {
    /// Selects pods; exactly one of the two selectors is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// Selects external workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_workload_selector: Option<LabelSelector>,
    /// Number or name.
    pub port: IntOrString,
    /// `unknown` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<String>,
    /// Who may connect without any authorization of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_policy: Option<String>,
}
