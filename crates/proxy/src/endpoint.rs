//! One address on one worker: its load, its backoff after failures, its idle HTTP/1 connections and
//! its HTTP/2 connection. Outbound endpoints come from discovery, inbound ones are local applications.

use std::{
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::Notify;

use crate::{
    balance::Load,
    breaker::{Breaker, Verdict},
    config::{Backoff, Http2Life, Pool},
    connect::{ConnectError, Connector, Payload},
    h1, h2io,
    metrics::{
        Labels, Registry,
        http::{HttpMetrics, Outcome},
        stack::{Stack, Stacks},
        transport::TransportMetrics,
    },
    policy::{
        client::{FailureAccrual, Penalty},
        endpoint::{EndpointMeta, Hint},
    },
};

/// What endpoints of one kind have in common.
#[derive(Clone, Debug)]
pub struct EndpointFactory {
    /// How connections are made.
    pub connector: Rc<Connector>,
    /// Where things are counted.
    pub registry: Arc<Registry>,
    /// `inbound` or `outbound`.
    pub direction: &'static str,
    /// The `authority` label.
    pub authority: Option<String>,
    /// Latency assumed at first.
    pub default_rtt: Duration,
    /// How fast latency is forgotten.
    pub decay: Duration,
    /// Wait after failed connects.
    pub backoff: Backoff,
    /// HTTP/1 pool.
    pub pool: Pool,
    /// Requests in flight above which HTTP/1 travels as HTTP/2.
    pub upgrade_threshold: u32,
    /// How long HTTP/2 connections live.
    pub http2_life: Http2Life,
    /// Labels in place of those made here (inbound).
    pub labels: Option<Arc<str>>,
    /// Why connections to an endpoint without an identity are not mesh TLS.
    pub no_tls_reason: &'static str,
    /// Counts endpoints.
    pub stacks: Rc<Stacks>,
    /// Where idle connections are looked after.
    pub swept: Rc<Swept>,
    /// Circuit breaking.
    pub accrual: Option<FailureAccrual>,
    /// Failed answers count as slow.
    pub penalty: Option<Penalty>,
    /// Told when a probe has ended: requests that wait for an endpoint look again.
    pub waiters: Rc<Notify>,
}

/// Endpoints of one worker whose idle connections are looked after.
#[derive(Debug, Default)]
pub struct Swept(RefCell<Vec<Weak<Endpoint>>>);

impl Swept {
    /// Closes connections that have been idle for too long.
    pub fn sweep(&self, now: Instant) {
        let mut live = Vec::new();
        self.0.borrow_mut().retain(|weak| {
            let endpoint = weak.upgrade();
            let keep = endpoint.is_some();
            live.extend(endpoint);
            keep
        });
        for endpoint in live {
            endpoint.sweep(now);
        }
    }
}

impl EndpointFactory {
    /// A new endpoint.
    pub fn make(&self, addr: SocketAddr, meta: Arc<EndpointMeta>) -> Rc<Endpoint> {
        let local = self.connector.is_local(addr.ip());
        let labels = self
            .labels
            .clone()
            .unwrap_or_else(|| self.endpoint_labels(addr, &meta, local));
        let endpoint = Rc::new_cyclic(|this| Endpoint {
            this: this.clone(),
            addr,
            local,
            load: Load::new(self.default_rtt, self.decay, Instant::now()),
            meta,
            shared: self.clone(),
            labels,
            idle: RefCell::default(),
            h2: RefCell::new(None),
            h2_connecting: tokio::sync::Mutex::new(()),
            patience: Patience::default(),
            _stack: self.stacks.one(),
            breaker: self.accrual.clone().map(Breaker::new),
            failures: Cell::new(0),
            connecting_behind: Cell::new(false),
            ready_at: Cell::new(None),
            multiplex: Multiplex::new(self.upgrade_threshold),
            http: OnceCell::new(),
            transport: OnceCell::new(),
        });
        self.swept.0.borrow_mut().push(Rc::downgrade(&endpoint));
        endpoint
    }

    fn endpoint_labels(&self, addr: SocketAddr, meta: &EndpointMeta, local: bool) -> Arc<str> {
        let mut labels = Labels::direction(self.direction);
        if let Some(authority) = &self.authority {
            labels = labels.with("authority", authority);
        }
        labels = labels.target(addr);
        labels = match &meta.peer {
            _ if local => labels
                .with("tls", "no_identity")
                .with("no_tls_reason", "loopback"),
            Some(peer) => labels
                .with("tls", "true")
                .with("server_id", peer.id().as_str()),
            None => labels
                .with("tls", "no_identity")
                .with("no_tls_reason", self.no_tls_reason),
        };
        for (name, value) in &meta.labels {
            labels = labels.with(&format!("dst_{name}"), value);
        }
        labels.finish()
    }
}

/// One address.
#[derive(Debug)]
pub struct Endpoint {
    /// Ourselves, for the driver of the HTTP/2 connection.
    this: Weak<Self>,
    addr: SocketAddr,
    meta: Arc<EndpointMeta>,
    /// Whether it is this pod.
    local: bool,
    load: Load,
    shared: EndpointFactory,
    labels: Arc<str>,
    idle: RefCell<Vec<Idle>>,
    h2: RefCell<Option<Http2>>,
    /// Held while a connection is made, so that only one is.
    h2_connecting: tokio::sync::Mutex<()>,
    patience: Patience,
    _stack: Stack,
    breaker: Option<Breaker>,
    failures: Cell<u32>,
    /// A connection is being made for whoever comes next.
    connecting_behind: Cell<bool>,
    ready_at: Cell<Option<Instant>>,
    /// Whether HTTP/1 requests travel as HTTP/2.
    multiplex: Multiplex,
    http: OnceCell<HttpMetrics>,
    transport: OnceCell<Rc<TransportMetrics>>,
}

/// Requests that wait for an application to listen.
#[derive(Debug, Default)]
struct Patience {
    waiting: Cell<usize>,
    /// One has waited in vain: nobody waits until the application listens.
    over: Cell<bool>,
}

/// Why a request to an application has no connection.
#[derive(Debug)]
pub enum NotListening {
    /// Waiting would not help.
    Connect(ConnectError),
    /// It was waited for long enough.
    FailFast,
    /// Too many wait already.
    Shed,
}

/// An HTTP/2 connection; it closes when nobody holds its sender and its last stream has ended.
#[derive(Debug)]
struct Http2 {
    send: SendRequest<Bytes>,
    /// When it was last seen with requests.
    used: Instant,
    /// When the next one takes over.
    until: Instant,
}

#[derive(Debug)]
struct Idle {
    conn: h1::Conn,
    since: Instant,
}

/// An HTTP/1 connection to use for one request.
#[derive(Debug)]
pub struct Checkout {
    /// The connection.
    pub conn: h1::Conn,
    /// Whether it has served requests before.
    pub reused: bool,
}

impl Endpoint {
    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What discovery knows.
    pub fn meta(&self) -> &Arc<EndpointMeta> {
        &self.meta
    }

    /// Its load.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Whether its connections are mesh TLS.
    pub fn is_meshed(&self) -> bool {
        self.meta.peer.is_some() && !self.local
    }

    /// Whether it may be tried now.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.ready_at.get().is_none_or(|at| at <= now)
            && self.breaker.as_ref().is_none_or(|b| b.is_ready(now))
    }

    /// When it may be tried again, if it is backing off.
    pub fn ready_at(&self) -> Option<Instant> {
        let breaker = self.breaker.as_ref().and_then(Breaker::ready_at);
        self.ready_at.get().max(breaker)
    }

    /// HTTP series.
    pub fn http(&self) -> &HttpMetrics {
        self.http
            .get_or_init(|| HttpMetrics::new(&self.shared.registry, self.labels.clone()))
    }

    fn transport(&self) -> &Rc<TransportMetrics> {
        self.transport.get_or_init(|| {
            let labels = format!("peer=\"dst\",{}", self.labels).into();
            let zone = (self.shared.direction == "outbound").then(|| self.meta.zone_locality());
            TransportMetrics::with_zone(&self.shared.registry, labels, zone)
        })
    }

    /// Opens a connection for a payload.
    pub async fn connect(&self, payload: Payload) -> Result<h1::Conn, ConnectError> {
        let result = self
            .shared
            .connector
            .connect(self.addr, &self.meta, payload)
            .await;
        match result {
            Ok(connected) => {
                self.failures.set(0);
                self.ready_at.set(None);
                self.patience.over.set(false);
                let io = connected.io.metered(self.transport().open());
                let mut conn = h1::Conn::new(io);
                if let Some(preamble) = connected.preamble {
                    conn.queue(&preamble);
                }
                Ok(conn)
            }
            Err(error) => {
                self.failed();
                tracing::debug!(endpoint = %self.addr, %error, "Failed to connect");
                Err(error)
            }
        }
    }

    /// Its proxy says that the application cannot be reached: it rests as after a failed connect.
    pub fn unreachable(&self) {
        self.failed();
    }

    /// Whether its proxy reads HTTP: then an orderly end without an answer means that the request
    /// was not taken. Otherwise it may be the application that ended.
    pub fn ends_orderly(&self) -> bool {
        self.is_meshed() && self.meta.inbound_port.is_some() && self.meta.hint != Hint::Opaque
    }

    fn failed(&self) {
        let failures = self.failures.get();
        let delay = self.shared.backoff.random_delay(failures);
        self.failures.set(failures.saturating_add(1));
        self.ready_at.set(Some(Instant::now() + delay));
    }

    /// An idle HTTP/1 connection that still lives, or a new one.
    pub async fn http1(&self) -> Result<Checkout, ConnectError> {
        while let Some(idle) = self.idle.borrow_mut().pop() {
            let mut conn = idle.conn;
            if conn.is_alive() {
                return Ok(Checkout { conn, reused: true });
            }
        }
        let conn = self.connect(Payload::Http1).await?;
        Ok(Checkout {
            conn,
            reused: false,
        })
    }

    /// A fresh HTTP/1 connection, whatever is idle.
    pub async fn http1_fresh(&self) -> Result<Checkout, ConnectError> {
        let conn = self.connect(Payload::Http1).await?;
        Ok(Checkout {
            conn,
            reused: false,
        })
    }

    /// Puts a connection back for the next request.
    pub fn give_back(&self, mut conn: h1::Conn) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.shared.pool.max_idle && conn.is_clean() {
            conn.rest();
            idle.push(Idle {
                conn,
                since: Instant::now(),
            });
        }
    }

    /// Drops connections that were idle for too long or were closed by the peer.
    pub fn sweep(&self, now: Instant) {
        let limit = self.shared.pool.idle_timeout;
        let stale: Vec<Idle> = self
            .idle
            .borrow_mut()
            .extract_if(.., |idle| {
                now.saturating_duration_since(idle.since) >= limit || !idle.conn.is_alive()
            })
            .collect();
        // Dropped outside the borrow: closing a connection counts it.
        drop(stale);
        let old = self.h2.borrow_mut().take_if(|h2| {
            if self.load.in_flight() > 0 {
                h2.used = now;
            }
            let life = self.shared.http2_life;
            now.saturating_duration_since(h2.used) >= life.idle || now >= h2.until
        });
        drop(old);
    }

    /// The HTTP/2 connection, made if there is none.
    pub async fn http2(&self) -> Result<SendRequest<Bytes>, ConnectError> {
        if let Some(send) = self.live_http2().await {
            return Ok(send);
        }
        let _connecting = self.h2_connecting.lock().await;
        // Somebody else may have made it while we waited.
        if let Some(send) = self.live_http2().await {
            return Ok(send);
        }
        self.dial_http2().await
    }

    /// The same for an application that may begin to listen a moment late: tried again with backoff
    /// until the deadline, or until we leave. Once it was waited for in vain, it is tried but not
    /// waited for.
    pub async fn http2_patiently(
        &self,
        deadline: Instant,
        capacity: usize,
        leaving: impl Fn() -> bool,
    ) -> Result<SendRequest<Bytes>, NotListening> {
        let mut waits: Option<Waits<'_>> = None;
        loop {
            if let Some(send) = self.live_http2().await {
                return Ok(send);
            }
            let failures = self.failures.get();
            let connecting = self.h2_connecting.lock().await;
            // Whoever held the lock has tried for us, too.
            let dialled = match self.live_http2().await {
                Some(send) => return Ok(send),
                None if self.failures.get() > failures => None,
                None => Some(self.dial_http2().await),
            };
            drop(connecting);
            match dialled {
                Some(Ok(send)) => return Ok(send),
                Some(Err(error @ (ConnectError::Io(_) | ConnectError::Timeout(_)))) => {
                    tracing::debug!(application = %self.addr, %error, "Not listening yet");
                }
                Some(Err(error)) => return Err(NotListening::Connect(error)),
                None => {}
            }
            let now = Instant::now();
            if now >= deadline {
                self.patience.over.set(true);
            }
            if self.patience.over.get() || leaving() {
                return Err(NotListening::FailFast);
            }
            if waits.is_none() {
                waits = Some(Waits::begin(&self.patience, capacity)?);
            }
            let at = self.ready_at().unwrap_or(now).min(deadline);
            tokio::time::sleep_until(at.into()).await;
        }
    }

    async fn dial_http2(&self) -> Result<SendRequest<Bytes>, ConnectError> {
        let conn = self.connect(Payload::Http2).await?;
        let Connector {
            http2,
            head_timeout,
            ..
        } = &*self.shared.connector;
        let this = self.this.clone();
        let busy = move || this.upgrade().is_some_and(|e| e.load.in_flight() > 0);
        let send = h2io::client(conn, http2, &self.meta.http2, *head_timeout, busy)
            .await
            .inspect_err(|_| self.failed())?;
        let now = Instant::now();
        let age = self.shared.http2_life.age;
        *self.h2.borrow_mut() = Some(Http2 {
            send: send.clone(),
            used: now,
            // Not all at once: connections made together do not end together.
            until: now + age.mul_f64(0.8 + 0.2 * rand::random::<f64>()),
        });
        Ok(send)
    }

    /// Goes on connecting when the request that began it could not wait: the next one finds the
    /// connection, or the endpoint is known not to take any. Once at a time.
    pub fn connect_behind(self: &Rc<Self>, payload: Payload) {
        if self.connecting_behind.replace(true) {
            return;
        }
        let endpoint = self.clone();
        linkerd_runtime::spawn_local("connect", async move {
            // A failure is noted by the endpoint.
            if payload == Payload::Http2 {
                let _ = endpoint.http2().await;
            } else if let Ok(Checkout { mut conn, .. }) = endpoint.http1_fresh().await
                && conn.send().await.is_ok()
            {
                endpoint.give_back(conn);
            }
            endpoint.connecting_behind.set(false);
        });
    }

    async fn live_http2(&self) -> Option<SendRequest<Bytes>> {
        let send = self.h2.borrow().as_ref()?.send.clone();
        match send.ready().await {
            Ok(send) => Some(send),
            Err(_) => {
                self.h2.borrow_mut().take();
                None
            }
        }
    }

    /// Whether an HTTP/1 request travels as HTTP/2.
    pub fn upgrades(&self, now: Instant) -> bool {
        // Without a transport header the peer's port takes HTTP/1 as it comes.
        self.meta.hint == Hint::H2
            && self.is_meshed()
            && self.multiplex.wants(self.load.in_flight(), now)
    }
}

/// One request that waits for an application.
#[derive(Debug)]
struct Waits<'a>(&'a Patience);

impl<'a> Waits<'a> {
    fn begin(patience: &'a Patience, capacity: usize) -> Result<Self, NotListening> {
        let waiting = patience.waiting.get();
        if waiting >= capacity {
            return Err(NotListening::Shed);
        }
        patience.waiting.set(waiting + 1);
        Ok(Self(patience))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// When requests share one connection: while more than a threshold are in flight, and for a while
/// after that, because a busy worker sees them come and go in batches.
#[derive(Debug)]
struct Multiplex {
    threshold: u32,
    until: Cell<Option<Instant>>,
}

impl Multiplex {
    const LINGER: Duration = Duration::from_secs(1);

    fn new(threshold: u32) -> Self {
        Self {
            threshold,
            until: Cell::new(None),
        }
    }

    fn wants(&self, in_flight: u32, now: Instant) -> bool {
        if in_flight > self.threshold {
            self.until.set(Some(now + Self::LINGER));
            return true;
        }
        self.until.get().is_some_and(|until| now < until)
    }
}

/// One request on its way: counts in the endpoint's load until dropped.
#[derive(Debug)]
pub struct InFlight {
    /// Where it went.
    pub endpoint: Rc<Endpoint>,
    /// When it was dispatched.
    pub started: Instant,
    sampled: Cell<bool>,
    /// The request finds out whether the endpoint is well again.
    probe: Cell<bool>,
}

impl InFlight {
    /// Dispatches to an endpoint.
    pub fn new(endpoint: Rc<Endpoint>, now: Instant) -> Self {
        endpoint.load.begin();
        let probe = endpoint.breaker.as_ref().is_some_and(|b| b.begin(now));
        Self {
            endpoint,
            started: now,
            sampled: Cell::new(false),
            probe: Cell::new(probe),
        }
    }

    /// How the answer counts for circuit breaking.
    pub fn judged(&self, outcome: Outcome) {
        let Some(breaker) = &self.endpoint.breaker else {
            return;
        };
        let verdict = match (outcome.status, outcome.grpc) {
            (429, _) | (_, Some(8)) => Verdict::Throttled,
            _ if outcome.failure => Verdict::Failure,
            _ => Verdict::Success,
        };
        self.probe.set(false);
        if breaker.record(verdict, Instant::now(), rand::random()) {
            self.endpoint.shared.waiters.notify_waiters();
        }
    }

    /// Whether failed answers are held against the endpoint's latency.
    pub fn penalizes(&self) -> bool {
        self.endpoint.shared.penalty.is_some()
    }

    /// A failed answer began, with a hint when to come back: it counts as slow.
    pub fn penalized(&self, hint: Option<Duration>, now: Instant) {
        if let Some(penalty) = self.endpoint.shared.penalty
            && !self.sampled.replace(true)
        {
            let rtt = now.saturating_duration_since(self.started);
            let hint = hint.unwrap_or_default().min(penalty.max_retry_after);
            let rtt = rtt.max(penalty.base).max(hint);
            self.endpoint.load.sample(rtt, now);
        }
    }

    /// The answer began: its latency counts once.
    pub fn answered(&self, now: Instant) {
        if !self.sampled.replace(true) {
            let rtt = now.saturating_duration_since(self.started);
            self.endpoint.load.sample(rtt, now);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.load.end();
        if self.probe.get()
            && let Some(breaker) = &self.endpoint.breaker
        {
            breaker.lost_probe(Instant::now(), rand::random());
            self.endpoint.shared.waiters.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_a_connection_while_there_are_many_and_a_little_longer() {
        let start = Instant::now();
        let multiplex = Multiplex::new(16);
        for (name, after, in_flight, want) in [
            ("few at first", 0, 16, false),
            ("many", 10, 17, true),
            ("a lull", 20, 1, true),
            ("many again", 900, 20, true),
            ("still within a second of that", 1_899, 1, true),
            ("few for a second", 1_900, 16, false),
            ("few for long", 5_000, 1, false),
        ] {
            let now = start + Duration::from_millis(after);
            assert_eq!(multiplex.wants(in_flight, now), want, "{name}");
        }
    }
}
