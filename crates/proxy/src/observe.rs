//! What is told about single requests: lines of the access log, events of a tap, spans
//! of a trace. A request is observed only when somebody asked for it: while nobody does, all of this
//! costs a comparison or two per request.

pub mod access;
pub mod tap;
pub mod trace;

use std::{
    cell::{Cell, RefCell},
    fmt::{self, Write as _},
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime},
};

use crate::{
    endpoint::Endpoint,
    http::Edits,
    metrics::{http::Outcome, inbound::InboundMetrics},
    policy::{
        matching,
        server::{ClientTls, NoTls},
    },
};

/// Everybody who may want to know. Shared by all workers.
#[derive(Clone, Debug, Default)]
pub struct Observers {
    /// Lines for each inbound request.
    pub access: Option<access::Log>,
    /// Who taps, when tap is configured.
    pub taps: Option<Arc<tap::Taps>>,
    /// Where spans go, when there is a collector.
    pub tracer: Option<trace::Tracer>,
}

/// A request's head, as observers see it.
pub trait Head: matching::Request + Fields {
    /// The version as it is written.
    fn version(&self) -> &'static str;
    /// The target as it came.
    fn target(&self) -> String;
    /// Its scheme.
    fn scheme(&self) -> &str;
    /// Whether it is HTTP/2 and not HTTP/1 on its way between proxies.
    fn is_http2(&self) -> bool;
}

/// Header lines of a message.
pub trait Fields {
    /// Visits every line in order.
    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8]));

    /// The first value of a name, given in lower case.
    fn first(&self, name: &str) -> Option<String> {
        let mut found = None;
        self.each(&mut |field, value| {
            if found.is_none() && field.eq_ignore_ascii_case(name.as_bytes()) {
                found = Some(String::from_utf8_lossy(value).into_owned());
            }
        });
        found
    }
}

impl Fields for http::HeaderMap {
    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, value) in self {
            visit(name.as_str().as_bytes(), value.as_bytes());
        }
    }
}

/// No header lines.
#[derive(Clone, Copy, Debug)]
pub struct Empty;

impl Fields for Empty {
    fn each(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

impl<T> Fields for http::Request<T> {
    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.headers().each(visit);
    }
}

impl Fields for linkerd_http1::RequestView<'_> {
    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for field in self.fields() {
            visit(field.name, field.value);
        }
    }
}

impl Fields for linkerd_http1::ResponseView<'_> {
    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for field in self.fields() {
            visit(field.name, field.value);
        }
    }
}

impl<T> Head for http::Request<T> {
    fn version(&self) -> &'static str {
        "HTTP/2.0"
    }

    fn is_http2(&self) -> bool {
        !self
            .headers()
            .contains_key(linkerd_api::headers::ORIG_PROTO)
    }

    fn target(&self) -> String {
        self.uri().to_string()
    }

    fn scheme(&self) -> &str {
        self.uri().scheme_str().unwrap_or("http")
    }
}

impl Head for linkerd_http1::RequestView<'_> {
    fn version(&self) -> &'static str {
        self.head().version().as_str()
    }

    fn is_http2(&self) -> bool {
        false
    }

    fn target(&self) -> String {
        linkerd_http1::RequestView::target(self).to_owned()
    }

    fn scheme(&self) -> &str {
        let target = linkerd_http1::RequestView::target(self);
        match target.split_once("://") {
            Some((scheme, _)) if !target.starts_with('/') => scheme,
            _ => "http",
        }
    }
}

/// Who sent a request.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its address.
    pub addr: SocketAddr,
    /// How it came in; nothing for an application of this pod.
    pub tls: Option<&'a ClientTls>,
}

impl Source<'_> {
    fn id(&self) -> Option<&str> {
        self.tls?.id().map(|id| id.as_str())
    }

    fn labels(&self) -> tap::Labels {
        let mut labels = tap::Labels::new();
        let mut put = |name: &str, value: &str| labels.insert(name.to_owned(), value.to_owned());
        match self.tls {
            None => {
                put("tls", "loopback");
            }
            Some(ClientTls::Mesh(id)) => {
                put("tls", "true");
                if let Some(id) = id {
                    put("client_id", id.as_str());
                }
            }
            Some(ClientTls::Opaque(sni)) => {
                put("tls", "passthru");
                put("sni", sni);
            }
            Some(ClientTls::Plain(reason)) => {
                put(
                    "tls",
                    match reason {
                        NoTls::NotFromRemote => "no_tls_from_remote",
                        NoTls::PortSkipped => "port_skipped",
                        NoTls::Loopback => "loopback",
                    },
                );
            }
        }
        labels
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The endpoint.
    pub endpoint: &'a Endpoint,
    /// What let it in, inbound.
    pub server: Option<&'a InboundMetrics>,
    /// Labels of the service profile's route.
    pub route: &'a [(String, String)],
}

/// A request that may be observed.
#[derive(Clone, Debug, Default)]
pub struct Observed(Option<Rc<Watched>>);

/// A request that is.
#[derive(Debug)]
struct Watched {
    started: Instant,
    inbound: bool,
    /// Time spent in our own code, and since when it runs now.
    busy: Cell<Duration>,
    running: Cell<Option<Instant>>,
    access: RefCell<Option<(access::Log, access::Entry)>>,
    tapped: RefCell<Option<tap::Tapped>>,
    traced: RefCell<Option<trace::Traced>>,
}

impl Observers {
    /// Writes how much was lost because nobody took it in time.
    pub fn write_dropped(&self, out: &mut String) -> fmt::Result {
        let taps = self.taps.as_ref().map(|taps| taps.dropped());
        let spans = self.tracer.as_ref().map(trace::Tracer::dropped);
        for (name, help, dropped) in [
            (
                "tap_events_dropped_total",
                "Events of taps whose readers were too slow.",
                taps,
            ),
            (
                "opentelemetry_spans_dropped_total",
                "Spans the collector did not take in time.",
                spans,
            ),
        ] {
            if let Some(dropped) = dropped {
                writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter")?;
                writeln!(out, "{name} {dropped}")?;
            }
        }
        Ok(())
    }

    /// A request from `source` to the application.
    #[inline]
    pub fn inbound<'a>(&self, head: &impl Head, source: impl FnOnce() -> Source<'a>) -> Observed {
        if self.access.is_none() && self.tracer.is_none() && self.active_taps().is_none() {
            return Observed::default();
        }
        self.watch(true, head, source())
    }

    /// A request of the application at `source`.
    #[inline]
    pub fn outbound(&self, head: &impl Head, source: SocketAddr) -> Observed {
        if self.tracer.is_none() && self.active_taps().is_none() {
            return Observed::default();
        }
        let source = Source {
            addr: source,
            tls: None,
        };
        self.watch(false, head, source)
    }

    fn active_taps(&self) -> Option<&Arc<tap::Taps>> {
        self.taps.as_ref().filter(|taps| taps.is_active())
    }

    fn watch(&self, inbound: bool, head: &impl Head, source: Source<'_>) -> Observed {
        let now = SystemTime::now();
        let access = self.access.clone().filter(|_| inbound);
        let access = access.map(|log| (log, access::Entry::new(head, source, now)));
        let tapped = self.active_taps().map(|taps| {
            tap::Tapped::new(taps.clone(), inbound, source.addr, source.labels(), head)
        });
        let traced = self
            .tracer
            .as_ref()
            .and_then(|tracer| trace::Traced::new(tracer, inbound, head, now));
        if access.is_none() && tapped.is_none() && traced.is_none() {
            return Observed::default();
        }
        Observed(Some(Rc::new(Watched {
            started: Instant::now(),
            inbound,
            busy: Cell::default(),
            running: Cell::default(),
            access: RefCell::new(access),
            tapped: RefCell::new(tapped),
            traced: RefCell::new(traced),
        })))
    }
}

impl Observed {
    /// Whether anybody looks.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// What the request carries on for those who trace it.
    #[inline]
    pub fn propagate(&self, edits: &mut Edits) {
        if let Some(watched) = &self.0
            && let Some(traced) = &*watched.traced.borrow()
        {
            edits.request.extend(traced.lines());
        }
    }

    /// The request goes to an endpoint.
    #[inline]
    pub fn dispatched<'a>(&self, to: impl FnOnce() -> Destination<'a>) {
        if let Some(watched) = &self.0 {
            watched.dispatched(to());
        }
    }

    /// The answer's head came, or we made it.
    #[inline]
    pub fn answered(&self, status: u16, fields: &impl Fields) {
        if let Some(watched) = &self.0 {
            watched.answered(status, fields);
        }
    }

    /// Bytes of the answer's body passed.
    #[inline]
    pub fn body(&self, bytes: u64) {
        if let Some(watched) = &self.0
            && let Some(tapped) = &mut *watched.tapped.borrow_mut()
        {
            tapped.body(bytes);
        }
    }

    /// The answer's trailers came.
    #[inline]
    pub fn trailers(&self, trailers: &impl Fields) {
        if let Some(watched) = &self.0
            && let Some(tapped) = &mut *watched.tapped.borrow_mut()
        {
            tapped.trailers(trailers);
        }
    }

    /// A try is over.
    #[inline]
    pub fn ended(&self, outcome: Outcome) {
        if let Some(watched) = &self.0
            && let Some(tapped) = &mut *watched.tapped.borrow_mut()
        {
            tapped.ended(Some(outcome), Instant::now());
        }
    }

    /// Runs a request's future, and takes the time when somebody wants it.
    pub async fn timed<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| poll_timed(self, future.as_mut(), cx)).await
    }
}

impl Watched {
    fn dispatched(&self, to: Destination<'_>) {
        let addr = to.endpoint.addr();
        if let Some(tapped) = &mut *self.tapped.borrow_mut() {
            let labels = to.labels(self.inbound);
            tapped.routed(to.route);
            tapped.dispatched(addr, &labels, Instant::now());
        }
        if let Some(traced) = &mut *self.traced.borrow_mut() {
            traced.dispatched(addr, SystemTime::now());
        }
    }

    fn answered(&self, status: u16, fields: &impl Fields) {
        if let Some((log, entry)) = self.access.borrow_mut().take() {
            let bytes = fields.first("content-length");
            log.write(&entry, &self.done(Some(status), bytes));
        }
        if let Some(tapped) = &mut *self.tapped.borrow_mut() {
            tapped.answered(status, fields, Instant::now());
        }
        if let Some(traced) = &mut *self.traced.borrow_mut() {
            traced.answered(status);
        }
    }

    fn done(&self, status: Option<u16>, response_bytes: Option<String>) -> access::Done {
        let now = Instant::now();
        let current = self
            .running
            .get()
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        access::Done {
            status,
            response_bytes,
            total: now.saturating_duration_since(self.started),
            processing: self.busy.get() + current,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Without an answer so far the client went away, or its connection broke.
        if let Some((log, entry)) = self.access.borrow_mut().take() {
            log.write(&entry, &self.done(None, None));
        }
        if let Some(mut tapped) = self.tapped.borrow_mut().take() {
            tapped.ended(None, Instant::now());
        }
        if let Some(traced) = self.traced.borrow_mut().take() {
            traced.finish(SystemTime::now());
        }
    }
}

impl Destination<'_> {
    fn labels(&self, inbound: bool) -> tap::Labels {
        let meta = self.endpoint.meta();
        let mut labels: tap::Labels = meta.labels.iter().cloned().collect();
        let mut put = |name: &str, value: &str| labels.insert(name.to_owned(), value.to_owned());
        match &meta.peer {
            Some(peer) if self.endpoint.is_meshed() => {
                put("tls", "true");
                put("server_id", peer.id().as_str());
            }
            Some(_) => {
                put("tls", "loopback");
            }
            None if inbound => {
                put("tls", "loopback");
            }
            None => {
                put("tls", "not_provided_by_service_discovery");
            }
        }
        if let Some(server) = self.server {
            server.each_label(|name, value| {
                labels.insert(name, value);
            });
        }
        labels
    }
}

fn poll_timed<F: Future>(
    observed: &Observed,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    let Some(watched) = &observed.0 else {
        return future.poll(cx);
    };
    let began = Instant::now();
    watched.running.set(Some(began));
    let polled = future.poll(cx);
    watched.running.set(None);
    watched.busy.set(watched.busy.get() + began.elapsed());
    polled
}
