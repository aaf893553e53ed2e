//! One address on one worker: its load, its backoff after failures, its idle HTTP/1 connections and
//! its HTTP/2 connection. Outbound endpoints come from discovery, inbound ones are local applications.

mod factory;
mod flight;
mod multiplex;
mod patience;

use std::{
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    rc::{Rc, Weak},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use h2::client::SendRequest;

pub use self::{
    factory::{EndpointFactory, Swept},
    flight::InFlight,
    patience::NotListening,
};
use self::{multiplex::Multiplex, patience::Patience};
use crate::{
    balance::Load,
    breaker::Breaker,
    connect::{ConnectError, Connector, Payload},
    h1, h2io,
    metrics::{http::HttpMetrics, stack::Stack, transport::TransportMetrics},
    policy::endpoint::{EndpointMeta, Hint},
};

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
    /// The last connection was made.
    reached: Cell<bool>,
    /// A connection is being made for whoever comes next.
    connecting_behind: Cell<bool>,
    ready_at: Cell<Option<Instant>>,
    /// Whether HTTP/1 requests travel as HTTP/2.
    multiplex: Multiplex,
    http: OnceCell<HttpMetrics>,
    transport: OnceCell<Rc<TransportMetrics>>,
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

/// There is nobody left to connect for.
fn gone() -> ConnectError {
    ConnectError::Io(std::io::ErrorKind::BrokenPipe.into())
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

    /// Whether it took the last connection.
    pub fn is_reached(&self) -> bool {
        self.reached.get()
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
                self.reached.set(true);
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

    /// A connection takes long: nobody else waits for one who need not.
    pub fn slow(&self) {
        self.reached.set(false);
    }

    /// Whether a request would find a connection.
    pub fn has_connection(&self, payload: Payload) -> bool {
        match payload {
            Payload::Http1 => !self.idle.borrow().is_empty(),
            Payload::Http2 => self.h2.borrow().is_some(),
            Payload::Opaque => false,
        }
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
        self.reached.set(false);
        self.ready_at.set(Some(Instant::now() + delay));
    }

    /// An idle HTTP/1 connection that still lives, if those will do, or a new one.
    pub async fn http1(&self, pooled: bool) -> Result<Checkout, ConnectError> {
        while pooled && let Some(idle) = self.take_idle() {
            let mut conn = idle.conn;
            if conn.is_alive() {
                return Ok(Checkout { conn, reused: true });
            }
        }
        let dial = async |endpoint: &Self| endpoint.connect(Payload::Http1).await;
        let spare = async |endpoint: &Self, conn| drop(endpoint.keep(conn).await);
        let conn = self.apart(dial, spare).await?;
        Ok(Checkout {
            conn,
            reused: false,
        })
    }

    fn take_idle(&self) -> Option<Idle> {
        self.idle.borrow_mut().pop()
    }

    /// Connects in a task of its own, so that who cannot wait for it any longer leaves a connection to
    /// whoever comes next; `spare` takes it then.
    async fn apart<T: 'static>(
        &self,
        dial: impl AsyncFnOnce(&Self) -> Result<T, ConnectError> + 'static,
        spare: impl AsyncFnOnce(&Self, T) + 'static,
    ) -> Result<T, ConnectError> {
        let endpoint = self.this.upgrade().ok_or_else(gone)?;
        let (made, waits) = tokio::sync::oneshot::channel();
        linkerd_runtime::spawn_local("connect", async move {
            // A failure is noted by the endpoint.
            if let Err(Ok(unclaimed)) = made.send(dial(&endpoint).await) {
                spare(&endpoint, unclaimed).await;
            }
        });
        waits.await.map_err(|_| gone())?
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

    /// Keeps a connection for whoever comes next, with what must be sent first sent.
    async fn keep(&self, mut conn: h1::Conn) -> std::io::Result<()> {
        conn.send().await?;
        self.give_back(conn);
        Ok(())
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
        let dial = async |endpoint: &Self| {
            let _connecting = endpoint.h2_connecting.lock().await;
            // Somebody else may have made it while we waited.
            match endpoint.live_http2().await {
                Some(send) => Ok(send),
                None => endpoint.dial_http2().await,
            }
        };
        self.apart(dial, async |_: &Self, _| {}).await
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

    /// Makes a connection for whoever comes next, unless there is one. Once at a time.
    pub fn connect_behind(self: &Rc<Self>, payload: Payload) {
        if self.connecting_behind.replace(true) {
            return;
        }
        let endpoint = self.clone();
        linkerd_runtime::spawn_local("connect", async move {
            // A failure is noted by the endpoint.
            let made = match payload {
                Payload::Http2 => endpoint.http2().await.is_ok(),
                _ => match endpoint.http1(true).await {
                    Ok(Checkout { conn, .. }) => endpoint.keep(conn).await.is_ok(),
                    Err(_) => false,
                },
            };
            // It may have been there all the time.
            endpoint.reached.set(made);
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
