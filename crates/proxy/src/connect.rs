//! Endpoint → connection: TCP, mesh TLS when the endpoint has an identity, and the transport header
//! that tells its proxy what follows. One time limit covers all of it.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use linkerd_tls::{Alpn, HandshakeError, Store};
use tokio::time::timeout;

use crate::{
    config::{Http2Windows, SocketOptions},
    control::Discovery,
    io::Stream,
    policy::endpoint::{EndpointMeta, Hint},
    socket, tls,
    transport_header::{Header, Session},
};

/// What will be sent over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// HTTP/1 requests.
    Http1,
    /// HTTP/2.
    Http2,
    /// Any bytes.
    Opaque,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// It took too long.
    #[error("connect timed out after {0:?}")]
    Timeout(Duration),
    /// The address must not be connected to from here.
    #[error("{0}")]
    Loop(Cow<'static, str>),
    /// TCP failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// TLS failed.
    #[error("TLS handshake failed")]
    Tls(#[source] HandshakeError),
    /// HTTP/2 failed at its start.
    #[error("HTTP/2 handshake failed")]
    Http2(#[from] h2::Error),
}

impl From<HandshakeError> for ConnectError {
    /// Connecting has one limit, whatever part of it took too long.
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Deadline(limit) => Self::Timeout(limit),
            error => Self::Tls(error),
        }
    }
}

/// An open connection, and what must be sent first.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub io: Stream,
    /// The transport header, to go out with the first bytes.
    pub preamble: Option<Bytes>,
}

/// Makes connections for one direction.
#[derive(Debug)]
pub struct Connector {
    /// Our certificates.
    pub store: Arc<Store>,
    /// Limit on TCP, TLS and header.
    pub timeout: Duration,
    /// Socket options.
    pub socket: SocketOptions,
    /// Addresses of this pod.
    pub local_ips: Arc<BTreeSet<IpAddr>>,
    /// What must not be connected to.
    pub guard: LoopGuard,
    /// HTTP/2 windows of client connections.
    pub http2: Http2Windows,
    /// How long the head of an answer may take over HTTP/2, once it has begun.
    pub head_timeout: Duration,
    /// Who named the endpoints, and is asked again when one cannot be reached.
    pub source: Option<Discovery>,
}

/// Addresses that would lead back to us.
#[derive(Clone, Copy, Debug)]
pub enum LoopGuard {
    /// Outbound: nothing on loopback.
    Loopback,
    /// Inbound: not the inbound port itself.
    Port(u16),
    /// Nothing; for tests that have only loopback.
    None,
}

impl LoopGuard {
    fn check(self, addr: SocketAddr) -> Result<(), ConnectError> {
        let message = match self {
            Self::Loopback if addr.ip().is_loopback() => {
                "Outbound proxy cannot initiate connections on the loopback interface".into()
            }
            Self::Port(port) if addr.port() == port => {
                format!("inbound connection must not target port {port}").into()
            }
            _ => return Ok(()),
        };
        Err(ConnectError::Loop(message))
    }
}

impl Connector {
    /// Whether an address is this pod's.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.local_ips.contains(&ip)
    }

    /// Connects to an endpoint.
    pub async fn connect(
        &self,
        addr: SocketAddr,
        meta: &EndpointMeta,
        payload: Payload,
    ) -> Result<Connected, ConnectError> {
        self.guard.check(addr)?;
        let connected = timeout(self.timeout, self.connect_now(addr, meta, payload))
            .await
            .unwrap_or(Err(ConnectError::Timeout(self.timeout)));
        if connected.is_err()
            && let Some(source) = &self.source
        {
            source.doubt();
        }
        connected
    }

    async fn connect_now(
        &self,
        addr: SocketAddr,
        meta: &EndpointMeta,
        payload: Payload,
    ) -> Result<Connected, ConnectError> {
        let peer = meta.peer.as_ref().filter(|_| !self.is_local(addr.ip()));
        let Some(peer) = peer else {
            let io = socket::connect(addr, self.socket).await?;
            return Ok(Connected {
                io: Stream::tcp(io),
                preamble: None,
            });
        };
        let header = transport_header(addr.port(), meta, payload);
        let connect_to =
            SocketAddr::new(addr.ip(), meta.inbound_port.unwrap_or_else(|| addr.port()));
        let alpn = match header {
            Some(_) => Alpn::TransportHeader,
            None => Alpn::None,
        };
        let io = socket::connect(connect_to, self.socket).await?;
        let snapshot = self.store.snapshot();
        let tls = tls::connect(io, peer, &snapshot, alpn, self.timeout).await?;
        let agreed = tls.state().alpn_protocol() == Some(Alpn::TRANSPORT_HEADER);
        Ok(Connected {
            io: Stream::client(tls),
            preamble: header.filter(|_| agreed).map(|h| h.encode()),
        })
    }
}

/// The header an endpoint's proxy must be given, if any.
fn transport_header(port: u16, meta: &EndpointMeta, payload: Payload) -> Option<Header> {
    let session = match payload {
        _ if meta.hint == Hint::Opaque => None,
        Payload::Http1 => Some(Session::Http1),
        Payload::Http2 => Some(Session::Http2),
        Payload::Opaque => None,
    };
    if let Some(authority) = &meta.authority
        && let Some((name, port)) = authority.rsplit_once(':')
        && let Ok(port) = port.parse()
    {
        return Some(Header {
            port,
            name: Some(name.to_owned()),
            session,
        });
    }
    meta.inbound_port.map(|_| Header {
        port,
        name: None,
        session,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_back_to_us_is_refused() {
        let outbound = "Outbound proxy cannot initiate connections on the loopback interface";
        for (guard, addr, want) in [
            (LoopGuard::Loopback, "127.0.0.1:80", Some(outbound)),
            (LoopGuard::Loopback, "[::1]:80", Some(outbound)),
            (LoopGuard::Loopback, "10.0.0.1:80", None),
            (
                LoopGuard::Port(4143),
                "10.0.0.1:4143",
                Some("inbound connection must not target port 4143"),
            ),
            (LoopGuard::Port(4143), "127.0.0.1:80", None),
            (LoopGuard::None, "127.0.0.1:80", None),
        ] {
            let refused = guard.check(addr.parse().expect("an address")).err();
            assert_eq!(refused.map(|e| e.to_string()).as_deref(), want, "{addr}");
        }
    }

    #[test]
    fn headers() {
        let meta = |inbound_port, authority: Option<&str>, hint| EndpointMeta {
            inbound_port,
            authority: authority.map(str::to_owned),
            hint,
            ..EndpointMeta::default()
        };
        let header = |port, name: Option<&str>, session| {
            Some(Header {
                port,
                name: name.map(str::to_owned),
                session,
            })
        };
        let gateway = Some("web.ns.svc.cluster.local:80");
        for (name, meta, payload, want) in [
            (
                "transparent",
                meta(None, None, Hint::H2),
                Payload::Http2,
                None,
            ),
            (
                "http/1",
                meta(Some(4143), None, Hint::H2),
                Payload::Http1,
                header(8080, None, Some(Session::Http1)),
            ),
            (
                "http/2",
                meta(Some(4143), None, Hint::H2),
                Payload::Http2,
                header(8080, None, Some(Session::Http2)),
            ),
            (
                "opaque bytes",
                meta(Some(4143), None, Hint::H2),
                Payload::Opaque,
                header(8080, None, None),
            ),
            (
                "opaque hint",
                meta(Some(4143), None, Hint::Opaque),
                Payload::Http1,
                header(8080, None, None),
            ),
            (
                "gateway",
                meta(None, gateway, Hint::H2),
                Payload::Http2,
                header(80, Some("web.ns.svc.cluster.local"), Some(Session::Http2)),
            ),
            (
                "authority without port",
                meta(None, Some("web"), Hint::H2),
                Payload::Http2,
                None,
            ),
        ] {
            assert_eq!(transport_header(8080, &meta, payload), want, "{name}");
        }
    }
}
