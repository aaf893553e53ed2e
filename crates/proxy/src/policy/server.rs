//! Inbound policy of one port: the protocol, who may connect, and per-route authorizations.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;
use linkerd_core::identity::Id;

use super::{
    Meta,
    filter::Filter,
    matching::{self, HostMatch, RuleMatch},
};
use crate::{
    config::{DefaultPolicy, Inbound},
    inbound::rate::Buckets,
};

/// Everything known about one inbound port.
#[derive(Debug)]
pub struct ServerPolicy {
    /// The Server resource, or a default.
    pub meta: Arc<Meta>,
    /// What the port speaks.
    pub protocol: Protocol,
    /// Who may use the port.
    pub authorizations: Vec<Authorization>,
}

/// What a port speaks.
#[derive(Debug)]
pub enum Protocol {
    /// To be found out.
    Detect {
        /// Within this time.
        timeout: Duration,
        /// Routes when it is HTTP.
        http: HttpRoutes,
    },
    /// HTTP/1.
    Http1(HttpRoutes),
    /// HTTP/2.
    Http2(HttpRoutes),
    /// gRPC.
    Grpc(HttpRoutes),
    /// Opaque bytes, TLS untouched.
    Opaque,
    /// TLS terminated by us or by the application.
    Tls,
    /// The policy could not be understood.
    Invalid(String),
}

/// HTTP routes of a port.
#[derive(Debug, Default)]
pub struct HttpRoutes {
    /// In the order given; empty means one that takes everything.
    pub routes: Vec<HttpRoute>,
    /// How many rules there are.
    pub rules: usize,
    /// Requests per second.
    pub rate_limit: Option<RateLimit>,
}

/// One route.
#[derive(Debug)]
pub struct HttpRoute {
    /// What it comes from.
    pub meta: Arc<Meta>,
    /// Hosts; none means all.
    pub hosts: Vec<HostMatch>,
    /// Who may use it, besides those of the port.
    pub authorizations: Vec<Authorization>,
    /// Rules.
    pub rules: Vec<HttpRule>,
}

/// One rule.
#[derive(Debug)]
pub struct HttpRule {
    /// Number over all rules of the port.
    pub index: usize,
    /// Any of these; none means all.
    pub matches: Vec<RuleMatch>,
    /// In order.
    pub filters: Vec<Filter>,
}

/// Requests per second a port takes.
#[derive(Debug)]
pub struct RateLimit {
    /// What it comes from.
    pub meta: Arc<Meta>,
    /// Of all clients together.
    pub total: Option<u32>,
    /// Of each client.
    pub identity: Option<u32>,
    /// Of some clients together.
    pub overrides: Vec<(u32, Vec<Id>)>,
    /// What is left of each.
    pub buckets: Arc<Buckets>,
}

/// Who may do something.
#[derive(Clone, Debug)]
pub struct Authorization {
    /// What it comes from.
    pub meta: Arc<Meta>,
    /// From these networks, without the exceptions of each.
    pub networks: Vec<(IpNet, Vec<IpNet>)>,
    /// With this proof.
    pub authentication: Authentication,
}

/// What a client must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Nothing.
    Unauthenticated,
    /// Mesh TLS, with or without an identity.
    TlsUnauthenticated,
    /// One of these identities.
    Identities {
        /// Exactly.
        ids: Vec<Id>,
        /// DNS names below these; an empty one is every identity.
        suffixes: Vec<String>,
    },
}

/// How a client came in, as authorization sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientTls {
    /// TLS terminated by us.
    Mesh(Option<Id>),
    /// TLS of the application, with its server name.
    Opaque(String),
    /// No TLS that we terminate.
    Plain(NoTls),
}

/// Why there is no mesh TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTls {
    /// The client sent something else.
    NotFromRemote,
    /// The port is not looked at.
    PortSkipped,
    /// Client and server are the same pod.
    Loopback,
}

impl ClientTls {
    /// The verified identity.
    pub fn id(&self) -> Option<&Id> {
        match self {
            Self::Mesh(id) => id.as_ref(),
            Self::Opaque(_) | Self::Plain(_) => None,
        }
    }
}

impl Authorization {
    /// Whether a client may.
    pub fn allows(&self, client: IpAddr, tls: &ClientTls) -> bool {
        let near = self.networks.iter().any(|(net, except)| {
            net.contains(&client) && !except.iter().any(|e| e.contains(&client))
        });
        near && match (&self.authentication, tls) {
            (Authentication::Unauthenticated, _)
            | (Authentication::TlsUnauthenticated, ClientTls::Mesh(_)) => true,
            (Authentication::Identities { ids, suffixes }, ClientTls::Mesh(Some(id))) => {
                ids.contains(id) || suffixes.iter().any(|s| s.is_empty() || id.has_suffix(s))
            }
            _ => false,
        }
    }

    /// Whether allowed requests are logged.
    pub fn is_audit(&self) -> bool {
        matches!(&*self.meta, Meta::Default(name) if &**name == "audit")
    }
}

/// The first authorization that allows a client.
pub fn authorize<'a>(
    mut authorizations: impl Iterator<Item = &'a Authorization>,
    client: IpAddr,
    tls: &ClientTls,
) -> Option<&'a Authorization> {
    authorizations.find(|a| a.allows(client, tls))
}

/// Clients of the same host may always connect.
pub fn localhost() -> Authorization {
    Authorization {
        meta: Meta::default_named("localhost"),
        networks: vec![
            (IpNet::from(IpAddr::from([127, 0, 0, 1])), Vec::new()),
            (
                IpNet::from(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)),
                Vec::new(),
            ),
        ],
        authentication: Authentication::Unauthenticated,
    }
}

impl HttpRoutes {
    /// One route that takes everything.
    pub fn all() -> Self {
        Self {
            routes: vec![HttpRoute {
                meta: Meta::default_named("default"),
                hosts: Vec::new(),
                authorizations: Vec::new(),
                rules: vec![HttpRule {
                    index: 0,
                    matches: Vec::new(),
                    filters: Vec::new(),
                }],
            }],
            rules: 1,
            rate_limit: None,
        }
    }

    /// The rule a request takes.
    pub fn find(&self, request: &impl matching::Request) -> Option<(&HttpRoute, &HttpRule)> {
        if let [route] = self.routes.as_slice()
            && route.hosts.is_empty()
            && let [rule] = route.rules.as_slice()
            && rule.matches.is_empty()
        {
            return Some((route, rule));
        }
        let (route, rule) = matching::find(
            request,
            self.routes.iter().map(|route| {
                (
                    route.hosts.as_slice(),
                    route.rules.iter().map(|rule| rule.matches.as_slice()),
                )
            }),
        )?;
        let route = &self.routes[route];
        Some((route, &route.rules[rule]))
    }
}

impl ServerPolicy {
    /// What lets a client's raw bytes in. A server that speaks HTTP takes nothing else: bytes would
    /// pass its routes, filters and limits by.
    pub fn allows_bytes(&self, client: IpAddr, tls: &ClientTls) -> Option<&Authorization> {
        match self.protocol {
            Protocol::Http1(_) | Protocol::Http2(_) | Protocol::Grpc(_) => None,
            Protocol::Detect { .. } | Protocol::Opaque | Protocol::Tls | Protocol::Invalid(_) => {
                authorize(self.authorizations.iter(), client, tls)
            }
        }
    }

    fn rate_limit(&self) -> Option<&RateLimit> {
        match &self.protocol {
            Protocol::Detect { http, .. }
            | Protocol::Http1(http)
            | Protocol::Http2(http)
            | Protocol::Grpc(http) => http.rate_limit.as_ref(),
            Protocol::Opaque | Protocol::Tls | Protocol::Invalid(_) => None,
        }
    }

    /// Takes over what clients have used up of the same limits under the policy before.
    pub fn inherit(&mut self, old: &Self) {
        let Some(old) = old.rate_limit() else { return };
        let (Protocol::Detect { http, .. }
        | Protocol::Http1(http)
        | Protocol::Http2(http)
        | Protocol::Grpc(http)) = &mut self.protocol
        else {
            return;
        };
        if let Some(limit) = &mut http.rate_limit
            && limit.meta == old.meta
            && limit.overrides == old.overrides
        {
            limit.buckets = old.buckets.clone();
        }
    }

    /// The policy of a port until the controller speaks.
    pub fn initial(config: &Inbound, port: u16) -> Self {
        let opaque = config.opaque_ports.contains(port);
        let policy = config.default_policy;
        let meta = Meta::default_named(policy.name());
        let everywhere = || {
            vec![
                (IpNet::V4(ipnet::Ipv4Net::default()), Vec::new()),
                (IpNet::V6(ipnet::Ipv6Net::default()), Vec::new()),
            ]
        };
        let cluster = || {
            config
                .cluster_networks
                .iter()
                .map(|net| (*net, Vec::new()))
                .collect()
        };
        let anyone = Authentication::Identities {
            ids: Vec::new(),
            suffixes: vec![String::new()],
        };
        let allow = |networks, authentication| {
            vec![
                Authorization {
                    meta: meta.clone(),
                    networks,
                    authentication,
                },
                localhost(),
            ]
        };
        let authorizations = match policy {
            DefaultPolicy::Deny => Vec::new(),
            DefaultPolicy::AllUnauthenticated | DefaultPolicy::Audit => {
                allow(everywhere(), Authentication::Unauthenticated)
            }
            DefaultPolicy::AllAuthenticated => allow(everywhere(), anyone),
            DefaultPolicy::ClusterUnauthenticated => {
                allow(cluster(), Authentication::Unauthenticated)
            }
            DefaultPolicy::ClusterAuthenticated => allow(cluster(), anyone),
        };
        let protocol = if opaque || policy == DefaultPolicy::Deny {
            Protocol::Opaque
        } else {
            Protocol::Detect {
                timeout: config.detect_timeout,
                http: HttpRoutes::all(),
            }
        };
        Self {
            meta,
            protocol,
            authorizations,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authorization(
        networks: &[(&str, &[&str])],
        authentication: Authentication,
    ) -> Authorization {
        let net = |s: &str| s.parse().expect("network");
        Authorization {
            meta: Meta::default_named("test"),
            networks: networks
                .iter()
                .map(|(n, e)| (net(n), e.iter().map(|e| net(e)).collect()))
                .collect(),
            authentication,
        }
    }

    #[test]
    fn authorization_table() {
        let id = |s: &str| Id::parse(s).expect("identity");
        let mesh = |s: &str| ClientTls::Mesh(Some(id(s)));
        let plain = ClientTls::Plain(NoTls::NotFromRemote);
        let web = "web.ns.serviceaccount.identity.linkerd.cluster.local";
        let ids = |ids: &[&str], suffixes: &[&str]| Authentication::Identities {
            ids: ids.iter().map(|s| id(s)).collect(),
            suffixes: suffixes.iter().map(|s| (*s).to_owned()).collect(),
        };
        let all: &[(&str, &[&str])] = &[("0.0.0.0/0", &[])];
        let except: &[(&str, &[&str])] = &[("10.0.0.0/8", &["10.1.0.0/16"])];
        let none = Authentication::Unauthenticated;
        let cases = [
            ("anyone", all, none.clone(), "10.0.0.1", plain.clone(), true),
            (
                "outside the network",
                except,
                none.clone(),
                "11.0.0.1",
                plain.clone(),
                false,
            ),
            (
                "inside the network",
                except,
                none.clone(),
                "10.2.0.1",
                plain.clone(),
                true,
            ),
            (
                "inside an exception",
                except,
                none,
                "10.1.0.1",
                plain.clone(),
                false,
            ),
            (
                "tls needed, plain",
                all,
                Authentication::TlsUnauthenticated,
                "10.0.0.1",
                plain.clone(),
                false,
            ),
            (
                "tls needed, no id",
                all,
                Authentication::TlsUnauthenticated,
                "10.0.0.1",
                ClientTls::Mesh(None),
                true,
            ),
            (
                "opaque tls is not mesh tls",
                all,
                Authentication::TlsUnauthenticated,
                "10.0.0.1",
                ClientTls::Opaque("a".into()),
                false,
            ),
            (
                "exact id",
                all,
                ids(&[web], &[]),
                "10.0.0.1",
                mesh(web),
                true,
            ),
            (
                "other id",
                all,
                ids(&[web], &[]),
                "10.0.0.1",
                mesh("other.ns.cluster.local"),
                false,
            ),
            (
                "suffix",
                all,
                ids(&[], &["cluster.local"]),
                "10.0.0.1",
                mesh(web),
                true,
            ),
            (
                "every id",
                all,
                ids(&[], &[""]),
                "10.0.0.1",
                mesh(web),
                true,
            ),
            (
                "every id, uri",
                all,
                ids(&[], &[""]),
                "10.0.0.1",
                mesh("spiffe://root/web"),
                true,
            ),
            (
                "every id, none",
                all,
                ids(&[], &[""]),
                "10.0.0.1",
                ClientTls::Mesh(None),
                false,
            ),
            (
                "every id, plain",
                all,
                ids(&[], &[""]),
                "10.0.0.1",
                plain,
                false,
            ),
        ];
        for (name, networks, authentication, client, tls, want) in cases {
            let authorization = authorization(networks, authentication);
            let client = client.parse().expect("address");
            assert_eq!(authorization.allows(client, &tls), want, "{name}");
        }
    }

    #[test]
    fn an_update_does_not_refill_buckets() {
        use std::time::Instant;
        let policy = |name: &str| ServerPolicy {
            meta: Meta::default_named("server"),
            protocol: Protocol::Http1(HttpRoutes {
                rate_limit: Some(RateLimit {
                    meta: Meta::default_named(name),
                    total: Some(1),
                    identity: None,
                    overrides: Vec::new(),
                    buckets: Buckets::new(),
                }),
                ..HttpRoutes::all()
            }),
            authorizations: Vec::new(),
        };
        let now = Instant::now();
        let take = |policy: &ServerPolicy| {
            let limit = policy.rate_limit().expect("a limit");
            limit.buckets.check(limit, None, now).is_ok()
        };
        let old = policy("a");
        assert!(take(&old));
        let mut same = policy("a");
        same.inherit(&old);
        assert!(!take(&same), "used up already");
        let mut other = policy("b");
        other.inherit(&old);
        assert!(take(&other), "another limit");
    }

    #[test]
    fn bytes_pass_where_http_is_not_all_there_is() {
        let all = HttpRoutes::all;
        let timeout = std::time::Duration::ZERO;
        let client = [127, 0, 0, 1].into();
        let plain = ClientTls::Plain(NoTls::NotFromRemote);
        for (name, protocol, want) in [
            (
                "detect",
                Protocol::Detect {
                    timeout,
                    http: all(),
                },
                true,
            ),
            ("opaque", Protocol::Opaque, true),
            ("TLS", Protocol::Tls, true),
            ("HTTP/1", Protocol::Http1(all()), false),
            ("HTTP/2", Protocol::Http2(all()), false),
            ("gRPC", Protocol::Grpc(all()), false),
        ] {
            let policy = ServerPolicy {
                meta: Meta::default_named("server"),
                protocol,
                authorizations: vec![localhost()],
            };
            let allowed = policy.allows_bytes(client, &plain);
            assert_eq!(allowed.is_some(), want, "{name}");
        }
    }

    #[test]
    fn loopback_is_allowed() {
        let plain = ClientTls::Plain(NoTls::NotFromRemote);
        assert!(localhost().allows([127, 0, 0, 1].into(), &plain));
        assert!(localhost().allows("::1".parse().expect("address"), &plain));
        assert!(!localhost().allows([127, 0, 0, 2].into(), &plain));
    }
}
