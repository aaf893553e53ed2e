//! `install` and `upgrade` against a cluster: what they read there, what they refuse, what they warn of.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cluster::{
    Ran, api_server, holding, linkerd, object, objects, printed, ready, refusal, says, version,
};
use linkerd_testkit::ca::Ca;
use serde_json::{Value, json};
use std::{
    fs,
    net::{SocketAddr, TcpListener},
};

#[path = "process_bad_input/cluster.rs"]
mod cluster;

fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address")
}

fn with(mut objects: Vec<Value>, more: impl IntoIterator<Item = Value>) -> SocketAddr {
    objects.extend(more);
    holding(objects)
}

fn secret(name: &str, data: &[(&str, &str)]) -> Value {
    let data = data
        .iter()
        .map(|(key, text)| ((*key).to_owned(), STANDARD.encode(text).into()));
    let data: serde_json::Map<String, Value> = data.collect();
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "namespace": "linkerd"}, "data": data})
}

/// Files of one test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }
}

#[track_caller]
fn exactly(ran: &Ran, code: i32, err: &str) {
    assert_eq!(
        (ran.code, ran.err.as_str(), ran.out.as_str()),
        (code, err, "")
    );
}

#[test]
fn without_a_cluster_the_way_out_is_named() {
    let ran = linkerd(nobody(), &["install"], "");
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines.len(), 5, "{}", ran.err);
    assert_eq!(lines[0], "Unable to connect to the Kubernetes cluster:");
    assert!(lines[2].starts_with("  ") && lines[2].contains("Connection refused"));
    assert_eq!(
        lines[4],
        "To print the manifests without a cluster, use --ignore-cluster"
    );
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
}

#[test]
fn ports_of_the_api_server_are_read() {
    let server = holding(ready());
    let ran = linkerd(server, &["install"], "");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let rendered = objects(&ran.out);
    let identity = object(&rendered, "Deployment", "linkerd-identity");
    let init = &identity["spec"]["template"]["spec"]["initContainers"][0]["args"];
    let arguments: Vec<&str> = init
        .as_array()
        .expect("arguments")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let ignored = arguments
        .iter()
        .position(|a| *a == "--outbound-ports-to-ignore");
    assert_eq!(arguments[ignored.expect("the argument") + 1], "443,8443");
}

#[test]
fn clusters_that_an_install_does_not_fit() {
    let node = |runtime: &str| {
        let empty = [
            "architecture",
            "bootID",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
            "systemUUID",
        ];
        let mut info = json!({"containerRuntimeVersion": runtime});
        for key in empty {
            info[key] = json!("");
        }
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"nodeInfo": info}})
    };
    let docker = with(ready(), [node("containerd://2"), node("docker://20.10")]);
    exactly(
        &linkerd(docker, &["install"], ""),
        1,
        "there are nodes using the docker container runtime and proxy-init container must run as root user.\ntry installing linkerd via --set proxyInit.runAsRoot=true\n",
    );
    let rooted = linkerd(
        docker,
        &["install", "--set", "proxyInit.runAsRoot=true"],
        "",
    );
    assert_eq!(rooted.code, 0, "{}", rooted.err);
    let mut bare = ready();
    bare.retain(|object| object["kind"] != "EndpointSlice");
    let bare = holding(bare);
    exactly(
        &linkerd(bare, &["install"], ""),
        1,
        "Error: no EndpointSlice resources exist in the cluster\n",
    );
    let without = ["install", "--enable-endpoint-slices=false"];
    assert_eq!(linkerd(bare, &without, "").code, 0);
    let objects = ready();
    let old = api_server(move |path| match path {
        "/version" => version(),
        "/apis/discovery.k8s.io/v1/endpointslices" => refusal(
            404,
            "NotFound",
            "the server could not find the requested resource",
        ),
        path => cluster::found(&objects, path, ""),
    });
    exactly(
        &linkerd(old, &["install"], ""),
        1,
        "Error: EndpointSlice resource not found\n",
    );
}

#[test]
fn issuers_that_something_else_keeps() {
    let (root, issuer) = Ca::linkerd();
    let name = "linkerd-identity-issuer";
    let external = ["install", "--identity-external-issuer"];
    let whole = [("tls.crt", issuer.pem()), ("ca.crt", root.pem())];
    for (case, data, error) in [
        (
            "no Secret",
            None,
            "Error: Secret linkerd/linkerd-identity-issuer must exist when the issuer is external: make it with cert-manager or kubectl first\n",
        ),
        (
            "no anchors in it",
            Some(&whole[..1]),
            "Error: Secret linkerd/linkerd-identity-issuer has no key ca.crt\n",
        ),
        ("both", Some(&whole[..]), ""),
    ] {
        let server = with(ready(), data.map(|data| secret(name, data)));
        let ran = linkerd(server, &external, "");
        assert_eq!(
            (ran.err.as_str(), ran.code),
            (error, i32::from(!error.is_empty())),
            "{case}"
        );
        if !error.is_empty() {
            continue;
        }
        let rendered = objects(&ran.out);
        let roots = object(&rendered, "ConfigMap", "linkerd-identity-trust-roots");
        assert_eq!(
            roots["data"]["ca-bundle.crt"].as_str().map(str::trim),
            Some(root.pem().trim())
        );
        assert!(
            !rendered
                .iter()
                .any(|o| o["kind"] == "Secret" && o["metadata"]["name"] == name)
        );
    }
}

#[test]
fn anchors_that_something_else_keeps() {
    let (root, issuer) = Ca::linkerd();
    let files = Files::new();
    let roots = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca-bundle.crt": root.pem()},
        "metadata": {"name": "linkerd-identity-trust-roots", "namespace": "linkerd"}});
    let server = with(ready(), [roots]);
    let (certificate, key) = (
        files.file("issuer.crt", issuer.pem()),
        files.file("issuer.key", &issuer.key_pem()),
    );
    let given = [
        "install",
        "--identity-external-ca",
        "--identity-issuer-certificate-file",
        &certificate,
        "--identity-issuer-key-file",
        &key,
    ];
    let ran = linkerd(server, &given, "");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let rendered = objects(&ran.out);
    let named = |o: &&Value| o["metadata"]["name"] == "linkerd-identity-trust-roots";
    assert!(
        !rendered
            .iter()
            .any(|o| named(&o) && o["kind"] == "ConfigMap")
    );
    let config = object(&rendered, "ConfigMap", "linkerd-config");
    let values =
        linkerd_cli::yaml::parse(config["data"]["values"].as_str().expect("text")).expect("YAML");
    let stored = values["identityTrustAnchorsPEM"].as_str().map(str::trim);
    assert_eq!(stored, Some(root.pem().trim()));
    let alone = ["install", "--identity-external-ca"];
    for (cluster, error) in [
        (
            server,
            "Error: a certificate file must be specified if other credentials are provided\n",
        ),
        (
            holding(ready()),
            "Error: with an external CA the issuer must be given too: --identity-issuer-certificate-file and --identity-issuer-key-file, or --identity-external-issuer\n",
        ),
    ] {
        exactly(&linkerd(cluster, &alone, ""), 1, error);
    }
}

#[test]
fn credentials_come_all_or_none() {
    let (root, issuer) = Ca::linkerd();
    let files = Files::new();
    let given = [
        (
            "--identity-trust-anchors-file",
            files.file("ca.crt", root.pem()),
            "a trust anchors file",
        ),
        (
            "--identity-issuer-certificate-file",
            files.file("issuer.crt", issuer.pem()),
            "a certificate file",
        ),
        (
            "--identity-issuer-key-file",
            files.file("issuer.key", &issuer.key_pem()),
            "a private key file",
        ),
    ];
    for left_out in 0..given.len() {
        let mut args = vec!["install", "--ignore-cluster"];
        for (at, (flag, file, _)) in given.iter().enumerate() {
            if at != left_out {
                args.extend([*flag, file.as_str()]);
            }
        }
        let what = given[left_out].2;
        exactly(
            &linkerd(nobody(), &args, ""),
            1,
            &format!("Error: {what} must be specified if other credentials are provided\n"),
        );
    }
}

/// What `install` leaves behind for `upgrade`, made with these credentials.
fn installed(files: &Files, root: &Ca, issuer: &Ca) -> Vec<Value> {
    let mut objects = ready();
    let rendered = printed(&[
        "install",
        "--ignore-cluster",
        "--identity-trust-anchors-file",
        &files.file("ca.crt", root.pem()),
        "--identity-issuer-certificate-file",
        &files.file("issuer.crt", issuer.pem()),
        "--identity-issuer-key-file",
        &files.file("issuer.key", &issuer.key_pem()),
    ]);
    objects.push(object(&rendered, "Secret", "linkerd-config-overrides").clone());
    objects
}

fn meshed(namespace: &str, name: &str, anchors: &str) -> Value {
    let variable = json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"linkerd.io/control-plane-ns": "linkerd"}},
        "spec": {"containers": [{"name": "linkerd-proxy", "env": [variable]}]},
        "status": {"phase": "Running"}})
}

const TROUBLE: &str =
    "For troubleshooting help, visit: https://linkerd.io/upgrade/#troubleshooting\n\n";

#[test]
fn an_upgrade_needs_what_the_cli_stored() {
    exactly(
        &linkerd(holding(ready()), &["upgrade"], ""),
        1,
        &format!(
            "× Could not render upgrade configuration: Could not find the linkerd-config-overrides secret.\n\
             Please note this command is only intended for instances of Linkerd that were installed via the CLI; use helm for those installed with Helm\n{TROUBLE}"
        ),
    );
}

#[test]
fn an_upgrade_counts_the_proxies_that_would_be_lost() {
    let files = Files::new();
    let (root, issuer) = Ca::linkerd();
    let stranger = Ca::root("root.elsewhere");
    let pods = [
        meshed("shop", "web", root.pem()),
        meshed("shop", "old", stranger.pem()),
        meshed("emojivoto", "vote", stranger.pem()),
        meshed("linkerd", "linkerd-identity", stranger.pem()),
    ];
    let server = with(installed(&files, &root, &issuer), pods);
    let ran = linkerd(server, &["upgrade"], "");
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
    says(
        &ran,
        1,
        &[
            "× Could not render upgrade configuration: You are attempting to use an issuer certificate which does not validate against the trust anchors of the following pods:\n\t",
            "\t* shop/old\n",
            "\t* emojivoto/vote\n",
            "Use the --force flag to proceed anyway",
            TROUBLE,
        ],
    );
    assert!(!ran.err.contains("shop/web") && !ran.err.contains("linkerd/linkerd-identity"));
    let forced = linkerd(server, &["upgrade", "--force"], "");
    assert_eq!((forced.code, forced.err.as_str()), (0, ""));
    assert!(forced.out.contains("kind: Deployment"));
}

#[test]
fn an_upgrade_with_new_anchors_points_to_the_steps() {
    let files = Files::new();
    let (root, issuer) = Ca::linkerd();
    let server = holding(installed(&files, &root, &issuer));
    let both = format!("{}{}", root.pem(), Ca::root("root.next").pem());
    let file = files.file("both.crt", &both);
    let ran = linkerd(
        server,
        &["upgrade", "--identity-trust-anchors-file", &file],
        "",
    );
    says(
        &ran,
        0,
        &[
            "‼ The trust anchors change: ",
            "manually-rotating-control-plane-tls-credentials",
        ],
    );
    let rendered = objects(&ran.out);
    let roots = object(&rendered, "ConfigMap", "linkerd-identity-trust-roots");
    assert_eq!(
        roots["data"]["ca-bundle.crt"].as_str().map(str::trim),
        Some(both.trim())
    );
}

/// With cert-manager the anchors can move away from those that the control plane hands out.
#[test]
fn an_upgrade_beside_an_external_issuer() {
    let (root, issuer) = Ca::linkerd();
    let next = Ca::root("root.next");
    let name = "linkerd-identity-issuer";
    let with_anchors = |anchors: &Ca| {
        secret(
            name,
            &[("tls.crt", issuer.pem()), ("ca.crt", anchors.pem())],
        )
    };
    let first = linkerd(
        with(ready(), [with_anchors(&root)]),
        &["install", "--identity-external-issuer"],
        "",
    );
    assert_eq!(first.code, 0, "{}", first.err);
    let stored = object(&objects(&first.out), "Secret", "linkerd-config-overrides").clone();
    let warning = "‼ ca.crt of Secret linkerd/linkerd-identity-issuer is not what the control plane was installed with; the old trust anchors stay.\n  \
                   Give the new bundle with --identity-trust-anchors-file to change them\n\n";
    for (anchors, expected) in [(&root, ""), (&next, warning)] {
        let server = with(ready(), [stored.clone(), with_anchors(anchors)]);
        let ran = linkerd(server, &["upgrade"], "");
        assert_eq!((ran.code, ran.err.as_str()), (0, expected));
        let rendered = objects(&ran.out);
        let roots = object(&rendered, "ConfigMap", "linkerd-identity-trust-roots");
        assert_eq!(
            roots["data"]["ca-bundle.crt"].as_str().map(str::trim),
            Some(root.pem().trim())
        );
    }
    let files = Files::new();
    let server = with(ready(), [stored, with_anchors(&next)]);
    let file = files.file("ca.crt", next.pem());
    let told = linkerd(
        server,
        &["upgrade", "--identity-trust-anchors-file", &file],
        "",
    );
    assert_eq!(told.code, 0, "{}", told.err);
    assert!(!told.err.contains("ca.crt of Secret"), "{}", told.err);
    for flag in [
        "--identity-issuer-certificate-file",
        "--identity-issuer-key-file",
    ] {
        exactly(
            &linkerd(server, &["upgrade", flag, &file], ""),
            1,
            &format!(
                "× Could not render upgrade configuration: cannot update issuer certificates if you are using external cert management solution\n{TROUBLE}"
            ),
        );
    }
}

/// `EC PRIVATE KEY` as we write it, `PRIVATE KEY` as most tools do.
#[test]
fn keys_of_the_issuer_come_in_two_forms() {
    let files = Files::new();
    let ours = linkerd_tls::issuer::generate::Authority::for_install(
        "linkerd",
        "cluster.local",
        std::time::SystemTime::now(),
    )
    .expect("a CA");
    let pem = ours.certificate.to_pem();
    let (root, issuer) = Ca::linkerd();
    for (form, anchors, certificate, key) in [
        (
            "EC PRIVATE KEY",
            pem.as_str(),
            pem.as_str(),
            ours.key.to_sec1_pem().expect("a key"),
        ),
        ("PRIVATE KEY", root.pem(), issuer.pem(), issuer.key_pem()),
    ] {
        assert!(
            key.starts_with(&format!("-----BEGIN {form}-----")),
            "{form}"
        );
        let rendered = printed(&[
            "install",
            "--ignore-cluster",
            "--identity-trust-anchors-file",
            &files.file("ca.crt", anchors),
            "--identity-issuer-certificate-file",
            &files.file("issuer.crt", certificate),
            "--identity-issuer-key-file",
            &files.file("issuer.key", &key),
        ]);
        let secret = object(&rendered, "Secret", "linkerd-identity-issuer");
        let stored = secret["data"]["key.pem"].as_str().expect("a key");
        let stored = STANDARD.decode(stored).expect("base64");
        assert_eq!(
            String::from_utf8_lossy(&stored).trim(),
            key.trim(),
            "{form}"
        );
    }
}

/// Charts, injector and `inject --manual` count the same bundle, whatever newlines follow it.
#[test]
fn a_bundle_has_one_digest() {
    let files = Files::new();
    let (root, issuer) = Ca::linkerd();
    let bundle = format!("{}\n{}\n\n\n", root.pem(), Ca::root("root.next").pem());
    let mut rendered = printed(&[
        "install",
        "--ignore-cluster",
        "--identity-trust-anchors-file",
        &files.file("ca.crt", &bundle),
        "--identity-issuer-certificate-file",
        &files.file("issuer.crt", issuer.pem()),
        "--identity-issuer-key-file",
        &files.file("issuer.key", &issuer.key_pem()),
    ]);
    let digest = linkerd_injector::patch::trust_root_sha256(&bundle);
    let annotated = |object: &Value| {
        object["spec"]["template"]["metadata"]["annotations"]["linkerd.io/trust-root-sha256"]
            .clone()
    };
    for name in [
        "linkerd-identity",
        "linkerd-destination",
        "linkerd-proxy-injector",
    ] {
        let deployment = object(&rendered, "Deployment", name);
        assert_eq!(annotated(deployment), json!(digest), "{name}");
    }
    rendered.extend(ready());
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"containers": [{"name": "web"}]}}}});
    let ran = linkerd(
        holding(rendered),
        &["inject", "--manual", "-"],
        &web.to_string(),
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(annotated(&objects(&ran.out)[0]), json!(digest));
}
