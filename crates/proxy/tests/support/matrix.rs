//! The error matrix of running proxies: kinds of clients, what each of them gets, and what becomes of
//! its connection, one line each. The lines of a table are a golden file.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use h2::server::SendResponse;
use linkerd_api::proto::http_route::{
    HttpRouteMatch, PathMatch, PathModifier, RequestRedirect, path_match, path_modifier,
};
use linkerd_proxy::transport_header::PREFACE;
use linkerd_tls::{Alpn, HANDSHAKE_DEADLINE, Store};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::{
    harness::{Client, DEADLINE, block_on, raw_app},
    http2,
};

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Http11,
    Http10,
    Http2,
    Grpc,
    /// HTTP/1.1 on its way between proxies.
    Upgraded,
}

use Kind::{Grpc, Http2, Http10, Http11, Upgraded};

pub const ALL: &[Kind] = &[Http11, Http10, Http2, Grpc];
pub const VERSION_1: &[Kind] = &[Http11, Http10];
pub const VERSION_2: &[Kind] = &[Http2, Grpc];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Http11 => "HTTP/1.1",
            Http10 => "HTTP/1.0",
            Http2 => "HTTP/2",
            Grpc => "gRPC",
            Upgraded => "HTTP/1.1, upgraded",
        }
    }
}

/// Who asks: every cause and every kind of client has an address, and so a target, of its own. What
/// one did to its service is not felt by the next.
#[derive(Clone, Copy, Debug)]
pub struct Seat(pub u8, pub u8);

impl Seat {
    pub fn source(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 1, self.0, self.1 + 1)
    }

    pub fn target(self) -> SocketAddr {
        ([10, 96, self.0, self.1 + 1], 80).into()
    }

    pub fn name(self) -> String {
        format!("s{}-{}.ns.svc.cluster.local", self.0, self.1)
    }

    pub fn service(self) -> String {
        format!("{}:80", self.name())
    }
}

/// What comes back, in one line, without the addresses and dates that differ from run to run.
fn line(status: &str, fields: impl Iterator<Item = (String, String)>, end: &str) -> String {
    let mut text = status.to_owned();
    for (name, value) in fields.filter(|(name, _)| name != "date") {
        let _ = write!(text, " | {name}: {value}");
    }
    format!("{text} -> {end}")
}

/// Asks over HTTP/1; then once more, to see whether the connection is still there.
fn ask_http1(addr: SocketAddr, from: Ipv4Addr, version: &str, extra: &str) -> String {
    let keep = match version {
        "HTTP/1.0" => "connection: keep-alive\r\n",
        _ => "",
    };
    let request = format!("GET /path {version}\r\nhost: web.ns\r\n{keep}{extra}\r\n");
    let mut client = Client::connect_from(from, addr);
    let answer = client.send(&request).answer();
    let status = answer.head.lines().next().unwrap_or_default().to_owned();
    let fields = answer.head.lines().skip(1).filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_owned(), value.to_owned()))
    });
    let fields: Vec<_> = fields.collect();
    let _ = client.io().write_all(request.as_bytes());
    let mut byte = [0];
    let stays = matches!(client.io().read(&mut byte), Ok(1));
    let end = if stays { "stays" } else { "closes" };
    line(&status, fields.into_iter(), end)
}

/// The same over HTTP/2. Whether the connection ends has been said by the time a ping comes back that
/// went out after the answer came.
fn ask_http2(addr: SocketAddr, from: Ipv4Addr, grpc: bool, extra: &[(&str, &str)]) -> String {
    block_on(async {
        let (mut send, mut pings, closed) = http2::connect_with_pings(from, addr).await;
        let request = || {
            let mut request = http::Request::builder().uri("http://web.ns/svc/Method");
            if grpc {
                request = request
                    .method("POST")
                    .header("content-type", "application/grpc")
                    .header("te", "trailers");
            }
            for (name, value) in extra {
                request = request.header(*name, *value);
            }
            request.body(()).expect("valid")
        };
        let text = match http2::call(&mut send, request(), &[]).await {
            Err(error) => format!("reset {:?}", error.reason().expect("a reason")),
            Ok(got) => {
                let fields = got
                    .head
                    .headers()
                    .iter()
                    .chain(got.trailers.iter().flatten());
                let fields = fields.map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    (name.to_string(), value.into_owned())
                });
                let fields: Vec<_> = fields.collect();
                line(got.head.status().as_str(), fields.into_iter(), "")
            }
        };
        let _ = pings.ping(h2::Ping::opaque()).await;
        let stays = match http2::call(&mut send, request(), &[]).await {
            Ok(_) => true,
            Err(error) => error.is_reset(),
        };
        let end = if stays { "stays" } else { "closes" };
        if !stays {
            let ended = tokio::time::timeout(DEADLINE, closed).await;
            ended.expect("it ends, as was said").expect("no panic");
        }
        format!("{} -> {end}", text.trim_end_matches(" -> "))
    })
}

pub fn ask(addr: SocketAddr, seat: Seat, kind: Kind, extra: &[(&str, &str)]) -> String {
    let lines: String = extra.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
    match kind {
        Http11 | Http10 => ask_http1(addr, seat.source(), kind.name(), &lines),
        Http2 | Grpc => ask_http2(addr, seat.source(), kind == Grpc, extra),
        Upgraded => {
            let upgraded = ("l5d-orig-proto", "HTTP/1.1");
            let extra = [extra, &[upgraded]].concat();
            ask_http2(addr, seat.source(), false, &extra)
        }
    }
}

/// An HTTP/2 server that does what the test says with every stream; `store` makes it a meshed one.
pub fn http2_server(
    store: Option<Arc<Store>>,
    serve: impl Fn(&mut SendResponse<Bytes>) + Send + Sync + 'static,
) -> SocketAddr {
    raw_app(move |io| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            io.set_nonblocking(true).expect("an option");
            let io = tokio::net::TcpStream::from_std(io).expect("the runtime takes it");
            match &store {
                None => serve_streams(io, &serve).await,
                Some(store) => {
                    let (alpn, snapshot) = (Alpn::TransportHeader, store.snapshot());
                    let tls =
                        linkerd_tls::handshake::accept(io, &snapshot, alpn, HANDSHAKE_DEADLINE);
                    if let Ok((mut tls, _)) = tls.await
                        && skip_header(&mut tls).await.is_ok()
                    {
                        serve_streams(tls, &serve).await;
                    }
                }
            }
        });
    })
}

/// Reads past a transport header.
async fn skip_header(io: &mut (impl AsyncRead + Unpin)) -> std::io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    io.read_exact(&mut preface).await?;
    let length = io.read_u32().await?;
    let mut message = vec![0; usize::try_from(length).expect("short")];
    io.read_exact(&mut message).await?;
    Ok(())
}

async fn serve_streams(
    io: impl AsyncRead + AsyncWrite + Unpin,
    serve: &impl Fn(&mut SendResponse<Bytes>),
) {
    let Ok(mut connection) = h2::server::handshake(io).await else {
        return;
    };
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        serve(&mut respond);
    }
}

/// Resets a stream with a code nobody else uses.
pub fn reset(respond: &mut SendResponse<Bytes>) {
    respond.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
}

/// Replaces a prefix, which needs a match by one.
pub fn replacing_prefix() -> RequestRedirect {
    RequestRedirect {
        path: Some(PathModifier {
            replace: Some(path_modifier::Replace::Prefix("/new".into())),
        }),
        ..RequestRedirect::default()
    }
}

/// A match that takes every path, by an expression.
pub fn by_expression() -> HttpRouteMatch {
    HttpRouteMatch {
        path: Some(PathMatch {
            kind: Some(path_match::Kind::Regex("/.*".into())),
        }),
        ..HttpRouteMatch::default()
    }
}

/// A peer that takes connections and says nothing.
pub fn silent() -> SocketAddr {
    raw_app(|mut io| {
        let mut all = Vec::new();
        let _ = io.read_to_end(&mut all);
    })
}

/// Compares with, or rewrites, a golden file.
pub fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).expect("the golden file can be written");
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        want == text,
        "{path} differs; UPDATE_GOLDEN=1 rewrites it:\n{text}"
    );
}

pub fn seats(row: usize, kinds: &[Kind]) -> impl Iterator<Item = (Seat, Kind)> {
    let row = u8::try_from(row).expect("few rows");
    kinds
        .iter()
        .map(move |kind| (Seat(row, *kind as u8), *kind))
}

/// A port that takes no more connections: nobody is refused, and nobody gets through.
pub struct Full {
    addr: SocketAddr,
    _listener: socket2::Socket,
    _waiting: Vec<socket2::Socket>,
}

impl Full {
    pub fn new() -> Self {
        let socket = || {
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
                .expect("a socket")
        };
        let listener = socket();
        let free: SocketAddr = ([127, 0, 0, 1], 0).into();
        listener.bind(&free.into()).expect("a free port");
        listener.listen(0).expect("listens");
        let addr = listener.local_addr().expect("bound");
        let waiting = (0..4).map(|_| {
            let client = socket();
            client.set_nonblocking(true).expect("an option");
            // It goes on in the background, or for ever.
            let _ = client.connect(&addr);
            client
        });
        Self {
            _waiting: waiting.collect(),
            addr: addr.as_socket().expect("an address"),
            _listener: listener,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}
