//! The policy kinds: who may connect (Servers, authorizations, authentications, rate limits) and
//! where traffic goes (routes of both groups, egress networks).
//!
//! Values an enum of the API may gain later (protocols, filter types, match types) are kept as
//! strings here, so that an object with a new value can still be read; the policy index decides
//! what it understands. The definitions the charts install are in [`crds`].

mod authentication;
mod authorization;
mod crds;
mod egress;
mod rate_limit;
pub mod route;
mod schema;
mod server;

use serde::{Deserialize, Serialize};

use crate::Watched;

pub use self::{
    authentication::{
        MeshTLSAuthentication, MeshTLSAuthenticationSpec, NetworkAuthentication,
        NetworkAuthenticationSpec,
    },
    authorization::{
        AuthorizationPolicy, AuthorizationPolicySpec, Client, MeshTls, ServerAuthorization,
        ServerAuthorizationSpec, ServerRef, ServiceAccountRef,
    },
    crds::crds,
    egress::{EgressNetwork, EgressNetworkSpec, EgressNetworkStatus, TrafficPolicy},
    rate_limit::{
        HTTPLocalRateLimitPolicy, HTTPLocalRateLimitPolicySpec, HTTPLocalRateLimitPolicyStatus,
        Limit, Override,
    },
    route::{GrpcRoute, HttpRoute, PolicyHttpRoute, TcpRoute, TlsRoute},
    server::{Server, ServerSpec},
};

/// Names an object in the namespace of the one that refers to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRef {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    pub kind: String,
    pub name: String,
}

/// Names an object, in the namespace of the one that refers to it unless it says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespacedRef {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    pub kind: String,
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A network and the parts of it that do not count. Addresses without a prefix length are hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    pub cidr: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub except: Option<Vec<String>>,
}

/// Whether a reference is to the kind. A group left out is the core group; letter case does not
/// count.
fn names(group: Option<&str>, kind: &str, wanted_group: &str, wanted_kind: &str) -> bool {
    let core = |group: &str| group.is_empty() || group.eq_ignore_ascii_case("core");
    let group = group.unwrap_or_default();
    let same = group.eq_ignore_ascii_case(wanted_group) || (core(group) && core(wanted_group));
    same && kind.eq_ignore_ascii_case(wanted_kind)
}

macro_rules! watched {
    ($($kind:ty),+ $(,)?) => { $(impl Watched for $kind {})+ };
}

watched! {
    Server,
    ServerAuthorization,
    AuthorizationPolicy,
    MeshTLSAuthentication,
    NetworkAuthentication,
    HTTPLocalRateLimitPolicy,
    EgressNetwork,
}

/// Clusters may lack the Gateway API, or some of its kinds.
impl<K: route::Kind> Watched for route::Route<K> {
    const OPTIONAL: bool = true;
}

impl LocalRef {
    /// Whether the reference is to this kind.
    pub fn targets(&self, group: &str, kind: &str) -> bool {
        names(self.group.as_deref(), &self.kind, group, kind)
    }
}

impl NamespacedRef {
    /// Whether the reference is to this kind.
    pub fn targets(&self, group: &str, kind: &str) -> bool {
        names(self.group.as_deref(), &self.kind, group, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_ignore_case_and_know_the_core_group() {
        let reference = |group: Option<&str>, kind: &str| LocalRef {
            group: group.map(str::to_owned),
            kind: kind.to_owned(),
            name: "x".to_owned(),
        };
        for (name, reference, group, kind, expected) in [
            (
                "same",
                reference(Some("policy.linkerd.io"), "Server"),
                "policy.linkerd.io",
                "Server",
                true,
            ),
            (
                "case",
                reference(Some("POLICY.linkerd.io"), "server"),
                "policy.linkerd.io",
                "Server",
                true,
            ),
            (
                "core unset",
                reference(None, "Namespace"),
                "",
                "Namespace",
                true,
            ),
            (
                "core spelt",
                reference(Some("core"), "Namespace"),
                "",
                "Namespace",
                true,
            ),
            (
                "core empty",
                reference(Some(""), "Namespace"),
                "core",
                "Namespace",
                true,
            ),
            (
                "other group",
                reference(None, "Server"),
                "policy.linkerd.io",
                "Server",
                false,
            ),
            (
                "other kind",
                reference(Some("policy.linkerd.io"), "Pod"),
                "policy.linkerd.io",
                "Server",
                false,
            ),
        ] {
            assert_eq!(reference.targets(group, kind), expected, "{name}");
        }
    }
}
