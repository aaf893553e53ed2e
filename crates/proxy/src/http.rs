//! Proxying HTTP, the part both directions share: a server loop per client connection, and exchanges
//! between any two HTTP versions. A [`Direction`] only decides where a request goes and what changes.

pub mod server1;
pub mod server2;

mod deadline;
mod edits;
mod exchange1;
mod exchange2;
pub(crate) mod filters;
mod stream;

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use self::deadline::Deadlines;
pub use self::edits::{Edits, Lines};
use crate::{
    balance::{Balancer, NotReady},
    connect::ConnectError,
    endpoint::{Endpoint, InFlight},
    errors::{Class, HttpError},
    metrics::{
        http::{HttpMetrics, Outcome},
        route::RouteMetrics,
    },
    observe::{self, Observed},
    policy::{
        client::{Retry, Timeouts},
        matching,
    },
    worker::Drain,
};

/// One direction of traffic: inbound or outbound.
pub trait Direction {
    /// Decides where a request goes.
    #[expect(
        async_fn_in_trait,
        reason = "both implementations are ours and stay on one thread"
    )]
    async fn route(&self, request: &impl matching::Request) -> Result<Routed, HttpError>;

    /// Has a request observed, if anybody wants it.
    fn observe(&self, request: &impl observe::Head) -> Observed;

    /// Whether this client may see what went wrong.
    fn informational(&self) -> bool;

    /// Counts an answer of our own.
    fn failed(&self, error: &HttpError);

    /// Whether HTTP/2 requests marked as upgraded go out as HTTP/1.
    fn downgrades(&self) -> bool;

    /// How long a head may take once it has begun.
    fn head_timeout(&self) -> Duration;

    /// Drain of the worker.
    fn drain(&self) -> &Rc<Drain>;

    /// Requests in flight in this direction, and how many may be.
    fn in_flight(&self) -> (&Cell<usize>, usize);
}

/// One of the requests in flight.
struct Admitted<'a>(&'a Cell<usize>);

impl<'a> Admitted<'a> {
    /// Counts a request in, unless there are too many.
    fn new(direction: &'a impl Direction) -> Result<Self, HttpError> {
        let (count, max) = direction.in_flight();
        if count.get() >= max {
            return Err(HttpError::load_shed());
        }
        count.set(count.get() + 1);
        Ok(Self(count))
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Where a request goes and what changes on the way.
#[derive(Debug)]
pub struct Routed {
    /// Where.
    pub backend: Backend,
    /// What changes.
    pub edits: Edits,
    /// How long to wait for an endpoint.
    pub failfast: Duration,
    /// How many may wait.
    pub capacity: usize,
    /// Series to count in, in place of the endpoint's.
    pub metrics: Option<Rc<HttpMetrics>>,
    /// The identity the endpoint must have.
    pub require_id: Option<String>,
    /// Limits.
    pub timeouts: Timeouts,
    /// When to try again.
    pub retry: Option<Arc<Retry>>,
    /// When it was routed.
    pub routed: Instant,
    /// Series of the outbound route.
    pub route: Option<Rc<RouteMetrics>>,
    /// How long the head of its answer may take once it has begun.
    pub head_timeout: Duration,
    /// Who watches it.
    pub observed: Observed,
}

/// A backend on this worker.
#[derive(Clone, Debug)]
pub enum Backend {
    /// One endpoint.
    Forward(Rc<Endpoint>),
    /// The endpoints of a service.
    Balance(Rc<Balancer>),
    /// The control plane named no way to reach it.
    None(Rc<str>),
}

impl Backend {
    /// Whether another endpoint may be there when one fails.
    pub fn is_balanced(&self) -> bool {
        matches!(self, Self::Balance(_))
    }

    /// Whether a request would be sent at once.
    pub fn is_ready(&self, now: Instant) -> bool {
        match self {
            Self::Forward(_) => true,
            Self::Balance(balancer) => balancer.is_ready(now),
            Self::None(_) => true,
        }
    }
}

impl Routed {
    /// Has the request watched from here on.
    fn observe(&mut self, observed: &Observed) {
        observed.propagate(&mut self.edits);
        self.observed = observed.clone();
    }

    /// The series of a request on its way.
    fn meter<'a>(&'a self, flight: &'a InFlight) -> &'a HttpMetrics {
        self.metrics
            .as_deref()
            .unwrap_or_else(|| flight.endpoint.http())
    }

    /// Counts a request that goes out.
    fn begin(&self, flight: &InFlight) {
        self.observed.dispatched(&flight.endpoint);
        self.meter(flight).request();
        if let Some(route) = &self.route {
            route.request();
        }
    }

    /// Counts an answer, also for circuit breaking.
    fn finish(&self, flight: &InFlight, outcome: Outcome) {
        self.meter(flight).response(outcome);
        if let Some(route) = &self.route {
            let now = Instant::now();
            let since = |then| now.saturating_duration_since(then);
            route.response(outcome, since(self.routed), since(flight.started));
        }
        flight.judged(outcome);
        self.observed.ended(outcome);
    }

    /// The limits of try number `n`; the last one waits for headers as long as it takes.
    fn deadlines(&self, n: u32) -> Option<Box<Deadlines>> {
        let retry = self.retry.as_deref();
        let headers = retry
            .filter(|retry| n < u32::from(retry.max_retries))
            .and_then(|retry| retry.timeout);
        Deadlines::new(self.timeouts, headers, self.routed)
    }

    /// Whether try number `n` may be followed by another because of its answer.
    fn wants_retry(&self, n: u32, status: u16, grpc: Option<u16>) -> bool {
        self.retry
            .as_deref()
            .is_some_and(|retry| n < u32::from(retry.max_retries) && retry.wants(status, grpc))
    }

    /// Waits before try number `n`.
    async fn back_off(&self, n: u32) {
        if let Some(backoff) = self.retry.as_deref().and_then(|retry| retry.backoff) {
            tokio::time::sleep(backoff.random_delay(n)).await;
        }
    }

    /// An endpoint, waiting for one until the deadline.
    async fn endpoint(&self, deadline: Instant) -> Result<Rc<Endpoint>, HttpError> {
        let endpoint = self.any_endpoint(deadline).await?;
        if let Some(required) = &self.require_id {
            let found = endpoint.meta().peer.as_ref().map(|p| p.id().as_str());
            if found != Some(required.as_str()) {
                let message = format!("required id {required:?}; found {found:?}");
                return Err(HttpError::new(
                    Class::BadGateway,
                    "identity required",
                    message,
                ));
            }
        }
        Ok(endpoint)
    }

    async fn any_endpoint(&self, deadline: Instant) -> Result<Rc<Endpoint>, HttpError> {
        match &self.backend {
            Backend::Forward(endpoint) => Ok(endpoint.clone()),
            Backend::Balance(balancer) => {
                balancer
                    .ready(deadline, self.capacity)
                    .await
                    .map_err(|error| match error {
                        NotReady::FailFast => HttpError::fail_fast(),
                        NotReady::Shed => HttpError::load_shed(),
                    })
            }
            Backend::None(name) => Err(HttpError::new(
                Class::BadGateway,
                "unexpected",
                format!("backend for {name} has no dispatcher"),
            )),
        }
    }
}

/// Other endpoints tried after a failed connect.
const MAX_TRIES: u32 = 8;

impl From<ConnectError> for HttpError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Timeout(after) => Self::connect_timeout(after),
            ConnectError::Loop(message) => Self::io(message),
            ConnectError::Io(error) => Self::io(error.to_string()),
            ConnectError::Tls(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                Self::io(cause.unwrap_or_else(|| error.to_string()))
            }
            ConnectError::Http2(error) => Self::io(error.to_string()),
        }
    }
}
