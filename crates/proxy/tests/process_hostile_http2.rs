//! HTTP/2 clients that attack: every way in, plain and inside mesh TLS, is bounded in memory and in
//! time, lets little through to the application, and serves the next client.

#[path = "support/attack.rs"]
mod attack;
#[path = "support/harness.rs"]
mod harness;
#[path = "support/tunnel.rs"]
mod tunnel;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use attack::{
    ACK, COMPRESSION_ERROR, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, Frames, GET, HEADERS, PING, PLENTY, PROTOCOL_ERROR,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, bomb, bounded, flood, long_line,
};
use harness::{DEADLINE, Pair, Proxy, http_echo, http2_get};
use linkerd_proxy::{socket::OrigDst, transport_header::Session};
use linkerd_testkit::{control_plane::ControlPlane, echo::Echo, wait_for};
use tunnel::{First, Tunnel};

/// An attack by its name, and how it goes.
type Attack = (&'static str, fn(SocketAddr));

const ATTACKS: &[Attack] = &[
    ("rapid reset", rapid_reset),
    ("endless CONTINUATION", |at| {
        let mut frames = Frames::connect(at);
        frames.send(HEADERS, END_STREAM, 1, &GET);
        let taken = frames.flood(CONTINUATION, 0, 1, &long_line());
        assert!(taken < PLENTY, "took {} MB", taken >> 20);
        frames.goaway();
    }),
    ("endless empty CONTINUATION", |at| {
        let mut frames = Frames::connect(at);
        frames.send(HEADERS, END_STREAM, 1, &GET);
        let taken = frames.flood(CONTINUATION, 0, 1, &[]);
        assert!(taken < PLENTY, "took {} MB", taken >> 20);
        frames.goaway();
    }),
    ("endless trailers", |at| {
        let mut frames = Frames::connect(at);
        frames.send(HEADERS, END_HEADERS, 1, &GET);
        frames.send(DATA, 0, 1, b"body");
        frames.send(HEADERS, END_STREAM, 1, &[]);
        let taken = frames.flood(CONTINUATION, 0, 1, &long_line());
        assert!(taken < PLENTY, "took {} MB", taken >> 20);
        frames.goaway();
    }),
    ("lines named by an index, many times", |at| {
        let mut frames = Frames::connect(at);
        for n in 0..50 {
            let block = [&GET[..], &bomb()].concat();
            frames.send(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &block);
        }
        let _ = frames.0.shutdown(std::net::Shutdown::Write);
        let code = frames.goaway();
        let calm = [
            None,
            Some(0),
            Some(ENHANCE_YOUR_CALM),
            Some(COMPRESSION_ERROR),
        ];
        assert!(calm.contains(&code), "{code:?}");
    }),
    ("huge frame", |at| {
        let mut frames = Frames::connect(at);
        frames.send(HEADERS, END_HEADERS, 1, &GET);
        let _ = flood(&mut frames.0, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], 9);
        let taken = flood(&mut frames.0, &[0; 64 * 1024], PLENTY);
        assert!(taken < PLENTY, "took all of it");
        let code = frames.goaway();
        assert!(matches!(code, None | Some(FRAME_SIZE_ERROR)), "{code:?}");
    }),
    ("PING flood", |at| {
        let mut frames = Frames::connect(at);
        frames.storm(PING, 0, 0, b"12345678");
    }),
    ("SETTINGS flood", |at| {
        let mut frames = Frames::connect(at);
        frames.storm(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
    }),
    ("acknowledgements nobody asked for", |at| {
        let mut frames = Frames::connect(at);
        let taken = frames.flood(SETTINGS, ACK, 0, &[]);
        assert!(taken < PLENTY, "took {} MB", taken >> 20);
        let code = frames.goaway();
        assert!(matches!(code, None | Some(PROTOCOL_ERROR)), "{code:?}");
    }),
    ("window beyond its largest", |at| {
        let mut frames = Frames::connect(at);
        for _ in 0..3 {
            frames.send(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes());
        }
        let code = frames.goaway();
        assert!(matches!(code, None | Some(FLOW_CONTROL_ERROR)), "{code:?}");
    }),
    ("more streams than allowed", |at| {
        let mut frames = Frames::connect(at);
        let mut burst = Vec::new();
        for n in 0..20_000_u32 {
            burst.extend(Frames::frame(HEADERS, END_HEADERS, 2 * n + 1, &GET));
        }
        let _ = flood(&mut frames.0, &burst, burst.len());
    }),
];

fn rapid_reset(at: SocketAddr) {
    let mut frames = Frames::connect(at);
    let mut burst = Vec::new();
    for n in 0..50_000_u32 {
        let stream = 2 * n + 1;
        burst.extend(Frames::frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &GET,
        ));
        burst.extend(Frames::frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    let _ = flood(&mut frames.0, &burst, burst.len());
    let code = frames.goaway();
    assert!(matches!(code, None | Some(ENHANCE_YOUR_CALM)), "{code:?}");
}

/// Every attack on one way in; the application behind it sees little of them.
fn withstands(proxy: &Proxy, at: SocketAddr, app: &Echo) {
    for (name, attack) in ATTACKS {
        let before = app.requests().len();
        bounded(name, || http2_get(at, "http://web/"), || attack(at));
        let reached = app.requests().len() - before;
        assert!(reached < 5_000, "{name}: {reached} requests came through");
    }
    wait_for(DEADLINE, "no connection of theirs is left", || {
        proxy.metric("tcp_open_connections", &["peer=\"src\""]) < 2.0
    });
}

#[test]
fn attacks_on_the_outbound_listener() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    withstands(&pair.client, pair.client.outbound, &app);
}

/// A proxy whose inbound connections are meant for an application.
fn in_front_of(control: &ControlPlane, app: SocketAddr) -> Proxy {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    Proxy::start(control, "web", local, OrigDst::fixed(app), &[])
}

/// What a client begins and does not finish, by its name; then, whether it is given up.
type Unfinished = (&'static str, fn(&mut Frames), bool);

const UNFINISHED: &[Unfinished] = &[
    (
        "a header block without its end",
        |frames| frames.send(HEADERS, END_STREAM, 1, &GET),
        true,
    ),
    (
        "a part of HEADERS",
        |frames| {
            let frame = Frames::frame(HEADERS, END_HEADERS | END_STREAM, 1, &GET);
            let _ = flood(&mut frames.0, &frame[..12], 12);
        },
        true,
    ),
    (
        "a header block that goes on and on",
        |frames| {
            frames.send(HEADERS, END_STREAM, 1, &GET);
            let empty = Frames::frame(CONTINUATION, 0, 1, &[]);
            attack::dribble(&mut frames.0, empty.repeat(20));
        },
        true,
    ),
    (
        "trailers without their end",
        |frames| {
            frames.send(HEADERS, END_HEADERS, 1, &GET);
            frames.send(HEADERS, END_STREAM, 1, &[]);
        },
        true,
    ),
    (
        "a body",
        |frames| {
            frames.send(HEADERS, END_HEADERS, 1, &GET);
            let data = Frames::frame(DATA, END_STREAM, 1, &[b'a'; 100]);
            let _ = flood(&mut frames.0, &data[..50], 50);
        },
        false,
    ),
];

#[test]
fn a_header_block_that_is_not_finished_is_given_up() {
    let app = http_echo();
    let settings = [("HTTP1_HEAD_TIMEOUT", "1s")];
    let pair = Pair::with(app.addr(), &settings, &[]);
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let target = OrigDst::fixed(app.addr());
    let web = Proxy::start(&pair.control, "web", local, target, &settings);
    for (way, at) in [("outbound", pair.client.outbound), ("inbound", web.inbound)] {
        for (name, begin, given_up) in UNFINISHED {
            let name = format!("{way}, {name}");
            bounded(
                &name,
                || http2_get(at, "http://web/"),
                || {
                    let mut frames = Frames::connect(at);
                    let began = Instant::now();
                    begin(&mut frames);
                    if *given_up {
                        let code = frames.goaway();
                        let calm = matches!(code, None | Some(ENHANCE_YOUR_CALM));
                        assert!(calm, "{name}: {code:?}");
                        let took = began.elapsed();
                        assert!(took < attack::SILENCE, "{name}: {took:?}");
                        assert!(took > Duration::from_millis(900), "{name}: {took:?}");
                    } else {
                        frames
                            .0
                            .set_read_timeout(Some(Duration::from_secs(3)))
                            .expect("an option");
                        let patient = frames.ended();
                        assert!(!patient, "{name}: ended after {:?}", began.elapsed());
                    }
                },
            );
        }
    }
}

#[test]
fn who_does_not_read_answers_to_pings_and_settings_is_not_read_from() {
    let app = http_echo();
    let control = ControlPlane::start();
    let proxy = in_front_of(&control, app.addr());
    let at = proxy.inbound;
    for (name, kind, payload) in [
        ("PING", PING, &b"12345678"[..]),
        ("SETTINGS", SETTINGS, &[0, 4, 0, 1, 0, 0]),
    ] {
        bounded(
            name,
            || http2_get(at, "http://web/"),
            || {
                let mut frames = Frames::connect(at);
                let taken = frames.flood(kind, 0, 0, payload);
                assert!(taken < 2 * PLENTY, "{name}: nothing held it back");
            },
        );
    }
}

#[test]
fn attacks_on_the_inbound_listener() {
    let app = http_echo();
    let control = ControlPlane::start();
    let proxy = in_front_of(&control, app.addr());
    withstands(&proxy, proxy.inbound, &app);
}

#[test]
fn attacks_on_the_inbound_listener_inside_mesh_tls() {
    let app = http_echo();
    let control = ControlPlane::start();
    let proxy = in_front_of(&control, app.addr());
    let store = proxy.store.clone();
    let tunnel = Tunnel::new(proxy.inbound, &proxy.identity, store, First::Nothing);
    withstands(&proxy, tunnel.addr, &app);
}

#[test]
fn attacks_over_a_direct_connection() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let (proxy, store) = (&pair.server, pair.client.store.clone());
    let first = First::header(app.addr().port(), Some(Session::Http2));
    let tunnel = Tunnel::new(proxy.inbound, &proxy.identity, store, first);
    withstands(proxy, tunnel.addr, &app);
}
