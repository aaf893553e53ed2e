//! Retries that a route's policy or the request itself asks for: on which answers, how often, with how
//! long a wait, and which requests are never sent twice. Tables over one pair of proxies each.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use harness::{CLUSTER_IP, Client, Pair, SERVICE, block_on, raw_app, rule};
use http::{HeaderMap, Request, Response};
use linkerd_api::proto::{
    http_route::{HttpRouteMatch, PathMatch, path_match},
    outbound::{
        self,
        http_route::{Distribution, Retry, Rule, distribution, retry},
    },
};
use linkerd_testkit::{
    control_plane::objects,
    echo::{Answer, Echo},
};

/// How often each path was asked for.
#[derive(Clone, Default)]
struct Tries(Arc<Mutex<HashMap<String, usize>>>);

impl Tries {
    /// Counts one more; gives how many there were before.
    fn next(&self, path: &str) -> usize {
        let mut tries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = tries.entry(path.to_owned()).or_default();
        *count += 1;
        *count - 1
    }

    fn of(&self, path: &str) -> usize {
        let tries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tries.get(path).copied().unwrap_or_default()
    }
}

/// Follows the script in a request's `x-script`, one step per try of the same path.
fn scripted() -> (Echo, Tries) {
    let tries = Tries::default();
    let seen = tries.clone();
    let app = Echo::http_with(([127, 0, 0, 1], 0), move |request| {
        let path = request.uri.rsplit('/').next().unwrap_or_default();
        let script = request.header("x-script").unwrap_or("200");
        let step = script.split(' ').nth(seen.next(path)).unwrap_or("200");
        let after = |ms| Answer::Respond {
            status: 200,
            delay: Duration::from_millis(ms),
            body: Bytes::new(),
        };
        match step {
            "hang" => after(20_000),
            "late" => after(1_500),
            "200" => Answer::echo(request),
            status => Answer::status(status.parse().expect("a status"), "no"),
        }
    });
    (app, tries)
}

/// One request and what becomes of it.
struct Case {
    name: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: usize,
    script: &'static str,
    status: u16,
    tries: usize,
    /// Retries, retries beyond the limit, requests that could not be sent again.
    counted: [u32; 3],
}

const CASE: Case = Case {
    name: "",
    headers: &[],
    body: 0,
    script: "200",
    status: 200,
    tries: 1,
    counted: [0, 0, 0],
};

const ON_5XX: (&str, &str) = ("l5d-retry-http", "5xx");
const LIMIT_3: (&str, &str) = ("l5d-retry-limit", "3");
const IN_300MS: (&str, &str) = ("l5d-retry-timeout", "300ms");

const CASES: &[Case] = &[
    Case {
        name: "nothing asked for",
        script: "503 200",
        status: 503,
        ..CASE
    },
    Case {
        name: "5xx, once by default",
        headers: &[ON_5XX],
        script: "503 200",
        tries: 2,
        counted: [1, 0, 0],
        ..CASE
    },
    Case {
        name: "5xx, as often as asked for",
        headers: &[ON_5XX, LIMIT_3],
        script: "503 500 599 200",
        tries: 4,
        counted: [3, 0, 0],
        ..CASE
    },
    Case {
        name: "5xx, and no more",
        headers: &[ON_5XX, LIMIT_3],
        script: "503 503 503 503 200",
        status: 503,
        tries: 4,
        counted: [3, 1, 0],
        ..CASE
    },
    Case {
        name: "not even once",
        headers: &[ON_5XX, ("l5d-retry-limit", "0")],
        script: "503 200",
        status: 503,
        counted: [0, 1, 0],
        ..CASE
    },
    Case {
        name: "a gateway error",
        headers: &[("l5d-retry-http", "gateway-error")],
        script: "504 200",
        tries: 2,
        counted: [1, 0, 0],
        ..CASE
    },
    Case {
        name: "no gateway error",
        headers: &[("l5d-retry-http", "gateway-error")],
        script: "500 200",
        status: 500,
        ..CASE
    },
    Case {
        name: "one status of a list",
        headers: &[("l5d-retry-http", "404, 450-460"), LIMIT_3],
        script: "404 455 461 200",
        status: 461,
        tries: 3,
        counted: [2, 0, 0],
        ..CASE
    },
    Case {
        name: "the first try hangs",
        headers: &[ON_5XX, IN_300MS],
        script: "hang 200",
        tries: 2,
        counted: [1, 0, 0],
        ..CASE
    },
    Case {
        name: "the last try has all the time it needs",
        headers: &[ON_5XX, IN_300MS],
        script: "hang late",
        tries: 2,
        counted: [1, 0, 0],
        ..CASE
    },
    Case {
        name: "a body of 64 KiB",
        headers: &[ON_5XX],
        body: 65_536,
        script: "503 200",
        tries: 2,
        counted: [1, 0, 0],
        ..CASE
    },
    Case {
        name: "a body of one byte more",
        headers: &[ON_5XX],
        body: 65_537,
        script: "503 200",
        status: 503,
        counted: [0, 0, 1],
        ..CASE
    },
];

/// Sends one request of a case over HTTP/1 or HTTP/2; gives its status.
fn send(at: SocketAddr, http2: bool, path: &str, case: &Case) -> u16 {
    let script = ("x-script", case.script);
    let headers = || case.headers.iter().chain([&script]);
    let body = vec![b'x'; case.body];
    if !http2 {
        let lines: String = headers().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        let head = format!(
            "POST /{path} HTTP/1.1\r\nhost: web\r\ncontent-length: {}\r\n{lines}\r\n",
            body.len()
        );
        let mut client = Client::connect(at);
        return client.send(head).send(body).answer().status();
    }
    block_on(async {
        let mut send = http2::connect(at).await;
        let mut request = Request::post(format!("http://web/{path}"));
        for (name, value) in headers() {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("valid");
        let body = (!body.is_empty()).then(|| Bytes::from(body));
        let got = http2::call(&mut send, request, body.as_slice()).await;
        got.expect("an answer").head.status().as_u16()
    })
}

/// What the client's proxy has counted.
fn counted(pair: &Pair) -> [f64; 3] {
    ["requests", "limit_exceeded", "overflow"].map(|what| {
        let family = format!("outbound_http_route_retry_{what}_total");
        pair.client.metric(&family, &[])
    })
}

#[test]
fn a_request_asks_for_retries() {
    let (app, tries) = scripted();
    let pair = Pair::new(app.addr());
    let allowed = rule(|rule| rule.allow_l5d_request_headers = true);
    pair.control.set_outbound(CLUSTER_IP, allowed);
    for http2 in [false, true] {
        for (n, case) in CASES.iter().enumerate() {
            let name = format!("{}, HTTP/2 {http2}", case.name);
            let path = format!("{n}-{http2}");
            let (before, started) = (counted(&pair), Instant::now());
            let status = send(pair.client.outbound, http2, &path, case);
            assert_eq!(status, case.status, "{name}");
            assert_eq!(tries.of(&path), case.tries, "{name}");
            assert!(started.elapsed() < Duration::from_secs(15), "{name}");
            let after = counted(&pair);
            let new = std::array::from_fn(|n| after[n] - before[n]);
            assert_eq!(new, case.counted.map(f64::from), "{name}");
        }
    }
    let bodies = app.requests();
    let bodies = bodies.iter().filter(|r| r.uri.ends_with("10-true"));
    assert!(
        bodies.map(|r| r.body.len()).eq([65_536; 2]),
        "replayed whole"
    );
}

#[test]
fn limits_beyond_all_clocks_are_none() {
    let (app, _) = scripted();
    let pair = Pair::new(app.addr());
    let allowed = rule(|rule| rule.allow_l5d_request_headers = true);
    pair.control.set_outbound(CLUSTER_IP, allowed);
    for name in [
        "l5d-timeout",
        "l5d-request-timeout",
        "l5d-response-timeout",
        "l5d-retry-timeout",
    ] {
        for value in ["18446744073709551615s", "18446744073709551615ms"] {
            let lines = format!("l5d-retry-http: 5xx\r\n{name}: {value}\r\n");
            let head = format!("GET / HTTP/1.1\r\nhost: web\r\n{lines}\r\n");
            let answer = Client::connect(pair.client.outbound).send(head).answer();
            assert_eq!(answer.status(), 200, "{name}: {value}");
        }
    }
}

/// A route for everything below a path, whose rule is changed.
fn on_path(path: &str, change: impl FnOnce(&mut Rule)) -> outbound::HttpRoute {
    let mut route = objects::http_route(objects::balancer(SERVICE));
    route.rules[0].matches = vec![HttpRouteMatch {
        path: Some(PathMatch {
            kind: Some(path_match::Kind::Prefix(path.into())),
        }),
        ..HttpRouteMatch::default()
    }];
    change(&mut route.rules[0]);
    route
}

#[test]
fn headers_are_consumed_where_allowed_and_left_in_place_where_not() {
    const NAMES: [&str; 7] = [
        "l5d-retry-http",
        "l5d-retry-grpc",
        "l5d-retry-limit",
        "l5d-retry-timeout",
        "l5d-timeout",
        "l5d-request-timeout",
        "l5d-response-timeout",
    ];
    let (app, tries) = scripted();
    let pair = Pair::new(app.addr());
    let routes = vec![
        on_path("/allowed", |rule| rule.allow_l5d_request_headers = true),
        on_path("/strict", |_| {}),
    ];
    pair.control
        .set_outbound(CLUSTER_IP, objects::detect(routes, None));
    let values = ["5xx", "internal", "2", "5s", "5s", "5s", "5s"];
    let lines = NAMES.iter().zip(values);
    let lines: String = lines.map(|(n, v)| format!("{n}: {v}\r\n")).collect();
    for (path, left, want) in [("allowed", 0, 3), ("strict", NAMES.len(), 1)] {
        let script = "x-script: 503 503 200\r\n";
        let head = format!("GET /{path} HTTP/1.1\r\nhost: web\r\n{script}{lines}\r\n");
        Client::connect(pair.client.outbound).send(head).answer();
        assert_eq!(tries.of(path), want, "{path}");
        for request in app.requests().iter().filter(|r| r.uri.ends_with(path)) {
            let there = NAMES.iter().filter(|name| request.header(name).is_some());
            assert_eq!(there.count(), left, "{path}");
        }
    }
}

/// A retry policy of a route, on server errors.
fn on_5xx(max_retries: u32) -> Retry {
    Retry {
        max_retries,
        conditions: Some(retry::Conditions {
            status_ranges: vec![retry::conditions::StatusRange {
                start: 500,
                end: 599,
            }],
        }),
        ..Retry::default()
    }
}

#[test]
fn load_shed_is_not_tried_again() {
    let (app, _) = scripted();
    let pair = Pair::new(app.addr());
    let empty = distribution::Kind::Empty(distribution::Empty {});
    let policy = rule(|rule| {
        rule.retry = Some(on_5xx(3));
        rule.backends = Some(Distribution { kind: Some(empty) });
    });
    pair.control.set_outbound(CLUSTER_IP, policy);
    let status = send(pair.client.outbound, false, "shed", &CASE);
    assert_eq!(status, 503);
    assert!(counted(&pair)[0] < 0.5, "it was tried again");
}

/// What an HTTP/2 application says to the nth try of a request.
type Script = fn(usize, &str, &mut h2::server::SendResponse<Bytes>);

/// An HTTP/2 application that follows a script and keeps trailers of requests. It has the whole of
/// one before it answers, but for the path `/early`.
fn following(script: Script) -> (SocketAddr, Tries, Arc<Mutex<Vec<HeaderMap>>>) {
    let (tries, trailers) = (Tries::default(), Arc::<Mutex<Vec<HeaderMap>>>::default());
    let (seen, kept) = (tries.clone(), trailers.clone());
    let addr = raw_app(move |io| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            io.set_nonblocking(true).expect("an option");
            let io = tokio::net::TcpStream::from_std(io).expect("the runtime takes it");
            let Ok(mut connection) = h2::server::handshake(io).await else {
                return;
            };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let path = request.uri().path().to_owned();
                let (n, kept) = (seen.next(&path), kept.clone());
                if path.ends_with("/early") {
                    script(n, &path, &mut respond);
                    continue;
                }
                linkerd_runtime::spawn("answer", async move {
                    let mut body = request.into_body();
                    while let Some(Ok(data)) = body.data().await {
                        let _ = body.flow_control().release_capacity(data.len());
                    }
                    if let Ok(Some(trailers)) = body.trailers().await {
                        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                        kept.push(trailers);
                    }
                    script(n, &path, &mut respond);
                });
            }
        });
    });
    (addr, tries, trailers)
}

/// A head; whether it is the end.
fn head(
    respond: &mut h2::server::SendResponse<Bytes>,
    status: u16,
    fields: &[(&str, &str)],
    end: bool,
) -> Option<h2::SendStream<Bytes>> {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    let response = response.body(()).expect("valid");
    respond.send_response(response, end).ok()
}

const GRPC: (&str, &str) = ("content-type", "application/grpc");

fn trailers(code: &str) -> HeaderMap {
    let code = code.parse().expect("a value");
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), code)])
}

/// The status of an answer, wherever it is.
fn grpc_status(got: &http2::Got) -> String {
    let anywhere = [Some(got.head.headers()), got.trailers.as_ref()];
    let found = anywhere.into_iter().flatten();
    let found = found.filter_map(|map| map.get("grpc-status")).next();
    let found = found.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    found.unwrap_or_default()
}

#[test]
fn grpc_statuses_that_are_tried_again() {
    let (app, tries, _) = following(|n, path, respond| {
        if n > 0 {
            if let Some(mut stream) = head(respond, 200, &[GRPC], false) {
                let _ = stream.send_data(Bytes::from_static(b"good"), false);
                let _ = stream.send_trailers(trailers("0"));
            }
            return;
        }
        let (kind, code) = path.rsplit_once('/').unwrap_or_default();
        if kind.ends_with("only") {
            head(respond, 200, &[GRPC, ("grpc-status", code)], true);
            return;
        }
        let Some(mut stream) = head(respond, 200, &[GRPC], false) else {
            return;
        };
        let (kind, code) = (kind.to_owned(), code.to_owned());
        linkerd_runtime::spawn("rest", async move {
            if kind.ends_with("first") {
                let _ = stream.send_data(Bytes::from_static(b"bad"), false);
                tokio::time::sleep(Duration::from_millis(500)).await;
            } else if kind.ends_with("together") {
                let _ = stream.send_data(Bytes::from_static(b"bad"), false);
            }
            let _ = stream.send_trailers(trailers(&code));
        });
    });
    let pair = Pair::new(app);
    let allowed = rule(|rule| rule.allow_l5d_request_headers = true);
    pair.control.set_outbound(CLUSTER_IP, allowed);
    let words = "unavailable,cancelled,deadline-exceeded,internal,resource-exhausted";
    block_on(async {
        let mut send = http2::connect(pair.client.outbound).await;
        for (path, want, times) in [
            ("/only/14", "0", 2),
            ("/only/1", "0", 2),
            ("/only/4", "0", 2),
            ("/only/13", "0", 2),
            ("/only/8", "0", 2),
            ("/only/5", "5", 1),
            ("/only/2", "2", 1),
            ("/trailers/14", "0", 2),
            ("/trailers/5", "5", 1),
            ("/together/14", "0", 2),
            ("/together/5", "5", 1),
            ("/first/14", "14", 1),
        ] {
            let request = Request::post(format!("http://web{path}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("l5d-retry-grpc", words)
                .body(())
                .expect("valid");
            let body = [Bytes::from_static(b"message")];
            let got = http2::call(&mut send, request, &body).await;
            let got = got.unwrap_or_else(|e| panic!("{path}: {e}"));
            assert_eq!(grpc_status(&got), want, "{path}");
            assert_eq!(tries.of(path), times, "{path}");
            let body: &[u8] = match (path.split('/').nth(1), times) {
                (_, 2) => b"good",
                (Some("together" | "first"), _) => b"bad",
                _ => b"",
            };
            assert_eq!(got.body, body, "{path}");
        }
    });
}

#[test]
fn an_answer_before_the_end_of_its_request_is_the_answer() {
    let (app, tries, _) = following(|_, _, respond| {
        head(respond, 503, &[], true);
    });
    let pair = Pair::new(app);
    let policy = rule(|rule| rule.retry = Some(on_5xx(3)));
    pair.control.set_outbound(CLUSTER_IP, policy);
    block_on(async {
        let mut send = http2::connect(pair.client.outbound).await;
        let request = Request::post("http://web/early").body(()).expect("valid");
        let (response, mut body) = send.send_request(request, false).expect("sends");
        body.send_data(Bytes::from_static(b"some"), false)
            .expect("sends");
        assert_eq!(response.await.expect("an answer").status(), 503);
    });
    assert_eq!(tries.of("/early"), 1);
    let [retries, _, overflow] = counted(&pair);
    assert!(retries < 0.5 && overflow > 0.5, "{retries} {overflow}");
}

#[test]
fn trailers_of_a_request_are_sent_again_with_it() {
    let (app, tries, kept) = following(|n, _, respond| {
        head(respond, if n == 0 { 503 } else { 200 }, &[], true);
    });
    let pair = Pair::new(app);
    let policy = rule(|rule| rule.retry = Some(on_5xx(3)));
    pair.control.set_outbound(CLUSTER_IP, policy);
    block_on(async {
        let mut send = http2::connect(pair.client.outbound).await;
        let request = Request::post("http://web/whole").body(()).expect("valid");
        let (response, mut body) = send.send_request(request, false).expect("sends");
        body.send_data(Bytes::from_static(b"some"), false)
            .expect("sends");
        let name = http::HeaderName::from_static("x-sum");
        let sum = HeaderMap::from_iter([(name, http::HeaderValue::from_static("4"))]);
        body.send_trailers(sum).expect("sends");
        assert_eq!(response.await.expect("an answer").status(), 200);
    });
    assert_eq!(tries.of("/whole"), 2);
    let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(kept.len(), 2, "each try has them");
    assert!(kept.iter().all(|trailers| trailers["x-sum"] == "4"));
}

#[test]
fn a_refused_stream_is_tried_again_by_policy_alone() {
    let (app, tries, _) = following(|n, _, respond| match n {
        0 => respond.send_reset(h2::Reason::REFUSED_STREAM),
        _ => {
            head(respond, 200, &[], true);
        }
    });
    let off = [
        ("HTTP_RESEND_UNSENT", "false"),
        ("HTTP_RESEND_IDEMPOTENT", "false"),
    ];
    let pair = Pair::with(app, &off, &off);
    let routes = vec![
        on_path("/by-policy", |rule| rule.retry = Some(on_5xx(1))),
        on_path("/without", |_| {}),
    ];
    let policy = objects::detect(routes, None);
    pair.control.set_outbound(CLUSTER_IP, policy);
    for (path, served, times) in [("/by-policy", true, 2), ("/without", false, 1)] {
        let status = block_on(async {
            let mut send = http2::connect(pair.client.outbound).await;
            let request = Request::post(format!("http://web{path}")).body(());
            let got = http2::call(&mut send, request.expect("valid"), &[]).await;
            got.map(|got| got.head.status().as_u16()).ok()
        });
        assert_eq!(status == Some(200), served, "{path}: {status:?}");
        assert_eq!(tries.of(path), times, "{path}");
    }
    assert!((counted(&pair)[0] - 1.0).abs() < 0.1);
}
