//! Handshakes between two stores over an in-memory stream: identities, refusals, resumption.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use linkerd_core::identity::Id;
use linkerd_tls::{
    Alpn, Clock, HANDSHAKE_DEADLINE, HandshakeError, Key, Local, Peer, RejectedPeer,
    SigningRequest, Store, TrustAnchors, Validity,
    handshake::{accept, connect},
    issuer::generate::{Authority, CaProfile},
    rustls::{HandshakeKind, NamedGroup, ProtocolVersion},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

const SERVER: &str = "server.ns.serviceaccount.identity.linkerd.cluster.local";
const CLIENT: &str = "client.ns.serviceaccount.identity.linkerd.cluster.local";
const DAY: Duration = Duration::from_secs(86_400);
const SKEW: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000)))
    }

    fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_secs(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

fn authority(name: &str, clock: &ManualClock) -> Authority {
    Authority::self_signed(&CaProfile {
        common_name: name.to_owned(),
        not_before: clock.now() - DAY,
        not_after: clock.now() + 365 * DAY,
        path_len: None,
        extended_key_usage: false,
        serial: None,
    })
    .expect("a root")
}

fn anchors(of: &[&Authority]) -> TrustAnchors {
    TrustAnchors::from_certificates(of.iter().map(|a| a.certificate.clone()).collect())
        .expect("anchors")
}

fn id(name: &str) -> Id {
    Id::parse(name).expect("a valid name")
}

/// A workload with a store, which certifies itself with any authority.
struct Workload {
    name: &'static str,
    key: Key,
    clock: ManualClock,
    store: Store,
}

impl Workload {
    fn new(name: &'static str, trusts: TrustAnchors, clock: &ManualClock) -> Self {
        let store = Store::with_clock(trusts, Local::new(id(name)), Arc::new(clock.clone()));
        Self {
            name,
            key: Key::generate().expect("a key"),
            clock: clock.clone(),
            store,
        }
    }

    fn certify(&self, by: &Authority, lifetime: Duration) -> &Self {
        let der = SigningRequest::create(self.name, &self.key).expect("a request");
        let request = SigningRequest::from_der(&der).expect("parses");
        let validity = Validity {
            lifetime,
            clock_skew: SKEW,
        };
        let issuer = by.issuer().expect("an issuer");
        let issued = issuer
            .issue(&request, self.name, validity, self.clock.now())
            .expect("issues");
        let chain = std::iter::once(issued.leaf)
            .chain(issued.intermediates)
            .collect();
        self.store.publish(chain, &self.key).expect("publishes");
        self
    }
}

#[derive(Debug)]
struct Seen {
    client: Result<Client, HandshakeError>,
    server: Result<(Option<Id>, HandshakeKind), HandshakeError>,
}

#[derive(Debug)]
struct Client {
    kind: HandshakeKind,
    alpn: Option<Vec<u8>>,
    group: Option<NamedGroup>,
    version: Option<ProtocolVersion>,
}

impl Seen {
    fn client(&self) -> &Client {
        self.client.as_ref().expect("the client is content")
    }

    fn server(&self) -> &(Option<Id>, HandshakeKind) {
        self.server.as_ref().expect("the server is content")
    }
}

/// One connection: the server greets with one byte, which also carries the tickets over.
async fn meet(client: &Store, peer: &Peer, server: &Store, offered: Alpn, accepted: Alpn) -> Seen {
    let (near, far) = duplex(64 * 1024);
    let (ours, theirs) = (client.snapshot(), server.snapshot());
    let client = async move {
        let mut stream = connect(near, peer, &ours, offered, HANDSHAKE_DEADLINE).await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        let conn = stream.get_ref().1;
        Ok(Client {
            kind: conn.handshake_kind().expect("finished"),
            alpn: conn.alpn_protocol().map(<[u8]>::to_vec),
            group: conn.negotiated_key_exchange_group().map(|g| g.name()),
            version: conn.protocol_version(),
        })
    };
    let server = async move {
        let (mut stream, id) = accept(far, &theirs, accepted, HANDSHAKE_DEADLINE).await?;
        stream.write_all(b"!").await?;
        stream.flush().await?;
        Ok((id, stream.get_ref().1.handshake_kind().expect("finished")))
    };
    let (client, server) = tokio::join!(client, server);
    Seen { client, server }
}

struct World {
    clock: ManualClock,
    root: Authority,
    client: Workload,
    server: Workload,
    peer: Peer,
}

fn world() -> World {
    let clock = ManualClock::new();
    let root = authority("root", &clock);
    let client = Workload::new(CLIENT, anchors(&[&root]), &clock);
    let server = Workload::new(SERVER, anchors(&[&root]), &clock);
    client.certify(&root, DAY);
    server.certify(&root, DAY);
    let peer = Peer::new(id(SERVER), None).expect("a peer");
    World {
        clock,
        root,
        client,
        server,
        peer,
    }
}

impl World {
    async fn meet(&self) -> Seen {
        let (client, server) = (&self.client.store, &self.server.store);
        meet(client, &self.peer, server, Alpn::None, Alpn::None).await
    }
}

#[tokio::test]
async fn both_sides_know_each_other() {
    let w = world();
    for (offered, accepted, want) in [
        (Alpn::None, Alpn::None, None),
        (
            Alpn::TransportHeader,
            Alpn::TransportHeader,
            Some(b"transport.l5d.io/v1".to_vec()),
        ),
        (Alpn::None, Alpn::TransportHeader, None),
        (Alpn::TransportHeader, Alpn::None, None),
    ] {
        let peer = Peer::new(id(SERVER), None).expect("a peer");
        let seen = meet(&w.client.store, &peer, &w.server.store, offered, accepted).await;
        assert_eq!(seen.client().alpn, want, "{offered:?} {accepted:?}");
        assert_eq!(seen.client().version, Some(ProtocolVersion::TLSv1_3));
        assert_eq!(seen.client().group, Some(NamedGroup::X25519MLKEM768));
        assert_eq!(seen.server().0, Some(id(CLIENT)));
    }
}

#[tokio::test]
async fn a_server_with_another_name_gets_nothing() {
    let w = world();
    let wrong = Peer::new(
        id("other.ns.serviceaccount.identity.linkerd.cluster.local"),
        None,
    )
    .expect("a peer");
    let seen = meet(
        &w.client.store,
        &wrong,
        &w.server.store,
        Alpn::None,
        Alpn::None,
    )
    .await;
    let error = seen.client.expect_err("the client refuses");
    let text = format!("{error:?}");
    assert!(text.contains("IdMismatch"), "{text}");
    assert!(seen.server.is_err(), "the server is told");
}

#[tokio::test]
async fn server_name_and_identity_may_differ() {
    let w = world();
    let peer = Peer::new(id(SERVER), Some("gateway.example")).expect("a peer");
    let seen = meet(
        &w.client.store,
        &peer,
        &w.server.store,
        Alpn::None,
        Alpn::None,
    )
    .await;
    assert_eq!(seen.server().0, Some(id(CLIENT)));
    let uri = id("spiffe://cluster.local/ns/a/sa/b");
    assert!(
        Peer::new(uri.clone(), None).is_err(),
        "a URI cannot be a server name"
    );
    assert!(
        Peer::new(uri, Some("10.0.0.1")).is_err(),
        "nor can an address"
    );
}

#[tokio::test]
async fn a_client_without_certificate_is_nobody() {
    let w = world();
    let fresh = Workload::new(CLIENT, anchors(&[&w.root]), &w.clock);
    let seen = meet(
        &fresh.store,
        &w.peer,
        &w.server.store,
        Alpn::None,
        Alpn::None,
    )
    .await;
    assert_eq!(seen.server().0, None);
    assert!(seen.client.is_ok());
    let seen = meet(
        &w.client.store,
        &w.peer,
        &fresh.store,
        Alpn::None,
        Alpn::None,
    )
    .await;
    assert!(matches!(seen.server, Err(HandshakeError::NotCertified)));
}

#[tokio::test]
async fn strangers_are_refused_both_ways() {
    let w = world();
    let foreign = authority("foreign", &w.clock);
    let both = anchors(&[&w.root, &foreign]);
    let stranger = Workload::new(CLIENT, both.clone(), &w.clock);
    stranger.certify(&foreign, DAY);
    let seen = meet(
        &stranger.store,
        &w.peer,
        &w.server.store,
        Alpn::None,
        Alpn::None,
    )
    .await;
    assert!(seen.server.is_err(), "a client certificate must chain");
    let impostor = Workload::new(SERVER, both, &w.clock);
    impostor.certify(&foreign, DAY);
    let seen = meet(
        &w.client.store,
        &w.peer,
        &impostor.store,
        Alpn::None,
        Alpn::None,
    )
    .await;
    assert!(seen.client.is_err(), "a server certificate must chain");
}

#[tokio::test]
async fn resumption_keeps_identities_and_ends_with_the_generation() {
    let w = world();
    assert_eq!(w.meet().await.client().kind, HandshakeKind::Full);
    for _ in 0..3 {
        let seen = w.meet().await;
        assert_eq!(seen.client().kind, HandshakeKind::Resumed);
        assert_eq!(*seen.server(), (Some(id(CLIENT)), HandshakeKind::Resumed));
    }
    w.client.certify(&w.root, DAY);
    assert_eq!(
        w.meet().await.client().kind,
        HandshakeKind::Full,
        "new client certificate"
    );
    assert_eq!(w.meet().await.client().kind, HandshakeKind::Resumed);
    w.server.certify(&w.root, DAY);
    assert_eq!(
        w.meet().await.client().kind,
        HandshakeKind::Full,
        "new server certificate"
    );
    assert_eq!(w.meet().await.client().kind, HandshakeKind::Resumed);
    let more = anchors(&[&w.root, &authority("next", &w.clock)]);
    w.client.store.set_anchors(more.clone());
    assert_eq!(
        w.meet().await.client().kind,
        HandshakeKind::Full,
        "new anchors at the client"
    );
    assert_eq!(w.meet().await.client().kind, HandshakeKind::Resumed);
    w.server.store.set_anchors(more);
    assert_eq!(
        w.meet().await.client().kind,
        HandshakeKind::Full,
        "new anchors at the server"
    );
}

#[tokio::test]
async fn tickets_of_one_peer_are_not_used_for_another() {
    let w = world();
    w.meet().await;
    let other = Peer::new(
        id("other.ns.serviceaccount.identity.linkerd.cluster.local"),
        Some(SERVER),
    )
    .expect("a peer");
    let seen = meet(
        &w.client.store,
        &other,
        &w.server.store,
        Alpn::None,
        Alpn::None,
    )
    .await;
    assert!(
        seen.client.is_err(),
        "the same server name with another identity is checked afresh"
    );
    assert_eq!(w.meet().await.client().kind, HandshakeKind::Resumed);
}

#[tokio::test]
async fn a_session_does_not_outlive_the_servers_certificate() {
    let w = world();
    w.client.certify(&w.root, 10 * DAY);
    w.meet().await;
    w.clock.advance(DAY + 2 * SKEW);
    let seen = w.meet().await;
    let error = format!(
        "{:?}",
        seen.client.expect_err("the server's certificate has ended")
    );
    assert!(error.contains("Expired"), "{error}");
}

#[tokio::test]
async fn a_session_does_not_outlive_the_clients_certificate() {
    let w = world();
    w.server.certify(&w.root, 10 * DAY);
    w.meet().await;
    w.clock.advance(DAY + 2 * SKEW);
    // Our own client does not even try, and the full handshake it makes instead is refused.
    let seen = w.meet().await;
    assert!(seen.server.is_err());
}

#[tokio::test]
async fn a_server_rejects_a_resumed_client_whose_certificate_has_ended() {
    let clock = ManualClock::new();
    let stuck = ManualClock::new();
    let root = authority("root", &clock);
    let client = Workload::new(CLIENT, anchors(&[&root]), &stuck);
    let server = Workload::new(SERVER, anchors(&[&root]), &clock);
    client.certify(&root, DAY);
    server.certify(&root, 10 * DAY);
    let peer = Peer::new(id(SERVER), None).expect("a peer");
    meet(&client.store, &peer, &server.store, Alpn::None, Alpn::None).await;
    // The client's clock stands still, so it presents its ticket although its certificate ended.
    clock.advance(DAY + 2 * SKEW);
    let seen = meet(&client.store, &peer, &server.store, Alpn::None, Alpn::None).await;
    assert!(
        matches!(
            seen.server,
            Err(HandshakeError::Rejected(RejectedPeer::Expired))
        ),
        "{:?}",
        seen.server
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_meets_the_deadline() {
    let w = world();
    let (near, _far) = duplex(1024);
    let error = accept(
        near,
        &w.server.store.snapshot(),
        Alpn::None,
        HANDSHAKE_DEADLINE,
    )
    .await
    .expect_err("nobody spoke");
    assert!(matches!(error, HandshakeError::Deadline(_)), "{error:?}");
    let (near, _far) = duplex(1024);
    let snapshot = w.client.store.snapshot();
    let error = connect(near, &w.peer, &snapshot, Alpn::None, HANDSHAKE_DEADLINE)
        .await
        .expect_err("nobody answered");
    assert!(matches!(error, HandshakeError::Deadline(_)), "{error:?}");
}

#[tokio::test]
async fn publishing_checks_certificate_and_key() {
    use linkerd_tls::PublishError;
    let w = world();
    let before = w.server.store.snapshot().generation();
    let chain = |name: &str, by: &Authority, key: &Key| {
        let der = SigningRequest::create(name, key).expect("a request");
        let request = SigningRequest::from_der(&der).expect("parses");
        let validity = Validity {
            lifetime: DAY,
            clock_skew: SKEW,
        };
        let issued = by
            .issuer()
            .expect("an issuer")
            .issue(&request, name, validity, w.clock.now())
            .expect("issues");
        std::iter::once(issued.leaf)
            .chain(issued.intermediates)
            .collect::<Vec<_>>()
    };
    let key = Key::generate().expect("a key");
    let other = Key::generate().expect("a key");
    let foreign = authority("foreign", &w.clock);
    let store = &w.server.store;
    assert!(matches!(
        store.publish(vec![], &key),
        Err(PublishError::Empty)
    ));
    let mine = chain(SERVER, &w.root, &key);
    assert!(matches!(
        store.publish(mine.clone(), &other),
        Err(PublishError::KeyMismatch)
    ));
    let named = chain(CLIENT, &w.root, &key);
    assert!(
        matches!(store.publish(named, &key), Err(PublishError::Verify(_))),
        "another's name"
    );
    let strange = chain(SERVER, &foreign, &key);
    assert!(
        matches!(store.publish(strange, &key), Err(PublishError::Verify(_))),
        "not trusted"
    );
    assert_eq!(
        store.snapshot().generation(),
        before,
        "nothing of this was published"
    );
    assert!(store.publish(mine, &key).expect("good") > before);
    let same = store.snapshot().anchors().clone();
    let generation = store.snapshot().generation();
    assert_eq!(
        store.set_anchors(same),
        generation,
        "equal anchors change nothing"
    );
}
