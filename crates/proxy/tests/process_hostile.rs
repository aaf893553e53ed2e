//! Bad input on either leg is bounded in memory and in time, and the next client is served.

#[path = "support/attack.rs"]
mod attack;
#[path = "support/harness.rs"]
mod harness;
#[path = "support/tunnel.rs"]
mod tunnel;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use attack::{PLENTY, ROOM, bounded, drained, dribble, flood, measured, resident};
use harness::{CLUSTER_IP, Client, DEADLINE, Pair, Proxy, get, http_echo, raw_app, rule};
use linkerd_api::proto::outbound::http_route::{Retry, retry};
use linkerd_proxy::{socket::OrigDst, transport_header};
use linkerd_testkit::wait_for;
use tunnel::{First, Tunnel};

/// Runs an attack on a pair, and says that it cost little and that others are served after it.
#[track_caller]
fn withstood(name: &str, pair: &Pair, attack: impl FnOnce()) {
    let served = || get(pair.client.outbound, "/between", "web").status();
    bounded(name, served, attack);
}

const HEAD_LIMIT: (&str, &str) = ("HTTP1_HEAD_TIMEOUT", "1s");

#[test]
fn a_client_that_dribbles_its_head_is_told_to_go() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[HEAD_LIMIT], &[]);
    withstood("dribbled head", &pair, || {
        let mut io = TcpStream::connect(pair.client.outbound).expect("connects");
        let started = Instant::now();
        io.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nx-slow: ")
            .expect("writes");
        let mut slow = io.try_clone().expect("a handle");
        let dribbling = std::thread::spawn(move || dribble(&mut slow, [b'a'; 100]));
        let answer = String::from_utf8_lossy(&drained(&mut io)).into_owned();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(started.elapsed() < Duration::from_secs(15), "in time");
        dribbling.join().expect("dribbles");
    });
}

#[test]
fn a_server_that_dribbles_its_head_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let slow = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for io in listener.incoming().flatten() {
            std::thread::spawn(move || dribble_answer(io));
        }
    });
    let pair = Pair::with(slow, &[], &[HEAD_LIMIT]);
    let started = Instant::now();
    let answer = get(pair.client.outbound, "/", "web");
    assert_eq!(answer.status(), 504, "{}", answer.head);
    assert!(started.elapsed() < Duration::from_secs(15), "in time");
}

fn dribble_answer(mut io: TcpStream) {
    let mut chunk = [0; 1024];
    let _ = io.read(&mut chunk);
    let _ = io.write_all(b"HTTP/1.1 200 OK\r\nx-slow: ");
    dribble(&mut io, [b'a'; 200]);
}

#[test]
fn oversized_heads_are_refused() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    for (name, line) in [
        (
            "a long line",
            format!("x-long: {}\r\n", "a".repeat(1 << 20)),
        ),
        ("many lines", "x-a: b\r\n".repeat(100_000)),
        ("a long target", String::new()),
    ] {
        withstood(name, &pair, || {
            let mut io = TcpStream::connect(pair.client.outbound).expect("connects");
            let target = match line.is_empty() {
                true => "/a".repeat(1 << 20),
                false => "/".to_owned(),
            };
            let head = format!("GET {target} HTTP/1.1\r\nhost: web\r\n{line}");
            let _ = io.write_all(head.as_bytes());
            let _ = io.shutdown(std::net::Shutdown::Write);
            let answer = String::from_utf8_lossy(&drained(&mut io)).into_owned();
            let refused = ["HTTP/1.1 431 ", "HTTP/1.1 414 ", "HTTP/1.1 400 "];
            assert!(
                refused.iter().any(|r| answer.starts_with(r)),
                "{name}: {answer}"
            );
        });
    }
    let ours = |r: &linkerd_testkit::echo::Request| r.uri.ends_with("/between");
    assert!(app.requests().iter().all(ours), "only ours came through");
}

#[test]
fn endless_trailers_end() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    withstood("endless trailers", &pair, || {
        let mut io = TcpStream::connect(pair.client.outbound).expect("connects");
        io.write_all(b"POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
            .expect("writes");
        let taken = flood(
            &mut io,
            "x-more: and more\r\n".repeat(100).as_bytes(),
            200 << 20,
        );
        assert!(taken < 32 << 20, "took {} MB", taken >> 20);
        drained(&mut io);
    });
}

#[test]
fn endless_interim_answers_are_held_back() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let chatty = listener.local_addr().expect("bound");
    let (sent, taken) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut io in listener.incoming().flatten() {
            let sent = sent.clone();
            std::thread::spawn(move || {
                let mut chunk = [0; 1024];
                let _ = io.read(&mut chunk);
                let link = "a".repeat(8000);
                let early = format!("HTTP/1.1 103 Early Hints\r\nlink: <{link}>\r\n\r\n");
                let early = early.repeat(10);
                let _ = sent.send(flood(&mut io, early.as_bytes(), 400 << 20));
            });
        }
    });
    let pair = Pair::new(chatty);
    let _alone = measured();
    let before = resident();
    let mut io = TcpStream::connect(pair.client.outbound).expect("connects");
    io.write_all(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n")
        .expect("writes");
    // The client does not read: the server is stopped by that, not by our memory.
    let taken = taken.recv_timeout(DEADLINE).expect("the flood ends");
    assert!(taken < 400 << 20, "nothing held it back");
    let grown = resident().saturating_sub(before);
    assert!(grown < ROOM, "grew by {} MB", grown >> 20);
}

#[test]
fn many_silent_connections_cost_little() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    withstood("silent connections", &pair, || {
        let silent: Vec<_> = (0..400)
            .map(|n| {
                let mut io = TcpStream::connect(pair.client.outbound).expect("connects");
                let begun: &[u8] = match n % 3 {
                    0 => b"GET / HTTP/1.1\r\nhost:",
                    1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                    _ => b"\x16\x03\x01",
                };
                io.write_all(begun).expect("writes");
                io
            })
            .collect();
        assert_eq!(get(pair.client.outbound, "/between", "web").status(), 200);
        drop(silent);
    });
}

#[test]
fn a_client_that_does_not_read_holds_back_its_server() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    withstood("deaf clients", &pair, || {
        let deaf: Vec<_> = (0..10)
            .map(|_| {
                let mut client = Client::connect(pair.client.outbound);
                client.send("GET / HTTP/1.1\r\nhost: web\r\nx-echo-body-bytes: 3000000\r\n\r\n");
                client.head();
                client
            })
            .collect();
        assert_eq!(get(pair.client.outbound, "/between", "web").status(), 200);
        drop(deaf);
    });
}

/// A connection that says so much and then goes on a byte at a time, and when it is given up.
fn given_up(at: SocketAddr, first: &[u8], then: u8) {
    let started = Instant::now();
    let mut io = TcpStream::connect(at).expect("connects");
    io.write_all(first).expect("writes");
    let mut slow = io.try_clone().expect("a handle");
    let dribbling = std::thread::spawn(move || dribble(&mut slow, [then].repeat(1_000)));
    assert_eq!(drained(&mut io), b"", "nothing is said");
    assert!(started.elapsed() < Duration::from_secs(15), "in time");
    drop(io);
    dribbling.join().expect("dribbles");
}

/// The first bytes of a ClientHello of 8 KiB, up to a long list of cipher suites.
const HELLO: &[u8] = b"\x16\x03\x01\x20\x00\x01\x00\x1f\xfc\x03\x03\
    ................................\x00\x10\x00";
const DETECTION: (&str, &str) = ("INBOUND_DETECT_TIMEOUT", "1s");

#[test]
fn a_hello_or_a_transport_header_that_dribbles_is_given_up() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[], &[DETECTION]);
    let control = &pair.control;
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let ordinary = OrigDst::fixed(app.addr());
    let ordinary = Proxy::start(control, "web", local, ordinary, &[DETECTION]);
    let (to, id) = (pair.server.inbound, &pair.server.identity);
    let store = || pair.client.store.clone();
    let begun = Tunnel::new(to, id, store(), First::NoHeader);
    let length = [transport_header::PREFACE, &[0, 0, 0x7f, 0]].concat();
    for (name, at, first, then) in [
        ("a hello, direct", to, HELLO, b'a'),
        ("a hello, ordinary port", ordinary.inbound, HELLO, b'a'),
        (
            "a preface",
            begun.addr,
            &transport_header::PREFACE[..4],
            b'n',
        ),
        ("a transport header", begun.addr, &length, b'a'),
    ] {
        withstood(name, &pair, || given_up(at, first, then));
    }
    let errors = |proxy: &Proxy| proxy.metric("inbound_tcp_errors_total", &[]);
    wait_for(DEADLINE, "all are counted", || {
        errors(&pair.server) > 2.5 && errors(&ordinary) > 0.5
    });
}

#[test]
fn hellos_and_transport_headers_without_end_are_refused() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[], &[DETECTION]);
    let (to, id) = (pair.server.inbound, &pair.server.identity);
    let store = pair.client.store.clone();
    let begun = Tunnel::new(to, id, store, First::NoHeader);
    let endless = [transport_header::PREFACE, &[0xff; 4]].concat();
    let just = [transport_header::PREFACE, &[0, 1, 0, 0]].concat();
    // One handshake message over many records.
    let record = [&b"\x16\x03\x01\x40\x00"[..], &[0; 0x4000]].concat();
    let hello = [&b"\x16\x03\x01\x40\x00\x01\xff\xff\xff"[..], &[0; 0x3ffc]].concat();
    for (name, at, first, then) in [
        ("a hello of 16 MB", to, &hello, &record),
        ("a header of 4 GB", begun.addr, &endless, &record),
        ("a header of 64 KB", begun.addr, &just, &record),
    ] {
        withstood(name, &pair, || {
            let mut io = TcpStream::connect(at).expect("connects");
            io.write_all(first).expect("writes");
            let taken = flood(&mut io, then, 2 * PLENTY);
            assert!(taken < PLENTY, "{name}: took {} MB", taken >> 20);
            assert_eq!(drained(&mut io), b"", "{name}: nothing is said");
        });
    }
}

#[test]
fn many_hellos_that_do_not_end_cost_little() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    withstood("hellos", &pair, || {
        let begun = |_| {
            let mut io = TcpStream::connect(pair.server.inbound).expect("connects");
            let rest = [b'a'; 8_000];
            io.write_all(&[HELLO, &rest].concat()).expect("writes");
            io
        };
        let hellos: Vec<_> = (0..400).map(begun).collect();
        assert_eq!(get(pair.client.outbound, "/between", "web").status(), 200);
        drop(hellos);
    });
}

#[test]
fn many_uploads_that_do_not_end_cost_little() {
    // No more than one connection between proxies has streams for.
    const UPLOADS: usize = 190;
    // It reads what it is sent and says nothing.
    let patient = raw_app(|mut io| {
        let mut chunk = vec![0; 64 * 1024];
        while matches!(io.read(&mut chunk), Ok(1..)) {}
    });
    let pair = Pair::new(patient);
    let policy = rule(|rule| {
        rule.retry = Some(Retry {
            max_retries: 3,
            conditions: Some(retry::Conditions::default()),
            ..Retry::default()
        });
    });
    pair.control.set_outbound(CLUSTER_IP, policy);
    let _alone = measured();
    let before = resident();
    let chunk = [b"40000\r\n".as_slice(), &vec![b'x'; 0x40000], b"\r\n"].concat();
    let uploads: Vec<Client> = (0..UPLOADS)
        .map(|n| {
            let mut client = Client::connect(pair.client.outbound);
            client.send(format!(
                "POST /{n} HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n"
            ));
            // Four times what is kept of it for another try.
            client.send(&chunk);
            client
        })
        .collect();
    let sent = f64::from(u32::try_from(UPLOADS * chunk.len()).expect("not so many"));
    let carried = ["peer=\"dst\"", "direction=\"outbound\""];
    wait_for(DEADLINE, "the uploads to be carried", || {
        pair.client.metric("tcp_write_bytes_total", &carried) > sent
    });
    let grown = resident().saturating_sub(before);
    assert!(grown < ROOM, "grew by {} MB", grown >> 20);
    drop(uploads);
}
