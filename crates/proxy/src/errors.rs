//! Errors a request can end with and how a client is told: status, gRPC code, headers, and whether
//! its connection is closed. The table of the specification, in one place.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use linkerd_api::headers::{PROXY_CONNECTION, PROXY_ERROR};
use linkerd_http1::{Persist, Reply, Version};

/// The `error` label of a request nothing became ready for.
pub const FAIL_FAST: &str = "FAIL_FAST";

/// Classes of errors; each has one rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The client's request cannot be read.
    BadRequest(StatusCode),
    /// Nothing matches.
    NotFound,
    /// Policy forbids it.
    PermissionDenied,
    /// Too many requests.
    RateLimited,
    /// The server cannot be reached.
    BadGateway,
    /// The server took too long.
    GatewayTimeout,
    /// A configured timeout passed; the connection is fine.
    GatewayTimeoutNonFatal,
    /// Too much is waiting already.
    Unavailable,
    /// The request went in a circle.
    LoopDetected,
    /// Everything else.
    Internal,
    /// A redirect filter.
    Redirect(StatusCode),
    /// An injected HTTP failure.
    InjectedHttp(StatusCode),
    /// An injected gRPC failure.
    InjectedGrpc(u16),
}

impl Class {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            Self::BadRequest(status) | Self::Redirect(status) | Self::InjectedHttp(status) => {
                status
            }
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
            Self::GatewayTimeout | Self::GatewayTimeoutNonFatal => StatusCode::GATEWAY_TIMEOUT,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::LoopDetected => StatusCode::LOOP_DETECTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::InjectedGrpc(_) => StatusCode::OK,
        }
    }

    /// The gRPC code.
    pub fn grpc(self) -> u16 {
        match self {
            Self::NotFound | Self::Redirect(_) => 5,
            Self::PermissionDenied => 7,
            Self::RateLimited => 8,
            Self::BadGateway | Self::Unavailable => 14,
            Self::GatewayTimeout | Self::GatewayTimeoutNonFatal => 4,
            Self::LoopDetected => 10,
            Self::Internal | Self::BadRequest(_) => 13,
            Self::InjectedHttp(_) => 9,
            Self::InjectedGrpc(code) => code,
        }
    }

    /// Whether the client's connection ends.
    pub fn closes(self) -> bool {
        matches!(
            self,
            Self::BadRequest(_)
                | Self::BadGateway
                | Self::GatewayTimeout
                | Self::Unavailable
                | Self::LoopDetected
                | Self::Internal
        )
    }
}

/// An error with what the client is told.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct HttpError {
    /// How it is rendered.
    pub class: Class,
    /// What it says.
    pub message: Cow<'static, str>,
    /// Where a redirect points.
    pub location: Option<String>,
    /// The code with which the server ended the stream; a stream of our own ends with it, too.
    pub reset: Option<h2::Reason>,
    /// Its name in the error metrics.
    pub label: &'static str,
}

impl HttpError {
    /// An error of a class.
    pub fn new(class: Class, label: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            class,
            message: message.into(),
            location: None,
            reset: None,
            label,
        }
    }

    /// Nothing became ready in time.
    pub fn fail_fast() -> Self {
        Self::new(Class::GatewayTimeout, "failfast", "service in fail-fast")
    }

    /// Too much is waiting, or the service is known to be failing.
    pub fn load_shed() -> Self {
        Self::new(Class::Unavailable, "loadshed", "service unavailable")
    }

    /// A connection could not be made in time.
    pub fn connect_timeout(after: std::time::Duration) -> Self {
        let message = format!("connect timed out after {after:?}");
        Self::new(Class::GatewayTimeout, "i/o", message)
    }

    /// Reading or writing failed.
    pub fn io(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Class::BadGateway, "i/o", message)
    }

    /// No route takes the request, outbound.
    pub fn no_route() -> Self {
        Self::new(Class::NotFound, "unexpected", "no route")
    }

    /// No route takes the request, inbound.
    pub fn no_inbound_route() -> Self {
        Self::new(Class::NotFound, "unexpected", "no route found for request")
    }

    /// Policy forbids the request.
    pub fn unauthorized() -> Self {
        let message = "unauthorized request on route";
        Self::new(Class::PermissionDenied, "unexpected", message)
    }

    /// What the answer's head says: the HTTP status, and the gRPC one for a gRPC request.
    pub fn statuses(&self, grpc: bool) -> (u16, Option<u16>) {
        match grpc {
            true => (StatusCode::OK.as_u16(), Some(self.class.grpc())),
            false => (self.class.status().as_u16(), None),
        }
    }

    /// The `error` label of a request that reached no endpoint.
    pub fn refusal(&self) -> Option<&'static str> {
        match self.label {
            "failfast" => Some(FAIL_FAST),
            "loadshed" => Some("LOAD_SHED"),
            _ => None,
        }
    }

    /// The endpoint is not who the request asks for.
    pub fn identity_required(required: &str, found: Option<&str>) -> Self {
        let message = format!("required id {required:?}; found {found:?}");
        Self::new(Class::BadGateway, "identity required", message)
    }

    /// The control plane named no way to reach a backend.
    pub fn no_dispatcher(backend: &str) -> Self {
        let message = format!("backend for {backend} has no dispatcher");
        Self::new(Class::BadGateway, "unexpected", message)
    }

    /// A client policy that cannot be used.
    pub fn invalid_client_policy() -> Self {
        let message = "invalid client policy configuration";
        Self::new(Class::Internal, "unexpected", message)
    }

    /// A server policy that cannot be used.
    pub fn invalid_server_policy() -> Self {
        Self::new(Class::Internal, "unexpected", "invalid server policy")
    }

    /// A client sends more requests than it may.
    pub fn rate_limited(message: String) -> Self {
        Self::new(Class::RateLimited, "unexpected", message)
    }

    /// A service profile's timeout has passed.
    pub fn profile_timeout(after: std::time::Duration) -> Self {
        let message = format!("HTTP response timeout after {after:?}");
        Self::new(Class::GatewayTimeout, "response timeout", message)
    }

    /// A timeout of a route has passed before the head of an answer came.
    pub fn stream_timeout(what: &str) -> Self {
        Self::new(
            Class::GatewayTimeoutNonFatal,
            "response timeout",
            format!("timed out waiting for response headers: {what}"),
        )
    }

    /// A timeout of a route has passed in the middle of an answer.
    pub fn late_stream_timeout(what: &str) -> Self {
        Self::new(
            Class::GatewayTimeoutNonFatal,
            "response timeout",
            format!("timed out processing response stream: {what}"),
        )
    }

    /// A redirect of a filter.
    pub fn redirected(status: StatusCode, location: String) -> Self {
        let mut error = Self::new(Class::Redirect(status), "unexpected", "redirected");
        error.location = Some(location);
        error
    }

    /// The gateway does not serve the name.
    pub fn bad_gateway_domain() -> Self {
        let label = "gateway domain invalid";
        Self::new(Class::NotFound, label, "bad gateway domain")
    }

    /// The request has been here before.
    pub fn gateway_loop() -> Self {
        Self::new(Class::LoopDetected, "gateway loop", "gateway loop detected")
    }

    /// Something that should not happen.
    pub fn unexpected() -> Self {
        Self::new(Class::Internal, "unexpected", "unexpected error")
    }

    /// Writes the answer for an HTTP/1 client.
    pub fn write_http1(
        &self,
        version: Version,
        keep_alive: bool,
        informational: bool,
        head_only: bool,
        out: &mut BytesMut,
    ) -> bool {
        let close = self.class.closes() || !keep_alive;
        let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(3);
        if let Some(location) = &self.location {
            fields.push(("location", location.as_bytes()));
        }
        if informational {
            fields.push((PROXY_ERROR, self.message.as_bytes()));
            if self.class.closes() {
                fields.push((PROXY_CONNECTION, b"close"));
            }
        }
        let persist = match (close, version) {
            (true, Version::Http11) => Persist::Close,
            (true, Version::Http10) | (false, Version::Http11) => Persist::Default,
            (false, Version::Http10) => Persist::KeepAlive,
        };
        Reply {
            status: self.class.status().as_u16(),
            version,
            fields: &fields,
            body: b"",
            persist,
            head_only,
        }
        .write(out);
        close
    }

    /// The answer for an HTTP/2 client; it has no body.
    pub fn response(&self, grpc: bool, informational: bool) -> http::Response<()> {
        let mut response = http::Response::new(());
        *response.version_mut() = http::Version::HTTP_2;
        let message = || {
            HeaderValue::from_maybe_shared(Bytes::from(printable(&self.message)))
                .unwrap_or_else(|_| HeaderValue::from_static("error"))
        };
        if grpc {
            let headers = response.headers_mut();
            headers.insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/grpc"),
            );
            headers.insert("grpc-status", self.class.grpc().into());
            if informational {
                headers.insert("grpc-message", message());
            }
        } else {
            *response.status_mut() = self.class.status();
            response
                .headers_mut()
                .insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
            if let Some(location) = &self.location
                && let Ok(location) = HeaderValue::from_str(location)
            {
                response.headers_mut().insert(header::LOCATION, location);
            }
        }
        if informational {
            response.headers_mut().insert(PROXY_ERROR, message());
            if self.class.closes() {
                response
                    .headers_mut()
                    .insert(PROXY_CONNECTION, HeaderValue::from_static("close"));
            }
        }
        response
    }

    /// Trailers in place of a reset, for a gRPC stream that broke.
    pub fn trailers(&self, informational: bool) -> HeaderMap {
        let mut map = HeaderMap::new();
        map.insert("grpc-status", self.class.grpc().into());
        if informational && let Ok(message) = HeaderValue::from_str(&printable(&self.message)) {
            map.insert("grpc-message", message);
        }
        map
    }
}

fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_ascii_graphic() || c == ' ' {
                c
            } else {
                '?'
            }
        })
        .collect()
}

/// Whether a request is gRPC: its errors are rendered as such.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        use Class::*;
        let injected = StatusCode::IM_A_TEAPOT;
        for (class, status, grpc, closes) in [
            (NotFound, 404, 5, false),
            (PermissionDenied, 403, 7, false),
            (RateLimited, 429, 8, false),
            (BadGateway, 502, 14, true),
            (GatewayTimeout, 504, 4, true),
            (GatewayTimeoutNonFatal, 504, 4, false),
            (Unavailable, 503, 14, true),
            (LoopDetected, 508, 10, true),
            (Internal, 500, 13, true),
            (Redirect(StatusCode::FOUND), 302, 5, false),
            (InjectedHttp(injected), 418, 9, false),
            (InjectedGrpc(3), 200, 3, false),
        ] {
            assert_eq!(class.status().as_u16(), status, "{class:?}");
            assert_eq!(class.grpc(), grpc, "{class:?}");
            assert_eq!(class.closes(), closes, "{class:?}");
        }
    }

    /// Every cause of the specification's table, in its order.
    fn causes() -> Vec<(&'static str, &'static str, HttpError)> {
        use std::time::Duration;
        let second = Duration::from_secs(1);
        let injected = |class, message| HttpError::new(class, "unexpected", message);
        vec![
            ("outbound", "fail-fast", HttpError::fail_fast()),
            ("outbound", "load shed", HttpError::load_shed()),
            (
                "outbound",
                "stream timeout",
                HttpError::stream_timeout("request timeout: 1s"),
            ),
            (
                "outbound",
                "profile timeout",
                HttpError::profile_timeout(second),
            ),
            (
                "outbound",
                "required identity",
                HttpError::identity_required("a.ns", Some("b.ns")),
            ),
            (
                "outbound",
                "no dispatcher",
                HttpError::no_dispatcher("Service ns/web"),
            ),
            ("outbound", "no route", HttpError::no_route()),
            (
                "outbound",
                "redirect",
                HttpError::redirected(StatusCode::FOUND, "http://new.example/".into()),
            ),
            (
                "outbound",
                "injected HTTP",
                injected(Class::InjectedHttp(StatusCode::IM_A_TEAPOT), "tea"),
            ),
            (
                "outbound",
                "injected gRPC",
                injected(Class::InjectedGrpc(3), "bad argument"),
            ),
            (
                "outbound",
                "invalid policy",
                HttpError::invalid_client_policy(),
            ),
            ("outbound", "anything else", HttpError::unexpected()),
            (
                "outbound endpoint",
                "upgraded stream reset",
                HttpError::io("upgraded connection failed with HTTP/2 reset: reset by peer"),
            ),
            (
                "outbound endpoint",
                "I/O error",
                HttpError::io("Connection refused (os error 111)"),
            ),
            (
                "outbound endpoint",
                "connect timeout",
                HttpError::connect_timeout(second),
            ),
            ("inbound", "no route", HttpError::no_inbound_route()),
            ("inbound", "unauthorized", HttpError::unauthorized()),
            ("inbound", "bad redirect", HttpError::unexpected()),
            (
                "inbound",
                "invalid policy",
                HttpError::invalid_server_policy(),
            ),
            (
                "inbound",
                "rate limit",
                HttpError::rate_limited("total rate limit exceeded: 1rps".into()),
            ),
            ("inbound", "gateway name", HttpError::bad_gateway_domain()),
            ("inbound", "gateway loop", HttpError::gateway_loop()),
            ("inbound", "fail-fast", HttpError::fail_fast()),
            ("inbound", "load shed", HttpError::load_shed()),
            (
                "inbound endpoint",
                "I/O error",
                HttpError::io("connection closed before message completed"),
            ),
            (
                "inbound endpoint",
                "connect timeout",
                HttpError::connect_timeout(Duration::from_millis(100)),
            ),
            (
                "server",
                "bad request",
                HttpError::new(
                    Class::BadRequest(StatusCode::BAD_REQUEST),
                    "unexpected",
                    "invalid request line",
                ),
            ),
        ]
    }

    #[test]
    fn the_whole_table() {
        use std::fmt::Write;
        let mut text = String::new();
        for (direction, cause, error) in causes() {
            let _ = writeln!(text, "== {direction}: {cause} [{}]", error.label);
            for (version, name, informational) in [
                (Version::Http11, "HTTP/1.1", true),
                (Version::Http11, "HTTP/1.1, hidden", false),
                (Version::Http10, "HTTP/1.0", true),
            ] {
                let mut out = BytesMut::new();
                let keep = version == Version::Http11;
                let close = error.write_http1(version, keep, informational, false, &mut out);
                let head = String::from_utf8(out.to_vec()).expect("text");
                let head = head.trim_end().replace("\r\n", " | ");
                let _ = writeln!(text, "{name}: {head} -> close {close}");
            }
            for (grpc, name, informational) in [
                (false, "HTTP/2", true),
                (true, "gRPC", true),
                (true, "gRPC, hidden", false),
            ] {
                let response = error.response(grpc, informational);
                let _ = write!(text, "{name}: {}", response.status().as_u16());
                for (key, value) in response.headers() {
                    let _ = write!(text, " | {key}: {}", value.to_str().expect("text"));
                }
                let _ = writeln!(text);
            }
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/errors.txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &text).expect("the golden file can be written");
        }
        let want = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            want == text,
            "{path} differs; UPDATE_GOLDEN=1 rewrites it:\n{text}"
        );
    }

    #[test]
    fn http1_rendering() {
        let text = |error: &HttpError, informational| {
            let mut out = BytesMut::new();
            let close = error.write_http1(Version::Http11, true, informational, false, &mut out);
            (String::from_utf8(out.to_vec()).expect("text"), close)
        };
        let (shown, close) = text(&HttpError::load_shed(), true);
        assert!(close);
        assert_eq!(
            shown,
            "HTTP/1.1 503 Service Unavailable\r\nl5d-proxy-error: service unavailable\r\n\
             l5d-proxy-connection: close\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let (hidden, close) = text(&HttpError::unauthorized(), false);
        assert!(!close);
        assert_eq!(
            hidden,
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
        );
    }

    #[test]
    fn grpc_rendering() {
        let response = HttpError::fail_fast().response(true, true);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "4");
        assert_eq!(response.headers()["grpc-message"], "service in fail-fast");
        assert_eq!(response.headers()["l5d-proxy-connection"], "close");
        let response = HttpError::fail_fast().response(false, false);
        assert_eq!(response.status(), 504);
        assert!(response.headers().get("l5d-proxy-error").is_none());
    }
}
