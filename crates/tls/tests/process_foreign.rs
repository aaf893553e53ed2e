//! Peers that cannot verify ECDSA P-256: they are shown no certificate of ours, whichever side they
//! are on. A server then refuses the handshake, a client is taken for nobody.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use linkerd_core::identity::Id;
use linkerd_tls::{
    Alpn, HANDSHAKE_DEADLINE, Key, Local, Peer, SigningRequest, Store, TrustAnchors, Validity,
    handshake::{accept, connect},
    issuer::generate::Authority,
    provider,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig, SignatureScheme,
        crypto::{CryptoProvider, WebPkiSupportedAlgorithms},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName},
        server::WebPkiClientVerifier,
        version::TLS13,
    },
    tokio_rustls::{TlsAcceptor, TlsConnector},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

const SERVER: &str = "server.ns.serviceaccount.identity.linkerd.cluster.local";
const CLIENT: &str = "client.ns.serviceaccount.identity.linkerd.cluster.local";

fn issue(name: &str, key: &Key, by: &Authority) -> Vec<CertificateDer<'static>> {
    let der = SigningRequest::create(name, key).expect("a request");
    let request = SigningRequest::from_der(&der).expect("parses");
    let validity = Validity {
        lifetime: Duration::from_secs(86_400),
        clock_skew: Duration::from_secs(20),
    };
    let issuer = by.issuer().expect("an issuer");
    let issued = issuer
        .issue(&request, name, validity, SystemTime::now())
        .expect("issues");
    std::iter::once(issued.leaf)
        .chain(issued.intermediates)
        .collect()
}

fn certified(name: &str, root: &Authority) -> Store {
    let anchors = TrustAnchors::from_certificates(vec![root.certificate.clone()]).expect("anchors");
    let store = Store::new(anchors, Local::new(Id::parse(name).expect("valid")));
    let key = Key::generate().expect("a key");
    store
        .publish(issue(name, &key, root), &key)
        .expect("publishes");
    store
}

/// The mesh's algorithms, with or without the one our certificates need.
fn algorithms(with_p256: bool) -> Arc<CryptoProvider> {
    let all = provider().signature_verification_algorithms;
    let kept: Vec<_> = all
        .mapping
        .iter()
        .filter(|(scheme, _)| with_p256 || *scheme != SignatureScheme::ECDSA_NISTP256_SHA256)
        .copied()
        .collect();
    Arc::new(CryptoProvider {
        signature_verification_algorithms: WebPkiSupportedAlgorithms {
            mapping: kept.leak(),
            ..all
        },
        ..(*provider()).clone()
    })
}

fn roots(root: &Authority) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(root.certificate.der.clone()).expect("a root");
    roots
}

#[tokio::test]
async fn a_client_that_cannot_verify_us_is_refused() {
    let root = Authority::for_install("linkerd", "cluster.local", SystemTime::now()).expect("a CA");
    let server = certified(SERVER, &root).snapshot();
    for with_p256 in [true, false] {
        let config = ClientConfig::builder_with_provider(algorithms(with_p256))
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots(&root))
            .with_no_client_auth();
        let (near, far) = duplex(64 * 1024);
        let name = ServerName::try_from(SERVER).expect("a name");
        let (client, accepted) = tokio::join!(
            TlsConnector::from(Arc::new(config)).connect(name, near),
            accept(far, &server, Alpn::None, HANDSHAKE_DEADLINE),
        );
        assert_eq!(client.is_ok(), with_p256, "{:?}", client.err());
        match accepted {
            Ok((_, id)) => assert!(with_p256 && id.is_none()),
            Err(error) => assert!(!with_p256, "{error:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_cannot_verify_us_sees_nobody() {
    let root = Authority::for_install("linkerd", "cluster.local", SystemTime::now()).expect("a CA");
    let client = certified(CLIENT, &root).snapshot();
    let peer = Peer::new(Id::parse(SERVER).expect("valid"), None).expect("a peer");
    for with_p256 in [true, false] {
        let algorithms = algorithms(with_p256);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots(&root)), algorithms.clone())
                .allow_unauthenticated()
                .build()
                .expect("a verifier");
        let key = Key::generate().expect("a key");
        let der = PrivateKeyDer::Pkcs8(key.to_pkcs8_der().expect("encodes").into());
        let config = ServerConfig::builder_with_provider(algorithms)
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_single_cert(issue(SERVER, &key, &root), der)
            .expect("key and certificate match");
        let (near, far) = duplex(64 * 1024);
        let ours = async {
            let mut stream = connect(near, &peer, &client, Alpn::None, HANDSHAKE_DEADLINE).await?;
            let mut byte = [0];
            stream.read_exact(&mut byte).await?;
            Ok::<_, linkerd_tls::HandshakeError>(())
        };
        let theirs = async {
            let mut stream = TlsAcceptor::from(Arc::new(config)).accept(far).await?;
            stream.write_all(b"!").await?;
            stream.flush().await?;
            let shown = stream.get_ref().1.peer_certificates().map(<[_]>::len);
            Ok::<_, std::io::Error>(shown)
        };
        let (ours, theirs) = tokio::join!(ours, theirs);
        ours.expect("the server is the right one");
        let shown = theirs.expect("a client without a certificate is welcome");
        assert_eq!(shown.is_some(), with_p256);
    }
}
