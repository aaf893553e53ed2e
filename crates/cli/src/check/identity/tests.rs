//! Anchors and issuers of every kind of trouble.

use super::*;
use crate::check::fake::{Fake, assert_says, now, verdict};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use linkerd_tls::issuer::generate::{Authority, CaProfile};
use serde_json::{Value, json};

const DAY: Duration = Duration::from_secs(86_400);

fn profile(common_name: &str, from: i32, days: u32) -> CaProfile {
    let not_before = if from < 0 {
        now() - DAY * from.unsigned_abs()
    } else {
        now() + DAY * from.unsigned_abs()
    };
    CaProfile {
        common_name: common_name.to_owned(),
        not_before,
        not_after: not_before + DAY * days,
        path_len: None,
        extended_key_usage: false,
        serial: Some(7),
    }
}

fn root(from: i32, days: u32) -> Authority {
    Authority::self_signed(&profile("root.linkerd.cluster.local", from, days)).expect("a root")
}

fn secret(data: &[(&str, String)]) -> Value {
    let data: serde_json::Map<String, Value> = data
        .iter()
        .map(|(key, text)| ((*key).to_owned(), json!(STANDARD.encode(text))))
        .collect();
    json!({"kind": "Secret", "apiVersion": "v1", "data": data,
        "metadata": {"name": ISSUER, "namespace": "linkerd"}})
}

async fn facts(anchor: &Authority, issuer: &Authority) -> Facts {
    let key = issuer.key.to_sec1_pem().expect("a key");
    let data = [("crt.pem", issuer.certificate.to_pem()), ("key.pem", key)];
    let mut facts = Fake::of(vec![secret(&data)]).facts();
    facts.values = Some(json!({"identity": {"issuer": {"scheme": "linkerd.io/tls"}},
        "identityTrustAnchorsPEM": anchor.certificate.to_pem()}));
    assert_says(&category(), "certificate config is valid", &mut facts, "").await;
    facts
}

#[tokio::test]
async fn fresh_certificates_pass() {
    let root = root(-1, 365);
    let issuer = root
        .subordinate(&profile("identity.linkerd.cluster.local", -1, 300))
        .expect("an issuer");
    let mut facts = facts(&root, &issuer).await;
    let category = category();
    for check in &category.checks {
        assert_says(&category, &check.description, &mut facts, "").await;
    }
}

#[tokio::test]
async fn expired_certificates_say_when() {
    let expired = root(-30, 20);
    let mut facts = facts(&expired, &expired).await;
    for (description, error) in [
        (
            "trust anchors are within their validity period",
            "Invalid anchors:\n\t* 7 root.linkerd.cluster.local not valid anymore. Expired on 2025-12-22T00:00:00Z",
        ),
        (
            "issuer cert is within its validity period",
            "issuer certificate is not valid anymore. Expired on 2025-12-22T00:00:00Z",
        ),
    ] {
        assert_says(&category(), description, &mut facts, error).await;
    }
}

#[tokio::test]
async fn early_certificates_say_when() {
    let early = root(10, 100);
    let mut facts = facts(&early, &early).await;
    for (description, error) in [
        (
            "trust anchors are within their validity period",
            "Invalid anchors:\n\t* 7 root.linkerd.cluster.local not valid before: 2026-01-11T00:00:00Z",
        ),
        (
            "issuer cert is within its validity period",
            "issuer certificate is not valid before: 2026-01-11T00:00:00Z",
        ),
    ] {
        assert_says(&category(), description, &mut facts, error).await;
    }
}

#[tokio::test]
async fn certificates_near_their_end_warn() {
    let soon = root(-1, 31);
    let mut facts = facts(&soon, &soon).await;
    for (description, error) in [
        (
            "trust anchors are valid for at least 60 days",
            "Anchors expiring soon:\n\t* 7 root.linkerd.cluster.local will expire on 2026-01-31T00:00:00Z (30 days left)",
        ),
        (
            "issuer cert is valid for at least 60 days",
            "issuer certificate will expire on 2026-01-31T00:00:00Z (30 days left)",
        ),
    ] {
        assert_says(&category(), description, &mut facts, error).await;
    }
}

#[tokio::test]
async fn a_foreign_issuer_is_found_out() {
    let mut facts = facts(&root(-1, 365), &root(-1, 365)).await;
    let error = "x509: certificate signed by unknown authority";
    assert_says(
        &category(),
        "issuer cert is issued by the trust anchor",
        &mut facts,
        error,
    )
    .await;
}

#[test]
fn key_kinds() {
    let p256 = root(-1, 365).certificate;
    for (kind, rsa, expected) in [
        (KeyKind::EcdsaP256, false, Ok(())),
        (
            KeyKind::EcdsaP384,
            true,
            Err("must use P-256 curve for public key, instead P-384 was used"),
        ),
        (
            KeyKind::Rsa(2048),
            false,
            Err("must use ECDSA P-256 for public key, instead RSA 2048 was used"),
        ),
        (
            KeyKind::Rsa(1024),
            true,
            Err("RSA must use 2048 or 4096 bit keys, instead 1024 bits were used"),
        ),
        (
            KeyKind::Ed25519,
            true,
            Err("must use ECDSA P-256 for public key, instead Ed25519 was used"),
        ),
    ] {
        let mut certificate = p256.clone();
        certificate.key = kind;
        assert_eq!(
            supported(&certificate, rsa),
            expected.map_err(str::to_owned),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn unsupported_keys_are_listed() {
    let root = root(-1, 365);
    let mut facts = facts(&root, &root).await;
    let found = facts.credentials.as_mut().expect("loaded");
    found.anchors[0].key = KeyKind::EcdsaP384;
    found.chain[0].key = KeyKind::EcdsaP521;
    let error = "Invalid trustAnchors:\n\t* 7 root.linkerd.cluster.local must use P-256 curve for public key, instead P-384 was used";
    assert_says(
        &category(),
        "trust anchors are using supported crypto algorithm",
        &mut facts,
        error,
    )
    .await;
    let error = "issuer certificate must use P-256 curve for public key, instead P-521 was used";
    assert_says(
        &category(),
        "issuer cert is using supported crypto algorithm",
        &mut facts,
        error,
    )
    .await;
}

#[tokio::test]
async fn the_secret_must_be_whole() {
    let root = root(-1, 365);
    let certificate = || root.certificate.to_pem();
    let key = || root.key.to_sec1_pem().expect("a key");
    let other = Authority::self_signed(&profile("other", -1, 9))
        .expect("a root")
        .key
        .to_sec1_pem()
        .expect("a key");
    let missing = |key: &str, what: &str, external: bool| {
        format!(
            "key {key} containing the {what} needs to exist in secret linkerd-identity-issuer if --identity-external-issuer={external}"
        )
    };
    for (scheme, data, error) in [
        (
            "linkerd.io/tls",
            vec![],
            missing("crt.pem", "issuer certificate", false),
        ),
        (
            "linkerd.io/tls",
            vec![("crt.pem", certificate())],
            missing("key.pem", "issuer key", false),
        ),
        (
            "linkerd.io/tls",
            vec![("crt.pem", certificate()), ("key.pem", other)],
            "tls: Public and private key do not match".to_owned(),
        ),
        (
            "kubernetes.io/tls",
            vec![],
            missing("tls.crt", "issuer certificate", true),
        ),
        (
            "kubernetes.io/tls",
            vec![("tls.crt", certificate()), ("tls.key", key())],
            missing("ca.crt", "trust anchors", true),
        ),
        (
            "kubernetes.io/tls",
            vec![
                ("tls.crt", certificate()),
                ("tls.key", key()),
                ("ca.crt", certificate()),
            ],
            String::new(),
        ),
    ] {
        let mut facts = Fake::of(vec![secret(&data)]).facts();
        let anchors = if scheme == "linkerd.io/tls" {
            certificate()
        } else {
            String::new()
        };
        facts.values = Some(
            json!({"identity": {"issuer": {"scheme": scheme}}, "identityTrustAnchorsPEM": anchors}),
        );
        assert_says(
            &category(),
            "certificate config is valid",
            &mut facts,
            &error,
        )
        .await;
    }
    let mut facts = Fake::of(vec![]).facts();
    let error = "secrets \"linkerd-identity-issuer\" not found";
    assert_says(
        &category(),
        "certificate config is valid",
        &mut facts,
        error,
    )
    .await;
    let skipped = verdict(
        &category(),
        "issuer cert is within its validity period",
        &mut facts,
    )
    .await;
    assert!(matches!(skipped, Err(Problem::Skip(_))));
}

#[tokio::test]
async fn proxies_with_old_anchors_are_listed() {
    let pod = |namespace: &str, anchors: &str| {
        json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "web", "namespace": namespace, "labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"containers": [{"name": "linkerd-proxy",
                "env": [{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]}]}})
    };
    let (old, new) = (root(-1, 365), root(-1, 365));
    let (old, new) = (old.certificate.to_pem(), new.certificate.to_pem());
    let roots = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"ca-bundle.crt": format!("{new}\n")},
        "metadata": {"name": TRUST_ROOTS, "namespace": "linkerd"}});
    let description = "data plane proxies certificate match CA";
    let mut facts = Fake::of(vec![roots.clone(), pod("a", &new), pod("linkerd", &old)]).facts();
    assert_says(&data_plane(), description, &mut facts, "").await;
    let mut facts = Fake::of(vec![roots, pod("a", &old)]).facts();
    let error = "Some pods do not have the current trust bundle and must be restarted:\n\t* a/web";
    assert_says(&data_plane(), description, &mut facts, error).await;
    facts.settings.data_plane_namespace = Some("a".to_owned());
    let error = "Some pods do not have the current trust bundle and must be restarted:\n\t* web";
    assert_says(&data_plane(), description, &mut facts, error).await;
}
