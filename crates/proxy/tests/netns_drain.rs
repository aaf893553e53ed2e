//! How the program leaves a pod: on a signal after the application, which may need the network to the
//! end, and at once when asked over its admin port.

#[path = "support/mesh.rs"]
mod mesh;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use linkerd_testkit::{
    control_plane::objects,
    echo::Echo,
    netns::{Namespace, Pod},
    wait_for,
};
use mesh::{ADMIN, DEADLINE, Mesh, Meshed, get};
use rustix::process::Signal;

const VIP: &str = "10.96.0.10:80";
const SERVICE: &str = "web.ns.svc.cluster.local:80";
const SETTINGS: [(&str, &str); 2] = [
    ("SHUTDOWN_GRACE_PERIOD", "120s"),
    ("SHUTDOWN_ENDPOINT_ENABLED", "true"),
];

/// A pod with an application, and a service elsewhere that it uses.
struct Scene {
    mesh: Mesh,
    pod: Meshed,
    app: Echo,
    other: Pod,
    _service: Echo,
}

fn scene() -> Scene {
    let mut mesh = Mesh::new();
    let pod = mesh.meshed("web", &SETTINGS);
    let other = mesh.plain("other");
    let http = |netns: &Namespace| netns.run(|| Echo::http((Ipv4Addr::UNSPECIFIED, 8080)));
    let (app, service) = (http(&pod.pod.netns), http(&other.netns));
    let endpoint = objects::endpoint((other.ip4, 8080).into());
    mesh.service(VIP.parse().expect("an address"), SERVICE, [endpoint]);
    Scene {
        mesh,
        pod,
        app,
        other,
        _service: service,
    }
}

/// Whether a client is told not to come back.
fn is_sent_away(scene: &Scene) -> bool {
    let to = SocketAddr::from((scene.pod.pod.ip4, 8080));
    scene.other.netns.run(|| {
        let mut io = TcpStream::connect(to).expect("connects");
        io.set_read_timeout(Some(DEADLINE)).expect("an option");
        io.write_all(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n")
            .expect("writes");
        let mut head = [0; 1024];
        let n = io.read(&mut head).expect("an answer");
        let head = String::from_utf8_lossy(&head[..n]).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        head.contains("connection: close")
    })
}

/// What the application gets from the other service.
fn asks(netns: &Namespace) {
    let answer = get(netns, VIP.parse().expect("an address"), "/").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_signalled_proxy_leaves_after_its_application() {
    let mut scene = scene();
    let netns = scene.pod.pod.netns.clone();
    asks(&netns);
    assert!(!is_sent_away(&scene), "not yet");
    scene.pod.proxy.signal(Signal::TERM);
    wait_for(DEADLINE, "clients are sent away", || is_sent_away(&scene));
    // It looks for the application ten times a second.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        asks(&netns);
    }
    let proxy = &mut scene.pod.proxy;
    assert!(proxy.is_running(), "the application is still there");
    // The test's control plane has sockets here, too.
    scene.mesh.control.stop();
    drop(scene.app);
    let status = proxy.ended(DEADLINE);
    assert!(status.success(), "{status}");
}

#[test]
fn a_proxy_that_is_asked_to_leaves_at_once() {
    let mut scene = scene();
    let netns = scene.pod.pod.netns.clone();
    asks(&netns);
    let status = netns.run(|| {
        let mut io = TcpStream::connect((Ipv4Addr::LOCALHOST, ADMIN)).expect("connects");
        io.write_all(b"POST /shutdown HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
            .expect("writes");
        let mut head = [0; 12];
        io.read_exact(&mut head).expect("an answer");
        String::from_utf8_lossy(&head).into_owned()
    });
    assert_eq!(status, "HTTP/1.1 200");
    let began = Instant::now();
    let status = scene.pod.proxy.ended(DEADLINE);
    assert!(status.success(), "{status}");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?} of two minutes");
    drop(scene.app);
}
