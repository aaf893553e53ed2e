//! A pod whose traffic is redirected and a peer it talks to: servers that say who they are and where
//! the client wanted to go, clients of any user and group, and the init program inside the pod.

#![allow(
    dead_code,
    unreachable_pub,
    unused_macros,
    reason = "shared by test targets, each of which uses its part"
)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::Duration;

use linkerd_testkit::netns::{Lan, Namespace, Pod};
use rustix::fs::{Gid, Uid};
use rustix::net::sockopt;

pub const INIT: &str = env!("CARGO_BIN_EXE_linkerd-init");
pub const VALIDATOR: &str = env!("CARGO_BIN_EXE_linkerd-network-validator");
pub const BACKENDS: [&str; 4] = ["legacy", "nft", "plain", "native"];
pub const PROXY_ID: u32 = 2102;
/// Long enough for two busy cores; a refusal comes at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two pods on one bridge; `pod` is the one under test.
pub struct Scene {
    pub pod: Pod,
    pub peer: Pod,
    /// Dropped last: the bridge both pods hang on.
    _lan: Lan,
}

/// Answers every connection with one line, then echoes until the client closes.
pub struct Server {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

/// Who a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Root,
    User(u32),
    Group(u32),
}

// === impl Scene ===

impl Scene {
    pub fn new() -> Self {
        let lan = Lan::new();
        Self {
            pod: lan.pod("pod"),
            peer: lan.pod("peer"),
            _lan: lan,
        }
    }

    /// Runs the init program in the pod; it must succeed.
    #[track_caller]
    pub fn init(&self, backend: &str, args: &[&str]) -> String {
        init(&self.pod.netns, backend, args)
    }

    /// Asks from the peer into the pod.
    pub fn inward(&self, port: u16) -> io::Result<String> {
        ask(
            &self.peer.netns,
            Who::User(1000),
            SocketAddr::from((self.pod.ip4, port)),
        )
    }

    pub fn inward6(&self, port: u16) -> io::Result<String> {
        ask(
            &self.peer.netns,
            Who::User(1000),
            SocketAddr::from((self.pod.ip6, port)),
        )
    }

    /// Asks from the pod towards the peer.
    pub fn outward(&self, who: Who, port: u16) -> io::Result<String> {
        ask(
            &self.pod.netns,
            who,
            SocketAddr::from((self.peer.ip4, port)),
        )
    }

    pub fn outward6(&self, who: Who, port: u16) -> io::Result<String> {
        ask(
            &self.pod.netns,
            who,
            SocketAddr::from((self.peer.ip6, port)),
        )
    }
}

// === impl Server ===

impl Server {
    /// One server per family on a port of a namespace.
    #[track_caller]
    pub fn both(netns: &Namespace, port: u16, name: &str) -> [Self; 2] {
        [
            Self::new(netns, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), name),
            Self::new(netns, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), name),
        ]
    }

    #[track_caller]
    pub fn new(netns: &Namespace, addr: SocketAddr, name: &str) -> Self {
        let listener = netns
            .run(|| bind(addr))
            .unwrap_or_else(|error| panic!("cannot listen on {addr}: {error}"));
        let accepting = listener.try_clone().expect("a second handle");
        let name = name.to_owned();
        let thread = std::thread::spawn(move || {
            for stream in accepting.incoming() {
                let Ok(stream) = stream else { return };
                let name = name.clone();
                std::thread::spawn(move || serve(stream, &name));
            }
        });
        Self {
            listener,
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Wakes the accepting thread with an error.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// IPv6 sockets take only IPv6, so that both families can use one port number.
fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &addr)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(TcpListener::from(socket))
}

fn serve(mut stream: TcpStream, name: &str) {
    let wanted = original_dst(&stream).map_or_else(|_| "none".to_owned(), |addr| addr.to_string());
    let mut buffer = [0; 1024];
    let mut said = stream.write_all(format!("{name} for {wanted}\n").as_bytes());
    while said.is_ok() {
        said = match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(len) => stream.write_all(&buffer[..len]),
        };
    }
}

/// Where the client wanted to go before redirection.
fn original_dst(stream: &TcpStream) -> io::Result<SocketAddr> {
    Ok(match stream.local_addr()?.ip() {
        IpAddr::V4(_) => SocketAddr::V4(sockopt::ip_original_dst(stream)?),
        IpAddr::V6(_) => {
            let addr = sockopt::ipv6_original_dst(stream)?;
            SocketAddr::from((*addr.ip(), addr.port()))
        }
    })
}

/// Connects as somebody; the connection stays open.
pub fn connect(netns: &Namespace, who: Who, addr: SocketAddr) -> io::Result<TcpStream> {
    netns.run(|| {
        // This thread ends with the call, and with it the identity it took.
        match who {
            Who::Root => {}
            Who::User(id) => rustix::thread::set_thread_uid(Uid::from_raw(id))?,
            Who::Group(id) => rustix::thread::set_thread_gid(Gid::from_raw(id))?,
        }
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    })
}

/// Connects as somebody and returns the server's line.
pub fn ask(netns: &Namespace, who: Who, addr: SocketAddr) -> io::Result<String> {
    let stream = connect(netns, who, addr)?;
    let line = first_line(&stream)?;
    // A reset leaves no socket behind that would wait for its timeout.
    let _ = stream.shutdown(Shutdown::Both);
    Ok(line)
}

pub fn first_line(stream: &TcpStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// Sends bytes over an open connection and expects them back.
#[track_caller]
pub fn echoes(mut stream: &TcpStream, text: &str) {
    stream
        .write_all(text.as_bytes())
        .expect("the connection takes bytes");
    let mut back = vec![0; text.len()];
    stream
        .read_exact(&mut back)
        .expect("the connection gives them back");
    assert_eq!(String::from_utf8_lossy(&back), text);
}

pub fn init_output(netns: &Namespace, backend: &str, args: &[&str]) -> Output {
    let mut command = Command::new(INIT);
    command.args(args).args(["--iptables-mode", backend]);
    netns
        .run(|| command.output())
        .expect("the init program starts")
}

/// Runs the init program; it must succeed. Gives its log.
#[track_caller]
pub fn init(netns: &Namespace, backend: &str, args: &[&str]) -> String {
    let output = init_output(netns, backend, args);
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{backend} {args:?}: {}\n{log}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    log
}

/// Everything the kernel holds in all backends, without counters and dates.
pub fn ruleset(netns: &Namespace) -> String {
    let mut text = String::new();
    for program in ["iptables-legacy-save", "ip6tables-legacy-save"] {
        text.push_str(&netns.output(program, &["-t", "nat"]));
    }
    text.push_str(&netns.output("nft", &["list", "ruleset"]));
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words: Vec<&str> = line.split(' ').collect();
        for at in 0..words.len() {
            if matches!(words[at], "packets" | "bytes") && at + 1 < words.len() {
                words[at + 1] = "0";
            }
            if words[at].starts_with('[') {
                words[at] = "[0:0]";
            }
        }
        out.push_str(&words.join(" "));
        out.push('\n');
    }
    out
}

/// One test per backend for each of these functions.
#[macro_export]
macro_rules! every_backend {
    ($($name:ident),* $(,)?) => {
        mod legacy { $(#[test] fn $name() { super::$name("legacy"); })* }
        mod nft { $(#[test] fn $name() { super::$name("nft"); })* }
        mod plain { $(#[test] fn $name() { super::$name("plain"); })* }
        mod native { $(#[test] fn $name() { super::$name("native"); })* }
    };
}
