//! Inbound policy of one port of one workload: its protocol, its routes, and who may use it.

use super::{GrpcFilter, GrpcMatch, HostMatch, HttpFilter, HttpMatch, Origin};
use ipnet::IpNet;
use std::time::Duration;

/// Policy of one inbound port.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// The Server resource, or the default policy in force.
    pub origin: Origin,
    /// How connections are handled.
    pub protocol: Protocol,
    /// Who may connect. The first that holds allows.
    pub authorizations: Vec<Authorization>,
}

/// How connections to a port are handled.
#[derive(Clone, Debug, PartialEq)]
pub enum Protocol {
    /// The proxy reads the first bytes and decides.
    Detect {
        /// How long detection may take.
        timeout: Duration,
        /// What happens if it is HTTP.
        http: Http,
    },
    /// HTTP/1 only.
    Http1(Http),
    /// HTTP/2 only.
    Http2(Http),
    /// gRPC only.
    Grpc {
        /// Routes in order of precedence.
        routes: Vec<GrpcRoute>,
    },
    /// Bytes are copied.
    Opaque,
    /// TLS that the application terminates.
    Tls,
}

/// HTTP handling of a port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Http {
    /// Routes in order of precedence.
    pub routes: Vec<HttpRoute>,
    /// Rate limit in force.
    pub rate_limit: Option<RateLimit>,
}

/// A route over requests of one protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Route<M, F> {
    /// The route resource, or a default.
    pub origin: Origin,
    /// Hosts the route is for; any when empty.
    pub hosts: Vec<HostMatch>,
    /// Authorizations in addition to the Server's.
    pub authorizations: Vec<Authorization>,
    /// What to match and do.
    pub rules: Vec<Rule<M, F>>,
}

/// One rule of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule<M, F> {
    /// Alternatives, one of which must match; any request when empty.
    pub matches: Vec<M>,
    /// Applied in order.
    pub filters: Vec<F>,
}

/// Route over HTTP requests.
pub type HttpRoute = Route<HttpMatch, HttpFilter>;
/// Route over gRPC calls.
pub type GrpcRoute = Route<GrpcMatch, GrpcFilter>;

/// Allows some clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Authorization {
    /// The resource that grants it, or a default policy.
    pub origin: Origin,
    /// Where clients must be.
    pub networks: Vec<Network>,
    /// How clients must prove who they are.
    pub authentication: Authentication,
}

/// A network with holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The network.
    pub net: IpNet,
    /// Parts of it that do not count.
    pub except: Vec<IpNet>,
}

/// How a client must be authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Not at all.
    Unauthenticated,
    /// Mesh TLS, with or without a client identity.
    TlsUnauthenticated,
    /// Mesh TLS with one of these identities.
    TlsAuthenticated(Vec<IdentityMatch>),
}

/// Matches the identity of a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdentityMatch {
    /// The whole name.
    Exact(String),
    /// `*.a.b`, held as `[a, b]`; empty matches everyone.
    Suffix(Vec<String>),
}

/// Requests per second a port, and each of its clients, may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The resource.
    pub origin: Origin,
    /// All clients together.
    pub total: Option<u32>,
    /// Each client.
    pub identity: Option<u32>,
    /// Clients with a limit of their own.
    pub overrides: Vec<RateOverride>,
}

/// A limit shared by the clients it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateOverride {
    /// Requests per second.
    pub requests_per_second: u32,
    /// Client identities.
    pub clients: Vec<String>,
}

impl From<IpNet> for Network {
    fn from(net: IpNet) -> Self {
        Self {
            net,
            except: Vec::new(),
        }
    }
}

impl IdentityMatch {
    /// Reads `*`, `*.suffix` or a whole name.
    pub fn parse(identity: &str) -> Self {
        if identity == "*" {
            return Self::Suffix(Vec::new());
        }
        match identity.strip_prefix("*.") {
            Some(suffix) => Self::Suffix(suffix.split('.').map(str::to_owned).collect()),
            None => Self::Exact(identity.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read() {
        let cases = [
            ("everyone", "*", IdentityMatch::Suffix(vec![])),
            (
                "suffix",
                "*.a.b",
                IdentityMatch::Suffix(vec!["a".into(), "b".into()]),
            ),
            (
                "exact",
                "web.ns.serviceaccount",
                IdentityMatch::Exact("web.ns.serviceaccount".into()),
            ),
            (
                "spiffe",
                "spiffe://td/web",
                IdentityMatch::Exact("spiffe://td/web".into()),
            ),
            (
                "star inside is literal",
                "a.*.b",
                IdentityMatch::Exact("a.*.b".into()),
            ),
        ];
        for (name, identity, expected) in cases {
            assert_eq!(IdentityMatch::parse(identity), expected, "{name}");
        }
    }
}
