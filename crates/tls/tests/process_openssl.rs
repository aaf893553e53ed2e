//! Files made by the `openssl` program load here, and what we make verifies there.

use std::{
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use linkerd_core::identity::Id;
use linkerd_tls::{
    Certificate, Issuer, IssuerError, Key, KeyKind, Local, SigningRequest, Store, TrustAnchors,
    Validity,
};

const NAME: &str = "web.ns.serviceaccount.identity.linkerd.cluster.local";
const VALIDITY: Validity = Validity {
    lifetime: Duration::from_secs(86_400),
    clock_skew: Duration::from_secs(20),
};

/// Runs `openssl` with space-separated arguments in `dir`.
fn openssl(dir: &Path, args: &str) -> String {
    let out = Command::new("openssl")
        .args(args.split(' '))
        .current_dir(dir)
        .output()
        .expect("these tests need the openssl program");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(out.status.success(), "openssl {args}: {text}");
    text
}

const CA_CONFIG: &str = "[req]\ndistinguished_name = dn\n[dn]\n[ca]\nbasicConstraints = critical,CA:true\n\
    keyUsage = critical,keyCertSign,cRLSign\nsubjectKeyIdentifier = hash\n";

/// A root and an issuer below it, with the given key arguments for `openssl req -newkey`.
fn hierarchy(dir: &Path, root_key: &str, issuer_key: &str, issuer_subject: &str) {
    std::fs::write(dir.join("ca.cnf"), CA_CONFIG).expect("writes");
    openssl(
        dir,
        &format!(
            "req -x509 -config ca.cnf -extensions ca -newkey {root_key} -nodes -keyout root.key \
             -out root.crt -days 30 -subj /CN=root.linkerd.cluster.local"
        ),
    );
    openssl(
        dir,
        &format!(
            "req -new -config ca.cnf -newkey {issuer_key} -nodes -keyout issuer.key -out \
             issuer.csr -subj {issuer_subject}"
        ),
    );
    openssl(
        dir,
        "x509 -req -in issuer.csr -CA root.crt -CAkey root.key -CAcreateserial -out issuer.crt \
         -days 10 -extfile ca.cnf -extensions ca",
    );
}

fn read(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).expect("a file openssl wrote")
}

fn load(dir: &Path) -> Result<(Issuer, TrustAnchors), IssuerError> {
    let anchors = TrustAnchors::from_pem("root.crt", &read(dir, "root.crt")).expect("anchors");
    let issuer = Issuer::from_pem(
        ("issuer.crt", &read(dir, "issuer.crt")),
        ("issuer.key", &read(dir, "issuer.key")),
    )?;
    Ok((issuer, anchors))
}

/// Certifies a key of ours and lets openssl verify the result.
fn issue_and_verify(dir: &Path) {
    let (issuer, anchors) = load(dir).expect("loads");
    issue_with(dir, &issuer, anchors, "ecdsa-with-SHA256");
}

fn issue_with(dir: &Path, issuer: &Issuer, anchors: TrustAnchors, signed: &str) {
    let now = SystemTime::now();
    issuer.verify(&anchors, NAME, now).expect("trusted");
    let key = Key::generate().expect("a key");
    let der = SigningRequest::create(NAME, &key).expect("a request");
    std::fs::write(dir.join("csr.der"), &der).expect("writes");
    let text = openssl(dir, "req -in csr.der -inform DER -noout -verify -text");
    assert!(text.contains("verify OK"), "{text}");
    assert!(text.contains(&format!("DNS:{NAME}")), "{text}");
    let request = SigningRequest::from_der(&der).expect("parses");
    let issued = issuer.issue(&request, NAME, VALIDITY, now).expect("issues");
    let leaf = Certificate::from_der(&issued.leaf).expect("parses");
    std::fs::write(dir.join("leaf.crt"), leaf.to_pem()).expect("writes");
    let text = openssl(
        dir,
        "verify -x509_strict -purpose sslserver -CAfile root.crt -untrusted issuer.crt leaf.crt",
    );
    assert_eq!(text, "leaf.crt: OK\n");
    let text = openssl(dir, "x509 -in leaf.crt -noout -text");
    for want in [
        "Digital Signature, Key Encipherment",
        "TLS Web Server Authentication, TLS Web Client Authentication",
        "CA:FALSE",
        signed,
    ] {
        assert!(text.contains(want), "{want} is missing from {text}");
    }
    let store = Store::new(anchors, Local::new(Id::parse(NAME).expect("valid")));
    let chain = std::iter::once(issued.leaf)
        .chain(issued.intermediates)
        .collect();
    store.publish(chain, &key).expect("the proxy takes it");
}

#[test]
fn ecdsa_hierarchies_issue() {
    const P256: &str = "ec -pkeyopt ec_paramgen_curve:P-256";
    const P384: &str = "ec -pkeyopt ec_paramgen_curve:P-384";
    for (name, root, subject) in [
        ("plain", P256, "/CN=identity.linkerd.cluster.local"),
        ("p384 root", P384, "/CN=identity.linkerd.cluster.local"),
        ("rsa root", "rsa:2048", "/CN=identity.linkerd.cluster.local"),
        (
            "rich subject",
            P256,
            "/C=DE/O=Example/OU=Mesh/CN=issuer/emailAddress=a@example.org",
        ),
        (
            "multi-valued",
            P256,
            "/O=Example/CN=issuer+OU=Mesh -multivalue-rdn",
        ),
    ] {
        let dir = tempfile::tempdir().expect("temporary directory");
        hierarchy(dir.path(), root, P256, subject);
        issue_and_verify(dir.path());
        println!("{name}: ok");
    }
}

/// The identity service works with the issuer there is; what we install is on one curve only.
#[test]
fn issuers_on_other_curves() {
    for (curve, signed) in [
        ("P-384", "ecdsa-with-SHA384"),
        ("P-521", "ecdsa-with-SHA512"),
    ] {
        let spec = format!("ec -pkeyopt ec_paramgen_curve:{curve}");
        let dir = tempfile::tempdir().expect("temporary directory");
        let dir = dir.path();
        hierarchy(dir, &spec, &spec, "/CN=identity.linkerd.cluster.local");
        let (certificate, key) = (read(dir, "issuer.crt"), read(dir, "issuer.key"));
        let files = (("issuer.crt", &*certificate), ("issuer.key", &*key));
        let refused = Issuer::from_pem(files.0, files.1).expect_err("not the usual curve");
        assert!(refused.to_string().contains(curve), "{refused}");
        let issuer = Issuer::from_pem_on_any_curve(files.0, files.1).expect(curve);
        let anchors = TrustAnchors::from_pem("root.crt", &read(dir, "root.crt")).expect("anchors");
        issue_with(dir, &issuer, anchors, signed);
    }
    // RSA stays refused.
    let dir = tempfile::tempdir().expect("temporary directory");
    let dir = dir.path();
    hierarchy(
        dir,
        "rsa:2048",
        "rsa:2048",
        "/CN=identity.linkerd.cluster.local",
    );
    let (certificate, key) = (read(dir, "issuer.crt"), read(dir, "issuer.key"));
    let refused = Issuer::from_pem_on_any_curve(("issuer.crt", &certificate), ("issuer.key", &key));
    let refused = refused.expect_err("RSA").to_string();
    assert!(refused.contains("RSA 2048"), "{refused}");
}

#[test]
fn key_forms() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let dir = dir.path();
    // This form starts with an EC PARAMETERS block.
    openssl(dir, "ecparam -name prime256v1 -genkey -out sec1.pem");
    openssl(dir, "pkcs8 -topk8 -nocrypt -in sec1.pem -out pkcs8.pem");
    openssl(
        dir,
        "pkcs8 -topk8 -in sec1.pem -out encrypted.pem -passout pass:secret",
    );
    openssl(
        dir,
        "ec -in sec1.pem -aes128 -passout pass:secret -out legacy.pem",
    );
    openssl(dir, "genrsa -out rsa.pem 2048");
    openssl(dir, "rsa -in rsa.pem -traditional -out rsa1.pem");
    openssl(dir, "ecparam -name secp384r1 -genkey -noout -out p384.pem");
    for good in ["sec1.pem", "pkcs8.pem"] {
        Key::from_pem(&read(dir, good)).expect(good);
    }
    for (file, want) in [
        (
            "encrypted.pem",
            "the private key is encrypted; give it without a passphrase",
        ),
        (
            "legacy.pem",
            "the private key is encrypted; give it without a passphrase",
        ),
        (
            "rsa.pem",
            "the private key is RSA; an ECDSA P-256 key is needed",
        ),
        (
            "rsa1.pem",
            "the private key is RSA; an ECDSA P-256 key is needed",
        ),
    ] {
        let error = Key::from_pem(&read(dir, file)).expect_err(file);
        assert_eq!(error.to_string(), want, "{file}");
    }
    let error = Key::from_pem(&read(dir, "p384.pem"))
        .expect_err("another curve")
        .to_string();
    assert!(
        error.starts_with("not an ECDSA P-256 private key"),
        "{error}"
    );
    // Our own forms are read by openssl.
    let key = Key::generate().expect("a key");
    std::fs::write(dir.join("ours.pem"), key.to_sec1_pem().expect("encodes")).expect("writes");
    std::fs::write(dir.join("key.p8"), key.to_pkcs8_der().expect("encodes")).expect("writes");
    openssl(dir, "ec -in ours.pem -noout -check");
    openssl(dir, "pkey -in key.p8 -inform DER -noout -check");
    Key::from_der(&read(dir, "key.p8")).expect("reads back");
}

#[test]
fn an_rsa_issuer_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("temporary directory");
    hierarchy(
        dir.path(),
        "rsa:2048",
        "rsa:2048",
        "/CN=identity.linkerd.cluster.local",
    );
    let error = load(dir.path()).expect_err("an RSA issuer").to_string();
    assert_eq!(
        error,
        "issuer.crt: the issuer certificate's key is RSA 2048; ECDSA P-256 is needed"
    );
}

#[test]
fn foreign_requests() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let dir = dir.path();
    let p256 = "ec -pkeyopt ec_paramgen_curve:P-256";
    hierarchy(dir, p256, p256, "/CN=identity.linkerd.cluster.local");
    let (issuer, _) = load(dir).expect("loads");
    let cases = [
        ("good", p256, format!("DNS:{NAME}"), Ok(())),
        (
            "two names",
            p256,
            format!("DNS:{NAME},DNS:b"),
            Err("CSR must have exactly one DNSName"),
        ),
        (
            "uri",
            p256,
            format!("DNS:{NAME},URI:spiffe://a/b"),
            Err("cannot validate URIs"),
        ),
        (
            "ip",
            p256,
            format!("DNS:{NAME},IP:10.0.0.1"),
            Err("cannot validate IP addresses"),
        ),
        (
            "email",
            p256,
            format!("DNS:{NAME},email:a@b.c"),
            Err("cannot validate email addresses"),
        ),
        (
            "rsa",
            "rsa:2048",
            format!("DNS:{NAME}"),
            Err("only ECDSA public keys are certified, not RSA 2048"),
        ),
        (
            "ed25519",
            "ed25519",
            format!("DNS:{NAME}"),
            Err("only ECDSA public keys are certified, not Ed25519"),
        ),
    ];
    for (name, key, san, want) in cases {
        openssl(
            dir,
            &format!(
                "req -new -newkey {key} -nodes -keyout w.key -outform DER -out w.csr -subj \
                 /CN={NAME} -addext subjectAltName={san}"
            ),
        );
        let request = SigningRequest::from_der(&read(dir, "w.csr")).expect(name);
        request.verify_signature().expect(name);
        let got = request
            .check_names(NAME)
            .map_err(|e| e.to_string())
            .and_then(|()| {
                issuer
                    .issue(&request, NAME, VALIDITY, SystemTime::now())
                    .map(|_| ())
                    .map_err(|e| e.to_string())
            });
        assert_eq!(got, want.map_err(str::to_owned), "{name}");
    }
    openssl(
        dir,
        &format!("req -new -newkey {p256} -nodes -keyout w.key -outform DER -out w.csr -subj /O=x"),
    );
    let request = SigningRequest::from_der(&read(dir, "w.csr")).expect("parses");
    assert_eq!(request.key, KeyKind::EcdsaP256);
    assert!(request.check_names(NAME).is_err(), "no name at all");
}
