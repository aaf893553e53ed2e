//! Traces: the context a request brings, the spans we add to it, and the context it goes on with.
//! Nothing is begun here: a request without a sampled context is left alone.

pub mod export;
pub mod otlp;

use std::{
    fmt::Write as _,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use http::{HeaderName, HeaderValue};
use smallvec::smallvec;
use tokio::sync::mpsc;

use self::otlp::{KeyValue, Span, SpanKind, Status, StatusCode};
use super::{Fields, Head};
use crate::http::Lines;

/// Spans that may wait to be exported; more are dropped.
pub const QUEUE: usize = 100;

/// Where finished spans go; clones share it.
#[derive(Clone, Debug)]
pub struct Tracer {
    spans: mpsc::Sender<Span>,
    dropped: Arc<AtomicU64>,
}

impl Tracer {
    /// A tracer, and what it traces.
    pub fn new() -> (Self, mpsc::Receiver<Span>) {
        let (spans, receiver) = mpsc::channel(QUEUE);
        let dropped = Arc::default();
        (Self { spans, dropped }, receiver)
    }

    /// Spans that nobody took in time.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn finish(&self, span: Span) {
        // A collector that cannot keep up misses spans; requests never wait for it.
        if self.spans.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How a context is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    W3c,
    GrpcBin,
    B3,
}

/// The context a request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Context {
    form: Form,
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
}

const SAMPLED: u8 = 1;

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static GRPC_TRACE_BIN: HeaderName = HeaderName::from_static("grpc-trace-bin");
static B3_SPAN_ID: HeaderName = HeaderName::from_static("x-b3-spanid");

impl Context {
    /// What a request says; the first form that makes sense counts.
    fn read(fields: &impl Fields) -> Option<Self> {
        fields
            .first("traceparent")
            .and_then(|v| Self::w3c(&v))
            .or_else(|| fields.first("grpc-trace-bin").and_then(|v| Self::grpc(&v)))
            .or_else(|| Self::b3(fields))
    }

    fn new(form: Form, trace: [u8; 16], span: [u8; 8], flags: u8) -> Option<Self> {
        (trace != [0; 16] && span != [0; 8]).then_some(Self {
            form,
            trace,
            span,
            flags,
        })
    }

    /// `00-<32 digits>-<16 digits>-<2 digits>`; later versions may have more behind it.
    fn w3c(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version: [u8; 1] = unhex(parts.next()?)?;
        let trace = unhex(parts.next()?)?;
        let span = unhex(parts.next()?)?;
        let [flags] = unhex(parts.next()?)?;
        let more = parts.next().is_some();
        if version == [0xff] || (version == [0] && more) {
            return None;
        }
        Self::new(Form::W3c, trace, span, flags)
    }

    /// Version 0, then numbered fields: 0 the trace, 1 the span, 2 the options.
    fn grpc(text: &str) -> Option<Self> {
        let bytes = unbase64(text.trim())?;
        let fields = bytes.strip_prefix(&[0])?;
        let (trace, rest) = fields.strip_prefix(&[0])?.split_first_chunk::<16>()?;
        let (span, rest) = rest.strip_prefix(&[1])?.split_first_chunk::<8>()?;
        let flags = match rest.strip_prefix(&[2]) {
            Some([flags, ..]) => *flags,
            _ => 0,
        };
        Self::new(Form::GrpcBin, *trace, *span, flags)
    }

    fn b3(fields: &impl Fields) -> Option<Self> {
        let text = fields.first("x-b3-traceid")?;
        let trace = match text.len() {
            16 => {
                let low: [u8; 8] = unhex(&text)?;
                let mut trace = [0; 16];
                trace[8..].copy_from_slice(&low);
                trace
            }
            _ => unhex(&text)?,
        };
        let span = unhex(&fields.first("x-b3-spanid")?)?;
        let debug = fields.first("x-b3-flags").as_deref() == Some("1");
        let sampled = fields.first("x-b3-sampled");
        let sampled = debug || matches!(sampled.as_deref(), Some("1" | "true"));
        Self::new(Form::B3, trace, span, u8::from(sampled))
    }

    fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same context below another span, in the form it came.
    fn lines(&self, span: [u8; 8]) -> Option<Lines> {
        let (name, text) = match self.form {
            Form::W3c => {
                let text = format!(
                    "00-{}-{}-{}",
                    hex(&self.trace),
                    hex(&span),
                    hex(&[self.flags])
                );
                (&TRACEPARENT, text)
            }
            Form::GrpcBin => {
                let mut bytes = vec![0, 0];
                bytes.extend(self.trace);
                bytes.push(1);
                bytes.extend(span);
                bytes.extend([2, self.flags]);
                (&GRPC_TRACE_BIN, base64(&bytes))
            }
            Form::B3 => (&B3_SPAN_ID, hex(&span)),
        };
        Some(Lines {
            remove: smallvec![name.clone()],
            add: smallvec![(name.clone(), HeaderValue::from_str(&text).ok()?)],
        })
    }
}

/// A request that is traced: one span for serving it, one for sending it on.
#[derive(Debug)]
pub struct Traced {
    tracer: Tracer,
    context: Context,
    server: Span,
    client: Span,
    status: Option<u16>,
}

impl Traced {
    /// Follows a request whose context is sampled.
    pub fn new(tracer: &Tracer, inbound: bool, head: &impl Head, now: SystemTime) -> Option<Self> {
        let context = Context::read(head).filter(Context::is_sampled)?;
        let direction = if inbound { "inbound" } else { "outbound" };
        let attributes = attributes(head, direction);
        let span = |kind: SpanKind, parent: [u8; 8]| Span {
            trace_id: context.trace.to_vec(),
            span_id: rand::random::<[u8; 8]>().to_vec(),
            parent_span_id: parent.to_vec(),
            name: head.path().to_owned(),
            kind: kind.into(),
            start_time_unix_nano: nanos(now),
            attributes: attributes.clone(),
            ..Span::default()
        };
        let server = span(SpanKind::Server, context.span);
        let below: [u8; 8] = server.span_id.as_slice().try_into().ok()?;
        Some(Self {
            client: span(SpanKind::Client, below),
            server,
            tracer: tracer.clone(),
            context,
            status: None,
        })
    }

    /// What the request carries on.
    pub fn lines(&self) -> Option<Lines> {
        let span: [u8; 8] = self.client.span_id.as_slice().try_into().ok()?;
        self.context.lines(span)
    }

    /// The request goes to an endpoint.
    pub fn dispatched(&mut self, endpoint: SocketAddr, now: SystemTime) {
        self.client.start_time_unix_nano = nanos(now);
        let replaced = ["server.address", "server.port"];
        self.client
            .attributes
            .retain(|a| !replaced.contains(&a.key.as_str()));
        self.client.attributes.extend([
            KeyValue::text("server.address", endpoint.ip().to_string()),
            KeyValue::number("server.port", endpoint.port().into()),
        ]);
    }

    /// The answer's head came.
    pub fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// The request is over.
    pub fn finish(mut self, now: SystemTime) {
        for mut span in [
            std::mem::take(&mut self.client),
            std::mem::take(&mut self.server),
        ] {
            span.end_time_unix_nano = nanos(now);
            if let Some(status) = self.status {
                let status = i64::from(status);
                let attribute = KeyValue::number("http.response.status_code", status);
                span.attributes.push(attribute);
            }
            let failed = self.status.is_none_or(|status| status >= 500);
            if failed {
                span.status = Some(Status {
                    message: String::new(),
                    code: StatusCode::Error.into(),
                });
            }
            self.tracer.finish(span);
        }
    }
}

/// Request headers that become attributes.
const SHOWN: [&str; 3] = ["content-length", "content-type", "l5d-orig-proto"];

fn attributes(head: &impl Head, direction: &str) -> Vec<KeyValue> {
    let authority = head.authority().unwrap_or_default();
    let mut found = vec![
        KeyValue::text("direction", direction),
        KeyValue::text("http.request.method", head.method()),
        KeyValue::text("network.transport", "tcp"),
        KeyValue::text("url.scheme", head.scheme()),
        KeyValue::text("url.path", head.path()),
    ];
    if let Some(query) = head.query() {
        found.push(KeyValue::text("url.query", query));
    }
    if !authority.is_empty() {
        let mut full = format!("{}://{authority}{}", head.scheme(), head.path());
        if let Some(query) = head.query() {
            let _ = write!(full, "?{query}");
        }
        found.push(KeyValue::text("url.full", full));
        let host = crate::policy::matching::host_of(authority);
        found.push(KeyValue::text("server.address", host));
        let port = authority.rsplit_once(':').map(|(_, port)| port.parse());
        if let Some(Ok(port)) = port {
            found.push(KeyValue::number("server.port", port));
        }
    }
    if let Some(agent) = head.first("user-agent") {
        found.push(KeyValue::text("user_agent.original", agent));
    }
    for name in SHOWN {
        if let Some(value) = head.first(name) {
            let key = format!("http.request.header.{name}");
            found.push(KeyValue::text(&key, value));
        }
    }
    found
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let digit = |c: u8| {
        char::from(c)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD_NO_PAD.encode(bytes)
}

/// Padding is optional in gRPC's binary headers.
fn unbase64(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(text.trim_end_matches('='))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> http::HeaderMap {
        let mut map = http::HeaderMap::new();
        for (name, value) in lines {
            map.insert(*name, value.parse().expect("valid"));
        }
        map
    }

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn contexts() {
        let w3c = format!("00-{TRACE}-{SPAN}-01");
        let trace: [u8; 16] = unhex(TRACE).expect("hex");
        let span: [u8; 8] = unhex(SPAN).expect("hex");
        let mut binary = vec![0, 0];
        binary.extend(trace);
        binary.push(1);
        binary.extend(span);
        binary.extend([2, 1]);
        let binary = base64(&binary);
        let padded = format!("{binary}=");
        let later = format!("01-{TRACE}-{SPAN}-01-more");
        let longer = format!("00-{TRACE}-{SPAN}-01-more");
        let zero = format!("00-{}-{SPAN}-01", "0".repeat(32));
        let unsampled = format!("00-{TRACE}-{SPAN}-00");
        let b3 = [
            ("x-b3-traceid", TRACE),
            ("x-b3-spanid", SPAN),
            ("x-b3-sampled", "1"),
        ];
        let mut low = [0; 16];
        low[8..].copy_from_slice(&span);
        for (name, lines, want) in [
            ("none", vec![], None),
            (
                "w3c",
                vec![("traceparent", w3c.as_str())],
                Some((Form::W3c, trace, true)),
            ),
            (
                "w3c, later",
                vec![("traceparent", &later)],
                Some((Form::W3c, trace, true)),
            ),
            ("w3c, too long", vec![("traceparent", &longer)], None),
            ("w3c, zero", vec![("traceparent", &zero)], None),
            (
                "w3c, not sampled",
                vec![("traceparent", &unsampled)],
                Some((Form::W3c, trace, false)),
            ),
            (
                "grpc",
                vec![("grpc-trace-bin", &binary)],
                Some((Form::GrpcBin, trace, true)),
            ),
            (
                "grpc, padded",
                vec![("grpc-trace-bin", &padded)],
                Some((Form::GrpcBin, trace, true)),
            ),
            ("grpc, short", vec![("grpc-trace-bin", "AAA")], None),
            ("b3", b3.to_vec(), Some((Form::B3, trace, true))),
            (
                "b3, 64 bits",
                vec![("x-b3-traceid", SPAN), ("x-b3-spanid", SPAN)],
                Some((Form::B3, low, false)),
            ),
            ("b3, half", vec![("x-b3-traceid", TRACE)], None),
            (
                "w3c before b3",
                [vec![("traceparent", w3c.as_str())], b3.to_vec()].concat(),
                Some((Form::W3c, trace, true)),
            ),
            (
                "bad w3c, then b3",
                [vec![("traceparent", "junk")], b3.to_vec()].concat(),
                Some((Form::B3, trace, true)),
            ),
        ] {
            let found = Context::read(&headers(&lines));
            let found = found.map(|c| (c.form, c.trace, c.is_sampled()));
            assert_eq!(found, want, "{name}");
        }
    }

    #[test]
    fn a_child_is_written_in_the_form_it_came() {
        let span: [u8; 8] = unhex(SPAN).expect("hex");
        let child = [7; 8];
        for form in [Form::W3c, Form::GrpcBin, Form::B3] {
            let context = Context::new(form, [9; 16], span, 1).expect("valid");
            let mut map = http::HeaderMap::new();
            map.insert("x-b3-traceid", hex(&[9; 16]).parse().expect("valid"));
            map.insert("x-b3-sampled", HeaderValue::from_static("1"));
            if form != Form::B3 {
                map.clear();
            }
            context.lines(child).expect("lines").apply(&mut map);
            let again = Context::read(&map).expect("a context");
            let want = Context {
                span: child,
                ..context
            };
            assert_eq!(again, want);
        }
    }

    #[test]
    fn more_spans_than_wait_are_dropped_and_counted() {
        let (tracer, mut spans) = Tracer::new();
        for _ in 0..QUEUE + 3 {
            tracer.finish(Span::default());
        }
        assert_eq!(tracer.dropped(), 3);
        for _ in 0..QUEUE {
            spans.try_recv().expect("those before");
        }
        tracer.finish(Span::default());
        assert_eq!(tracer.clone().dropped(), 3, "there is room again");
    }

    #[test]
    fn spans_hang_together() {
        let (tracer, mut spans) = Tracer::new();
        let request = http::Request::get("http://web.ns:8080/a?b=c")
            .header("traceparent", format!("00-{TRACE}-{SPAN}-01"))
            .header("user-agent", "test/1")
            .body(())
            .expect("valid");
        let now = SystemTime::now();
        let mut traced = Traced::new(&tracer, true, &request, now).expect("sampled");
        let carried = traced.lines().expect("lines");
        traced.dispatched(([10, 0, 0, 1], 80).into(), now);
        traced.answered(200);
        traced.finish(now);
        let client = spans.try_recv().expect("a client span");
        let server = spans.try_recv().expect("a server span");
        assert_eq!(hex(&server.parent_span_id), SPAN);
        assert_eq!(client.parent_span_id, server.span_id);
        let value = carried.add[0].1.to_str().expect("text").to_owned();
        assert!(value.contains(&hex(&client.span_id)), "{value}");
        let get = |span: &Span, key: &str| {
            let found = span.attributes.iter().find(|a| a.key == key);
            found.map(KeyValue::show).unwrap_or_default()
        };
        for (key, want) in [
            ("http.request.method", "GET"),
            ("url.scheme", "http"),
            ("url.path", "/a"),
            ("url.query", "b=c"),
            ("url.full", "http://web.ns:8080/a?b=c"),
            ("server.address", "web.ns"),
            ("server.port", "8080"),
            ("user_agent.original", "test/1"),
            ("http.response.status_code", "200"),
            ("direction", "inbound"),
        ] {
            assert_eq!(get(&server, key), want, "{key}");
        }
        assert_eq!(get(&client, "server.address"), "10.0.0.1");
        let plain = http::Request::get("/").body(()).expect("valid");
        assert!(Traced::new(&tracer, true, &plain, now).is_none());
    }
}
