//! The admin server: probes, metrics, log level and what a daemon adds. [`Admin::handle`] turns
//! a request into an answer without I/O; [`Admin::serve`] puts it on a listener.

use std::fmt;
use std::future::Future;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use crate::log;
use crate::metrics::Exposition;
use crate::ready::Readiness;

mod serve;

/// Whose answers to give: each kind of daemon has its own probe paths and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// `/live`, `/ready` with 503 until ready.
    Proxy,
    /// `/ping`, `/ready` with 500 until ready.
    Controller,
    /// `/live`, `/ready` with 500 until ready; probes and metrics are read-only.
    Policy,
}

/// Is told how a request was answered.
pub type Told = Box<dyn FnOnce(StatusCode) + Send>;

/// What somebody in front of us says about a request.
pub enum Verdict {
    /// It is ours to answer.
    Answer(Told),
    /// This is the answer.
    Refuse(Response<Bytes>),
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(_) => f.write_str("Answer"),
            Self::Refuse(response) => f.debug_tuple("Refuse").field(&response.status()).finish(),
        }
    }
}

/// Everything one admin port answers.
pub struct Admin {
    flavor: Flavor,
    readiness: Readiness,
    metrics: Arc<Exposition>,
    log: Option<log::Handle>,
    routes: Vec<Route>,
}

struct Route {
    path: &'static str,
    loopback_only: bool,
    answer: Answer,
}

type Answer = Box<dyn Fn(&Request<Bytes>) -> Response<Bytes> + Send + Sync>;

impl Admin {
    pub fn new(flavor: Flavor, readiness: Readiness, metrics: Arc<Exposition>) -> Self {
        Self {
            flavor,
            readiness,
            metrics,
            log: None,
            routes: Vec::new(),
        }
    }

    /// Offers `/proxy-log-level` to clients on this host, and a proxy's `/logs.json`.
    pub fn log_level(mut self, handle: log::Handle) -> Self {
        self.log = Some(handle);
        self
    }

    /// Adds a path of the daemon's own, for any client.
    pub fn route(
        self,
        path: &'static str,
        answer: impl Fn(&Request<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.add(path, false, Box::new(answer))
    }

    /// Adds a path that only clients on this host may use.
    pub fn loopback_route(
        self,
        path: &'static str,
        answer: impl Fn(&Request<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.add(path, true, Box::new(answer))
    }

    fn add(mut self, path: &'static str, loopback_only: bool, answer: Answer) -> Self {
        self.routes.push(Route {
            path,
            loopback_only,
            answer,
        });
        self
    }

    /// The live log, if it is asked for and may be; or why not. `None` is for all other requests.
    fn logs(
        &self,
        request: &Request<Bytes>,
        peer: IpAddr,
    ) -> Option<Result<log::Lines, Response<Bytes>>> {
        let handle = self.log.as_ref()?;
        if self.flavor != Flavor::Proxy || request.uri().path() != "/logs.json" {
            return None;
        }
        if !is_loopback(peer) {
            return Some(Err(refused()));
        }
        let filter = match request.method().as_str() {
            "GET" => unescaped(request.uri().query().unwrap_or_default()),
            "QUERY" => Some(request.body().to_vec()),
            _ => return Some(Err(not_allowed("GET, QUERY"))),
        };
        let Some(Ok(filter)) = filter.map(String::from_utf8) else {
            return Some(Err(text(StatusCode::BAD_REQUEST, "the filter is no text")));
        };
        // Who does not say what to hear hears what the process logs.
        let listening = match filter.trim() {
            "" => handle.listen(&handle.current()),
            filter => handle.listen(filter),
        };
        Some(listening.map_err(|error| {
            let status = match error {
                log::Error::Filter { .. } => StatusCode::BAD_REQUEST,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            text(status, error.to_string())
        }))
    }

    /// Answers one request of `peer`.
    pub fn handle(&self, request: &Request<Bytes>, peer: IpAddr) -> Response<Bytes> {
        let path = request.uri().path();
        if self.flavor == Flavor::Policy
            && matches!(path, "/live" | "/ready" | "/metrics")
            && !matches!(*request.method(), Method::GET | Method::HEAD)
        {
            return not_allowed("GET, HEAD");
        }
        match (self.flavor, path) {
            (Flavor::Proxy, "/live") => text(StatusCode::OK, "live\n"),
            (Flavor::Policy, "/live") => text(StatusCode::OK, "alive\n"),
            (Flavor::Controller, "/ping") => text(StatusCode::OK, "pong\n"),
            (_, "/ready") => self.ready(),
            (_, "/metrics") => self.scrape(request.headers()),
            (_, "/proxy-log-level") if self.log.is_some() && !is_loopback(peer) => refused(),
            (_, "/proxy-log-level") => match &self.log {
                Some(handle) => log_level(handle, request),
                None => not_found(),
            },
            (_, path) => match self.routes.iter().find(|route| route.path == path) {
                Some(route) if route.loopback_only && !is_loopback(peer) => refused(),
                Some(route) => (route.answer)(request),
                None => not_found(),
            },
        }
    }

    /// Serves until `stop` ends. Requests being answered then are finished.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: impl Future<Output = ()>) {
        serve::serve(self, listener, stop).await;
    }

    /// Serves one connection that somebody else accepted, HTTP/1 or HTTP/2. What `gate` answers, it
    /// answers in our place; otherwise it is told our answer's status.
    pub async fn serve_io<IO>(
        self: Arc<Self>,
        io: IO,
        peer: IpAddr,
        gate: impl Fn(&Request<Bytes>) -> Verdict + Clone + Send + 'static,
    ) where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        serve::either(self, io, peer, gate).await;
    }

    fn ready(&self) -> Response<Bytes> {
        let waiting_for = self.readiness.waiting_for();
        match (waiting_for.is_empty(), self.flavor) {
            (true, Flavor::Controller) => text(StatusCode::OK, "ok\n"),
            (true, _) => text(StatusCode::OK, "ready\n"),
            (false, flavor) => {
                tracing::debug!(?waiting_for, "Not ready");
                let status = match flavor {
                    Flavor::Proxy => StatusCode::SERVICE_UNAVAILABLE,
                    Flavor::Controller | Flavor::Policy => StatusCode::INTERNAL_SERVER_ERROR,
                };
                text(status, "not ready\n")
            }
        }
    }

    fn scrape(&self, headers: &HeaderMap) -> Response<Bytes> {
        let Ok(exposition) = self.metrics.encode() else {
            return text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics cannot be encoded\n",
            );
        };
        let mut response = match accepts_gzip(headers).then(|| gzip(&exposition)).flatten() {
            Some(body) => {
                let mut response = Response::new(body);
                response
                    .headers_mut()
                    .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                response
            }
            None => Response::new(exposition.into()),
        };
        let media_type = match self.flavor {
            Flavor::Proxy => "text/plain",
            Flavor::Controller | Flavor::Policy => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
        };
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        response
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes: Vec<_> = self.routes.iter().map(|route| route.path).collect();
        f.debug_struct("Admin")
            .field("flavor", &self.flavor)
            .field("routes", &routes)
            .finish_non_exhaustive()
    }
}

/// A plain-text answer.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// 405, naming the methods that would have been fine.
pub fn not_allowed(allow: &'static str) -> Response<Bytes> {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allow));
    response
}

fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

fn not_found() -> Response<Bytes> {
    empty(StatusCode::NOT_FOUND)
}

fn refused() -> Response<Bytes> {
    text(
        StatusCode::FORBIDDEN,
        "Requests are only permitted from localhost.",
    )
}

fn is_loopback(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}

/// A query string without its percent signs; `None` when they are wrong.
fn unescaped(query: &str) -> Option<Vec<u8>> {
    let mut parts = query.as_bytes().split(|byte| *byte == b'%');
    let mut out = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        out.extend(rest);
    }
    Some(out)
}

fn log_level(handle: &log::Handle, request: &Request<Bytes>) -> Response<Bytes> {
    match *request.method() {
        Method::GET => text(StatusCode::OK, handle.current()),
        Method::PUT => {
            let changed = std::str::from_utf8(request.body())
                .map_err(|error| error.to_string())
                .and_then(|filter| handle.set(filter).map_err(|error| error.to_string()));
            match changed {
                Ok(()) => {
                    tracing::info!(filter = handle.current(), "Log filter changed");
                    empty(StatusCode::NO_CONTENT)
                }
                Err(reason) => text(StatusCode::BAD_REQUEST, reason),
            }
        }
        _ => not_allowed("GET, PUT"),
    }
}

/// Whether `gzip` is named and not refused by a weight of zero.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            let named = parts
                .next()
                .is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            named && weight.and_then(|q| q.parse::<f32>().ok()) != Some(0.0)
        })
}

fn gzip(text: &str) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    encoder.write_all(text.as_bytes()).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

#[cfg(test)]
mod tests;
