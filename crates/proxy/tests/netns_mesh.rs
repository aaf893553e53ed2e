//! The proxy program in pods behind real redirection: what applications see of each protocol.

#[path = "support/mesh.rs"]
mod mesh;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use bytes::Bytes;
use linkerd_testkit::{
    control_plane::objects,
    echo::{Behavior, Echo},
    netns::Pod,
};
use mesh::{DEADLINE, Mesh, Meshed, get};

const VIP: &str = "10.96.0.10:80";
const VIP6: &str = "[fd96::10]:80";
const SERVICE: &str = "web.ns.svc.cluster.local:80";

/// A client's pod, a server's pod, and what runs in the latter.
struct Scene {
    mesh: Mesh,
    client: Meshed,
    server: Meshed,
}

fn scene() -> Scene {
    let mut mesh = Mesh::new();
    let server = mesh.meshed("web", &[]);
    let client = mesh.meshed("curl", &[]);
    Scene {
        mesh,
        client,
        server,
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn http(pod: &Pod, port: u16) -> Echo {
    pod.netns
        .run(|| Echo::http((std::net::Ipv6Addr::UNSPECIFIED, port)))
}

fn tcp(pod: &Pod, port: u16, behavior: Behavior) -> Echo {
    pod.netns
        .run(|| Echo::tcp((std::net::Ipv6Addr::UNSPECIFIED, port), behavior))
}

/// Sends bytes to an echo and reads as many back.
fn echoed(pod: &Pod, to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    pod.netns.run(|| {
        let mut io = TcpStream::connect(to).expect("connects");
        io.set_read_timeout(Some(DEADLINE)).expect("an option");
        io.write_all(bytes).expect("writes");
        let mut back = vec![0; bytes.len()];
        io.read_exact(&mut back).expect("reads");
        back
    })
}

#[test]
fn http1_crosses_with_mutual_tls() {
    let scene = scene();
    let app = http(&scene.server.pod, 8080);
    let endpoint = scene.server.endpoint(scene.server.pod.ip4, 8080);
    scene.mesh.service(addr(VIP), SERVICE, [endpoint]);
    let answer = get(&scene.client.pod.netns, addr(VIP), "/a").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = app.requests().remove(0);
    assert_eq!(
        seen.header("l5d-client-id"),
        Some(scene.client.identity.as_str())
    );
    let secured = scene
        .server
        .metric("request_total", &["direction=\"inbound\"", "tls=\"true\""]);
    assert!((secured - 1.0).abs() < 0.1, "{secured}");
}

#[test]
fn ipv6_works_like_ipv4() {
    let scene = scene();
    let app = http(&scene.server.pod, 8080);
    let endpoint = scene.server.endpoint(scene.server.pod.ip6, 8080);
    scene.mesh.service(addr(VIP6), SERVICE, [endpoint]);
    let answer = get(&scene.client.pod.netns, addr(VIP6), "/six").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = app.requests().remove(0);
    assert_eq!(
        seen.header("l5d-client-id"),
        Some(scene.client.identity.as_str())
    );
    // Straight to the pod's address, which the mesh does not know.
    let direct = SocketAddr::from((scene.server.pod.ip6, 8080));
    let answer = get(&scene.client.pod.netns, direct, "/direct").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn unmeshed_clients_and_unknown_destinations_pass() {
    let scene = scene();
    let app = http(&scene.server.pod, 8080);
    let stranger = scene.mesh.plain("stranger");
    let direct = SocketAddr::from((scene.server.pod.ip4, 8080));
    let answer = get(&stranger.netns, direct, "/in").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(app.requests().remove(0).header("l5d-client-id"), None);
    let outside = http(&stranger, 9000);
    let away = SocketAddr::from((stranger.ip4, 9000));
    let answer = get(&scene.client.pod.netns, away, "/out").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(outside.requests().len(), 1);
}

#[test]
fn http2_and_grpc_cross() {
    let scene = scene();
    let app = scene
        .server
        .pod
        .netns
        .run(|| std::net::TcpListener::bind("[::]:50051").expect("binds"));
    std::thread::spawn(move || grpc_server(app));
    let endpoint = scene.server.endpoint(scene.server.pod.ip4, 50051);
    scene.mesh.service(addr(VIP), SERVICE, [endpoint]);
    let (status, body, grpc) = scene.client.pod.netns.block_on(async || {
        tokio::time::timeout(DEADLINE, call())
            .await
            .expect("in time")
    });
    assert_eq!((status, body.as_slice()), (200, &b"abcd"[..]));
    assert_eq!(grpc.as_deref(), Some("0"));
}

async fn call() -> (u16, Vec<u8>, Option<String>) {
    let io = tokio::net::TcpStream::connect(VIP).await.expect("connects");
    let (mut send, connection) = h2::client::handshake(io).await.expect("handshakes");
    linkerd_runtime::spawn("client", async move {
        let _ = connection.await;
    });
    let request = http::Request::post("http://web.ns/svc/Echo")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("valid");
    let (response, mut stream) = send.send_request(request, false).expect("sends");
    for (piece, end) in [("ab", false), ("cd", true)] {
        stream
            .send_data(Bytes::from_static(piece.as_bytes()), end)
            .expect("sends");
    }
    let (head, mut body) = response.await.expect("answered").into_parts();
    let mut got = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.expect("data");
        let _ = body.flow_control().release_capacity(data.len());
        got.extend(&data);
    }
    let trailers = body.trailers().await.expect("an end");
    let status = trailers.and_then(|t| Some(t.get("grpc-status")?.to_str().ok()?.to_owned()));
    (head.status.as_u16(), got, status)
}

/// Sends back what it gets, with the trailers of gRPC.
fn grpc_server(listener: std::net::TcpListener) {
    listener.set_nonblocking(true).expect("an option");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("registers");
        while let Ok((io, _)) = listener.accept().await {
            linkerd_runtime::spawn("grpc", async move {
                let Ok(mut connection) = h2::server::handshake(io).await else {
                    return;
                };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    linkerd_runtime::spawn("call", async move {
                        let mut body = request.into_body();
                        let head = http::Response::builder()
                            .header("content-type", "application/grpc")
                            .body(())
                            .expect("valid");
                        let mut stream = respond.send_response(head, false).expect("sends");
                        while let Some(Ok(data)) = body.data().await {
                            let _ = body.flow_control().release_capacity(data.len());
                            stream.send_data(data, false).expect("sends");
                        }
                        let mut trailers = http::HeaderMap::new();
                        trailers.insert("grpc-status", "0".parse().expect("valid"));
                        stream.send_trailers(trailers).expect("sends");
                    });
                }
            });
        }
    });
}

#[test]
fn opaque_bytes_and_foreign_tls_cross_untouched() {
    let scene = scene();
    let _app = tcp(&scene.server.pod, 5432, Behavior::default());
    let endpoint = scene.server.endpoint(scene.server.pod.ip4, 5432);
    scene.mesh.service(addr(VIP), SERVICE, [endpoint]);
    let noise: Vec<u8> = (0..100_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    assert_eq!(echoed(&scene.client.pod, addr(VIP), &noise), noise);
    // The beginning of TLS with a name that is not ours, and something behind it.
    let mut hello = client_hello("db.example.com");
    hello.extend(&noise);
    assert_eq!(echoed(&scene.client.pod, addr(VIP), &hello), hello);
    // The same to a pod the mesh has not been told about: its own proxy has to pass it on.
    let direct = SocketAddr::from((scene.server.pod.ip4, 5432));
    assert_eq!(echoed(&scene.client.pod, direct, &hello), hello);
}

/// A TLS 1.2 ClientHello with one cipher suite and a server name.
fn client_hello(name: &str) -> Vec<u8> {
    let short = |n: usize| u16::try_from(n).expect("short").to_be_bytes();
    let mut names = vec![0];
    names.extend(short(name.len()));
    names.extend(name.as_bytes());
    let mut extension = vec![0, 0];
    extension.extend(short(names.len() + 2));
    extension.extend(short(names.len()));
    extension.extend(names);
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 2, 0x13, 0x01, 1, 0]);
    body.extend(short(extension.len()));
    body.extend(extension);
    let mut record = vec![22, 3, 1];
    record.extend(short(body.len() + 4));
    record.extend([1, 0]);
    record.extend(short(body.len()));
    record.extend(body);
    record
}

#[test]
fn a_server_that_speaks_first_is_not_kept_waiting() {
    let scene = scene();
    let greeting = Bytes::from_static(b"220 hello\r\n");
    let behavior = Behavior {
        greeting: greeting.clone(),
        ..Behavior::default()
    };
    let _app = tcp(&scene.server.pod, 2525, behavior);
    let endpoint = scene.server.endpoint(scene.server.pod.ip4, 2525);
    scene.mesh.service(addr(VIP), SERVICE, [endpoint]);
    let (heard, after) = scene.client.pod.netns.run(|| {
        let started = Instant::now();
        let mut io = TcpStream::connect(VIP).expect("connects");
        io.set_read_timeout(Some(DEADLINE)).expect("an option");
        let mut heard = vec![0; greeting.len()];
        io.read_exact(&mut heard).expect("reads");
        (heard, started.elapsed())
    });
    assert_eq!(heard, greeting);
    assert!(
        after < Duration::from_secs(8),
        "{after:?}, detection takes 10"
    );
}

#[test]
fn policy_guards_application_and_admin_ports() {
    let mut mesh = Mesh::new();
    let server = mesh.meshed("web", &[("INBOUND_DEFAULT_POLICY", "all-authenticated")]);
    let client = mesh.meshed("curl", &[]);
    let stranger = mesh.plain("stranger");
    let app = http(&server.pod, 8080);
    mesh.service(addr(VIP), SERVICE, [server.endpoint(server.pod.ip4, 8080)]);
    let direct = SocketAddr::from((server.pod.ip4, 8080));
    let answer = get(&stranger.netns, direct, "/").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let answer = get(&client.pod.netns, addr(VIP), "/").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(app.requests().len(), 1);
    // The admin port has the policy of its own port.
    let admin = SocketAddr::from((server.pod.ip4, mesh::ADMIN));
    let answer = get(&stranger.netns, admin, "/metrics").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let ready = server.admin("/ready").expect("an answer");
    assert!(ready.starts_with("HTTP/1.1 200"), "loopback may: {ready}");
    let open = objects::inbound_detect(vec![objects::allow("everybody", None)]);
    mesh.control.set_inbound(mesh::ADMIN, open);
    linkerd_testkit::wait_for(DEADLINE, "policy opens the admin port", || {
        get(&stranger.netns, admin, "/metrics").is_ok_and(|a| a.starts_with("HTTP/1.1 200"))
    });
}
