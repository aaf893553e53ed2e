//! Whether a request is sent once more, or elsewhere. Three reasons: the application has surely not
//! received it (any method, another endpoint, at once; also when a connection only takes long); its
//! connection died before any byte of an answer (idempotent methods, once, within a budget); the route's
//! retry policy asks for it.

use std::{
    cell::{Cell, RefCell},
    pin::{Pin, pin},
    rc::Rc,
    time::{Duration, Instant},
};

use linkerd_http1::Method;

use super::{Backend, Routed, server1::Failed};
use crate::{
    connect::{ConnectError, Payload},
    endpoint::{Endpoint, InFlight},
    errors::{FAIL_FAST, HttpError},
    metrics::http::Outcome,
    policy::client::RetryOn,
};

/// Why a request is sent again; a label of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// No connection could be made.
    Connect,
    /// The connection took long, and another endpoint has one.
    Slow,
    /// The connection was closed before the request was taken.
    Closed,
    /// The HTTP/2 peer has not looked at the stream.
    Refused,
    /// The peer's proxy cannot reach its application.
    Unreachable,
    /// The connection died while an answer was waited for.
    Died,
}

impl Why {
    /// The value of the label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Slow => "slow",
            Self::Closed => "closed",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Died => "died",
        }
    }
}

/// What may be sent again without a retry policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resend {
    /// Requests the application has not received.
    pub unsent: bool,
    /// Idempotent requests whose connection died.
    pub died: Died,
    /// Largest body kept for it.
    pub limit: usize,
}

/// When a request whose connection died is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Died {
    /// Never.
    Never,
    /// When the connection had been idle before.
    Reused,
    /// Whatever the connection was.
    Any,
}

/// Largest body kept when no policy says otherwise.
pub(crate) const REPLAY: usize = 64 * 1024;

/// How long a request waits for a new connection when another endpoint has one.
const SLOW: Duration = Duration::from_millis(50);

/// Tries of one request that got a connection.
const MAX_TRIES: u32 = 8;

/// Whether a method may be repeated although it may have been handled.
pub(super) fn idempotent(method: Method) -> bool {
    use Method::{Delete, Get, Head, Options, Put, Trace};
    matches!(method, Get | Head | Options | Put | Delete | Trace)
}

/// What comes after a failed try.
#[derive(Debug)]
pub(super) enum Step {
    /// The next try, at once.
    Again,
    /// The next try, after the policy's backoff with this number.
    BackOff(u32),
    /// No more.
    End(Failed),
}

/// The tries of one request.
#[derive(Debug)]
pub(super) struct Tries<'a> {
    routed: &'a Routed,
    idempotent: bool,
    payload: Payload,
    /// Until when an endpoint is waited for.
    deadline: Cell<Instant>,
    made: Cell<u32>,
    by_policy: Cell<u32>,
    repeated: Cell<bool>,
    fresh: Cell<bool>,
    moved_on: Cell<bool>,
    avoid: RefCell<Option<Rc<Endpoint>>>,
}

impl<'a> Tries<'a> {
    /// No try was made yet. `payload` is how endpoints are asked.
    pub(super) fn new(routed: &'a Routed, method: Method, payload: Payload) -> Self {
        Self {
            routed,
            payload,
            idempotent: idempotent(method),
            deadline: Cell::new(Instant::now() + routed.failfast),
            made: Cell::new(0),
            by_policy: Cell::new(0),
            repeated: Cell::new(false),
            fresh: Cell::new(false),
            moved_on: Cell::new(false),
            avoid: RefCell::new(None),
        }
    }

    /// How often the policy has asked for another try.
    pub(super) fn by_policy(&self) -> u32 {
        self.by_policy.get()
    }

    /// When waiting for an endpoint ends.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline.get()
    }

    /// Whether connections out of the pool are not to be trusted.
    pub(super) fn fresh(&self) -> bool {
        self.fresh.get()
    }

    /// An endpoint for the next try: another one if there is one. A service in fail-fast is asked
    /// again where the retry policy says so and there is an endpoint by then.
    pub(super) async fn endpoint(&self) -> Result<Rc<Endpoint>, Failed> {
        loop {
            let found = self.routed.in_time(pin!(self.pick())).await;
            let error = match found.map_err(|expired| self.routed.late(expired))? {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => error,
            };
            if error.refusal() != Some(FAIL_FAST) {
                return Err(Failed::Answer(error));
            }
            let Some(n) = self.by_policy_again() else {
                return Err(Failed::Answer(error));
            };
            self.routed.back_off(n).await?;
            if !self.routed.backend.is_ready(Instant::now()) {
                if let Some(route) = &self.routed.route {
                    route.retries().overflow.inc();
                }
                return Err(Failed::Answer(error));
            }
        }
    }

    async fn pick(&self) -> Result<Rc<Endpoint>, HttpError> {
        self.made.set(self.made.get() + 1);
        let avoid = self.avoid.borrow_mut().take();
        if let (Some(avoid), Backend::Balance(balancer)) = (&avoid, &self.routed.backend)
            && let Some(other) = balancer.pick_other(avoid, self.payload, Instant::now())
        {
            return self.routed.checked(other);
        }
        self.routed
            .endpoint(self.payload, self.deadline.get())
            .await
    }

    /// Whether the retry policy allows another try after an error that left the request whole; gives
    /// the number of its backoff. A profile judges answers only.
    fn by_policy_again(&self) -> Option<u32> {
        let retry = self.routed.retry.as_deref()?;
        if matches!(retry.on, RetryOn::Class(_)) {
            return None;
        }
        if self.by_policy.get() >= u32::from(retry.max_retries) {
            if let Some(route) = &self.routed.route {
                route.retries().limit_exceeded.inc();
            }
            return None;
        }
        Some(self.count_retry())
    }

    /// Counts a try the policy asks for, which has all the time a first one has.
    fn count_retry(&self) -> u32 {
        let n = self.by_policy.get();
        self.by_policy.set(n + 1);
        self.deadline.set(Instant::now() + self.routed.failfast);
        self.routed.retried.set(true);
        if let Some(route) = &self.routed.route {
            route.retries().requests.inc();
        }
        n
    }

    fn more(&self, now: Instant) -> bool {
        self.made.get() < MAX_TRIES && self.in_time(now)
    }

    fn in_time(&self, now: Instant) -> bool {
        let deadline = match &self.routed.backend {
            Backend::Balance(balancer) => balancer.patience(self.deadline.get()),
            _ => self.deadline.get(),
        };
        now < deadline
    }

    /// No connection could be made: nothing was sent.
    pub(super) fn connect_failed(error: ConnectError) -> Failed {
        Failed::Unsent(error.into(), Why::Connect)
    }

    /// Makes a connection for a request on its way, in time. The connection is left to whoever comes
    /// next when this request cannot wait for it any longer, or need not because `pooled` ones will do
    /// and another endpoint has one.
    pub(super) async fn connected<T>(
        &self,
        flight: &InFlight,
        pooled: bool,
        connecting: Pin<&mut impl Future<Output = Result<T, ConnectError>>>,
    ) -> Result<T, Failed> {
        let stays = !pooled || flight.is_probe() || self.routed.require_id.is_some();
        let made = tokio::select! {
            biased;
            made = self.routed.in_time(connecting) => made,
            () = self.another(&flight.endpoint), if !stays && !self.moved_on.get() => {
                flight.endpoint.slow();
                self.moved_on.set(true);
                return Err(Failed::Unsent(HttpError::connect_timeout(SLOW), Why::Slow));
            }
        };
        match made {
            Ok(made) => made.map_err(Self::connect_failed),
            Err(expired) => {
                self.routed.conclude(Outcome::broken(0, expired.label()));
                Err(Failed::Answer(expired.error()))
            }
        }
    }

    /// Ends when a connection takes long and another endpoint has one.
    async fn another(&self, endpoint: &Rc<Endpoint>) {
        let Backend::Balance(balancer) = &self.routed.backend else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(SLOW).await;
            if balancer.has_other(endpoint, self.payload, Instant::now()) {
                return;
            }
        }
    }

    /// Whether the answer of a peer's proxy is dropped in favour of another try: `error` is what the
    /// proxy says went wrong.
    pub(super) fn drops_answer(
        &self,
        endpoint: &Rc<Endpoint>,
        status: u16,
        grpc: Option<u16>,
        error: Option<&[u8]>,
    ) -> Option<Why> {
        let error = error?;
        if !endpoint.is_meshed() {
            return None;
        }
        let why = peer_error(status, grpc, error)?;
        let now = Instant::now();
        let Backend::Balance(balancer) = &self.routed.backend else {
            return None;
        };
        let other =
            balancer.is_cut_off() || balancer.pick_other(endpoint, self.payload, now).is_some();
        if !self.more(now) || !other {
            return None;
        }
        let allowed = match why {
            Why::Died => self.may_repeat(false, now),
            _ => self.routed.resend.unsent,
        };
        allowed.then_some(why)
    }

    fn may_repeat(&self, reused: bool, now: Instant) -> bool {
        let wanted = match self.routed.resend.died {
            Died::Never => false,
            Died::Reused => reused,
            Died::Any => true,
        };
        wanted
            && self.idempotent
            && !self.repeated.get()
            && self.routed.budget.as_ref().is_none_or(|b| b.withdraw(now))
    }

    /// Whether another connection is tried after one that could not be made. In time, the endpoint
    /// rests before it is tried again, and that is bound enough. Later, only what is ready besides
    /// it: discovery may have told of it just now, after a silence that took all the time there was.
    fn dials_again(&self, endpoint: &Rc<Endpoint>, now: Instant) -> bool {
        let Backend::Balance(balancer) = &self.routed.backend else {
            return false;
        };
        if self.in_time(now) {
            self.made.set(self.made.get().saturating_sub(1));
            return true;
        }
        self.made.get() < MAX_TRIES && balancer.pick_other(endpoint, self.payload, now).is_some()
    }

    /// Decides what comes after a failed try at an endpoint.
    pub(super) fn after(&self, failed: Failed, endpoint: &Rc<Endpoint>) -> Step {
        let now = Instant::now();
        match failed {
            Failed::Unsent(_, Why::Connect) if self.dials_again(endpoint, now) => {
                self.again(Why::Connect, endpoint)
            }
            Failed::Unsent(_, Why::Slow) => {
                // Nothing was tried yet.
                self.made.set(self.made.get().saturating_sub(1));
                self.again(Why::Slow, endpoint)
            }
            Failed::Unsent(error, Why::Connect) => match self.routed.backend.is_balanced() {
                // All the time there was went into connecting: that is fail-fast.
                true => self.by_policy_or(error),
                false => Step::End(Failed::told(error)),
            },
            Failed::Unsent(_, why) if self.routed.resend.unsent && self.more(now) => {
                self.again(why, endpoint)
            }
            Failed::Dropped(Why::Died) => {
                self.repeated.set(true);
                self.again(Why::Died, endpoint)
            }
            Failed::Dropped(why) => {
                endpoint.unreachable();
                self.again(why, endpoint)
            }
            Failed::Died { reused, .. } if self.more(now) && self.may_repeat(reused, now) => {
                self.repeated.set(true);
                self.again(Why::Died, endpoint)
            }
            Failed::Unsent(error, Why::Refused) => self.by_policy_or(error),
            Failed::Unsent(error, _) | Failed::Died { error, .. } => Step::End(Failed::told(error)),
            Failed::Retry(..) => Step::BackOff(self.count_retry()),
            failed => Step::End(failed),
        }
    }

    fn by_policy_or(&self, error: HttpError) -> Step {
        match self.by_policy_again() {
            Some(n) => Step::BackOff(n),
            None => Step::End(Failed::told(error)),
        }
    }

    fn again(&self, why: Why, endpoint: &Rc<Endpoint>) -> Step {
        tracing::debug!(endpoint = %endpoint.addr(), why = why.label(), "Request is sent again");
        self.routed.resent(why);
        let connecting = matches!(why, Why::Connect | Why::Slow);
        self.fresh.set(self.fresh.get() || !connecting);
        if why != Why::Connect || !self.in_time(Instant::now()) {
            *self.avoid.borrow_mut() = Some(endpoint.clone());
        }
        Step::Again
    }
}

/// Texts of proxies that could not reach their application, ours and Linkerd's.
const NOT_REACHED: &[&str] = &[
    "Connection refused",
    "connect timed out after",
    "service in fail-fast",
    "shutting down",
];

/// What an error answer of a peer's proxy says about the request; `None` when it is to be passed on.
fn peer_error(status: u16, grpc: Option<u16>, error: &[u8]) -> Option<Why> {
    let gateway = matches!(status, 502 | 504) || matches!(grpc, Some(4 | 14));
    if !gateway {
        return None;
    }
    let text = String::from_utf8_lossy(error);
    if NOT_REACHED.iter().any(|part| text.contains(part)) {
        return Some(Why::Unreachable);
    }
    let broken = status == 502 || (grpc == Some(14) && text != "service unavailable");
    broken.then_some(Why::Died)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_peers() {
        for (name, status, grpc, error, want) in [
            (
                "port refused",
                502,
                None,
                "Connection refused (os error 111)",
                Some(Why::Unreachable),
            ),
            (
                "port refused, in Linkerd's words",
                502,
                None,
                "error trying to connect: tcp connect error: Connection refused (os error 111)",
                Some(Why::Unreachable),
            ),
            (
                "application does not accept",
                504,
                None,
                "connect timed out after 100ms",
                Some(Why::Unreachable),
            ),
            (
                "fail-fast",
                504,
                None,
                "service in fail-fast",
                Some(Why::Unreachable),
            ),
            (
                "fail-fast, gRPC",
                200,
                Some(4),
                "service in fail-fast",
                Some(Why::Unreachable),
            ),
            (
                "port refused, gRPC",
                200,
                Some(14),
                "Connection refused (os error 111)",
                Some(Why::Unreachable),
            ),
            (
                "application died",
                502,
                None,
                "connection closed before message completed",
                Some(Why::Died),
            ),
            ("load shed", 503, None, "service unavailable", None),
            (
                "load shed, gRPC",
                200,
                Some(14),
                "service unavailable",
                None,
            ),
            (
                "a timeout of the policy",
                504,
                None,
                "request timeout: 1s",
                None,
            ),
            (
                "not allowed",
                403,
                None,
                "unauthorized request on route",
                None,
            ),
            (
                "rate limit",
                429,
                None,
                "total rate limit exceeded: 1rps",
                None,
            ),
        ] {
            assert_eq!(peer_error(status, grpc, error.as_bytes()), want, "{name}");
        }
    }

    #[test]
    fn methods() {
        for (name, want) in [
            ("GET", true),
            ("HEAD", true),
            ("OPTIONS", true),
            ("PUT", true),
            ("DELETE", true),
            ("TRACE", true),
            ("POST", false),
            ("PATCH", false),
            ("CONNECT", false),
            ("PURGE", false),
        ] {
            assert_eq!(idempotent(Method::of(name.as_bytes())), want, "{name}");
        }
    }
}
