//! The HTTP/2 side of a client connection. The connection and all of its streams are driven by one
//! task, and everything one turn makes goes out in one write.

use std::{
    pin::pin,
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
    connect::Payload,
    endpoint::{InFlight, NotListening},
    errors::{HttpError, is_grpc},
    h1::Conn,
    h2io::{
        Gather, MAX_HEADER_LIST,
        ping::{self, Adaptive, KeepAlive},
    },
    metrics::http::Outcome,
    observe::Observed,
    worker::Drain,
};

/// The client's side of a stream, and how it is told of errors.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    pub(super) respond: &'a mut SendResponse<Bytes>,
    pub(super) grpc: bool,
    /// Whether it may see what went wrong.
    pub(super) informational: bool,
    /// Whether its connection is to end.
    pub(super) closes: bool,
}

/// How long the client's half of the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves one client connection to its end.
pub async fn serve<D: Direction>(direction: &D, client: Conn, config: &Http2Server) {
    let mut drain = direction.drain().slot();
    let gather = Gather::to_client(client);
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
    let keep_alive = config.keep_alive.map(|(interval, timeout)| KeepAlive {
        interval,
        timeout,
        while_idle: true,
    });
    let adaptive = config.adaptive.then(|| Adaptive::new(&gather));
    let pings = match keep_alive.is_some() || adaptive.is_some() {
        true => connection.ping_pong(),
        false => None,
    };
    // Apart, or all connections would be as large as those that need it.
    let mut watch = pings.map(|p| {
        let watch = ping::watch(p, keep_alive, || true, adaptive.as_ref());
        Box::pin(watch)
    });
    let mut streams = FuturesUnordered::new();
    let mut goaway = false;
    std::future::poll_fn(|cx| {
        let mut open = true;
        if let Some(window) = adaptive.as_ref().and_then(Adaptive::grown) {
            connection.set_target_window_size(window.max(ping::FIRST.1));
            // Refused while the client has not heard of the last one: the next is larger.
            let _ = connection.set_initial_window_size(window);
        }
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
        let limit = direction.head_timeout();
        if open && gather.poll_unfinished(cx, limit).is_ready() {
            tracing::debug!("HTTP/2 client does not finish a header block");
            connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
            let _ = connection.poll_accept(cx);
            let _ = gather.poll_send(cx);
            return Poll::Ready(());
        }
        if let Some(watch) = &mut watch
            && watch.as_mut().poll(cx).is_ready()
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

fn server_builder(config: &Http2Server) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    let (stream, connection) = match config.windows {
        Some(fixed) if !config.adaptive => fixed,
        _ => ping::FIRST,
    };
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
    let observed = direction.observe(&request);
    let mut caller = Caller {
        respond: &mut respond,
        grpc: is_grpc(request.headers()),
        informational: direction.informational(),
        closes: false,
    };
    let result = {
        // Pinned here, or there would be two copies of it.
        let answer = pin!(answer(direction, request, &mut caller, &observed));
        observed.timed(answer).await
    };
    let error = match result {
        Ok(()) => return caller.closes,
        Err(Failed::Reset(reason)) => {
            caller.respond.send_reset(reason);
            return false;
        }
        Err(failed) => match failed.into_error() {
            Some(error) => error,
            None => return false,
        },
    };
    direction.failed(&error);
    let response = error.response(caller.grpc, caller.informational);
    observed.answered(response.status().as_u16(), response.headers());
    let (status, code) = error.statuses(caller.grpc);
    observed.ended(Outcome::classify(status, code));
    let _ = caller.respond.send_response(response, true);
    error.class.closes()
}

async fn answer<D: Direction>(
    direction: &D,
    request: http::Request<RecvStream>,
    caller: &mut Caller<'_>,
    observed: &Observed,
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
        patience: routed.inbound.as_ref().map(|_| &**direction.drain()),
    };
    let result = dispatch(&parts, source, caller, &routed, kind).await;
    routed.done(result.as_ref().err().and_then(Failed::error), caller.grpc);
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
    /// For an application that may begin to listen a moment late. While we leave, clients are
    /// better served elsewhere at once.
    patience: Option<&'a Drain>,
}

/// Finds an endpoint and exchanges; goes on to another when that is safe or asked for.
async fn dispatch(
    parts: &http::request::Parts,
    mut source: Source,
    caller: &mut Caller<'_>,
    routed: &Routed,
    kind: Kind<'_>,
) -> Result<(), Failed> {
    let method = Method::of(parts.method.as_str().as_bytes());
    let payload = match kind.upgraded {
        true => Payload::Http1,
        false => Payload::Http2,
    };
    let tries = Tries::new(routed, method, payload);
    let one_off = kind.upgraded && exchange1::is_one_off(parts);
    loop {
        let endpoint = tries.endpoint().await?;
        let flight = InFlight::new(endpoint, Instant::now());
        routed.begin(&flight);
        let endpoint = &flight.endpoint;
        source.rewind();
        let result = if kind.upgraded {
            let checkout = {
                let pooled = !(tries.fresh() || one_off);
                let checkout = pin!(endpoint.http1(pooled));
                tries.connected(&flight, pooled, checkout).await
            };
            match checkout {
                Ok(checkout) => {
                    exchange1::from_http2(
                        parts,
                        &mut source,
                        caller,
                        routed,
                        &flight,
                        checkout,
                        &tries,
                    )
                    .await
                }
                Err(failed) => Err(failed),
            }
        } else {
            // Its room is given back before the exchange begins.
            let http2 = if let Some(drain) = kind.patience {
                // Inbound requests have no limits of their own.
                let (deadline, capacity) = (tries.deadline(), routed.capacity);
                let leaving = || drain.is_draining();
                let patient = endpoint.http2_patiently(deadline, capacity, leaving);
                patient.await.map_err(Failed::from)
            } else {
                let http2 = pin!(endpoint.http2());
                tries.connected(&flight, true, http2).await
            };
            match http2 {
                Ok(send) => {
                    exchange2::from_http2(
                        parts.clone(),
                        &mut source,
                        caller,
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
        routed.settle(&flight, &step, caller.grpc);
        match step {
            Step::Again => {}
            Step::BackOff(n) => {
                drop(flight);
                routed.back_off(n).await?;
            }
            Step::End(failed) => return Err(failed),
        }
    }
}
