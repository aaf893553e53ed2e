//! Outbound and inbound policy messages → compiled policy. A message that cannot be used becomes an
//! `Invalid` protocol, so that the data path answers with an error instead of guessing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use linkerd_api::proto::outbound;

use super::convert::{
    Result, Unusable, backoff, duration, endpoint, grpc_failure, grpc_match, header_change,
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
    matching::RuleMatch,
};

mod server;
pub(super) use server::server_policy;

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
            Kind::Tls(t) => Protocol::Tls(
                t.routes
                    .into_iter()
                    .map(|r| self.tls(r))
                    .collect::<Result<_>>()?,
            ),
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
        let routes = routes
            .into_iter()
            .map(|route| {
                let rules = route
                    .rules
                    .into_iter()
                    .map(|rule| self.http_rule(rule))
                    .collect::<Result<_>>()?;
                Ok(HttpRoute {
                    meta: meta(route.metadata)?,
                    hosts: route
                        .hosts
                        .into_iter()
                        .map(host_match)
                        .collect::<Result<_>>()?,
                    rules,
                })
            })
            .collect::<Result<_>>()?;
        Ok(HttpRoutes {
            routes,
            accrual: accrual.map(failure_accrual).transpose()?.flatten(),
        })
    }

    fn http_rule(&mut self, rule: outbound::http_route::Rule) -> Result<HttpRule> {
        use outbound::http_route::distribution::Kind;
        let backends = match rule.backends.and_then(|d| d.kind) {
            Some(Kind::Empty(_)) => Distribution::Empty,
            Some(Kind::FirstAvailable(f)) => Distribution::First(
                f.backends
                    .into_iter()
                    .map(|b| self.route_backend(b.backend, http_filters(b.filters)?))
                    .collect::<Result<_>>()?,
            ),
            Some(Kind::RandomAvailable(r)) => Distribution::Random(
                r.backends
                    .into_iter()
                    .map(|w| {
                        let b = w.backend.ok_or_else(|| Unusable::new("missing backend"))?;
                        let backend = self.route_backend(b.backend, http_filters(b.filters)?)?;
                        Ok((backend, w.weight))
                    })
                    .collect::<Result<_>>()?,
            ),
            None => return Err(Unusable::new("missing distribution")),
        };
        #[expect(deprecated, reason = "older controllers send only this one")]
        let old_timeout = rule.request_timeout;
        Ok(HttpRule {
            index: self.next_rule(),
            matches: rule
                .matches
                .into_iter()
                .map(|m| http_match(m).map(RuleMatch::Http))
                .collect::<Result<_>>()?,
            filters: http_filters(rule.filters)?,
            backends,
            timeouts: timeouts(rule.timeouts, old_timeout)?,
            retry: rule.retry.map(http_retry).transpose()?.map(Arc::new),
            allow_headers: rule.allow_l5d_request_headers,
            grpc: false,
            profile: None,
        })
    }

    fn grpc(
        &mut self,
        routes: Vec<outbound::GrpcRoute>,
        accrual: Option<outbound::FailureAccrual>,
    ) -> Result<HttpRoutes> {
        let routes = routes
            .into_iter()
            .map(|route| {
                let rules = route
                    .rules
                    .into_iter()
                    .map(|rule| self.grpc_rule(rule))
                    .collect::<Result<_>>()?;
                Ok(HttpRoute {
                    meta: meta(route.metadata)?,
                    hosts: route
                        .hosts
                        .into_iter()
                        .map(host_match)
                        .collect::<Result<_>>()?,
                    rules,
                })
            })
            .collect::<Result<_>>()?;
        Ok(HttpRoutes {
            routes,
            accrual: accrual.map(failure_accrual).transpose()?.flatten(),
        })
    }

    fn grpc_rule(&mut self, rule: outbound::grpc_route::Rule) -> Result<HttpRule> {
        use outbound::grpc_route::distribution::Kind;
        let backends = match rule.backends.and_then(|d| d.kind) {
            Some(Kind::Empty(_)) => Distribution::Empty,
            Some(Kind::FirstAvailable(f)) => Distribution::First(
                f.backends
                    .into_iter()
                    .map(|b| self.route_backend(b.backend, grpc_filters(b.filters)?))
                    .collect::<Result<_>>()?,
            ),
            Some(Kind::RandomAvailable(r)) => Distribution::Random(
                r.backends
                    .into_iter()
                    .map(|w| {
                        let b = w.backend.ok_or_else(|| Unusable::new("missing backend"))?;
                        let backend = self.route_backend(b.backend, grpc_filters(b.filters)?)?;
                        Ok((backend, w.weight))
                    })
                    .collect::<Result<_>>()?,
            ),
            None => return Err(Unusable::new("missing distribution")),
        };
        #[expect(deprecated, reason = "older controllers send only this one")]
        let old_timeout = rule.request_timeout;
        Ok(HttpRule {
            index: self.next_rule(),
            matches: rule
                .matches
                .into_iter()
                .map(|m| grpc_match(m).map(RuleMatch::Grpc))
                .collect::<Result<_>>()?,
            filters: grpc_filters(rule.filters)?,
            backends,
            timeouts: timeouts(rule.timeouts, old_timeout)?,
            retry: rule.retry.map(grpc_retry).transpose()?.map(Arc::new),
            allow_headers: rule.allow_l5d_request_headers,
            grpc: true,
            profile: None,
        })
    }

    fn opaque(&mut self, routes: Vec<outbound::OpaqueRoute>) -> Result<Option<TcpRoute>> {
        use outbound::opaque_route::{distribution::Kind, filter};
        let Some(route) = routes.into_iter().next() else {
            return Ok(None);
        };
        let [rule] = <[_; 1]>::try_from(route.rules)
            .map_err(|_| Unusable::new("a TCP route must have exactly one rule"))?;
        let backends = match rule.backends.and_then(|d| d.kind) {
            Some(Kind::Empty(_)) => Distribution::Empty,
            Some(Kind::FirstAvailable(f)) => Distribution::First(
                f.backends
                    .into_iter()
                    .map(|b| self.route_backend(b.backend, Vec::new()))
                    .collect::<Result<_>>()?,
            ),
            Some(Kind::RandomAvailable(r)) => Distribution::Random(
                r.backends
                    .into_iter()
                    .map(|w| {
                        let b = w.backend.ok_or_else(|| Unusable::new("missing backend"))?;
                        Ok((self.route_backend(b.backend, Vec::new())?, w.weight))
                    })
                    .collect::<Result<_>>()?,
            ),
            None => return Err(Unusable::new("missing distribution")),
        };
        let refusal = match rule.filters.into_iter().next().and_then(|f| f.kind) {
            Some(filter::Kind::Forbidden(_)) => Some(Refusal::Forbidden),
            Some(filter::Kind::Invalid(i)) => Some(Refusal::Invalid(i.message)),
            None => None,
        };
        Ok(Some(TcpRoute {
            meta: meta(route.metadata)?,
            refusal,
            backends,
        }))
    }

    fn tls(&mut self, route: outbound::TlsRoute) -> Result<TlsRoute> {
        use linkerd_api::proto::tls_route::sni_match::Match;
        use outbound::tls_route::{distribution::Kind, filter};
        let [rule] = <[_; 1]>::try_from(route.rules)
            .map_err(|_| Unusable::new("a TLS route must have exactly one rule"))?;
        let backends = match rule.backends.and_then(|d| d.kind) {
            Some(Kind::Empty(_)) => Distribution::Empty,
            Some(Kind::FirstAvailable(f)) => Distribution::First(
                f.backends
                    .into_iter()
                    .map(|b| self.route_backend(b.backend, Vec::new()))
                    .collect::<Result<_>>()?,
            ),
            Some(Kind::RandomAvailable(r)) => Distribution::Random(
                r.backends
                    .into_iter()
                    .map(|w| {
                        let b = w.backend.ok_or_else(|| Unusable::new("missing backend"))?;
                        Ok((self.route_backend(b.backend, Vec::new())?, w.weight))
                    })
                    .collect::<Result<_>>()?,
            ),
            None => return Err(Unusable::new("missing distribution")),
        };
        let refusal = match rule.filters.into_iter().next().and_then(|f| f.kind) {
            Some(filter::Kind::Forbidden(_)) => Some(Refusal::Forbidden),
            Some(filter::Kind::Invalid(i)) => Some(Refusal::Invalid(i.message)),
            None => None,
        };
        let snis = route
            .snis
            .into_iter()
            .map(|sni| match sni.r#match {
                Some(Match::Exact(name)) => Ok(crate::policy::matching::HostMatch::Exact(
                    name.to_ascii_lowercase(),
                )),
                Some(Match::Suffix(s)) => Ok(suffix(s.reverse_labels)),
                None => Err(Unusable::new("empty SNI match")),
            })
            .collect::<Result<_>>()?;
        Ok(TlsRoute {
            snis,
            route: TcpRoute {
                meta: meta(route.metadata)?,
                refusal,
                backends,
            },
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

fn http_filters(filters: Vec<outbound::http_route::Filter>) -> Result<Vec<Filter>> {
    use outbound::http_route::filter::Kind;
    filters
        .into_iter()
        .map(|f| {
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
        .collect()
}

fn grpc_filters(filters: Vec<outbound::grpc_route::Filter>) -> Result<Vec<Filter>> {
    use outbound::grpc_route::filter::Kind;
    filters
        .into_iter()
        .map(|f| {
            Ok(match f.kind {
                Some(Kind::FailureInjector(f)) => Filter::GrpcFailure(grpc_failure(f)?),
                Some(Kind::RequestHeaderModifier(m)) => {
                    Filter::RequestHeaders(header_change(m.add, m.set, m.remove)?)
                }
                None => return Err(Unusable::new("unknown filter")),
            })
        })
        .collect()
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
