//! What people get wrong: no cluster, no rights, half an install, expired certificates, unknown
//! values, broken YAML. Each time the place, the next step and the exit code.

use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::Arc,
};

struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// An API server that answers each path with a status and an object.
fn api_server(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || serve(&stream, &*answer));
        }
    });
    address
}

fn serve(stream: &TcpStream, answer: &dyn Fn(&str) -> (u16, Value)) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let path = line.split_whitespace().nth(1)?.to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let path = path.split('?').next().unwrap_or_default();
        let (code, object) = answer(path);
        let text = object.to_string();
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )
        .ok()?;
    }
}

fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    (code, status)
}

fn version() -> (u16, Value) {
    let info = json!({"major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "",
        "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
    (200, info)
}

/// Runs `linkerd` with a kubeconfig for that API server.
fn linkerd(server: SocketAddr, args: &[&str], stdin: &str) -> Ran {
    let dir = tempfile::tempdir().expect("a directory");
    let kubeconfig = dir.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{server}")}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    fs::write(&kubeconfig, config.to_string()).expect("written");
    let mut child = Command::new(env!("CARGO_BIN_EXE_linkerd"))
        .args(args)
        .env_clear()
        .env("PATH", "/nowhere")
        .env("KUBECONFIG", &kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("linkerd starts");
    let mut input = child.stdin.take().expect("a pipe");
    let _ = input.write_all(stdin.as_bytes());
    drop(input);
    let output = child.wait_with_output().expect("linkerd ends");
    Ran {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

#[track_caller]
fn says(ran: &Ran, code: i32, parts: &[&str]) {
    let all = format!("{}{}", ran.out, ran.err);
    assert_eq!(ran.code, code, "{all}");
    for part in parts {
        assert!(all.contains(part), "{part:?} is missing in: {all}");
    }
    assert!(!all.contains("panicked"), "{all}");
}

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
    let ran = run(&["--set", "proxi.logLevel=debug"]);
    says(
        &ran,
        0,
        &["Warning: the chart has no value \"proxi\"; it changes nothing"],
    );
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
