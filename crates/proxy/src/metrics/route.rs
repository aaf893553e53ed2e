//! Series of an outbound route and one of its backends.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{Counter, Family, Histogram, Labels, Registry, http::Outcome};
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
    statuses: RefCell<SmallVec<[Status; 2]>>,
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
        let route = common.with("hostname", "").finish();
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
            registry: registry.clone(),
            route,
            backend,
            grpc: about.grpc,
            statuses: RefCell::default(),
        })
    }

    /// A request goes to the backend.
    pub fn request(&self) {
        self.requests.inc();
    }

    /// A response has ended, so long after the request was routed and dispatched.
    pub fn response(&self, outcome: Outcome, routed: Duration, dispatched: Duration) {
        self.duration.observe(routed.as_secs_f64());
        self.backend_duration.observe(dispatched.as_secs_f64());
        let mut statuses = self.statuses.borrow_mut();
        let at = match statuses.iter().position(|s| s.outcome == outcome) {
            Some(at) => at,
            None => {
                let status = self.resolve(outcome);
                statuses.push(status);
                statuses.len() - 1
            }
        };
        statuses[at].route.inc();
        statuses[at].backend.inc();
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
