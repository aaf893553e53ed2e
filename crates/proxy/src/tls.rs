//! Mesh TLS on a socket. Handshakes leave their last flight for the first bytes to take along, reads
//! decrypt as many records as have come, writes leave in one send.

mod records;
pub mod turnstile;

use std::{
    fmt, io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::BytesMut;
use linkerd_core::identity::Id;
use linkerd_tls::{Alpn, HandshakeError, Peer, Snapshot, client_id, confirm_server};
use rustls::{
    CommonState, HandshakeKind, client::UnbufferedClientConnection,
    server::UnbufferedServerConnection,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};

use self::{
    records::{Records, Side},
    turnstile::{Progress, Turnstile},
};
use crate::{
    block::{BULK, SMALL},
    detect,
    io::give_buffer,
};

/// A session we began.
pub type Client = TlsStream<UnbufferedClientConnection>;
/// A session we accepted.
pub type Server = TlsStream<UnbufferedServerConnection>;

/// Ciphertext that waits for more to leave with it; above this it leaves first.
const LINGER: usize = 4 * 1024;

/// TLS on a socket.
pub struct TlsStream<S> {
    io: TcpStream,
    records: Records<S>,
    /// The last read gave much: the next one may, too.
    bulk: bool,
}

impl<S: Side> fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("io", &self.io)
            .finish_non_exhaustive()
    }
}

/// Connects to `peer`: on success the peer has proved the expected identity.
pub async fn connect(
    io: TcpStream,
    peer: &Peer,
    snapshot: &Snapshot,
    alpn: Alpn,
    limit: Duration,
) -> Result<Client, HandshakeError> {
    let config = peer.client_config(snapshot, alpn);
    let side = UnbufferedClientConnection::new(config, peer.server_name()).map_err(invalid)?;
    let mut stream = TlsStream::new(io, side);
    stream.handshake(limit).await?;
    confirm_server(stream.state(), peer.id(), snapshot.now())?;
    Ok(stream)
}

/// Accepts a session whose first bytes were read already, and tells who the client is, if it says so.
pub async fn accept(
    io: TcpStream,
    read: BytesMut,
    snapshot: &Snapshot,
    alpn: Alpn,
    limit: Duration,
    turns: Option<&Rc<Turnstile>>,
) -> Result<(Server, Option<Id>), HandshakeError> {
    let config = snapshot
        .server_config(alpn)
        .ok_or(HandshakeError::NotCertified)?;
    // A session we remember is taken up again at once; that is cheap.
    let known = |ticket: &[u8]| config.session_storage.get(ticket).is_some();
    let resumes = turns.is_some() && detect::ticket(&read).is_some_and(known);
    let side = UnbufferedServerConnection::new(config).map_err(invalid)?;
    let mut stream = TlsStream::new(io, side);
    stream.records.incoming.put(&read);
    give_buffer(read);
    match turns {
        None => stream.handshake(limit).await?,
        Some(turns) => {
            let shake = stream.handshake_in_turns(turns, resumes);
            match timeout(limit, shake).await {
                Ok(result) => result?,
                Err(_) => return Err(HandshakeError::Deadline(limit)),
            }
            turns.ended(stream.state().handshake_kind());
        }
    }
    let id = client_id(stream.state(), snapshot.now())?;
    Ok((stream, id))
}

fn eof() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof")
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<S: Side> TlsStream<S> {
    fn new(io: TcpStream, side: S) -> Self {
        Self {
            io,
            records: Records::new(side),
            bulk: false,
        }
    }

    /// What was agreed on.
    pub fn state(&self) -> &CommonState {
        self.records.state()
    }

    async fn handshake(&mut self, limit: Duration) -> Result<(), HandshakeError> {
        let shake = std::future::poll_fn(|cx| self.poll_handshake(cx));
        match timeout(limit, shake).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(HandshakeError::Deadline(limit)),
        }
    }

    /// The same, but steps that cost much are taken in turn with others'. A turn ends when everybody
    /// who was ready has had one: sockets are looked at between any two.
    async fn handshake_in_turns(
        &mut self,
        turns: &Rc<Turnstile>,
        mut resumes: bool,
    ) -> io::Result<()> {
        let mut progress = Progress::New;
        loop {
            let turn = match resumes {
                true => None,
                false => Some(turns.turn(progress).await?),
            };
            let done = std::future::poll_fn(|cx| {
                self.decrypt(cx, &mut ReadBuf::new(&mut []))?;
                let done = !self.state().is_handshaking();
                if !done && let Poll::Ready(Err(error)) = self.poll_send(cx) {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(io::Result::Ok(done))
            });
            let done = done.await?;
            if turn.is_some() {
                tokio::task::yield_now().await;
            }
            drop(turn);
            if done {
                return Ok(());
            }
            std::future::poll_fn(|cx| {
                ready!(self.poll_send(cx))?;
                match ready!(self.poll_receive(cx))? {
                    0 => Poll::Ready(Err(eof())),
                    _ => Poll::Ready(Ok(())),
                }
            })
            .await?;
            progress = Progress::Begun;
            // A ticket may have been taken by another connection meanwhile.
            resumes = self.state().handshake_kind() == Some(HandshakeKind::Resumed);
        }
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.decrypt(cx, &mut ReadBuf::new(&mut []))?;
            if !self.state().is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_send(cx))?;
            if ready!(self.poll_receive(cx))? == 0 {
                return Poll::Ready(Err(eof()));
            }
        }
    }

    fn decrypt(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        self.records.decrypt(buf).map_err(|error| {
            // The peer may still learn why; if it cannot, the error counts all the same.
            let _ = self.poll_send(cx);
            invalid(error)
        })
    }

    /// Whether the peer has said that nothing more will come.
    pub(crate) fn is_ended(&self) -> bool {
        self.records.is_ended()
    }

    /// Reads ciphertext; 0 is the end.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let incoming = &mut self.records.incoming;
        let want = if self.bulk { BULK } else { SMALL };
        // A partial record stays where it is while there is room behind it.
        if incoming.spare_mut().len() < want / 2 {
            incoming.reserve(want - incoming.len().min(want / 2));
        }
        let spare = incoming.spare_mut();
        let room = spare.len();
        let mut buf = ReadBuf::new(spare);
        let result = Pin::new(&mut self.io).poll_read(cx, &mut buf);
        let n = buf.filled().len();
        incoming.extend(n);
        match result {
            Poll::Ready(Ok(())) => {
                self.bulk = n == room || n > SMALL;
                Poll::Ready(Ok(n))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                incoming.rest();
                Poll::Pending
            }
        }
    }

    /// Sends what is encrypted.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outgoing = &mut self.records.outgoing;
        while !outgoing.is_empty() {
            let n = ready!(Pin::new(&mut self.io).poll_write(cx, outgoing.filled()))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            outgoing.advance(n);
        }
        outgoing.rest();
        Poll::Ready(Ok(()))
    }
}

impl<S: Side + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        loop {
            if !self.records.is_drained() {
                self.decrypt(cx, buf)?;
                if buf.filled().len() > before {
                    self.records.incoming.rest();
                    return Poll::Ready(Ok(()));
                }
            }
            if self.records.is_ended() || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            match self.poll_receive(cx) {
                Poll::Ready(Ok(0)) => {
                    // A peer that closes TCP without saying so has still closed.
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    // Nobody who waits for an answer may hold back what was left to go along.
                    if let Poll::Ready(Err(error)) = self.poll_send(cx) {
                        return Poll::Ready(Err(error));
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<S: Side + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.records.outgoing.len() > LINGER {
            ready!(self.poll_send(cx))?;
        }
        let n = self.records.encrypt(buf).map_err(|error| {
            let _ = self.poll_send(cx);
            invalid(error)
        })?;
        match self.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // What could not be sent yet is ours now.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(n)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.records.close().map_err(invalid)?;
        ready!(self.poll_send(cx))?;
        match ready!(Pin::new(&mut self.io).poll_shutdown(cx)) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}
