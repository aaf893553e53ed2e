//! What HAProxy or nginx refuses of the smuggling set, the engine refuses too. Both run for real, on loopback, in front of
//! an origin that answers 200 to everything; a missing program fails the test.

#[path = "cases/engine.rs"]
mod engine;
#[path = "cases/smuggling.rs"]
mod smuggling;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// What a peer did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The origin's 200 came back.
    Served,
    /// An error status, or closed without a word.
    Refused(u16),
    /// Still waiting for more bytes.
    Waiting,
}

/// A peer process, ended with its owner.
struct Peer {
    name: &'static str,
    address: SocketAddr,
    process: Child,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Answers each connection once with 200 and reads until the other side closes, so that nothing is reset.
fn start_origin() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the origin");
    let address = listener.local_addr().expect("a bound listener");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let _limit = stream.set_read_timeout(Some(PATIENCE));
                let mut buffer = [0; 4096];
                if matches!(stream.read(&mut buffer), Ok(n) if n > 0) {
                    let _sent = stream.write_all(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                    );
                    let _closed = stream.shutdown(std::net::Shutdown::Write);
                    while matches!(stream.read(&mut buffer), Ok(n) if n > 0) {}
                }
            });
        }
    });
    address
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound listener").port()
}

fn start(
    name: &'static str,
    config: &dyn Fn(u16) -> String,
    args: &dyn Fn(&Path) -> Vec<String>,
    dir: &Path,
) -> Peer {
    // Another process may take the port between asking and binding: try a few.
    for attempt in 0..5 {
        let port = free_port();
        let file = dir.join(format!("{name}-{attempt}.conf"));
        std::fs::write(&file, config(port)).expect("a config in the temporary directory");
        let log = std::fs::File::create(dir.join(format!("{name}-{attempt}.log"))).expect("a log");
        let mut process = Command::new(format!("/usr/sbin/{name}"))
            .args(args(&file))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{name} is needed for this test (Debian package {name}): {error}")
            });
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && matches!(process.try_wait(), Ok(None)) {
            if TcpStream::connect(address).is_ok() {
                return Peer {
                    name,
                    address,
                    process,
                };
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let _gone = process.kill();
        let _reaped = process.wait();
    }
    panic!(
        "{name} did not start: {}",
        std::fs::read_to_string(dir.join(format!("{name}-0.log"))).unwrap_or_default()
    );
}

fn haproxy(dir: &Path, origin: SocketAddr) -> Peer {
    let config = move |port: u16| {
        format!(
            "global\n  maxconn 256\ndefaults\n  mode http\n  option http-buffer-request\n  timeout client 5s\n  timeout server 5s\n  \
             timeout connect 5s\n  timeout http-request 1s\nfrontend in\n  bind 127.0.0.1:{port}\n  default_backend out\nbackend out\n  server o {origin}\n"
        )
    };
    start(
        "haproxy",
        &config,
        &|file| vec!["-db".into(), "-f".into(), file.display().to_string()],
        dir,
    )
}

fn nginx(dir: &Path, origin: SocketAddr) -> Peer {
    let temp = dir.display().to_string();
    let config = move |port: u16| {
        format!(
            "daemon off; master_process off; pid {temp}/nginx.pid; error_log stderr;\nevents {{ worker_connections 256; }}\nhttp {{\n  access_log off;\n  \
             client_header_timeout 1s; client_body_timeout 1s;\n  client_body_temp_path {temp}/b; proxy_temp_path {temp}/p; fastcgi_temp_path {temp}/f; \
             uwsgi_temp_path {temp}/u; scgi_temp_path {temp}/s;\n  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{origin}; proxy_http_version 1.1; }} }}\n}}\n"
        )
    };
    let prefix = dir.display().to_string();
    start(
        "nginx",
        &config,
        &move |file| {
            vec![
                "-p".into(),
                prefix.clone(),
                "-e".into(),
                "stderr".into(),
                "-c".into(),
                file.display().to_string(),
            ]
        },
        dir,
    )
}

/// Sends the bytes and reads the first status line.
fn ask(address: SocketAddr, bytes: &[u8]) -> Outcome {
    let mut stream = TcpStream::connect(address).expect("the peer listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("a socket takes a timeout");
    let _may_be_closed_early = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    while answer.len() < 12 {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&buffer[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Outcome::Waiting;
            }
            Err(_) => break,
        }
    }
    // nginx answers a malformed request line of the oldest kind with a bare page and no status line.
    let status = answer
        .get(9..12)
        .and_then(|text| std::str::from_utf8(text).ok())
        .and_then(|text| text.parse().ok());
    match status {
        Some(200) => Outcome::Served,
        Some(408) => Outcome::Waiting,
        other => Outcome::Refused(other.unwrap_or(0)),
    }
}

/// What nginx refuses although everybody reads it alike and clients send it: a transparent proxy must not be in the way.
const TOLERATED: &[&str] = &["lower-case method", "method with a digit", "empty host"];

#[test]
fn as_strict_as_the_strictest() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let origin = start_origin();
    let peers = [haproxy(dir.path(), origin), nginx(dir.path(), origin)];
    let mut lax = Vec::new();
    let judged = |name: &str| !TOLERATED.contains(&name);
    for (name, bytes, _) in smuggling::CASES.iter().filter(|case| judged(case.0)) {
        let ours = engine::read(bytes);
        for peer in &peers {
            let theirs = ask(peer.address, bytes);
            if matches!(theirs, Outcome::Refused(_)) && ours.is_ok() {
                lax.push(format!("{name}: {} {theirs:?}, we accept", peer.name));
            }
        }
    }
    assert!(lax.is_empty(), "{}", lax.join("\n"));
}

/// The peers must be in working order, or the comparison above proves nothing.
#[test]
fn the_peers_serve_plain_requests_and_refuse_bad_ones() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let origin = start_origin();
    for peer in [haproxy(dir.path(), origin), nginx(dir.path(), origin)] {
        for (name, bytes, _) in &smuggling::CASES[..4] {
            assert_eq!(
                ask(peer.address, bytes),
                Outcome::Served,
                "{} {name}",
                peer.name
            );
        }
        let refused = smuggling::CASES
            .iter()
            .filter(|(_, bytes, _)| matches!(ask(peer.address, bytes), Outcome::Refused(_)))
            .count();
        assert!(
            refused > 25,
            "{} refuses only {refused} of {}",
            peer.name,
            smuggling::CASES.len()
        );
    }
}
