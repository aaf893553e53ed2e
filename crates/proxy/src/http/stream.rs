//! The sending half of an HTTP/2 stream with flow control: one pending piece at a time, so that a
//! slow receiver holds back the source.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};

/// A body being sent.
#[derive(Debug)]
pub(super) struct Sink {
    stream: SendStream<Bytes>,
    pending: Bytes,
    /// The pending piece ends the stream.
    last: bool,
    ended: bool,
}

impl Sink {
    pub(super) fn new(stream: SendStream<Bytes>) -> Self {
        Self {
            stream,
            pending: Bytes::new(),
            last: false,
            ended: false,
        }
    }

    /// Ready when the pending piece is with the connection.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        while !self.pending.is_empty() {
            self.stream.reserve_capacity(self.pending.len());
            if self.stream.capacity() == 0 {
                match ready!(self.stream.poll_capacity(cx)) {
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Err(Reason::CANCEL.into())),
                }
            }
            let n = self.stream.capacity().min(self.pending.len());
            let piece = self.pending.split_to(n);
            let end = self.last && self.pending.is_empty();
            self.stream.send_data(piece, end)?;
            self.ended |= end;
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the next piece; only when ready.
    pub(super) fn push(&mut self, data: Bytes) {
        debug_assert!(self.pending.is_empty(), "pushed before ready");
        self.pending = data;
    }

    /// Gives the last piece.
    pub(super) fn push_last(&mut self, data: Bytes) {
        self.last = true;
        self.push(data);
    }

    /// Ends the stream, unless its last piece did.
    pub(super) fn end(&mut self) -> Result<(), h2::Error> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        self.stream.send_data(Bytes::new(), true)
    }

    /// Ends the stream with trailers.
    pub(super) fn trailers(&mut self, trailers: http::HeaderMap) -> Result<(), h2::Error> {
        self.ended = true;
        self.stream.send_trailers(trailers)
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        self.stream.send_reset(reason);
    }

    /// Ready when the receiver has given up.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reason, h2::Error>> {
        if self.ended {
            return Poll::Pending;
        }
        self.stream.poll_reset(cx)
    }
}
