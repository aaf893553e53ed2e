//! Traffic of local applications: find out what is known about where a connection wants to go, find
//! out what it speaks, and carry it there.

pub mod discover;
mod http;
mod overrides;

use std::{rc::Rc, time::Instant};

pub use self::discover::Cache;
use self::{discover::LocalPolicy, http::OutboundHttp};
use crate::{
    connect::Payload,
    control::Target,
    detect,
    endpoint::InFlight,
    h1::Conn,
    http::{Backend, server1, server2},
    io::Stream,
    policy::{
        client::{Protocol, Refusal, TcpRoute},
        matching::HostMatch,
    },
    sniff::{self, Speaker},
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
    let target = worker.outbound.target(&worker, Target::Addr(orig_dst));
    let io = Stream::tcp(io).metered(target.transport(&worker).open());
    let conn = Conn::new(io);
    let policy = match target.ready(&worker).await {
        Ok(policy) => policy,
        Err(error) => {
            tracing::debug!(%client, %orig_dst, %error, "Outbound discovery failed");
            return;
        }
    };
    let detect_timeout = worker.config.outbound.detect_timeout;
    let http = |version| OutboundHttp::new(&worker, &target, &policy, version, client);
    match &policy.policy.protocol {
        // In ingress mode requests are routed one by one, whatever the address says.
        _ if worker.config.outbound.ingress => {
            let opaque = match &policy.policy.protocol {
                Protocol::Detect { opaque, .. } | Protocol::Opaque(opaque) => opaque.as_ref(),
                _ => None,
            };
            serve_detected(&worker, &policy, conn, opaque, http).await;
        }
        Protocol::Http1(_) => server1::serve(&http(Version::Http1), conn).await,
        Protocol::Http2(_) | Protocol::Grpc(_) => {
            server2::serve(&http(Version::Http2), conn, &worker.config.outbound.http2).await;
        }
        Protocol::Opaque(route) => {
            opaque(&worker, &policy, route.as_ref(), conn).await;
        }
        Protocol::Detect { opaque, .. } => {
            serve_detected(&worker, &policy, conn, opaque.as_ref(), http).await;
        }
        Protocol::Tls(routes) => {
            let mut conn = conn;
            match sniff::tls(&mut conn, detect_timeout).await {
                Ok(sniff::Tls::Hello(sni)) => {
                    let best = routes
                        .iter()
                        .filter_map(|r| Some((HostMatch::best(&r.snis, sni.as_deref())?, r)))
                        .max_by_key(|(rank, _)| *rank);
                    match best {
                        Some((_, route)) => {
                            self::opaque(&worker, &policy, Some(&route.route), conn).await;
                        }
                        None => tracing::debug!(%orig_dst, ?sni, "No TLS route"),
                    }
                }
                Ok(sniff::Tls::NotTls) => tracing::debug!(%orig_dst, "Could not find SNI"),
                Err(error) => tracing::debug!(%orig_dst, %error, "SNI detection failed"),
            }
        }
        Protocol::Invalid(message) => {
            tracing::debug!(%orig_dst, message, "Invalid client policy");
            serve_detected(&worker, &policy, conn, None, http).await;
        }
    }
}

async fn serve_detected(
    worker: &Rc<Worker>,
    policy: &Rc<LocalPolicy>,
    mut conn: Conn,
    route: Option<&TcpRoute>,
    http: impl Fn(Version) -> OutboundHttp,
) {
    let limit = worker.config.outbound.detect_timeout;
    let mut server = None;
    let mut verdict = sniff::http(&mut conn, limit.min(sniff::SILENCE)).await;
    if matches!(verdict, Ok(detect::Http::More)) && limit > sniff::SILENCE {
        // A silent client may be waiting for its server to speak: ask the server, too.
        if conn.rbuf.is_empty()
            && let Some(dialled) = dial(worker, policy, route).await
        {
            let (server, _) = server.insert(dialled);
            match sniff::first_speaker(&mut conn, server, limit).await {
                Ok(Speaker::Client) => verdict = sniff::http(&mut conn, limit).await,
                Ok(Speaker::Server | Speaker::Nobody) => verdict = Ok(detect::Http::NotHttp),
                Err(error) => verdict = Err(error),
            }
        } else {
            verdict = sniff::http(&mut conn, limit - sniff::SILENCE).await;
        }
    }
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
            Some((server, _flight)) => tunnel::copy(conn, server).await,
            None => opaque(worker, policy, route, conn).await,
        },
        Err(error) => tracing::debug!(%error, "Protocol detection failed"),
    }
}

async fn opaque(
    worker: &Rc<Worker>,
    policy: &Rc<LocalPolicy>,
    route: Option<&TcpRoute>,
    client: Conn,
) {
    if let Some((server, _flight)) = dial(worker, policy, route).await {
        tunnel::copy(client, server).await;
    }
}

/// Opens the other side of an opaque connection, if its route allows.
async fn dial(
    worker: &Rc<Worker>,
    policy: &Rc<LocalPolicy>,
    route: Option<&TcpRoute>,
) -> Option<(Conn, InFlight)> {
    let Some(route) = route else {
        tracing::debug!("No TCP route");
        return None;
    };
    match &route.refusal {
        None => {}
        Some(Refusal::Forbidden) => {
            tracing::info!(route = %route.meta, "forbidden TCP route");
            return None;
        }
        Some(Refusal::Invalid(message)) => {
            tracing::info!(route = %route.meta, message, "invalid TCP backend");
            return None;
        }
    }
    let backend = policy.choose(&route.backends, Instant::now())?;
    let queue = worker.config.outbound.tcp_queue;
    let endpoint = match &policy.backends[backend.backend] {
        Backend::Forward(endpoint) => endpoint.clone(),
        Backend::Balance(balancer) => {
            let deadline = Instant::now() + queue.failfast;
            match balancer.ready(deadline, queue.capacity).await {
                Ok(endpoint) => endpoint,
                Err(error) => {
                    tracing::debug!(?error, "No endpoint is ready");
                    return None;
                }
            }
        }
        Backend::None(name) => {
            tracing::debug!(backend = %name, "Backend has no dispatcher");
            return None;
        }
    };
    let flight = InFlight::new(endpoint, Instant::now());
    match flight.endpoint.connect(Payload::Opaque).await {
        Ok(server) => {
            flight.answered(Instant::now());
            Some((server, flight))
        }
        Err(error) => {
            tracing::debug!(%error, "Connection failed");
            None
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
        assert!(outbound <= 8 * 1024, "{outbound} bytes");
    }
}
