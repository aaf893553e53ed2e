//! Series of an outbound route and one of its backends.

use std::{
    cell::{OnceCell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    Counter, Family, Histogram, Labels, Registry,
    http::{Families, HttpMetrics, Outcome},
};
use crate::policy::Meta;

/// What a series is about.
#[derive(Debug)]
pub struct RouteLabels<'a> {
    /// What the policy belongs to.
    pub parent: &'a Meta,
    /// The route.
    pub route: &'a Meta,
    /// The backend.
    pub backend: &'a Meta,
    /// Whether the route is a gRPC route.
    pub grpc: bool,
    /// Labels of a service profile's route.
    pub profile: Option<Arc<str>>,
    /// The `hostname` label; empty unless it is switched on.
    pub hostname: &'a str,
}

/// Series of a service profile's route: each request once, and each try.
#[derive(Debug)]
pub struct ProfileMetrics {
    registry: Arc<Registry>,
    labels: Arc<str>,
    route: HttpMetrics,
    actual: HttpMetrics,
}

impl ProfileMetrics {
    /// Resolves the series.
    pub fn new(registry: &Arc<Registry>, labels: &Arc<str>) -> Self {
        Self {
            route: HttpMetrics::of(Families::ROUTE, registry, labels.clone()),
            actual: HttpMetrics::of(Families::ACTUAL, registry, labels.clone()),
            registry: registry.clone(),
            labels: labels.clone(),
        }
    }

    /// A request was routed.
    pub fn request(&self) {
        self.route.request();
    }

    /// The head of an answer came, so long after the request.
    pub fn latency(&self, status: u16, elapsed: Duration) {
        self.route.latency(status, elapsed);
    }

    /// A request has ended.
    pub fn response(&self, outcome: Outcome) {
        self.route.response(outcome);
    }

    /// A failed answer could be tried again; `skipped` says that the budget was empty.
    pub fn retryable(&self, skipped: bool) {
        let labels = if skipped {
            format!("{},skipped=\"no_budget\"", self.labels).into()
        } else {
            self.labels.clone()
        };
        self.registry
            .counter(Family::RouteRetryableTotal, &labels)
            .inc();
    }
}

/// Series of one route and backend, for one worker.
#[derive(Debug)]
pub struct RouteMetrics {
    registry: Arc<Registry>,
    route: Arc<str>,
    backend: Arc<str>,
    grpc: bool,
    requests: Arc<Counter>,
    duration: Arc<Histogram>,
    backend_duration: Arc<Histogram>,
    request_frames: Arc<Histogram>,
    response_frames: Arc<Histogram>,
    statuses: RefCell<SmallVec<[Status; 2]>>,
    /// Parent and route only.
    plain: Arc<str>,
    retries: OnceCell<RetryMetrics>,
    profile: Option<ProfileMetrics>,
}

/// What became of requests that a retry policy wanted to repeat.
#[derive(Debug)]
pub struct RetryMetrics {
    /// Tried often enough already.
    pub limit_exceeded: Arc<Counter>,
    /// Too large to be kept, or answered before it was complete.
    pub overflow: Arc<Counter>,
    /// Repeated.
    pub requests: Arc<Counter>,
    /// Succeeded in the end.
    pub successes: Arc<Counter>,
}

#[derive(Debug)]
struct Status {
    outcome: Outcome,
    route: Arc<Counter>,
    backend: Arc<Counter>,
}

impl RouteMetrics {
    /// Resolves the series.
    pub fn new(registry: &Arc<Registry>, about: &RouteLabels<'_>) -> Rc<Self> {
        let common = Labels::default()
            .referent("parent", about.parent)
            .route(about.route);
        let backend = common.clone().referent("backend", about.backend).finish();
        let plain = common.clone().finish();
        let route = common.with("hostname", about.hostname).finish();
        let pick = |http, grpc| if about.grpc { grpc } else { http };
        Rc::new(Self {
            requests: registry.counter(
                pick(
                    Family::OutboundHttpRouteBackendRequests,
                    Family::OutboundGrpcRouteBackendRequests,
                ),
                &backend,
            ),
            duration: registry.histogram(
                pick(
                    Family::OutboundHttpRouteRequestDuration,
                    Family::OutboundGrpcRouteRequestDuration,
                ),
                &route,
            ),
            backend_duration: registry.histogram(
                pick(
                    Family::OutboundHttpRouteBackendResponseDuration,
                    Family::OutboundGrpcRouteBackendResponseDuration,
                ),
                &backend,
            ),
            request_frames: registry.histogram(
                pick(
                    Family::OutboundHttpRouteRequestFrameSize,
                    Family::OutboundGrpcRouteRequestFrameSize,
                ),
                &route,
            ),
            response_frames: registry.histogram(
                pick(
                    Family::OutboundHttpRouteBackendResponseFrameSize,
                    Family::OutboundGrpcRouteBackendResponseFrameSize,
                ),
                &backend,
            ),
            registry: registry.clone(),
            route,
            backend,
            grpc: about.grpc,
            statuses: RefCell::default(),
            plain,
            retries: OnceCell::new(),
            profile: about
                .profile
                .as_ref()
                .map(|labels| ProfileMetrics::new(registry, labels)),
        })
    }

    /// Series of the service profile's route.
    pub fn profile(&self) -> Option<&ProfileMetrics> {
        self.profile.as_ref()
    }

    /// A request goes to the backend.
    pub fn request(&self) {
        self.requests.inc();
        if let Some(profile) = &self.profile {
            profile.actual.request();
        }
    }

    /// A request as a whole has ended, so long after it was routed.
    pub fn response(&self, outcome: Outcome, routed: Duration) {
        self.duration.observe(routed.as_secs_f64());
        self.status(outcome, |status| status.route.inc());
        if let Some(profile) = &self.profile {
            profile.response(outcome);
        }
    }

    /// The response of one try has ended, so long after it was dispatched.
    pub fn backend_response(&self, outcome: Outcome, dispatched: Duration) {
        self.backend_duration.observe(dispatched.as_secs_f64());
        self.status(outcome, |status| status.backend.inc());
        if let Some(profile) = &self.profile {
            profile.actual.response(outcome);
        }
    }

    fn status(&self, outcome: Outcome, count: impl FnOnce(&Status)) {
        let mut statuses = self.statuses.borrow_mut();
        let at = match statuses.iter().position(|s| s.outcome == outcome) {
            Some(at) => at,
            None => {
                let status = self.resolve(outcome);
                statuses.push(status);
                statuses.len() - 1
            }
        };
        count(&statuses[at]);
    }

    /// A piece of a request body.
    pub fn request_frame(&self, size: usize) {
        self.request_frames.observe_size(size);
    }

    /// A piece of a response body.
    pub fn response_frame(&self, size: usize) {
        self.response_frames.observe_size(size);
    }

    /// A request is sent once more although no policy asks for it.
    pub fn resent(&self, why: &str) {
        let labels = format!("{},reason=\"{why}\"", self.backend).into();
        self.registry
            .counter(Family::OutboundHttpResends, &labels)
            .inc();
    }

    /// Series of a route with a retry policy.
    pub fn retries(&self) -> &RetryMetrics {
        self.retries.get_or_init(|| {
            let [exceeded, overflow, requests, successes] = if self.grpc {
                [
                    Family::OutboundGrpcRouteRetryLimitExceeded,
                    Family::OutboundGrpcRouteRetryOverflow,
                    Family::OutboundGrpcRouteRetryRequests,
                    Family::OutboundGrpcRouteRetrySuccesses,
                ]
            } else {
                [
                    Family::OutboundHttpRouteRetryLimitExceeded,
                    Family::OutboundHttpRouteRetryOverflow,
                    Family::OutboundHttpRouteRetryRequests,
                    Family::OutboundHttpRouteRetrySuccesses,
                ]
            };
            let counter = |family| self.registry.counter(family, &self.plain);
            RetryMetrics {
                limit_exceeded: counter(exceeded),
                overflow: counter(overflow),
                requests: counter(requests),
                successes: counter(successes),
            }
        })
    }

    fn resolve(&self, outcome: Outcome) -> Status {
        let text = |n: Option<u16>| n.map(|n| n.to_string()).unwrap_or_default();
        let status = if self.grpc {
            format!("grpc_status=\"{}\"", text(outcome.grpc))
        } else {
            let http = Some(outcome.status).filter(|s| *s != 0);
            format!("http_status=\"{}\"", text(http))
        };
        let labels = |base: &str| -> Arc<str> {
            format!("{base},{status},error=\"{}\"", outcome.error).into()
        };
        let (route, backend) = if self.grpc {
            (
                Family::OutboundGrpcRouteRequestStatuses,
                Family::OutboundGrpcRouteBackendResponseStatuses,
            )
        } else {
            (
                Family::OutboundHttpRouteRequestStatuses,
                Family::OutboundHttpRouteBackendResponseStatuses,
            )
        };
        Status {
            outcome,
            route: self.registry.counter(route, &labels(&self.route)),
            backend: self.registry.counter(backend, &labels(&self.backend)),
        }
    }
}
