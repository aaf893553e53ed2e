//! HTTP/2 settings of listeners and of endpoints, seen from the other end of the connection.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use harness::{CLUSTER_IP, DEADLINE, Pair, forward, http_echo};
use http::{Request, Response};
use linkerd_api::proto::destination::{
    Http2ClientParams, WeightedAddr, http2_client_params as h2p,
};
use linkerd_testkit::{control_plane::objects, wait_for};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What a stream may send before it hears anything, without adaptive windows.
const FIXED: usize = 65_535;
/// One way takes so long, so that a window lasts a measurable time.
const LATENCY: Duration = Duration::from_millis(20);

/// Bytes that passed from the client to the server of a relay.
type Passed = Arc<Mutex<Vec<u8>>>;

/// Relays connections to `to`, each direction a little late.
async fn relay(to: SocketAddr, passed: Passed) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let addr = listener.local_addr().expect("bound");
    linkerd_runtime::spawn("relay", async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(to).await.expect("connects");
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let there = late(from_client, to_server, Some(passed.clone()));
            linkerd_runtime::spawn("there", there);
            linkerd_runtime::spawn("back", late(from_server, to_client, None));
        }
    });
    addr
}

async fn late(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    passed: Option<Passed>,
) {
    let mut buf = vec![0; 1 << 20];
    while let Ok(n) = from.read(&mut buf).await
        && n > 0
    {
        if let Some(passed) = &passed {
            passed.lock().expect("not poisoned").extend(&buf[..n]);
        }
        tokio::time::sleep(LATENCY).await;
        if to.write_all(&buf[..n]).await.is_err() {
            return;
        }
    }
}

/// The pings in what a client has sent.
fn pings(passed: &Passed) -> usize {
    let all = passed.lock().expect("not poisoned");
    let mut frames = all.get(24..).unwrap_or_default();
    let mut count = 0;
    while let Some((head, rest)) = frames.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        count += usize::from(head[3] == 6 && head[4] == 0);
        let length = usize::try_from(length).expect("a length");
        frames = rest.get(length..).unwrap_or_default();
    }
    count
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Uploads through a proxy with these settings until a new stream may send more than usual at once,
/// or for a while.
fn uploads(settings: &[(&str, &str)], patience: Duration) -> usize {
    let app = http_echo();
    let pair = Pair::with(app.addr(), settings, &[]);
    let runtime = runtime();
    runtime.block_on(async {
        let addr = relay(pair.client.outbound, Passed::default()).await;
        let mut send = http2::connect(addr).await;
        let body = vec![Bytes::from(vec![b'x'; 100_000]); 5];
        let deadline = Instant::now() + patience;
        loop {
            let post = || Request::post("http://web.ns/").body(()).expect("valid");
            let got = http2::call(&mut send, post(), &body).await;
            assert_eq!(got.expect("answered").head.status(), 200);
            let (_, mut stream) = send.send_request(post(), false).expect("sends");
            stream.reserve_capacity(1 << 20);
            let allowed = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
            let allowed = allowed.expect("open").expect("open");
            stream.send_reset(h2::Reason::CANCEL);
            if allowed > FIXED || Instant::now() > deadline {
                return allowed;
            }
        }
    })
}

#[test]
fn windows_of_a_listener_adapt_if_they_may() {
    let name = "OUTBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL";
    let fixed = uploads(&[(name, "false")], Duration::from_secs(1));
    assert!(fixed <= FIXED, "{fixed}");
    let adaptive = uploads(&[(name, "true")], DEADLINE);
    assert!(adaptive > FIXED, "{adaptive}");
}

/// Answers with as much as `size`; keeps the largest number of bytes a new stream may send at once.
async fn downloads(listener: TcpListener, size: usize, largest: Arc<AtomicUsize>) {
    while let Ok((io, _)) = listener.accept().await {
        let largest = largest.clone();
        linkerd_runtime::spawn("server", async move {
            let mut builder = h2::server::Builder::new();
            builder.max_send_buffer_size(1 << 22);
            let handshake = builder.handshake::<_, Bytes>(io);
            let mut connection = handshake.await.expect("handshakes");
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let answer = Response::builder().body(()).expect("valid");
                let Ok(mut stream) = respond.send_response(answer, false) else {
                    continue;
                };
                stream.reserve_capacity(1 << 20);
                largest.fetch_max(stream.capacity(), Relaxed);
                let _ = stream.send_data(vec![b'x'; size].into(), true);
            }
        });
    }
}

fn with_params(addr: SocketAddr, params: Http2ClientParams) -> WeightedAddr {
    WeightedAddr {
        http2: Some(params),
        ..objects::endpoint(addr)
    }
}

#[test]
fn windows_towards_an_endpoint_adapt_if_they_may() {
    for (adaptive, patience) in [(false, Duration::from_secs(1)), (true, DEADLINE)] {
        let runtime = runtime();
        let largest = Arc::new(AtomicUsize::new(0));
        let addr = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
            let addr = listener.local_addr().expect("bound");
            linkerd_runtime::spawn("app", downloads(listener, 500_000, largest.clone()));
            relay(addr, Passed::default()).await
        });
        let params = Http2ClientParams {
            flow_control: Some(h2p::FlowControl {
                adaptive_flow_control: adaptive,
                ..h2p::FlowControl::default()
            }),
            ..Http2ClientParams::default()
        };
        let pair = Pair::new(addr);
        let policy = forward(with_params(addr, params));
        pair.control.set_outbound(CLUSTER_IP, policy);
        runtime.block_on(async {
            let mut send = http2::connect(pair.client.outbound).await;
            let deadline = Instant::now() + patience;
            while largest.load(Relaxed) <= FIXED && Instant::now() < deadline {
                let get = Request::get("http://web.ns/").body(()).expect("valid");
                let got = http2::call(&mut send, get, &[]).await.expect("answered");
                assert_eq!(got.body.len(), 500_000);
            }
        });
        let largest = largest.load(Relaxed);
        assert_eq!(largest > FIXED, adaptive, "{largest}");
    }
}

#[test]
fn idle_connections_are_asked_for_a_sign_of_life_if_that_is_wanted() {
    let runtime = runtime();
    let app = http_echo();
    let scene = |while_idle| {
        let passed = Passed::default();
        let addr = runtime.block_on(relay(app.addr(), passed.clone()));
        let params = Http2ClientParams {
            keep_alive: Some(h2p::KeepAlive {
                interval: Some(harness::millis(100)),
                timeout: Some(harness::millis(999)),
                while_idle,
            }),
            ..Http2ClientParams::default()
        };
        let pair = Pair::new(app.addr());
        let policy = forward(with_params(addr, params));
        pair.control.set_outbound(CLUSTER_IP, policy);
        wait_for(DEADLINE, "the policy", || {
            assert_eq!(harness::http2_get(pair.client.outbound, "http://web/"), 200);
            !passed.lock().expect("not poisoned").is_empty()
        });
        (pair, passed)
    };
    let (quiet, asked_when_busy) = scene(false);
    let (_always, asked) = scene(true);
    wait_for(DEADLINE, "pings", || pings(&asked) >= 10);
    // At most one, for a request that was not quite over.
    let before = pings(&asked_when_busy);
    assert!(before <= 1, "{before}");
    runtime.block_on(async {
        let mut send = http2::connect(quiet.client.outbound).await;
        let get = Request::get("http://web/").header("x-echo-delay-ms", "1500");
        let get = get.body(()).expect("valid");
        http2::call(&mut send, get, &[]).await.expect("answered");
    });
    assert!(pings(&asked_when_busy) > before, "asked while it is busy");
}
