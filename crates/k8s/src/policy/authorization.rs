//! Authorizations: which clients may use which Servers and routes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{LocalRef, NamespacedRef, Network};

/// Clients that satisfy every authentication may use the target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "AuthorizationPolicy",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationPolicySpec {
    /// A Server, a route, or the own namespace.
    pub target_ref: LocalRef,
    /// All must hold.
    pub required_authentication_refs: Vec<NamespacedRef>,
}

/// Clients that may use some Servers: the older form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1beta1",
    kind = "ServerAuthorization",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct ServerAuthorizationSpec {
    pub server: ServerRef,
    pub client: Client,
}

/// Servers by name or label; all of the namespace when neither is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerRef {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Which clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<Network>>,
    #[serde(default)]
    pub unauthenticated: bool,
    #[serde(default, rename = "meshTLS", skip_serializing_if = "Option::is_none")]
    pub mesh_tls: Option<MeshTls>,
}

/// Clients of the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshTls {
    #[serde(default, rename = "unauthenticatedTLS")]
    pub unauthenticated_tls: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identities: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_accounts: Option<Vec<ServiceAccountRef>>,
}

/// A ServiceAccount, in the own namespace unless it says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccountRef {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}
