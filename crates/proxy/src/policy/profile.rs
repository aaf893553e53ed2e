//! Service profiles: routes by path and method, which answers fail, retries within a budget, and the
//! services traffic is split over. Compiled into an outbound policy when a profile has a say.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderValue, Method};
use regex::Regex;

use super::{
    Meta,
    client::{
        Backend, Balance, ClientPolicy, Dispatch, Distribution, HttpRoute, HttpRoutes, HttpRule,
        Protocol, Retry, RetryOn, RouteBackend, TcpRoute, Timeouts,
    },
    endpoint::EndpointMeta,
    matching::{Request, RuleMatch},
};
use crate::{
    budget::Terms,
    http::again::REPLAY,
    metrics::{Labels, http::Outcome},
};

/// What `GetProfile` says about a destination.
#[derive(Debug, Default)]
pub struct Profile {
    /// The service's name.
    pub name: Option<String>,
    /// The service must not be looked at.
    pub opaque: bool,
    /// The destination is this one endpoint.
    pub endpoint: Option<(SocketAddr, Arc<EndpointMeta>)>,
    /// Routes; the first that matches counts.
    pub routes: Vec<ProfileRoute>,
    /// What retries are taken from.
    pub budget: Option<Terms>,
    /// Services that get the traffic instead, by weight.
    pub overrides: Vec<Override>,
    /// The service it is about.
    pub parent: Option<Arc<Meta>>,
    /// The profile itself.
    pub reference: Option<Arc<Meta>>,
}

/// One route of a profile.
#[derive(Debug)]
pub struct ProfileRoute {
    /// Which requests.
    pub condition: RequestMatch,
    /// Which answers fail; the first that matches counts.
    pub classes: Arc<[ResponseClass]>,
    /// Labels of its series, sorted by name.
    pub labels: Vec<(String, String)>,
    /// Whether failed answers are tried again.
    pub retryable: bool,
    /// From the request to the head of its answer.
    pub timeout: Option<Duration>,
}

/// One share of the traffic.
#[derive(Debug)]
pub struct Override {
    /// Path given to the destination service.
    pub path: Arc<str>,
    /// Its share.
    pub weight: u32,
    /// The service.
    pub meta: Arc<Meta>,
}

/// Which requests a route takes.
#[derive(Clone, Debug)]
pub enum RequestMatch {
    /// All of these.
    All(Vec<RequestMatch>),
    /// Any of these.
    Any(Vec<RequestMatch>),
    /// Not this.
    Not(Box<RequestMatch>),
    /// The whole path matches.
    Path(Regex),
    /// This method.
    Method(Method),
}

impl RequestMatch {
    /// Whether a request is taken.
    pub fn matches(&self, request: &impl Request) -> bool {
        match self {
            Self::All(list) => list.iter().all(|m| m.matches(request)),
            Self::Any(list) => list.iter().any(|m| m.matches(request)),
            Self::Not(not) => !not.matches(request),
            Self::Path(regex) => regex.is_match(request.path()),
            Self::Method(method) => request.method() == method.as_str(),
        }
    }
}

/// Whether some answers fail.
#[derive(Clone, Debug)]
pub struct ResponseClass {
    /// Which answers.
    pub condition: ResponseMatch,
    /// Whether they fail.
    pub failure: bool,
}

/// Which answers a class takes.
#[derive(Clone, Debug)]
pub enum ResponseMatch {
    /// All of these.
    All(Vec<ResponseMatch>),
    /// Any of these.
    Any(Vec<ResponseMatch>),
    /// Not this.
    Not(Box<ResponseMatch>),
    /// Statuses, inclusive.
    Status(u16, u16),
}

impl ResponseMatch {
    fn matches(&self, status: u16) -> bool {
        match self {
            Self::All(list) => list.iter().all(|m| m.matches(status)),
            Self::Any(list) => list.iter().any(|m| m.matches(status)),
            Self::Not(not) => !not.matches(status),
            Self::Status(min, max) => (*min..=*max).contains(&status),
        }
    }
}

/// How an answer counts under the classes of a route; without one that matches, as by default.
pub fn classify(classes: &[ResponseClass], status: u16, grpc: Option<u16>) -> Outcome {
    let outcome = Outcome::classify(status, grpc);
    match classes.iter().find(|c| c.condition.matches(status)) {
        Some(class) => Outcome {
            failure: class.failure,
            ..outcome
        },
        None => outcome,
    }
}

/// What a rule made from a profile has besides.
#[derive(Clone, Debug)]
pub struct ProfileRule {
    /// Labels of its series.
    pub labels: Arc<str>,
    /// Labels of the route alone, as the profile gives them.
    pub route: Vec<(String, String)>,
    /// Told to the server's proxy.
    pub canonical: HeaderValue,
    /// Which answers fail.
    pub classes: Arc<[ResponseClass]>,
    /// Whether failed answers are tried again.
    pub retryable: bool,
}

/// Labels of a route's series.
pub fn labels(direction: &str, dst: &str, route: Option<&ProfileRoute>) -> Arc<str> {
    let mut labels = Labels::direction(direction).with("dst", dst);
    for (name, value) in route.map(|r| r.labels.as_slice()).unwrap_or_default() {
        labels = labels.with(&format!("rt_{name}"), value);
    }
    labels.finish()
}

impl Profile {
    /// Whether it decides where HTTP requests go.
    pub fn decides(&self) -> bool {
        self.name.is_some()
            && self.endpoint.is_none()
            && !(self.routes.is_empty() && self.overrides.is_empty())
    }

    /// The policy it makes; `base` is what the policy service says.
    pub fn policy(&self, port: u16, base: Option<&ClientPolicy>) -> Option<ClientPolicy> {
        let dst = format!("{}:{port}", self.name.as_ref()?);
        let parent = base
            .map(|base| base.parent.clone())
            .or_else(|| self.parent.clone())
            .unwrap_or_else(|| Meta::default_named("profile"));
        let mut backends = Vec::new();
        let distribution = self.distribution(&dst, &parent, &mut backends);
        let http = self.http(&dst, &distribution)?;
        let opaque = if self.overrides.is_empty() {
            self.base_opaque(base, &mut backends)
        } else {
            Some(TcpRoute {
                meta: self.route_meta(),
                refusal: None,
                backends: distribution,
            })
        };
        let rules = http.routes.iter().map(|r| r.rules.len()).sum();
        let protocol = match base.map(|b| &b.protocol) {
            Some(Protocol::Http1(_)) => Protocol::Http1(http),
            Some(Protocol::Http2(_) | Protocol::Grpc(_)) => Protocol::Http2(http),
            Some(Protocol::Opaque(_)) => Protocol::Opaque(opaque),
            Some(Protocol::Tls(_)) => return None,
            Some(Protocol::Detect { .. } | Protocol::Invalid(_)) | None => Protocol::Detect {
                http1: http.clone(),
                http2: http,
                opaque,
            },
        };
        Some(ClientPolicy {
            parent,
            protocol,
            backends,
            rules,
            logical: Some(dst),
            budget: self.budget,
        })
    }

    fn route_meta(&self) -> Arc<Meta> {
        let reference = self.reference.clone();
        reference.unwrap_or_else(|| Meta::default_named("profile"))
    }

    fn distribution(
        &self,
        dst: &str,
        parent: &Arc<Meta>,
        backends: &mut Vec<Backend>,
    ) -> Distribution {
        let mut add = |path: Arc<str>, meta: Arc<Meta>| {
            backends.push(Backend {
                meta,
                dispatch: Dispatch::Balance(Balance {
                    path,
                    default_rtt: Duration::from_millis(30),
                    decay: Duration::from_secs(10),
                    penalty: None,
                }),
            });
            RouteBackend {
                backend: backends.len() - 1,
                filters: Vec::new(),
            }
        };
        if self.overrides.is_empty() {
            return Distribution::First(vec![add(dst.into(), parent.clone())]);
        }
        Distribution::Random(
            self.overrides
                .iter()
                .map(|o| (add(o.path.clone(), o.meta.clone()), o.weight))
                .collect(),
        )
    }

    /// Opaque connections of a profile without overrides go where the policy says.
    fn base_opaque(
        &self,
        base: Option<&ClientPolicy>,
        backends: &mut Vec<Backend>,
    ) -> Option<TcpRoute> {
        let base = base?;
        let (Protocol::Detect {
            opaque: Some(route),
            ..
        }
        | Protocol::Opaque(Some(route))) = &base.protocol
        else {
            return None;
        };
        let shift = backends.len();
        backends.extend(base.backends.iter().cloned());
        let moved = |b: &RouteBackend| RouteBackend {
            backend: b.backend + shift,
            filters: b.filters.clone(),
        };
        let mut route = route.clone();
        route.backends = match route.backends {
            Distribution::Empty => Distribution::Empty,
            Distribution::First(list) => Distribution::First(list.iter().map(moved).collect()),
            Distribution::Random(list) => {
                Distribution::Random(list.iter().map(|(b, w)| (moved(b), *w)).collect())
            }
        };
        Some(route)
    }

    fn http(&self, dst: &str, distribution: &Distribution) -> Option<HttpRoutes> {
        let canonical = HeaderValue::from_str(dst).ok()?;
        let routes = self.routes.iter().map(Some).chain([None]);
        let rules = routes
            .enumerate()
            .map(|(index, route)| {
                let classes = route.map(|r| r.classes.clone()).unwrap_or_default();
                let retryable = route.is_some_and(|r| r.retryable);
                HttpRule {
                    index,
                    matches: route
                        .map(|r| RuleMatch::Profile(r.condition.clone()))
                        .into_iter()
                        .collect(),
                    filters: Vec::new(),
                    backends: distribution.clone(),
                    timeouts: Timeouts {
                        profile: route.and_then(|r| r.timeout),
                        ..Timeouts::default()
                    },
                    retry: retryable.then(|| {
                        Arc::new(Retry {
                            max_retries: u16::MAX,
                            max_request_bytes: REPLAY,
                            timeout: None,
                            backoff: None,
                            on: RetryOn::Class(classes.clone()),
                        })
                    }),
                    allow_headers: false,
                    grpc: false,
                    profile: Some(Arc::new(ProfileRule {
                        labels: labels("outbound", dst, route),
                        route: route.map(|r| r.labels.clone()).unwrap_or_default(),
                        canonical: canonical.clone(),
                        classes,
                        retryable,
                    })),
                }
            })
            .collect();
        Some(HttpRoutes {
            routes: vec![HttpRoute {
                meta: self.route_meta(),
                hosts: Vec::new(),
                rules,
            }],
            accrual: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, path: &str) -> http::Request<()> {
        let builder = http::Request::builder().method(method).uri(path);
        builder.body(()).expect("valid")
    }

    fn path(pattern: &str) -> RequestMatch {
        RequestMatch::Path(Regex::new(&format!("^(?:{pattern})$")).expect("valid"))
    }

    #[test]
    fn conditions() {
        let get = RequestMatch::Method(Method::GET);
        for (name, condition, method, uri, want) in [
            ("path", path("/a"), "GET", "/a", true),
            ("path is whole", path("/a"), "GET", "/a/b", false),
            (
                "path pattern",
                path("/books/[^/]*"),
                "GET",
                "/books/7",
                true,
            ),
            ("method", get.clone(), "GET", "/", true),
            ("other method", get.clone(), "POST", "/", false),
            (
                "all",
                RequestMatch::All(vec![get.clone(), path("/a")]),
                "GET",
                "/b",
                false,
            ),
            (
                "any",
                RequestMatch::Any(vec![get.clone(), path("/a")]),
                "GET",
                "/b",
                true,
            ),
            ("not", RequestMatch::Not(Box::new(get)), "PUT", "/", true),
            (
                "all of nothing",
                RequestMatch::All(Vec::new()),
                "GET",
                "/",
                true,
            ),
            (
                "any of nothing",
                RequestMatch::Any(Vec::new()),
                "GET",
                "/",
                false,
            ),
        ] {
            assert_eq!(condition.matches(&request(method, uri)), want, "{name}");
        }
    }

    #[test]
    fn classes() {
        let class = |min, max, failure| ResponseClass {
            condition: ResponseMatch::Status(min, max),
            failure,
        };
        let classes = [class(404, 404, true), class(500, 503, false)];
        for (status, grpc, failure) in [
            (200, None, false),
            (404, None, true),
            (500, None, false),
            (504, None, true),
            (200, Some(14), true),
        ] {
            let outcome = classify(&classes, status, grpc);
            assert_eq!(outcome.failure, failure, "{status} {grpc:?}");
        }
    }

    fn profile(routes: &[&str], overrides: &[(&str, u32)]) -> Profile {
        Profile {
            name: Some("web.ns.svc.cluster.local".into()),
            routes: routes
                .iter()
                .map(|pattern| ProfileRoute {
                    condition: path(pattern),
                    classes: Arc::default(),
                    labels: vec![("route".into(), (*pattern).into())],
                    retryable: false,
                    timeout: None,
                })
                .collect(),
            overrides: overrides
                .iter()
                .map(|(path, weight)| Override {
                    path: (*path).into(),
                    weight: *weight,
                    meta: Meta::default_named("leaf"),
                })
                .collect(),
            ..Profile::default()
        }
    }

    #[test]
    fn the_first_route_that_matches_counts() {
        let policy = profile(&["/a.*", "/ab"], &[]).policy(80, None);
        let policy = policy.expect("decides");
        let Protocol::Detect { http1, .. } = &policy.protocol else {
            panic!("{:?}", policy.protocol);
        };
        for (uri, want) in [("/ab", "/a.*"), ("/x", "")] {
            let (_, rule) = http1.find(&request("GET", uri)).expect("always one");
            let labels = &rule.profile.as_ref().expect("a profile's").labels;
            let route = match want {
                "" => String::new(),
                want => format!(",rt_route=\"{want}\""),
            };
            assert_eq!(
                **labels,
                format!("direction=\"outbound\",dst=\"web.ns.svc.cluster.local:80\"{route}"),
                "{uri}"
            );
        }
    }

    #[test]
    fn overrides_take_the_traffic() {
        let decides = |p: &Profile| p.decides();
        assert!(!decides(&profile(&[], &[])), "nothing to say");
        let split = profile(&[], &[("a:80", 90), ("b:80", 10)]);
        assert!(decides(&split));
        let policy = split.policy(80, None).expect("decides");
        let paths: Vec<_> = policy
            .backends
            .iter()
            .filter_map(|b| match &b.dispatch {
                Dispatch::Balance(balance) => Some(&*balance.path),
                _ => None,
            })
            .collect();
        assert_eq!(paths, ["a:80", "b:80"]);
    }
}
