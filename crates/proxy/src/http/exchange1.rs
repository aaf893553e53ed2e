//! Exchanges whose upstream leg is HTTP/1: from an HTTP/1 client bytes pass through as they are, from
//! an HTTP/2 stream they are re-framed.

use std::{
    task::{Context, Poll},
    time::{Instant, SystemTime},
};

use bytes::{Buf, Bytes};
use linkerd_http1::{
    Body, BodyEdit, BodyEncoding, BodyError, Framing, Limits, Method, Name, NameSet,
    OutboundRequest, RequestEdit, RequestHead, ResponseEdit, ResponseHead, ResponsePlan, Status,
    TargetEdit, Version, put_chunk, put_last_chunk, write_request,
};

use super::{
    Routed,
    again::Tries,
    deadline::{HeadTimer, Progress, conclude, limited},
    edits::{Flat, drop_known, flatten},
    fate::{bad_body, broken, cut_short, died, slow_head},
    held::Held,
    interim::Interim,
    penalty,
    server1::{Facts, Failed, Next},
    server2::Caller,
    stream::{Sink, Source},
};
use crate::{
    endpoint::{Checkout, InFlight},
    errors::HttpError,
    h1::{Conn, Pipe, PipeError},
};

/// Bytes kept for a response before they are sent on.
const GATHER: usize = 32 * 1024;

/// HTTP/1 to HTTP/1.
pub(super) async fn from_http1(
    client: &mut Conn,
    head: &RequestHead,
    facts: Facts<'_>,
    routed: &Routed,
    flight: &InFlight,
    checkout: Checkout,
    tries: &Tries<'_>,
) -> Result<Next, Failed> {
    let Checkout {
        conn: mut server,
        reused,
    } = checkout;
    let total = queue_request(client, head, routed, flight, &mut server)?;
    let queued = server.wbuf.len();
    let mut request = match total {
        // Head and body are queued as a whole and stay with the client for another try.
        Some(_) => Pipe::new(Framing::None, BodyEdit::Keep),
        None => {
            keep_body(client, head, routed);
            client.used(head.len());
            let mut pipe = Pipe::new(head.framing(), BodyEdit::Keep);
            pipe.gather(client, &mut server).map_err(bad_body)?;
            pipe
        }
    };
    let mut held = Held::new(total.unwrap_or(0));
    let mut requested = false;
    // The server did not take all of the body: the rest of it must not pass for the next request.
    let mut cut = false;
    let mut sent = false;
    let mut spoke = false;
    let mut response = ResponseHead::new();
    let mut body: Option<Pipe> = None;
    let mut plan: Option<ResponsePlan> = None;
    let mut timer = HeadTimer::default();
    let limits = Limits::default();
    let endpoint = &flight.endpoint;

    let mut interims = Interim::default();
    let progress = Progress::default();
    let step = |cx: &mut Context<'_>| {
        if !requested {
            match request.poll(cx, client, &mut server) {
                Poll::Ready(Ok(())) => requested = true,
                // The server may have answered and closed without reading all of it.
                Poll::Ready(Err(PipeError::Write(_))) => {
                    requested = true;
                    cut = !request.is_done();
                }
                Poll::Ready(Err(PipeError::Body(error)))
                    if error != BodyError::Incomplete && !progress.answered.get() =>
                {
                    return Poll::Ready(Err(bad_body(error)));
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Gone)),
                Poll::Pending => {}
            }
            sent |= server.wbuf.len() < queued;
            progress.requested.set(requested);
        }
        // Notice a client that goes away while it waits.
        if requested && client.rbuf.len() <= held.len() && !client.is_eof() {
            match client.poll_fill(cx) {
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Gone)),
                Poll::Ready(Ok(_)) | Poll::Pending => {}
            }
        }
        loop {
            if let Some(pipe) = &mut body {
                let state = pipe.poll(cx, &mut server, client);
                held.settle(client);
                return state.map_err(|error| {
                    let error = match error {
                        PipeError::Write(_) => return Failed::Gone,
                        PipeError::Read(error) => HttpError::io(error.to_string()),
                        PipeError::Body(BodyError::Incomplete) => cut_short(),
                        PipeError::Body(error) => HttpError::io(error.to_string()),
                    };
                    let whole = total.is_some() || client.kept().is_some();
                    broken(error, held.take_back(client), whole, reused)
                });
            }
            let parsed = if server.rbuf.is_empty() {
                Ok(Status::Partial)
            } else {
                response.parse(&server.rbuf, &limits, facts.method)
            };
            match parsed {
                Ok(Status::Complete) => {}
                Ok(Status::Partial) => match server.poll_fill(cx) {
                    Poll::Pending
                        if !server.rbuf.is_empty() && timer.poll_over(cx, routed.head_timeout) =>
                    {
                        return Poll::Ready(Err(Failed::Answer(slow_head())));
                    }
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(n)) if n > 0 => continue,
                    Poll::Ready(result) => {
                        let whole = total.is_some() || client.kept().is_some();
                        let silent = server.rbuf.is_empty() && !spoke;
                        let orderly = !server.is_truncated() && endpoint.ends_orderly();
                        return Poll::Ready(Err(died(
                            result.map(|_| orderly),
                            whole && silent,
                            sent,
                            reused,
                        )));
                    }
                },
                Err(error) => {
                    return Poll::Ready(Err(Failed::Answer(HttpError::io(error.to_string()))));
                }
            }
            let interim = response.interim();
            if !interim {
                let status = response.status();
                routed.answered(flight, status, Instant::now(), || {
                    let after = response.view(&server.rbuf).get_named("retry-after");
                    penalty::judge(status, None, after, None, SystemTime::now())
                });
                let kept = kept_body(client, head, total);
                let whole = kept.is_some();
                let sent = kept.filter(|_| requested);
                if routed.wants_retry(tries.by_policy(), sent, status, None) {
                    let outcome = routed.classify(status, None);
                    let error = HttpError::unexpected();
                    return Poll::Ready(Err(Failed::Retry(error, Some(outcome))));
                }
                if whole && matches!(status, 502 | 504) && !spoke {
                    let said = response.view(&server.rbuf).get(Name::L5dProxyError);
                    if let Some(why) = tries.drops_answer(endpoint, status, None, said) {
                        return Poll::Ready(Err(Failed::Dropped(why)));
                    }
                }
                progress.answered.set(true);
                held.answer(client);
            }
            spoke = true;
            let flat = flatten(&routed.edits.response);
            let view = response.view(&server.rbuf);
            if interim {
                interims.another()?;
                // 1xx answers pass through; HTTP/1.0 does not know them.
                if facts.version == Version::Http11 {
                    let edit = ResponseEdit {
                        version: facts.version,
                        ..ResponseEdit::default()
                    };
                    view.write(&edit, client.out());
                }
                server.rbuf.advance(response.len());
                match client.poll_send(cx) {
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Gone)),
                    // A client that does not read holds back a server that goes on and on.
                    Poll::Pending if client.wbuf.len() >= GATHER => return Poll::Pending,
                    Poll::Ready(Ok(())) | Poll::Pending => {}
                }
                continue;
            }
            routed.observed.answered(response.status(), &view);
            let framing = response.framing();
            let closing = !requested
                || cut
                || (response.seen().contains(Name::L5dProxyConnection)
                    && routed.ends_with(flight, || view.get(Name::L5dProxyConnection)));
            let planned =
                ResponsePlan::for_client(facts.version, facts.keeps_alive(), framing, closing);
            let edit = ResponseEdit {
                drop: routed.edits.drop_response,
                drop_named: &flat.drop,
                add: &flat.add,
                ..ResponseEdit::planned(facts.version, planned)
            };
            view.write(&edit, client.out());
            server.rbuf.advance(response.len());
            plan = Some(planned);
            let pipe_framing = if framing == Framing::Tunnel {
                Framing::None
            } else {
                framing
            };
            body = Some(Pipe::new(pipe_framing, planned.body));
        }
    };
    let result = limited(routed.deadlines(tries.by_policy()), &progress, step).await;

    let status = if plan.is_some() { response.status() } else { 0 };
    if let Some(pipe) = &body {
        routed.observed.body(pipe.carried());
    }
    match result {
        Ok(()) => {
            routed.request_frame(total.map_or_else(|| request.moved(), |n| n - head.len()));
            routed.response_frame(body.as_ref().map_or(0, Pipe::moved));
            held.finish(client);
            routed.finish(flight, routed.classify(status, None));
            if response.framing() == Framing::Tunnel {
                return Ok(Next::Tunnel(server));
            }
            if !requested || cut {
                return Ok(Next::Linger);
            }
            if response.reusable() && !facts.one_off {
                endpoint.give_back(server);
            }
            if plan.is_none_or(|p| p.closes()) || client.is_eof() {
                Ok(Next::Close)
            } else {
                Ok(Next::KeepAlive)
            }
        }
        Err(failed) => {
            let again = routed.replays(kept_body(client, head, total));
            Err(conclude(routed, failed, &progress, again, status, "IO"))
        }
    }
}

/// Keeps a copy of a body that is still arriving, unless it is known to be too large.
pub(super) fn keep_body(client: &mut Conn, head: &RequestHead, routed: &Routed) {
    let limit = routed.replay_limit();
    let small = match head.framing() {
        Framing::Length(n) => n <= limit as u64,
        _ => true,
    };
    if limit > 0 && small {
        client.keep(limit + head.len());
    }
}

/// The size of a request's body, if it can be sent again. `total` is that of a request that stays with
/// its client.
pub(super) fn kept_body(client: &Conn, head: &RequestHead, total: Option<usize>) -> Option<usize> {
    let all = total.or_else(|| client.kept());
    all.map(|n| n.saturating_sub(head.len()))
}

/// Queues the edited head, and the body behind it when all of it is here already. Gives the bytes of
/// both when they are, so that they can be sent again.
fn queue_request(
    client: &Conn,
    head: &RequestHead,
    routed: &Routed,
    flight: &InFlight,
    server: &mut Conn,
) -> Result<Option<usize>, Failed> {
    let (flat, drop) = changes(routed, flight);
    let edit = RequestEdit {
        target: TargetEdit::Keep,
        host: routed.authority(flight),
        drop,
        drop_named: &flat.drop,
        add: &flat.add,
        ..RequestEdit::default()
    };
    head.view(&client.rbuf).write(&edit, server.out());
    let behind = &client.rbuf[head.len()..];
    let mut body = Body::new(head.framing());
    let progress = body.consume(behind).map_err(bad_body)?;
    if !progress.done {
        return Ok(None);
    }
    server.queue(&behind[..progress.take]);
    Ok(Some(head.len() + progress.take))
}

/// The changes of a request on its way to an endpoint.
fn changes<'a>(routed: &'a Routed, flight: &InFlight) -> (Flat<'a>, NameSet) {
    let mut flat = flatten(&routed.edits.request);
    let mut drop = routed.edits.drop;
    if flight.endpoint.meta().authority.is_some() {
        // The next hop has names of its own.
        drop = drop.with(Name::L5dDstCanonical);
        let canonical = linkerd_api::headers::DST_CANONICAL;
        flat.add.retain(|(name, _)| *name != canonical);
    }
    (flat, drop)
}

/// An upgraded request off an HTTP/2 stream, to an HTTP/1 application.
pub(super) async fn from_http2(
    parts: &http::request::Parts,
    incoming: &mut Source,
    caller: &mut Caller<'_>,
    routed: &Routed,
    flight: &InFlight,
    checkout: Checkout,
    tries: &Tries<'_>,
) -> Result<(), Failed> {
    let Checkout {
        conn: mut server,
        reused,
    } = checkout;
    let (version, absolute) = orig_proto(&parts.headers);
    let (flat, drop) = changes(routed, flight);
    let end_stream = incoming.is_empty();
    let how = OutboundRequest {
        version,
        absolute,
        end_stream,
        authority: routed.authority(flight),
        drop,
        drop_named: &flat.drop,
        add: &flat.add,
        ..OutboundRequest::default()
    };
    let encoding = write_request(parts, &how, server.out())
        .map_err(|error| Failed::Answer(HttpError::io(error.to_string())))?;
    let method = Method::of(parts.method.as_str().as_bytes());
    let endpoint = &flight.endpoint;
    let limits = Limits::default();
    let mut requested = end_stream;
    let mut cut = false;
    let mut response = ResponseHead::new();
    let mut sink: Option<Sink> = None;
    let mut body = Body::new(Framing::None);
    let mut answered = false;
    let mut timer = HeadTimer::default();
    let mut sent = false;
    let mut spoke = false;

    let mut interims = Interim::default();
    let progress = Progress::default();
    let step = |cx: &mut Context<'_>| {
        // Request: stream frames into the connection. What is sent makes room for more: the turn ends
        // only when one side is not ready, or nobody would wake us.
        let mut waits = requested;
        loop {
            while !requested && !waits && server.wbuf.len() < GATHER {
                match incoming.poll_data(cx) {
                    Poll::Pending => waits = true,
                    Poll::Ready(Some(Ok(data))) => {
                        routed.request_frame(data.len());
                        match encoding {
                            BodyEncoding::Chunked => put_chunk(server.out(), &data),
                            _ => server.queue(&data),
                        }
                    }
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Failed::Gone)),
                    Poll::Ready(None) => match incoming.poll_trailers(cx) {
                        Poll::Pending => waits = true,
                        Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Gone)),
                        Poll::Ready(Ok(trailers)) => {
                            if encoding == BodyEncoding::Chunked {
                                put_last_chunk(server.out(), trailers.as_ref());
                            }
                            requested = true;
                        }
                    },
                }
            }
            if server.wbuf.is_empty() {
                break;
            }
            let queued = server.wbuf.len();
            let state = server.poll_send(cx);
            sent |= server.wbuf.len() < queued;
            if let Poll::Ready(Err(_)) = state {
                // The answer may be there all the same.
                requested = true;
                cut = true;
                server.wbuf.clear();
            }
            if state.is_pending() || requested || waits {
                break;
            }
        }
        progress.requested.set(requested && server.wbuf.is_empty());
        // A client that gives up is noticed here.
        if let Some(sink) = &mut sink {
            if sink.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(Failed::Gone));
            }
        } else if let Poll::Ready(Ok(_) | Err(_)) = caller.respond.poll_reset(cx) {
            return Poll::Ready(Err(Failed::Gone));
        }
        loop {
            if let Some(sink) = &mut sink {
                // Body: bytes of the connection into frames.
                loop {
                    match sink.poll_ready(cx) {
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Gone)),
                        Poll::Pending => return Poll::Pending,
                    }
                    if body.is_done() {
                        let ended = match body.trailers() {
                            Some(trailers) => sink.trailers(trailers),
                            None => sink.end(),
                        };
                        return Poll::Ready(ended.map_err(|_| Failed::Gone));
                    }
                    if server.rbuf.is_empty() {
                        match server.poll_fill(cx) {
                            Poll::Pending => return Poll::Pending,
                            Poll::Ready(Ok(0)) => {
                                if body.close().is_err() {
                                    sink.reset(h2::Reason::INTERNAL_ERROR);
                                    return Poll::Ready(Err(Failed::Abort));
                                }
                                continue;
                            }
                            Poll::Ready(Ok(_)) => {}
                            Poll::Ready(Err(_)) => {
                                sink.reset(h2::Reason::INTERNAL_ERROR);
                                return Poll::Ready(Err(Failed::Abort));
                            }
                        }
                    }
                    let Ok(step) = body.decode(&server.rbuf) else {
                        sink.reset(h2::Reason::INTERNAL_ERROR);
                        return Poll::Ready(Err(Failed::Abort));
                    };
                    let data = Bytes::copy_from_slice(&server.rbuf[step.data]);
                    routed.response_frame(data.len());
                    server.rbuf.advance(step.take);
                    routed.observed.body(data.len() as u64);
                    // The last bytes and the end of the stream share a frame.
                    if body.is_done() && body.trailers().is_none() {
                        sink.push_last(data);
                    } else {
                        sink.push(data);
                    }
                }
            }
            let parsed = if server.rbuf.is_empty() {
                Ok(Status::Partial)
            } else {
                response.parse(&server.rbuf, &limits, method)
            };
            match parsed {
                Ok(Status::Complete) => {}
                Ok(Status::Partial) => match server.poll_fill(cx) {
                    Poll::Pending
                        if !server.rbuf.is_empty() && timer.poll_over(cx, routed.head_timeout) =>
                    {
                        return Poll::Ready(Err(Failed::Answer(slow_head())));
                    }
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(n)) if n > 0 => continue,
                    Poll::Ready(result) => {
                        let silent = server.rbuf.is_empty() && !spoke;
                        let orderly = !server.is_truncated() && endpoint.ends_orderly();
                        return Poll::Ready(Err(died(
                            result.map(|_| orderly),
                            incoming.is_replayable() && silent,
                            sent,
                            reused,
                        )));
                    }
                },
                Err(error) => {
                    return Poll::Ready(Err(Failed::Answer(HttpError::io(error.to_string()))));
                }
            }
            let converted = response
                .view(&server.rbuf)
                .to_http(routed.edits.drop_response);
            server.rbuf.advance(response.len());
            spoke = true;
            if response.interim() {
                // An upgraded client proxy does not wait for interim answers.
                interims.another()?;
                continue;
            }
            routed.answered(flight, response.status(), Instant::now(), || None);
            let mut head = match converted {
                Ok(head) => head,
                Err(error) => {
                    return Poll::Ready(Err(Failed::Answer(HttpError::io(error.to_string()))));
                }
            };
            routed.observed.answered(response.status(), head.headers());
            for change in &routed.edits.response {
                change.apply(head.headers_mut());
            }
            drop_known(head.headers_mut(), routed.edits.drop_response);
            head.headers_mut().insert(
                linkerd_api::headers::ORIG_PROTO,
                http::HeaderValue::from_static(response.version().as_str()),
            );
            body = Body::new(response.framing());
            let done = body.is_done();
            answered = true;
            progress.answered.set(true);
            incoming.forget();
            match caller.respond.send_response(head, done) {
                Ok(_) if done => return Poll::Ready(Ok(())),
                Ok(stream) => sink = Some(Sink::new(stream)),
                Err(_) => return Poll::Ready(Err(Failed::Gone)),
            }
        }
    };
    let result = limited(routed.deadlines(tries.by_policy()), &progress, step).await;

    let status = if answered { response.status() } else { 0 };
    match result {
        Ok(()) => {
            routed.finish(flight, routed.classify(status, None));
            if response.reusable() && requested && !cut && !is_one_off(parts) {
                endpoint.give_back(server);
            }
            Ok(())
        }
        Err(failed) => Err(conclude(routed, failed, &progress, false, status, "IO")),
    }
}

/// Whether an upgraded request gets a connection of its own: from an old client, or without a name.
pub(super) fn is_one_off(parts: &http::request::Parts) -> bool {
    let nameless =
        parts.uri.authority().is_none() && !parts.headers.contains_key(http::header::HOST);
    nameless || orig_proto(&parts.headers).0 == Version::Http10
}

/// Version and form of an upgraded request.
fn orig_proto(headers: &http::HeaderMap) -> (Version, bool) {
    let value = headers
        .get(linkerd_api::headers::ORIG_PROTO)
        .map(http::HeaderValue::as_bytes)
        .unwrap_or_default();
    let version = if value.starts_with(b"HTTP/1.0") {
        Version::Http10
    } else {
        Version::Http11
    };
    (version, value.ends_with(b"absolute-form"))
}
