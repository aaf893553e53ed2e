//! Spans of both proxies, as a collector gets them, and what the application is told.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use bytes::{Buf, Bytes, BytesMut};
use harness::{Client, DEADLINE, Pair, block_on, http_echo};
use linkerd_proxy::observe::trace::otlp::{ExportRequest, Span, SpanKind};
use linkerd_testkit::wait_for;
use prost::Message;

/// A collector that keeps what it gets.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportRequest>>>);

impl Collector {
    fn start(&self) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        listener.set_nonblocking(true).expect("an option");
        let addr = listener.local_addr().expect("bound");
        let kept = self.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("registers");
                while let Ok((io, _)) = listener.accept().await {
                    linkerd_runtime::spawn("collector", kept.clone().serve(io));
                }
            });
        });
        addr
    }

    async fn serve(self, io: tokio::net::TcpStream) {
        let mut connection = h2::server::handshake(io).await.expect("handshakes");
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let kept = self.clone();
            linkerd_runtime::spawn("call", async move {
                let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
                assert_eq!(request.uri().path(), path);
                let mut body = request.into_body();
                let mut bytes = BytesMut::new();
                while let Some(Ok(data)) = body.data().await {
                    let _ = body.flow_control().release_capacity(data.len());
                    bytes.extend_from_slice(&data);
                }
                bytes.advance(5);
                let spans = ExportRequest::decode(bytes).expect("a message");
                let mut all = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.push(spans);
                drop(all);
                let head = http::Response::builder()
                    .header("content-type", "application/grpc")
                    .body(())
                    .expect("valid");
                let mut stream = respond.send_response(head, false).expect("sends");
                let empty = Bytes::from_static(&[0; 5]);
                stream.send_data(empty, false).expect("sends");
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().expect("valid"));
                stream.send_trailers(trailers).expect("sends");
            });
        }
    }

    /// Waits for so many spans; each with the attributes of its process.
    fn spans(&self, n: usize) -> Vec<(Span, HashMap<String, String>)> {
        let read = || {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let mut found = Vec::new();
            for of_process in all.iter().flat_map(|r| &r.resource_spans) {
                let resource = of_process.resource.as_ref().expect("a resource").by_name();
                let resource: HashMap<String, String> = resource
                    .into_iter()
                    .map(|(k, v)| (k.to_owned(), v))
                    .collect();
                for span in of_process.scope_spans.iter().flat_map(|s| &s.spans) {
                    found.push((span.clone(), resource.clone()));
                }
            }
            found
        };
        wait_for(DEADLINE, "the spans", || read().len() >= n);
        read()
    }
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn spans_reach_the_collector_and_hang_together() {
    let collector = Collector::default();
    let addr = collector.start().to_string();
    let app = http_echo();
    let env = |name| {
        [
            ("TRACE_COLLECTOR_SVC_ADDR", addr.as_str()),
            ("TRACE_SERVICE_NAME", name),
            ("TRACE_EXTRA_ATTRIBUTES", "a=b\nc=d"),
        ]
    };
    let pair = Pair::with(app.addr(), &env("client"), &env("server"));
    let mut client = Client::connect(pair.client.outbound);
    client.get("/untraced", "web");
    let unsampled = format!("00-{TRACE}-{SPAN}-00");
    let ask =
        |context: &str| format!("GET /a HTTP/1.1\r\nhost: web\r\ntraceparent: {context}\r\n\r\n");
    client.send(ask(&unsampled)).answer();
    client.send(ask(&format!("00-{TRACE}-{SPAN}-01"))).answer();
    let b3 = format!(
        "GET /b3 HTTP/1.1\r\nhost: web\r\nx-b3-traceid: {TRACE}\r\nx-b3-spanid: {SPAN}\r\n\
         x-b3-sampled: 1\r\n\r\n"
    );
    client.send(b3).answer();

    let seen = app.requests();
    assert_eq!(seen[0].header("traceparent"), None, "nothing is begun");
    assert_eq!(seen[1].header("traceparent"), Some(unsampled.as_str()));

    let spans = collector.spans(8);
    let find = |service: &str, kind: SpanKind, name: &str| {
        let found = spans.iter().find(|(span, resource)| {
            resource["service.name"] == service && span.kind() == kind && span.name == name
        });
        let (span, resource) = found.unwrap_or_else(|| panic!("{service} {kind:?} {name}"));
        assert_eq!((resource["a"].as_str(), resource["c"].as_str()), ("b", "d"));
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        span.clone()
    };
    for (name, request) in [("/a", 2), ("/b3", 3)] {
        let mut above = SPAN.to_owned();
        for (service, kind) in [
            ("client", SpanKind::Server),
            ("client", SpanKind::Client),
            ("server", SpanKind::Server),
            ("server", SpanKind::Client),
        ] {
            let span = find(service, kind, name);
            assert_eq!(hex(&span.trace_id), TRACE);
            assert_eq!(hex(&span.parent_span_id), above, "{service} {kind:?}");
            above = hex(&span.span_id);
        }
        let told = match name {
            "/a" => seen[request].header("traceparent").map(str::to_owned),
            _ => seen[request].header("x-b3-spanid").map(str::to_owned),
        };
        assert!(told.expect("a context").contains(&above), "{name}");
    }
    assert_eq!(spans.len(), 8, "only sampled requests make spans");
    for proxy in [&pair.client, &pair.server] {
        harness::counts(proxy, "opentelemetry_span_exports", &[], 4.0);
        assert!(proxy.metric("opentelemetry_span_export_requests", &[]) > 0.5);
        assert!(proxy.metric("opentelemetry_span_export_streams", &[]) > 0.5);
        let collector = format!("addr=\"{addr}\"");
        let labels = [collector.as_str()];
        let family = "opentelemetry_balancer_queue_requests_total";
        assert!(proxy.metric(family, &labels) > 0.5);
        harness::counts(proxy, "control_request_total", &labels, 0.0);
    }
}

/// Version 0, the trace, the span, and whether it is sampled.
fn grpc_trace_bin(sampled: u8) -> String {
    let byte = |n: usize, text: &str| u8::from_str_radix(&text[2 * n..2 * n + 2], 16);
    let mut bytes = vec![0, 0];
    bytes.extend((0..16).map(|n| byte(n, TRACE).expect("digits")));
    bytes.push(1);
    bytes.extend((0..8).map(|n| byte(n, SPAN).expect("digits")));
    bytes.extend([2, sampled]);
    BASE64_STANDARD_NO_PAD.encode(bytes)
}

/// Spans wait for others for a while, so this is one test: how a context in gRPC's form goes on, and
/// how a process says who it is.
#[test]
fn grpc_contexts_and_attributes_of_a_process() {
    let collector = Collector::default();
    let addr = collector.start().to_string();
    let app = http_echo();
    let labels = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(labels.path(), "a=\"file\"\nb=\"file\"\nc=\"file\"\n").expect("writes");
    let env = |name| {
        [
            ("TRACE_COLLECTOR_SVC_ADDR", addr.as_str()),
            ("TRACE_SERVICE_NAME", name),
            (
                "TRACE_ATTRIBUTES_PATH",
                labels.path().to_str().expect("text"),
            ),
            ("TRACE_EXTRA_ATTRIBUTES", "b=extra\nc=extra"),
            ("OTEL_RESOURCE_ATTRIBUTES", "c=otel,d=otel"),
            ("HOSTNAME", "pod-1"),
        ]
    };
    let pair = Pair::with(app.addr(), &env("client"), &env("server"));
    let contexts = [None, Some(grpc_trace_bin(0)), Some(grpc_trace_bin(1))];
    block_on(async {
        let mut send = http2::connect(pair.client.outbound).await;
        for context in &contexts {
            let mut request = http::Request::post("http://web/svc/Method");
            if let Some(context) = context {
                request = request.header("grpc-trace-bin", context);
            }
            let request = request.body(()).expect("valid");
            http2::call(&mut send, request, &[])
                .await
                .expect("answered");
        }
    });
    let seen = app.requests();
    let told = |n: usize| seen[n].header("grpc-trace-bin");
    assert_eq!(told(0), None, "nothing is begun");
    assert_eq!(told(1), contexts[1].as_deref(), "unsampled is left alone");
    for request in &seen {
        let other = ["traceparent", "x-b3-traceid", "x-b3-spanid"];
        assert!(other.iter().all(|name| request.header(name).is_none()));
    }
    let spans = collector.spans(4);
    assert_eq!(spans.len(), 4, "one request of three is sampled");
    assert!(spans.iter().all(|(span, _)| hex(&span.trace_id) == TRACE));
    let last = spans.iter().find(|(span, resource)| {
        resource["service.name"] == "server" && span.kind() == SpanKind::Client
    });
    let (last, resource) = last.expect("the last span");
    // Later ones win.
    for (name, want) in [
        ("host.name", "pod-1"),
        ("a", "file"),
        ("b", "extra"),
        ("c", "otel"),
        ("d", "otel"),
        ("process.pid", &std::process::id().to_string()),
    ] {
        assert_eq!(resource.get(name).map(String::as_str), Some(want), "{name}");
    }
    assert!(resource.contains_key("process.start_timestamp"));
    let told = BASE64_STANDARD_NO_PAD
        .decode(told(2).expect("a context").trim_end_matches('='))
        .expect("bytes");
    assert_eq!(hex(&told[2..18]), TRACE);
    assert_eq!(told[19..27], last.span_id[..]);
}

#[test]
fn a_collector_that_does_not_answer_harms_no_request() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let addr = silent.local_addr().expect("bound").to_string();
    let app = http_echo();
    let env = [("TRACE_COLLECTOR_SVC_ADDR", addr.as_str())];
    let pair = Pair::with(app.addr(), &env, &env);
    let started = std::time::Instant::now();
    let mut client = Client::connect(pair.client.outbound);
    // Many times what may wait.
    for _ in 0..1_000 {
        let ask =
            format!("GET / HTTP/1.1\r\nhost: web\r\ntraceparent: 00-{TRACE}-{SPAN}-01\r\n\r\n");
        assert_eq!(client.send(ask).answer().status(), 200);
    }
    assert!(started.elapsed() < DEADLINE, "nobody waits for it");
    for proxy in [&pair.client, &pair.server] {
        harness::counts(proxy, "opentelemetry_span_exports", &[], 0.0);
        // Two of each request; a hundred wait, and as many as a first call takes.
        let dropped = proxy.metric("opentelemetry_spans_dropped_total", &[]);
        assert!((800.0..=1_900.0).contains(&dropped), "{dropped}");
    }
}
