//! Servers that attack, over both HTTP versions and on both legs: what they send is bounded in memory
//! and in time, the client is told or its stream ends, and other services are served.

#[path = "support/attack.rs"]
mod attack;
#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use attack::{
    CONTINUATION, DATA, EARLY, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, OK, PING, PLENTY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, bomb, bounded, drained, flood, long_line,
};
use bytes::Bytes;
use harness::{Client, Proxy, block_on, forward, http_echo, raw_app};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::Echo,
    wait_for,
};

/// How an attack of a server ends for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With this status, whole.
    Status(u16),
    /// After a head, or instead of one, its stream or connection ends.
    Torn,
    /// One or the other: who has seen nothing yet is told.
    Broken,
}

use End::{Broken, Status, Torn};

impl End {
    fn is(self, want: Self) -> bool {
        self == want || (want == Broken && matches!(self, Torn | Status(502)))
    }
}

/// What a server does with a connection; it gives how much was taken.
type Attack<S> = (&'static str, fn(S) -> usize, End);

/// One proxy, and behind it a server per attack: who comes from `127.1.0.n` is meant for the `n`th.
struct Stage {
    proxy: Proxy,
    _control: ControlPlane,
    good: Echo,
    taken: Arc<Mutex<Vec<(usize, usize)>>>,
}

const GOOD: u8 = 200;

fn source(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, 0, n + 1)
}

impl Stage {
    fn new<S: 'static>(attacks: &'static [Attack<S>], begin: fn(TcpStream) -> Option<S>) -> Self {
        let taken: Arc<Mutex<Vec<_>>> = Arc::default();
        let good = http_echo();
        let serve = |(n, (_, attack, _)): (usize, &'static Attack<S>)| {
            let taken = taken.clone();
            raw_app(move |io| {
                if let Some(server) = begin(io) {
                    let n = (n, attack(server));
                    taken.lock().unwrap_or_else(PoisonError::into_inner).push(n);
                }
            })
        };
        let hostile: Vec<SocketAddr> = attacks.iter().enumerate().map(serve).collect();
        let control = ControlPlane::start();
        let target = |n: u8| SocketAddr::from(([10, 96, 0, n], 80));
        let at = move |n: u8, good: SocketAddr, hostile: &[SocketAddr]| match n {
            GOOD => good,
            n => hostile[usize::from(n)],
        };
        let ids = 0..u8::try_from(hostile.len()).expect("few");
        for n in ids.chain([GOOD]) {
            let endpoint = objects::endpoint(at(n, good.addr(), &hostile));
            control.set_outbound(target(n), forward(endpoint));
        }
        let id = |io: &tokio::net::TcpStream| match io.peer_addr() {
            Ok(SocketAddr::V4(peer)) => Ok(peer.ip().octets()[3] - 1),
            Ok(_) => Err(std::io::ErrorKind::Unsupported.into()),
            Err(error) => Err(error),
        };
        let outbound = OrigDst::Given(Arc::new(move |io| Ok(target(id(io)?))));
        let good_addr = good.addr();
        let inbound = OrigDst::Given(Arc::new(move |io| Ok(at(id(io)?, good_addr, &hostile))));
        let settings = [("HTTP1_HEAD_TIMEOUT", "5s")];
        let proxy = Proxy::start(&control, "web", outbound, inbound, &settings);
        Self {
            proxy,
            _control: control,
            good,
            taken,
        }
    }

    /// What the servers of an attack could get rid of.
    fn taken(&self, n: usize) -> Option<usize> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of = taken.iter().filter(|(by, _)| *by == n);
        of.map(|(_, bytes)| *bytes).max()
    }

    /// Every attack on both legs.
    fn withstands<S>(&self, attacks: &[Attack<S>], ask: fn(SocketAddr, Ipv4Addr) -> End) {
        for (leg, at) in [
            ("outbound", self.proxy.outbound),
            ("inbound", self.proxy.inbound),
        ] {
            for (n, (name, _, want)) in attacks.iter().enumerate() {
                let name = format!("{leg}, {name}");
                let served = || match ask(at, source(GOOD)) {
                    Status(status) => status,
                    _ => 0,
                };
                let from = source(u8::try_from(n).expect("few"));
                bounded(&name, served, || {
                    let end = ask(at, from);
                    assert!(end.is(*want), "{name}: {end:?}");
                    wait_for(attack::PATIENCE, &name, || self.taken(n).is_some());
                    let taken = self.taken(n).unwrap_or_default();
                    assert!(taken < PLENTY, "{name}: took {} MB", taken >> 20);
                });
                let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
                taken.clear();
            }
        }
        assert!(self.good.requests().len() >= 4 * attacks.len());
    }
}

/// A POST, so that nobody sends it twice.
fn ask_http2(at: SocketAddr, from: Ipv4Addr) -> End {
    block_on(async {
        let (mut send, _) = http2::connect_from(from, at).await;
        let request = http::Request::post("http://web/").body(()).expect("valid");
        match http2::call(&mut send, request, &[]).await {
            Ok(got) => Status(got.head.status().as_u16()),
            Err(_) => Torn,
        }
    })
}

fn answered(mut server: (Frames, u32), end: u8) -> (Frames, u32) {
    server.0.send(HEADERS, END_HEADERS, server.1, &OK);
    server.0.send(DATA, end, server.1, b"data");
    server
}

const HTTP2: &[Attack<(Frames, u32)>] = &[
    (
        "endless CONTINUATION",
        |(mut frames, stream)| {
            frames.send(HEADERS, 0, stream, &OK);
            frames.flood(CONTINUATION, 0, stream, &long_line())
        },
        Status(502),
    ),
    (
        "endless empty CONTINUATION",
        |(mut frames, stream)| {
            frames.send(HEADERS, 0, stream, &OK);
            frames.flood(CONTINUATION, 0, stream, &[])
        },
        Status(502),
    ),
    (
        "endless trailers",
        |server| {
            let (mut frames, stream) = answered(server, 0);
            frames.send(HEADERS, END_STREAM, stream, &[]);
            frames.flood(CONTINUATION, 0, stream, &long_line())
        },
        Torn,
    ),
    (
        "lines named by an index, many times",
        |(mut frames, stream)| {
            let block = [&OK[..], &bomb()].concat();
            frames.send(HEADERS, END_HEADERS | END_STREAM, stream, &block);
            drained(&mut frames.0).len()
        },
        Status(502),
    ),
    (
        "huge frame",
        |server| {
            let (mut frames, _) = answered(server, 0);
            let _ = flood(&mut frames.0, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], 9);
            flood(&mut frames.0, &[0; 64 * 1024], PLENTY)
        },
        Torn,
    ),
    (
        "endless interim answers",
        |(mut frames, stream)| {
            // The request is over long before they are; what comes for it later goes nowhere.
            let early = Frames::frame(HEADERS, END_HEADERS, stream, &EARLY);
            let sent = flood(&mut frames.0, &early.repeat(100), 100 * early.len());
            sent + drained(&mut frames.0).len()
        },
        Status(502),
    ),
    (
        "reset storm",
        |(mut frames, stream)| {
            let code = 11_u32.to_be_bytes();
            frames.storm(RST_STREAM, 0, stream, &code)
        },
        Torn,
    ),
    (
        "GOAWAY storm",
        |server| {
            let (mut frames, stream) = answered(server, 0);
            let last = [stream.to_be_bytes(), 0_u32.to_be_bytes()].concat();
            frames.storm(GOAWAY, 0, 0, &last)
        },
        Torn,
    ),
    (
        "SETTINGS flood",
        |server| {
            let (mut frames, _) = answered(server, END_STREAM);
            frames.storm(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])
        },
        Status(200),
    ),
    (
        "PING flood",
        |server| {
            let (mut frames, _) = answered(server, END_STREAM);
            frames.storm(PING, 0, 0, b"12345678")
        },
        Status(200),
    ),
    (
        "a head that is not finished",
        |(mut frames, stream)| {
            frames.send(HEADERS, 0, stream, &OK);
            drained(&mut frames.0).len()
        },
        Status(502),
    ),
    (
        "a promise nobody asked for",
        |(mut frames, stream)| {
            let promise = [&2_u32.to_be_bytes()[..], &attack::GET].concat();
            frames.send(PUSH_PROMISE, END_HEADERS, stream, &promise);
            drained(&mut frames.0).len()
        },
        Status(502),
    ),
    (
        "window beyond its largest",
        |(mut frames, _)| {
            for _ in 0..3 {
                frames.send(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes());
            }
            drained(&mut frames.0).len()
        },
        Status(502),
    ),
];

#[test]
fn attacks_of_http2_servers() {
    let stage = Stage::new(HTTP2, |io| Frames::accept(io, &[]).ok());
    stage.withstands(HTTP2, ask_http2);
}

/// A POST, so that nobody sends it twice; it reads what comes, to the end.
fn ask_http1(at: SocketAddr, from: Ipv4Addr) -> End {
    let mut client = Client::connect_from(from, at);
    client.send("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let mut io = client.io().try_clone().expect("a handle");
    let answer = drained(&mut io);
    let text = String::from_utf8_lossy(&answer);
    let text = text.trim_start_matches(HINT);
    let head = text.split("\r\n\r\n").next().unwrap_or_default();
    let whole = !head.contains("chunked") || text.ends_with("\r\n0\r\n\r\n");
    match text.get(9..12).and_then(|status| status.parse().ok()) {
        Some(status) if whole => Status(status),
        _ => Torn,
    }
}

const HINT: &str = "HTTP/1.1 103 Early Hints\r\n\r\n";

fn after_request(mut io: TcpStream) -> Option<TcpStream> {
    let mut request = [0; 1024];
    io.set_read_timeout(Some(attack::SILENCE)).ok()?;
    matches!(io.read(&mut request), Ok(1..)).then_some(io)
}

/// Says what it is given, then waits for the end.
fn say(mut io: TcpStream, text: &str) -> usize {
    let _ = io.write_all(text.as_bytes());
    drained(&mut io).len()
}

fn say_endlessly(mut io: TcpStream, first: &str, again: &str) -> usize {
    let _ = io.write_all(first.as_bytes());
    flood(&mut io, again.repeat(1_000).as_bytes(), 2 * PLENTY)
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
const BEGUN: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndata\r\n";

const HTTP1: &[Attack<TcpStream>] = &[
    (
        "a head of 1 MB in one line",
        |io| {
            let line = "a".repeat(1 << 20);
            say(io, &format!("HTTP/1.1 200 OK\r\nx-a: {line}\r\n\r\n"))
        },
        Status(502),
    ),
    (
        "a head without end",
        |io| say_endlessly(io, "HTTP/1.1 200 OK\r\n", "x-more: and more\r\n"),
        Status(502),
    ),
    (
        "interim answers without end",
        // Enough of them.
        |io| say(io, &HINT.repeat(100)),
        Status(502),
    ),
    (
        "a status line without end",
        |io| say_endlessly(io, "HTTP/1.1 200 ", "OK"),
        Status(502),
    ),
    (
        "trailers without end",
        |io| {
            let first = format!("{BEGUN}0\r\n");
            say_endlessly(io, &first, "x-more: and more\r\n")
        },
        Broken,
    ),
    (
        "a chunk extension without end",
        |io| say_endlessly(io, &format!("{BEGUN}4;"), "extension"),
        Broken,
    ),
    (
        "a chunk size without end",
        |io| say_endlessly(io, BEGUN, "0"),
        Broken,
    ),
    (
        "a negative chunk size",
        |io| say(io, &format!("{BEGUN}-4\r\ndata\r\n0\r\n\r\n")),
        Broken,
    ),
    (
        "a chunk size beyond 64 bits",
        |io| {
            say(
                io,
                &format!("{BEGUN}10000000000000004\r\ndata\r\n0\r\n\r\n"),
            )
        },
        Broken,
    ),
    (
        "the same at once, before the client saw any",
        |io| say(io, &format!("{CHUNKED}-4\r\ndata\r\n0\r\n\r\n")),
        Status(502),
    ),
    (
        "a chunk longer than its size",
        |io| say(io, &format!("{BEGUN}2\r\ndata\r\n0\r\n\r\n")),
        Broken,
    ),
    (
        "two lengths",
        |io| {
            let lengths = "content-length: 4\r\ncontent-length: 5\r\n";
            say(io, &format!("HTTP/1.1 200 OK\r\n{lengths}\r\ndata"))
        },
        Status(502),
    ),
    (
        "a negative length",
        |io| say(io, "HTTP/1.1 200 OK\r\ncontent-length: -4\r\n\r\ndata"),
        Status(502),
    ),
    (
        "no HTTP at all",
        |io| say_endlessly(io, "SSH-2.0-OpenSSH_9.6\r\n", "noise "),
        Status(502),
    ),
];

#[test]
fn attacks_of_http1_servers() {
    let stage = Stage::new(HTTP1, after_request);
    stage.withstands(HTTP1, ask_http1);
}

/// Settings with a window of 0 for every stream.
const NO_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];

#[test]
fn a_server_that_grants_no_window_holds_back_its_client() {
    static STUCK: &[Attack<(Frames, u32)>] = &[(
        "no window",
        |(mut frames, _)| drained(&mut frames.0).len(),
        Torn,
    )];
    let stage = Stage::new(STUCK, |io| Frames::accept(io, NO_WINDOW).ok());
    for at in [stage.proxy.outbound, stage.proxy.inbound] {
        let served = || match ask_http2(at, source(GOOD)) {
            Status(status) => status,
            _ => 0,
        };
        bounded("no window", served, || {
            let sent = block_on(push(at, source(0)));
            assert!(sent < 1 << 20, "took {sent} bytes");
        });
    }
}

/// Sends on ten streams for as long as it may; gives how much that was.
async fn push(at: SocketAddr, from: Ipv4Addr) -> usize {
    let (mut send, _) = http2::connect_from(from, at).await;
    let mut sent = 0;
    let mut open = Vec::new();
    for _ in 0..10 {
        let request = http::Request::post("http://web/").body(()).expect("valid");
        let (response, mut stream) = send.send_request(request, false).expect("sends");
        loop {
            stream.reserve_capacity(16 * 1024);
            let granted = std::future::poll_fn(|cx| stream.poll_capacity(cx));
            let limit = Duration::from_millis(300);
            let Ok(Some(Ok(n))) = tokio::time::timeout(limit, granted).await else {
                break;
            };
            sent += n;
            let data = Bytes::from(vec![0; n]);
            stream.send_data(data, false).expect("open");
        }
        open.push((response, stream));
    }
    sent
}
