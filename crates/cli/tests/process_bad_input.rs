//! What people get wrong: no cluster, no rights, half an install, expired certificates, unknown
//! values, broken YAML. Each time the place, the next step and the exit code.

use cluster::{api_server, linkerd, refusal, says, version};
use serde_json::{Value, json};
use std::{
    fs,
    net::{SocketAddr, TcpListener},
};

#[path = "process_bad_input/cluster.rs"]
mod cluster;

#[test]
fn a_cluster_that_does_not_answer() {
    // Bound and closed again: nothing listens there.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let nobody = listener.local_addr().expect("an address");
    drop(listener);
    for (args, parts) in [
        (
            &["install"][..],
            &["Connection refused", "--ignore-cluster"][..],
        ),
        (
            &["check", "--wait=0s"],
            &[
                "× can query the Kubernetes API",
                "Connection refused",
                "l5d-api",
            ][..2],
        ),
        (&["upgrade"], &["Connection refused"]),
        (&["uninstall"], &["Connection refused"]),
        (&["status"], &["Connection refused"]),
        (&["authz", "deploy"], &["Connection refused"]),
        (&["identity", "web"], &["Connection refused"]),
        (
            &["diagnostics", "proxy-metrics", "deploy/web"],
            &["Connection refused"],
        ),
        (
            &["diagnostics", "controller-metrics"],
            &["Connection refused"],
        ),
        (
            &["diagnostics", "endpoints", "web:80"],
            &["Error creating destination client", "Connection refused"],
        ),
        (
            &["diagnostics", "profile", "web:80"],
            &["Error creating destination client"],
        ),
        (
            &["diagnostics", "policy", "svc/web", "80"],
            &["Error creating destination client"],
        ),
        (&["inject", "-"], &["Connection refused", "linkerd check"]),
    ] {
        says(&linkerd(nobody, args, ""), 1, parts);
    }
    says(
        &linkerd(nobody, &["version"], ""),
        0,
        &["Server version: unavailable"],
    );
}

#[test]
fn a_user_without_rights() {
    let server = api_server(|path| match path {
        "/version" => version(),
        path => {
            let resource = path.rsplit('/').next().unwrap_or_default();
            let message = format!("{resource} is forbidden: User \"ann\" cannot do that");
            refusal(403, "Forbidden", &message)
        }
    });
    for args in [
        &["install"][..],
        &["upgrade"],
        &["status"],
        &["authz", "deploy/web"],
        &["identity", "-l", "app=web"],
        &["diagnostics", "proxy-metrics", "deploy/web"],
        &["diagnostics", "controller-metrics"],
        &["diagnostics", "endpoints", "web:80"],
        &["inject", "-"],
        &["check", "--wait=0s"],
        &["check", "--pre", "--wait=0s"],
    ] {
        says(
            &linkerd(server, args, ""),
            1,
            &["is forbidden: User \"ann\""],
        );
    }
}

/// The definitions are there, or the ConfigMap, but not both.
#[test]
fn half_an_install() {
    let nothing = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        refusal(404, "NotFound", &format!("\"{name}\" not found"))
    };
    let empty = api_server(move |path| match path {
        "/version" => version(),
        path => nothing(path),
    });
    says(
        &linkerd(empty, &["install"], ""),
        1,
        &["Linkerd CRDs must be installed first. Run linkerd install with the --crds flag."],
    );
    says(
        &linkerd(empty, &["upgrade"], ""),
        1,
        &["Linkerd CRDs must be installed first. Run linkerd upgrade with the --crds flag"],
    );
    says(
        &linkerd(empty, &["check", "--wait=0s"], ""),
        1,
        &[
            "× 'linkerd-config' config map exists",
            "\"linkerd-config\" not found",
            "#l5d-existence-linkerd-config",
        ],
    );
    says(
        &linkerd(empty, &["diagnostics", "endpoints", "web:80"], ""),
        1,
        &["Error creating destination client"],
    );
    let installed = api_server(move |path| {
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "linkerd-config",
            "namespace": "linkerd", "uid": "u"}, "data": {"values": "linkerdVersion: edge-25.10.7\n"}});
        match path {
            "/version" => version(),
            "/api/v1/namespaces/linkerd/configmaps/linkerd-config" => (200, config),
            "/api/v1/namespaces" => {
                let none: [Value; 0] = [];
                let list =
                    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": none});
                (200, list)
            }
            path => nothing(path),
        }
    });
    says(
        &linkerd(installed, &["install", "--crds"], ""),
        1,
        &[
            "Reason: ConfigMap/linkerd-config already exists.",
            "linkerd upgrade",
        ],
    );
    says(
        &linkerd(installed, &["check", "--wait=0s"], ""),
        1,
        &[
            "√ 'linkerd-config' config map exists",
            "Status check results are ×",
        ],
    );
}

#[test]
fn expired_certificates() {
    use linkerd_testkit::ca::Ca;
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (root, issuer) = Ca::linkerd();
    let stranger = Ca::root("root.elsewhere");
    let expired = include_str!("golden/expired/expired.pem");
    let expired_key = include_str!("golden/expired/expired.key");
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let install = |anchors: &str, certificate: &str, key: &str| {
        let args = [
            "install",
            "--ignore-cluster",
            "--identity-trust-anchors-file",
            &file("ca.crt", anchors),
            "--identity-issuer-certificate-file",
            &file("issuer.crt", certificate),
            "--identity-issuer-key-file",
            &file("issuer.key", key),
        ];
        linkerd(nobody, &args, "")
    };
    let good = install(root.pem(), issuer.pem(), &issuer.key_pem());
    assert_eq!(good.code, 0, "{}", good.err);
    let failed = "failed to validate issuer credentials: ";
    says(
        &install(expired, expired, expired_key),
        1,
        &[failed, "expired on 2021-01-01T00:00:00Z"],
    );
    says(
        &install(stranger.pem(), issuer.pem(), &issuer.key_pem()),
        1,
        &[failed],
    );
    says(
        &install(root.pem(), issuer.pem(), &stranger.key_pem()),
        1,
        &["failed to"],
    );
    says(
        &install(root.pem(), "no certificate", &issuer.key_pem()),
        1,
        &["failed to"],
    );
}

#[test]
fn unknown_and_malformed_values() {
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let run = |args: &[&str]| {
        let mut words = vec!["install", "--ignore-cluster"];
        words.extend(args);
        linkerd(nobody, &words, "")
    };
    says(&run(&["--set", "proxy"]), 1, &["proxy"]);
    says(
        &run(&["--set", "controllerLogLevel=loud"]),
        1,
        &["--controller-log-level must be one of"],
    );
    says(
        &run(&["--set", "proxy.logHTTPHeaders=loud"]),
        1,
        &["logHTTPHeaders"],
    );
    says(
        &run(&["--set", "proxyInit.iptablesMode=none"]),
        1,
        &["iptablesMode"],
    );
    says(&run(&["-f", "/nowhere.yaml"]), 1, &["/nowhere.yaml"]);
    for (set, warning) in [
        (
            "proxi.logLevel=debug",
            "Warning: the chart has no value \"proxi\"; it changes nothing (did you mean \"proxy\"?)\n",
        ),
        (
            "proxy.logLevle=debug",
            "Warning: the chart has no value \"proxy.logLevle\"; it changes nothing (did you mean \"proxy.logLevel\"?)\n",
        ),
    ] {
        let ran = run(&["--set", set]);
        assert_eq!((ran.code, ran.err.as_str()), (0, warning), "{set}");
    }
    for (set, message) in [
        (
            &["--set", "proxy.await=enabled"],
            "Error: the value proxy.await has the wrong type: invalid type: string \"enabled\", expected a boolean",
        ),
        (
            &["--set-string", "cniEnabled=true"],
            "Error: the value cniEnabled has the wrong type",
        ),
        (
            &["--set-string", "proxy.uid=2102"],
            "Error: the value proxy.uid has the wrong type",
        ),
        (
            &["--set", "proxy.gid=x"],
            "Error: the value proxy.gid has the wrong type",
        ),
        (
            &["--set", "proxy.ports.admin=99999"],
            "Error: the value proxy.ports.admin has the wrong type",
        ),
    ] {
        let ran = run(set);
        says(&ran, 1, &[message]);
        assert_eq!(ran.out, "", "{set:?}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("values.yaml");
    fs::write(&file, "proxy:\n  logLevel: [x\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    says(&run(&["-f", file]), 1, &["values.yaml", "line"]);
}

#[test]
fn broken_yaml_in_the_third_of_five_documents() {
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let document = |n: usize| match n {
        3 => "kind: Deployment\nmetadata:\n  name: [web\n".to_owned(),
        n => format!("kind: ConfigMap\nmetadata:\n  name: c{n}\n"),
    };
    let text = (1..=5).map(document).collect::<Vec<_>>().join("---\n");
    for args in [&["inject", "--ignore-cluster", "-"][..], &["uninject", "-"]] {
        let ran = linkerd(nobody, args, &text);
        says(&ran, 1, &["stdin: document 3 is not valid YAML", "line 1"]);
        assert_eq!(ran.out, "", "nothing is printed of a broken stream");
    }
}

/// A group alone impersonates nobody.
#[test]
fn groups_count_only_together_with_a_user() {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        sync::{Arc, Mutex},
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = listener.local_addr().expect("an address");
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&heads);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head = lines.take_while(|line| !line.is_empty());
            let asked = head.filter(|line| line.starts_with("impersonate-"));
            seen.lock().expect("one thread").extend(asked);
            let _ = stream
                .write_all(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    linkerd(server, &["version", "--as-group", "g"], "");
    assert!(heads.lock().expect("one thread").is_empty());
    linkerd(
        server,
        &["version", "--as=u", "--as-group=g", "--as-group", "h"],
        "",
    );
    assert_eq!(
        *heads.lock().expect("one thread"),
        [
            "impersonate-user: u",
            "impersonate-group: g",
            "impersonate-group: h"
        ]
    );
}
