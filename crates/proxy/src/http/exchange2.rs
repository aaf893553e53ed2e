//! Exchanges whose upstream leg is HTTP/2: from an HTTP/1 client (upgraded between proxies) or from
//! an HTTP/2 stream.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Instant, SystemTime},
};

use bytes::Bytes;
use h2::{RecvStream, client::SendRequest};
use http::HeaderValue;
use linkerd_http1::{
    Body, BodyEncoding, CONTINUE, Framing, Name, NameSet, OutboundResponse, RequestHead,
    TargetForm, put_chunk, put_last_chunk, write_response,
};

use super::{
    Routed,
    again::{Tries, Why},
    authority,
    deadline::{Progress, conclude, limited},
    edits::drop_known,
    exchange1::{keep_body, kept_body},
    fate::{self, Fate, bad_body, break_off, broken, reset_error, time_out, unanswered},
    held::Held,
    interim::Interim,
    penalty,
    server1::{Facts, Failed, Next},
    server2::Caller,
    stream::{Sink, Source},
};
use crate::{endpoint::InFlight, errors::HttpError, h1::Conn, observe::Observed};

/// Bytes kept for a client before they are sent on.
const GATHER: usize = 32 * 1024;

/// HTTP/1 client, upgraded request.
pub(super) async fn from_http1(
    client: &mut Conn,
    head: &RequestHead,
    facts: Facts<'_>,
    routed: &Routed,
    flight: &InFlight,
    mut send: SendRequest<Bytes>,
    tries: &Tries<'_>,
) -> Result<Next, Failed> {
    let bad = |error: linkerd_http1::HeadError| Failed::Answer(HttpError::io(error.to_string()));
    let mut request = head
        .view(&client.rbuf)
        .to_http(routed.edits.drop)
        .map_err(bad)?;
    for change in &routed.edits.request {
        change.apply(request.headers_mut());
    }
    let (mut parts, ()) = request.into_parts();
    authority::change(&mut parts.uri, &mut parts.headers, routed, flight);
    let orig = match (facts.version.as_str(), head.form()) {
        ("HTTP/1.0", TargetForm::Absolute) => "HTTP/1.0; absolute-form",
        ("HTTP/1.0", _) => "HTTP/1.0",
        (_, TargetForm::Absolute) => "HTTP/1.1; absolute-form",
        _ => "HTTP/1.1",
    };
    parts.headers.insert(
        linkerd_api::headers::ORIG_PROTO,
        HeaderValue::from_static(orig),
    );
    let request = http::Request::from_parts(parts, ());
    let bodiless = head.framing() == Framing::None;
    let (mut response, stream) = send
        .send_request(request, bodiless)
        .map_err(|error| Failed::Unsent(reset_error(&error), Why::Refused))?;
    // A request without a body stays with the client for another try.
    let whole_head = bodiless.then(|| head.len());
    let mut held = Held::new(whole_head.unwrap_or(0));
    let mut waits = head.expects_continue();
    if !bodiless {
        keep_body(client, head, routed);
        client.used(head.len());
    }
    let mut body = Body::new(head.framing());
    let mut sink = Sink::new(stream);
    let mut requested = bodiless;
    // The server did not take all of the body: the rest of it must not pass for the next request.
    let mut cut = false;
    let mut incoming: Option<RecvStream> = None;
    let mut encoding = BodyEncoding::None;
    let mut status = 0;
    let mut closes = true;
    let mut finished = false;
    let mut broke = "RESET";
    let mut interim = Interim::default();

    let progress = Progress::default();
    let step = |cx: &mut Context<'_>| {
        // Request body: decoded bytes into frames.
        while !requested {
            match sink.poll_ready(cx) {
                Poll::Pending => break,
                Poll::Ready(Err(_)) => {
                    requested = true;
                    cut = !body.is_done();
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
                // HTTP/2 peers do not ask for the body: who waits to be asked is asked here.
                if std::mem::take(&mut waits) && !progress.answered.get() {
                    client.queue(CONTINUE);
                }
                if !progress.answered.get() && matches!(client.poll_send(cx), Poll::Ready(Err(_))) {
                    sink.reset(h2::Reason::CANCEL);
                    return Poll::Ready(Err(Failed::Gone));
                }
                match client.poll_fill(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(n)) if n > 0 => {}
                    Poll::Ready(_) => {
                        sink.reset(h2::Reason::CANCEL);
                        return Poll::Ready(Err(Failed::Gone));
                    }
                }
            }
            waits = false;
            let step = match body.decode(&client.rbuf) {
                Ok(step) => step,
                Err(error) => {
                    sink.reset(h2::Reason::CANCEL);
                    return Poll::Ready(Err(match progress.answered.get() {
                        true => Failed::Gone,
                        false => bad_body(error),
                    }));
                }
            };
            let data = Bytes::copy_from_slice(&client.rbuf[step.data]);
            routed.request_frame(data.len());
            client.used(step.take);
            if body.is_done() && body.trailers().is_none() {
                sink.push_last(data);
            } else {
                sink.push(data);
            }
        }
        progress.requested.set(requested);
        // Notice a client that goes away while it waits.
        if requested
            && client.rbuf.len() <= held.len()
            && !client.is_eof()
            && let Poll::Ready(Err(_)) = client.poll_fill(cx)
        {
            sink.reset(h2::Reason::CANCEL);
            return Poll::Ready(Err(Failed::Gone));
        }
        loop {
            let Some(recv) = &mut incoming else {
                if let Err(failed) = interim.drain(cx, &mut response) {
                    sink.reset(h2::Reason::ENHANCE_YOUR_CALM);
                    return Poll::Ready(Err(failed));
                }
                let answer = match Pin::new(&mut response).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(answer)) => answer,
                    Poll::Ready(Err(error)) => {
                        let whole = bodiless || client.kept().is_some();
                        broke = fate::label(&error);
                        let fate = Fate::of(&error, whole);
                        return Poll::Ready(Err(fate.failed(reset_error(&error))));
                    }
                };
                status = answer.status().as_u16();
                routed.answered(flight, status, Instant::now(), || {
                    judge(status, None, answer.headers())
                });
                let kept = kept_body(client, head, whole_head);
                let whole = kept.is_some();
                let sent = kept.filter(|_| requested);
                if routed.wants_retry(tries.by_policy(), sent, status, None) {
                    let outcome = routed.classify(status, None);
                    let error = HttpError::unexpected();
                    return Poll::Ready(Err(Failed::Retry(error, Some(outcome))));
                }
                if whole
                    && matches!(status, 502 | 504)
                    && let Some(why) = dropped(tries, flight, status, None, answer.headers())
                {
                    return Poll::Ready(Err(Failed::Dropped(why)));
                }
                progress.answered.set(true);
                held.answer(client);
                let (mut parts, recv) = answer.into_parts();
                routed.observed.answered(status, &parts.headers);
                let told = routed.ends_with(flight, || proxy_connection(&parts.headers));
                for change in &routed.edits.response {
                    change.apply(&mut parts.headers);
                }
                let how = OutboundResponse {
                    version: facts.version,
                    keep_alive: facts.keeps_alive(),
                    method: facts.method,
                    end_stream: recv.is_end_stream(),
                    closing: !requested || cut || told,
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
                return poll_send(cx, client, &mut held);
            }
            if client.wbuf.len() >= GATHER {
                ready!(poll_send(cx, client, &mut held))?;
            }
            let mut unseen = |error: &h2::Error| {
                broke = fate::label(error);
                let whole = bodiless || client.kept().is_some();
                broken(reset_error(error), held.take_back(client), whole, true)
            };
            match recv.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => {
                    let _ = recv.flow_control().release_capacity(data.len());
                    routed.observed.body(data.len() as u64);
                    routed.response_frame(data.len());
                    match encoding {
                        BodyEncoding::Chunked => put_chunk(client.out(), &data),
                        BodyEncoding::None => {}
                        BodyEncoding::Length(_) | BodyEncoding::UntilClose => client.queue(&data),
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(unseen(&error))),
                Poll::Ready(None) => match recv.poll_trailers(cx) {
                    Poll::Ready(Ok(trailers)) => {
                        if encoding == BodyEncoding::Chunked {
                            put_last_chunk(client.out(), trailers.as_ref());
                        }
                        finished = true;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(unseen(&error))),
                    Poll::Pending => {
                        ready!(poll_send(cx, client, &mut held))?;
                        return Poll::Pending;
                    }
                },
                Poll::Pending => {
                    ready!(poll_send(cx, client, &mut held))?;
                    return Poll::Pending;
                }
            }
        }
    };
    let result = limited(routed.deadlines(tries.by_policy()), &progress, step).await;

    match result {
        Ok(()) => {
            held.finish(client);
            routed.finish(flight, routed.classify(status, None));
            if !requested || cut {
                Ok(Next::Linger)
            } else if closes || client.is_eof() {
                Ok(Next::Close)
            } else {
                Ok(Next::KeepAlive)
            }
        }
        Err(failed) => {
            let again = routed.replays(kept_body(client, head, whole_head));
            Err(conclude(routed, failed, &progress, again, status, broke))
        }
    }
}

/// Sends what is queued for a client, which then has seen something of its answer.
fn poll_send(cx: &mut Context<'_>, client: &mut Conn, held: &mut Held) -> Poll<Result<(), Failed>> {
    let state = client.poll_send(cx);
    held.settle(client);
    state.map_err(|_| Failed::Gone)
}

/// HTTP/2 to HTTP/2.
pub(super) async fn from_http2(
    mut parts: http::request::Parts,
    incoming: &mut Source,
    caller: &mut Caller<'_>,
    routed: &Routed,
    flight: &InFlight,
    mut send: SendRequest<Bytes>,
    tries: &Tries<'_>,
) -> Result<(), Failed> {
    drop_known(&mut parts.headers, routed.edits.drop.union(HOP));
    for change in &routed.edits.request {
        change.apply(&mut parts.headers);
    }
    authority::change(&mut parts.uri, &mut parts.headers, routed, flight);
    authority::complete(&mut parts);
    let end = incoming.is_empty();
    let (mut response, stream) = send
        .send_request(http::Request::from_parts(parts, ()), end)
        .map_err(|error| Failed::Unsent(unanswered(&error), Why::Refused))?;
    let mut upward = Sink::new(stream);
    let mut requested = end;
    let mut downward: Option<(Source, Sink)> = None;
    // An answer that is held back until its gRPC status is known.
    let mut peeked: Option<(http::response::Parts, Source, bool)> = None;
    let mut status = 0;
    let mut grpc = None;
    let mut broke = "RESET";
    let mut interim = Interim::default();

    let progress = Progress::default();
    let step = |cx: &mut Context<'_>| {
        if !requested {
            match poll_frames(cx, &mut *incoming, &mut upward, None, |n| {
                routed.request_frame(n)
            }) {
                Poll::Pending => {}
                Poll::Ready(Ok(_)) => requested = true,
                Poll::Ready(Err(Side::Source(_))) => {
                    upward.reset(h2::Reason::CANCEL);
                    return Poll::Ready(Err(Failed::Gone));
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
                    return Poll::Ready(Err(Failed::Gone));
                }
                return match poll_frames(cx, recv, sink, Some(&routed.observed), |n| {
                    routed.response_frame(n);
                    routed.observed.body(n as u64);
                }) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(trailers)) => {
                        grpc = grpc.or(trailers);
                        Poll::Ready(Ok(()))
                    }
                    Poll::Ready(Err(Side::Source(error))) => {
                        broke = fate::label(&error);
                        break_off(sink, &error, caller);
                        Poll::Ready(Err(Failed::Abort))
                    }
                    Poll::Ready(Err(Side::Sink)) => {
                        upward.reset(h2::Reason::CANCEL);
                        Poll::Ready(Err(Failed::Gone))
                    }
                };
            }
            if let Poll::Ready(Ok(_) | Err(_)) = caller.respond.poll_reset(cx) {
                upward.reset(h2::Reason::CANCEL);
                return Poll::Ready(Err(Failed::Gone));
            }
            let (mut parts, mut recv, peeks) = match peeked.take() {
                Some(answer) => answer,
                None => {
                    if let Err(failed) = interim.drain(cx, &mut response) {
                        upward.reset(h2::Reason::ENHANCE_YOUR_CALM);
                        return Poll::Ready(Err(failed));
                    }
                    let answer = match Pin::new(&mut response).poll(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Ok(answer)) => answer,
                        Poll::Ready(Err(error)) => {
                            broke = fate::label(&error);
                            let fate = Fate::of(&error, incoming.is_replayable());
                            return Poll::Ready(Err(fate.failed(unanswered(&error))));
                        }
                    };
                    status = answer.status().as_u16();
                    let (parts, recv) = answer.into_parts();
                    grpc = grpc_status(&parts.headers);
                    routed.answered(flight, status, Instant::now(), || {
                        judge(status, grpc, &parts.headers)
                    });
                    let peeks = grpc.is_none()
                        && !recv.is_end_stream()
                        && routed.awaits_grpc_status(tries.by_policy(), caller.grpc);
                    let limit = if peeks { usize::MAX } else { 0 };
                    (parts, Source::new(recv, limit), peeks)
                }
            };
            if peeks {
                match poll_grpc_status(cx, &mut recv) {
                    Poll::Pending => {
                        peeked = Some((parts, recv, true));
                        return Poll::Pending;
                    }
                    Poll::Ready(found) => grpc = found,
                }
            }
            let whole = incoming.is_replayable();
            let sent = incoming.kept().filter(|_| requested);
            if routed.wants_retry(tries.by_policy(), sent, status, grpc) {
                let outcome = routed.classify(status, grpc);
                let error = HttpError::unexpected();
                return Poll::Ready(Err(Failed::Retry(error, Some(outcome))));
            }
            if whole
                && (status >= 500 || grpc.is_some())
                && let Some(why) = dropped(tries, flight, status, grpc, &parts.headers)
            {
                return Poll::Ready(Err(Failed::Dropped(why)));
            }
            progress.answered.set(true);
            routed.observed.answered(status, &parts.headers);
            incoming.forget();
            caller.closes |= routed.ends_with(flight, || proxy_connection(&parts.headers));
            drop_known(&mut parts.headers, routed.edits.drop_response);
            for change in &routed.edits.response {
                change.apply(&mut parts.headers);
            }
            recv.rewind();
            recv.forget();
            let done = recv.is_end_stream();
            match caller
                .respond
                .send_response(http::Response::from_parts(parts, ()), done)
            {
                Ok(_) if done => return Poll::Ready(Ok(())),
                Ok(stream) => downward = Some((recv, Sink::new(stream))),
                Err(_) => {
                    upward.reset(h2::Reason::CANCEL);
                    return Poll::Ready(Err(Failed::Gone));
                }
            }
        }
    };
    let result = limited(routed.deadlines(tries.by_policy()), &progress, step).await;

    match result {
        Ok(()) => {
            routed.finish(flight, routed.classify(status, grpc));
            Ok(())
        }
        Err(failed) => {
            if let (Failed::Expired(expired), Some((_, sink))) = (&failed, &mut downward) {
                time_out(sink, &expired.mid_stream(), caller);
            }
            let again = routed.replays(incoming.kept());
            Err(conclude(routed, failed, &progress, again, status, broke))
        }
    }
}

/// What HTTP/2 must not carry.
const HOP: NameSet = NameSet::HOP_BY_HOP.with(Name::TransferEncoding);

enum Side {
    Source(h2::Error),
    Sink,
}

/// Moves a body from stream to stream; ready when both ended. Gives the gRPC status of trailers.
fn poll_frames(
    cx: &mut Context<'_>,
    source: &mut Source,
    sink: &mut Sink,
    observed: Option<&Observed>,
    count: impl Fn(usize),
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
                count(data.len());
                if source.is_end_stream() {
                    sink.push_last(data);
                } else {
                    sink.push(data);
                }
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(Side::Source(error))),
            Poll::Ready(None) => {
                let trailers = match source.poll_trailers(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(trailers)) => trailers,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(Side::Source(error))),
                };
                if let (Some(trailers), Some(observed)) = (&trailers, observed) {
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

/// The gRPC status of an answer that has nothing but trailers, or one piece and trailers at once.
fn poll_grpc_status(cx: &mut Context<'_>, recv: &mut Source) -> Poll<Option<u16>> {
    match ready!(recv.poll_data(cx)) {
        Some(Err(_)) => return Poll::Ready(None),
        Some(Ok(_)) => match recv.poll_data(cx) {
            Poll::Ready(None) => {}
            _ => return Poll::Ready(None),
        },
        None => {}
    }
    match recv.poll_trailers(cx) {
        Poll::Ready(Ok(Some(trailers))) => Poll::Ready(grpc_status(&trailers)),
        _ => Poll::Ready(None),
    }
}

fn proxy_connection(headers: &http::HeaderMap) -> Option<&[u8]> {
    let value = headers.get(linkerd_api::headers::PROXY_CONNECTION)?;
    Some(value.as_bytes())
}

fn grpc_status(headers: &http::HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn judge(status: u16, grpc: Option<u16>, headers: &http::HeaderMap) -> Option<penalty::Failure> {
    let value = |name| headers.get(name).map(HeaderValue::as_bytes);
    let (after, pushback) = (value("retry-after"), value("grpc-retry-pushback-ms"));
    penalty::judge(status, grpc, after, pushback, SystemTime::now())
}

fn dropped(
    tries: &Tries<'_>,
    flight: &InFlight,
    status: u16,
    grpc: Option<u16>,
    headers: &http::HeaderMap,
) -> Option<Why> {
    let said = headers.get(linkerd_api::headers::PROXY_ERROR)?;
    tries.drops_answer(&flight.endpoint, status, grpc, Some(said.as_bytes()))
}
