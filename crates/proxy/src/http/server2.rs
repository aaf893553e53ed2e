//! The HTTP/2 side of a client connection. The connection and all of its streams are driven by one
//! task, and everything one turn makes goes out in one write.

use std::{
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use h2::{RecvStream, server::SendResponse};
use linkerd_http1::Method;

use super::{
    Admitted, Direction, Routed,
    again::{Step, Tries},
    exchange1, exchange2,
    server1::Failed,
    stream::Source,
};
use crate::{
    config::Http2Server,
    endpoint::{InFlight, NotListening},
    errors::{HttpError, is_grpc},
    h1::Conn,
    h2io::{Gather, MAX_HEADER_LIST},
    metrics::http::Outcome,
    observe::Observed,
    worker::Drain,
};

/// How long the client's half of the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves one client connection to its end.
pub async fn serve<D: Direction>(direction: &D, client: Conn, config: &Http2Server) {
    let mut drain = direction.drain().slot();
    let gather = Gather::new(client);
    let builder = server_builder(config);
    let handshake = builder.handshake::<_, Bytes>(gather.clone());
    let mut handshake = std::pin::pin!(tokio::time::timeout(HANDSHAKE, handshake));
    let started = std::future::poll_fn(|cx| {
        let state = handshake.as_mut().poll(cx);
        let _ = gather.poll_send(cx);
        state
    })
    .await;
    let Ok(Ok(mut connection)) = started else {
        linger(&gather).await;
        return;
    };
    let keep_alive = config.keep_alive;
    let pings = keep_alive.and_then(|k| connection.ping_pong().map(|p| (p, k)));
    let mut alive = std::pin::pin!(pings.map(|(pings, limits)| unanswered(pings, limits)));
    let mut streams = FuturesUnordered::new();
    let mut goaway = false;
    std::future::poll_fn(|cx| {
        let mut open = true;
        loop {
            if !goaway && drain.poll_draining(cx) {
                goaway = true;
                connection.graceful_shutdown();
            }
            let mut progress = false;
            while open {
                match connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        progress = true;
                        streams.push(stream(direction, request, respond));
                    }
                    Poll::Ready(Some(Err(error))) => {
                        tracing::debug!(%error, "HTTP/2 server connection failed");
                        open = false;
                    }
                    Poll::Ready(None) => open = false,
                    Poll::Pending => break,
                }
            }
            while let Poll::Ready(Some(closes)) = streams.poll_next_unpin(cx) {
                progress = true;
                if closes && !goaway {
                    goaway = true;
                    connection.graceful_shutdown();
                }
            }
            if !progress {
                break;
            }
        }
        let _ = gather.poll_send(cx);
        if let Some(alive) = alive.as_mut().as_pin_mut()
            && alive.poll(cx).is_ready()
        {
            tracing::debug!("HTTP/2 client does not answer pings");
            return Poll::Ready(());
        }
        if open { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    linger(&gather).await;
}

/// How long a connection may take to end.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes thrown away so that our last words are not lost to a reset.
const DISCARD: usize = 256 * 1024;

/// Ends a connection whose client may still be sending.
async fn linger(gather: &Gather) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut io = gather.clone();
    let end = async {
        if io.shutdown().await.is_err() {
            return;
        }
        let mut scratch = vec![0; 8 * 1024];
        let mut discarded = 0;
        while discarded < DISCARD {
            match io.read(&mut scratch).await {
                Ok(n) if n > 0 => discarded += n,
                _ => return,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, end).await;
}

/// Ends when the client has left a ping unanswered.
async fn unanswered(mut pings: h2::PingPong, (interval, limit): (Duration, Duration)) {
    loop {
        tokio::time::sleep(interval).await;
        let pong = pings.ping(h2::Ping::opaque());
        if !matches!(tokio::time::timeout(limit, pong).await, Ok(Ok(_))) {
            return;
        }
    }
}

fn server_builder(config: &Http2Server) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    let (stream, connection) = config.windows.unwrap_or((65_535, 1_048_576));
    builder
        .initial_window_size(stream)
        .initial_connection_window_size(connection)
        .max_concurrent_streams(config.max_concurrent_streams.unwrap_or(200))
        .max_header_list_size(config.max_header_list_size.unwrap_or(MAX_HEADER_LIST));
    if let Some(size) = config.max_frame_size {
        builder.max_frame_size(size);
    }
    if let Some(n) = config.max_pending_accept_reset_streams {
        builder.max_pending_accept_reset_streams(n);
    }
    if let Some(n) = config.max_send_buf_size {
        builder.max_send_buffer_size(n);
    }
    builder
}

/// One request; gives whether the connection should end.
async fn stream<D: Direction>(
    direction: &D,
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> bool {
    let grpc = is_grpc(request.headers());
    let observed = direction.observe(&request);
    let answer = answer(direction, request, &mut respond, &observed, grpc);
    let error = match observed.timed(answer).await {
        Ok(()) => return false,
        Err(failed) => match failed.into_error() {
            Some(error) => error,
            None => return false,
        },
    };
    direction.failed(&error);
    let response = error.response(grpc, direction.informational());
    observed.answered(response.status().as_u16(), response.headers());
    let (status, code) = error.statuses(grpc);
    observed.ended(Outcome::classify(status, code));
    let _ = respond.send_response(response, true);
    error.class.closes()
}

async fn answer<D: Direction>(
    direction: &D,
    request: http::Request<RecvStream>,
    respond: &mut SendResponse<Bytes>,
    observed: &Observed,
    grpc: bool,
) -> Result<(), Failed> {
    let upgraded = direction.downgrades()
        && request
            .headers()
            .contains_key(linkerd_api::headers::ORIG_PROTO);
    let _admitted = Admitted::new(direction).map_err(Failed::Answer)?;
    let mut routed = direction.route(&request).await.map_err(Failed::Answer)?;
    routed.observe(observed);
    let (parts, incoming) = request.into_parts();
    let source = Source::new(incoming, routed.replay_limit());
    let kind = Kind {
        upgraded,
        grpc,
        patience: routed.inbound.as_ref().map(|_| &**direction.drain()),
    };
    let result = dispatch(&parts, source, respond, &routed, kind).await;
    routed.done(result.as_ref().err().and_then(Failed::error), grpc);
    result
}

impl From<NotListening> for Failed {
    fn from(why: NotListening) -> Self {
        match why {
            NotListening::Connect(error) => Tries::connect_failed(error),
            NotListening::FailFast => Self::Answer(HttpError::fail_fast()),
            NotListening::Shed => Self::Answer(HttpError::load_shed()),
        }
    }
}

/// What a request is besides HTTP/2.
#[derive(Clone, Copy, Debug)]
struct Kind<'a> {
    /// An HTTP/1 request on its way between proxies.
    upgraded: bool,
    grpc: bool,
    /// For an application that may begin to listen a moment late. While we leave, clients are
    /// better served elsewhere at once.
    patience: Option<&'a Drain>,
}

/// Finds an endpoint and exchanges; goes on to another when that is safe or asked for.
async fn dispatch(
    parts: &http::request::Parts,
    mut source: Source,
    respond: &mut SendResponse<Bytes>,
    routed: &Routed,
    kind: Kind<'_>,
) -> Result<(), Failed> {
    let method = Method::of(parts.method.as_str().as_bytes());
    let tries = Tries::new(routed, method, Instant::now() + routed.failfast);
    loop {
        let endpoint = tries.endpoint().await.map_err(Failed::Answer)?;
        let flight = InFlight::new(endpoint, Instant::now());
        routed.begin(&flight);
        let endpoint = &flight.endpoint;
        source.rewind();
        let result = if kind.upgraded {
            let checkout = if tries.fresh() {
                endpoint.http1_fresh().await
            } else {
                endpoint.http1().await
            };
            match checkout {
                Ok(checkout) => {
                    exchange1::from_http2(
                        parts,
                        &mut source,
                        respond,
                        routed,
                        &flight,
                        checkout,
                        &tries,
                    )
                    .await
                }
                Err(error) => Err(Tries::connect_failed(error)),
            }
        } else {
            let connected = if let Some(drain) = kind.patience {
                let (deadline, capacity) = (tries.deadline(), routed.capacity);
                let leaving = || drain.is_draining();
                let connected = endpoint.http2_patiently(deadline, capacity, leaving).await;
                connected.map_err(Failed::from)
            } else {
                endpoint.http2().await.map_err(Tries::connect_failed)
            };
            match connected {
                Ok(send) => {
                    exchange2::from_http2(
                        parts.clone(),
                        &mut source,
                        respond,
                        routed,
                        &flight,
                        send,
                        &tries,
                    )
                    .await
                }
                Err(failed) => Err(failed),
            }
        };
        let failed = match result {
            Ok(()) => return Ok(()),
            Err(failed) => failed,
        };
        let step = tries.after(failed, &flight.endpoint);
        routed.settle(&flight, &step, kind.grpc);
        match step {
            Step::Again => {}
            Step::BackOff(n) => {
                drop(flight);
                routed.back_off(n).await;
            }
            Step::End(failed) => return Err(failed),
        }
    }
}
