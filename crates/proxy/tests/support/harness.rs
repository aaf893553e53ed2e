//! Two real proxies in this process, between a client and an application, under a control plane the
//! test drives. Only the original destinations are given, since nothing is redirected here.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use linkerd_api::proto::{destination::WeightedAddr, outbound};
use linkerd_proxy::{
    app::{self, Running, Seams},
    config::Config,
    socket::OrigDst,
};
use linkerd_testkit::{
    ca::identity,
    control_plane::{ControlPlane, objects},
    echo::Echo,
    wait_for,
};
use linkerd_tls::Store;
use tempfile::TempDir;

/// Nothing in a test may take longer.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// What the service is called.
pub const SERVICE: &str = "web.ns.svc.cluster.local:80";
/// Where clients believe it is.
pub const CLUSTER_IP: &str = "10.96.0.10:80";

/// One proxy and what it needs on disk.
pub struct Proxy {
    running: Option<Running>,
    _dir: TempDir,
    pub outbound: SocketAddr,
    pub inbound: SocketAddr,
    pub admin: SocketAddr,
    pub tap: Option<SocketAddr>,
    pub store: Arc<Store>,
    pub identity: String,
}

/// The environment of a proxy, with what a test gives it besides.
pub fn environment(
    control: &ControlPlane,
    dir: &std::path::Path,
    name: &str,
    extra: &[(&str, &str)],
) -> HashMap<String, String> {
    let token = dir.join("token");
    std::fs::write(&token, "token").expect("a file can be written");
    let control_addr = control.addr().to_string();
    let path = |p: &std::path::Path| p.to_str().expect("text").to_owned();
    let mut env: HashMap<String, String> = [
        ("OUTBOUND_LISTEN_ADDR", "127.0.0.1:0".to_owned()),
        ("INBOUND_LISTEN_ADDR", "127.0.0.1:0".to_owned()),
        ("ADMIN_LISTEN_ADDR", "127.0.0.1:0".to_owned()),
        ("CONTROL_LISTEN_ADDR", "127.0.0.1:0".to_owned()),
        ("DESTINATION_SVC_ADDR", control_addr.clone()),
        ("POLICY_SVC_ADDR", control_addr.clone()),
        ("IDENTITY_SVC_ADDR", control_addr),
        ("POLICY_WORKLOAD", "ns:pod".to_owned()),
        ("IDENTITY_DIR", path(dir)),
        ("IDENTITY_TOKEN_FILE", path(&token)),
        ("IDENTITY_TRUST_ANCHORS", control.anchors_pem().to_owned()),
        ("IDENTITY_LOCAL_NAME", name.to_owned()),
        ("DESTINATION_PROFILE_NETWORKS", "10.0.0.0/8".to_owned()),
        ("INBOUND_CONNECT_TIMEOUT", "10s".to_owned()),
        ("OUTBOUND_CONNECT_TIMEOUT", "10s".to_owned()),
        ("SHUTDOWN_ENDPOINT_ENABLED", "true".to_owned()),
        ("INBOUND_DEFAULT_POLICY", "all-unauthenticated".to_owned()),
    ]
    .into_iter()
    .map(|(k, v)| (format!("LINKERD2_PROXY_{k}"), v))
    .collect();
    for (name, value) in extra {
        let name = match *name {
            bare @ ("HOSTNAME" | "OTEL_RESOURCE_ATTRIBUTES") => bare.to_owned(),
            name => format!("LINKERD2_PROXY_{name}"),
        };
        env.insert(name, (*value).to_owned());
    }
    if extra.iter().any(|(name, _)| *name == "IDENTITY_SERVER_ID") {
        // One name for both would win over one for each.
        env.remove("LINKERD2_PROXY_IDENTITY_LOCAL_NAME");
    }
    env
}

impl Proxy {
    /// Starts a proxy and waits until it is certified.
    pub fn start<'a>(
        control: &ControlPlane,
        service_account: &str,
        outbound_dst: OrigDst,
        inbound_dst: OrigDst,
        extra: impl Into<Settings<'a>>,
    ) -> Self {
        let extra = extra.into();
        let dir = tempfile::tempdir().expect("a directory can be made");
        let name = identity(service_account, "ns");
        let env = environment(control, dir.path(), &name, extra.env);
        let config = Config::read(&env).expect("a valid configuration");
        let seams = Seams {
            outbound_dst,
            inbound_dst,
            allow_loopback: !extra.guarded,
            access_log: extra.access_log,
            ..Seams::default()
        };
        let running = app::start(config, seams).expect("the proxy starts");
        let store = running.store.clone();
        wait_for(DEADLINE, "the first certificate", || {
            store.snapshot().is_certified()
        });
        Self {
            outbound: running.outbound[0],
            inbound: running.inbound,
            admin: running.admin,
            tap: running.tap,
            store,
            running: Some(running),
            identity: name,
            _dir: dir,
        }
    }

    /// Starts a graceful shutdown.
    pub fn shutdown(&self) {
        if let Some(running) = &self.running {
            running.shutdown();
        }
    }

    /// Waits until a shutdown is over.
    pub fn join(&mut self) {
        if let Some(running) = self.running.take() {
            running.join();
        }
    }

    /// The text of `/metrics`.
    pub fn metrics(&self) -> String {
        get(self.admin, "/metrics", "localhost").body_text()
    }

    /// The sum of all series of a family whose labels contain every fragment, without those of the
    /// admin port: asking counts, too.
    pub fn metric(&self, family: &str, labels: &[&str]) -> f64 {
        let admin = format!("target_addr=\"{}\"", self.admin);
        self.metrics()
            .lines()
            .filter(|line| !line.contains(&admin))
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                let (name, rest) = series.split_once('{').unwrap_or((series, ""));
                (name == family && labels.iter().all(|l| rest.contains(l)))
                    .then(|| value.parse::<f64>().ok())?
            })
            .sum()
    }
}

/// Waits until a proxy shows that sum.
#[track_caller]
pub fn counts(proxy: &Proxy, family: &str, labels: &[&str], want: f64) {
    let what = format!("{family} {labels:?} to be {want}");
    wait_for(DEADLINE, &what, || {
        (proxy.metric(family, labels) - want).abs() < 0.1
    });
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What differs from one test's proxy to another's.
#[derive(Default)]
pub struct Settings<'a> {
    /// Variables, without the prefix that most have.
    pub env: &'a [(&'a str, &'a str)],
    /// Where its access log goes.
    pub access_log: Option<Box<dyn Write + Send>>,
    /// Whether outbound connections to loopback are refused, as in a pod.
    pub guarded: bool,
}

impl<'a> From<&'a [(&'a str, &'a str)]> for Settings<'a> {
    fn from(env: &'a [(&'a str, &'a str)]) -> Self {
        Self {
            env,
            ..Self::default()
        }
    }
}

impl<'a, const N: usize> From<&'a [(&'a str, &'a str); N]> for Settings<'a> {
    fn from(env: &'a [(&'a str, &'a str); N]) -> Self {
        env.as_slice().into()
    }
}

/// Client proxy → server proxy → application.
pub struct Pair {
    pub control: ControlPlane,
    pub client: Proxy,
    pub server: Proxy,
}

impl Pair {
    /// A meshed service with one endpoint, the application at `app`.
    pub fn new(app: SocketAddr) -> Self {
        Self::with(app, &[], &[])
    }

    /// With a control plane that knows more from the start.
    pub fn prepared(app: SocketAddr, prepare: impl FnOnce(&ControlPlane)) -> Self {
        Self::with_all(app, (&[][..]).into(), (&[][..]).into(), prepare)
    }

    /// With settings of the client's and the server's proxy.
    pub fn with(app: SocketAddr, client: &[(&str, &str)], server: &[(&str, &str)]) -> Self {
        Self::with_settings(app, client.into(), server.into())
    }

    /// With everything a test may replace.
    pub fn with_settings(app: SocketAddr, client: Settings<'_>, server: Settings<'_>) -> Self {
        Self::with_all(app, client, server, |_| {})
    }

    /// With everything, and a control plane that knows more from the start.
    pub fn with_all(
        app: SocketAddr,
        client: Settings<'_>,
        server: Settings<'_>,
        prepare: impl FnOnce(&ControlPlane),
    ) -> Self {
        let control = ControlPlane::start();
        prepare(&control);
        let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
        let server = Proxy::start(&control, "web", local.clone(), local.clone(), server);
        control.set_outbound(CLUSTER_IP, objects::service(SERVICE));
        let endpoint = objects::meshed(app, &server.identity, server.inbound.port());
        control.set_endpoints(SERVICE, [endpoint]);
        let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
        let client = Proxy::start(&control, "curl", vip, local, client);
        Self {
            control,
            client,
            server,
        }
    }
}

/// An HTTP echo on a free port.
pub fn http_echo() -> Echo {
    Echo::http(([127, 0, 0, 1], 0))
}

/// A port that nobody listens on and nobody else can take.
pub struct Closed(socket2::Socket);

impl Closed {
    pub fn new() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket");
        let free: SocketAddr = ([127, 0, 0, 1], 0).into();
        socket.set_reuse_address(true).expect("an option");
        socket.bind(&free.into()).expect("a free port");
        Self(socket)
    }

    pub fn addr(&self) -> SocketAddr {
        let addr = self.0.local_addr().expect("it is bound");
        addr.as_socket().expect("an address")
    }
}

/// A raw HTTP/1 answer.
#[derive(Debug)]
pub struct Answer {
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head
            .get(9..12)
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| panic!("no status in {:?}", self.head))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (n, v) = line.split_once(':')?;
            n.eq_ignore_ascii_case(name).then(|| v.trim())
        })
    }

    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body_text()))
    }
}

/// One HTTP/1 connection of a test.
pub struct Client {
    io: TcpStream,
    buf: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        let io = TcpStream::connect(addr).expect("connects");
        io.set_read_timeout(Some(DEADLINE)).expect("an option");
        io.set_nodelay(true).expect("an option");
        Self {
            io,
            buf: Vec::new(),
        }
    }

    /// A client that is not on this host, as far as policy can see.
    pub fn connect_from_afar(addr: SocketAddr) -> Self {
        Self::connect_from([127, 0, 0, 2].into(), addr)
    }

    /// A client with an address of its own.
    pub fn connect_from(from: std::net::Ipv4Addr, addr: SocketAddr) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket");
        let from: SocketAddr = (from, 0).into();
        socket.bind(&from.into()).expect("an address of ours");
        socket.connect(&addr.into()).expect("connects");
        let io = TcpStream::from(socket);
        io.set_read_timeout(Some(DEADLINE)).expect("an option");
        Self {
            io,
            buf: Vec::new(),
        }
    }

    pub fn send(&mut self, text: impl AsRef<[u8]>) -> &mut Self {
        self.io.write_all(text.as_ref()).expect("writes");
        self
    }

    pub fn io(&self) -> &TcpStream {
        &self.io
    }

    fn fill(&mut self) -> usize {
        let mut chunk = [0; 16 * 1024];
        let n = self.io.read(&mut chunk).expect("reads within the deadline");
        self.buf.extend(&chunk[..n]);
        n
    }

    /// Reads to the end.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill() > 0 {}
        std::mem::take(&mut self.buf)
    }

    /// Whether the connection ends without a word. Bytes nobody read make that a reset.
    pub fn closed(&mut self) -> bool {
        let mut byte = [0];
        match self.io.read(&mut byte) {
            Ok(n) => n == 0 && self.buf.is_empty(),
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    /// Reads so many bytes.
    pub fn exactly(&mut self, n: usize) -> Vec<u8> {
        while self.buf.len() < n {
            assert!(
                self.fill() > 0,
                "closed after {} of {n} bytes",
                self.buf.len()
            );
        }
        self.buf.drain(..n).collect()
    }

    /// Reads a head.
    pub fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.buf.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = self.buf.drain(..end + 4).collect();
                return String::from_utf8(head).expect("a text head");
            }
            assert!(self.fill() > 0, "closed inside a head: {:?}", self.buf);
        }
    }

    /// Reads an answer with a body of known length or in chunks.
    pub fn answer(&mut self) -> Answer {
        let head = self.head();
        let mut answer = Answer {
            head,
            body: Vec::new(),
        };
        if let Some(length) = answer.header("content-length") {
            let length = length.parse().expect("a length");
            answer.body = self.exactly(length);
        } else if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let line = self.line();
                let size = usize::from_str_radix(line.trim(), 16).expect("a chunk size");
                if size == 0 {
                    while self.line() != "\r\n" {}
                    break;
                }
                let chunk = self.exactly(size + 2);
                answer.body.extend(&chunk[..size]);
            }
        }
        answer
    }

    /// Reads a line.
    pub fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buf.iter().position(|b| *b == b'\n') {
                let line = self.buf.drain(..=end).collect();
                return String::from_utf8(line).expect("text");
            }
            assert!(self.fill() > 0, "closed inside a line");
        }
    }

    pub fn get(&mut self, path: &str, host: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"))
            .answer()
    }
}

/// One request on a connection of its own.
pub fn get(addr: SocketAddr, path: &str, host: &str) -> Answer {
    Client::connect(addr).get(path, host)
}

/// Runs a future to its end within the deadline.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(DEADLINE, future).await })
        .expect("within the deadline")
}

/// The status of one HTTP/2 request on a connection of its own.
pub fn http2_get(addr: SocketAddr, uri: &str) -> u16 {
    block_on(async {
        let io = tokio::net::TcpStream::connect(addr)
            .await
            .expect("connects");
        let (mut send, connection) = h2::client::handshake(io).await.expect("handshakes");
        linkerd_runtime::spawn("client", async move {
            let _ = connection.await;
        });
        let request = http::Request::get(uri).body(()).expect("valid");
        let (response, _) = send.send_request(request, true).expect("sends");
        let response = response.await.expect("answered");
        response.status().as_u16()
    })
}

/// Below a second.
pub fn millis(ms: i32) -> prost_types::Duration {
    prost_types::Duration {
        seconds: 0,
        nanos: ms * 1_000_000,
    }
}

/// A policy whose only rule is changed by `change`.
pub fn rule(change: impl FnOnce(&mut outbound::http_route::Rule)) -> outbound::OutboundPolicy {
    let mut route = objects::http_route(objects::balancer(SERVICE));
    change(&mut route.rules[0]);
    objects::detect(vec![route], None)
}

/// A policy that takes everything to one endpoint, which is not balanced.
pub fn forward(endpoint: WeightedAddr) -> outbound::OutboundPolicy {
    let backend = outbound::Backend {
        metadata: Some(objects::resource("Service", "ns", "web")),
        queue: None,
        kind: Some(outbound::backend::Kind::Forward(endpoint)),
    };
    objects::detect(vec![objects::http_route(backend)], None)
}

/// An application that does what the test says with every connection.
pub fn raw_app(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let addr = listener.local_addr().expect("bound");
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for io in listener.incoming() {
            let Ok(io) = io else { return };
            let serve = serve.clone();
            std::thread::spawn(move || serve(io));
        }
    });
    addr
}

/// Says something as soon as it is connected to, and repeats what it hears.
pub fn greeter() -> SocketAddr {
    raw_app(|mut io| {
        let _ = io.write_all(b"220 ready\r\n");
        let mut buf = [0; 64];
        while let Ok(n) = io.read(&mut buf)
            && n > 0
        {
            let _ = io.write_all(&buf[..n]);
        }
    })
}
