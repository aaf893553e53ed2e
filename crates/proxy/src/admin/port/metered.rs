//! Counts a connection to the admin port, from its opening to its end.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::metrics::{Counter, Family, Registry};

/// A connection that is counted while it is open.
#[derive(Debug)]
pub(super) struct Metered<IO> {
    io: IO,
    open: Arc<Counter>,
    closed: Arc<Counter>,
    read: Arc<Counter>,
    written: Arc<Counter>,
}

impl<IO> Metered<IO> {
    pub(super) fn new(io: IO, registry: &Registry, labels: &Arc<str>) -> Self {
        registry.counter(Family::TcpOpenTotal, labels).inc();
        let open = registry.counter(Family::TcpOpenConnections, labels);
        open.inc();
        let closed = format!("{labels},errno=\"\"").into();
        Self {
            io,
            open,
            closed: registry.counter(Family::TcpCloseTotal, &closed),
            read: registry.counter(Family::TcpReadBytesTotal, labels),
            written: registry.counter(Family::TcpWriteBytesTotal, labels),
        }
    }
}

impl<IO> Drop for Metered<IO> {
    fn drop(&mut self) {
        self.open.dec();
        self.closed.inc();
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Metered<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        self.read.add((buf.filled().len() - before) as u64);
        polled
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Metered<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        if let Poll::Ready(Ok(n)) = &polled {
            self.written.add(*n as u64);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
