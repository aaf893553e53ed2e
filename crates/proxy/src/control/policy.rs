//! Outbound and inbound policy messages → compiled policy. A message that cannot be used becomes an
//! `Invalid` protocol, so that the data path answers with an error instead of guessing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use linkerd_api::proto::outbound;

use super::convert::{
    Result, Unusable, backoff, duration, each, endpoint, grpc_failure, grpc_match, header_change,
    host_match, http_failure, http_match, meta, opt_duration, redirect, suffix,
};
use crate::policy::{
    Meta,
    client::{
        Backend, Balance, ClientPolicy, Dispatch, Distribution, FailureAccrual, HttpRoute,
        HttpRoutes, HttpRule, Penalty, Protocol, Refusal, Retry, RetryOn, RouteBackend,
        SuccessRate, TcpRoute, Timeouts, TlsRoute,
    },
    filter::Filter,
    matching::{HostMatch, RuleMatch},
};

mod server;
pub(super) use server::server_policy;

// The kinds of routes say the same in messages of types of their own, so each of these is written once
// and compiled for every kind.

/// How a rule of any kind spreads over its backends.
macro_rules! distribution {
    ($compiler:ident, $kind:ident, $distribution:expr, $filters:ident) => {{
        use outbound::$kind::distribution::Kind;
        match $distribution.and_then(|d| d.kind) {
            Some(Kind::Empty(_)) => Distribution::Empty,
            Some(Kind::FirstAvailable(first)) => Distribution::First(each(first.backends, |b| {
                $compiler.route_backend(b.backend, $filters(b.filters)?)
            })?),
            Some(Kind::RandomAvailable(random)) => {
                Distribution::Random(each(random.backends, |w| {
                    let b = w.backend.ok_or_else(|| Unusable::new("missing backend"))?;
                    let backend = $compiler.route_backend(b.backend, $filters(b.filters)?)?;
                    Ok((backend, w.weight))
                })?)
            }
            None => return Err(Unusable::new("missing distribution")),
        }
    }};
}

/// A route of requests, HTTP or gRPC.
macro_rules! http_route {
    (
        $compiler:ident, $route:ident: $kind:ident,
        matches: $matches:ident, filters: $filters:ident, retry: $retry:ident, grpc: $grpc:literal
    ) => {{
        let rules = each($route.rules, |rule| {
            let backends = distribution!($compiler, $kind, rule.backends, $filters);
            #[expect(deprecated, reason = "older controllers send only this one")]
            let old_timeout = rule.request_timeout;
            Ok(HttpRule {
                index: $compiler.next_rule(),
                matches: each(rule.matches, $matches)?,
                filters: $filters(rule.filters)?,
                backends,
                timeouts: timeouts(rule.timeouts, old_timeout)?,
                retry: rule.retry.map($retry).transpose()?.map(Arc::new),
                allow_headers: rule.allow_l5d_request_headers,
                grpc: $grpc,
                profile: None,
            })
        })?;
        Ok(HttpRoute {
            meta: meta($route.metadata)?,
            hosts: each($route.hosts, host_match)?,
            rules,
        })
    }};
}

/// A route of connections, opaque or TLS.
macro_rules! tcp_route {
    ($compiler:ident, $route:ident: $kind:ident, $name:literal) => {{
        use outbound::$kind::filter::Kind;
        let [rule] = <[_; 1]>::try_from($route.rules).map_err(|_| {
            Unusable::new(concat!("a ", $name, " route must have exactly one rule"))
        })?;
        let backends = distribution!($compiler, $kind, rule.backends, no_filters);
        let refusal = match rule.filters.into_iter().next().and_then(|f| f.kind) {
            Some(Kind::Forbidden(_)) => Some(Refusal::Forbidden),
            Some(Kind::Invalid(i)) => Some(Refusal::Invalid(i.message)),
            None => None,
        };
        TcpRoute {
            meta: meta($route.metadata)?,
            refusal,
            backends,
        }
    }};
}

/// Largest body kept for a replay when the rule does not say.
const MAX_REPLAY: usize = 64 * 1024;

/// One message of `OutboundPolicies.Watch`.
pub(super) fn client_policy(policy: outbound::OutboundPolicy) -> ClientPolicy {
    let parent = meta(policy.metadata).unwrap_or_else(|_| Meta::default_named("unknown"));
    let mut compiler = Compiler::default();
    let protocol = policy
        .protocol
        .and_then(|p| p.kind)
        .ok_or_else(|| Unusable::new("missing protocol"))
        .and_then(|kind| compiler.protocol(kind))
        .unwrap_or_else(|error| Protocol::Invalid(error.to_string()));
    ClientPolicy {
        parent,
        protocol,
        backends: compiler.backends,
        rules: compiler.rules,
        logical: None,
        budget: None,
    }
}

/// Numbers backends and rules while routes are read.
#[derive(Default)]
struct Compiler {
    backends: Vec<Backend>,
    rules: usize,
}

impl Compiler {
    fn protocol(&mut self, kind: outbound::proxy_protocol::Kind) -> Result<Protocol> {
        use outbound::proxy_protocol::Kind;
        Ok(match kind {
            Kind::Detect(d) => {
                let http1 = d.http1.ok_or_else(|| Unusable::new("missing http1"))?;
                let http2 = d.http2.ok_or_else(|| Unusable::new("missing http2"))?;
                let opaque = d.opaque.ok_or_else(|| Unusable::new("missing opaque"))?;
                Protocol::Detect {
                    http1: self.http(http1.routes, http1.failure_accrual)?,
                    http2: self.http(http2.routes, http2.failure_accrual)?,
                    opaque: self.opaque(opaque.routes)?,
                }
            }
            Kind::Opaque(o) => Protocol::Opaque(self.opaque(o.routes)?),
            Kind::Http1(h) => Protocol::Http1(self.http(h.routes, h.failure_accrual)?),
            Kind::Http2(h) => Protocol::Http2(self.http(h.routes, h.failure_accrual)?),
            Kind::Grpc(g) => Protocol::Grpc(self.grpc(g.routes, g.failure_accrual)?),
            Kind::Tls(t) => Protocol::Tls(each(t.routes, |route| self.tls(route))?),
        })
    }

    fn next_rule(&mut self) -> usize {
        let index = self.rules;
        self.rules += 1;
        index
    }

    fn http(
        &mut self,
        routes: Vec<outbound::HttpRoute>,
        accrual: Option<outbound::FailureAccrual>,
    ) -> Result<HttpRoutes> {
        let matches = |m| http_match(m).map(RuleMatch::Http);
        let routes = each(routes, |route| {
            http_route!(
                self, route: http_route,
                matches: matches, filters: http_filters, retry: http_retry, grpc: false
            )
        })?;
        http_routes(routes, accrual)
    }

    fn grpc(
        &mut self,
        routes: Vec<outbound::GrpcRoute>,
        accrual: Option<outbound::FailureAccrual>,
    ) -> Result<HttpRoutes> {
        let matches = |m| grpc_match(m).map(RuleMatch::Grpc);
        let routes = each(routes, |route| {
            http_route!(
                self, route: grpc_route,
                matches: matches, filters: grpc_filters, retry: grpc_retry, grpc: true
            )
        })?;
        http_routes(routes, accrual)
    }

    fn opaque(&mut self, routes: Vec<outbound::OpaqueRoute>) -> Result<Option<TcpRoute>> {
        let Some(route) = routes.into_iter().next() else {
            return Ok(None);
        };
        Ok(Some(tcp_route!(self, route: opaque_route, "TCP")))
    }

    fn tls(&mut self, route: outbound::TlsRoute) -> Result<TlsRoute> {
        use linkerd_api::proto::tls_route::sni_match::Match;
        let snis = each(route.snis, |sni| match sni.r#match {
            Some(Match::Exact(name)) => Ok(HostMatch::Exact(name.to_ascii_lowercase())),
            Some(Match::Suffix(s)) => Ok(suffix(s.reverse_labels)),
            None => Err(Unusable::new("empty SNI match")),
        })?;
        Ok(TlsRoute {
            snis,
            route: tcp_route!(self, route: tls_route, "TLS"),
        })
    }

    fn route_backend(
        &mut self,
        backend: Option<outbound::Backend>,
        filters: Vec<Filter>,
    ) -> Result<RouteBackend> {
        let backend = backend.ok_or_else(|| Unusable::new("missing backend"))?;
        let backend = convert_backend(backend)?;
        // The same backend in several rules is one backend.
        let same = |b: &Backend| {
            b.meta == backend.meta
                && match (&b.dispatch, &backend.dispatch) {
                    (Dispatch::Balance(a), Dispatch::Balance(b)) => a == b,
                    (Dispatch::Forward(a, m), Dispatch::Forward(b, n)) => a == b && m == n,
                    (Dispatch::None, Dispatch::None) => true,
                    _ => false,
                }
        };
        let index = match self.backends.iter().position(same) {
            Some(index) => index,
            None => {
                self.backends.push(backend);
                self.backends.len() - 1
            }
        };
        Ok(RouteBackend {
            backend: index,
            filters,
        })
    }
}

fn convert_backend(backend: outbound::Backend) -> Result<Backend> {
    use outbound::backend::{Kind, balance_p2c::Load, endpoint_discovery};
    let dispatch = match backend.kind {
        None => Dispatch::None,
        Some(Kind::Forward(addr)) => {
            let (addr, meta) = endpoint(addr, &HashMap::new())
                .ok_or_else(|| Unusable::new("invalid forward address"))?;
            Dispatch::Forward(addr, Arc::new(meta))
        }
        Some(Kind::Balancer(b)) => {
            let path = match b.discovery.and_then(|d| d.kind) {
                Some(endpoint_discovery::Kind::Dst(get)) => get.path,
                None => return Err(Unusable::new("missing discovery")),
            };
            let (default_rtt, decay, penalty) = match b.load {
                Some(Load::PeakEwma(e)) => (e.default_rtt, e.decay, None),
                Some(Load::PenaltyPeakEwma(e)) => {
                    let penalty = Penalty {
                        base: opt_duration(e.penalty)?.unwrap_or(Duration::from_secs(5)),
                        max_retry_after: opt_duration(e.max_retry_after)?
                            .unwrap_or(Duration::from_secs(300)),
                    };
                    (e.default_rtt, e.decay, Some(penalty))
                }
                None => (None, None, None),
            };
            Dispatch::Balance(Balance {
                path: path.into(),
                default_rtt: opt_duration(default_rtt)?.unwrap_or(Duration::from_millis(30)),
                decay: opt_duration(decay)?.unwrap_or(Duration::from_secs(10)),
                penalty,
            })
        }
    };
    Ok(Backend {
        meta: meta(backend.metadata)?,
        dispatch,
    })
}

fn http_routes(
    routes: Vec<HttpRoute>,
    accrual: Option<outbound::FailureAccrual>,
) -> Result<HttpRoutes> {
    Ok(HttpRoutes {
        routes,
        accrual: accrual.map(failure_accrual).transpose()?.flatten(),
    })
}

/// Connections have none that would change them.
fn no_filters<T>(_: Vec<T>) -> Result<Vec<Filter>> {
    Ok(Vec::new())
}

fn http_filters(filters: Vec<outbound::http_route::Filter>) -> Result<Vec<Filter>> {
    use outbound::http_route::filter::Kind;
    each(filters, |f| {
        Ok(match f.kind {
            Some(Kind::FailureInjector(f)) => Filter::HttpFailure(http_failure(f)?),
            Some(Kind::RequestHeaderModifier(m)) => {
                Filter::RequestHeaders(header_change(m.add, m.set, m.remove)?)
            }
            Some(Kind::Redirect(r)) => Filter::Redirect(redirect(r)?),
            Some(Kind::ResponseHeaderModifier(m)) => {
                Filter::ResponseHeaders(header_change(m.add, m.set, m.remove)?)
            }
            None => return Err(Unusable::new("unknown filter")),
        })
    })
}

fn grpc_filters(filters: Vec<outbound::grpc_route::Filter>) -> Result<Vec<Filter>> {
    use outbound::grpc_route::filter::Kind;
    each(filters, |f| {
        Ok(match f.kind {
            Some(Kind::FailureInjector(f)) => Filter::GrpcFailure(grpc_failure(f)?),
            Some(Kind::RequestHeaderModifier(m)) => {
                Filter::RequestHeaders(header_change(m.add, m.set, m.remove)?)
            }
            None => return Err(Unusable::new("unknown filter")),
        })
    })
}

fn timeouts(
    timeouts: Option<linkerd_api::proto::http_route::Timeouts>,
    old: Option<prost_types::Duration>,
) -> Result<Timeouts> {
    let positive = |d: Option<Duration>| d.filter(|d| !d.is_zero());
    let t = timeouts.unwrap_or_default();
    Ok(Timeouts {
        request: positive(opt_duration(t.request.or(old))?),
        response: positive(opt_duration(t.response)?),
        idle: positive(opt_duration(t.idle)?),
        profile: None,
    })
}

fn replay_limit(bytes: u32) -> usize {
    match bytes {
        0 => MAX_REPLAY,
        n => usize::try_from(n).unwrap_or(MAX_REPLAY),
    }
}

fn http_retry(r: outbound::http_route::Retry) -> Result<Retry> {
    let statuses = r
        .conditions
        .unwrap_or_default()
        .status_ranges
        .into_iter()
        .map(|range| {
            let start = u16::try_from(range.start).map_err(Unusable::new)?;
            let end = u16::try_from(range.end).map_err(Unusable::new)?;
            Ok((start, end))
        })
        .collect::<Result<_>>()?;
    Ok(Retry {
        max_retries: u16::try_from(r.max_retries).map_err(Unusable::new)?,
        max_request_bytes: replay_limit(r.max_request_bytes),
        timeout: r.timeout.map(duration).transpose()?,
        backoff: r.backoff.map(backoff).transpose()?,
        on: RetryOn::Listed {
            statuses,
            codes: Vec::new(),
        },
    })
}

fn grpc_retry(r: outbound::grpc_route::Retry) -> Result<Retry> {
    let c = r.conditions.unwrap_or_default();
    let codes = [
        (c.cancelled, 1),
        (c.deadine_exceeded, 4),
        (c.resource_exhausted, 8),
        (c.internal, 13),
        (c.unavailable, 14),
    ];
    Ok(Retry {
        max_retries: u16::try_from(r.max_retries).map_err(Unusable::new)?,
        max_request_bytes: replay_limit(r.max_request_bytes),
        timeout: r.timeout.map(duration).transpose()?,
        backoff: r.backoff.map(backoff).transpose()?,
        on: RetryOn::Listed {
            statuses: Vec::new(),
            codes: codes
                .iter()
                .filter(|(on, _)| *on)
                .map(|(_, c)| *c)
                .collect(),
        },
    })
}

fn failure_accrual(f: outbound::FailureAccrual) -> Result<Option<FailureAccrual>> {
    use outbound::failure_accrual::Kind;
    Ok(match f.kind {
        None => None,
        Some(Kind::ConsecutiveFailures(c)) => Some(FailureAccrual {
            max_consecutive: c.max_failures,
            success_rate: None,
            backoff: backoff(c.backoff.ok_or_else(|| Unusable::new("missing backoff"))?)?,
        }),
        Some(Kind::Unified(u)) => Some(FailureAccrual {
            max_consecutive: u.max_consecutive_failures,
            success_rate: Some(SuccessRate {
                threshold: u.success_rate_threshold,
                window: opt_duration(u.decay)?.unwrap_or(Duration::from_secs(10)),
                min_requests: u.min_requests,
            }),
            backoff: backoff(u.backoff.ok_or_else(|| Unusable::new("missing backoff"))?)?,
        }),
    })
}
