//! Makes the endpoints of one service, or of one port: what they share, and the labels each has.

use std::{
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{Endpoint, multiplex::Multiplex, patience::Patience};
use crate::{
    balance::Load,
    breaker::Breaker,
    config::{Backoff, Http2Life, Pool},
    connect::Connector,
    metrics::{Labels, Registry, stack::Stacks},
    policy::{
        client::{FailureAccrual, Penalty},
        endpoint::EndpointMeta,
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
            reached: Cell::new(false),
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
