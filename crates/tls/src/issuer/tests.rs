//! Issuing, clamping, refusing: with certificates we make ourselves and with step's.

use std::time::UNIX_EPOCH;

use super::{
    generate::{Authority, CaProfile, self_signed_server},
    *,
};

const NAME: &str = "web.ns.serviceaccount.identity.linkerd.cluster.local";
const DAY: Duration = Duration::from_secs(86_400);
const VALIDITY: Validity = Validity {
    lifetime: DAY,
    clock_skew: Duration::from_secs(20),
};

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn profile(name: &str) -> CaProfile {
    CaProfile {
        common_name: name.to_owned(),
        not_before: now() - DAY,
        not_after: now() + 365 * DAY,
        path_len: None,
        extended_key_usage: false,
        serial: None,
    }
}

fn anchors(authority: &Authority) -> TrustAnchors {
    TrustAnchors::from_certificates(vec![authority.certificate.clone()]).expect("one anchor")
}

fn request(name: &str) -> SigningRequest {
    let key = Key::generate().expect("key");
    let der = SigningRequest::create(name, &key).expect("request");
    SigningRequest::from_der(&der).expect("parses")
}

fn issuer_pem(authority: &Authority) -> (String, String) {
    (
        authority.certificate.to_pem(),
        authority.key.to_sec1_pem().expect("encodes"),
    )
}

fn load(cert: &str, key: &str) -> Result<Issuer, IssuerError> {
    Issuer::from_pem(
        ("issuer/crt.pem", cert.as_bytes()),
        ("issuer/key.pem", key.as_bytes()),
    )
}

#[test]
fn install_authority_has_linkerds_shape() {
    let ca = Authority::for_install("linkerd", "cluster.local", now()).expect("generates");
    let cert = &ca.certificate;
    assert_eq!(cert.subject, "CN=identity.linkerd.cluster.local");
    assert_eq!(cert.serial, "01");
    assert_eq!(cert.key, KeyKind::EcdsaP256);
    assert!(cert.is_ca);
    assert_eq!(cert.not_before, now() - Duration::from_secs(10));
    assert_eq!(cert.not_after, now() + 365 * DAY + Duration::from_secs(10));
    assert_eq!(cert.days_left(now()), 365);
    let (cert, key) = issuer_pem(&ca);
    assert!(key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    let issuer = load(&cert, &key).expect("loads");
    issuer
        .verify(&anchors(&ca), NAME, now())
        .expect("a root may issue");
}

#[test]
fn issues_what_the_wire_wants() {
    let root = Authority::self_signed(&profile("root")).expect("root");
    let ca = root
        .subordinate(&CaProfile {
            path_len: Some(0),
            ..profile("issuer")
        })
        .expect("ca");
    let issuer = ca.issuer().expect("issuer");
    issuer
        .verify(&anchors(&root), NAME, now())
        .expect("trusted");
    let issued = issuer
        .issue(&request(NAME), NAME, VALIDITY, now())
        .expect("issues");
    let leaf = Certificate::from_der(&issued.leaf).expect("parses");
    assert_eq!(leaf.subject, format!("CN={NAME}"));
    assert_eq!(leaf.names.len(), 1);
    assert_eq!(leaf.names[0].as_str(), NAME);
    assert!(!leaf.is_ca);
    assert_eq!(leaf.not_before, now() - VALIDITY.clock_skew);
    assert_eq!(leaf.not_after, now() + DAY + VALIDITY.clock_skew);
    assert_eq!(issued.not_after, leaf.not_after);
    assert_eq!(
        issued.intermediates,
        std::slice::from_ref(&ca.certificate.der)
    );
    let again = issuer
        .issue(&request(NAME), NAME, VALIDITY, now())
        .expect("issues");
    let again = Certificate::from_der(&again.leaf).expect("parses");
    assert_ne!(leaf.serial, again.serial, "serials are random");
    let id = linkerd_core::identity::Id::parse(NAME).expect("valid");
    crate::verify::verify_chain(
        &issued.leaf,
        &issued.intermediates,
        &anchors(&root).roots(),
        &id,
        unix_time(now()),
    )
    .expect("verifies");
}

#[test]
fn lifetime_is_clamped_to_the_chain() {
    let root = Authority::self_signed(&profile("root")).expect("root");
    let short = CaProfile {
        not_after: now() + Duration::from_secs(3600),
        ..profile("issuer")
    };
    let ca = root.subordinate(&short).expect("ca");
    let issued = ca
        .issuer()
        .expect("issuer")
        .issue(&request(NAME), NAME, VALIDITY, now())
        .expect("issues");
    assert_eq!(issued.not_after, short.not_after);
    let period = ca
        .issuer()
        .expect("issuer")
        .verify(&anchors(&root), NAME, now())
        .expect("good");
    assert!(period.check(now()).is_ok());
    assert!(matches!(
        period.check(now() + Duration::from_secs(3601)),
        Err(CertificateError::Expired { .. })
    ));
    assert!(matches!(
        period.check(now() - 2 * DAY),
        Err(CertificateError::NotYetValid { .. })
    ));
}

#[test]
fn refuses_with_file_and_date() {
    let root = Authority::self_signed(&profile("root")).expect("root");
    let other = Authority::self_signed(&profile("other")).expect("other");
    let expired = root
        .subordinate(&CaProfile {
            not_after: now() - Duration::from_secs(1),
            ..profile("old")
        })
        .expect("ca");
    let future = root
        .subordinate(&CaProfile {
            not_before: now() + DAY,
            ..profile("new")
        })
        .expect("ca");
    let good = root.subordinate(&profile("issuer")).expect("ca");
    let window = (now() - DAY, now() + DAY);
    let (leaf, leaf_key) = self_signed_server("webhook.linkerd.svc", window).expect("server");
    let leaf_key = leaf_key.to_sec1_pem().expect("encodes");
    let (good_crt, good_key) = issuer_pem(&good);
    let (expired_crt, expired_key) = issuer_pem(&expired);
    let (future_crt, future_key) = issuer_pem(&future);
    let (other_crt, other_key) = issuer_pem(&other);
    let cases = [
        (
            "expired",
            &expired_crt,
            &expired_key,
            "issuer/crt.pem: certificate \"CN=old\" expired on 2027-01-15T07:59:59Z",
        ),
        (
            "not yet valid",
            &future_crt,
            &future_key,
            "issuer/crt.pem: certificate \"CN=new\" is not valid before 2027-01-16T08:00:00Z",
        ),
        (
            "not a CA",
            &leaf.to_pem(),
            &leaf_key,
            "issuer/crt.pem: the certificate \"CN=webhook.linkerd.svc\" is not a CA and cannot issue",
        ),
        (
            "foreign key",
            &good_crt,
            &other_key,
            "issuer/key.pem does not hold the private key of the certificate in issuer/crt.pem",
        ),
        (
            "untrusted",
            &other_crt,
            &other_key,
            "issuer/crt.pem: certificates signed by this issuer do not verify against the trust anchors: UnknownIssuer",
        ),
        (
            "no certificate",
            &good_key,
            &good_key,
            "issuer/crt.pem: no CERTIFICATE block found",
        ),
        (
            "no key",
            &good_crt,
            &good_crt,
            "issuer/key.pem: no private key block found",
        ),
    ];
    for (name, cert, key, want) in cases {
        let error = load(cert, key)
            .and_then(|issuer| issuer.verify(&anchors(&root), NAME, now()))
            .expect_err(name);
        assert_eq!(error.to_string(), want, "{name}");
    }
}

#[test]
fn webhook_certificate_is_its_own_root() {
    let window = (now() - DAY, now() + DAY);
    let (cert, _) = self_signed_server("webhook.linkerd.svc", window).expect("server");
    let anchors = TrustAnchors::from_certificates(vec![cert.clone()]).expect("anchor");
    let id = linkerd_core::identity::Id::parse("webhook.linkerd.svc").expect("valid");
    crate::verify::verify_chain(&cert.der, &[], &anchors.roots(), &id, unix_time(now()))
        .expect("a self-signed leaf validates against itself");
}

#[test]
fn step_made_files_load() {
    let root = include_bytes!("../../tests/golden/step/ca.crt");
    let cert = include_bytes!("../../tests/golden/step/issuer.crt");
    let key = include_bytes!("../../tests/golden/step/issuer.key");
    let anchors = TrustAnchors::from_pem("ca.crt", root).expect("anchors load");
    let issuer =
        Issuer::from_pem(("issuer.crt", cert), ("issuer.key", key)).expect("the issuer loads");
    let inside = issuer.certificate().not_before + DAY;
    issuer.verify(&anchors, NAME, inside).expect("trusted");
    let issued = issuer
        .issue(&request(NAME), NAME, VALIDITY, inside)
        .expect("issues");
    let id = linkerd_core::identity::Id::parse(NAME).expect("valid");
    let chain = &issued.intermediates;
    crate::verify::verify_chain(
        &issued.leaf,
        chain,
        &anchors.roots(),
        &id,
        unix_time(inside),
    )
    .expect("verifies");
}
