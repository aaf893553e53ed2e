//! Follows a body through whatever pieces it comes in. Bytes can be passed through unchanged (`consume`) or taken out
//! of their chunks (`decode`); bytes behind the end of the body are never touched, so pipelined requests stay put.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::chunked::{Chunked, each_trailer};
use crate::error::BodyError;
use crate::framing::Framing;

/// Where a body stands. Use either [`Body::consume`] or [`Body::decode`] on one body, not both.
#[derive(Debug)]
pub struct Body {
    state: State,
}

#[derive(Debug)]
enum State {
    Done,
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

/// How far a body got by the bytes given: the first `take` belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub take: usize,
    pub done: bool,
}

/// One step of decoding: the first `take` bytes are used up, of which `data` is payload (it may be empty).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    pub take: usize,
    pub data: Range<usize>,
    pub done: bool,
}

impl Body {
    /// A tunnel is not a body and counts as done at once: its bytes are not HTTP.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) | Framing::Tunnel => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::new()),
            Framing::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Done => true,
            State::Chunked(chunked) => chunked.done(),
            State::Length(_) | State::UntilClose => false,
        }
    }

    /// Bytes known to be still to come, where the framing says.
    pub fn remaining(&self) -> Option<u64> {
        match &self.state {
            State::Done => Some(0),
            State::Length(left) => Some(*left),
            State::Chunked(_) | State::UntilClose => None,
        }
    }

    /// Says how many of `bytes` belong to this body, to be forwarded as they are.
    pub fn consume(&mut self, bytes: &[u8]) -> Result<Progress, BodyError> {
        let mut take = 0;
        while take < bytes.len() && !self.is_done() {
            take += self.decode(&bytes[take..])?.take;
        }
        Ok(Progress {
            take,
            done: self.is_done(),
        })
    }

    /// Takes the next run of payload out of `bytes`. Call again with what is behind `take` until nothing is left or it is done.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Decoded, BodyError> {
        let (take, data) = match &mut self.state {
            State::Done => (0, 0),
            State::UntilClose => (bytes.len(), bytes.len()),
            State::Length(left) => {
                let take = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                *left -= take as u64;
                if *left == 0 {
                    self.state = State::Done;
                }
                (take, take)
            }
            State::Chunked(chunked) => {
                let step = chunked.step(bytes)?;
                (step.take, step.data)
            }
        };
        Ok(Decoded {
            take,
            data: take - data..take,
            done: self.is_done(),
        })
    }

    /// The peer closed its side: the end of a body that lasts until then, an error for any other that is not complete.
    pub fn close(&mut self) -> Result<(), BodyError> {
        if matches!(self.state, State::UntilClose) {
            self.state = State::Done;
        }
        if self.is_done() {
            Ok(())
        } else {
            Err(BodyError::Incomplete)
        }
    }

    /// The trailers of a complete chunked body, if it had any.
    pub fn trailers(&self) -> Option<HeaderMap> {
        let State::Chunked(chunked) = &self.state else {
            return None;
        };
        if !chunked.done() || chunked.trailers().is_empty() {
            return None;
        }
        let mut map = HeaderMap::new();
        let _checked_before = each_trailer(chunked.trailers(), |name, value| {
            let name = HeaderName::from_bytes(name).map_err(|_| BodyError::Trailer)?;
            let value = Bytes::copy_from_slice(value);
            let value = HeaderValue::from_maybe_shared(value).map_err(|_| BodyError::Trailer)?;
            map.append(name, value);
            Ok(())
        });
        Some(map)
    }
}

#[cfg(test)]
mod tests;
