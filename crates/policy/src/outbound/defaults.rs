//! Routes and policies nobody wrote: what a target without routes gets.

use linkerd_core::policy::{
    ConnectionFilter, GrpcFilter, GrpcMatch, HttpFilter, HttpMatch, Origin, ResourceRef,
    outbound::{
        Backend, Dispatch, Distribution, GrpcRoute, Http, HttpRoute, Policy, Protocol, Retry,
        Route, RouteBackend, Rule, StatusRange, TcpRoute, Timeouts,
    },
};
use linkerd_k8s::{Key, policy::TrafficPolicy};
use std::{net::SocketAddr, time::Duration};

/// How long protocol detection may take.
pub(super) const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

const DENIED: &str = "traffic not allowed";
const PERMISSION_DENIED: u32 = 7;

/// A route that sends everything to one backend.
fn to<M, F, C>(
    name: &'static str,
    any: Vec<M>,
    filters: Vec<F>,
    backend: Backend,
) -> Route<M, F, C> {
    Route {
        origin: Origin::Default(name),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: any,
            filters,
            backends: Distribution::FirstAvailable(vec![RouteBackend {
                backend,
                filters: Vec::new(),
            }]),
            timeouts: Timeouts::default(),
            retry: None,
            allow_l5d_request_headers: false,
        }],
    }
}

/// HTTP to a Service.
pub(super) fn http(
    backend: Backend,
    retry: Option<Retry<Vec<StatusRange>>>,
    timeouts: Timeouts,
) -> HttpRoute {
    let mut route: HttpRoute = to("http", vec![HttpMatch::any()], Vec::new(), backend);
    for rule in &mut route.rules {
        rule.retry.clone_from(&retry);
        rule.timeouts = timeouts;
    }
    route
}

/// Connections to a Service.
pub(super) fn opaque(backend: Backend) -> TcpRoute {
    to("opaq", Vec::new(), Vec::new(), backend)
}

/// HTTP to an EgressNetwork.
pub(super) fn egress_http(policy: TrafficPolicy, backend: Backend) -> HttpRoute {
    let deny = HttpFilter::Fail {
        status: 403,
        message: DENIED.to_owned(),
    };
    match policy {
        TrafficPolicy::Allow => to(
            "http-egress-allow",
            vec![HttpMatch::any()],
            Vec::new(),
            backend,
        ),
        TrafficPolicy::Deny => to(
            "http-egress-deny",
            vec![HttpMatch::any()],
            vec![deny],
            backend,
        ),
    }
}

/// gRPC to an EgressNetwork.
pub(super) fn egress_grpc(policy: TrafficPolicy, backend: Backend) -> GrpcRoute {
    let deny = GrpcFilter::Fail {
        code: PERMISSION_DENIED,
        message: DENIED.to_owned(),
    };
    match policy {
        TrafficPolicy::Allow => to(
            "grpc-egress-allow",
            vec![GrpcMatch::default()],
            Vec::new(),
            backend,
        ),
        TrafficPolicy::Deny => to(
            "grpc-egress-deny",
            vec![GrpcMatch::default()],
            vec![deny],
            backend,
        ),
    }
}

/// TLS to an EgressNetwork.
pub(super) fn egress_tls(policy: TrafficPolicy, backend: Backend) -> TcpRoute {
    match policy {
        TrafficPolicy::Allow => to("tls-egress-allow", Vec::new(), Vec::new(), backend),
        TrafficPolicy::Deny => to(
            "tls-egress-deny",
            Vec::new(),
            vec![ConnectionFilter::Forbidden],
            backend,
        ),
    }
}

/// Connections to an EgressNetwork.
pub(super) fn egress_tcp(policy: TrafficPolicy, backend: Backend) -> TcpRoute {
    match policy {
        TrafficPolicy::Allow => to("tcp-egress-allow", Vec::new(), Vec::new(), backend),
        TrafficPolicy::Deny => to(
            "tcp-egress-deny",
            Vec::new(),
            vec![ConnectionFilter::Forbidden],
            backend,
        ),
    }
}

/// An address outside the cluster that no EgressNetwork is for: traffic goes there.
pub(super) fn fallback(addr: SocketAddr) -> Policy {
    const NAME: &str = "egress-fallback";
    let backend = Backend {
        origin: Origin::Default(NAME),
        dispatch: Dispatch::Forward(addr),
    };
    Policy {
        origin: Origin::Default(NAME),
        protocol: Protocol::Detect {
            timeout: DETECT_TIMEOUT,
            opaque: vec![to(NAME, Vec::new(), Vec::new(), backend.clone())],
            http: Http {
                routes: vec![to(NAME, vec![HttpMatch::any()], Vec::new(), backend)],
                accrual: None,
            },
        },
    }
}

/// A port its Service does not have: connections are refused. The policy is the Service's, only
/// its route is nobody's.
pub(super) fn undefined_port(service: &Key, port: u16) -> Policy {
    let route = Route {
        origin: Origin::Default("undefined-port"),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: Vec::new(),
            filters: vec![ConnectionFilter::Forbidden],
            backends: Distribution::Empty,
            timeouts: Timeouts::default(),
            retry: None,
            allow_l5d_request_headers: false,
        }],
    };
    Policy {
        origin: Origin::Resource(ResourceRef::service(
            &service.namespace,
            &service.name,
            port,
        )),
        protocol: Protocol::Opaque(vec![route]),
    }
}
