//! Terminates mesh TLS when the server name is ours; anything else stays as it is.

use std::time::Duration;

use linkerd_tls::{Alpn, HANDSHAKE_DEADLINE, HandshakeError};

use crate::{
    h1::Conn,
    io::Stream,
    policy::server::{ClientTls, NoTls},
    sniff::{self, SniffError},
    tls,
    worker::Worker,
};

/// A connection after TLS.
#[derive(Debug)]
pub(crate) struct Terminated {
    /// The connection, payload next.
    pub(crate) conn: Conn,
    /// How the client came in.
    pub(crate) tls: ClientTls,
    /// Whether the transport header was agreed on.
    pub(crate) alpn: bool,
}

/// Why a connection cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Its first bytes did not come.
    #[error(transparent)]
    Sniff(#[from] SniffError),
    /// The handshake failed.
    #[error("TLS handshake failed")]
    Handshake(#[from] HandshakeError),
}

/// Looks for TLS and terminates what is ours.
pub(crate) async fn detect(
    worker: &Worker,
    mut conn: Conn,
    alpn: Alpn,
    limit: Duration,
) -> Result<Terminated, TlsError> {
    let tls = match sniff::tls(&mut conn, limit).await? {
        // Without a server name it may be TLS, but nobody's that we know.
        sniff::Tls::NotTls | sniff::Tls::Hello(None) => ClientTls::Plain(NoTls::NotFromRemote),
        sniff::Tls::Hello(Some(sni))
            if sni.eq_ignore_ascii_case(&worker.store.local().server_name) =>
        {
            return terminate(worker, conn, alpn).await;
        }
        sniff::Tls::Hello(Some(sni)) => ClientTls::Opaque(sni),
    };
    Ok(Terminated {
        conn,
        tls,
        alpn: false,
    })
}

async fn terminate(worker: &Worker, conn: Conn, alpn: Alpn) -> Result<Terminated, TlsError> {
    let (io, prefix, _) = conn.into_parts();
    let io = io
        .into_tcp()
        .expect("TLS is looked for on plain streams only");
    let snapshot = worker.store.snapshot();
    let turns = Some(&worker.handshakes);
    let accept = tls::accept(io, prefix, &snapshot, alpn, HANDSHAKE_DEADLINE, turns);
    let (stream, id) = accept.await?;
    let agreed = stream.state().alpn_protocol() == Some(Alpn::TRANSPORT_HEADER);
    Ok(Terminated {
        conn: Conn::new(Stream::server(stream)),
        tls: ClientTls::Mesh(id),
        alpn: agreed,
    })
}
