//! Exchanges whose upstream leg is HTTP/2: from an HTTP/1 client (upgraded between proxies) or from
//! an HTTP/2 stream.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use bytes::{Buf, Bytes};
use h2::{RecvStream, client::SendRequest, server::SendResponse};
use http::HeaderValue;
use linkerd_http1::{
    Body, BodyEncoding, Framing, Name, NameSet, OutboundResponse, RequestHead, TargetForm,
    put_chunk, put_last_chunk, write_response,
};

use super::{
    Routed,
    deadline::{Progress, conclude, limited},
    edits::drop_known,
    server1::{Facts, Failed, Next},
    stream::{Sink, Source},
};
use crate::{
    endpoint::InFlight, errors::HttpError, h1::Conn, metrics::http::Outcome, observe::Observed,
};

/// Bytes kept for a client before they are sent on.
const GATHER: usize = 32 * 1024;

/// HTTP/1 client, upgraded request.
pub(super) async fn from_http1(
    client: &mut Conn,
    head: &RequestHead,
    facts: Facts,
    routed: &Routed,
    flight: &InFlight,
    mut send: SendRequest<Bytes>,
    attempt: u32,
) -> Result<Next, Failed> {
    let bad = |error: linkerd_http1::HeadError| Failed::Answer(HttpError::io(error.to_string()));
    let mut request = head
        .view(&client.rbuf)
        .to_http(routed.edits.drop)
        .map_err(bad)?;
    for change in &routed.edits.request {
        change.apply(request.headers_mut());
    }
    if let Some(authority) = &routed.edits.authority {
        set_authority(request.uri_mut(), authority);
    }
    let orig = match (facts.version.as_str(), head.form()) {
        ("HTTP/1.0", TargetForm::Absolute) => "HTTP/1.0; absolute-form",
        ("HTTP/1.0", _) => "HTTP/1.0",
        (_, TargetForm::Absolute) => "HTTP/1.1; absolute-form",
        _ => "HTTP/1.1",
    };
    request.headers_mut().insert(
        linkerd_api::headers::ORIG_PROTO,
        HeaderValue::from_static(orig),
    );
    let bodiless = head.framing() == Framing::None;
    let (mut response, stream) = send
        .send_request(request, bodiless)
        .map_err(|error| Failed::Answer(reset_error(&error)))?;
    // A request without a body stays with the client for another try.
    let kept = if bodiless { head.len() } else { 0 };
    client.rbuf.advance(head.len() - kept);
    let mut body = Body::new(head.framing());
    let mut sink = Sink::new(stream);
    let mut requested = bodiless;
    let mut incoming: Option<RecvStream> = None;
    let mut encoding = BodyEncoding::None;
    let mut status = 0;
    let mut closes = true;
    let mut finished = false;

    let progress = Progress::default();
    let step = |cx: &mut Context<'_>| {
        // Request body: decoded bytes into frames.
        while !requested {
            match sink.poll_ready(cx) {
                Poll::Pending => break,
                Poll::Ready(Err(_)) => {
                    requested = true;
                    break;
                }
                Poll::Ready(Ok(())) => {}
            }
            if body.is_done() {
                let ended = match body.trailers() {
                    Some(trailers) => sink.trailers(trailers),
                    None => sink.end(),
                };
                let _ = ended;
                requested = true;
                break;
            }
            if client.rbuf.is_empty() {
                match client.poll_fill(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(n)) if n > 0 => {}
                    Poll::Ready(_) => {
                        sink.reset(h2::Reason::CANCEL);
                        return Poll::Ready(Err(Failed::Abort));
                    }
                }
            }
            let Ok(step) = body.decode(&client.rbuf) else {
                sink.reset(h2::Reason::CANCEL);
                return Poll::Ready(Err(Failed::Abort));
            };
            let data = Bytes::copy_from_slice(&client.rbuf[step.data]);
            client.rbuf.advance(step.take);
            if body.is_done() && body.trailers().is_none() {
                sink.push_last(data);
            } else {
                sink.push(data);
            }
        }
        progress.requested.set(requested);
        // Notice a client that goes away while it waits.
        let unread = if progress.answered.get() { 0 } else { kept };
        if requested
            && client.rbuf.len() <= unread
            && !client.is_eof()
            && let Poll::Ready(Err(_)) = client.poll_fill(cx)
        {
            sink.reset(h2::Reason::CANCEL);
            return Poll::Ready(Err(Failed::Abort));
        }
        loop {
            let Some(recv) = &mut incoming else {
                let answer = match Pin::new(&mut response).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(answer)) => answer,
                    Poll::Ready(Err(error)) => {
                        let again = bodiless && never_handled(&error);
                        let error = reset_error(&error);
                        return Poll::Ready(Err(if again {
                            Failed::Again(error)
                        } else {
                            Failed::Answer(error)
                        }));
                    }
                };
                let now = Instant::now();
                flight.answered(now);
                status = answer.status().as_u16();
                let elapsed = now.saturating_duration_since(flight.started);
                routed.meter(flight).latency(status, elapsed);
                if bodiless && routed.wants_retry(attempt, status, None) {
                    let outcome = Outcome::classify(status, None);
                    let error = HttpError::unexpected();
                    return Poll::Ready(Err(Failed::Retry(error, Some(outcome))));
                }
                progress.answered.set(true);
                client.rbuf.advance(kept);
                let (mut parts, recv) = answer.into_parts();
                routed.observed.answered(status, &parts.headers);
                for change in &routed.edits.response {
                    change.apply(&mut parts.headers);
                }
                let how = OutboundResponse {
                    version: facts.version,
                    keep_alive: facts.keep_alive,
                    method: facts.method,
                    end_stream: recv.is_end_stream(),
                    closing: !requested,
                    drop: routed.edits.drop_response.with(Name::L5dOrigProto),
                    add: &[],
                };
                match write_response(&parts, &how, client.out()) {
                    Ok((enc, plan)) => {
                        encoding = enc;
                        closes = plan.closes();
                    }
                    Err(error) => {
                        return Poll::Ready(Err(Failed::Answer(HttpError::io(error.to_string()))));
                    }
                }
                incoming = Some(recv);
                continue;
            };
            if finished {
                return client.poll_send(cx).map_err(|_| Failed::Abort);
            }
            if client.wbuf.len() >= GATHER {
                match client.poll_send(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Abort)),
                    Poll::Ready(Ok(())) => {}
                }
            }
            match recv.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => {
                    let _ = recv.flow_control().release_capacity(data.len());
                    routed.observed.body(data.len() as u64);
                    match encoding {
                        BodyEncoding::Chunked => put_chunk(client.out(), &data),
                        BodyEncoding::None => {}
                        BodyEncoding::Length(_) | BodyEncoding::UntilClose => client.queue(&data),
                    }
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Failed::Abort)),
                Poll::Ready(None) => match recv.poll_trailers(cx) {
                    Poll::Ready(Ok(trailers)) => {
                        if encoding == BodyEncoding::Chunked {
                            put_last_chunk(client.out(), trailers.as_ref());
                        }
                        finished = true;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Abort)),
                    Poll::Pending => {
                        return match client.poll_send(cx) {
                            Poll::Ready(Err(_)) => Poll::Ready(Err(Failed::Abort)),
                            _ => Poll::Pending,
                        };
                    }
                },
                Poll::Pending => {
                    return match client.poll_send(cx) {
                        Poll::Ready(Err(_)) => Poll::Ready(Err(Failed::Abort)),
                        _ => Poll::Pending,
                    };
                }
            }
        }
    };
    let result = limited(routed.deadlines(attempt), &progress, step).await;

    match result {
        Ok(()) => {
            routed.finish(flight, Outcome::classify(status, None));
            if closes || !requested || client.is_eof() {
                Ok(Next::Close)
            } else {
                Ok(Next::KeepAlive)
            }
        }
        Err(failed) => {
            let (failed, outcome) = conclude(failed, &progress, bodiless, status, "RESET");
            routed.finish(flight, outcome);
            Err(failed)
        }
    }
}

fn reset_error(error: &h2::Error) -> HttpError {
    HttpError::io(format!(
        "upgraded connection failed with HTTP/2 reset: {error}"
    ))
}

fn set_authority(uri: &mut http::Uri, authority: &str) {
    let mut parts = std::mem::take(uri).into_parts();
    if let Ok(authority) = authority.parse() {
        parts.authority = Some(authority);
        parts.scheme.get_or_insert(http::uri::Scheme::HTTP);
        if parts.path_and_query.is_none() {
            parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        }
    }
    *uri = http::Uri::from_parts(parts).unwrap_or_default();
}

/// HTTP/2 to HTTP/2.
pub(super) async fn from_http2(
    mut parts: http::request::Parts,
    incoming: &mut Source,
    respond: &mut SendResponse<Bytes>,
    routed: &Routed,
    flight: &InFlight,
    mut send: SendRequest<Bytes>,
    attempt: u32,
) -> Result<(), Failed> {
    incoming.rewind();
    drop_known(&mut parts.headers, routed.edits.drop.union(HOP));
    for change in &routed.edits.request {
        change.apply(&mut parts.headers);
    }
    if let Some(authority) = &routed.edits.authority {
        set_authority(&mut parts.uri, authority);
        parts.headers.remove(http::header::HOST);
    }
    let end = incoming.is_empty();
    let (mut response, stream) = send
        .send_request(http::Request::from_parts(parts, ()), end)
        .map_err(|error| upstream_reset(&error, respond))?;
    let mut upward = Sink::new(stream);
    let mut requested = end;
    let mut downward: Option<(Source, Sink)> = None;
    let mut status = 0;
    let mut grpc = None;
    // Only answers are counted.
    let unobserved = Observed::default();

    let progress = Progress::default();
    let step = |cx: &mut Context<'_>| {
        if !requested {
            match poll_frames(cx, &mut *incoming, &mut upward, &unobserved) {
                Poll::Pending => {}
                Poll::Ready(Ok(_)) => requested = true,
                Poll::Ready(Err(Side::Source)) => {
                    upward.reset(h2::Reason::CANCEL);
                    return Poll::Ready(Err(Failed::Abort));
                }
                // The answer says why.
                Poll::Ready(Err(Side::Sink)) => requested = true,
            }
        }
        progress.requested.set(requested);
        loop {
            if let Some((recv, sink)) = &mut downward {
                if sink.poll_reset(cx).is_ready() {
                    upward.reset(h2::Reason::CANCEL);
                    return Poll::Ready(Err(Failed::Abort));
                }
                return match poll_frames(cx, recv, sink, &routed.observed) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(trailers)) => {
                        grpc = grpc.or(trailers);
                        Poll::Ready(Ok(()))
                    }
                    Poll::Ready(Err(side)) => {
                        match side {
                            Side::Source => sink.reset(h2::Reason::INTERNAL_ERROR),
                            Side::Sink => upward.reset(h2::Reason::CANCEL),
                        }
                        Poll::Ready(Err(Failed::Abort))
                    }
                };
            }
            if let Poll::Ready(Ok(_) | Err(_)) = respond.poll_reset(cx) {
                upward.reset(h2::Reason::CANCEL);
                return Poll::Ready(Err(Failed::Abort));
            }
            let answer = match Pin::new(&mut response).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(answer)) => answer,
                Poll::Ready(Err(error)) if never_handled(&error) && incoming.is_replayable() => {
                    let error = HttpError::io(error.to_string());
                    return Poll::Ready(Err(Failed::Again(error)));
                }
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(upstream_reset(&error, respond)));
                }
            };
            let now = Instant::now();
            flight.answered(now);
            status = answer.status().as_u16();
            let elapsed = now.saturating_duration_since(flight.started);
            routed.meter(flight).latency(status, elapsed);
            let (mut parts, recv) = answer.into_parts();
            grpc = grpc_status(&parts.headers);
            if incoming.is_replayable() && routed.wants_retry(attempt, status, grpc) {
                let outcome = Outcome::classify(status, grpc);
                let error = HttpError::unexpected();
                return Poll::Ready(Err(Failed::Retry(error, Some(outcome))));
            }
            progress.answered.set(true);
            routed.observed.answered(status, &parts.headers);
            drop_known(&mut parts.headers, routed.edits.drop_response);
            for change in &routed.edits.response {
                change.apply(&mut parts.headers);
            }
            let done = recv.is_end_stream();
            match respond.send_response(http::Response::from_parts(parts, ()), done) {
                Ok(_) if done => return Poll::Ready(Ok(())),
                Ok(stream) => downward = Some((Source::new(recv), Sink::new(stream))),
                Err(_) => {
                    upward.reset(h2::Reason::CANCEL);
                    return Poll::Ready(Err(Failed::Abort));
                }
            }
        }
    };
    let result = limited(routed.deadlines(attempt), &progress, step).await;

    match result {
        Ok(()) => {
            routed.finish(flight, Outcome::classify(status, grpc));
            Ok(())
        }
        Err(failed) => {
            let replayable = incoming.is_replayable();
            let (failed, outcome) = conclude(failed, &progress, replayable, status, "RESET");
            routed.finish(flight, outcome);
            Err(failed)
        }
    }
}

/// What HTTP/2 must not carry.
const HOP: NameSet = NameSet::HOP_BY_HOP.with(Name::TransferEncoding);

enum Side {
    Source,
    Sink,
}

/// Moves a body from stream to stream; ready when both ended. Gives the gRPC status of trailers.
fn poll_frames(
    cx: &mut Context<'_>,
    source: &mut Source,
    sink: &mut Sink,
    observed: &Observed,
) -> Poll<Result<Option<u16>, Side>> {
    loop {
        match sink.poll_ready(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Side::Sink)),
            Poll::Ready(Ok(())) => {}
        }
        match source.poll_data(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(data))) => {
                observed.body(data.len() as u64);
                if source.is_end_stream() {
                    sink.push_last(data);
                } else {
                    sink.push(data);
                }
            }
            Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Side::Source)),
            Poll::Ready(None) => {
                let trailers = match source.poll_trailers(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(trailers)) => trailers,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Side::Source)),
                };
                if let Some(trailers) = &trailers {
                    observed.trailers(trailers);
                }
                let grpc = trailers.as_ref().and_then(grpc_status);
                let ended = match trailers {
                    Some(trailers) => sink.trailers(trailers),
                    None => sink.end(),
                };
                return Poll::Ready(ended.map(|()| grpc).map_err(|_| Side::Sink));
            }
        }
    }
}

fn grpc_status(headers: &http::HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Whether the server says that it has not looked at the request.
fn never_handled(error: &h2::Error) -> bool {
    error.reason() == Some(h2::Reason::REFUSED_STREAM)
        || (error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR))
}

/// A reset of the upstream stream is passed on with its code.
fn upstream_reset(error: &h2::Error, respond: &mut SendResponse<Bytes>) -> Failed {
    match error.reason() {
        Some(reason) if error.is_reset() => {
            respond.send_reset(reason);
            Failed::Abort
        }
        _ => Failed::Answer(HttpError::io(error.to_string())),
    }
}
