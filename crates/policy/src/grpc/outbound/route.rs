//! Routes as they travel. The four protocols have messages of the same shape but different types,
//! so the parts they share are written once as a macro.

use linkerd_api::proto::{http_route, opaque_route, outbound as wire, tls_route};
use linkerd_core::policy::{
    ConnectionFilter, GrpcFilter, HostMatch, HttpFilter,
    outbound::{
        Distribution, GrpcConditions, GrpcRoute, HttpRoute, Retry, StatusRange, TcpRoute, Timeouts,
        TlsRoute,
    },
};
use std::time::Duration;

use super::{ONLY, backend, convert};

const MAX_REQUEST_BYTES: u32 = 64 * 1024;

/// Converts how traffic is spread over backends, given the converter of filters. The block gives
/// fields a protocol has beyond backend and filters.
macro_rules! distribution {
    ($distribution:expr, $proto:path, $filter:expr, { $($extra:tt)* }) => {{
        use $proto as proto;
        let route_backend = |source: &linkerd_core::policy::outbound::RouteBackend<_>, weight| proto::RouteBackend {
            backend: Some(backend(&source.backend, weight)),
            filters: source.filters.iter().map($filter).collect(),
            $($extra)*
        };
        let kind = match $distribution {
            Distribution::Empty => proto::distribution::Kind::Empty(proto::distribution::Empty {}),
            Distribution::FirstAvailable(backends) => {
                let backends = backends.iter().map(|source| route_backend(source, ONLY)).collect();
                proto::distribution::Kind::FirstAvailable(proto::distribution::FirstAvailable { backends })
            }
            Distribution::RandomAvailable(backends) => {
                let weighted = backends.iter().map(|(source, weight)| proto::WeightedRouteBackend {
                    backend: Some(route_backend(source, *weight)),
                    weight: *weight,
                });
                proto::distribution::Kind::RandomAvailable(proto::distribution::RandomAvailable {
                    backends: weighted.collect(),
                })
            }
        };
        Some(proto::Distribution { kind: Some(kind) })
    }};
}

#[expect(
    deprecated,
    reason = "older proxies read the time limit from the deprecated field"
)]
pub(super) fn http(route: &HttpRoute) -> wire::HttpRoute {
    let rules = route.rules.iter().map(|rule| wire::http_route::Rule {
        matches: rule.matches.iter().map(convert::http_match).collect(),
        filters: rule.filters.iter().map(http_filter).collect(),
        backends: distribution!(&rule.backends, wire::http_route, http_filter, { request_timeout: None }),
        request_timeout: rule.timeouts.request.map(convert::duration),
        timeouts: timeouts(&rule.timeouts),
        retry: rule.retry.as_ref().map(http_retry),
        allow_l5d_request_headers: rule.allow_l5d_request_headers,
    });
    wire::HttpRoute {
        metadata: Some(convert::metadata(&route.origin)),
        hosts: route.hosts.iter().map(convert::host).collect(),
        rules: rules.collect(),
    }
}

#[expect(
    deprecated,
    reason = "older proxies read the time limit from the deprecated field"
)]
pub(super) fn grpc(route: &GrpcRoute) -> wire::GrpcRoute {
    let rules = route.rules.iter().map(|rule| wire::grpc_route::Rule {
        matches: rule.matches.iter().map(convert::grpc_match).collect(),
        filters: rule.filters.iter().map(grpc_filter).collect(),
        backends: distribution!(&rule.backends, wire::grpc_route, grpc_filter, { request_timeout: None }),
        request_timeout: rule.timeouts.request.map(convert::duration),
        timeouts: timeouts(&rule.timeouts),
        retry: rule.retry.as_ref().map(grpc_retry),
        allow_l5d_request_headers: rule.allow_l5d_request_headers,
    });
    wire::GrpcRoute {
        metadata: Some(convert::metadata(&route.origin)),
        hosts: route.hosts.iter().map(convert::host).collect(),
        rules: rules.collect(),
    }
}

pub(super) fn tls(route: &TlsRoute) -> wire::TlsRoute {
    use wire::tls_route::{Filter, Rule, filter::Kind};
    let filter = |filter: &ConnectionFilter| Filter {
        kind: Some(match filter {
            ConnectionFilter::Invalid(message) => Kind::Invalid(invalid(message)),
            ConnectionFilter::Forbidden => Kind::Forbidden(opaque_route::Forbidden {}),
        }),
    };
    let rules = route.rules.iter().map(|rule| Rule {
        backends: distribution!(&rule.backends, wire::tls_route, filter, {}),
        filters: rule.filters.iter().map(filter).collect(),
    });
    wire::TlsRoute {
        metadata: Some(convert::metadata(&route.origin)),
        snis: route.hosts.iter().map(server_name).collect(),
        rules: rules.collect(),
    }
}

pub(super) fn opaque(route: &TcpRoute) -> wire::OpaqueRoute {
    use wire::opaque_route::{Filter, Rule, filter::Kind};
    let filter = |filter: &ConnectionFilter| Filter {
        kind: Some(match filter {
            ConnectionFilter::Invalid(message) => Kind::Invalid(invalid(message)),
            ConnectionFilter::Forbidden => Kind::Forbidden(opaque_route::Forbidden {}),
        }),
    };
    let rules = route.rules.iter().map(|rule| Rule {
        backends: distribution!(&rule.backends, wire::opaque_route, filter, {}),
        filters: rule.filters.iter().map(filter).collect(),
    });
    wire::OpaqueRoute {
        metadata: Some(convert::metadata(&route.origin)),
        rules: rules.collect(),
    }
}

fn invalid(message: &str) -> opaque_route::Invalid {
    opaque_route::Invalid {
        message: message.to_owned(),
    }
}

fn server_name(host: &HostMatch) -> tls_route::SniMatch {
    use tls_route::sni_match::{Match, Suffix};
    let matched = match host {
        HostMatch::Exact(name) => Match::Exact(name.clone()),
        HostMatch::Suffix(labels) => Match::Suffix(Suffix {
            reverse_labels: labels.clone(),
        }),
    };
    tls_route::SniMatch {
        r#match: Some(matched),
    }
}

fn http_filter(filter: &HttpFilter) -> wire::http_route::Filter {
    use wire::http_route::filter::Kind;
    let kind = match filter {
        HttpFilter::Fail { status, message } => {
            Kind::FailureInjector(convert::http_failure(*status, message))
        }
        HttpFilter::RequestHeaders(headers) => {
            Kind::RequestHeaderModifier(convert::request_headers(headers))
        }
        HttpFilter::ResponseHeaders(headers) => {
            Kind::ResponseHeaderModifier(convert::response_headers(headers))
        }
        HttpFilter::Redirect(redirect) => Kind::Redirect(convert::redirect(redirect)),
    };
    wire::http_route::Filter { kind: Some(kind) }
}

fn grpc_filter(filter: &GrpcFilter) -> wire::grpc_route::Filter {
    use wire::grpc_route::filter::Kind;
    let kind = match filter {
        GrpcFilter::Fail { code, message } => {
            Kind::FailureInjector(convert::grpc_failure(*code, message))
        }
        GrpcFilter::RequestHeaders(headers) => {
            Kind::RequestHeaderModifier(convert::request_headers(headers))
        }
    };
    wire::grpc_route::Filter { kind: Some(kind) }
}

fn timeouts(timeouts: &Timeouts) -> Option<http_route::Timeouts> {
    Some(http_route::Timeouts {
        response: timeouts.response.map(convert::duration),
        request: timeouts.request.map(convert::duration),
        idle: timeouts.idle.map(convert::duration),
    })
}

fn backoff() -> wire::ExponentialBackoff {
    wire::ExponentialBackoff {
        min_backoff: Some(convert::duration(Duration::from_millis(25))),
        max_backoff: Some(convert::duration(Duration::from_millis(250))),
        jitter_ratio: 1.0,
        respect_retry_after_hint: false,
    }
}

fn http_retry(retry: &Retry<Vec<StatusRange>>) -> wire::http_route::Retry {
    use wire::http_route::retry::{Conditions, conditions};
    let ranges = retry
        .conditions
        .iter()
        .map(|range| conditions::StatusRange {
            start: range.start.into(),
            end: range.end.into(),
        });
    wire::http_route::Retry {
        max_retries: retry.limit.into(),
        max_request_bytes: MAX_REQUEST_BYTES,
        conditions: Some(Conditions {
            status_ranges: ranges.collect(),
        }),
        timeout: retry.timeout.map(convert::duration),
        backoff: Some(backoff()),
    }
}

fn grpc_retry(retry: &Retry<GrpcConditions>) -> wire::grpc_route::Retry {
    let on = &retry.conditions;
    wire::grpc_route::Retry {
        max_retries: retry.limit.into(),
        max_request_bytes: MAX_REQUEST_BYTES,
        conditions: Some(wire::grpc_route::retry::Conditions {
            cancelled: on.cancelled,
            deadine_exceeded: on.deadline_exceeded,
            resource_exhausted: on.resource_exhausted,
            internal: on.internal,
            unavailable: on.unavailable,
        }),
        timeout: retry.timeout.map(convert::duration),
        backoff: Some(backoff()),
    }
}
