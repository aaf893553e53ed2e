//! A gRPC channel to one control-plane service: resolves its name, connects with mesh TLS (or plain
//! text on loopback), keeps one HTTP/2 connection and makes a new one when it is gone. tonic's
//! generated clients run on it.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::client::SendRequest;
use http_body::{Body as _, Frame};
use linkerd_core::identity::Id;
use linkerd_tls::{Alpn, Peer, Store, handshake};
use rand::seq::SliceRandom;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Mutex, Notify},
    time::timeout,
};

mod follow;

pub use self::follow::Refresh;
use super::dns::{Kind, Record, Resolver, pod_ip};
use crate::{
    config::{Addr, ControlAddr, SocketOptions},
    metrics::control::ControlMetrics,
    socket,
};

/// How a channel connects.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// TCP and TLS together.
    pub timeout: Duration,
    /// Socket options.
    pub socket: SocketOptions,
    /// How often its name is looked up again.
    pub refresh: Refresh,
}

/// A channel; clones share the connection.
#[derive(Clone)]
pub struct Channel(Arc<Inner>);

struct Inner {
    /// Ourselves, for the task that follows the name.
    this: Weak<Inner>,
    addr: Addr,
    authority: http::uri::Authority,
    peer: Option<Peer>,
    store: Arc<Store>,
    resolver: Resolver,
    options: ConnectOptions,
    current: Mutex<Option<SendRequest<Bytes>>>,
    line: Arc<Line>,
    metrics: Arc<ControlMetrics>,
}

/// What a channel and its connection tell each other.
#[derive(Debug, Default)]
struct Line {
    /// Told when there is reason to ask whether the service is still there.
    doubted: Notify,
    state: parking_lot::Mutex<(LineState, Generation)>,
}

/// Which connection it is. Only the latest can be lost: others have been left.
type Generation = u64;

#[derive(Clone, Copy, Debug, Default)]
enum LineState {
    /// There was never a connection.
    #[default]
    Down,
    /// There is none any more.
    Lost,
    /// There is a first connection.
    Up,
    /// There is a connection again, since then.
    Back(Instant),
}

impl Line {
    fn connected(&self) -> Generation {
        let (state, latest) = &mut *self.state.lock();
        *state = match *state {
            LineState::Down => LineState::Up,
            _ => LineState::Back(Instant::now()),
        };
        *latest += 1;
        *latest
    }

    fn lost(&self, generation: Generation) {
        let (state, latest) = &mut *self.state.lock();
        if *latest == generation {
            *state = LineState::Lost;
        }
    }
}

/// How long after a new connection the answers to all open questions may take.
const CATCHING_UP: Duration = Duration::from_secs(2);

/// Why a call could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The service's name did not resolve.
    #[error("cannot resolve {0}")]
    Resolve(Addr, #[source] super::dns::DnsError),
    /// No address of the service took the connection.
    #[error("cannot connect to {0}")]
    Connect(Addr, #[source] io::Error),
    /// It took too long.
    #[error("connecting to {0} timed out")]
    Timeout(Addr),
    /// The TLS handshake failed.
    #[error("TLS with {0} failed")]
    Tls(Addr, #[source] handshake::HandshakeError),
    /// A socket of this host took no connection.
    #[error("cannot connect to {}", .0.display())]
    Socket(PathBuf, #[source] io::Error),
    /// The HTTP/2 connection failed.
    #[error("HTTP/2 failed")]
    Http2(#[from] h2::Error),
    /// The configuration cannot name a peer.
    #[error("invalid control-plane address {0}")]
    Invalid(Addr),
    /// A request body failed, which tonic's never do.
    #[error("the request could not be encoded")]
    Body,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.0.addr).finish()
    }
}

impl Channel {
    /// A channel to `service`. Connects at the first call.
    pub fn new(
        service: &ControlAddr,
        store: Arc<Store>,
        resolver: Resolver,
        options: ConnectOptions,
        metrics: Arc<ControlMetrics>,
    ) -> Result<Self, ChannelError> {
        let invalid = || ChannelError::Invalid(service.addr.clone());
        let peer = match &service.identity {
            Some(id) => {
                let id = Id::parse(id).map_err(|_| invalid())?;
                Some(Peer::new(id, None).map_err(|_| invalid())?)
            }
            None => None,
        };
        let authority = service.addr.to_string().parse().map_err(|_| invalid())?;
        Ok(Self(Arc::new_cyclic(|this| Inner {
            this: this.clone(),
            addr: service.addr.clone(),
            authority,
            peer,
            store,
            resolver,
            options,
            current: Mutex::new(None),
            line: Arc::default(),
            metrics,
        })))
    }

    /// Asks the service for a sign of life soon. One that died with its node, or whose pod was
    /// removed by force, says no farewell; what it said last is wrong from then on.
    pub fn doubt(&self) {
        self.0.line.doubted.notify_waiters();
    }

    /// Whether there is a connection to the service and it had the time to tell what is new: if not,
    /// what it said last may be old.
    pub fn is_current(&self) -> bool {
        match self.0.line.state.lock().0 {
            LineState::Down | LineState::Lost => false,
            LineState::Up => true,
            LineState::Back(since) => since.elapsed() > CATCHING_UP,
        }
    }

    /// Whether the service is on this host.
    pub fn is_loopback(&self) -> bool {
        self.0.addr.is_loopback()
    }

    /// The configured address.
    pub fn addr(&self) -> &Addr {
        &self.0.addr
    }
}

impl Inner {
    async fn ready(&self) -> Result<SendRequest<Bytes>, ChannelError> {
        let mut current = self.current.lock().await;
        if let Some(send) = current.take()
            && let Ok(send) = send.ready().await
        {
            *current = Some(send.clone());
            return Ok(send);
        }
        let send = self.connect().await?;
        *current = Some(send.clone());
        Ok(send)
    }

    /// DNS remembers the pods of a headless service, and that there are none, for up to half a
    /// minute. Where that leads nowhere, the address of the service itself is tried.
    async fn connect(&self) -> Result<SendRequest<Bytes>, ChannelError> {
        let error = match self.connect_to_any(&self.addr).await {
            Ok(send) => return Ok(send),
            Err(error) => error,
        };
        match stable_twin(&self.addr) {
            Some(twin) => self.connect_to_any(&twin).await.map_err(|_| error),
            None => Err(error),
        }
        .inspect_err(|_| self.metrics.balancer.states(0, 1))
    }

    async fn connect_to_any(&self, addr: &Addr) -> Result<SendRequest<Bytes>, ChannelError> {
        let found = self.resolve(addr).await?;
        self.metrics.found(&found.addrs);
        self.connect_to_one_of(found).await
    }

    async fn connect_to_one_of(&self, found: Found) -> Result<SendRequest<Bytes>, ChannelError> {
        let Found { mut addrs, ttl } = found;
        addrs.shuffle(&mut rand::rng());
        let mut last = None;
        for addr in addrs.into_iter().take(8) {
            match timeout(self.options.timeout, self.connect_to(addr, ttl)).await {
                Ok(Ok(send)) => {
                    self.metrics.balancer.states(1, 1);
                    return Ok(send);
                }
                Ok(Err(error)) => last = Some(error),
                Err(_) => last = Some(ChannelError::Timeout(self.addr.clone())),
            }
        }
        Err(last.unwrap_or_else(|| {
            let empty = io::Error::new(io::ErrorKind::NotFound, "no addresses");
            ChannelError::Connect(self.addr.clone(), empty)
        }))
    }

    async fn connect_to(
        &self,
        addr: SocketAddr,
        ttl: Option<Duration>,
    ) -> Result<SendRequest<Bytes>, ChannelError> {
        let io = socket::connect(addr, self.options.socket)
            .await
            .map_err(|e| ChannelError::Connect(self.addr.clone(), e))?;
        let left = follow::follow(self.this.clone(), addr, ttl);
        match &self.peer {
            None => serve_h2(io, self.line.clone(), left).await,
            Some(peer) => {
                let snapshot = self.store.snapshot();
                let tls = handshake::connect(io, peer, &snapshot, Alpn::None, self.options.timeout)
                    .await
                    .map_err(|e| ChannelError::Tls(self.addr.clone(), e))?;
                serve_h2(tls, self.line.clone(), left).await
            }
        }
    }

    async fn resolve(&self, addr: &Addr) -> Result<Found, ChannelError> {
        let fixed = |addr| Found {
            addrs: vec![addr],
            ttl: None,
        };
        let (name, port) = match addr {
            Addr::Socket(addr) => return Ok(fixed(*addr)),
            Addr::Name(_, port) if addr.is_loopback() => {
                return Ok(fixed((Ipv4Addr::LOCALHOST, *port).into()));
            }
            Addr::Name(name, port) => (name, *port),
        };
        // A headless service answers SRV with one target per pod, named by the pod's address.
        let answer = self.resolver.lookup(name, Kind::Srv).await;
        self.metrics.resolved("SRV", answer.is_ok());
        if let Ok(answer) = answer {
            let pods: Vec<SocketAddr> = answer
                .records
                .iter()
                .filter_map(|record| match record {
                    Record::Srv { port, target } => pod_ip(target).map(|ip| (ip, *port).into()),
                    Record::Ip(_) => None,
                })
                .collect();
            if !pods.is_empty() {
                return Ok(Found {
                    addrs: pods,
                    ttl: Some(answer.ttl),
                });
            }
        }
        let answer = self.resolver.addresses(name).await;
        self.metrics.resolved("A/AAAA", answer.is_ok());
        let (ips, ttl): (Vec<IpAddr>, _) =
            answer.map_err(|e| ChannelError::Resolve(self.addr.clone(), e))?;
        Ok(Found {
            addrs: ips.into_iter().map(|ip| (ip, port).into()).collect(),
            ttl: Some(ttl),
        })
    }
}

/// Where a service is.
#[derive(Clone, Debug)]
struct Found {
    addrs: Vec<SocketAddr>,
    /// How long that holds; for good where no name was looked up.
    ttl: Option<Duration>,
}

/// The service with an address of its own beside a headless one of the control plane. The policy
/// service has none; its pods are those of the destination service.
fn stable_twin(addr: &Addr) -> Option<Addr> {
    let Addr::Name(name, port) = addr else {
        return None;
    };
    let (service, rest) = name.split_once('.')?;
    let twin = match service {
        "linkerd-policy" => "linkerd-dst",
        service => service.strip_suffix("-headless")?,
    };
    Some(Addr::Name(format!("{twin}.{rest}"), *port))
}

/// Starts HTTP/2 on a connection, which is kept until it fails or `left` ends.
async fn serve_h2<T>(
    io: T,
    line: Arc<Line>,
    left: impl Future<Output = ()> + Send + 'static,
) -> Result<SendRequest<Bytes>, ChannelError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (send, mut connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 21)
        .max_header_list_size(64 * 1024)
        .enable_push(false)
        .handshake(io)
        .await?;
    let mut pings = connection.ping_pong();
    let generation = line.connected();
    linkerd_runtime::spawn("control-connection", async move {
        let alive = async {
            let Some(pings) = pings.as_mut() else {
                return std::future::pending().await;
            };
            loop {
                let patience = tokio::select! {
                    () = tokio::time::sleep(PING_INTERVAL) => PING_TIMEOUT,
                    () = line.doubted.notified() => DOUBT_TIMEOUT,
                };
                let pong = pings.ping(h2::Ping::opaque());
                if !matches!(timeout(patience, pong).await, Ok(Ok(_))) {
                    return;
                }
            }
        };
        tokio::select! {
            result = connection => if let Err(error) = result {
                tracing::debug!(%error, "Control-plane connection failed");
            },
            () = alive => tracing::debug!("Control plane does not answer pings"),
            () = left => tracing::debug!("Control plane has moved"),
        }
        line.lost(generation);
    });
    Ok(send)
}

const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
const DOUBT_TIMEOUT: Duration = Duration::from_secs(1);

type Call =
    Pin<Box<dyn Future<Output = Result<http::Response<ResponseBody>, ChannelError>> + Send>>;

impl tower::Service<http::Request<tonic::body::Body>> for Channel {
    type Response = http::Response<ResponseBody>;
    type Error = ChannelError;
    type Future = Call;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ChannelError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Call {
        let inner = self.0.clone();
        Box::pin(async move { inner.call(request).await })
    }
}

impl Inner {
    async fn call(
        &self,
        request: http::Request<tonic::body::Body>,
    ) -> Result<http::Response<ResponseBody>, ChannelError> {
        self.metrics.request();
        let broken = |_: &ChannelError| self.metrics.ended(None, None, "IO");
        let send = self.ready().await.inspect_err(broken)?;
        let metrics = Some(self.metrics.clone());
        exchange(send, self.authority.clone(), request, metrics)
            .await
            .inspect_err(broken)
    }
}

async fn exchange(
    mut send: SendRequest<Bytes>,
    authority: http::uri::Authority,
    request: http::Request<tonic::body::Body>,
    metrics: Option<Arc<ControlMetrics>>,
) -> Result<http::Response<ResponseBody>, ChannelError> {
    let began = Instant::now();
    let (mut head, mut body) = request.into_parts();
    let mut uri = std::mem::take(&mut head.uri).into_parts();
    uri.scheme = Some(http::uri::Scheme::HTTP);
    uri.authority = Some(authority);
    head.uri = http::Uri::from_parts(uri).map_err(|_| ChannelError::Body)?;
    head.version = http::Version::HTTP_2;

    let (response, mut stream) = send.send_request(http::Request::from_parts(head, ()), false)?;
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|_| ChannelError::Body)?.into_data() else {
            continue;
        };
        // Requests are a few hundred bytes: well below any window, so they are just queued.
        stream.send_data(data, false)?;
    }
    stream.send_data(Bytes::new(), true)?;
    let response = response.await?;
    if let Some(metrics) = &metrics {
        metrics.answered(began.elapsed());
    }
    let status = response.status().as_u16();
    let grpc = grpc_status(response.headers());
    Ok(response.map(|recv| ResponseBody {
        recv,
        status,
        grpc,
        error: "",
        metrics,
    }))
}

/// One connection to a Unix socket of this host, without TLS.
#[derive(Clone, Debug)]
pub struct UnixChannel(SendRequest<Bytes>);

impl UnixChannel {
    /// Connects to the socket at `path`.
    pub async fn connect(path: &Path) -> Result<Self, ChannelError> {
        let io = tokio::net::UnixStream::connect(path)
            .await
            .map_err(|error| ChannelError::Socket(path.to_owned(), error))?;
        Ok(Self(
            serve_h2(io, Arc::default(), std::future::pending()).await?,
        ))
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for UnixChannel {
    type Response = http::Response<ResponseBody>;
    type Error = ChannelError;
    type Future = Call;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ChannelError>> {
        self.0.poll_ready(cx).map_err(ChannelError::Http2)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Call {
        let authority = http::uri::Authority::from_static("localhost");
        Box::pin(exchange(self.0.clone(), authority, request, None))
    }
}

fn grpc_status(headers: &http::HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// The body of an answer, as tonic reads it; counted when it ends.
#[derive(Debug)]
pub struct ResponseBody {
    recv: h2::RecvStream,
    status: u16,
    grpc: Option<u16>,
    error: &'static str,
    metrics: Option<Arc<ControlMetrics>>,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if let Some(data) = ready!(self.recv.poll_data(cx)) {
            let data = data.inspect_err(|_| self.error = "RESET")?;
            let _ = self.recv.flow_control().release_capacity(data.len());
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(self.recv.poll_trailers(cx))?;
        if let Some(map) = &trailers {
            self.grpc = grpc_status(map);
        }
        Poll::Ready(trailers.map(|map| Ok(Frame::trailers(map))))
    }

    fn is_end_stream(&self) -> bool {
        self.recv.is_end_stream()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.ended(Some(self.status), self.grpc, self.error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twins_of_headless_services() {
        let addr = |text: &str| {
            let (name, port) = text.split_once(':').expect("a port");
            Addr::Name(name.to_owned(), port.parse().expect("a number"))
        };
        for (name, of, want) in [
            (
                "destination",
                "linkerd-dst-headless.linkerd.svc.cluster.local.:8086",
                Some("linkerd-dst.linkerd.svc.cluster.local.:8086"),
            ),
            (
                "identity, in a mesh namespace of its own",
                "linkerd-identity-headless.mesh.svc.cluster.local.:8080",
                Some("linkerd-identity.mesh.svc.cluster.local.:8080"),
            ),
            (
                "policy",
                "linkerd-policy.linkerd.svc.cluster.local.:8090",
                Some("linkerd-dst.linkerd.svc.cluster.local.:8090"),
            ),
            ("its own twin", "linkerd-dst.linkerd.svc:8086", None),
            ("no service", "localhost:8086", None),
        ] {
            assert_eq!(stable_twin(&addr(of)), want.map(addr), "{name}");
        }
    }
}
