//! Outbound policy of one destination: the protocol it speaks, its routes, and the backends they lead
//! to. Backends and rules are numbered so that workers keep their own state beside them by index.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::{
    Meta,
    endpoint::EndpointMeta,
    filter::Filter,
    matching::{self, HostMatch, RuleMatch},
    profile::{self, ProfileRule, ResponseClass},
};
use crate::{budget::Terms, config::Backoff};

/// Everything known about one outbound destination.
#[derive(Clone, Debug)]
pub struct ClientPolicy {
    /// What the policy belongs to.
    pub parent: Arc<Meta>,
    /// How the destination is spoken to.
    pub protocol: Protocol,
    /// Every backend of every route; routes refer to them by index.
    pub backends: Vec<Backend>,
    /// How many rules there are, over all HTTP routes.
    pub rules: usize,
    /// Fully qualified name, for the `authority` label.
    pub logical: Option<String>,
    /// What retries of a profile are taken from.
    pub budget: Option<Terms>,
}

/// How a destination is spoken to.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// By looking at the first bytes.
    Detect {
        /// When they are HTTP/1.
        http1: HttpRoutes,
        /// When they are HTTP/2.
        http2: HttpRoutes,
        /// When they are something else.
        opaque: Option<TcpRoute>,
    },
    /// HTTP/1.
    Http1(HttpRoutes),
    /// HTTP/2.
    Http2(HttpRoutes),
    /// HTTP/2 with gRPC routes.
    Grpc(HttpRoutes),
    /// Opaque bytes.
    Opaque(Option<TcpRoute>),
    /// TLS, by server name.
    Tls(Vec<TlsRoute>),
    /// The policy could not be understood.
    Invalid(String),
}

/// HTTP or gRPC routes.
#[derive(Clone, Debug, Default)]
pub struct HttpRoutes {
    /// In the order given.
    pub routes: Vec<HttpRoute>,
    /// Circuit breaking of balanced endpoints.
    pub accrual: Option<FailureAccrual>,
}

/// One route.
#[derive(Clone, Debug)]
pub struct HttpRoute {
    /// What it comes from.
    pub meta: Arc<Meta>,
    /// Hosts; none means all.
    pub hosts: Vec<HostMatch>,
    /// Rules.
    pub rules: Vec<HttpRule>,
}

/// One rule of a route.
#[derive(Clone, Debug)]
pub struct HttpRule {
    /// Number over all rules of the policy.
    pub index: usize,
    /// Any of these; none means all.
    pub matches: Vec<RuleMatch>,
    /// In order.
    pub filters: Vec<Filter>,
    /// Where requests go.
    pub backends: Distribution,
    /// Limits.
    pub timeouts: Timeouts,
    /// Retries.
    pub retry: Option<Arc<Retry>>,
    /// Whether request headers may set timeouts and retries.
    pub allow_headers: bool,
    /// Whether the rule is of a gRPC route.
    pub grpc: bool,
    /// What a rule of a service profile has besides.
    pub profile: Option<Arc<ProfileRule>>,
}

/// Limits of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From routing to the end of the response.
    pub request: Option<Duration>,
    /// From the end of the request to the end of the response.
    pub response: Option<Duration>,
    /// Between frames.
    pub idle: Option<Duration>,
    /// From routing to the head of the response, by a service profile.
    pub profile: Option<Duration>,
}

/// When a request is tried again.
#[derive(Clone, Debug)]
pub struct Retry {
    /// How often at most.
    pub max_retries: u16,
    /// Largest body kept for a replay.
    pub max_request_bytes: usize,
    /// Wait for response headers.
    pub timeout: Option<Duration>,
    /// Wait between tries.
    pub backoff: Option<Backoff>,
    /// On which answers.
    pub on: RetryOn,
}

/// Which answers are tried again.
#[derive(Clone, Debug)]
pub enum RetryOn {
    /// Any of those listed.
    Listed {
        /// HTTP statuses, inclusive ranges.
        statuses: Vec<(u16, u16)>,
        /// gRPC codes.
        codes: Vec<u16>,
    },
    /// Whatever a profile says fails.
    Class(Arc<[ResponseClass]>),
}

impl Retry {
    /// Whether an answer is tried again.
    pub fn wants(&self, status: u16, grpc: Option<u16>) -> bool {
        match &self.on {
            RetryOn::Listed { statuses, codes } => {
                statuses.iter().any(|(a, b)| (*a..=*b).contains(&status))
                    || grpc.is_some_and(|code| codes.contains(&code))
            }
            RetryOn::Class(classes) => profile::classify(classes, status, grpc).failure,
        }
    }
}

impl RetryOn {
    /// Whether the gRPC status of an answer may decide.
    pub fn asks_grpc_status(&self, grpc: bool) -> bool {
        match self {
            Self::Listed { codes, .. } => !codes.is_empty(),
            Self::Class(_) => grpc,
        }
    }
}

/// How requests are spread over backends; numbers index [`ClientPolicy::backends`].
#[derive(Clone, Debug, Default)]
pub enum Distribution {
    /// Nowhere.
    #[default]
    Empty,
    /// The first that is ready.
    First(Vec<RouteBackend>),
    /// By weight among those that are ready.
    Random(Vec<(RouteBackend, u32)>),
}

impl Distribution {
    /// Every backend, in order.
    pub fn iter(&self) -> Box<dyn Iterator<Item = &RouteBackend> + '_> {
        match self {
            Self::Empty => Box::new(std::iter::empty()),
            Self::First(list) => Box::new(list.iter()),
            Self::Random(list) => Box::new(list.iter().map(|(b, _)| b)),
        }
    }
}

/// A backend as one rule uses it.
#[derive(Clone, Debug)]
pub struct RouteBackend {
    /// Index into [`ClientPolicy::backends`].
    pub backend: usize,
    /// Filters of this use.
    pub filters: Vec<Filter>,
}

/// One backend.
#[derive(Clone, Debug)]
pub struct Backend {
    /// What it comes from.
    pub meta: Arc<Meta>,
    /// How it is reached.
    pub dispatch: Dispatch,
}

/// How a backend is reached.
#[derive(Clone, Debug)]
pub enum Dispatch {
    /// One address.
    Forward(SocketAddr, Arc<EndpointMeta>),
    /// Balanced over what discovery finds.
    Balance(Balance),
    /// The control plane named no way.
    None,
}

/// A balanced service.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    /// Path given to the destination service.
    pub path: Arc<str>,
    /// Latency assumed of an endpoint not seen yet.
    pub default_rtt: Duration,
    /// How fast old latencies are forgotten.
    pub decay: Duration,
    /// Failed answers count as slow.
    pub penalty: Option<Penalty>,
}

/// How failed answers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// Latency recorded at least.
    pub base: Duration,
    /// Longest hint honoured.
    pub max_retry_after: Duration,
}

/// Circuit breaking.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureAccrual {
    /// Failures in a row; 0 is off.
    pub max_consecutive: u32,
    /// Success rate over a window, in unified mode.
    pub success_rate: Option<SuccessRate>,
    /// Wait before a probe.
    pub backoff: Backoff,
}

/// Success-rate breaking.
#[derive(Clone, Debug, PartialEq)]
pub struct SuccessRate {
    /// Below this it shuts.
    pub threshold: f64,
    /// Window.
    pub window: Duration,
    /// Requests needed in the window.
    pub min_requests: u32,
}

/// A route of opaque connections.
#[derive(Clone, Debug)]
pub struct TcpRoute {
    /// What it comes from.
    pub meta: Arc<Meta>,
    /// Why nothing may pass.
    pub refusal: Option<Refusal>,
    /// Where connections go.
    pub backends: Distribution,
}

/// A route of TLS connections.
#[derive(Clone, Debug)]
pub struct TlsRoute {
    /// Server names; none means all.
    pub snis: Vec<HostMatch>,
    /// The rest.
    pub route: TcpRoute,
}

/// A filter that refuses connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Policy forbids it.
    Forbidden,
    /// The configuration is broken.
    Invalid(String),
}

impl TlsRoute {
    /// The route a connection takes: the one that names it best, ties to the first.
    pub fn find<'a>(routes: &'a [Self], sni: Option<&str>) -> Option<&'a Self> {
        let ranked = routes
            .iter()
            .filter_map(|r| Some((HostMatch::best(&r.snis, sni)?, r)));
        let best = ranked.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, route)| route)
    }
}

impl Refusal {
    /// What is logged; `kind` is `TCP` or `TLS`.
    pub fn text(&self, kind: &str) -> String {
        match self {
            Self::Forbidden => format!("forbidden {kind} route"),
            Self::Invalid(message) => format!("invalid {kind} backend: {message}"),
        }
    }
}

impl HttpRoutes {
    /// The rule a request takes.
    pub fn find(&self, request: &impl matching::Request) -> Option<(&HttpRoute, &HttpRule)> {
        // The usual policy is one route with one rule that takes everything.
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

impl ClientPolicy {
    /// Circuit breaking of its balanced endpoints.
    pub fn accrual(&self) -> Option<&FailureAccrual> {
        match &self.protocol {
            Protocol::Detect { http1, http2, .. } => {
                http1.accrual.as_ref().or(http2.accrual.as_ref())
            }
            Protocol::Http1(http) | Protocol::Http2(http) | Protocol::Grpc(http) => {
                http.accrual.as_ref()
            }
            Protocol::Opaque(_) | Protocol::Tls(_) | Protocol::Invalid(_) => None,
        }
    }

    /// A policy that forwards everything to one address.
    pub fn forward(parent: &str, addr: SocketAddr, meta: Arc<EndpointMeta>, opaque: bool) -> Self {
        let parent = Meta::default_named(parent);
        let backend = || {
            Distribution::First(vec![RouteBackend {
                backend: 0,
                filters: Vec::new(),
            }])
        };
        let http = |index| HttpRoutes {
            routes: vec![HttpRoute {
                meta: Meta::default_named("default"),
                hosts: Vec::new(),
                rules: vec![HttpRule {
                    index,
                    matches: Vec::new(),
                    filters: Vec::new(),
                    backends: backend(),
                    timeouts: Timeouts::default(),
                    retry: None,
                    allow_headers: false,
                    grpc: false,
                    profile: None,
                }],
            }],
            accrual: None,
        };
        let tcp = Some(TcpRoute {
            meta: Meta::default_named("default"),
            refusal: None,
            backends: backend(),
        });
        let protocol = if opaque {
            Protocol::Opaque(tcp)
        } else {
            Protocol::Detect {
                http1: http(0),
                http2: http(1),
                opaque: tcp,
            }
        };
        Self {
            backends: vec![Backend {
                meta: parent.clone(),
                dispatch: Dispatch::Forward(addr, meta),
            }],
            parent,
            protocol,
            rules: 2,
            logical: None,
            budget: None,
        }
    }
}

impl HttpRoute {
    /// The first rule's backends as an opaque route.
    pub fn into_tcp(self) -> Option<TcpRoute> {
        let rule = self.rules.into_iter().next()?;
        Some(TcpRoute {
            meta: self.meta,
            refusal: None,
            backends: rule.backends,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_routes() {
        let route = |name: &str, sni: Option<&HostMatch>| TlsRoute {
            snis: sni.into_iter().cloned().collect(),
            route: TcpRoute {
                meta: Meta::default_named(name),
                refusal: None,
                backends: Distribution::Empty,
            },
        };
        let exact = HostMatch::Exact("a.example.com".into());
        let suffix = HostMatch::Suffix(".example.com".into());
        let longer = HostMatch::Suffix(".b.example.com".into());
        let routes = [
            route("all", None),
            route("suffix", Some(&suffix)),
            route("the same suffix", Some(&suffix)),
            route("longer", Some(&longer)),
            route("exact", Some(&exact)),
            route("the same name", Some(&exact)),
        ];
        for (sni, want) in [
            (Some("a.example.com"), "exact"),
            (Some("c.example.com"), "suffix"),
            (Some("c.b.example.com"), "longer"),
            (Some("example.org"), "all"),
            (None, "all"),
        ] {
            let found = TlsRoute::find(&routes, sni).expect("one takes everything");
            assert_eq!(found.route.meta.name(), want, "{sni:?}");
        }
        assert!(TlsRoute::find(&routes[3..], Some("example.org")).is_none());
    }

    #[test]
    fn refusals() {
        let invalid = Refusal::Invalid("no such Service".into());
        for (refusal, kind, want) in [
            (&Refusal::Forbidden, "TCP", "forbidden TCP route"),
            (&Refusal::Forbidden, "TLS", "forbidden TLS route"),
            (&invalid, "TCP", "invalid TCP backend: no such Service"),
            (&invalid, "TLS", "invalid TLS backend: no such Service"),
        ] {
            assert_eq!(refusal.text(kind), want);
        }
    }

    #[test]
    fn answers_that_are_tried_again() {
        let listed = |statuses: &[(u16, u16)], codes: &[u16]| RetryOn::Listed {
            statuses: statuses.to_vec(),
            codes: codes.to_vec(),
        };
        for (name, on, status, grpc, want) in [
            ("a status", listed(&[(500, 599)], &[]), 503, None, true),
            ("another", listed(&[(500, 599)], &[]), 404, None, false),
            ("a code", listed(&[], &[14]), 200, Some(14), true),
            ("another code", listed(&[], &[14]), 200, Some(13), false),
            ("no code", listed(&[], &[14]), 503, None, false),
            (
                "either: status",
                listed(&[(500, 599)], &[14]),
                503,
                None,
                true,
            ),
            (
                "either: code",
                listed(&[(500, 599)], &[14]),
                200,
                Some(14),
                true,
            ),
            ("neither", listed(&[(500, 599)], &[14]), 200, Some(0), false),
        ] {
            let retry = Retry {
                max_retries: 1,
                max_request_bytes: 0,
                timeout: None,
                backoff: None,
                on,
            };
            assert_eq!(retry.wants(status, grpc), want, "{name}");
        }
    }
}
