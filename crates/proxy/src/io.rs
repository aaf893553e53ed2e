//! Byte streams of either leg: plain TCP, or mesh TLS in either role, counted. Also the pool of read
//! buffers: a connection borrows one only while bytes move.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::{metrics::transport::OpenTransport, tls};

/// A connection, counted until dropped.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
    meter: Option<OpenTransport>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Client(Box<tls::Client>),
    Server(Box<tls::Server>),
}

impl Stream {
    /// Plain TCP.
    pub fn tcp(io: TcpStream) -> Self {
        Self {
            kind: Kind::Tcp(io),
            meter: None,
        }
    }

    /// TLS we began.
    pub fn client(io: tls::Client) -> Self {
        Self {
            kind: Kind::Client(Box::new(io)),
            meter: None,
        }
    }

    /// TLS we accepted.
    pub fn server(io: tls::Server) -> Self {
        Self {
            kind: Kind::Server(Box::new(io)),
            meter: None,
        }
    }

    /// Counts the connection from now on.
    #[must_use]
    pub fn metered(mut self, meter: OpenTransport) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Whether the end, if it has come, came without TLS' word for it: the peer may have been killed.
    pub fn is_truncated(&self) -> bool {
        match &self.kind {
            Kind::Tcp(_) => false,
            Kind::Client(io) => !io.is_ended(),
            Kind::Server(io) => !io.is_ended(),
        }
    }

    /// The socket of a plain stream.
    pub fn into_tcp(self) -> Option<TcpStream> {
        match self.kind {
            Kind::Tcp(io) => Some(io),
            Kind::Client(_) | Kind::Server(_) => None,
        }
    }

    fn read_done(&mut self, result: &Poll<io::Result<()>>, n: usize) {
        if let Some(meter) = &mut self.meter {
            match result {
                Poll::Ready(Ok(())) => meter.read(n),
                Poll::Ready(Err(error)) => meter.failed(error),
                Poll::Pending => {}
            }
        }
    }

    fn write_done(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Some(meter) = &mut self.meter {
            match &result {
                Poll::Ready(Ok(n)) => meter.written(*n),
                Poll::Ready(Err(error)) => meter.failed(error),
                Poll::Pending => {}
            }
        }
        result
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = match &mut self.kind {
            Kind::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            Kind::Client(io) => Pin::new(io).poll_read(cx, buf),
            Kind::Server(io) => Pin::new(io).poll_read(cx, buf),
        };
        let n = buf.filled().len() - before;
        self.read_done(&result, n);
        result
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = match &mut self.kind {
            Kind::Tcp(io) => Pin::new(io).poll_write(cx, buf),
            Kind::Client(io) => Pin::new(io).poll_write(cx, buf),
            Kind::Server(io) => Pin::new(io).poll_write(cx, buf),
        };
        self.write_done(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = match &mut self.kind {
            Kind::Tcp(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Kind::Client(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Kind::Server(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        };
        self.write_done(result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Tcp(_) => Poll::Ready(Ok(())),
            Kind::Client(io) => Pin::new(io).poll_flush(cx),
            Kind::Server(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Kind::Client(io) => Pin::new(io).poll_shutdown(cx),
            Kind::Server(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

/// Size of a head buffer.
pub const HEAD_BUFFER: usize = 8 * 1024;
/// Buffers kept per worker.
const POOLED: usize = 64;

thread_local! {
    static POOL: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Borrows a buffer of [`HEAD_BUFFER`] bytes.
pub fn take_buffer() -> BytesMut {
    POOL.with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| BytesMut::with_capacity(HEAD_BUFFER))
}

/// Gives a buffer back; larger ones are freed.
pub fn give_buffer(mut buffer: BytesMut) {
    buffer.clear();
    // A buffer whose front was split off may have room again once it is alone.
    if buffer.capacity() < HEAD_BUFFER && !buffer.try_reclaim(HEAD_BUFFER) {
        return;
    }
    if buffer.capacity() > 2 * HEAD_BUFFER {
        return;
    }
    POOL.with_borrow_mut(|pool| {
        if pool.len() < POOLED {
            pool.push(buffer);
        }
    });
}
