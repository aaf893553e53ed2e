//! Rate limits of a Server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{LocalRef, NamespacedRef};

/// What an HTTPLocalRateLimitPolicy says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "HTTPLocalRateLimitPolicy",
    plural = "httplocalratelimitpolicies",
    namespaced,
    status = "HTTPLocalRateLimitPolicyStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct HTTPLocalRateLimitPolicySpec {
    /// A Server.
    pub target_ref: LocalRef,
    /// All clients together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Limit>,
    /// Each client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Limit>,
    /// Clients with a limit of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Vec<Override>>,
}

/// Requests per second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    pub requests_per_second: u32,
}

/// A limit shared by some clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    pub requests_per_second: u32,
    /// ServiceAccounts.
    pub client_refs: Vec<NamespacedRef>,
}

/// What controllers found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HTTPLocalRateLimitPolicyStatus {
    #[serde(default)]
    pub conditions: Vec<Condition>,
    #[serde(default)]
    pub target_ref: LocalRef,
}
