//! Policy as plain values: what the control plane decides and a proxy enforces.
//!
//! This file holds what both directions share (where a policy comes from, how requests are
//! matched, what filters do to them); [`inbound`] says who may connect, [`outbound`] where traffic
//! goes.

pub mod inbound;
pub mod outbound;

/// Group of the resources this mesh defines for policy.
pub const POLICY_GROUP: &str = "policy.linkerd.io";
/// Group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// How the wire names the Kubernetes core group.
pub const CORE_GROUP: &str = "core";

/// Where a piece of policy comes from: a default the control plane made up, or a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// An implicit configuration, known by its name.
    Default(&'static str),
    /// A resource of the cluster.
    Resource(ResourceRef),
}

/// A resource as a policy names it. Fields that are not part of the name are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceRef {
    /// API group; `core` for core resources.
    pub group: String,
    /// Kind, spelt as the wire expects it.
    pub kind: String,
    /// Namespace, empty where the wire carries none.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Named part of the resource, such as a route rule.
    pub section: String,
    /// Port of the resource.
    pub port: Option<u16>,
}

/// Matches the host a request is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostMatch {
    /// The whole name.
    Exact(String),
    /// `*.example.com`, held as `[com, example]`.
    Suffix(Vec<String>),
}

/// Matches a request path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// Leading path segments.
    Prefix(String),
    /// A regular expression over the whole path.
    Regex(String),
}

/// Matches a header or query value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueMatch {
    /// The whole value.
    Exact(String),
    /// A regular expression.
    Regex(String),
}

/// A header or query parameter with its expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMatch {
    /// Header or parameter name.
    pub name: String,
    /// Expected value.
    pub value: ValueMatch,
}

/// Conditions on an HTTP request, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpMatch {
    /// Path condition.
    pub path: Option<PathMatch>,
    /// Header conditions.
    pub headers: Vec<NamedMatch>,
    /// Query conditions.
    pub query: Vec<NamedMatch>,
    /// Request method.
    pub method: Option<String>,
}

/// Conditions on a gRPC call, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrpcMatch {
    /// Fully qualified service; any when unset.
    pub service: Option<String>,
    /// Method; any when unset.
    pub method: Option<String>,
    /// Metadata conditions.
    pub headers: Vec<NamedMatch>,
}

/// Changes to a set of headers: additions, then replacements, then removals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderModifier {
    /// Values added next to existing ones.
    pub add: Vec<(String, String)>,
    /// Values that replace existing ones.
    pub set: Vec<(String, String)>,
    /// Names removed.
    pub remove: Vec<String>,
}

/// How a redirect changes the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathModifier {
    /// The whole path is replaced.
    Full(String),
    /// The matched prefix is replaced.
    Prefix(String),
}

/// Answers a request with a redirect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// Scheme of the location.
    pub scheme: Option<String>,
    /// Host of the location.
    pub host: Option<String>,
    /// Path of the location.
    pub path: Option<PathModifier>,
    /// Port of the location.
    pub port: Option<u16>,
    /// Status code; the proxy's default when unset.
    pub status: Option<u16>,
}

/// What happens to an HTTP request on its route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpFilter {
    /// The request fails.
    Fail {
        /// Status code of the response.
        status: u16,
        /// Reason given to the client.
        message: String,
    },
    /// Request headers change.
    RequestHeaders(HeaderModifier),
    /// Response headers change.
    ResponseHeaders(HeaderModifier),
    /// The request is redirected.
    Redirect(Redirect),
}

/// What happens to a gRPC call on its route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcFilter {
    /// The call fails.
    Fail {
        /// gRPC status code.
        code: u32,
        /// Reason given to the client.
        message: String,
    },
    /// Request metadata changes.
    RequestHeaders(HeaderModifier),
}

/// What happens to a TLS or TCP connection on its route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionFilter {
    /// The configuration cannot be used.
    Invalid(String),
    /// The connection is refused by policy.
    Forbidden,
}

impl Origin {
    /// The resource, when there is one.
    pub fn resource(&self) -> Option<&ResourceRef> {
        match self {
            Origin::Default(_) => None,
            Origin::Resource(resource) => Some(resource),
        }
    }
}

impl HostMatch {
    /// Reads `name` or `*.name`.
    pub fn parse(host: &str) -> Self {
        match host.strip_prefix("*.") {
            Some(suffix) => Self::Suffix(suffix.split('.').rev().map(str::to_owned).collect()),
            None => Self::Exact(host.to_owned()),
        }
    }
}

impl HttpMatch {
    /// Matches every request.
    pub fn any() -> Self {
        Self {
            path: Some(PathMatch::Prefix("/".to_owned())),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_names_or_suffixes() {
        let cases = [
            (
                "exact name",
                "a.example.com",
                HostMatch::Exact("a.example.com".into()),
            ),
            (
                "wildcard",
                "*.example.com",
                HostMatch::Suffix(vec!["com".into(), "example".into()]),
            ),
            (
                "star inside is literal",
                "a.*.com",
                HostMatch::Exact("a.*.com".into()),
            ),
        ];
        for (name, host, expected) in cases {
            assert_eq!(HostMatch::parse(host), expected, "{name}");
        }
    }
}
