//! Timeouts of a route over HTTP/1, HTTP/2 and gRPC: when each begins, what counts as a sign of life,
//! and how an answer ends that was under way. One pair of proxies, one rule per limit.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    io::{Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use harness::{CLUSTER_IP, Client, Pair, SERVICE, block_on, millis};
use linkerd_api::proto::{
    http_route::{HttpRouteMatch, PathMatch, Timeouts, path_match},
    outbound,
};
use linkerd_testkit::{
    control_plane::objects,
    echo::{Answer, Echo, End},
};

/// What the application does: its body in pieces, so many milliseconds apart.
fn paced() -> Echo {
    Echo::http_with(([127, 0, 0, 1], 0), |request| {
        let number = |name| request.header(name).and_then(|v| v.parse::<u64>().ok());
        let pieces = number("x-pieces").unwrap_or(1);
        Answer::Pieces {
            headers: vec![(
                "content-type",
                request
                    .header("content-type")
                    .unwrap_or("text/plain")
                    .to_owned(),
            )],
            pieces: (0..pieces).map(|_| Bytes::from_static(b"piece")).collect(),
            pause: Duration::from_millis(number("x-pause").unwrap_or(0)),
            end: End::Trailers(Vec::new()),
        }
    })
}

const LIMIT: i32 = 999;

/// Every limit below a path of its name.
fn policy() -> outbound::OutboundPolicy {
    let limit = Some(millis(LIMIT));
    let on_path = |(path, timeouts): (&str, Timeouts)| {
        let mut route = objects::http_route(objects::balancer(SERVICE));
        route.rules[0].matches = vec![HttpRouteMatch {
            path: Some(PathMatch {
                kind: Some(path_match::Kind::Prefix(path.into())),
            }),
            ..HttpRouteMatch::default()
        }];
        route.rules[0].timeouts = Some(timeouts);
        route
    };
    let none = Timeouts::default;
    let limits = [
        (
            "/request",
            Timeouts {
                request: limit,
                ..none()
            },
        ),
        (
            "/response",
            Timeouts {
                response: limit,
                ..none()
            },
        ),
        (
            "/idle",
            Timeouts {
                idle: limit,
                ..none()
            },
        ),
    ];
    objects::detect(limits.into_iter().map(on_path).collect(), None)
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Http1,
    Http2,
    Grpc,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// With so many bytes of a body.
    Whole(usize),
    /// In place of an answer, with this status and explanation.
    Told(u16, String),
    /// HTTP/1: cut in the middle. HTTP/2: reset with `CANCEL`.
    Cut,
    /// gRPC: with a status in trailers, and its explanation.
    Trailers(String, String),
}

/// A request: how long its upload takes, in four steps, and how the answer comes.
struct Ask {
    path: &'static str,
    upload: u64,
    pieces: u64,
    pause: u64,
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

fn ask_http1(at: SocketAddr, ask: &Ask) -> Ended {
    let Ask {
        path,
        upload,
        pieces,
        pause,
    } = ask;
    let mut client = Client::connect(at);
    client.send(format!(
        "POST {path} HTTP/1.1\r\nhost: web\r\nx-pieces: {pieces}\r\nx-pause: {pause}\r\n\
         content-length: 16\r\nconnection: close\r\n\r\n"
    ));
    for _ in 0..4 {
        #[expect(clippy::disallowed_methods, reason = "being slow is what is tested")]
        std::thread::sleep(Duration::from_millis(upload / 4));
        // Who was told already need not take the rest.
        let _ = client.io().write_all(b"part");
    }
    let mut bytes = Vec::new();
    let _ = client.io().read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.get(9..12).and_then(|s| s.parse().ok()).unwrap_or(0);
    let told = head
        .lines()
        .find_map(|l| l.strip_prefix("l5d-proxy-error: "));
    match told {
        Some(error) => Ended::Told(status, error.to_owned()),
        None if body.ends_with("0\r\n\r\n") => Ended::Whole(5 * body.matches("piece").count()),
        None => Ended::Cut,
    }
}

fn ask_http2(at: SocketAddr, ask: &Ask, grpc: bool) -> Ended {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    block_on(async {
        let mut send = http2::connect(at).await;
        let mut request = http::Request::post(format!("http://web{}", ask.path))
            .header("x-pieces", ask.pieces)
            .header("x-pause", ask.pause);
        if grpc {
            request = request.header("content-type", "application/grpc");
        }
        let request = request.body(()).expect("valid");
        let (response, mut body) = send.send_request(request, false).expect("sends");
        for n in 0..4 {
            pause(ask.upload / 4).await;
            let _ = body.send_data(Bytes::from_static(b"part"), n == 3);
        }
        let (head, mut recv) = response.await.expect("an answer").into_parts();
        if let Some(error) = head.headers.get("l5d-proxy-error") {
            let grpc = head.headers.get("grpc-status").map(text);
            let status = grpc.and_then(|code| code.parse().ok());
            return Ended::Told(status.unwrap_or(head.status.as_u16()), text(error));
        }
        let mut got = 0;
        while let Some(data) = recv.data().await {
            match data {
                Ok(data) => got += data.len(),
                Err(error) => {
                    assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
                    return Ended::Cut;
                }
            }
        }
        match recv.trailers().await.expect("an end") {
            Some(map) if map.contains_key("grpc-status") => {
                Ended::Trailers(text(&map["grpc-status"]), text(&map["grpc-message"]))
            }
            _ => Ended::Whole(got),
        }
    })
}

fn ended(at: SocketAddr, kind: Kind, ask: &Ask) -> Ended {
    match kind {
        Kind::Http1 => ask_http1(at, ask),
        Kind::Http2 | Kind::Grpc => ask_http2(at, ask, kind == Kind::Grpc),
    }
}

/// What a limit that runs out in the middle of an answer looks like.
fn late(kind: Kind, what: &str) -> Ended {
    match kind {
        Kind::Grpc => Ended::Trailers(
            "4".into(),
            format!("timed out processing response stream: {what}: 999ms"),
        ),
        _ => Ended::Cut,
    }
}

/// Before any of it.
fn early(kind: Kind, what: &str) -> Ended {
    let status = if kind == Kind::Grpc { 4 } else { 504 };
    let text = format!("timed out waiting for response headers: {what}: 999ms");
    Ended::Told(status, text)
}

/// What is asked for, and what comes of it for a kind of client.
type Case = (&'static str, Ask, fn(Kind) -> Ended);

const fn ask(path: &'static str, upload: u64, pieces: u64, pause: u64) -> Ask {
    Ask {
        path,
        upload,
        pieces,
        pause,
    }
}

const CASES: &[Case] = &[
    (
        "the request's time begins with its head",
        ask("/request", 1_600, 1, 0),
        |kind| early(kind, "request timeout"),
    ),
    (
        "the response's time begins when the request is sent",
        ask("/response", 1_600, 1, 0),
        |_| Ended::Whole(5),
    ),
    (
        "the response's time ends with its body",
        ask("/response", 0, 20, 200),
        |kind| late(kind, "response stream timeout"),
    ),
    (
        "uploads are signs of life",
        ask("/idle", 1_600, 1, 0),
        |_| Ended::Whole(5),
    ),
    (
        "and so are pieces of the answer",
        ask("/idle", 0, 8, 200),
        |_| Ended::Whole(40),
    ),
    (
        "silence in the middle is not",
        ask("/idle", 0, 2, 3_000),
        |kind| late(kind, "idle timeout"),
    ),
];

#[test]
fn limits_and_when_they_run() {
    let app = paced();
    let pair = Pair::new(app.addr());
    pair.control.set_outbound(CLUSTER_IP, policy());
    let at = pair.client.outbound;
    std::thread::scope(|scope| {
        for kind in [Kind::Http1, Kind::Http2, Kind::Grpc] {
            for (name, ask, want) in CASES {
                scope.spawn(move || {
                    let started = Instant::now();
                    assert_eq!(ended(at, kind, ask), want(kind), "{name}, {kind:?}");
                    assert!(
                        started.elapsed() < Duration::from_secs(15),
                        "{name}, {kind:?}"
                    );
                });
            }
        }
    });
}
