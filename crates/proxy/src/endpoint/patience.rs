//! Waiting for an application that does not listen yet: for so long, for so many requests, and not
//! again once it was in vain.

use std::{cell::Cell, time::Instant};

use bytes::Bytes;
use h2::client::SendRequest;

use super::Endpoint;
use crate::connect::ConnectError;

/// Requests that wait for an application to listen.
#[derive(Debug, Default)]
pub(super) struct Patience {
    waiting: Cell<usize>,
    /// One has waited in vain: nobody waits until the application listens.
    pub(super) over: Cell<bool>,
}

/// Why a request to an application has no connection.
#[derive(Debug)]
pub enum NotListening {
    /// Waiting would not help.
    Connect(ConnectError),
    /// It was waited for long enough.
    FailFast,
    /// Too many wait already.
    Shed,
}

impl Endpoint {
    /// The HTTP/2 connection to an application that may begin to listen a moment late: tried again with
    /// backoff until the deadline, or until we leave. Once it was waited for in vain, it is tried but not
    /// waited for.
    pub async fn http2_patiently(
        &self,
        deadline: Instant,
        capacity: usize,
        leaving: impl Fn() -> bool,
    ) -> Result<SendRequest<Bytes>, NotListening> {
        let mut waits: Option<Waits<'_>> = None;
        loop {
            if let Some(send) = self.live_http2().await {
                return Ok(send);
            }
            let failures = self.failures.get();
            let connecting = self.h2_connecting.lock().await;
            // Whoever held the lock has tried for us, too.
            let dialled = match self.live_http2().await {
                Some(send) => return Ok(send),
                None if self.failures.get() > failures => None,
                None => Some(self.dial_http2().await),
            };
            drop(connecting);
            match dialled {
                Some(Ok(send)) => return Ok(send),
                Some(Err(error @ (ConnectError::Io(_) | ConnectError::Timeout(_)))) => {
                    tracing::debug!(application = %self.addr, %error, "Not listening yet");
                }
                Some(Err(error)) => return Err(NotListening::Connect(error)),
                None => {}
            }
            let now = Instant::now();
            if now >= deadline {
                self.patience.over.set(true);
            }
            if self.patience.over.get() || leaving() {
                return Err(NotListening::FailFast);
            }
            if waits.is_none() {
                waits = Some(Waits::begin(&self.patience, capacity)?);
            }
            let at = self.ready_at().unwrap_or(now).min(deadline);
            tokio::time::sleep_until(at.into()).await;
        }
    }
}

/// One request that waits for an application.
#[derive(Debug)]
struct Waits<'a>(&'a Patience);

impl<'a> Waits<'a> {
    fn begin(patience: &'a Patience, capacity: usize) -> Result<Self, NotListening> {
        let waiting = patience.waiting.get();
        if waiting >= capacity {
            return Err(NotListening::Shed);
        }
        patience.waiting.set(waiting + 1);
        Ok(Self(patience))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}
