//! Both halves of an HTTP/2 stream. The sending half has one pending piece at a time, so that a slow
//! receiver holds back the source; the receiving half can keep a request for another try.

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;

/// A last piece of up to so many bytes is left to the connection, whatever the receiver's window.
const SMALL: usize = 16 * 1024;

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
        if self.last && !self.pending.is_empty() && self.pending.len() <= SMALL {
            // Nothing comes behind it that would have to be held back.
            let piece = std::mem::take(&mut self.pending);
            self.stream.send_data(piece, true)?;
            self.ended = true;
        }
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

/// The receiving half of an HTTP/2 request. What it gives is kept up to a limit, so that the request
/// can be sent again while it is still arriving.
#[derive(Debug)]
pub(super) struct Source {
    live: RecvStream,
    kept: VecDeque<Bytes>,
    /// Bytes kept.
    size: usize,
    limit: usize,
    /// Next of `kept` to give.
    at: usize,
    /// Something was given that is not kept.
    lost: bool,
    empty: bool,
    /// Nothing more will come from `live`; the trailers are known.
    ended: bool,
    trailers: Option<HeaderMap>,
}

/// What a kept piece costs besides its bytes.
const PIECE: usize = 64;
/// Smaller pieces are copied, so that they do not hold the buffer they came in.
const COPIED: usize = 4096;

impl Source {
    /// Keeps up to `limit` bytes; 0 keeps nothing.
    pub(super) fn new(live: RecvStream, limit: usize) -> Self {
        Self {
            empty: live.is_end_stream(),
            live,
            kept: VecDeque::new(),
            size: 0,
            limit,
            at: 0,
            lost: false,
            ended: false,
            trailers: None,
        }
    }

    /// Whether the request can be sent again as a whole.
    pub(super) fn is_replayable(&self) -> bool {
        !self.lost
    }

    /// The bytes of the body so far, if the request can be sent again as a whole.
    pub(super) fn kept(&self) -> Option<usize> {
        (!self.lost).then_some(self.size)
    }

    /// Starts again from what was kept.
    pub(super) fn rewind(&mut self) {
        self.at = 0;
    }

    /// The request will not be sent again: what was given is forgotten.
    pub(super) fn forget(&mut self) {
        self.lost = true;
        self.kept.drain(..self.at);
        self.at = 0;
    }

    /// Whether there is no body at all.
    pub(super) fn is_empty(&self) -> bool {
        self.empty
    }

    fn keep(&mut self, data: &Bytes) {
        if self.lost {
            return;
        }
        self.size += data.len();
        let pieces = (self.kept.len() + 1) * PIECE;
        if self.size.max(pieces) > self.limit {
            self.lost = true;
            self.kept = VecDeque::new();
            self.at = 0;
            return;
        }
        self.kept.push_back(if data.len() < COPIED {
            Bytes::copy_from_slice(data)
        } else {
            data.clone()
        });
        self.at += 1;
    }

    pub(super) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if self.lost {
            if let Some(data) = self.kept.pop_front() {
                return Poll::Ready(Some(Ok(data)));
            }
        } else if let Some(data) = self.kept.get(self.at) {
            self.at += 1;
            return Poll::Ready(Some(Ok(data.clone())));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let data = ready!(self.live.poll_data(cx));
        if let Some(Ok(data)) = &data {
            let _ = self.live.flow_control().release_capacity(data.len());
            self.keep(data);
        }
        Poll::Ready(data)
    }

    pub(super) fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, h2::Error>> {
        if !self.ended {
            self.trailers = ready!(self.live.poll_trailers(cx))?;
            self.ended = true;
        }
        Poll::Ready(Ok(self.trailers.clone()))
    }

    /// Whether the piece given last ends the stream.
    pub(super) fn is_end_stream(&self) -> bool {
        self.at >= self.kept.len()
            && self.trailers.is_none()
            && (self.ended || self.live.is_end_stream())
    }
}
