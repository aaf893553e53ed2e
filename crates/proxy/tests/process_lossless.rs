//! No request is lost to an ordinary operation: what the application has not received is sent again
//! whatever its method, what may have been received only when that does no harm.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use harness::{
    CLUSTER_IP, Client, Closed, DEADLINE, Pair, Proxy, SERVICE, block_on, get, http_echo, raw_app,
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    wait_for,
};

/// Reads one request with a length; `None` at the end.
fn read_request(io: &mut TcpStream) -> Option<String> {
    let mut buf = Vec::new();
    loop {
        if let Some(end) = buf.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buf[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|l| l.strip_prefix("content-length: "))
                .map_or(0, |v| v.trim().parse().expect("a length"));
            if buf.len() >= end + 4 + length {
                return Some(String::from_utf8_lossy(&buf).into_owned());
            }
        }
        let mut chunk = [0; 4096];
        match io.read(&mut chunk) {
            Ok(n) if n > 0 => buf.extend(&chunk[..n]),
            _ => return None,
        }
    }
}

fn answer(io: &mut TcpStream) {
    let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
}

/// A port nobody listens on.
fn refused() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.local_addr().expect("bound")
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: web\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn resends(proxy: &Proxy, reason: &str) -> f64 {
    proxy.metric(
        "outbound_http_resends_total",
        &[&format!("reason=\"{reason}\"")],
    )
}

#[test]
fn a_refused_port_costs_no_post() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    pair.control.set_endpoints(
        SERVICE,
        [objects::endpoint(app.addr()), objects::endpoint(refused())],
    );
    for n in 0..40 {
        let mut client = Client::connect(pair.client.outbound);
        let answer = client.send(post(&format!("/{n}"), "body")).answer();
        assert_eq!(answer.status(), 200, "{n}: {}", answer.head);
    }
    assert_eq!(app.requests().len(), 40);
    // Only the first can have come upon it: where another endpoint is open, it is tried beside requests.
    assert!(resends(&pair.client, "connect") < 1.5);
}

/// A pair whose service has two meshed endpoints behind one proxy: an application, and a port that
/// is refused there.
fn half_there(app: SocketAddr, settings: &[(&str, &str)]) -> (Pair, Closed) {
    let refused = Closed::new();
    let pair = Pair::with(app, settings, &[]);
    let meshed = |addr| objects::meshed(addr, &pair.server.identity, pair.server.inbound.port());
    pair.control
        .set_endpoints(SERVICE, [meshed(app), meshed(refused.addr())]);
    (pair, refused)
}

#[test]
fn a_peer_that_cannot_reach_its_application_costs_no_post() {
    // HTTP/1 between the proxies, and HTTP/2.
    for threshold in ["1000", "0"] {
        let app = http_echo();
        let (pair, _refused) = half_there(
            app.addr(),
            &[("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", threshold)],
        );
        for n in 0..40 {
            let mut client = Client::connect(pair.client.outbound);
            let answer = client.send(post(&format!("/{n}"), "body")).answer();
            assert_eq!(answer.status(), 200, "{threshold}/{n}: {}", answer.head);
        }
        assert_eq!(app.requests().len(), 40, "each exactly once");
        assert!(app.requests().iter().all(|r| r.body == "body"));
        assert!(resends(&pair.client, "unreachable") > 0.5, "{threshold}");
    }
}

#[test]
fn it_can_be_switched_off() {
    let app = http_echo();
    let (pair, _refused) = half_there(app.addr(), &[("HTTP_RESEND_UNSENT", "false")]);
    let mut refused = 0;
    for _ in 0..40 {
        let mut client = Client::connect(pair.client.outbound);
        match client.send(post("/", "body")).answer().status() {
            200 => {}
            502 => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(refused > 0);
    assert!(resends(&pair.client, "unreachable") < 0.5);
}

/// Calls over one HTTP/2 connection, one after the other; gives what a proxy says to each.
fn calls(at: SocketAddr, times: usize) -> Vec<String> {
    block_on(async {
        let mut send = http2::connect(at).await;
        let mut codes = Vec::new();
        for _ in 0..times {
            let request = http::Request::post("http://web/svc/Method")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(())
                .expect("valid");
            let body = [Bytes::from_static(b"message")];
            // An answer of a closing class ends the connection behind it.
            let got = match http2::call(&mut send, request, &body).await {
                Ok(got) => got,
                Err(_) => {
                    send = http2::connect(at).await;
                    continue;
                }
            };
            let said = |name| {
                let value = got.head.headers().get(name);
                value.map_or("", |v| v.to_str().expect("text"))
            };
            let text = format!("{} {}", said("grpc-status"), said("grpc-message"));
            codes.push(text.trim().to_owned());
        }
        codes
    })
}

#[test]
fn a_peer_that_cannot_reach_its_application_costs_no_call() {
    let app = http_echo();
    let (pair, _refused) = half_there(app.addr(), &[]);
    let codes = calls(pair.client.outbound, 40);
    assert_eq!(
        codes,
        vec![String::new(); 40],
        "the application answers all"
    );
    assert_eq!(app.requests().len(), 40, "each exactly once");
    assert!(app.requests().iter().all(|r| r.body == "message"));
    assert!(resends(&pair.client, "unreachable") > 0.5);
}

#[test]
fn it_can_be_switched_off_for_calls() {
    let app = http_echo();
    let (pair, _refused) = half_there(app.addr(), &[("HTTP_RESEND_UNSENT", "false")]);
    let codes = calls(pair.client.outbound, 40);
    let failed = codes.iter().filter(|code| !code.is_empty());
    assert!(failed.count() > 0, "{codes:?}");
    assert!(resends(&pair.client, "unreachable") < 0.5);
    // A stream the server has not looked at.
    let (app, refused) = refuses_first(false);
    let pair = Pair::with(app, &[("HTTP_RESEND_UNSENT", "false")], &[]);
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app)]);
    calls(pair.client.outbound, 1);
    assert_eq!(refused.load(Ordering::SeqCst), 1, "once");
    assert!(resends(&pair.client, "refused") < 0.5);
}

#[test]
fn a_service_with_no_other_endpoint_passes_the_answer_on() {
    let pair = Pair::new(refused());
    let mut client = Client::connect(pair.client.outbound);
    let answer = client.send(post("/", "body")).answer();
    assert_eq!(answer.status(), 502, "{}", answer.head);
    assert_eq!(answer.header("l5d-proxy-error"), None);
}

#[test]
fn a_body_that_is_still_arriving_is_kept() {
    let app = http_echo();
    let (pair, _refused) = half_there(app.addr(), &[]);
    let mut again = 0;
    for n in 0..30 {
        let before = resends(&pair.client, "unreachable");
        let mut client = Client::connect(pair.client.outbound);
        client.send(format!(
            "POST /{n} HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"
        ));
        // The first try has failed, or has begun, before the rest comes.
        let seen = || pair.server.metric("tcp_open_total", &["peer=\"src\""]);
        wait_for(DEADLINE, "the request is under way", || seen() > 0.5);
        client.send("6\r\nsecond\r\n0\r\n\r\n");
        let answer = client.answer();
        assert_eq!(answer.status(), 200, "{n}: {}", answer.head);
        if resends(&pair.client, "unreachable") > before {
            again += 1;
        }
    }
    assert!(again > 0, "some were sent again");
    assert_eq!(app.requests().len(), 30);
    assert!(app.requests().iter().all(|r| r.body == "firstsecond"));
}

#[test]
fn a_large_body_is_not_kept() {
    let app = http_echo();
    let (pair, _refused) = half_there(app.addr(), &[]);
    let body = "x".repeat(200 * 1024);
    let mut answers = Vec::new();
    for n in 0..40 {
        let mut client = Client::connect(pair.client.outbound);
        client.send(post(&format!("/{n}"), &body));
        answers.push(client.answer().status());
        if answers.contains(&502) {
            break;
        }
    }
    assert!(answers.contains(&502), "{answers:?}");
    assert!(resends(&pair.client, "unreachable") < 0.5);
    let served = answers.iter().filter(|s| **s == 200).count();
    assert_eq!(app.requests().len(), served);
}

/// An application that answers the first request of a connection and drops the second.
fn drops_the_second() -> (SocketAddr, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = dropped.clone();
    let addr = raw_app(move |mut io| {
        if read_request(&mut io).is_none() {
            return;
        }
        answer(&mut io);
        if read_request(&mut io).is_some() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (addr, dropped)
}

#[test]
fn a_pooled_connection_that_dies_is_repeated_for_idempotent_requests_only() {
    let (app, dropped) = drops_the_second();
    let pair = Pair::new(app);
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app)]);
    let mut client = Client::connect(pair.client.outbound);
    for n in 0..20 {
        let answer = client.get(&format!("/{n}"), "web");
        assert_eq!(answer.status(), 200, "{n}: {}", answer.head);
    }
    assert!(dropped.load(Ordering::SeqCst) > 0, "some were dropped");
    assert!(resends(&pair.client, "died") > 0.5);
    // A POST may have been handled: it is not repeated.
    let answers: Vec<_> = (0..4)
        .map(|_| {
            let mut client = Client::connect(pair.client.outbound);
            client.send(post("/", "body")).answer().status()
        })
        .collect();
    assert!(answers.contains(&502), "{answers:?}");
}

#[test]
fn the_application_side_repeats_them_too() {
    // As it comes, and off an HTTP/2 stream between the proxies.
    for threshold in ["1000", "0"] {
        let (app, dropped) = drops_the_second();
        let settings = [("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", threshold)];
        let pair = Pair::with(app, &settings, &[]);
        let mut client = Client::connect(pair.client.outbound);
        for n in 0..20 {
            let answer = client.get(&format!("/{n}"), "web");
            assert_eq!(answer.status(), 200, "{threshold}/{n}: {}", answer.head);
        }
        assert!(dropped.load(Ordering::SeqCst) > 0, "{threshold}");
        let repeated = pair
            .server
            .metric("inbound_http_resends_total", &["reason=\"died\""]);
        assert!(repeated > 0.5, "{threshold}");
    }
}

#[test]
fn a_request_is_repeated_once_and_elsewhere() {
    let tries = Arc::new(AtomicUsize::new(0));
    let dead = |tries: &Arc<AtomicUsize>| {
        let tries = tries.clone();
        raw_app(move |mut io| {
            if read_request(&mut io).is_some() {
                tries.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let bad = objects::endpoint(dead(&tries));
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app.addr()), bad]);
    for n in 0..40 {
        let answer = get(pair.client.outbound, &format!("/{n}"), "web");
        assert_eq!(answer.status(), 200, "{n}: {}", answer.head);
    }
    assert!(tries.load(Ordering::SeqCst) > 0, "the bad one was tried");
    // When all are bad, two tries are enough.
    let endpoints = (0..3).map(|_| objects::endpoint(dead(&tries)));
    pair.control.set_endpoints(SERVICE, endpoints);
    let answered = || get(pair.client.outbound, "/", "web").status();
    wait_for(DEADLINE, "the bad endpoints", || answered() == 502);
    let before = tries.load(Ordering::SeqCst);
    assert_eq!(answered(), 502);
    assert_eq!(tries.load(Ordering::SeqCst) - before, 2);
}

#[test]
fn an_application_that_dies_behind_its_proxy_costs_no_get() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let bad = raw_app(|mut io| drop(read_request(&mut io)));
    let meshed = |addr| objects::meshed(addr, &pair.server.identity, pair.server.inbound.port());
    pair.control
        .set_endpoints(SERVICE, [meshed(app.addr()), meshed(bad)]);
    for n in 0..40 {
        let answer = get(pair.client.outbound, &format!("/{n}"), "web");
        assert_eq!(answer.status(), 200, "{n}: {}", answer.head);
    }
    assert!(resends(&pair.client, "died") > 0.5);
}

#[test]
fn a_budget_bounds_repetitions() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    let app = raw_app(move |mut io| {
        if read_request(&mut io).is_some() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let pair = Pair::new(app);
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app)]);
    for _ in 0..300 {
        assert_eq!(get(pair.client.outbound, "/", "web").status(), 502);
    }
    let repeated = tries.load(Ordering::SeqCst) - 300;
    // A tenth of a minute's reserve and a fifth of the requests, for a run that may take longer.
    assert!((100..=260).contains(&repeated), "{repeated}");
}

/// An HTTP/2 application that refuses the first stream of each connection, then goes away.
fn refuses_first(goaway: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let addr = raw_app(move |io| {
        io.set_nonblocking(true).expect("an option");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let io = tokio::net::TcpStream::from_std(io).expect("registers");
            let Ok(mut connection) = h2::server::handshake(io).await else {
                return;
            };
            let mut first = true;
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                if std::mem::take(&mut first) {
                    count.fetch_add(1, Ordering::SeqCst);
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                    if goaway {
                        connection.graceful_shutdown();
                    }
                    continue;
                }
                let mut stream = respond
                    .send_response(http::Response::new(()), false)
                    .expect("open");
                stream
                    .send_data(Bytes::from_static(b"ok"), true)
                    .expect("open");
            }
        });
    });
    (addr, refused)
}

#[test]
fn a_refused_stream_is_sent_again() {
    let (app, refused) = refuses_first(false);
    let pair = Pair::new(app);
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app)]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let io = tokio::net::TcpStream::connect(pair.client.outbound)
            .await
            .expect("connects");
        let (mut send, connection) = h2::client::handshake(io).await.expect("handshakes");
        linkerd_runtime::spawn("client", async move {
            let _ = connection.await;
        });
        let request = http::Request::post("http://web/").body(()).expect("valid");
        let (response, mut stream) = send.send_request(request, false).expect("open");
        stream
            .send_data(Bytes::from_static(b"body"), true)
            .expect("open");
        let response = tokio::time::timeout(DEADLINE, response).await;
        assert_eq!(response.expect("in time").expect("answered").status(), 200);
    });
    assert_eq!(refused.load(Ordering::SeqCst), 1);
    assert!(resends(&pair.client, "refused") > 0.5);
}

#[test]
fn a_proxy_that_drains_loses_nothing() {
    // HTTP/1 between the proxies, then HTTP/2.
    for threshold in ["1000", "0"] {
        let app = http_echo();
        let control = ControlPlane::start();
        let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
        let server = |n: usize| {
            let name = format!("web{n}");
            Proxy::start(&control, &name, local.clone(), local.clone(), &[])
        };
        let steady = server(0);
        control.set_outbound(CLUSTER_IP, objects::service(SERVICE));
        let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
        let settings = [("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", threshold)];
        let client = Proxy::start(&control, "curl", vip, local.clone(), &settings);
        // Endpoints are told apart by their address; the application is the same.
        let twin = http_echo();
        let endpoints = |other: Option<&Proxy>| {
            let of =
                |addr, proxy: &Proxy| objects::meshed(addr, &proxy.identity, proxy.inbound.port());
            let mut list = vec![of(app.addr(), &steady)];
            list.extend(other.map(|proxy| of(twin.addr(), proxy)));
            control.set_endpoints(SERVICE, list);
        };
        endpoints(None);
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (stop, done, addr) = (stop.clone(), done.clone(), client.outbound);
                std::thread::spawn(move || {
                    let mut client = Client::connect(addr);
                    while !stop.load(Ordering::SeqCst) {
                        let answer = if n % 2 == 0 {
                            client.get("/", "web")
                        } else {
                            client.send(post("/", "body")).answer()
                        };
                        assert_eq!(answer.status(), 200, "{}", answer.head);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for round in 1..4 {
            let mut other = server(round);
            endpoints(Some(&other));
            let before = twin.requests().len();
            wait_for(DEADLINE, "the new endpoint is used", || {
                twin.requests().len() > before + 20
            });
            // It goes while discovery still names it.
            other.shutdown();
            other.join();
            let before = done.load(Ordering::SeqCst);
            wait_for(DEADLINE, "requests go on", || {
                done.load(Ordering::SeqCst) > before + 20
            });
            endpoints(None);
        }
        stop.store(true, Ordering::SeqCst);
        for thread in threads {
            thread.join().expect("no request failed");
        }
    }
}
