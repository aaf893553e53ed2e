//! The HTTP side of the echo: HTTP/1 and HTTP/2 on one port.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde::Serialize;
use tokio::net::TcpStream;

use super::{Connection, Seen};

/// A request as the server saw it. Its JSON is the echo's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    #[serde(flatten)]
    pub connection: Connection,
    pub method: String,
    pub uri: String,
    pub version: String,
    /// In order of arrival, names in lower case.
    pub headers: Vec<(String, String)>,
    /// As text; other bytes show as replacement characters.
    pub body: String,
}

/// What the server does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Sends a response after `delay`.
    Respond {
        status: u16,
        delay: Duration,
        body: Bytes,
    },
    /// Sends a 200 with these headers, its body piece by piece, and ends it as told.
    Pieces {
        headers: Vec<(&'static str, String)>,
        pieces: Vec<Bytes>,
        /// Before each piece.
        pause: Duration,
        end: End,
    },
    /// Cuts the connection without a response.
    Cut,
}

/// How a body ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With these trailers.
    Trailers(Vec<(&'static str, String)>),
    /// In the middle: its connection, or its stream, breaks.
    Torn,
}

pub(super) type Answers = dyn Fn(&Request) -> Answer + Send + Sync;

/// The request asked for the connection to be cut.
#[derive(Debug)]
struct Cut;

pub(super) async fn serve(
    stream: TcpStream,
    connection: Connection,
    seen: Arc<Seen>,
    answers: Arc<Answers>,
) {
    let service = service_fn(move |request| {
        answer(request, connection.clone(), seen.clone(), answers.clone())
    });
    // Errors are the client's doing or an answer of `Cut`.
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().half_close(true);
    let _ = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: http::Request<Incoming>,
    connection: Connection,
    seen: Arc<Seen>,
    answers: Arc<Answers>,
) -> Result<Response<UnsyncBoxBody<Bytes, Cut>>, Cut> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let request = Request {
        connection,
        method: head.method.to_string(),
        uri: head.uri.to_string(),
        version: format!("{:?}", head.version),
        headers: head
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value.as_bytes())))
            .collect(),
        body: text(&body),
    };
    let answer = answers(&request);
    let head_only = request.method == "HEAD";
    seen.requests.keep(request);
    match answer {
        Answer::Cut => Err(Cut),
        Answer::Respond {
            status,
            delay,
            body,
        } => {
            tokio::time::sleep(delay).await;
            // HTTP/2 of the library would send it to a HEAD request, too.
            let body = if head_only { Bytes::new() } else { body };
            let body = Full::new(body).map_err(|never| match never {});
            let mut response = Response::new(body.boxed_unsync());
            *response.status_mut() =
                StatusCode::from_u16(status).expect("a test answers a valid status");
            Ok(response)
        }
        Answer::Pieces {
            headers,
            pieces,
            pause,
            end,
        } => {
            let pieces = futures::stream::iter(pieces).then(move |piece| async move {
                tokio::time::sleep(pause).await;
                Ok(Frame::data(piece))
            });
            let last = match end {
                End::Trailers(trailers) => Ok(Frame::trailers(fields(trailers))),
                End::Torn => Err(Cut),
            };
            let body = StreamBody::new(pieces.chain(futures::stream::iter([last])));
            let mut response = Response::new(body.boxed_unsync());
            *response.headers_mut() = fields(headers);
            Ok(response)
        }
    }
}

fn fields(fields: Vec<(&'static str, String)>) -> http::HeaderMap {
    let fields = fields.into_iter().map(|(name, value)| {
        let value = value.parse().expect("a test gives valid values");
        (http::HeaderName::from_static(name), value)
    });
    fields.collect()
}

// === impl Request ===

impl Request {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

// === impl Answer ===

impl Answer {
    /// A response at once, with a body.
    pub fn status(status: u16, body: impl Into<Bytes>) -> Self {
        Self::Respond {
            status,
            delay: Duration::ZERO,
            body: body.into(),
        }
    }

    /// 200 with the request as JSON.
    pub fn echo(request: &Request) -> Self {
        Self::status(
            200,
            serde_json::to_vec(request).expect("a request is plain data"),
        )
    }

    /// What the request's `x-echo-*` headers ask for; without them, the request as JSON.
    pub fn asked_for(request: &Request) -> Self {
        let number = |name| {
            request
                .header(name)
                .and_then(|value| value.parse::<u64>().ok())
        };
        let body = match number("x-echo-body-bytes").and_then(|n| usize::try_from(n).ok()) {
            Some(bytes) => vec![b'x'; bytes.min(64 * 1024 * 1024)].into(),
            None => Bytes::from(serde_json::to_vec(request).expect("a request is plain data")),
        };
        let status = number("x-echo-status").and_then(|status| u16::try_from(status).ok());
        Self::Respond {
            status: status.unwrap_or(200),
            delay: Duration::from_millis(number("x-echo-delay-ms").unwrap_or(0)),
            body,
        }
    }
}

// === impl Cut ===

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut by the test")
    }
}

impl std::error::Error for Cut {}
