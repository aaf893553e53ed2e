//! Series of an inbound route, in the newer families.

use std::{
    cell::RefCell, collections::HashMap, net::SocketAddr, rc::Rc, sync::Arc, time::Duration,
};

use smallvec::SmallVec;

use super::{Counter, Family, Histogram, Labels, Registry, http::Outcome};
use crate::policy::Meta;

/// Counters by status; none when there was no answer.
type Statuses = SmallVec<[(Option<u16>, Arc<Counter>); 2]>;

/// What let requests in.
#[derive(Clone, Debug)]
pub struct About {
    /// The server.
    pub server: Arc<Meta>,
    /// Its port.
    pub port: u16,
    /// The route.
    pub route: Arc<Meta>,
    /// The authorization.
    pub authz: Arc<Meta>,
}

/// Series of one route, for one worker.
#[derive(Debug)]
pub struct InboundMetrics {
    registry: Arc<Registry>,
    labels: Arc<str>,
    about: About,
    grpc: bool,
    requests: Arc<Counter>,
    request_duration: Arc<Histogram>,
    response_duration: Arc<Histogram>,
    request_frames: Arc<Histogram>,
    response_frames: Arc<Histogram>,
    statuses: RefCell<Statuses>,
}

impl InboundMetrics {
    /// Resolves the series of a route of a server.
    pub fn new(registry: &Arc<Registry>, about: About, grpc: bool) -> Rc<Self> {
        let labels = Labels::default()
            .resource("parent", &about.server)
            .show("parent_port", about.port)
            .resource("route", &about.route)
            .finish();
        let pick = |http, of_grpc| if grpc { of_grpc } else { http };
        let histogram = |http, of_grpc| registry.histogram(pick(http, of_grpc), &labels);
        Rc::new(Self {
            requests: registry.counter(
                pick(Family::InboundHttpRequests, Family::InboundGrpcRequests),
                &labels,
            ),
            request_duration: histogram(
                Family::InboundHttpRequestDuration,
                Family::InboundGrpcRequestDuration,
            ),
            response_duration: histogram(
                Family::InboundHttpResponseDuration,
                Family::InboundGrpcResponseDuration,
            ),
            request_frames: histogram(
                Family::InboundHttpRequestFrameSize,
                Family::InboundGrpcRequestFrameSize,
            ),
            response_frames: histogram(
                Family::InboundHttpResponseFrameSize,
                Family::InboundGrpcResponseFrameSize,
            ),
            statuses: RefCell::default(),
            registry: registry.clone(),
            labels,
            about,
            grpc,
        })
    }

    /// The server, the route and what let requests in, for who watches them.
    pub fn each_label(&self, mut visit: impl FnMut(String, String)) {
        let About {
            server,
            port,
            route,
            authz,
        } = &self.about;
        for (prefix, meta) in [("srv", server), ("route", route), ("authz", authz)] {
            visit(format!("{prefix}_group"), meta.group().to_owned());
            visit(format!("{prefix}_kind"), meta.kind().to_owned());
            visit(format!("{prefix}_name"), meta.name().to_owned());
        }
        visit("srv_port".to_owned(), port.to_string());
    }

    /// A request goes to the application.
    pub fn request(&self) {
        self.requests.inc();
    }

    /// A response has ended, so long after the request came and was dispatched.
    pub fn response(&self, outcome: Outcome, routed: Duration, dispatched: Duration) {
        self.request_duration.observe(routed.as_secs_f64());
        self.response_duration.observe(dispatched.as_secs_f64());
        let status = if self.grpc {
            outcome.grpc
        } else {
            Some(outcome.status).filter(|s| *s != 0)
        };
        let mut statuses = self.statuses.borrow_mut();
        if let Some((_, counter)) = statuses.iter().find(|(s, _)| *s == status) {
            counter.inc();
            return;
        }
        let text = status.map(|s| s.to_string()).unwrap_or_default();
        let family = if self.grpc {
            Family::InboundGrpcStatuses
        } else {
            Family::InboundHttpStatuses
        };
        let labels = format!("{},status=\"{text}\"", self.labels).into();
        let counter = self.registry.counter(family, &labels);
        counter.inc();
        statuses.push((status, counter));
    }

    /// A piece of a request body.
    pub fn request_frame(&self, size: usize) {
        self.request_frames.observe_size(size);
    }

    /// A piece of a response body.
    pub fn response_frame(&self, size: usize) {
        self.response_frames.observe_size(size);
    }
}

/// Errors that clients of one connection were answered with, by name.
#[derive(Debug, Default)]
pub struct InboundErrors(RefCell<HashMap<&'static str, Arc<Counter>>>);

impl InboundErrors {
    /// Counts an error of a request for `target`, let in by `server`.
    pub fn count(
        &self,
        registry: &Registry,
        name: &'static str,
        target: SocketAddr,
        server: &Meta,
    ) {
        let mut counters = self.0.borrow_mut();
        let counter = counters.entry(name).or_insert_with(|| {
            let labels = Labels::default()
                .with("error", name)
                .target(target)
                .server(server, target.port())
                .finish();
            registry.counter(Family::InboundHttpErrorsTotal, &labels)
        });
        counter.inc();
    }
}
