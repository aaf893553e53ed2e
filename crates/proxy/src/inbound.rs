//! Traffic to local applications: terminate mesh TLS where it is ours, read the transport header of
//! direct connections, find out the protocol, apply the port's policy, and hand it to the application.

mod decision;
mod gateway;
mod http;
pub mod policy;
pub mod profile;
pub mod rate;
pub mod tls;

use std::{
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use linkerd_tls::Alpn;

pub use self::policy::Cache;
use self::{
    http::InboundHttp,
    policy::PortPolicy,
    tls::{Terminated, TlsError},
};
use crate::{
    connect::Payload,
    detect,
    h1::Conn,
    http::{server1, server2},
    io::Stream,
    metrics::{Family, Labels},
    policy::server::{ClientTls, NoTls, Protocol, authorize},
    sniff,
    socket::Accepted,
    transport_header::{Header, Session},
    tunnel,
    worker::Worker,
};

/// Who connected, and to what.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) addr: SocketAddr,
    pub(crate) tls: ClientTls,
    /// Where the application listens.
    pub(crate) target: SocketAddr,
}

/// Serves one accepted connection to its end.
pub async fn serve(worker: Rc<Worker>, accepted: Accepted, inbound_port: u16) {
    let Accepted {
        io,
        client,
        orig_dst,
    } = accepted;
    let ips = &worker.config.inbound.ips;
    if !ips.is_empty() && !ips.contains(&orig_dst.ip()) {
        tracing::info!(
            %client,
            "inbound connections are not allowed on this IP address ({orig_dst})"
        );
        failed(&worker, orig_dst, "unexpected");
        return;
    }
    if worker.overloaded.get() {
        tracing::debug!(%client, "Connection refused: memory is short");
        return;
    }
    let conn = Conn::new(Stream::tcp(io));
    if orig_dst.port() == inbound_port {
        direct(&worker, conn, client, orig_dst).await;
        return;
    }
    let policy = worker.inbound.port(&worker, orig_dst.port());
    let snapshot = policy.current();
    if matches!(snapshot.protocol, Protocol::Opaque) {
        let peer = Client {
            addr: client,
            tls: ClientTls::Plain(NoTls::PortSkipped),
            target: orig_dst,
        };
        forward(&worker, &policy, peer, conn).await;
        return;
    }
    // All steps of detection share their time.
    let limit = worker.config.inbound.detect_timeout;
    let began = Instant::now();
    let left = |limit: Duration| limit.saturating_sub(began.elapsed());
    let unknown = Client {
        addr: client,
        tls: ClientTls::Plain(NoTls::NotFromRemote),
        target: orig_dst,
    };
    let Some(conn) = server_first(&worker, &policy, unknown, conn, limit).await else {
        return;
    };
    let terminated = match tls::detect(&worker, conn, Alpn::None, left(limit)).await {
        Ok(terminated) => terminated,
        Err(error) => {
            tls_failed(&worker, client, orig_dst, &error);
            return;
        }
    };
    let peer = Client {
        addr: client,
        tls: terminated.tls,
        target: orig_dst,
    };
    let mut conn = terminated.conn;
    // TLS of the application's own is passed on untouched.
    if matches!(peer.tls, ClientTls::Opaque(_)) {
        forward(&worker, &policy, peer, conn).await;
        return;
    }
    let meshed = matches!(peer.tls, ClientTls::Mesh(_));
    if let Protocol::Detect { timeout, .. } = &snapshot.protocol
        && meshed
    {
        let first = server_first(&worker, &policy, peer.clone(), conn, left(*timeout));
        match first.await {
            Some(silent) => conn = silent,
            None => return,
        }
    }
    let (detect, otherwise): (Option<Duration>, Speaks) = match &snapshot.protocol {
        Protocol::Detect { timeout, .. } => (Some(left(*timeout)), Speaks::Opaque),
        Protocol::Http1(_) if meshed => (Some(left(limit)), Speaks::Http1),
        Protocol::Http1(_) => (None, Speaks::Http1),
        Protocol::Http2(_) | Protocol::Grpc(_) => (None, Speaks::Http2),
        Protocol::Tls | Protocol::Opaque => (None, Speaks::Opaque),
        Protocol::Invalid(_) => (Some(left(limit)), Speaks::Opaque),
    };
    carry(&worker, &policy, peer, conn, detect, otherwise).await;
}

/// A client that stays silent may be waiting for its server to speak. Where the client, as far as it is
/// known, is allowed the application is asked; if it speaks first, the connection is carried to its end
/// here.
async fn server_first(
    worker: &Rc<Worker>,
    policy: &Rc<PortPolicy>,
    peer: Client,
    mut conn: Conn,
    limit: Duration,
) -> Option<Conn> {
    let began = Instant::now();
    match sniff::more(&mut conn, limit.min(sniff::SILENCE)).await {
        Ok(()) => return Some(conn),
        Err(sniff::SniffError::Timeout) => {}
        Err(error) => {
            detection_failed(worker, &peer, &error);
            return None;
        }
    }
    let snapshot = policy.current();
    let detects = matches!(snapshot.protocol, Protocol::Detect { .. });
    let allowed = authorize(snapshot.authorizations.iter(), peer.addr.ip(), &peer.tls);
    if !detects || allowed.is_none() {
        return Some(conn);
    }
    let endpoint = worker.inbound.application(worker, peer.target);
    let Ok(mut server) = endpoint.connect(Payload::Opaque).await else {
        return Some(conn);
    };
    let left = limit.saturating_sub(began.elapsed());
    match sniff::first_speaker(&mut conn, &mut server, left).await {
        Ok(sniff::Speaker::Client | sniff::Speaker::Nobody | sniff::Speaker::Gone) => Some(conn),
        Ok(sniff::Speaker::Server) => {
            carry_opaque(worker, policy, peer, conn, Some(server)).await;
            None
        }
        Err(error) => {
            detection_failed(worker, &peer, &error);
            None
        }
    }
}

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Http1,
    Http2,
    Opaque,
}

/// Looks at the first bytes if asked to, then serves what they are.
async fn carry(
    worker: &Rc<Worker>,
    policy: &Rc<PortPolicy>,
    peer: Client,
    mut conn: Conn,
    detect: Option<Duration>,
    otherwise: Speaks,
) {
    let speaks = match detect {
        None => otherwise,
        Some(limit) => {
            let began = Instant::now();
            let verdict = sniff::http(&mut conn, limit).await;
            let (result, speaks) = match verdict {
                Ok(detect::Http::Http1) => ("http/1", Some(Speaks::Http1)),
                Ok(detect::Http::Http2) => ("http/2", Some(Speaks::Http2)),
                Ok(detect::Http::NotHttp) => ("not_http", Some(otherwise)),
                Ok(detect::Http::More) => ("read_timeout", Some(otherwise)),
                Err(error) => {
                    detection_failed(worker, &peer, &error);
                    ("error", None)
                }
            };
            policy.detected(
                &worker.registry,
                peer.target.port(),
                result,
                began.elapsed(),
            );
            match speaks {
                Some(speaks) => speaks,
                None => return,
            }
        }
    };
    match speaks {
        Speaks::Opaque => forward(worker, policy, peer, conn).await,
        Speaks::Http1 => {
            let conn = metered(worker, policy, &peer, conn);
            server1::serve(&InboundHttp::new(worker, policy, peer), conn).await;
        }
        Speaks::Http2 => {
            let conn = metered(worker, policy, &peer, conn);
            let http = InboundHttp::new(worker, policy, peer);
            server2::serve(&http, conn, &worker.config.inbound.http2).await;
        }
    }
}

/// A connection to the inbound port itself: always mutual TLS with a transport header.
async fn direct(worker: &Rc<Worker>, conn: Conn, client: SocketAddr, orig_dst: SocketAddr) {
    let limit = worker.config.inbound.detect_timeout;
    let began = Instant::now();
    let terminated = match tls::detect(worker, conn, Alpn::TransportHeader, limit).await {
        Ok(terminated) => terminated,
        Err(error) => {
            tls_failed(worker, client, orig_dst, &error);
            return;
        }
    };
    let Terminated {
        mut conn,
        tls,
        alpn,
    } = terminated;
    let unwanted = if tls.id().is_none() {
        Some("direct connections must be mutually authenticated")
    } else if !alpn {
        Some("direct connections require transport header negotiation")
    } else {
        None
    };
    if let Some(message) = unwanted {
        tracing::info!(%client, message);
        failed(worker, orig_dst, "unexpected");
        return;
    }
    let left = limit.saturating_sub(began.elapsed());
    let header = tokio::time::timeout(left, read_header(&mut conn));
    let header = match header.await {
        Ok(Ok(header)) => header,
        Ok(Err(error)) => {
            tracing::debug!(%client, error, "Bad transport header");
            failed(worker, orig_dst, "unexpected");
            return;
        }
        Err(_) => {
            tracing::debug!(%client, "Reading a transport header timed out");
            failed(worker, orig_dst, "i/o");
            return;
        }
    };
    count_header(worker, &header, &tls);
    if let Some(name) = &header.name {
        let peer = Client {
            addr: client,
            tls,
            target: orig_dst,
        };
        gateway::serve(worker, peer, &header, name, conn).await;
        return;
    }
    let policy = worker.inbound.port(worker, header.port);
    let peer = Client {
        addr: client,
        tls,
        target: SocketAddr::new(orig_dst.ip(), header.port),
    };
    let speaks = match header.session {
        Some(Session::Http1) => Speaks::Http1,
        Some(Session::Http2) => Speaks::Http2,
        None => Speaks::Opaque,
    };
    carry(worker, &policy, peer, conn, None, speaks).await;
}

async fn read_header(conn: &mut Conn) -> Result<Header, String> {
    loop {
        if let Some(header) = Header::decode(&mut conn.rbuf).map_err(|e| e.to_string())? {
            return Ok(header);
        }
        sniff::more(conn, Duration::MAX)
            .await
            .map_err(|e| e.to_string())?;
    }
}

/// Opaque bytes to the application, for as long as policy allows.
async fn forward(worker: &Rc<Worker>, policy: &Rc<PortPolicy>, peer: Client, conn: Conn) {
    carry_opaque(worker, policy, peer, conn, None).await;
}

async fn carry_opaque(
    worker: &Rc<Worker>,
    policy: &Rc<PortPolicy>,
    peer: Client,
    conn: Conn,
    server: Option<Conn>,
) {
    let conn = metered(worker, policy, &peer, conn);
    let count = |family, authz: Option<&crate::policy::Meta>| {
        let snapshot = policy.current();
        let mut labels = Labels::default()
            .target(peer.target)
            .client_tls(&peer.tls)
            .server(&snapshot.meta, peer.target.port());
        if let Some(authz) = authz {
            labels = labels.resource("authz", authz);
        }
        worker.registry.counter(family, &labels.finish()).inc();
    };
    let snapshot = policy.current();
    let Some(authorization) = snapshot.allows_bytes(peer.addr.ip(), &peer.tls) else {
        decision::connection("Connection denied", &snapshot, None, &peer);
        count(Family::InboundTcpAuthzDenyTotal, None);
        return;
    };
    if authorization.is_audit() {
        let authz = Some(&*authorization.meta);
        decision::connection("Request allowed", &snapshot, authz, &peer);
    }
    count(Family::InboundTcpAuthzAllowTotal, Some(&authorization.meta));
    let endpoint = worker.inbound.application(worker, peer.target);
    let server = match server {
        Some(server) => Ok(server),
        None => endpoint.connect(Payload::Opaque).await,
    };
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            tracing::debug!(target = %peer.target, %error, "Connection to the application failed");
            failed(worker, peer.target, "i/o");
            return;
        }
    };
    let revoked = policy.revoked(|policy| {
        let allowed = policy.allows_bytes(peer.addr.ip(), &peer.tls);
        allowed.is_none()
    });
    tokio::select! {
        () = tunnel::copy(conn, server) => {}
        () = revoked => {
            let message = "Connection terminated due to policy change";
            decision::connection(message, &policy.current(), None, &peer);
            count(Family::InboundTcpAuthzTerminateTotal, None);
        }
    }
}

/// Counts a connection under its labels from now on.
fn metered(worker: &Worker, policy: &PortPolicy, peer: &Client, conn: Conn) -> Conn {
    let labels = Labels::direction("inbound")
        .with("peer", "src")
        .target(peer.target)
        .client_tls(&peer.tls)
        .server(&policy.current().meta, peer.target.port())
        .finish();
    conn.metered(worker.inbound.transport(&worker.registry, &labels).open())
}

fn detection_failed(worker: &Worker, peer: &Client, error: &sniff::SniffError) {
    tracing::debug!(client = %peer.addr, %error, "Protocol detection failed");
    failed(worker, peer.target, "i/o");
}

fn tls_failed(worker: &Worker, client: SocketAddr, orig_dst: SocketAddr, error: &TlsError) {
    let timed_out = matches!(error, TlsError::Sniff(sniff::SniffError::Timeout));
    let (message, label) = if timed_out {
        ("TLS detection timed out", "tls detection timeout")
    } else {
        ("TLS failed", "i/o")
    };
    tracing::debug!(%client, %orig_dst, %error, message);
    failed(worker, orig_dst, label);
}

/// Counts a connection that ends because of an error.
fn failed(worker: &Worker, target: SocketAddr, error: &str) {
    let labels = Labels::default()
        .with("error", error)
        .target(target)
        .server(&worker.inbound.server(worker, target.port()), target.port())
        .finish();
    worker
        .registry
        .counter(Family::InboundTcpErrorsTotal, &labels)
        .inc();
}

fn count_header(worker: &Worker, header: &Header, tls: &ClientTls) {
    let session = match header.session {
        Some(Session::Http1) => "http/1",
        Some(Session::Http2) => "http/2",
        None => "",
    };
    let labels = Labels::default()
        .with("session_protocol", session)
        .show("target_port", header.port)
        .with("target_name", header.name.as_deref().unwrap_or_default())
        .with(
            "client_id",
            tls.id().map(|id| id.as_str()).unwrap_or_default(),
        )
        .finish();
    worker
        .registry
        .counter(Family::InboundTcpTransportHeaderConnections, &labels)
        .inc();
}
