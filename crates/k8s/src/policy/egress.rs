//! Egress networks: addresses outside the cluster, and whether traffic may go there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::Network;

/// What an EgressNetwork says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "EgressNetwork",
    namespaced,
    status = "EgressNetworkStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct EgressNetworkSpec {
    /// Everything outside the cluster when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<Network>>,
    pub traffic_policy: TrafficPolicy,
}

/// What happens to traffic no route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficPolicy {
    Allow,
    Deny,
}

/// What controllers found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EgressNetworkStatus {
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
