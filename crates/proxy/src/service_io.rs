//! Connections to the proxy's own services, admin and tap: mesh TLS when the server name is ours,
//! plain otherwise.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use linkerd_tls::{Alpn, HANDSHAKE_DEADLINE, Store};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::{
    h1::Conn,
    inbound::tls::TlsError,
    io::Stream,
    policy::server::{ClientTls, NoTls},
    sniff::{self, SniffError},
    tls,
};

/// How long a client may take to show that it speaks TLS.
const DETECT: Duration = Duration::from_secs(1);

/// A connection whose client is known as far as it said.
#[derive(Debug)]
pub struct ServiceIo {
    kind: Kind,
    /// How it came in.
    pub client: ClientTls,
}

#[derive(Debug)]
enum Kind {
    /// With what was read already.
    Plain(BytesMut, TcpStream),
    Tls(Box<tls::Server>),
}

impl ServiceIo {
    /// Finds out who connected. A client that says nothing yet is a plain one.
    pub async fn accept(io: TcpStream, store: &Store) -> Result<Self, TlsError> {
        let _ = io.set_nodelay(true);
        let mut conn = Conn::new(Stream::tcp(io));
        let hello = match sniff::tls(&mut conn, DETECT).await {
            Err(SniffError::Timeout) => sniff::Tls::NotTls,
            other => other?,
        };
        let (io, prefix, _) = conn.into_parts();
        let io = io.into_tcp().expect("it was made of a socket");
        let client = match hello {
            sniff::Tls::NotTls | sniff::Tls::Hello(None) => ClientTls::Plain(NoTls::NotFromRemote),
            sniff::Tls::Hello(Some(sni))
                if sni.eq_ignore_ascii_case(&store.local().server_name) =>
            {
                let snapshot = store.snapshot();
                let accept =
                    tls::accept(io, prefix, &snapshot, Alpn::None, HANDSHAKE_DEADLINE, None);
                let (tls, id) = accept.await?;
                return Ok(Self {
                    kind: Kind::Tls(Box::new(tls)),
                    client: ClientTls::Mesh(id),
                });
            }
            sniff::Tls::Hello(Some(sni)) => ClientTls::Opaque(sni),
        };
        Ok(Self {
            kind: Kind::Plain(prefix, io),
            client,
        })
    }
}

impl AsyncRead for ServiceIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(prefix, _) if !prefix.is_empty() => {
                let n = prefix.len().min(buf.remaining());
                buf.put_slice(&prefix[..n]);
                prefix.advance(n);
                Poll::Ready(Ok(()))
            }
            Kind::Plain(_, io) => Pin::new(io).poll_read(cx, buf),
            Kind::Tls(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ServiceIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.kind {
            Kind::Plain(_, io) => Pin::new(io).poll_write(cx, buf),
            Kind::Tls(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(_, io) => Pin::new(io).poll_flush(cx),
            Kind::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(_, io) => Pin::new(io).poll_shutdown(cx),
            Kind::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
