//! Opaque TCP through a pair of proxies, plain destinations, and what policy refuses.

#[path = "support/harness.rs"]
mod harness;

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use harness::{CLUSTER_IP, Client, DEADLINE, Pair, Proxy, get, greeter, http_echo};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Behavior, Echo},
    wait_for,
};

fn connect(addr: SocketAddr) -> TcpStream {
    let io = TcpStream::connect(addr).expect("connects");
    io.set_read_timeout(Some(DEADLINE)).expect("an option");
    io
}

#[test]
fn bytes_pass_with_half_close() {
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let pair = Pair::new(app.addr());
    let mut io = connect(pair.client.outbound);
    let sent: Vec<u8> = (0..500_000u32).map(|n| n.to_le_bytes()[0] | 0x80).collect();
    let mut writer = io.try_clone().expect("clones");
    let copy = sent.clone();
    let thread = std::thread::spawn(move || {
        writer.write_all(&copy).expect("writes");
        writer.shutdown(Shutdown::Write).expect("closes");
    });
    let mut got = Vec::new();
    io.read_to_end(&mut got).expect("reads");
    thread.join().expect("writes");
    assert_eq!(got.len(), sent.len());
    assert!(got == sent);
    let allowed = pair
        .server
        .metric("inbound_tcp_authz_allow_total", &["tls=\"true\""]);
    assert!((allowed - 1.0).abs() < 0.1, "{allowed}");
}

#[test]
fn a_server_that_speaks_first_is_not_kept_waiting() {
    let pair = Pair::new(greeter());
    let start = Instant::now();
    let mut io = connect(pair.client.outbound);
    let mut banner = [0; 11];
    io.read_exact(&mut banner).expect("a banner");
    assert_eq!(&banner, b"220 ready\r\n");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "took {:?}",
        start.elapsed()
    );
    io.write_all(b"EHLO me\r\n").expect("writes");
    let mut echo = [0; 9];
    io.read_exact(&mut echo).expect("an answer");
    assert_eq!(&echo, b"EHLO me\r\n");
}

#[test]
fn a_server_that_leaves_before_it_speaks_has_another_chance() {
    let connections = AtomicUsize::new(0);
    let app = harness::raw_app(move |mut io| {
        // A pod that ends takes connections and drops them.
        if connections.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
            let _ = io.write_all(b"220 ready\r\n");
            let _ = io.read(&mut [0; 64]);
        }
    });
    let pair = Pair::new(app);
    let start = Instant::now();
    let mut banner = [0; 11];
    let mut io = connect(pair.client.outbound);
    io.read_exact(&mut banner).expect("a banner");
    assert_eq!(&banner, b"220 ready\r\n");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "took {took:?}");
}

/// Whether one of a few tries is quick enough, on a machine that may be busy.
fn quickly(mut attempt: impl FnMut()) -> bool {
    (0..5).any(|_| {
        let start = Instant::now();
        attempt();
        start.elapsed() < Duration::from_secs(1)
    })
}

#[test]
fn a_word_without_a_line_end_is_answered_within_a_second() {
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let pair = Pair::new(app.addr());
    let inbound = Proxy::start(
        &pair.control,
        "web",
        OrigDst::Kernel,
        OrigDst::fixed(app.addr()),
        &[],
    );
    for (name, to) in [
        ("outbound", pair.client.outbound),
        ("inbound", inbound.inbound),
    ] {
        for word in ["ping", "PING", "G", "hello world", "\r\n"] {
            let said = || {
                let mut client = Client::connect(to);
                assert_eq!(client.send(word).exactly(word.len()), word.as_bytes());
            };
            assert!(quickly(said), "{name}, {word:?}");
        }
    }
    for (proxy, family) in [
        (&pair.client, "outbound_tcp_detect_http_results_total"),
        (&inbound, "inbound_tcp_detect_http_results_total"),
    ] {
        assert!(proxy.metric(family, &["result=\"not_http\""]) > 4.5);
        harness::counts(proxy, family, &["result=\"read_timeout\""], 0.0);
    }
}

#[test]
fn a_request_that_comes_in_pieces_is_still_http() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let inbound = Proxy::start(
        &pair.control,
        "web",
        OrigDst::Kernel,
        OrigDst::fixed(app.addr()),
        &[],
    );
    #[expect(clippy::disallowed_methods, reason = "being slow is what is tested")]
    let pause = |millis| std::thread::sleep(Duration::from_millis(millis));
    for (name, to) in [
        ("outbound", pair.client.outbound),
        ("inbound", inbound.inbound),
    ] {
        // The beginning of a request, after which it may take its time.
        for begun in ["GET /", "\r\nGET /", "GET http://web/", "OPTIONS *"] {
            let mut client = Client::connect(to);
            for byte in begun.bytes() {
                client.send([byte]);
                pause(10);
            }
            pause(700);
            for piece in [" HT", "TP/1.1\r", "\nhost: w", "eb\r\n\r\n"] {
                client.send(piece);
                pause(300);
            }
            assert_eq!(client.answer().status(), 200, "{name}, {begun:?}");
        }
    }
}

#[test]
fn unknown_destinations_are_forwarded_plain() {
    let app = http_echo();
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io: &tokio::net::TcpStream| io.local_addr()));
    let proxy = Proxy::start(&control, "curl", OrigDst::fixed(app.addr()), local, &[]);
    let answer = get(proxy.outbound, "/plain", "example.com");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.json()["uri"], "/plain");
}

#[test]
fn unmeshed_clients_reach_the_application() {
    let app = http_echo();
    let control = ControlPlane::start();
    let proxy = Proxy::start(
        &control,
        "web",
        OrigDst::Kernel,
        OrigDst::fixed(app.addr()),
        &[],
    );
    let mut client = Client::connect(proxy.inbound);
    let answer = client
        .send("GET /in HTTP/1.1\r\nhost: a\r\nl5d-client-id: liar\r\n\r\n")
        .answer();
    assert_eq!(answer.status(), 200);
    assert_eq!(app.requests().remove(0).header("l5d-client-id"), None);
    let labels = [
        "tls=\"no_identity\"",
        "no_tls_reason=\"no_tls_from_remote\"",
    ];
    assert!(proxy.metric("request_total", &labels) > 0.5);
}

#[test]
fn policy_denies_and_allows() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    // Loopback clients are always allowed, so the connection must seem to come from elsewhere: an
    // authorization for another identity denies only what is not loopback.
    let port = app.addr().port();
    pair.control.set_inbound(
        port,
        objects::inbound_detect(vec![objects::allow("all", None)]),
    );
    wait_for(DEADLINE, "the server's policy", || {
        get(pair.client.outbound, "/", "web").status() == 200
            && pair
                .server
                .metric("request_total", &["srv_name=\"web\"", "authz_name=\"all\""])
                > 0.5
    });
}

#[test]
fn a_dead_destination_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let dead = listener.local_addr().expect("bound");
    drop(listener);
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io: &tokio::net::TcpStream| io.local_addr()));
    let proxy = Proxy::start(&control, "curl", OrigDst::fixed(dead), local, &[]);
    let answer = get(proxy.outbound, "/", "gone");
    assert_eq!(answer.status(), 502, "{}", answer.head);
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(answer.header("content-length"), Some("0"));
    assert!(answer.header("l5d-proxy-error").is_some());
    let errors = proxy.metric("outbound_http_errors_total", &["error=\"i/o\""]);
    assert!((errors - 1.0).abs() < 0.1);
}

#[test]
fn no_endpoints_fails_fast_and_recovers() {
    let app = http_echo();
    let pair = Pair::with(
        app.addr(),
        &[("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "200ms")],
        &[],
    );
    pair.control.set_endpoints(harness::SERVICE, []);
    wait_for(DEADLINE, "fail-fast", || {
        get(pair.client.outbound, "/", "web").status() == 504
    });
    let shed = get(pair.client.outbound, "/", "web");
    assert_eq!(shed.status(), 503, "{}", shed.head);
    let endpoint = objects::meshed(
        app.addr(),
        &pair.server.identity,
        pair.server.inbound.port(),
    );
    pair.control.set_endpoints(harness::SERVICE, [endpoint]);
    wait_for(DEADLINE, "recovery", || {
        get(pair.client.outbound, "/", "web").status() == 200
    });
}

#[test]
fn the_last_state_survives_the_control_plane() {
    let app = http_echo();
    let mut pair = Pair::new(app.addr());
    assert_eq!(get(pair.client.outbound, "/", "web").status(), 200);
    pair.control.stop();
    let mut client = Client::connect(pair.client.outbound);
    for _ in 0..5 {
        assert_eq!(client.get("/", "web").status(), 200);
    }
    pair.control.restart();
    let other = http_echo();
    let endpoint = objects::meshed(
        other.addr(),
        &pair.server.identity,
        pair.server.inbound.port(),
    );
    pair.control.set_endpoints(harness::SERVICE, [endpoint]);
    wait_for(DEADLINE, "updates after a restart", || {
        assert_eq!(client.get("/", "web").status(), 200);
        !other.requests().is_empty()
    });
    assert!(pair.control.calls().iter().any(|c| {
        *c == linkerd_testkit::control_plane::Call::WatchOutbound(CLUSTER_IP.to_owned())
    }));
}
