//! An HTTP/1 connection: a stream with a read buffer and a write buffer. Buffers are borrowed from
//! the worker's pool and go back when they are empty. [`Pipe`] moves one body between two of them.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, BytesMut};
use linkerd_http1::{Body, BodyEdit, BodyError, Framing, put_chunk, put_last_chunk};
use tokio::io::AsyncWrite;
use tokio_util::io::poll_read_buf;

use crate::{
    io::{HEAD_BUFFER, Stream, give_buffer, take_buffer},
    metrics::transport::OpenTransport,
};

/// Reads this much at once while a large body flows.
const BULK: usize = 64 * 1024;
/// Bytes gathered behind a head before they are sent on their own.
const GATHER: usize = 16 * 1024;

/// One side of an exchange.
#[derive(Debug)]
pub struct Conn {
    io: Stream,
    /// Bytes read and not used yet.
    pub rbuf: BytesMut,
    /// Bytes to be written.
    pub wbuf: BytesMut,
    eof: bool,
    kept: Option<Box<Kept>>,
    /// Bytes used up so far.
    taken: u64,
    /// Bytes written so far.
    written: u64,
}

/// A copy of what was used up, for another try.
#[derive(Debug)]
struct Kept {
    bytes: BytesMut,
    limit: usize,
}

impl Conn {
    /// A connection nothing was read from yet.
    pub fn new(io: Stream) -> Self {
        Self::with_prefix(io, BytesMut::new())
    }

    /// A connection whose first bytes were read already.
    pub fn with_prefix(io: Stream, rbuf: BytesMut) -> Self {
        Self {
            io,
            rbuf,
            wbuf: BytesMut::new(),
            eof: false,
            kept: None,
            taken: 0,
            written: 0,
        }
    }

    /// How many bytes have been used up; only the difference means something.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many bytes have left for the peer; only the difference means something.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Keeps a copy of what is used up from now on, until it is more than `limit` bytes.
    pub fn keep(&mut self, limit: usize) {
        self.kept = Some(Box::new(Kept {
            bytes: BytesMut::new(),
            limit,
        }));
    }

    /// How many bytes have been used up since [`Self::keep`], if they can all be had back.
    pub fn kept(&self) -> Option<usize> {
        self.kept.as_ref().map(|kept| kept.bytes.len())
    }

    /// Gives up the copy.
    pub fn forget(&mut self) {
        self.kept = None;
    }

    /// Puts what was kept back in front of the read buffer.
    pub fn rewind(&mut self) {
        if let Some(kept) = self.kept.take() {
            let mut bytes = kept.bytes;
            self.taken -= bytes.len() as u64;
            bytes.extend_from_slice(&self.rbuf);
            give_buffer(std::mem::replace(&mut self.rbuf, bytes));
        }
    }

    /// Uses up bytes of the read buffer.
    #[inline]
    pub fn used(&mut self, n: usize) {
        if self.kept.is_some() {
            self.remember(n);
        }
        self.taken += n as u64;
        self.rbuf.advance(n);
    }

    fn remember(&mut self, n: usize) {
        if let Some(kept) = &mut self.kept {
            if kept.bytes.len() + n > kept.limit {
                self.kept = None;
            } else {
                kept.bytes.extend_from_slice(&self.rbuf[..n]);
            }
        }
    }

    /// Counts the connection from now on, and what has been read of it and not used.
    #[must_use]
    pub fn metered(mut self, meter: OpenTransport) -> Self {
        meter.read(self.rbuf.len());
        self.io = self.io.metered(meter);
        self
    }

    /// Stream, bytes read, bytes to be written.
    pub fn into_parts(self) -> (Stream, BytesMut, BytesMut) {
        (self.io, self.rbuf, self.wbuf)
    }

    /// Whether the peer has closed its side.
    pub fn is_eof(&self) -> bool {
        self.eof
    }

    /// Whether the peer closed its side without TLS' word for it.
    pub fn is_truncated(&self) -> bool {
        self.io.is_truncated()
    }

    /// Queues bytes for the next send.
    pub fn queue(&mut self, bytes: &[u8]) {
        self.out().extend_from_slice(bytes);
    }

    /// The write buffer, with room.
    pub fn out(&mut self) -> &mut BytesMut {
        if self.wbuf.capacity() == 0 {
            self.wbuf = take_buffer();
        }
        &mut self.wbuf
    }

    /// Reads more; 0 is the end.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_fill_up_to(cx, HEAD_BUFFER)
    }

    fn poll_fill_up_to(&mut self, cx: &mut Context<'_>, want: usize) -> Poll<io::Result<usize>> {
        if self.eof {
            return Poll::Ready(Ok(0));
        }
        if self.rbuf.capacity() == 0 {
            self.rbuf = take_buffer();
        }
        // Grow only when what is there is full, or when much more is known to come.
        let spare = self.rbuf.capacity() - self.rbuf.len();
        if spare == 0 || (want > HEAD_BUFFER && spare < want / 2) {
            self.rbuf.reserve(want);
        }
        match poll_read_buf(Pin::new(&mut self.io), cx, &mut self.rbuf) {
            Poll::Ready(Ok(0)) => {
                self.eof = true;
                Poll::Ready(Ok(0))
            }
            Poll::Pending => {
                self.rest();
                Poll::Pending
            }
            other => other,
        }
    }

    /// Sends everything queued.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.wbuf.is_empty() {
            let n = ready!(Pin::new(&mut self.io).poll_write(cx, &self.wbuf))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += n as u64;
            self.wbuf.advance(n);
        }
        if self.wbuf.capacity() > 0 {
            give_buffer(std::mem::take(&mut self.wbuf));
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Sends everything queued.
    pub async fn send(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_send(cx)).await
    }

    /// Sends everything queued and closes the write side.
    pub async fn close(&mut self) -> io::Result<()> {
        self.send().await?;
        std::future::poll_fn(|cx| Pin::new(&mut self.io).poll_shutdown(cx)).await
    }

    /// Gives empty buffers back to the pool.
    pub fn rest(&mut self) {
        if self.rbuf.is_empty() && self.rbuf.capacity() > 0 {
            give_buffer(std::mem::take(&mut self.rbuf));
        }
        if self.wbuf.is_empty() && self.wbuf.capacity() > 0 {
            give_buffer(std::mem::take(&mut self.wbuf));
        }
    }

    /// Whether nothing is left over from the last exchange.
    pub fn is_clean(&self) -> bool {
        self.rbuf.is_empty() && self.wbuf.is_empty() && !self.eof
    }

    /// Whether an idle connection can be used: the peer has neither closed it nor sent anything.
    pub fn is_alive(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.is_clean() && self.poll_fill(&mut cx).is_pending()
    }
}

/// Why a body did not get across.
#[derive(Debug, thiserror::Error)]
pub enum PipeError {
    /// The source failed.
    #[error("reading failed")]
    Read(#[source] io::Error),
    /// The sink failed.
    #[error("writing failed")]
    Write(#[source] io::Error),
    /// The body is malformed or cut short.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// One body on its way from one connection to the other.
#[derive(Debug)]
pub struct Pipe {
    body: Body,
    edit: BodyEdit,
    /// Bytes at the front of the source's buffer that belong to the body and are not written yet.
    pending: usize,
    ended: bool,
    /// Bytes taken from the source, chunk framing included.
    carried: u64,
}

impl Pipe {
    /// Bytes of the body so far.
    pub fn moved(&self) -> usize {
        usize::try_from(self.carried).unwrap_or(usize::MAX)
    }

    /// A body with this framing at the source, changed so for the sink.
    pub fn new(framing: Framing, edit: BodyEdit) -> Self {
        Self {
            body: Body::new(framing),
            edit,
            pending: 0,
            ended: false,
            carried: 0,
        }
    }

    /// Bytes taken from the source so far; chunks count with their framing.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// Whether every byte has been handed on.
    pub fn is_done(&self) -> bool {
        self.pending == 0 && self.body.is_done() && (self.ended || self.edit != BodyEdit::Chunked)
    }

    /// Moves what is in the source's buffer behind what the sink is going to write, so that a head
    /// and its first body bytes leave in one write.
    pub fn gather(&mut self, src: &mut Conn, dst: &mut Conn) -> Result<(), BodyError> {
        while !self.is_done() && dst.wbuf.len() < GATHER {
            if self.pending == 0 && self.body.is_done() {
                put_last_chunk(dst.out(), self.body.trailers().as_ref());
                self.ended = true;
                break;
            }
            if self.pending == 0 && src.rbuf.is_empty() {
                break;
            }
            if self.edit == BodyEdit::Keep {
                if self.pending == 0 {
                    self.pending = self.body.consume(&src.rbuf)?.take;
                    self.carried += self.pending as u64;
                }
                let n = self.pending.min(GATHER);
                dst.out().extend_from_slice(&src.rbuf[..n]);
                src.used(n);
                self.pending -= n;
            } else {
                let step = self.body.decode(&src.rbuf)?;
                let data = &src.rbuf[step.data];
                match self.edit {
                    BodyEdit::Chunked => put_chunk(dst.out(), data),
                    _ => dst.out().extend_from_slice(data),
                }
                self.carried += data.len() as u64;
                src.used(step.take);
            }
        }
        Ok(())
    }

    /// Moves the body on; ready when it is complete and sent.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        src: &mut Conn,
        dst: &mut Conn,
    ) -> Poll<Result<(), PipeError>> {
        loop {
            if !dst.wbuf.is_empty() || self.edit != BodyEdit::Keep {
                self.gather(src, dst)?;
            }
            if !dst.wbuf.is_empty() {
                ready!(dst.poll_send(cx)).map_err(PipeError::Write)?;
                continue;
            }
            if self.pending > 0 {
                // Straight from the source's buffer, without a copy.
                let n = ready!(Pin::new(&mut dst.io).poll_write(cx, &src.rbuf[..self.pending]))
                    .map_err(PipeError::Write)?;
                if n == 0 {
                    return Poll::Ready(Err(PipeError::Write(io::ErrorKind::WriteZero.into())));
                }
                dst.written += n as u64;
                src.used(n);
                self.pending -= n;
                continue;
            }
            if self.is_done() {
                return dst.poll_send(cx).map_err(PipeError::Write);
            }
            if src.rbuf.is_empty() {
                let want = match self.body.remaining() {
                    Some(left) if left <= HEAD_BUFFER as u64 => HEAD_BUFFER,
                    _ => BULK,
                };
                match src.poll_fill_up_to(cx, want) {
                    Poll::Ready(Ok(0)) => {
                        self.body.close()?;
                        continue;
                    }
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(PipeError::Read(error))),
                    Poll::Pending => {
                        // Nothing more for now: what was written must not wait in TLS.
                        let _ = dst.poll_send(cx).map_err(PipeError::Write)?;
                        return Poll::Pending;
                    }
                }
            }
            if self.edit == BodyEdit::Keep {
                self.pending = self.body.consume(&src.rbuf)?.take;
                self.carried += self.pending as u64;
            }
        }
    }
}
