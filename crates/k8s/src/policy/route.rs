//! Routes: HTTPRoute of both groups, GRPCRoute, TLSRoute and TCPRoute as one generic object.
//!
//! The five kinds have one shape (parents, hosts, rules with backends) and differ in what a rule
//! matches and does. Filter and match types are strings and fields we do not know are kept by
//! name, so that a route written for a newer API is read, and only the rule that uses the new part
//! is affected.

use std::{borrow::Cow, collections::BTreeMap, fmt::Debug, marker::PhantomData};

use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::Resource;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::object::or_default;

/// What makes one route kind differ from the others.
pub trait Kind: Clone + Debug + PartialEq + Send + Sync + 'static {
    const GROUP: &'static str;
    const VERSION: &'static str;
    const KIND: &'static str;
    const PLURAL: &'static str;
    /// What a rule holds.
    type Rule: Clone + Debug + Default + PartialEq + DeserializeOwned + Serialize + Send + Sync;
}

/// A route of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Route<K: Kind> {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec<K::Rule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    #[serde(skip)]
    kind: PhantomData<K>,
}

/// What a route says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound = "R: DeserializeOwned + Serialize")]
pub struct Spec<R> {
    #[serde(default, deserialize_with = "or_default")]
    pub parent_refs: Vec<ParentRef>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub hostnames: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub rules: Vec<R>,
}

/// What a route attaches to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// Where matching traffic goes. `F` is the kind's filter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound = "F: DeserializeOwned + Serialize")]
pub struct BackendRef<F = Never> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub filters: Vec<F>,
}

/// Stands where a kind has no filters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Never {}

/// A rule over HTTP requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub matches: Vec<HttpMatch>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub filters: Vec<Filter>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub backend_refs: Vec<BackendRef<Filter>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// A rule over gRPC calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrpcRule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub matches: Vec<GrpcMatch>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub filters: Vec<Filter>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub backend_refs: Vec<BackendRef<Filter>>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// A rule over connections: it only says where they go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionRule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub backend_refs: Vec<BackendRef>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// Conditions on an HTTP request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpMatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub headers: Vec<NamedMatch>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub query_params: Vec<NamedMatch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// Conditions on a gRPC call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcMatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<MethodMatch>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub headers: Vec<NamedMatch>,
}

/// A path condition; `PathPrefix` of `/` when fields are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMatch {
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A header or query condition; `Exact` unless it says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedMatch {
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    pub name: String,
    #[serde(default)]
    pub value: String,
}

/// A gRPC service and method; `Exact` unless it says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodMatch {
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// A filter: its type says which of the other fields counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filter {
    #[serde(rename = "type")]
    pub type_: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_header_modifier: Option<HeaderModifier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_header_modifier: Option<HeaderModifier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_redirect: Option<Redirect>,
}

/// Changes to headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderModifier {
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub add: Vec<Header>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub set: Vec<Header>,
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub remove: Vec<String>,
}

/// A header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub name: String,
    pub value: String,
}

/// A redirect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Redirect {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathModifier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
}

/// How a redirect changes the path: its type says which of the other fields counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathModifier {
    #[serde(rename = "type")]
    pub type_: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_full_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_prefix_match: Option<String>,
}

/// Time limits of a rule, as Gateway API durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<String>,
}

/// What controllers found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    #[serde(default, deserialize_with = "or_default")]
    pub parents: Vec<ParentStatus>,
}

/// What one controller found out about one parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    pub parent_ref: ParentRef,
    pub controller_name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $marker:ident, $alias:ident, $rule:ty, $group:literal / $version:literal, $kind:literal, $plural:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $marker {}

        impl Kind for $marker {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
            type Rule = $rule;
        }

        $(#[$doc])*
        pub type $alias = Route<$marker>;
    )*};
}

kinds! {
    /// HTTPRoute of the Gateway API.
    GatewayHttp, HttpRoute, HttpRule, "gateway.networking.k8s.io" / "v1", "HTTPRoute", "httproutes";
    /// HTTPRoute of this mesh.
    PolicyHttp, PolicyHttpRoute, HttpRule, "policy.linkerd.io" / "v1beta3", "HTTPRoute", "httproutes";
    /// GRPCRoute of the Gateway API.
    GatewayGrpc, GrpcRoute, GrpcRule, "gateway.networking.k8s.io" / "v1", "GRPCRoute", "grpcroutes";
    /// TLSRoute of the Gateway API.
    GatewayTls, TlsRoute, ConnectionRule, "gateway.networking.k8s.io" / "v1alpha2", "TLSRoute", "tlsroutes";
    /// TCPRoute of the Gateway API.
    GatewayTcp, TcpRoute, ConnectionRule, "gateway.networking.k8s.io" / "v1alpha2", "TCPRoute", "tcproutes";
}

impl<R> Default for Spec<R> {
    fn default() -> Self {
        Self {
            parent_refs: Vec::new(),
            hostnames: Vec::new(),
            rules: Vec::new(),
        }
    }
}

impl<K: Kind> Resource for Route<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        K::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        K::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_of_a_newer_api_are_read() {
        let route: HttpRoute = serde_json::from_value(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "parentRefs": [{"kind": "Service", "group": "", "name": "web", "port": 80}],
                "useDefaultGateways": "All",
                "rules": [{
                    "retry": {"attempts": 2},
                    "filters": [{"type": "CORS", "cors": {"allowOrigins": ["*"]}}],
                    "matches": [{"path": {"type": "SomethingNew", "value": "/"}}],
                }],
            },
        }))
        .expect("readable");
        let rule = &route.spec.rules[0];
        assert_eq!(rule.filters[0].type_, "CORS");
        assert!(rule.unknown.contains_key("retry"));
    }

    /// What the Gateway API crate writes is what we read.
    #[test]
    fn reads_what_the_gateway_api_crate_writes() {
        let spec = json!({
            "hostnames": ["*.example.com"],
            "parentRefs": [{"kind": "Service", "group": "", "name": "web", "namespace": "shop", "port": 80}],
            "rules": [{
                "name": "main",
                "matches": [{
                    "path": {"type": "Exact", "value": "/a"},
                    "headers": [{"type": "RegularExpression", "name": "x", "value": "a.*"}],
                    "queryParams": [{"type": "Exact", "name": "q", "value": "1"}],
                    "method": "GET",
                }],
                "filters": [
                    {"type": "RequestHeaderModifier", "requestHeaderModifier": {"add": [{"name": "a", "value": "b"}]}},
                    {"type": "RequestRedirect", "requestRedirect": {
                        "scheme": "https", "statusCode": 301,
                        "path": {"type": "ReplaceFullPath", "replaceFullPath": "/b"},
                    }},
                ],
                "backendRefs": [{"name": "web", "port": 80, "weight": 3}],
                "timeouts": {"request": "10s", "backendRequest": "1s"},
            }],
        });
        let theirs: gateway_api::apis::standard::httproutes::HttpRouteSpec =
            serde_json::from_value(spec.clone()).expect("the crate reads it");
        let written = serde_json::to_value(theirs).expect("writes");
        let ours: Spec<HttpRule> = serde_json::from_value(written).expect("we read it");
        assert!(ours.rules[0].unknown.is_empty());
        let direct: Spec<HttpRule> = serde_json::from_value(spec).expect("we read it");
        assert_eq!(ours, direct);
    }
}
