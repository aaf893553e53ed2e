//! Outbound policy of one target as one client sees it: protocol, routes, backends.

use super::{
    ConnectionFilter, GrpcFilter, GrpcMatch, HostMatch, HttpFilter, HttpMatch, Origin, ResourceRef,
};
use std::{net::SocketAddr, time::Duration};

/// Policy of one outbound target.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The target, or a default.
    pub origin: Origin,
    /// How connections are handled.
    pub protocol: Protocol,
}

/// How connections to a target are handled.
#[derive(Clone, Debug, PartialEq)]
pub enum Protocol {
    /// The proxy reads the first bytes and decides.
    Detect {
        /// How long detection may take.
        timeout: Duration,
        /// If it is not HTTP.
        opaque: Vec<TcpRoute>,
        /// If it is HTTP/1 or HTTP/2.
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
        /// Circuit breaking.
        accrual: Option<FailureAccrual>,
    },
    /// TLS that the application started, routed by server name.
    Tls(Vec<TlsRoute>),
    /// Bytes are copied.
    Opaque(Vec<TcpRoute>),
}

/// HTTP handling of a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Http {
    /// Routes in order of precedence.
    pub routes: Vec<HttpRoute>,
    /// Circuit breaking.
    pub accrual: Option<FailureAccrual>,
}

/// A route: matches `M`, filters `F`, retries on `C`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route<M, F, C> {
    /// The route resource, or a default.
    pub origin: Origin,
    /// Hosts (server names for TLS) the route is for; any when empty.
    pub hosts: Vec<HostMatch>,
    /// What to match and where to send it.
    pub rules: Vec<Rule<M, F, C>>,
}

/// One rule of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule<M, F, C> {
    /// Alternatives, one of which must match.
    pub matches: Vec<M>,
    /// Applied in order.
    pub filters: Vec<F>,
    /// Where traffic goes.
    pub backends: Distribution<F>,
    /// Time limits of a request.
    pub timeouts: Timeouts,
    /// Retries of a request.
    pub retry: Option<Retry<C>>,
    /// Whether request headers may override timeouts and retries.
    pub allow_l5d_request_headers: bool,
}

/// Route over HTTP requests.
pub type HttpRoute = Route<HttpMatch, HttpFilter, Vec<StatusRange>>;
/// Route over gRPC calls.
pub type GrpcRoute = Route<GrpcMatch, GrpcFilter, GrpcConditions>;
/// Route over TLS connections.
pub type TlsRoute = Route<(), ConnectionFilter, ()>;
/// Route over connections.
pub type TcpRoute = Route<(), ConnectionFilter, ()>;

/// How traffic is spread over backends.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution<F> {
    /// Nowhere.
    Empty,
    /// The first that is available.
    FirstAvailable(Vec<RouteBackend<F>>),
    /// By weight.
    RandomAvailable(Vec<(RouteBackend<F>, u32)>),
}

/// A backend with filters that apply only to traffic sent there.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteBackend<F> {
    /// The backend.
    pub backend: Backend,
    /// Applied in order.
    pub filters: Vec<F>,
}

/// Where traffic goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// The resource, or a default.
    pub origin: Origin,
    /// How it is reached.
    pub dispatch: Dispatch,
}

/// How a backend is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Dispatch {
    /// It cannot be: traffic sent there fails.
    None,
    /// One address.
    Forward(SocketAddr),
    /// Endpoints of a Service.
    Balance {
        /// Authority to look endpoints up by.
        authority: String,
        /// How load is estimated.
        load: Load,
    },
}

/// How a balancer estimates load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// By latency.
    PeakEwma,
    /// By latency, with penalties for failures.
    PenaltyPeakEwma {
        /// Penalty of a failure.
        penalty: Duration,
        /// Longest Retry-After that is believed.
        max_retry_after: Duration,
    },
}

/// Time limits of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first byte of the request to the last of the response.
    pub request: Option<Duration>,
    /// From the end of the request to the end of the response.
    pub response: Option<Duration>,
    /// Longest silence.
    pub idle: Option<Duration>,
}

/// Retries of a request on conditions `C`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry<C> {
    /// Most retries.
    pub limit: u16,
    /// Time limit of one try.
    pub timeout: Option<Duration>,
    /// What is retried.
    pub conditions: C,
}

/// Status codes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// First code.
    pub start: u16,
    /// Last code.
    pub end: u16,
}

/// gRPC codes that are retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrpcConditions {
    /// CANCELLED
    pub cancelled: bool,
    /// DEADLINE_EXCEEDED
    pub deadline_exceeded: bool,
    /// INTERNAL
    pub internal: bool,
    /// RESOURCE_EXHAUSTED
    pub resource_exhausted: bool,
    /// UNAVAILABLE
    pub unavailable: bool,
}

/// When an endpoint stops getting traffic.
#[derive(Clone, Debug, PartialEq)]
pub enum FailureAccrual {
    /// After failures in a row.
    Consecutive {
        /// How many.
        max_failures: u32,
        /// How long it stays out.
        backoff: Backoff,
    },
    /// After failures in a row or a low success rate.
    Unified {
        /// Lowest success rate; 0 turns it off.
        success_rate_threshold: f64,
        /// Window of the success rate.
        window: Duration,
        /// Requests before the success rate counts.
        min_requests: u32,
        /// Failures in a row; 0 turns it off.
        max_failures: u32,
        /// How long it stays out.
        backoff: Backoff,
    },
}

/// Growing pauses.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// First pause.
    pub min: Duration,
    /// Longest pause.
    pub max: Duration,
    /// Random share added.
    pub jitter: f32,
    /// Whether a Retry-After header sets the first pause.
    pub respect_retry_after: bool,
}

impl ResourceRef {
    /// Names a Service port.
    pub fn service(namespace: &str, name: &str, port: u16) -> Self {
        Self {
            group: super::CORE_GROUP.to_owned(),
            kind: "Service".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            section: String::new(),
            port: Some(port),
        }
    }
}
