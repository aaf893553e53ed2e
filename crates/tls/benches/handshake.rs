//! Full and resumed mutual handshakes per CPU-second, both sides in one thread, no sockets.
//! Run with `cargo bench -p linkerd-tls`; the number of handshakes is the first argument.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use linkerd_core::identity::Id;
use linkerd_tls::{
    Alpn, Key, Local, Peer, SigningRequest, Store, TrustAnchors, Validity, client_id,
    confirm_server,
    issuer::generate::Authority,
    rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection},
};
use rustix::time::{ClockId, clock_gettime};

const SERVER: &str = "server.ns.serviceaccount.identity.linkerd.cluster.local";
const CLIENT: &str = "client.ns.serviceaccount.identity.linkerd.cluster.local";

fn store(name: &str, root: &Authority) -> Store {
    let anchors = TrustAnchors::from_certificates(vec![root.certificate.clone()]).expect("anchors");
    let store = Store::new(anchors, Local::new(Id::parse(name).expect("valid")));
    let key = Key::generate().expect("a key");
    let der = SigningRequest::create(name, &key).expect("a request");
    let request = SigningRequest::from_der(&der).expect("parses");
    let validity = Validity {
        lifetime: Duration::from_secs(86_400),
        clock_skew: Duration::from_secs(20),
    };
    let issuer = root.issuer().expect("an issuer");
    let issued = issuer
        .issue(&request, name, validity, SystemTime::now())
        .expect("issues");
    let chain = std::iter::once(issued.leaf)
        .chain(issued.intermediates)
        .collect();
    store.publish(chain, &key).expect("publishes");
    store
}

fn handshake(client: Arc<ClientConfig>, peer: &Peer, server: Arc<ServerConfig>) -> HandshakeKind {
    let mut client = ClientConnection::new(client, peer.server_name()).expect("a client");
    let mut server = ServerConnection::new(server).expect("a server");
    let mut wire = Vec::with_capacity(8 * 1024);
    while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
        wire.clear();
        client.write_tls(&mut wire).expect("memory");
        let mut read = wire.as_slice();
        while !read.is_empty() {
            server.read_tls(&mut read).expect("memory");
            server.process_new_packets().expect("the server is content");
        }
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).expect("memory");
        }
        let mut read = wire.as_slice();
        while !read.is_empty() {
            client.read_tls(&mut read).expect("memory");
            client.process_new_packets().expect("the client is content");
        }
    }
    let now = SystemTime::now();
    confirm_server(&client, peer.id(), now).expect("the right server");
    client_id(&server, now)
        .expect("a good client")
        .expect("with an identity");
    client.handshake_kind().expect("finished")
}

fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        t.tv_sec.unsigned_abs(),
        u32::try_from(t.tv_nsec).unwrap_or(0),
    )
}

fn measure(name: &str, count: u32, mut one: impl FnMut()) {
    (0..count / 10 + 1).for_each(|_| one());
    let before = cpu_time();
    (0..count).for_each(|_| one());
    let each = (cpu_time() - before) / count;
    let rate = 1.0 / each.as_secs_f64();
    #[allow(clippy::print_stdout, reason = "a benchmark's only output")]
    {
        println!(
            "{name:<28} {rate:>9.0} per CPU-second  {:>7.1} µs both sides",
            each.as_secs_f64() * 1e6
        );
    }
}

fn main() {
    let count = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(500);
    let root =
        Authority::for_install("linkerd", "cluster.local", SystemTime::now()).expect("a root");
    let (client, server) = (
        store(CLIENT, &root).snapshot(),
        store(SERVER, &root).snapshot(),
    );
    let accept = server.server_config(Alpn::None).expect("certified");
    let id = Id::parse(SERVER).expect("valid");
    measure("full mutual handshake", count, || {
        let peer = Peer::new(id.clone(), None).expect("a peer");
        let config = peer.client_config(&client, Alpn::None);
        assert_eq!(
            handshake(config, &peer, accept.clone()),
            HandshakeKind::Full
        );
    });
    let peer = Peer::new(id, None).expect("a peer");
    handshake(
        peer.client_config(&client, Alpn::None),
        &peer,
        accept.clone(),
    );
    measure("resumed mutual handshake", count, || {
        let config = peer.client_config(&client, Alpn::None);
        assert_eq!(
            handshake(config, &peer, accept.clone()),
            HandshakeKind::Resumed
        );
    });
}
