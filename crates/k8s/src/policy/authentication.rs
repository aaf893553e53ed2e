//! Authentications: how a client proves who or where it is.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{NamespacedRef, Network};

/// Clients with one of these mesh identities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "MeshTLSAuthentication",
    plural = "meshtlsauthentications",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct MeshTLSAuthenticationSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identities: Option<Vec<String>>,
    /// ServiceAccounts, or whole Namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_refs: Option<Vec<NamespacedRef>>,
}

/// Clients in one of these networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "NetworkAuthentication",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct NetworkAuthenticationSpec {
    pub networks: Vec<Network>,
}
