//! A control-plane service whose name leads elsewhere while a proxy is connected to it.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body::Body as _;
use linkerd_core::identity::Id;
use linkerd_proxy::{
    config::{Addr, ControlAddr, SocketOptions},
    control::{
        Channel,
        client::{ConnectOptions, Refresh, ResponseBody},
        dns::Resolver,
    },
    metrics::{Registry, balancer::Kind, control::ControlMetrics},
};
use linkerd_tls::{Local, Store, TrustAnchors};
use tokio::net::{TcpListener, UdpSocket};
use tower::Service as _;

const DEADLINE: Duration = Duration::from_secs(60);
const A: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Nobody listens there.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

/// What the name leads to, and how many were asked.
#[derive(Clone, Default)]
struct Zone(Arc<Mutex<(Vec<IpAddr>, usize)>>);

impl Zone {
    fn set(&self, addrs: &[IpAddr]) {
        self.0.lock().expect("not poisoned").0 = addrs.to_vec();
    }

    fn asked(&self) -> usize {
        self.0.lock().expect("not poisoned").1
    }

    /// Answers queries for IPv4 addresses with records that hold for no time.
    async fn serve(self, socket: UdpSocket) {
        let mut buf = [0; 512];
        while let Ok((n, peer)) = socket.recv_from(&mut buf).await {
            let mut answer = buf[..n].to_vec();
            let ipv4 = answer[n - 4..n - 2] == [0, 1];
            let addrs = {
                let mut zone = self.0.lock().expect("not poisoned");
                zone.1 += usize::from(ipv4);
                zone.0.clone()
            };
            answer[2] = 0x81;
            if ipv4 {
                answer[7] = u8::try_from(addrs.len()).expect("few");
                for addr in addrs {
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                    let IpAddr::V4(addr) = addr else { continue };
                    answer.extend(addr.octets());
                }
            }
            let _ = socket.send_to(&answer, peer).await;
        }
    }
}

/// Answers every call with its own address and says nothing more.
async fn service(listener: TcpListener) {
    while let Ok((io, _)) = listener.accept().await {
        let own = io.local_addr().expect("connected").ip().to_string();
        linkerd_runtime::spawn("service", async move {
            let Ok(mut connection) = h2::server::handshake(io).await else {
                return;
            };
            let mut open = Vec::new();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let answer = http::Response::builder().header("from", &own);
                let answer = answer.body(()).expect("a valid answer");
                open.push(respond.send_response(answer, false).expect("answers"));
            }
        });
    }
}

struct Scene {
    zone: Zone,
    channel: Channel,
    registry: Arc<Registry>,
    _file: tempfile::NamedTempFile,
}

impl Scene {
    async fn new(at: &[IpAddr]) -> Self {
        let (first, second) = pair().await;
        let port = first.local_addr().expect("bound").port();
        linkerd_runtime::spawn("service", service(first));
        linkerd_runtime::spawn("service", service(second));
        let zone = Zone::default();
        zone.set(at);
        let dns = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let servers = format!("nameserver {}\n", dns.local_addr().expect("bound"));
        std::fs::write(file.path(), servers).expect("writes");
        linkerd_runtime::spawn("dns", zone.clone().serve(dns));

        let registry = Arc::new(Registry::new(Duration::from_secs(600)));
        let metrics = ControlMetrics::new(&registry, Kind::Policy, "policy", None);
        let (root, _) = linkerd_testkit::ca::Ca::linkerd();
        let anchors = TrustAnchors::from_pem("test", root.pem().as_bytes()).expect("a root");
        let local = Local::new(Id::parse("web.ns").expect("a name"));
        let service = ControlAddr {
            addr: Addr::Name("policy.test.".into(), port),
            identity: None,
        };
        let options = ConnectOptions {
            timeout: Duration::from_secs(10),
            socket: SocketOptions::default(),
            refresh: Refresh {
                min: Some(Duration::ZERO),
                max: None,
            },
        };
        let channel = Channel::new(
            &service,
            Arc::new(Store::new(anchors, local)),
            Resolver::with_file(file.path().to_owned()),
            options,
            metrics,
        );
        Self {
            zone,
            channel: channel.expect("a channel"),
            registry,
            _file: file,
        }
    }

    /// Makes a call that stays open; gives who took it.
    async fn call(&mut self) -> (String, ResponseBody) {
        let request = http::Request::post("http://policy/Watch");
        let request = request.body(tonic::body::Body::empty()).expect("valid");
        let response = self.channel.call(request).await.expect("an answer");
        let from = response.headers()["from"].to_str().expect("text");
        (from.to_owned(), response.into_body())
    }

    /// Waits until the name was looked up twice more: what was changed before has been seen.
    async fn looked_up(&self) {
        let enough = self.zone.asked() + 2;
        eventually("lookups", || self.zone.asked() >= enough).await;
    }

    fn metric(&self, series: &str) -> String {
        let mut text = String::new();
        self.registry
            .write(&mut text, Instant::now())
            .expect("writes");
        let found = text.lines().find_map(|line| line.strip_prefix(series));
        found.unwrap_or_default().trim().to_owned()
    }

    fn endpoints(&self) -> String {
        self.metric("control_policy_balancer_p2c_endpoints{addr=\"policy\"}")
    }

    fn updates(&self, op: &str) -> String {
        let family = "control_policy_balancer_p2c_updates_total";
        self.metric(&format!("{family}{{addr=\"policy\",op=\"{op}\"}}"))
    }
}

/// Listeners at both addresses, on one port.
async fn pair() -> (TcpListener, TcpListener) {
    for _ in 0..100 {
        let first = TcpListener::bind((A, 0)).await.expect("a port");
        let port = first.local_addr().expect("bound").port();
        if let Ok(second) = TcpListener::bind(SocketAddr::new(B, port)).await {
            return (first, second);
        }
    }
    panic!("no port is free at both addresses");
}

async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn ends(mut body: ResponseBody) {
    let end = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx));
    let end = tokio::time::timeout(DEADLINE, end).await.expect("it ends");
    assert!(!matches!(end, Some(Ok(_))), "{end:?}");
}

fn is_open(body: &mut ResponseBody) -> bool {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let frame: std::task::Poll<Option<Result<http_body::Frame<Bytes>, _>>> =
        std::pin::Pin::new(body).poll_frame(&mut cx);
    frame.is_pending()
}

#[tokio::test]
async fn a_service_that_moved_is_followed() {
    let mut scene = Scene::new(&[A]).await;
    let (from, stream) = scene.call().await;
    assert_eq!(from, A.to_string());
    assert_eq!(scene.endpoints(), "1");

    scene.zone.set(&[B]);
    ends(stream).await;
    let (from, mut stream) = scene.call().await;
    assert_eq!(from, B.to_string());
    assert_eq!(scene.endpoints(), "1");
    assert_eq!(scene.updates("Reset"), "1");
    for (kind, result) in [("SRV", "not_found"), ("A/AAAA", "ok")] {
        let labels = format!("record_type=\"{kind}\",result=\"{result}\"");
        let series = format!("control_dns_resolutions_total{{client=\"control_policy\",{labels}}}");
        assert!(
            scene.metric(&series).parse::<u64>().is_ok_and(|n| n >= 2),
            "{series}"
        );
    }
    assert!(is_open(&mut stream));
}

#[tokio::test]
async fn a_service_is_not_left_without_need() {
    let mut scene = Scene::new(&[A]).await;
    let (from, mut stream) = scene.call().await;
    assert_eq!(from, A.to_string());

    // There are more of it.
    scene.zone.set(&[A, B]);
    scene.looked_up().await;
    assert_eq!(scene.endpoints(), "2");
    assert_eq!(scene.updates("Add"), "2");
    // Nobody knows where it is.
    scene.zone.set(&[]);
    scene.looked_up().await;
    // It should be where nobody is.
    scene.zone.set(&[NOBODY]);
    scene.looked_up().await;
    assert_eq!(scene.endpoints(), "1");
    assert!(is_open(&mut stream));
    let (from, _) = scene.call().await;
    assert_eq!(from, A.to_string());
}

#[tokio::test]
async fn new_connections_go_to_every_address() {
    let mut seen = HashSet::new();
    for _ in 0..64 {
        let mut scene = Scene::new(&[A, B]).await;
        seen.insert(scene.call().await.0);
        if seen.len() == 2 {
            return;
        }
    }
    panic!("only {seen:?}");
}
