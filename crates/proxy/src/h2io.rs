//! HTTP/2 connections on the `h2` crate, with a gathering buffer under it: `h2` writes and flushes
//! frame by frame, the buffer ignores that and sends once per turn of the loop. It also knows how far
//! the peer is: a header block that is begun has to end in time.

mod frames;
pub mod ping;

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use h2::client::SendRequest;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use self::{frames::Frames, ping::Adaptive};
use crate::{
    block::{Block, LARGE},
    config::Http2Windows,
    connect::ConnectError,
    detect::H2_PREFACE,
    h1,
    io::{Stream, give_buffer},
    policy::endpoint::Http2Params,
};

/// The I/O given to `h2`.
#[derive(Clone, Debug)]
pub struct Gather(Rc<RefCell<Inner>>);

#[derive(Debug)]
struct Inner {
    io: Stream,
    /// Read already, to be given first.
    prefix: BytesMut,
    out: Block,
    /// Nothing can be written any more. What the peer said before it went is still to be read.
    deaf: bool,
    frames: Frames,
    /// Until when the peer has to finish what it has begun, by its number.
    patience: Option<(u32, Pin<Box<Sleep>>)>,
    /// Bytes received so far.
    received: u64,
}

impl Gather {
    /// Takes over a connection to a client, with what it has read and what it was going to write.
    pub fn to_client(conn: h1::Conn) -> Self {
        Self::new(conn, Frames::after(H2_PREFACE.len()))
    }

    /// Takes over a connection to a server.
    pub fn to_server(conn: h1::Conn) -> Self {
        Self::new(conn, Frames::after(0))
    }

    fn new(conn: h1::Conn, frames: Frames) -> Self {
        let (io, prefix, queued) = conn.into_parts();
        let mut out = Block::default();
        out.put(&queued);
        give_buffer(queued);
        Self(Rc::new(RefCell::new(Inner {
            io,
            prefix,
            out,
            deaf: false,
            frames,
            patience: None,
            received: 0,
        })))
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.0.borrow().received
    }

    /// Ready when the peer has not finished a header block, or a frame that is no data, for so long.
    /// Who finishes what it begins has no timer.
    pub fn poll_unfinished(&self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        let inner = &mut *self.0.borrow_mut();
        let Some(number) = inner.frames.unfinished() else {
            inner.patience = None;
            return Poll::Pending;
        };
        let begun = match inner.patience.take() {
            Some((begun, patience)) if begun == number => patience,
            _ => Box::pin(tokio::time::sleep(limit)),
        };
        let (_, patience) = inner.patience.insert((number, begun));
        patience.as_mut().poll(cx)
    }

    /// Sends what was gathered.
    pub fn poll_send(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.borrow_mut().poll_send(cx)
    }
}

impl Inner {
    /// Sends first if so much more would be too much to keep.
    fn poll_room(&mut self, cx: &mut Context<'_>, more: usize) -> Poll<()> {
        if self.out.is_empty() || self.out.len() + more <= LARGE {
            return Poll::Ready(());
        }
        self.poll_send(cx)
    }

    /// A peer that closed has often answered before: a write that fails ends writing, not reading.
    /// The end of the connection is told by the reads.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.deaf {
            match ready!(self.poll_write_out(cx)) {
                Ok(()) => return Poll::Ready(()),
                Err(error) => tracing::debug!(%error, "HTTP/2 peer takes nothing more"),
            }
            self.deaf = true;
        }
        self.out.advance(self.out.len());
        self.out.rest();
        Poll::Ready(())
    }

    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            let n = ready!(Pin::new(&mut self.io).poll_write(cx, self.out.filled()))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(n);
        }
        self.out.rest();
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

impl AsyncRead for Gather {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.borrow_mut();
        if !inner.prefix.is_empty() {
            let n = inner.prefix.len().min(buf.remaining());
            inner.frames.follow(&inner.prefix[..n]);
            buf.put_slice(&inner.prefix[..n]);
            inner.prefix.advance(n);
            if inner.prefix.is_empty() {
                give_buffer(std::mem::take(&mut inner.prefix));
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let state = Pin::new(&mut inner.io).poll_read(cx, buf);
        let read = &buf.filled()[before..];
        inner.frames.follow(read);
        inner.received += read.len() as u64;
        state
    }
}

impl AsyncWrite for Gather {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.borrow_mut();
        ready!(inner.poll_room(cx, buf.len()));
        inner.out.put(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.borrow_mut();
        let n = bufs.iter().map(|buf| buf.len()).sum();
        ready!(inner.poll_room(cx, n));
        for buf in bufs {
            inner.out.put(buf);
        }
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The driver sends after each turn.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.borrow_mut();
        ready!(inner.poll_send(cx));
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

/// Largest header list either side takes.
pub const MAX_HEADER_LIST: u32 = 64 * 1024;

/// Starts an HTTP/2 client on a connection; its driver runs on this worker. The head of an answer that
/// has begun may take `head_timeout`; `busy` says whether anything is asked of the peer.
pub async fn client(
    conn: h1::Conn,
    windows: &Http2Windows,
    params: &Http2Params,
    head_timeout: Duration,
    busy: impl Fn() -> bool + 'static,
) -> Result<SendRequest<Bytes>, ConnectError> {
    let gather = Gather::to_server(conn);
    let (stream, connection) = match params.adaptive {
        true => ping::FIRST,
        false => (
            params.stream_window.unwrap_or(windows.stream),
            params.connection_window.unwrap_or(windows.connection),
        ),
    };
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(stream)
        .initial_connection_window_size(connection)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_concurrent_reset_streams(params.max_concurrent_reset_streams.unwrap_or(256))
        .enable_push(false);
    if let Some(size) = params.max_frame_size {
        builder.max_frame_size(size);
    }
    if let Some(size) = params.max_send_buf_size {
        builder.max_send_buffer_size(size);
    }
    let (send, mut connection) = builder.handshake(gather.clone()).await?;
    let keep_alive = params.keep_alive;
    let adaptive = params.adaptive.then(|| Adaptive::new(&gather));
    let pings = match keep_alive.is_some() || adaptive.is_some() {
        true => connection.ping_pong(),
        false => None,
    };
    linkerd_runtime::spawn_local("http2-client", async move {
        let watch = pings.map(|p| ping::watch(p, keep_alive, busy, adaptive.as_ref()));
        let mut watch = std::pin::pin!(watch);
        std::future::poll_fn(|cx| {
            if let Some(window) = adaptive.as_ref().and_then(Adaptive::grown) {
                connection.set_target_window_size(window.max(ping::FIRST.1));
                // Refused while the peer has not heard of the last one: the next is larger.
                let _ = connection.set_initial_window_size(window);
            }
            let state = Pin::new(&mut connection).poll(cx);
            // Whatever the turn made goes out in one write.
            let _ = gather.poll_send(cx);
            if state.is_pending() && gather.poll_unfinished(cx, head_timeout).is_ready() {
                tracing::debug!("HTTP/2 server does not finish a header block");
                return Poll::Ready(());
            }
            if let Poll::Ready(result) = state {
                if let Err(error) = result {
                    tracing::debug!(%error, "HTTP/2 client connection ended");
                }
                return Poll::Ready(());
            }
            if let Some(watch) = watch.as_mut().as_pin_mut()
                && watch.poll(cx).is_ready()
            {
                tracing::debug!("HTTP/2 peer does not answer pings");
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    });
    Ok(send)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// A peer that leaves closes with our latest frame unread, which resets the connection. Writes
    /// fail from then on; answers it gave before must still be heard.
    #[tokio::test]
    async fn a_peer_that_left_is_heard_to_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let addr = listener.local_addr().expect("its address");
        let mut client = TcpStream::connect(addr).await.expect("a connection");
        let (mut server, _) = listener.accept().await.expect("a connection");
        client.write_all(b"unread").await.expect("sent");
        server.readable().await.expect("it came");
        server.write_all(b"the answer").await.expect("sent");
        drop(server);
        client.readable().await.expect("it came");

        let mut gather = Gather::to_server(h1::Conn::new(Stream::tcp(client)));
        for _ in 0..3 {
            gather.write_all(b"more").await.expect("gathered");
            std::future::poll_fn(|cx| gather.poll_send(cx)).await;
        }
        let mut answer = [0; 10];
        gather.read_exact(&mut answer).await.expect("the answer");
        assert_eq!(&answer, b"the answer");
        let end = gather.read(&mut answer).await;
        assert!(!matches!(end, Ok(1..)), "then the end: {end:?}");
    }
}
