//! The HTTP/1 side of a client connection: read a head, have it routed, exchange, again. One task
//! carries both legs of every request.

use std::{
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

use http::StatusCode;
use linkerd_http1::{Body, HeadError, Limits, Method, Name, RequestHead, Status, Version};

use super::{
    Admitted, Direction, Routed,
    again::{Step, Tries, Why},
    deadline::{Expired, HeadTimer},
    exchange1, exchange2,
};
use crate::{
    connect::Payload,
    endpoint::InFlight,
    errors::{Class, HttpError},
    h1::Conn,
    metrics::http::Outcome,
    observe, tunnel,
    worker::DrainSlot,
};

/// What a client said about itself, kept after its head is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) version: Version,
    keep_alive: bool,
    drain: &'a DrainSlot,
    pub(super) method: Method,
    /// An old or nameless client: its requests get connections of their own.
    pub(super) one_off: bool,
}

impl Facts<'_> {
    /// Whether the connection stays; asked when an answer is written, since a drain may have begun
    /// after its request came.
    pub(super) fn keeps_alive(&self) -> bool {
        self.keep_alive && !self.drain.is_draining()
    }
}

/// How an exchange ended for the client.
#[derive(Debug)]
pub(super) enum Next {
    /// The next request may come.
    KeepAlive,
    /// The connection ends.
    Close,
    /// The connection ends although the client may still be sending.
    Linger,
    /// Both connections became a byte pipe.
    Tunnel(Conn),
}

/// Why an exchange failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nothing has been answered: the client gets this.
    Answer(HttpError),
    /// Nothing has been answered, the request is still whole, and the application has not got it.
    Unsent(HttpError, Why),
    /// Nothing has been answered, the request is still whole, and its connection died.
    Died {
        /// What the client is told if it is not sent again.
        error: HttpError,
        /// Whether the connection had served others before.
        reused: bool,
    },
    /// A peer's proxy gave an answer that is dropped in favour of another try.
    Dropped(Why),
    /// The answer, or its absence, asks for another try; the outcome is that of the answer.
    Retry(HttpError, Option<Outcome>),
    /// A limit has passed; becomes one of the others.
    Expired(Expired),
    /// Nothing has been answered: the client hears of the server's reset.
    Reset(h2::Reason),
    /// The answer broke in the middle.
    Abort,
    /// The client is gone: nobody failed.
    Gone,
}

/// Serves one client connection to its end.
pub async fn serve<D: Direction>(direction: &D, mut client: Conn) {
    let mut drain = direction.drain().slot();
    let mut head = RequestHead::new();
    let limits = Limits::default();
    let mut unread = false;
    loop {
        let patience = direction.head_timeout();
        match read_head(&mut client, &mut head, &limits, &mut drain, patience).await {
            Read::Head => {}
            Read::Closed => {
                // A request that crosses the end is not answered with a reset, so that its sender
                // sees an orderly end and knows that nobody took it.
                unread = drain.is_draining() && !client.is_eof();
                break;
            }
            Read::Slow => {
                let timeout = Class::BadRequest(StatusCode::REQUEST_TIMEOUT);
                let error = HttpError::new(timeout, "unexpected", "request head timed out");
                let informational = direction.informational();
                error.write_http1(head.version(), false, informational, false, client.out());
                unread = true;
                break;
            }
            Read::Bad(error) => {
                let status =
                    StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
                let error =
                    HttpError::new(Class::BadRequest(status), "unexpected", error.to_string());
                let informational = direction.informational();
                error.write_http1(head.version(), false, informational, false, client.out());
                unread = true;
                break;
            }
        }
        match exchange(direction, &mut client, &head, &drain).await {
            Next::KeepAlive => {}
            Next::Close => break,
            Next::Linger => {
                unread = true;
                break;
            }
            Next::Tunnel(server) => {
                drop(drain);
                tunnel::copy(client, server).await;
                return;
            }
        }
    }
    let _ = tokio::time::timeout(CLOSE, close(&mut client, unread)).await;
}

/// How long an orderly end may take.
const CLOSE: Duration = Duration::from_secs(2);
/// Bytes thrown away so that the last answer is not lost to a reset.
const DISCARD: usize = 16 << 20;

/// Ends a connection. Closing a socket with unread bytes resets it, and the client might never see the
/// answer: what it still sends is read and thrown away, within limits.
async fn close(client: &mut Conn, unread: bool) {
    if client.close().await.is_err() || !unread {
        return;
    }
    let mut discarded = 0;
    while discarded < DISCARD {
        client.rbuf.clear();
        match std::future::poll_fn(|cx| client.poll_fill(cx)).await {
            Ok(n) if n > 0 => discarded += n,
            _ => return,
        }
    }
}

enum Read {
    Head,
    Closed,
    /// A head began and did not end in time.
    Slow,
    Bad(HeadError),
}

async fn read_head(
    client: &mut Conn,
    head: &mut RequestHead,
    limits: &Limits,
    drain: &mut DrainSlot,
    patience: Duration,
) -> Read {
    let mut timer = HeadTimer::default();
    std::future::poll_fn(|cx| {
        loop {
            if !client.rbuf.is_empty() {
                match head.parse(&client.rbuf, limits) {
                    Ok(Status::Complete) => return Poll::Ready(Read::Head),
                    Ok(Status::Partial) => {}
                    Err(error) => return Poll::Ready(Read::Bad(error)),
                }
            } else if drain.poll_draining(cx) {
                // Idle while draining: nothing is lost by closing.
                return Poll::Ready(Read::Closed);
            }
            match client.poll_fill(cx) {
                Poll::Pending if !client.rbuf.is_empty() && timer.poll_over(cx, patience) => {
                    return Poll::Ready(Read::Slow);
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(n)) if n > 0 => {}
                Poll::Ready(_) => return Poll::Ready(Read::Closed),
            }
        }
    })
    .await
}

async fn exchange<D: Direction>(
    direction: &D,
    client: &mut Conn,
    head: &RequestHead,
    drain: &DrainSlot,
) -> Next {
    let facts = Facts {
        version: head.version(),
        keep_alive: head.keep_alive(),
        drain,
        method: head.method(),
        one_off: head.version() == Version::Http10 || !head.seen().contains(Name::Host),
    };
    let observed = direction.observe(&head.view(&client.rbuf));
    let taken = client.taken();
    let result = {
        // Pinned here, or there would be two copies of it.
        let answer = pin!(async {
            let _admitted = Admitted::new(direction).map_err(Failed::Answer)?;
            let routed = direction.route(&head.view(&client.rbuf)).await;
            let mut routed = routed.map_err(Failed::Answer)?;
            routed.observe(&observed);
            let result = dispatch(client, head, facts, &routed).await;
            match &result {
                Err(failed) if failed.error().is_some() => client.rewind(),
                _ => client.forget(),
            }
            routed.done(result.as_ref().err().and_then(Failed::error), false);
            result
        });
        observed.timed(answer).await
    };
    let error = match result {
        Ok(next) => return next,
        Err(failed) => match failed.into_error() {
            Some(error) => error,
            None => return Next::Close,
        },
    };
    direction.failed(&error);
    // A body that is not here yet would be taken for the next request.
    let skipped = match client.taken() == taken {
        true => skip(client, head),
        false => false,
    };
    let keep_alive = facts.keeps_alive() && skipped;
    let head_only = facts.method == Method::Head;
    let informational = direction.informational();
    let (status, _) = error.statuses(false);
    observed.answered(status, &observe::Empty);
    observed.ended(Outcome::classify(status, None));
    let close = error.write_http1(
        facts.version,
        keep_alive,
        informational,
        head_only,
        client.out(),
    );
    match client.send().await {
        Ok(()) if !close => Next::KeepAlive,
        Ok(()) if !skipped => Next::Linger,
        _ => Next::Close,
    }
}

/// Skips a request that is here as a whole; whether it was.
fn skip(client: &mut Conn, head: &RequestHead) -> bool {
    let Some(behind) = client.rbuf.get(head.len()..) else {
        return false;
    };
    match Body::new(head.framing()).consume(behind) {
        Ok(body) if body.done => {
            client.used(head.len() + body.take);
            true
        }
        _ => false,
    }
}

impl Failed {
    /// The end of a request that nobody answers: the client is told why.
    pub(super) fn told(error: HttpError) -> Self {
        match error.reset {
            Some(reason) => Self::Reset(reason),
            None => Self::Answer(error),
        }
    }

    /// What the client is told; `None` when it is too late for that.
    pub(super) fn into_error(self) -> Option<HttpError> {
        match self {
            Self::Answer(error)
            | Self::Unsent(error, _)
            | Self::Died { error, .. }
            | Self::Retry(error, _) => Some(error),
            Self::Dropped(_) | Self::Expired(_) | Self::Reset(_) | Self::Abort | Self::Gone => None,
        }
    }

    pub(super) fn error(&self) -> Option<&HttpError> {
        match self {
            Self::Answer(error)
            | Self::Unsent(error, _)
            | Self::Died { error, .. }
            | Self::Retry(error, _) => Some(error),
            Self::Dropped(_) | Self::Expired(_) | Self::Reset(_) | Self::Abort | Self::Gone => None,
        }
    }
}

/// Larger heads travel as they are: a Linkerd peer takes 16 KiB as HTTP/2, and fields count more there.
const UPGRADED_HEAD: usize = 12 * 1024;

/// Finds an endpoint and exchanges; goes on to another when that is safe or asked for.
async fn dispatch(
    client: &mut Conn,
    head: &RequestHead,
    facts: Facts<'_>,
    routed: &Routed,
) -> Result<Next, Failed> {
    let tries = Tries::new(routed, facts.method, Payload::Http1);
    let tunnels = head.upgrade() || facts.method == Method::Connect;
    loop {
        let endpoint = tries.endpoint().await?;
        let now = Instant::now();
        let flight = InFlight::new(endpoint, now);
        routed.begin(&flight);
        let endpoint = &flight.endpoint;
        let result = if !tunnels && head.len() <= UPGRADED_HEAD && endpoint.upgrades(now) {
            let http2 = {
                // Its room is given back before the exchange begins.
                let http2 = pin!(endpoint.http2());
                tries.connected(&flight, true, http2).await
            };
            match http2 {
                Ok(send) => {
                    exchange2::from_http1(client, head, facts, routed, &flight, send, &tries).await
                }
                Err(failed) => Err(failed),
            }
        } else {
            let checkout = {
                let pooled = !(tries.fresh() || tunnels || facts.one_off);
                let checkout = pin!(endpoint.http1(pooled));
                tries.connected(&flight, pooled, checkout).await
            };
            match checkout {
                Ok(checkout) => {
                    exchange1::from_http1(client, head, facts, routed, &flight, checkout, &tries)
                        .await
                }
                Err(failed) => Err(failed),
            }
        };
        let failed = match result {
            Ok(next) => return Ok(next),
            Err(failed) => failed,
        };
        let step = tries.after(failed, &flight.endpoint);
        routed.settle(&flight, &step, false);
        match step {
            Step::Again => {}
            Step::BackOff(n) => {
                drop(flight);
                routed.back_off(n).await?;
            }
            Step::End(failed) => return Err(failed),
        }
        client.rewind();
    }
}
