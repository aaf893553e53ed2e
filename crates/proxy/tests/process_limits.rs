//! Limits of a process that runs for long: HTTP/2 connections between proxies end when they are idle
//! or old, without a failed request, and above a ceiling of memory new work is refused until there is
//! room again.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    io::{Read, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use harness::{
    CLUSTER_IP, Client, DEADLINE, Pair, Proxy, block_on, counts, forward, http_echo, http2_get,
};
use linkerd_proxy::{memory, socket::OrigDst};
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    wait_for,
};

const TO_PEER: &[&str] = &["peer=\"dst\"", "direction=\"outbound\"", "tls=\"true\""];

fn opened(proxy: &Proxy) -> f64 {
    proxy.metric("tcp_open_total", TO_PEER)
}

/// One HTTP/2 request on a connection of its own that takes its time.
fn slow(at: SocketAddr, ms: u32) -> std::thread::JoinHandle<u16> {
    std::thread::spawn(move || {
        block_on(async {
            let mut send = http2::connect(at).await;
            let request = http::Request::get("http://web/slow")
                .header("x-echo-delay-ms", ms.to_string())
                .body(())
                .expect("valid");
            let got = http2::call(&mut send, request, &[]).await;
            got.expect("an answer").head.status().as_u16()
        })
    })
}

#[test]
fn an_idle_connection_between_proxies_ends_and_a_busy_one_does_not() {
    let app = http_echo();
    let settings = [("OUTBOUND_HTTP2_IDLE_TIMEOUT", "500ms")];
    let pair = Pair::with(app.addr(), &settings, &[]);
    let at = pair.client.outbound;
    // Longer than it may be idle.
    assert_eq!(slow(at, 3_000).join().expect("asks"), 200);
    assert_eq!(http2_get(at, "http://web/"), 200);
    counts(&pair.client, "tcp_open_total", TO_PEER, 1.0);
    for n in [2.0, 3.0] {
        counts(&pair.client, "tcp_open_connections", TO_PEER, 0.0);
        let from_peer = ["peer=\"src\"", "tls=\"true\""];
        counts(&pair.server, "tcp_open_connections", &from_peer, 0.0);
        assert_eq!(http2_get(at, "http://web/"), 200);
        counts(&pair.client, "tcp_open_total", TO_PEER, n);
    }
}

#[test]
fn an_old_connection_between_proxies_is_replaced_without_a_failed_request() {
    let app = http_echo();
    let settings = [
        ("OUTBOUND_HTTP2_MAX_AGE", "1s"),
        // Nothing may hide a failure.
        ("HTTP_RESEND_UNSENT", "false"),
        ("HTTP_RESEND_IDEMPOTENT", "false"),
    ];
    let pair = Pair::with(app.addr(), &settings, &[]);
    let at = pair.client.outbound;
    let enough = Arc::new(AtomicBool::new(false));
    let askers: Vec<_> = (0..4)
        .map(|_| {
            let enough = enough.clone();
            std::thread::spawn(move || {
                block_on(async {
                    let mut send = http2::connect(at).await;
                    let mut asked = 0_u32;
                    while !enough.load(Ordering::SeqCst) {
                        let request = http::Request::get("http://web/").body(()).expect("valid");
                        let got = http2::call(&mut send, request, &[]).await;
                        let got = got.unwrap_or_else(|e| panic!("after {asked}: {e}"));
                        assert_eq!(got.head.status(), 200, "after {asked}");
                        asked += 1;
                    }
                    asked
                })
            })
        })
        .collect();
    // It outlives the connection it is on.
    let slow = slow(at, 4_000);
    wait_for(DEADLINE, "three connections, one after the other", || {
        opened(&pair.client) > 2.5
    });
    assert_eq!(slow.join().expect("asks"), 200);
    enough.store(true, Ordering::SeqCst);
    for asker in askers {
        assert!(asker.join().expect("no request fails") > 0);
    }
    // Old ones do not pile up.
    wait_for(DEADLINE, "the old connections to end", || {
        pair.client.metric("tcp_open_connections", TO_PEER) < 1.5
    });
}

/// Whether a request on a new connection is answered by the application. Connections may be refused.
fn served(at: SocketAddr) -> bool {
    let client = Client::connect(at);
    let ask = b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
    let mut answer = Vec::new();
    let _ = client.io().write_all(ask);
    let _ = client.io().read_to_end(&mut answer);
    answer.starts_with(b"HTTP/1.1 200")
}

#[test]
fn above_the_memory_ceiling_work_is_refused_and_below_it_taken_again() {
    const MIB: usize = 1 << 20;
    let app = http_echo();
    let ceiling = memory::resident() + 400 * MIB as u64;
    let ceiling = ceiling.to_string();
    let settings = [("MEMORY_CEILING", ceiling.as_str())];
    let control = ControlPlane::start();
    control.set_outbound(CLUSTER_IP, forward(objects::endpoint(app.addr())));
    let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
    let target = OrigDst::fixed(app.addr());
    let proxy = Proxy::start(&control, "web", vip, target, &settings);
    let both = [("outbound", proxy.outbound), ("inbound", proxy.inbound)];
    let mut open = both.map(|(_, at)| Client::connect(at));
    for client in &mut open {
        assert_eq!(client.get("/", "web").status(), 200);
    }
    let before = app.requests().len();
    let under_way = both.map(|(_, at)| slow(at, 3_000));
    wait_for(DEADLINE, "the slow requests to arrive", || {
        app.requests().len() == before + 2
    });
    // Written to, or it would not be resident.
    let ballast = vec![1_u8; 600 * MIB];
    for ((name, at), client) in both.into_iter().zip(&mut open) {
        wait_for(DEADLINE, "connections to be refused", || !served(at));
        let answer = client.get("/", "web");
        assert_eq!(answer.status(), 503, "{name}, on an open connection");
        let shed = format!("{name}_http_errors_total");
        counts(&proxy, &shed, &["error=\"loadshed\""], 1.0);
    }
    for slow in under_way {
        assert_eq!(slow.join().expect("asks"), 200, "what is under way ends");
    }
    assert_eq!(ballast[MIB], 1);
    drop(ballast);
    for (_, at) in both {
        wait_for(DEADLINE, "requests to be served again", || served(at));
    }
}
