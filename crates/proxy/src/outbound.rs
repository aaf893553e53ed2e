//! Traffic of local applications: find out what is known about where a connection wants to go, find
//! out what it speaks, and carry it there.

pub mod discover;
mod http;
mod overrides;

use std::{
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

pub use self::discover::Cache;
use self::discover::LocalPolicy;
pub(crate) use self::http::OutboundHttp;
use crate::{
    connect::Payload,
    control::Target,
    detect,
    endpoint::InFlight,
    h1::Conn,
    http::{Backend, server1, server2},
    io::Stream,
    metrics::{Family, Labels},
    policy::client::{Protocol, Refusal, TcpRoute, TlsRoute},
    sniff::{self, SniffError, Speaker},
    socket::Accepted,
    tunnel,
    worker::Worker,
};

/// What the HTTP routes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// Serves one accepted connection to its end.
pub async fn serve(worker: Rc<Worker>, accepted: Accepted) {
    let Accepted {
        io,
        client,
        orig_dst,
    } = accepted;
    if worker.overloaded.get() {
        tracing::debug!(%client, "Connection refused: memory is short");
        return;
    }
    let target = worker.outbound.target(&worker, Target::Addr(orig_dst));
    let io = Stream::tcp(io).metered(target.transport(&worker).open());
    let conn = Conn::new(io);
    let policy = match target.ready(&worker).await {
        Ok(policy) => policy,
        Err(error) => {
            tracing::debug!(%client, %orig_dst, %error, "Outbound discovery failed");
            failed(&worker, orig_dst, "unexpected");
            return;
        }
    };
    let detect_timeout = worker.config.outbound.detect_timeout;
    let ingress = worker.config.outbound.ingress;
    let protocol = match &policy.policy.protocol {
        _ if ingress => "detect",
        Protocol::Http1(_) => "http/1",
        Protocol::Http2(_) | Protocol::Grpc(_) => "http/2",
        Protocol::Opaque(_) => "opaq",
        Protocol::Tls(_) => "tls",
        Protocol::Detect { .. } | Protocol::Invalid(_) => "detect",
    };
    let family = Family::OutboundTcpProtocolConnections;
    policy.count(&worker, family, "protocol", protocol);
    let http = |version| OutboundHttp::new(&worker, &target, &policy, version, client);
    match &policy.policy.protocol {
        // In ingress mode requests are routed one by one, whatever the address says.
        _ if ingress => {
            let opaque = match &policy.policy.protocol {
                Protocol::Detect { opaque, .. } | Protocol::Opaque(opaque) => opaque.as_ref(),
                _ => None,
            };
            serve_detected(&worker, &policy, conn, opaque, orig_dst, http).await;
        }
        Protocol::Http1(_) => server1::serve(&http(Version::Http1), conn).await,
        Protocol::Http2(_) | Protocol::Grpc(_) => {
            server2::serve(&http(Version::Http2), conn, &worker.config.outbound.http2).await;
        }
        Protocol::Opaque(route) => {
            opaque(
                &worker,
                &policy,
                route.as_ref(),
                conn,
                RouteKind::Tcp(orig_dst),
            )
            .await;
        }
        Protocol::Detect { opaque, .. } => {
            serve_detected(&worker, &policy, conn, opaque.as_ref(), orig_dst, http).await;
        }
        Protocol::Tls(routes) => {
            let mut conn = conn;
            match sniff::tls(&mut conn, detect_timeout).await {
                Ok(sniff::Tls::Hello(sni)) => match TlsRoute::find(routes, sni.as_deref()) {
                    Some(route) => {
                        let named = worker.config.outbound.hostname_labels;
                        let hostname = sni.filter(|_| named).unwrap_or_default();
                        let kind = RouteKind::Tls(orig_dst, hostname);
                        self::opaque(&worker, &policy, Some(&route.route), conn, kind).await;
                    }
                    None => {
                        tracing::debug!(%orig_dst, ?sni, "No TLS route");
                        failed(&worker, orig_dst, "unexpected");
                    }
                },
                Ok(sniff::Tls::NotTls) => {
                    tracing::debug!(%orig_dst, "Could not find SNI");
                    failed(&worker, orig_dst, "unexpected");
                }
                Err(SniffError::Timeout) => {
                    tracing::debug!(%orig_dst, "SNI detection timed out");
                    failed(&worker, orig_dst, "unexpected");
                }
                Err(error) => {
                    tracing::debug!(%orig_dst, %error, "SNI detection failed");
                    failed(&worker, orig_dst, "i/o");
                }
            }
        }
        Protocol::Invalid(message) => {
            tracing::debug!(%orig_dst, message, "Invalid client policy");
            serve_detected(&worker, &policy, conn, None, orig_dst, http).await;
        }
    }
}

async fn serve_detected(
    worker: &Rc<Worker>,
    policy: &Rc<LocalPolicy>,
    mut conn: Conn,
    route: Option<&TcpRoute>,
    orig_dst: SocketAddr,
    http: impl Fn(Version) -> OutboundHttp,
) {
    let limit = worker.config.outbound.detect_timeout;
    let began = Instant::now();
    let mut server = None;
    let mut counted = RouteConnection::new(worker, policy, route, RouteKind::Tcp(orig_dst));
    let mut verdict = sniff::http(&mut conn, limit.min(sniff::SILENCE)).await;
    if matches!(verdict, Ok(detect::Http::More)) && limit > sniff::SILENCE {
        let left = || limit.saturating_sub(began.elapsed());
        // A silent client may be waiting for its server to speak: ask the server, too.
        let speaker = match conn.rbuf.is_empty() {
            true => first_word(worker, policy, route, &mut conn, &mut server, left).await,
            false => Ok(Speaker::Client),
        };
        match speaker {
            Ok(Speaker::Client | Speaker::Gone) => verdict = sniff::http(&mut conn, left()).await,
            Ok(Speaker::Server) => verdict = Ok(detect::Http::NotHttp),
            Ok(Speaker::Nobody) => {}
            Err(error) => verdict = Err(error),
        }
    }
    let result = match &verdict {
        Ok(detect::Http::Http1) => "http/1",
        Ok(detect::Http::Http2) => "http/2",
        Ok(detect::Http::NotHttp) => "not_http",
        Ok(detect::Http::More) => "read_timeout",
        Err(_) => "error",
    };
    policy.detected(worker, result, began.elapsed());
    match verdict {
        Ok(detect::Http::Http1) => {
            drop(server);
            server1::serve(&http(Version::Http1), conn).await;
        }
        Ok(detect::Http::Http2) => {
            drop(server);
            server2::serve(&http(Version::Http2), conn, &worker.config.outbound.http2).await;
        }
        Ok(detect::Http::NotHttp | detect::Http::More) => match server {
            Some((server, _flight)) => {
                counted.open();
                tunnel::copy(conn, server).await;
            }
            None => {
                drop(counted);
                opaque(worker, policy, route, conn, RouteKind::Tcp(orig_dst)).await;
            }
        },
        Err(error) => {
            tracing::debug!(%error, "Protocol detection failed");
            failed(worker, orig_dst, "i/o");
        }
    }
}

/// Lets a silent client and its server race for the first word; the server stays for what follows. One
/// that leaves without a word may be on its way out: others are asked, with growing pauses.
async fn first_word(
    worker: &Rc<Worker>,
    policy: &Rc<LocalPolicy>,
    route: Option<&TcpRoute>,
    client: &mut Conn,
    server: &mut Option<(Conn, InFlight)>,
    left: impl Fn() -> Duration,
) -> Result<Speaker, SniffError> {
    let mut pause = Duration::ZERO;
    while pause < left() {
        let ask = async {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            dial(worker, policy, route, "TCP").await
        };
        // What the client says meanwhile may be meant for somebody else.
        let dialled = tokio::select! {
            biased;
            said = sniff::read(client) => match said? {
                0 => return Err(SniffError::Closed),
                _ => return Ok(Speaker::Client),
            },
            dialled = ask => dialled,
        };
        let Ok(dialled) = dialled else {
            break;
        };
        let (other, _) = server.insert(dialled);
        match sniff::first_speaker(client, other, left()).await? {
            Speaker::Gone => *server = None,
            speaker => return Ok(speaker),
        }
        pause = (pause * 2).max(sniff::SILENCE);
    }
    Ok(Speaker::Gone)
}

/// Counts a connection that ends because of an error.
fn failed(worker: &Worker, target: SocketAddr, error: &str) {
    let labels = Labels::default()
        .with("error", error)
        .target(target)
        .finish();
    worker
        .registry
        .counter(Family::OutboundTcpErrorsTotal, &labels)
        .inc();
}

/// Opaque bytes to a service by name, for the gateway that was reached at an address. Fails with the
/// name of the error.
pub(crate) async fn carry_named(
    worker: &Rc<Worker>,
    target: Target,
    orig_dst: SocketAddr,
    conn: Conn,
) -> Result<(), &'static str> {
    let local = worker.outbound.target(worker, target);
    let policy = local.ready(worker).await.map_err(|error| {
        tracing::info!(target = %local.target(), %error, "bad gateway domain");
        "gateway domain invalid"
    })?;
    let (Protocol::Detect { opaque: route, .. } | Protocol::Opaque(route)) =
        &policy.policy.protocol
    else {
        tracing::debug!(target = %local.target(), "The service is not opaque");
        return Err("unexpected");
    };
    let kind = RouteKind::Tcp(orig_dst);
    let mut counted = RouteConnection::new(worker, &policy, route.as_ref(), kind);
    counted.open();
    let dialled = dial(worker, &policy, route.as_ref(), "TCP").await;
    let (server, _flight) = dialled.map_err(|error| {
        tracing::debug!(?error, "Gateway connection failed");
        counted.failed(error);
        error.cause()
    })?;
    tunnel::copy(conn, server).await;
    Ok(())
}

async fn opaque(
    worker: &Rc<Worker>,
    policy: &Rc<LocalPolicy>,
    route: Option<&TcpRoute>,
    client: Conn,
    kind: RouteKind,
) {
    let name = match kind {
        RouteKind::Tcp(_) => "TCP",
        RouteKind::Tls(..) => "TLS",
    };
    let mut counted = RouteConnection::new(worker, policy, route, kind);
    counted.open();
    match dial(worker, policy, route, name).await {
        Ok((server, _flight)) => tunnel::copy(client, server).await,
        Err(error) => counted.failed(error),
    }
}

/// Which families a connection is counted in.
enum RouteKind {
    Tcp(SocketAddr),
    /// With the `hostname` label.
    Tls(SocketAddr, String),
}

/// Counts a connection of a TCP or TLS route when it opens and when it closes.
struct RouteConnection<'a> {
    worker: &'a Worker,
    policy: &'a LocalPolicy,
    route: Option<&'a TcpRoute>,
    kind: RouteKind,
    open: bool,
    error: &'static str,
}

impl<'a> RouteConnection<'a> {
    fn new(
        worker: &'a Worker,
        policy: &'a LocalPolicy,
        route: Option<&'a TcpRoute>,
        kind: RouteKind,
    ) -> Self {
        Self {
            worker,
            policy,
            route,
            kind,
            open: false,
            error: "",
        }
    }

    fn labels(&self) -> Option<Labels> {
        let labels = Labels::default()
            .referent("parent", &self.policy.policy.parent)
            .route(&self.route?.meta);
        let (RouteKind::Tcp(addr) | RouteKind::Tls(addr, _)) = &self.kind;
        let labels = labels
            .show("target_ip", addr.ip())
            .show("target_port", addr.port());
        Some(match &self.kind {
            RouteKind::Tcp(_) => labels,
            RouteKind::Tls(_, hostname) => labels.with("hostname", hostname),
        })
    }

    fn open(&mut self) {
        let family = match self.kind {
            RouteKind::Tcp(_) => Family::OutboundTcpRouteOpen,
            RouteKind::Tls(..) => Family::OutboundTlsRouteOpen,
        };
        if let Some(labels) = self.labels() {
            self.open = true;
            self.worker.registry.counter(family, &labels.finish()).inc();
        }
    }

    fn failed(&mut self, error: DialError) {
        self.error = error.label();
        let (RouteKind::Tcp(addr) | RouteKind::Tls(addr, _)) = &self.kind;
        failed(self.worker, *addr, error.cause());
    }
}

impl Drop for RouteConnection<'_> {
    fn drop(&mut self) {
        let family = match self.kind {
            RouteKind::Tcp(_) => Family::OutboundTcpRouteClose,
            RouteKind::Tls(..) => Family::OutboundTlsRouteClose,
        };
        if self.open
            && let Some(labels) = self.labels()
        {
            let labels = labels.with("error", self.error).finish();
            self.worker.registry.counter(family, &labels).inc();
        }
    }
}

/// Why an opaque connection has no other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialError {
    NoRoute,
    Forbidden,
    InvalidBackend,
    NotReady,
    Connect,
}

impl DialError {
    /// Of `outbound_tcp_route_close_total`.
    fn label(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::InvalidBackend => "invalid_backend",
            Self::NoRoute => "invalid_policy",
            Self::NotReady | Self::Connect => "unexpected",
        }
    }

    /// Of `outbound_tcp_errors_total`.
    fn cause(self) -> &'static str {
        match self {
            Self::NotReady => "failfast",
            Self::Connect => "i/o",
            Self::NoRoute | Self::Forbidden | Self::InvalidBackend => "unexpected",
        }
    }
}

/// Endpoints tried for one connection: nothing has been sent to any of them yet.
const MAX_DIALS: usize = 4;

/// Opens the other side of an opaque connection, if its route allows.
async fn dial(
    worker: &Rc<Worker>,
    policy: &Rc<LocalPolicy>,
    route: Option<&TcpRoute>,
    kind: &'static str,
) -> Result<(Conn, InFlight), DialError> {
    let Some(route) = route else {
        tracing::debug!("No {kind} route");
        return Err(DialError::NoRoute);
    };
    if let Some(refusal) = &route.refusal {
        tracing::info!(route = %route.meta, "{}", refusal.text(kind));
        return Err(match refusal {
            Refusal::Forbidden => DialError::Forbidden,
            Refusal::Invalid(_) => DialError::InvalidBackend,
        });
    }
    let chosen = policy.choose(&route.backends, Instant::now());
    let backend = chosen.ok_or(DialError::NotReady)?;
    let queue = worker.config.outbound.tcp_queue;
    let deadline = Instant::now() + queue.failfast;
    let mut tries = 0;
    let backend = policy.opaque_backend(worker, backend.backend);
    loop {
        tries += 1;
        let endpoint = match backend {
            Backend::Forward(endpoint) => endpoint.clone(),
            Backend::Balance(balancer) => {
                let ready = balancer
                    .ready(Payload::Opaque, deadline, queue.capacity)
                    .await;
                ready.map_err(|error| {
                    tracing::debug!(?error, "No endpoint is ready");
                    DialError::NotReady
                })?
            }
            Backend::None(name) => {
                tracing::debug!(backend = %name, "Backend has no dispatcher");
                return Err(DialError::InvalidBackend);
            }
        };
        let flight = InFlight::new(endpoint, Instant::now());
        match flight.endpoint.connect(Payload::Opaque).await {
            Ok(server) => {
                flight.answered(Instant::now());
                return Ok((server, flight));
            }
            Err(error) => {
                tracing::debug!(%error, "Connection failed");
                if !backend.is_balanced() || tries >= MAX_DIALS || Instant::now() >= deadline {
                    return Err(DialError::Connect);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    /// What one idle connection costs beside its sockets and TLS. Grows only on purpose.
    #[test]
    fn a_connection_stays_small() {
        fn size<F: Future>(_: fn(std::rc::Rc<super::Worker>, super::Accepted) -> F) -> usize {
            size_of::<F>()
        }
        let outbound = size(super::serve);
        assert!(outbound <= 6400, "{outbound} bytes");
    }
}
