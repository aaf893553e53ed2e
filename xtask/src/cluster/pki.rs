//! Certificates and kubeconfigs of a cluster, made with the openssl program. A certificate
//! that is there is kept: its file appears last, in one move, so it is never half made.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

use super::spec::Spec;
use crate::{machine, program};

/// A certificate to be issued.
#[derive(Debug)]
struct Request {
    name: String,
    /// In openssl's words: `/O=system:masters/CN=admin`.
    subject: String,
    names: String,
    issuer: &'static str,
}

/// Users of the API server that get a kubeconfig of their own.
const USERS: [(&str, &str); 4] = [
    ("admin", "/O=system:masters/CN=admin"),
    (
        "kube-controller-manager",
        "/CN=system:kube-controller-manager",
    ),
    ("kube-scheduler", "/CN=system:kube-scheduler"),
    ("kube-proxy", "/CN=system:kube-proxy"),
];

/// Makes whatever is missing and writes the kubeconfigs.
pub(crate) fn up(spec: &Spec) -> Result<()> {
    let dir = spec.dir.join("pki");
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    // An empty section: openssl's own defaults would make every certificate an authority.
    machine::write(
        &dir.join("openssl.cnf"),
        "[req]\ndistinguished_name = subject\n[subject]\n",
    )?;
    authority(&dir, "ca", "kubernetes-ca")?;
    authority(&dir, "front-proxy-ca", "front-proxy-ca")?;
    let requests = requests(spec);
    std::thread::scope(|threads| {
        let running: Vec<_> = requests
            .iter()
            .map(|request| threads.spawn(|| issue(&dir, request)))
            .collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("issuing does not panic"))
    })?;
    service_account_key(&dir)?;
    for (user, _) in USERS {
        write_kubeconfig(spec, user, &kubeconfig_path(spec, user))?;
    }
    for node in spec.node_numbers() {
        let user = kubelet_user(node);
        write_kubeconfig(spec, &user, &kubeconfig_path(spec, &user))?;
    }
    write_kubeconfig(spec, "admin", &spec.kubeconfig())
}

pub(crate) fn kubelet_user(node: u8) -> String {
    format!("kubelet{node}")
}

/// The kubeconfig of a component.
pub(crate) fn kubeconfig_path(spec: &Spec, user: &str) -> std::path::PathBuf {
    spec.pki(&format!("{user}.kubeconfig"))
}

fn requests(spec: &Spec) -> Vec<Request> {
    let request = |name: &str, subject: &str, names: &str, issuer| Request {
        name: name.to_owned(),
        subject: subject.to_owned(),
        names: names.to_owned(),
        issuer,
    };
    let api_names = format!(
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
         DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:{},IP:{}",
        spec.node_ip(1),
        spec.api_service_ip()
    );
    let mut all = vec![
        request("apiserver", "/CN=kube-apiserver", &api_names, "ca"),
        request(
            "apiserver-kubelet",
            "/O=system:masters/CN=apiserver-kubelet",
            "DNS:apiserver",
            "ca",
        ),
        request(
            "front-proxy",
            "/CN=front-proxy-client",
            "DNS:front-proxy",
            "front-proxy-ca",
        ),
    ];
    all.extend(USERS.map(|(user, subject)| request(user, subject, &format!("DNS:{user}"), "ca")));
    all.extend(spec.node_numbers().map(|node| {
        let name = spec.node_name(node);
        let subject = format!("/O=system:nodes/CN=system:node:{name}");
        let names = format!("DNS:{name},IP:{}", spec.node_ip(node));
        request(&kubelet_user(node), &subject, &names, "ca")
    }));
    all
}

fn authority(dir: &Path, name: &str, subject: &str) -> Result<()> {
    let extensions = [
        "basicConstraints=critical,CA:TRUE",
        "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        "subjectKeyIdentifier=hash",
    ];
    certificate(dir, name, &format!("/CN={subject}"), &extensions, None)
}

fn issue(dir: &Path, request: &Request) -> Result<()> {
    let names = format!("subjectAltName={}", request.names);
    let extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=serverAuth,clientAuth",
        &names,
    ];
    certificate(
        dir,
        &request.name,
        &request.subject,
        &extensions,
        Some(request.issuer),
    )
}

fn certificate(
    dir: &Path,
    name: &str,
    subject: &str,
    extensions: &[&str],
    issuer: Option<&str>,
) -> Result<()> {
    let target = dir.join(format!("{name}.crt"));
    if target.exists() {
        return Ok(());
    }
    let partial = dir.join(format!("{name}.crt.partial"));
    let mut openssl = program::command(
        "openssl",
        [
            "req",
            "-x509",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
        ],
    );
    openssl
        .args([
            "-nodes",
            "-sha256",
            "-days",
            "3650",
            "-subj",
            subject,
            "-config",
            "openssl.cnf",
        ])
        .arg("-keyout")
        .arg(format!("{name}.key"))
        .arg("-out")
        .arg(&partial)
        .current_dir(dir);
    if let Some(issuer) = issuer {
        openssl.args([
            "-CA",
            &format!("{issuer}.crt"),
            "-CAkey",
            &format!("{issuer}.key"),
        ]);
    }
    for extension in extensions {
        openssl.args(["-addext", extension]);
    }
    program::output(&mut openssl)?;
    fs::rename(&partial, &target).with_context(|| format!("writing {}", target.display()))
}

/// The key pair that signs service-account tokens.
fn service_account_key(dir: &Path) -> Result<()> {
    let public = dir.join("service-account.pub");
    if public.exists() {
        return Ok(());
    }
    let run = |words: &[&str]| {
        program::output(program::command("openssl", words).current_dir(dir)).map(drop)
    };
    run(&[
        "ecparam",
        "-genkey",
        "-name",
        "prime256v1",
        "-noout",
        "-out",
        "service-account.key",
    ])?;
    run(&[
        "ec",
        "-in",
        "service-account.key",
        "-pubout",
        "-out",
        "service-account.partial",
    ])?;
    fs::rename(dir.join("service-account.partial"), &public).context("writing a public key")
}

/// A kubeconfig with everything inside, so that it can be copied.
fn write_kubeconfig(spec: &Spec, user: &str, path: &Path) -> Result<()> {
    let data = |file: &str| -> Result<String> {
        let file = spec.pki(file);
        let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok(BASE64.encode(bytes))
    };
    let cluster = format!("linkerd-rs-{}", spec.name);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [{ "name": cluster, "cluster": {
            "server": spec.api_url(),
            "certificate-authority-data": data("ca.crt")?,
        }}],
        "users": [{ "name": user, "user": {
            "client-certificate-data": data(&format!("{user}.crt"))?,
            "client-key-data": data(&format!("{user}.key"))?,
        }}],
        "contexts": [{ "name": cluster, "context": { "cluster": cluster, "user": user } }],
    });
    machine::write_secret(path, serde_json::to_vec_pretty(&config)?)
}
