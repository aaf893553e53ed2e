//! What hostile peers send, and what that may cost: HTTP/2 by hand from either side, floods, dribbles,
//! and the memory of this process.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What an attack may cost beside what it began with.
pub const ROOM: u64 = 64 * 1024 * 1024;
/// No attack may go on for longer, however busy the machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Nobody is waited for longer in between.
pub const SILENCE: Duration = Duration::from_secs(20);
/// More than any peer has a reason to send, and less than a flood.
pub const PLENTY: usize = 16 << 20;

/// One measures at a time: memory is the process's.
static MEASURING: Mutex<()> = Mutex::new(());

/// Resident memory of this process, all proxies included.
pub fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number of pages");
    pages * 4096
}

/// From now on, nobody else measures.
pub fn measured() -> MutexGuard<'static, ()> {
    MEASURING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs an attack; says that it cost little and that others are served before and after it.
#[track_caller]
pub fn bounded(name: &str, served: impl Fn() -> u16, attack: impl FnOnce()) {
    let _alone = measured();
    assert_eq!(served(), 200, "before {name}");
    let (before, started) = (resident(), Instant::now());
    attack();
    let grown = resident().saturating_sub(before);
    assert!(grown < ROOM, "{name}: grew by {} MB", grown >> 20);
    let took = started.elapsed();
    assert!(took < PATIENCE, "{name}: took {took:?}");
    assert_eq!(served(), 200, "after {name}");
}

/// Writes until the peer closes or takes nothing for a while; gives how much it took.
pub fn flood(io: &mut TcpStream, piece: &[u8], limit: usize) -> usize {
    io.set_write_timeout(Some(Duration::from_secs(1)))
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

/// Writes a byte at a time, until the peer closes or nobody could still be waiting.
pub fn dribble(io: &mut TcpStream, bytes: impl IntoIterator<Item = u8>) {
    let until = Instant::now() + SILENCE;
    for byte in bytes {
        #[expect(clippy::disallowed_methods, reason = "being slow is what is tested")]
        std::thread::sleep(Duration::from_millis(50));
        if io.write_all(&[byte]).is_err() || Instant::now() > until {
            break;
        }
    }
}

/// Reads to the end, a reset included.
pub fn drained(io: &mut TcpStream) -> Vec<u8> {
    io.set_read_timeout(Some(SILENCE)).expect("an option");
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

/// `:method GET`, `:scheme http`, `:path /`, `:authority web`.
pub const GET: [u8; 8] = [0x82, 0x86, 0x84, 0x41, 3, b'w', b'e', b'b'];
/// `:status 200`
pub const OK: [u8; 1] = [0x88];
/// `:status 103`
pub const EARLY: [u8; 5] = [0x08, 3, b'1', b'0', b'3'];

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const PROTOCOL_ERROR: u32 = 1;
pub const FLOW_CONTROL_ERROR: u32 = 3;
pub const FRAME_SIZE_ERROR: u32 = 6;
pub const COMPRESSION_ERROR: u32 = 9;
pub const ENHANCE_YOUR_CALM: u32 = 11;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// HTTP/2 by hand.
pub struct Frames(pub TcpStream);

impl Frames {
    /// A client, after its first words.
    pub fn connect(addr: SocketAddr) -> Self {
        // Who takes little back is held back soon.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        let _ = socket.set_recv_buffer_size(32 * 1024);
        let _ = socket.set_send_buffer_size(64 * 1024);
        socket.connect(&addr.into()).expect("connects");
        let mut io = TcpStream::from(socket);
        io.write_all(PREFACE).expect("writes");
        let mut frames = Self(io);
        frames.send(SETTINGS, 0, 0, &[]);
        frames
    }

    /// A server, with its settings, up to the head of a first request; gives its stream.
    pub fn accept(mut io: TcpStream, settings: &[u8]) -> std::io::Result<(Self, u32)> {
        io.set_read_timeout(Some(SILENCE))?;
        io.read_exact(&mut [0; 24])?;
        io.write_all(&Self::frame(SETTINGS, 0, 0, settings))?;
        io.write_all(&Self::frame(SETTINGS, ACK, 0, &[]))?;
        let mut frames = Self(io);
        let stream = frames.next_request()?;
        Ok((frames, stream))
    }

    /// The stream of the next request; other frames are thrown away.
    pub fn next_request(&mut self) -> std::io::Result<u32> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head)?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            self.0.read_exact(&mut vec![0; length])?;
            if head[3] == HEADERS {
                return Ok(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
            }
        }
    }

    pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let frame = Self::frame(kind, flags, stream, payload);
        // A peer that is gone shows in what comes back.
        let _ = self.0.write_all(&frame);
    }

    /// The same frame again and again; gives how many bytes were taken.
    pub fn flood(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> usize {
        self.flood_up_to(2 * PLENTY, &Self::frame(kind, flags, stream, payload))
    }

    /// The same for frames that may come as often as their sender likes.
    pub fn storm(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> usize {
        self.flood_up_to(2 << 20, &Self::frame(kind, flags, stream, payload))
    }

    /// The same frame until so many bytes were taken.
    pub fn flood_up_to(&mut self, limit: usize, piece: &[u8]) -> usize {
        let times = (64 * 1024 / piece.len()).max(1);
        flood(&mut self.0, &piece.repeat(times), limit)
    }

    /// Reads until the connection ends, or nothing comes for as long as reads are waited for.
    pub fn ended(&mut self) -> bool {
        let mut chunk = [0; 1024];
        loop {
            match self.0.read(&mut chunk) {
                Ok(1..) => {}
                Ok(0) => return true,
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }

    /// The error code of the GOAWAY the connection ends with, if it has one: what a peer says last
    /// may be lost to the reset that unread bytes cause.
    pub fn goaway(&mut self) -> Option<u32> {
        let bytes = drained(&mut self.0);
        let mut rest = bytes.as_slice();
        let mut code = None;
        while rest.len() >= 9 {
            let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
            let Some(payload) = rest.get(9..9 + length) else {
                break;
            };
            if rest[3] == GOAWAY && payload.len() >= 8 {
                code = payload[4..8].try_into().ok().map(u32::from_be_bytes);
            }
            rest = &rest[9 + length..];
        }
        code
    }
}

/// A header line of 16,000 bytes that is never indexed.
pub fn long_line() -> Vec<u8> {
    let mut line = vec![0x10, 3, b'x', b'-', b'a', 0x7f];
    let mut length = 16_000 - 127;
    while length >= 128 {
        line.push(u8::try_from(length % 128 + 128).expect("a byte"));
        length /= 128;
    }
    line.push(u8::try_from(length).expect("a byte"));
    line.extend(vec![b'a'; 16_000]);
    line
}

/// A line of 3,000 bytes that is indexed once and then named by one byte, 12,000 times.
pub fn bomb() -> Vec<u8> {
    let mut block = vec![0x40, 1, b'x', 0x7f, 0xb9, 0x16];
    block.extend(vec![b'a'; 3_000]);
    block.extend(vec![0xbe; 12_000]);
    block
}
