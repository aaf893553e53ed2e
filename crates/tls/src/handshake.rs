//! Handshakes over tokio streams with a deadline, for everything that does not drive rustls itself.

use std::{io, time::Duration};

use linkerd_core::identity::Id;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::{
    peer::{Alpn, Peer},
    store::Snapshot,
    verify::{RejectedPeer, client_id, confirm_server},
};

/// How long a peer may take for its half of a handshake.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the TLS handshake took longer than {0:?}")]
    Deadline(Duration),
    #[error("the TLS handshake failed")]
    Io(#[from] io::Error),
    #[error("we have no certificate yet")]
    NotCertified,
    #[error(transparent)]
    Rejected(#[from] RejectedPeer),
}

/// Connects to `peer`: on success the peer has proved the expected identity.
pub async fn connect<IO>(
    io: IO,
    peer: &Peer,
    snapshot: &Snapshot,
    alpn: Alpn,
    deadline: Duration,
) -> Result<client::TlsStream<IO>, HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let connector = TlsConnector::from(peer.client_config(snapshot, alpn));
    let stream = tokio::time::timeout(deadline, connector.connect(peer.server_name(), io))
        .await
        .map_err(|_| HandshakeError::Deadline(deadline))??;
    confirm_server(stream.get_ref().1, peer.id(), snapshot.now())?;
    Ok(stream)
}

/// Accepts a connection and tells who the client is, if it says so.
pub async fn accept<IO>(
    io: IO,
    snapshot: &Snapshot,
    alpn: Alpn,
    deadline: Duration,
) -> Result<(server::TlsStream<IO>, Option<Id>), HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let config = snapshot
        .server_config(alpn)
        .ok_or(HandshakeError::NotCertified)?;
    let stream = tokio::time::timeout(deadline, TlsAcceptor::from(config).accept(io))
        .await
        .map_err(|_| HandshakeError::Deadline(deadline))??;
    let id = client_id(stream.get_ref().1, snapshot.now())?;
    Ok((stream, id))
}
