//! Proxying HTTP, the part both directions share: a server loop per client connection, and exchanges
//! between any two HTTP versions. A [`Direction`] only decides where a request goes and what changes.

pub mod server1;
pub mod server2;

pub(crate) mod again;
mod authority;
mod deadline;
mod edits;
mod exchange1;
mod exchange2;
mod fate;
pub(crate) mod filters;
mod held;
mod interim;
mod penalty;
mod stream;

use std::{
    cell::{Cell, RefCell},
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

pub use self::edits::{Edits, Lines};
use self::{
    again::{Resend, Step, Why},
    deadline::{Deadlines, Expired},
    server1::Failed,
};
use crate::{
    balance::{Balancer, NotReady},
    budget::Budget,
    connect::{ConnectError, Payload},
    endpoint::{Endpoint, InFlight},
    errors::HttpError,
    metrics::{
        http::{HttpMetrics, Outcome},
        inbound::InboundMetrics,
        route::RouteMetrics,
    },
    observe::{self, Observed},
    policy::{
        client::{Retry, RetryOn, Timeouts},
        matching,
        profile::{self, ProfileRule},
    },
    worker::{Drain, Gate},
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
    fn in_flight(&self) -> (&Gate, usize);

    /// Whether memory is so short that requests are refused.
    fn overloaded(&self) -> &Cell<bool>;
}

/// One of the requests in flight.
struct Admitted<'a>(&'a Gate);

impl<'a> Admitted<'a> {
    /// Counts a request in, unless there are too many.
    fn new(direction: &'a impl Direction) -> Result<Self, HttpError> {
        let (gate, max) = direction.in_flight();
        if direction.overloaded().get() || !gate.enter(max) {
            return Err(HttpError::load_shed());
        }
        Ok(Self(gate))
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.leave();
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
    /// Series of the inbound route.
    pub inbound: Option<Rc<InboundMetrics>>,
    /// What may be sent again without being asked for.
    pub resend: Resend,
    /// What repetitions are taken from.
    pub budget: Option<Rc<Budget>>,
    /// What the service profile's route says.
    pub profile: Option<Arc<ProfileRule>>,
    /// Series of the service profile's route, inbound.
    pub profile_series: Option<Rc<HttpMetrics>>,
    /// What the profile's retries are taken from.
    pub retry_budget: Option<Rc<Budget>>,
    /// How the last try ended, and when.
    pub ended: Cell<Option<(Outcome, Instant)>>,
    /// Whether the retry policy has asked for another try.
    pub retried: Cell<bool>,
    /// What has been counted so far.
    pub tally: Tally,
}

/// What has been counted of a request so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// How the try on its way failed.
    concluded: Cell<Option<Outcome>>,
    /// A try that was counted as a request and will be answered by another one.
    owed: RefCell<Option<Rc<Endpoint>>>,
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

    /// The authority the request is given on its way to an endpoint, if it changes.
    fn authority<'a>(&'a self, flight: &'a InFlight) -> Option<&'a str> {
        let of_endpoint = flight.endpoint.meta().authority.as_deref();
        self.edits.authority.as_deref().or(of_endpoint)
    }

    /// Whether the client's connection ends with an answer because the endpoint's proxy says so.
    /// Where there are other endpoints, what one says about itself does not end anything.
    fn ends_with<'v>(&self, flight: &InFlight, said: impl FnOnce() -> Option<&'v [u8]>) -> bool {
        matches!(self.backend, Backend::Forward(_))
            && flight.endpoint.is_meshed()
            && said().is_some_and(|value| value.eq_ignore_ascii_case(b"close"))
    }

    /// How an answer counts.
    fn classify(&self, status: u16, grpc: Option<u16>) -> Outcome {
        match &self.profile {
            None => Outcome::classify(status, grpc),
            Some(profile) => profile::classify(&profile.classes, status, grpc),
        }
    }

    /// The head of an answer has come. `failed` says when to come back, where that is asked for.
    fn answered(
        &self,
        flight: &InFlight,
        status: u16,
        now: Instant,
        failed: impl FnOnce() -> Option<penalty::Failure>,
    ) {
        if flight.penalizes()
            && let Some(failure) = failed()
        {
            flight.penalized(failure.come_back, now);
        }
        flight.answered(now);
        let elapsed = now.saturating_duration_since(flight.started);
        self.meter(flight).latency(status, elapsed);
        if let Some(series) = &self.profile_series {
            series.latency(status, elapsed);
        }
        if self.profile.is_some()
            && let Some(series) = self.route.as_ref().and_then(|r| r.profile())
        {
            series.latency(status, now.saturating_duration_since(self.routed));
        }
    }

    /// Counts a request that goes out, unless it is the same one once more.
    fn begin(&self, flight: &InFlight) {
        self.observed.dispatched(|| observe::Destination {
            endpoint: &flight.endpoint,
            server: self.inbound.as_deref(),
            route: self.profile.as_deref().map_or(&[], |p| &p.route),
        });
        if self.tally.owed.take().is_some() {
            return;
        }
        self.meter(flight).request();
        if let Some(route) = &self.route {
            route.request();
        }
        if let Some(inbound) = &self.inbound {
            inbound.request();
        }
        if let Some(series) = &self.profile_series {
            series.request();
        }
    }

    /// Counts a piece of the request's body.
    fn request_frame(&self, size: usize) {
        match (&self.route, &self.inbound) {
            _ if size == 0 => {}
            (Some(route), _) => route.request_frame(size),
            (None, Some(inbound)) => inbound.request_frame(size),
            (None, None) => {}
        }
    }

    /// Counts a piece of the answer's body.
    fn response_frame(&self, size: usize) {
        match (&self.route, &self.inbound) {
            _ if size == 0 => {}
            (Some(route), _) => route.response_frame(size),
            (None, Some(inbound)) => inbound.response_frame(size),
            (None, None) => {}
        }
    }

    /// The answer of one try has ended.
    fn finish(&self, flight: &InFlight, outcome: Outcome) {
        self.count(flight, outcome);
        self.observed.ended(outcome);
    }

    /// Counts the answer of one try, also for circuit breaking.
    fn count(&self, flight: &InFlight, outcome: Outcome) {
        self.meter(flight).response(outcome);
        if let Some(route) = &self.route {
            let now = Instant::now();
            route.backend_response(outcome, now.saturating_duration_since(flight.started));
            self.ended.set(Some((outcome, now)));
        }
        if let Some(inbound) = &self.inbound {
            let now = Instant::now();
            let since = |then| now.saturating_duration_since(then);
            inbound.response(outcome, since(self.routed), since(flight.started));
        }
        if let Some(series) = &self.profile_series {
            series.response(outcome);
        }
        if outcome.is_telling() {
            flight.judged(outcome);
        }
    }

    /// A try has failed; how it counts depends on what comes next.
    fn conclude(&self, outcome: Outcome) {
        self.tally.concluded.set(Some(outcome));
    }

    /// Counts a failed try, now that it is known what comes next. One that is made again of our own
    /// accord is not an answer, the next one is; an answer of ours counts as what the client sees.
    fn settle(&self, flight: &InFlight, step: &Step, grpc: bool) {
        let concluded = self.tally.concluded.take();
        match step {
            Step::Again => {
                if let Some(outcome) = concluded {
                    flight.judged(outcome);
                }
                *self.tally.owed.borrow_mut() = Some(flight.endpoint.clone());
            }
            Step::End(Failed::Answer(error)) => {
                let expired = concluded.filter(Outcome::is_timeout);
                let outcome = expired.unwrap_or_else(|| self.own(error, grpc));
                if outcome.status != 0 {
                    let elapsed = flight.started.elapsed();
                    self.meter(flight).latency(outcome.status, elapsed);
                    if let Some(series) = &self.profile_series {
                        series.latency(outcome.status, elapsed);
                    }
                }
                self.count(flight, outcome);
            }
            Step::BackOff(_) | Step::End(_) => {
                let unknown = match step {
                    Step::End(Failed::Reset(_)) => "REFUSED",
                    _ => "UNKNOWN",
                };
                let outcome = concluded.unwrap_or_else(|| Outcome::broken(0, unknown));
                self.finish(flight, outcome);
            }
        }
    }

    /// How an answer of our own counts.
    fn own(&self, error: &HttpError, grpc: bool) -> Outcome {
        let (status, grpc) = error.statuses(grpc);
        self.classify(status, grpc)
    }

    /// Counts the request as a whole, after its last try; `error` is our own answer.
    fn done(&self, error: Option<&HttpError>, grpc: bool) {
        let refusal = error.and_then(HttpError::refusal);
        if let Some(endpoint) = self.tally.owed.take()
            && let Some(error) = error
        {
            self.unanswered(&endpoint, self.own(error, grpc), refusal);
        }
        let Some(route) = &self.route else {
            return;
        };
        let (outcome, at) = match (refusal, self.ended.get()) {
            (None, Some(ended)) => ended,
            (refusal, _) => {
                let outcome = Outcome::broken(0, refusal.unwrap_or("UNKNOWN"));
                (outcome, Instant::now())
            }
        };
        route.response(outcome, at.saturating_duration_since(self.routed));
        if self.retried.get()
            && let Some(retry) = &self.retry
            && outcome.error.is_empty()
            && !retry.wants(outcome.status, outcome.grpc)
        {
            route.retries().successes.inc();
        }
    }

    /// Counts our own answer where the request was counted: no endpoint came after that one.
    fn unanswered(&self, endpoint: &Endpoint, outcome: Outcome, refusal: Option<&'static str>) {
        let elapsed = self.routed.elapsed();
        let metrics = self.metrics.as_deref().unwrap_or_else(|| endpoint.http());
        metrics.latency(outcome.status, elapsed);
        metrics.response(outcome);
        if let Some(route) = &self.route {
            let outcome = refusal.map_or(outcome, |error| Outcome::broken(0, error));
            route.backend_response(outcome, elapsed);
        }
        if let Some(inbound) = &self.inbound {
            inbound.response(outcome, elapsed, elapsed);
        }
    }

    /// Counts a request that is sent again.
    fn resent(&self, why: Why) {
        match &self.route {
            Some(route) => route.resent(why.label()),
            None => {
                if let Some(metrics) = &self.metrics {
                    metrics.resent(why.label());
                }
            }
        }
    }

    /// Largest body kept for another try.
    fn replay_limit(&self) -> usize {
        match &self.retry {
            Some(retry) => retry.max_request_bytes.max(self.resend.limit),
            None => self.resend.limit,
        }
    }

    /// The limits of try number `n`; the last one waits for headers as long as it takes.
    fn deadlines(&self, n: u32) -> Option<Box<Deadlines>> {
        let retry = self.retry.as_deref();
        let headers = retry
            .filter(|retry| n < u32::from(retry.max_retries))
            .and_then(|retry| retry.timeout);
        Deadlines::new(self.timeouts, headers, self.routed)
    }

    /// Whether a retry policy may have the request sent again. `kept` is the size of its body, if that
    /// is there as a whole: what is kept for other reasons may be more than the policy allows.
    fn replays(&self, kept: Option<usize>) -> bool {
        let limit = self.retry.as_ref().map(|retry| retry.max_request_bytes);
        kept.is_some_and(|size| limit.is_none_or(|limit| size <= limit))
    }

    /// Whether try number `n` is followed by another because of its answer; `kept` is the size of its
    /// body, if the request has been sent and can be sent again.
    fn wants_retry(&self, n: u32, kept: Option<usize>, status: u16, grpc: Option<u16>) -> bool {
        let Some(retry) = self.retry.as_deref().filter(|r| r.wants(status, grpc)) else {
            return false;
        };
        let whole = self.replays(kept);
        if let RetryOn::Class(_) = retry.on {
            return self.profile_retry(whole);
        }
        let exceeded = n >= u32::from(retry.max_retries);
        if let Some(route) = &self.route {
            if exceeded {
                route.retries().limit_exceeded.inc();
            } else if !whole {
                route.retries().overflow.inc();
            }
        }
        whole && !exceeded
    }

    /// Retries of a profile are bounded by its budget alone: without one there are none.
    fn profile_retry(&self, whole: bool) -> bool {
        let budget = self.retry_budget.as_ref();
        let allowed = whole && budget.is_some_and(|b| b.withdraw(Instant::now()));
        if let Some(series) = self.route.as_ref().and_then(|r| r.profile()) {
            series.retryable(whole && !allowed);
        }
        allowed
    }

    /// Whether the gRPC status of an answer decides about another try; `grpc` says whether the
    /// request is a call.
    fn awaits_grpc_status(&self, n: u32, grpc: bool) -> bool {
        self.retry.as_deref().is_some_and(|retry| {
            n < u32::from(retry.max_retries) && retry.on.asks_grpc_status(grpc)
        })
    }

    /// Waits before try number `n`.
    async fn back_off(&self, n: u32) -> Result<(), Failed> {
        let Some(backoff) = self.retry.as_deref().and_then(|retry| retry.backoff) else {
            return Ok(());
        };
        let delay = pin!(tokio::time::sleep(backoff.random_delay(n)));
        self.in_time(delay)
            .await
            .map_err(|expired| self.late(expired))
    }

    /// Waits for what must come before the request is sent, no longer than the request may take.
    /// The wait stays where it is: a copy in every future around it would make connections large.
    fn in_time<T>(
        &self,
        wait: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Result<T, Expired>> {
        deadline::before(&self.timeouts, self.routed, wait)
    }

    /// The request took too long before it was sent.
    fn late(&self, expired: Expired) -> Failed {
        let outcome = Outcome::broken(0, expired.label());
        self.ended.set(Some((outcome, Instant::now())));
        Failed::Answer(expired.error())
    }

    /// An endpoint, waiting for one until the deadline.
    async fn endpoint(
        &self,
        payload: Payload,
        deadline: Instant,
    ) -> Result<Rc<Endpoint>, HttpError> {
        self.checked(self.any_endpoint(payload, deadline).await?)
    }

    /// The endpoint, if it is who the request asks for.
    fn checked(&self, endpoint: Rc<Endpoint>) -> Result<Rc<Endpoint>, HttpError> {
        if let Some(required) = &self.require_id {
            let found = endpoint.meta().peer.as_ref().map(|p| p.id().as_str());
            if found != Some(required.as_str()) {
                return Err(HttpError::identity_required(required, found));
            }
        }
        Ok(endpoint)
    }

    async fn any_endpoint(
        &self,
        payload: Payload,
        deadline: Instant,
    ) -> Result<Rc<Endpoint>, HttpError> {
        match &self.backend {
            Backend::Forward(endpoint) => Ok(endpoint.clone()),
            Backend::Balance(balancer) => balancer
                .ready(payload, deadline, self.capacity)
                .await
                .map_err(|error| match error {
                    NotReady::FailFast => HttpError::fail_fast(),
                    NotReady::Shed => HttpError::load_shed(),
                }),
            Backend::None(name) => Err(HttpError::no_dispatcher(name)),
        }
    }
}

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
