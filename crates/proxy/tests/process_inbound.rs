//! Inbound connections that are not ordinary ones: silent, refused, direct without what a direct
//! connection needs, or on their way in a circle. What ends in an error is counted.

#[path = "support/harness.rs"]
mod harness;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use harness::{
    CLUSTER_IP, Client, Closed, DEADLINE, Proxy, SERVICE, block_on, counts, greeter, http_echo,
    http2_get,
};
use linkerd_core::identity::Id;
use linkerd_proxy::{
    socket::OrigDst,
    transport_header::{Header, Session},
};
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    wait_for,
};
use linkerd_tls::{Alpn, HANDSHAKE_DEADLINE, Local, Peer, Store, TrustAnchors};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A proxy whose inbound connections are meant for `target`.
fn in_front_of(control: &ControlPlane, target: SocketAddr, settings: &[(&str, &str)]) -> Proxy {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    Proxy::start(control, "web", local, OrigDst::fixed(target), settings)
}

/// A proxy that is connected to directly.
fn direct(control: &ControlPlane, settings: &[(&str, &str)]) -> Proxy {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    Proxy::start(control, "web", local.clone(), local, settings)
}

/// Waits for the end of a connection that is given nothing.
fn ends(io: &mut TcpStream) {
    io.set_read_timeout(Some(DEADLINE)).expect("an option");
    let mut buf = [0; 64];
    // Unread bytes make it a reset.
    let read = io.read(&mut buf).unwrap_or(0);
    assert_eq!(read, 0, "nothing is said");
}

#[test]
fn a_client_that_says_nothing_is_given_up_when_the_time_for_all_detection_is_over() {
    let app = http_echo();
    let control = ControlPlane::start();
    let settings = [("INBOUND_DETECT_TIMEOUT", "2s")];
    let proxy = in_front_of(&control, app.addr(), &settings);
    let start = Instant::now();
    ends(&mut TcpStream::connect(proxy.inbound).expect("connects"));
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(1_900), "{took:?}");
    assert!(took < Duration::from_millis(3_900), "not twice: {took:?}");
    let target = format!("target_addr=\"{}\"", app.addr());
    let labels = [
        "error=\"tls detection timeout\"",
        "srv_name=\"all-unauthenticated\"",
        target.as_str(),
    ];
    counts(&proxy, "inbound_tcp_errors_total", &labels, 1.0);
}

/// Closes the first connection without a word and answers on all others.
fn hesitant() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let addr = listener.local_addr().expect("bound");
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    std::thread::spawn(move || {
        for io in listener.incoming() {
            let mut io = io.expect("accepts");
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                continue;
            }
            std::thread::spawn(move || {
                let mut buf = [0; 1024];
                while let Ok(n) = io.read(&mut buf)
                    && n > 0
                {
                    let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
                }
            });
        }
    });
    (addr, seen)
}

#[test]
fn a_server_that_closes_has_not_spoken() {
    let control = ControlPlane::start();
    let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let outbound = Proxy::start(&control, "curl", vip, local, &[]);
    control.set_outbound(CLUSTER_IP, objects::service(SERVICE));
    let (app, seen) = hesitant();
    control.set_endpoints(SERVICE, [objects::endpoint(app)]);
    let (own, own_seen) = hesitant();
    let inbound = in_front_of(&control, own, &[]);
    for (name, to, seen) in [
        ("outbound", outbound.outbound, seen),
        ("inbound", inbound.inbound, own_seen),
    ] {
        let mut client = Client::connect(to);
        wait_for(DEADLINE, "the silent client's server to be asked", || {
            seen.load(Ordering::SeqCst) >= 1
        });
        assert_eq!(client.get("/", "web").status(), 200, "{name}");
    }
    let http = ["result=\"http/1\""];
    let family = "outbound_tcp_detect_http_results_total";
    counts(&outbound, family, &http, 1.0);
}

#[test]
fn a_hesitant_client_does_not_wait_for_a_server_it_does_not_want() {
    let app = http_echo();
    let control = ControlPlane::start();
    let other = "other.ns.svc.cluster.local:80";
    // Raw bytes would go to a service without endpoints, requests do not.
    let route = objects::http_route(objects::balancer(other));
    let opaque = objects::opaque_route(objects::balancer(SERVICE));
    control.set_outbound(CLUSTER_IP, objects::detect(vec![route], Some(opaque)));
    control.set_endpoints(SERVICE, []);
    control.set_endpoints(other, [objects::endpoint(app.addr())]);
    let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let settings = [("OUTBOUND_TCP_FAILFAST_TIMEOUT", "20s")];
    let proxy = Proxy::start(&control, "curl", vip, local, &settings);
    let mut client = Client::connect(proxy.outbound);
    let asked = ["backend_name=\"web\""];
    wait_for(DEADLINE, "the silent client's server to be asked", || {
        proxy.metric("outbound_tcp_balancer_queue_requests_total", &asked) > 0.5
    });
    let start = Instant::now();
    assert_eq!(client.get("/", "web").status(), 200);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn clients_that_leave_before_they_speak_are_counted() {
    let app = http_echo();
    let control = ControlPlane::start();
    let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
    let proxy = Proxy::start(&control, "web", vip, OrigDst::fixed(app.addr()), &[]);
    control.set_outbound(CLUSTER_IP, objects::service(SERVICE));
    for (to, family) in [
        (proxy.inbound, "inbound_tcp_errors_total"),
        (proxy.outbound, "outbound_tcp_errors_total"),
    ] {
        drop(TcpStream::connect(to).expect("connects"));
        counts(&proxy, family, &["error=\"i/o\""], 1.0);
    }
}

#[test]
fn an_application_that_speaks_first_is_not_kept_waiting() {
    let control = ControlPlane::start();
    let proxy = in_front_of(&control, greeter(), &[]);
    let peer = direct(&control, &[]);
    let start = Instant::now();
    let mut client = Client::connect(proxy.inbound);
    assert_eq!(client.exactly(11), b"220 ready\r\n", "plain");
    assert_eq!(client.send("EHLO me\r\n").exactly(9), b"EHLO me\r\n");
    assert!(start.elapsed() < Duration::from_secs(5), "plain");
    let start = Instant::now();
    block_on(async {
        let mut tls = meshed(&proxy, &peer.store, Alpn::None).await;
        let mut said = [0; 11];
        tls.read_exact(&mut said).await.expect("a banner");
        assert_eq!(&said, b"220 ready\r\n", "meshed without a header");
        tls.write_all(b"EHLO me\r\n").await.expect("writes");
        tls.flush().await.expect("writes");
        let mut echo = [0; 9];
        tls.read_exact(&mut echo).await.expect("an answer");
        assert_eq!(&echo, b"EHLO me\r\n", "meshed without a header");
    });
    assert!(start.elapsed() < Duration::from_secs(5), "meshed");
    for tls in ["tls=\"no_identity\"", "tls=\"true\""] {
        counts(&proxy, "inbound_tcp_authz_allow_total", &[tls], 1.0);
    }
}

#[test]
fn a_word_without_a_line_end_is_answered_within_a_second_over_tls() {
    let behavior = linkerd_testkit::echo::Behavior::default();
    let app = linkerd_testkit::echo::Echo::tcp(([127, 0, 0, 1], 0), behavior);
    let control = ControlPlane::start();
    let proxy = in_front_of(&control, app.addr(), &[]);
    let peer = direct(&control, &[]);
    // One of a few tries, since the machine may be busy.
    let quick = (0..5).any(|_| {
        block_on(async {
            let mut tls = meshed(&proxy, &peer.store, Alpn::None).await;
            let start = Instant::now();
            tls.write_all(b"ping").await.expect("writes");
            tls.flush().await.expect("writes");
            let mut echo = [0; 4];
            tls.read_exact(&mut echo).await.expect("an answer");
            assert_eq!(&echo, b"ping");
            start.elapsed() < Duration::from_secs(1)
        })
    });
    assert!(quick);
}

#[test]
fn what_was_read_to_find_out_the_protocol_counts_as_read() {
    let app = http_echo();
    let control = ControlPlane::start();
    let plain = in_front_of(&control, app.addr(), &[]);
    let get = "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
    let answer = Client::connect(plain.inbound).send(get).answer();
    assert_eq!(answer.status(), 200);
    let port = app.addr().port();
    let head = header(port, None, Some(Session::Http1));
    let first = [head.as_slice(), get.as_bytes()].concat();
    let (through, peer) = (direct(&control, &[]), direct(&control, &[]));
    let answer = over_tls(&through, &peer.store, Alpn::TransportHeader, &first);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    let size = f64::from(u32::try_from(get.len()).expect("short"));
    for (proxy, tls) in [(&plain, "tls=\"no_identity\""), (&through, "tls=\"true\"")] {
        let labels = ["direction=\"inbound\"", "peer=\"src\"", tls];
        counts(proxy, "tcp_read_bytes_total", &labels, size);
    }
}

#[test]
fn an_address_that_is_not_the_pods_is_refused() {
    let app = http_echo();
    let control = ControlPlane::start();
    let proxy = in_front_of(&control, app.addr(), &[("INBOUND_IPS", "10.1.2.3")]);
    ends(&mut TcpStream::connect(proxy.inbound).expect("connects"));
    counts(
        &proxy,
        "inbound_tcp_errors_total",
        &["error=\"unexpected\""],
        1.0,
    );
    assert!(app.connections().is_empty());
}

#[test]
fn an_application_that_refuses_opaque_connections_is_an_error() {
    let app = Closed::new();
    let control = ControlPlane::start();
    let port = app.addr().port().to_string();
    let settings = [("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", port.as_str())];
    let proxy = in_front_of(&control, app.addr(), &settings);
    ends(&mut TcpStream::connect(proxy.inbound).expect("connects"));
    let labels = ["error=\"i/o\"", "srv_name=\"all-unauthenticated\""];
    counts(&proxy, "inbound_tcp_errors_total", &labels, 1.0);
}

/// Connects to the inbound port with TLS.
async fn meshed(proxy: &Proxy, store: &Store, alpn: Alpn) -> impl AsyncRead + AsyncWrite + Unpin {
    let id = Id::parse(&proxy.identity).expect("an identity");
    let peer = Peer::new(id, None).expect("a peer");
    // Not on this host, as far as policy can see.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    let afar = SocketAddr::from(([127, 0, 0, 2], 0));
    socket.bind(afar).expect("an address of ours");
    let io = socket.connect(proxy.inbound).await.expect("connects");
    let snapshot = store.snapshot();
    linkerd_tls::handshake::connect(io, &peer, &snapshot, alpn, HANDSHAKE_DEADLINE)
        .await
        .expect("handshakes")
}

/// Connects to the inbound port with TLS, sends, and gives what comes back.
fn over_tls(proxy: &Proxy, store: &Store, alpn: Alpn, first: &[u8]) -> Vec<u8> {
    block_on(async {
        let mut tls = meshed(proxy, store, alpn).await;
        let _ = tls.write_all(first).await;
        let _ = tls.flush().await;
        let mut got = Vec::new();
        let _ = tls.read_to_end(&mut got).await;
        got
    })
}

/// Believes what the others believe, and has no certificate.
fn nobody(control: &ControlPlane) -> Store {
    let anchors = TrustAnchors::from_pem("test", control.anchors_pem().as_bytes());
    let id = Id::parse("nobody.ns").expect("a name");
    Store::new(anchors.expect("a root"), Local::new(id))
}

fn header(port: u16, name: Option<&str>, session: Option<Session>) -> Vec<u8> {
    let header = Header {
        port,
        name: name.map(str::to_owned),
        session,
    };
    header.encode().to_vec()
}

#[test]
fn direct_connections_need_a_certificate_and_a_transport_header() {
    let app = http_echo();
    let control = ControlPlane::start();
    let proxy = direct(&control, &[]);
    let peer = direct(&control, &[]);
    let get = b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
    let good = [
        header(app.addr().port(), None, Some(Session::Http1)).as_slice(),
        get,
    ]
    .concat();

    let answer = over_tls(&proxy, &peer.store, Alpn::TransportHeader, &good);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    let errors = |label: &str, want: f64| {
        let label = format!("error=\"{label}\"");
        let labels = [label.as_str(), "srv_name=\"all-unauthenticated\""];
        counts(&proxy, "inbound_tcp_errors_total", &labels, want);
    };
    errors("unexpected", 0.0);

    let mut plain = TcpStream::connect(proxy.inbound).expect("connects");
    plain.write_all(get).expect("writes");
    ends(&mut plain);
    errors("unexpected", 1.0);

    let anonymous = nobody(&control);
    let answer = over_tls(&proxy, &anonymous, Alpn::TransportHeader, &good);
    assert!(answer.is_empty(), "no client certificate: {answer:?}");
    errors("unexpected", 2.0);

    let answer = over_tls(&proxy, &peer.store, Alpn::None, &good);
    assert!(answer.is_empty(), "no transport header: {answer:?}");
    errors("unexpected", 3.0);

    let answer = over_tls(&proxy, &peer.store, Alpn::TransportHeader, get);
    assert!(answer.is_empty(), "something else: {answer:?}");
    errors("unexpected", 4.0);
    assert_eq!(app.requests().len(), 1);
}

#[test]
fn a_direct_connection_to_the_inbound_port_does_not_go_in_a_circle() {
    let control = ControlPlane::start();
    let proxy = direct(&control, &[]);
    let peer = direct(&control, &[]);
    let port = proxy.inbound.port();
    let get = b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
    let looped = [header(port, None, Some(Session::Http1)).as_slice(), get].concat();
    let answer = over_tls(&proxy, &peer.store, Alpn::TransportHeader, &looped);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(answer.contains("must not target"), "{answer}");
    let opaque = header(port, None, None);
    let answer = over_tls(&proxy, &peer.store, Alpn::TransportHeader, &opaque);
    assert!(answer.is_empty(), "{answer:?}");
    counts(&proxy, "inbound_tcp_errors_total", &["error=\"i/o\""], 1.0);
}

#[test]
fn opaque_connections_through_a_gateway_are_authorized_and_counted() {
    let control = ControlPlane::start();
    let settings = [("INBOUND_GATEWAY_SUFFIXES", "svc.cluster.local.")];
    let proxy = direct(&control, &settings);
    let (peer, port) = (direct(&control, &[]), proxy.inbound.port());
    let app = linkerd_testkit::echo::Echo::tcp(
        ([127, 0, 0, 1], 0),
        linkerd_testkit::echo::Behavior {
            close_after: Some(4),
            ..linkerd_testkit::echo::Behavior::default()
        },
    );
    let name = "target.ns.svc.cluster.local";
    control.set_outbound(format!("{name}:80"), objects::service(SERVICE));
    control.set_endpoints(SERVICE, [objects::endpoint(app.addr())]);
    let through = |store: &Store, name: &str| {
        let first = [header(80, Some(name), None).as_slice(), b"ping"].concat();
        over_tls(&proxy, store, Alpn::TransportHeader, &first)
    };
    // The same service account: it looks like us.
    assert!(through(&peer.store, name).is_empty());
    counts(
        &proxy,
        "inbound_tcp_errors_total",
        &["error=\"gateway loop\""],
        1.0,
    );
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let client = Proxy::start(&control, "curl", local.clone(), local, &[]);
    assert_eq!(through(&client.store, name), b"ping");
    let target = format!("target_port=\"{port}\"");
    let route = ["parent_name=\"web\"", target.as_str()];
    counts(&proxy, "outbound_tcp_route_open_total", &route, 1.0);
    let closed = [&route[..], &["error=\"\""]].concat();
    counts(&proxy, "outbound_tcp_route_close_total", &closed, 1.0);
    let allowed = ["authz_name=\"all-unauthenticated\"", "tls=\"true\""];
    counts(&proxy, "inbound_tcp_authz_allow_total", &allowed, 2.0);
    assert!(through(&client.store, "target.example.com").is_empty());
    let label = ["error=\"gateway domain invalid\""];
    counts(&proxy, "inbound_tcp_errors_total", &label, 1.0);

    let elsewhere = objects::allow("elsewhere", Some("example.com"));
    control.set_inbound(port, objects::inbound_detect(vec![elsewhere]));
    let denied = ["srv_name=\"web\"", "tls=\"true\""];
    wait_for(DEADLINE, "a connection to be denied", || {
        through(&client.store, name);
        proxy.metric("inbound_tcp_authz_deny_total", &denied) > 0.5
    });
    let opened = ["peer=\"src\"", "tls=\"true\"", "srv_name=\"web\""];
    assert!(proxy.metric("tcp_open_total", &opened) > 0.5);
}

/// An HTTP/2 request on a thread of its own; gives its status.
fn ask_http2(proxy: &Proxy) -> std::thread::JoinHandle<u16> {
    let to = proxy.inbound;
    std::thread::spawn(move || http2_get(to, "http://web/"))
}

const INBOUND: [&str; 2] = [
    "direction=\"inbound\"",
    "authz_name=\"all-unauthenticated\"",
];

#[test]
fn an_http2_application_that_listens_late_is_waited_for() {
    let app = Closed::new();
    let addr = app.addr();
    let control = ControlPlane::start();
    let settings = [("INBOUND_HTTP_FAILFAST_TIMEOUT", "20s")];
    let proxy = in_front_of(&control, addr, &settings);
    let waiting: Vec<_> = (0..3).map(|_| ask_http2(&proxy)).collect();
    counts(&proxy, "request_total", &INBOUND, 3.0);
    // HTTP/1 does not wait.
    assert_eq!(harness::get(proxy.inbound, "/", "web").status(), 502);
    drop(app);
    let app = linkerd_testkit::echo::Echo::http(addr);
    for request in waiting {
        assert_eq!(request.join().expect("asks"), 200);
    }
    assert_eq!(app.connections().len(), 1, "they share the connection");
    let failed = [&INBOUND[..], &["classification=\"failure\""]].concat();
    counts(&proxy, "response_total", &failed, 1.0);
}

#[test]
fn an_http2_application_that_does_not_listen_in_time_is_in_fail_fast() {
    let app = Closed::new();
    let addr = app.addr();
    let control = ControlPlane::start();
    let settings = [("INBOUND_HTTP_FAILFAST_TIMEOUT", "300ms")];
    let proxy = in_front_of(&control, addr, &settings);
    let start = Instant::now();
    assert_eq!(http2_get(proxy.inbound, "http://web/"), 504);
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(http2_get(proxy.inbound, "http://web/"), 504);
    let failfast = ["error=\"failfast\""];
    counts(&proxy, "inbound_http_errors_total", &failfast, 2.0);
    let failed = [
        &INBOUND[..],
        &["status_code=\"504\"", "classification=\"failure\""],
    ];
    counts(&proxy, "response_total", &failed.concat(), 2.0);
    // It is tried by every request, and served as soon as it listens.
    drop(app);
    let _app = linkerd_testkit::echo::Echo::http(addr);
    assert_eq!(http2_get(proxy.inbound, "http://web/"), 200);
}

#[test]
fn no_more_than_the_queue_holds_wait_for_an_application() {
    let app = Closed::new();
    let control = ControlPlane::start();
    let settings = [
        ("INBOUND_HTTP_FAILFAST_TIMEOUT", "20s"),
        ("INBOUND_HTTP_QUEUE_CAPACITY", "1"),
    ];
    let addr = app.addr();
    let proxy = in_front_of(&control, addr, &settings);
    let asked: Vec<_> = (0..3).map(|_| ask_http2(&proxy)).collect();
    let shed = ["error=\"loadshed\""];
    counts(&proxy, "inbound_http_errors_total", &shed, 2.0);
    drop(app);
    let _app = linkerd_testkit::echo::Echo::http(addr);
    let answers = asked.into_iter().map(|a| a.join().expect("asks"));
    let mut statuses: Vec<_> = answers.collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503, 503]);
}

#[test]
fn an_application_is_not_waited_for_by_a_proxy_that_leaves() {
    let app = Closed::new();
    let control = ControlPlane::start();
    let settings = [("INBOUND_HTTP_FAILFAST_TIMEOUT", "60s")];
    let proxy = in_front_of(&control, app.addr(), &settings);
    let asked = ask_http2(&proxy);
    counts(&proxy, "request_total", &INBOUND, 1.0);
    proxy.shutdown();
    assert_eq!(asked.join().expect("asks"), 504);
}

/// A ClientHello without extensions.
fn nameless_hello() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    let mut hello = vec![1, 0, 0, u8::try_from(body.len()).expect("short")];
    hello.extend(body);
    let mut record = vec![22, 3, 1, 0, u8::try_from(hello.len()).expect("short")];
    record.extend(hello);
    record
}

#[test]
fn tls_without_a_server_name_is_nobodys() {
    let behavior = linkerd_testkit::echo::Behavior::default();
    let app = linkerd_testkit::echo::Echo::tcp(([127, 0, 0, 1], 0), behavior);
    let control = ControlPlane::start();
    let proxy = in_front_of(&control, app.addr(), &[]);
    let mut client = Client::connect(proxy.inbound);
    let hello = nameless_hello();
    assert_eq!(client.send(&hello).exactly(hello.len()), hello);
    let plain = ["peer=\"src\"", "no_tls_reason=\"no_tls_from_remote\""];
    counts(&proxy, "tcp_open_total", &plain, 1.0);
    counts(&proxy, "tcp_open_total", &["tls=\"opaque\""], 0.0);
}
