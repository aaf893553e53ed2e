//! Bad input on either leg is bounded in memory and in time, and the next client is served.

#[path = "support/harness.rs"]
mod harness;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use harness::{Client, DEADLINE, Pair, get, http_echo};
use linkerd_testkit::wait_for;

/// What an attack may cost beside what it began with.
const ROOM: u64 = 64 * 1024 * 1024;

/// Resident memory of this process, both proxies included.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number of pages");
    pages * 4096
}

/// Runs an attack, and says that it cost little and that others are served after it.
fn bounded(pair: &Pair, attack: impl FnOnce()) {
    assert_eq!(get(pair.client.outbound, "/before", "web").status(), 200);
    let before = resident();
    attack();
    let grown = resident().saturating_sub(before);
    assert!(grown < ROOM, "grew by {} MB", grown >> 20);
    assert_eq!(get(pair.client.outbound, "/after", "web").status(), 200);
}

/// Writes until the peer closes; gives how much it took.
fn flood(io: &mut TcpStream, piece: &[u8], limit: usize) -> usize {
    io.set_write_timeout(Some(Duration::from_secs(5)))
        .expect("an option");
    let mut written = 0;
    while written < limit {
        match io.write(piece) {
            Ok(0) => break,
            Ok(n) => written += n,
            Err(_) => break,
        }
    }
    written
}

/// Reads to the end, a reset included.
fn drained(io: &mut TcpStream) -> Vec<u8> {
    io.set_read_timeout(Some(DEADLINE)).expect("an option");
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    while let Ok(n) = io.read(&mut chunk) {
        if n == 0 {
            break;
        }
        bytes.extend(&chunk[..n]);
    }
    bytes
}

const HEAD_LIMIT: (&str, &str) = ("HTTP1_HEAD_TIMEOUT", "1s");

#[test]
fn a_client_that_dribbles_its_head_is_told_to_go() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[HEAD_LIMIT], &[]);
    bounded(&pair, || {
        let mut io = TcpStream::connect(pair.client.outbound).expect("connects");
        let started = Instant::now();
        io.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nx-slow: ")
            .expect("writes");
        let mut slow = io.try_clone().expect("a handle");
        let dribble = std::thread::spawn(move || {
            for _ in 0..100 {
                #[expect(clippy::disallowed_methods, reason = "being slow is what is tested")]
                std::thread::sleep(Duration::from_millis(50));
                if slow.write_all(b"a").is_err() {
                    break;
                }
            }
        });
        let answer = String::from_utf8_lossy(&drained(&mut io)).into_owned();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(started.elapsed() < Duration::from_secs(15), "in time");
        dribble.join().expect("dribbles");
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
    for _ in 0..200 {
        #[expect(clippy::disallowed_methods, reason = "being slow is what is tested")]
        std::thread::sleep(Duration::from_millis(50));
        if io.write_all(b"a").is_err() {
            break;
        }
    }
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
        bounded(&pair, || {
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
    assert_eq!(app.requests().len(), 6, "only ours came through");
}

#[test]
fn endless_trailers_end() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    bounded(&pair, || {
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

/// HTTP/2 by hand.
struct Frames(TcpStream);

impl Frames {
    fn connect(addr: SocketAddr) -> Self {
        let mut io = TcpStream::connect(addr).expect("connects");
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .expect("writes");
        let mut frames = Self(io);
        frames.send(4, 0, 0, &[]);
        frames
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let frame = Self::frame(kind, flags, stream, payload);
        self.0.write_all(&frame).expect("writes");
    }

    /// The error code of the GOAWAY the connection ends with, if it has one.
    fn goaway(&mut self) -> Option<u32> {
        let bytes = drained(&mut self.0);
        let mut rest = bytes.as_slice();
        let mut code = None;
        while rest.len() >= 9 {
            let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
            let Some(payload) = rest.get(9..9 + length) else {
                break;
            };
            if rest[3] == 7 && payload.len() >= 8 {
                code = payload[4..8].try_into().ok().map(u32::from_be_bytes);
            }
            rest = &rest[9 + length..];
        }
        code
    }
}

/// `:method GET`, `:scheme http`, `:path /`, `:authority web`.
const GET: [u8; 8] = [0x82, 0x86, 0x84, 0x41, 3, b'w', b'e', b'b'];
const END_HEADERS: u8 = 4;
const END_STREAM: u8 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;
const FRAME_SIZE_ERROR: u32 = 6;

#[test]
fn rapid_resets_end_the_connection() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    bounded(&pair, || {
        let mut frames = Frames::connect(pair.client.outbound);
        let mut burst = Vec::new();
        for n in 0..50_000_u32 {
            let stream = 2 * n + 1;
            burst.extend(Frames::frame(1, END_HEADERS | END_STREAM, stream, &GET));
            burst.extend(Frames::frame(3, 0, stream, &8_u32.to_be_bytes()));
        }
        let _ = frames.0.write_all(&burst);
        // What we say last may be lost to the reset that unread bytes cause.
        let code = frames.goaway();
        assert!(matches!(code, None | Some(ENHANCE_YOUR_CALM)), "{code:?}");
    });
    wait_for(DEADLINE, "nothing is left in flight", || {
        let open = pair
            .client
            .metric("tcp_open_connections", &["peer=\"src\""]);
        open < 2.0
    });
    let reached = app.requests().len();
    assert!(
        reached < 5_000,
        "{reached} requests reached the application"
    );
}

#[test]
fn endless_continuations_end_the_connection() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    bounded(&pair, || {
        let mut frames = Frames::connect(pair.client.outbound);
        frames.send(1, END_STREAM, 1, &GET);
        // A literal that is never indexed, of 16,000 bytes.
        let mut line = vec![0x10, 3, b'x', b'-', b'a', 0x7f];
        let mut length = 16_000 - 127;
        while length >= 128 {
            line.push(u8::try_from(length % 128 + 128).expect("a byte"));
            length /= 128;
        }
        line.push(u8::try_from(length).expect("a byte"));
        line.extend(vec![b'a'; 16_000]);
        let piece = Frames::frame(9, 0, 1, &line);
        let taken = flood(&mut frames.0, &piece, 200 << 20);
        assert!(taken < 16 << 20, "took {} MB", taken >> 20);
        frames.goaway();
    });
    bounded(&pair, || {
        let mut frames = Frames::connect(pair.client.outbound);
        frames.send(1, END_STREAM, 1, &GET);
        let empty = Frames::frame(9, 0, 1, &[]).repeat(1000);
        let taken = flood(&mut frames.0, &empty, 200 << 20);
        assert!(taken < 16 << 20, "took {} MB of empty frames", taken >> 20);
        frames.goaway();
    });
}

#[test]
fn huge_frames_are_refused_at_their_head() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    bounded(&pair, || {
        let mut frames = Frames::connect(pair.client.outbound);
        frames.send(1, END_HEADERS, 1, &GET);
        let _ = frames.0.write_all(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]);
        let taken = flood(&mut frames.0, &[0; 64 * 1024], 16 << 20);
        assert!(taken < 16 << 20, "took all of it");
        let code = frames.goaway();
        assert!(matches!(code, None | Some(FRAME_SIZE_ERROR)), "{code:?}");
    });
}

#[test]
fn many_silent_connections_cost_little() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    bounded(&pair, || {
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
    bounded(&pair, || {
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
