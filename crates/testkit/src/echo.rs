//! Servers that say what they saw and misbehave when told to. Each runs on its own thread in
//! the namespace it was started in, and stops when it is dropped.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde::Serialize;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

mod http;
mod tcp;

pub use http::{Answer, End, Request};
pub use tcp::Behavior;

/// What is kept of the past; older entries are forgotten.
const MEMORY: usize = 10_000;

/// A running server.
#[derive(Debug)]
pub struct Echo {
    addr: SocketAddr,
    seen: Arc<Seen>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A connection as the server saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Connection {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// Where the client wanted to go, when a firewall rule redirected it here.
    pub original_dst: Option<SocketAddr>,
}

#[derive(Debug, Default)]
struct Seen {
    connections: Memory<Connection>,
    requests: Memory<Request>,
}

#[derive(Debug)]
struct Memory<T>(Mutex<VecDeque<T>>);

// === impl Echo ===

impl Echo {
    /// Sends back what it gets, in the way `behavior` says.
    #[track_caller]
    pub fn tcp(addr: impl Into<SocketAddr>, behavior: Behavior) -> Self {
        let behavior = Arc::new(behavior);
        Self::start(addr.into(), move |stream, _connection, _seen| {
            tcp::serve(stream, behavior.clone())
        })
    }

    /// HTTP/1 and HTTP/2: answers with the request it saw, as JSON. A request can ask for
    /// another answer with the headers `x-echo-status`, `x-echo-delay-ms` and
    /// `x-echo-body-bytes`.
    #[track_caller]
    pub fn http(addr: impl Into<SocketAddr>) -> Self {
        Self::http_with(addr, Answer::asked_for)
    }

    /// HTTP with answers of the test's own making.
    #[track_caller]
    pub fn http_with(
        addr: impl Into<SocketAddr>,
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let answer: Arc<http::Answers> = Arc::new(answer);
        Self::start(addr.into(), move |stream, connection, seen| {
            http::serve(stream, connection, seen, answer.clone())
        })
    }

    #[track_caller]
    fn start<F>(
        addr: SocketAddr,
        serve: impl Fn(TcpStream, Connection, Arc<Seen>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(addr)
            .unwrap_or_else(|error| panic!("cannot listen on {addr}: {error}"));
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let (stop, stopped) = oneshot::channel();
        let seen = Arc::new(Seen::default());
        let thread = std::thread::Builder::new()
            .name(format!("echo {addr}"))
            .spawn({
                let seen = seen.clone();
                move || accept(listener, stopped, &seen, serve)
            })
            .expect("a thread can be started");
        Self {
            addr,
            seen,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The connections so far, oldest first.
    pub fn connections(&self) -> Vec<Connection> {
        self.seen.connections.all()
    }

    /// The HTTP requests so far, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.seen.requests.all()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the echo on {} panicked", self.addr);
        }
    }
}

/// Accepts until told to stop; connections still open then are cut.
fn accept<F>(
    listener: TcpListener,
    mut stopped: oneshot::Receiver<()>,
    seen: &Arc<Seen>,
    serve: impl Fn(TcpStream, Connection, Arc<Seen>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        listener
            .set_nonblocking(true)
            .expect("a listener can be non-blocking");
        let listener = tokio::net::TcpListener::from_std(listener).expect("the runtime takes it");
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                accepted = listener.accept() => {
                    let Ok((stream, peer)) = accepted else { continue };
                    let Some(connection) = Connection::of(&stream, peer) else { continue };
                    seen.connections.keep(connection.clone());
                    connections.spawn(serve(stream, connection, seen.clone()));
                }
                Some(_ended) = connections.join_next() => {}
            }
        }
    });
}

// === impl Connection ===

impl Connection {
    /// `None` when the client is gone already.
    fn of(stream: &TcpStream, peer: SocketAddr) -> Option<Self> {
        let local = stream.local_addr().ok()?;
        let socket = socket2::SockRef::from(stream);
        let original = match local {
            SocketAddr::V4(_) => socket.original_dst_v4(),
            SocketAddr::V6(_) => socket.original_dst_v6(),
        };
        let original_dst = original
            .ok()
            .and_then(|addr| addr.as_socket())
            .filter(|dst| *dst != local);
        Some(Self {
            peer,
            local,
            original_dst,
        })
    }
}

// === impl Memory ===

impl<T: Clone> Memory<T> {
    fn keep(&self, entry: T) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() == MEMORY {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    fn all(&self) -> Vec<T> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().cloned().collect()
    }
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[cfg(test)]
mod tests;
