//! `inject` with its flags: each becomes its annotation, and the report tells what was done.

use cluster::{Ran, linkerd, linkerd_with, objects};
use linkerd_testkit::ca::Ca;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    sync::Arc,
};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

#[path = "process_bad_input/cluster.rs"]
mod cluster;

fn inject(args: &[&str], stdin: &str) -> Ran {
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let mut words = vec!["inject", "--ignore-cluster"];
    words.extend(args);
    linkerd(nobody, &words, stdin)
}

const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  template:\n    spec:\n      containers:\n      - name: web\n";

fn annotations(text: &str) -> Value {
    let object = &objects(text)[0];
    let mut annotations = object["spec"]["template"]["metadata"]["annotations"].clone();
    if let Some(map) = annotations.as_object_mut() {
        map.remove("linkerd.io/inject");
    }
    annotations
}

#[test]
fn each_flag_is_its_annotation() {
    let config = |key: &str| format!("config.linkerd.io/{key}");
    for (flags, key, value) in [
        (
            &["--proxy-image", "example/p"][..],
            config("proxy-image"),
            "example/p",
        ),
        (&["--proxy-version", "v1"], config("proxy-version"), "v1"),
        (&["-v", "v1"], config("proxy-version"), "v1"),
        (
            &["--image-pull-policy", "Always"],
            config("image-pull-policy"),
            "Always",
        ),
        (
            &["--init-image", "example/i"],
            config("init-image"),
            "example/i",
        ),
        (
            &["--init-image-version", "v2"],
            config("init-image-version"),
            "v2",
        ),
        (&["--inbound-port", "5143"], config("inbound-port"), "5143"),
        (
            &["--outbound-port", "5140"],
            config("outbound-port"),
            "5140",
        ),
        (&["--control-port", "5190"], config("control-port"), "5190"),
        (&["--admin-port", "5191"], config("admin-port"), "5191"),
        (
            &["--skip-inbound-ports", "1,2-5"],
            config("skip-inbound-ports"),
            "1,2-5",
        ),
        (
            &["--skip-outbound-ports", "1,2", "--skip-outbound-ports", "3"],
            config("skip-outbound-ports"),
            "1,2,3",
        ),
        (&["--proxy-uid", "7"], config("proxy-uid"), "7"),
        (&["--proxy-gid=8"], config("proxy-gid"), "8"),
        (
            &["--proxy-log-level", "debug"],
            config("proxy-log-level"),
            "debug",
        ),
        (
            &["--proxy-cpu-request", "100m"],
            config("proxy-cpu-request"),
            "100m",
        ),
        (
            &["--proxy-cpu", "100m"],
            config("proxy-cpu-request"),
            "100m",
        ),
        (&["--proxy-cpu-limit", "2"], config("proxy-cpu-limit"), "2"),
        (
            &["--proxy-memory-request", "1Mi"],
            config("proxy-memory-request"),
            "1Mi",
        ),
        (
            &["--proxy-memory", "1Mi"],
            config("proxy-memory-request"),
            "1Mi",
        ),
        (
            &["--proxy-memory-limit", "2Mi"],
            config("proxy-memory-limit"),
            "2Mi",
        ),
        (
            &["--enable-external-profiles"],
            config("enable-external-profiles"),
            "true",
        ),
        (
            &["--default-inbound-policy", "deny"],
            config("default-inbound-policy"),
            "deny",
        ),
        (
            &["--enable-debug-sidecar"],
            config("enable-debug-sidecar"),
            "true",
        ),
        (
            &["--close-wait-timeout", "1m30s"],
            config("close-wait-timeout"),
            "1m30s",
        ),
        (
            &["--native-sidecar"],
            "config.beta.linkerd.io/proxy-enable-native-sidecar".to_owned(),
            "true",
        ),
        (
            &["--wait-before-exit-seconds", "20"],
            "config.alpha.linkerd.io/proxy-wait-before-exit-seconds".to_owned(),
            "20",
        ),
        (
            &["--require-identity-on-inbound-ports", "80,8000-9000"],
            config("proxy-require-identity-inbound-ports"),
            "80,8000-9000",
        ),
        (
            &["--opaque-ports", "mysql,6379"],
            config("opaque-ports"),
            "mysql,6379",
        ),
        (&["--opaque-ports="], config("opaque-ports"), ""),
    ] {
        let mut args = flags.to_vec();
        args.push("-");
        let ran = inject(&args, WEB);
        assert_eq!(ran.code, 0, "{flags:?}: {}", ran.err);
        assert_eq!(annotations(&ran.out), json!({key: value}), "{flags:?}");
    }
    let none = inject(&["--proxy-uid", "2102", "-"], WEB);
    assert_eq!(
        annotations(&none.out),
        json!({}),
        "what is so already needs no word"
    );
    let ingress = inject(&["--ingress", "-"], WEB);
    assert!(
        ingress.out.contains("linkerd.io/inject: ingress"),
        "{}",
        ingress.out
    );
    let registry = [("LINKERD_DOCKER_REGISTRY", "example.org/mesh")];
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let expected = json!({
        config("proxy-image"): "example.org/mesh/proxy",
        config("init-image"): "example.org/mesh/proxy-init",
        config("debug-image"): "example.org/mesh/debug",
    });
    let by_variable = linkerd_with(nobody, &["inject", "--ignore-cluster", "-"], WEB, &registry);
    assert_eq!(annotations(&by_variable.out), expected);
    let by_flag = inject(&["--registry", "example.org/mesh/", "-"], WEB);
    assert_eq!(annotations(&by_flag.out), expected);
}

#[test]
fn flags_that_cannot_be_followed() {
    for (flags, error) in [
        (
            &["--disable-identity"][..],
            "Error: --disable-identity is no longer supported: every meshed pod has an identity\n",
        ),
        (
            &["--require-identity-on-inbound-ports", "http"],
            "Error: \"http\" is not a valid port nor port-range\n",
        ),
        (&["-o", "xml"], "Error: unsupported format xml\n"),
        (
            &["--image-pull-policy", "Rarely"],
            "Error: --image-pull-policy must be one of: Always, IfNotPresent, Never\n",
        ),
    ] {
        let mut args = flags.to_vec();
        args.push("-");
        let ran = inject(&args, WEB);
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err.as_str()),
            (1, "", error),
            "{flags:?}"
        );
    }
    let ran = inject(&["--close-wait-timeout", "soon", "-"], WEB);
    assert!(
        ran.err.starts_with("Error: --close-wait-timeout: "),
        "{}",
        ran.err
    );
}

/// Where a file of flags is on its way out, stderr says so and the rest is as ever.
#[test]
fn deprecated_flags_are_named() {
    let ran = inject(
        &["--proxy-cpu", "1", "--init-image-version", "v2", "-"],
        WEB,
    );
    let notices: Vec<&str> = ran.err.lines().take(2).collect();
    assert_eq!(
        notices,
        [
            "Flag --proxy-cpu has been deprecated, use --proxy-cpu-request instead",
            "Flag --init-image-version has been deprecated, use --set proxyInit.image.version instead",
        ]
    );
    assert_eq!(ran.code, 0);
}

fn deployment(name: &str, port: Value) -> String {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [{"name": name, "ports": [port]}]}}}})
    .to_string()
}

#[test]
fn the_report() {
    let udp = json!({"containerPort": 53, "protocol": "UDP"});
    let tcp = json!({"containerPort": 80});
    let (dns, time, web) = (
        deployment("dns", udp.clone()),
        deployment("time", udp),
        deployment("web", tcp),
    );
    let fine = "√ pods do not use host networking\n\
                √ pods do not have a 3rd party proxy or initContainer already injected\n\
                √ pods are not annotated to disable injection\n\
                √ at least one resource can be injected or annotated\n\
                √ pod specs do not include UDP ports\n\
                √ pods do not have automountServiceAccountToken set to \"false\" or service account token projection is enabled\n";
    for (name, flags, input, report) in [
        (
            "one that speaks UDP",
            &["-"][..],
            dns.clone(),
            "\n‼ deployment/dns uses \"protocol: UDP\"\n\ndeployment \"dns\" injected\n\n".to_owned(),
        ),
        (
            "two",
            &["-"],
            format!("{dns}\n---\n{time}"),
            "\n‼ deployment/dns, deployment/time use \"protocol: UDP\"\n\ndeployment \"dns\" injected\ndeployment \"time\" injected\n\n".to_owned(),
        ),
        (
            "no kind",
            &["-"],
            format!("a: 1\n---\n{web}"),
            "\ndocument missing \"kind\" field, skipped\ndeployment \"web\" injected\n\n".to_owned(),
        ),
        (
            "disabled",
            &["-"],
            WEB.replace("  template:\n", "  template:\n    metadata:\n      annotations:\n        linkerd.io/inject: disabled\n"),
            "\n‼ \"linkerd.io/inject: disabled\" annotation set on deployment/web\n‼ no supported objects found\n\ndeployment \"web\" skipped\n\n".to_owned(),
        ),
        (
            "verbose",
            &["--verbose", "-"],
            web.clone(),
            format!("\n{fine}\ndeployment \"web\" injected\n\n"),
        ),
    ] {
        let ran = inject(flags, &input);
        assert_eq!((ran.code, ran.err), (0, report), "{name}");
    }
}

#[test]
fn a_folder_is_read_in_lexical_order() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("b")).expect("ours");
    for (file, name) in [
        ("c.yaml", "third"),
        ("a.json", "first"),
        ("b/x.yml", "second"),
    ] {
        let text = deployment(name, json!({"containerPort": 80}));
        fs::write(dir.path().join(file), text).expect("ours");
    }
    let ran = inject(&[dir.path().to_str().expect("UTF-8")], "");
    assert_eq!(
        ran.err,
        "\ndeployment \"first\" injected\ndeployment \"second\" injected\ndeployment \"third\" injected\n\n"
    );
    let broken = dir.path().join("b/y.yml");
    fs::write(&broken, "kind: [").expect("ours");
    let ran = inject(&[dir.path().to_str().expect("UTF-8")], "");
    let place = format!("Error: {}: document 1 is not valid YAML", broken.display());
    assert!(ran.err.starts_with(&place), "{}", ran.err);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
}

/// Answers each path of `https://localhost:PORT` with what stands after the status line's number.
fn https(ca: &Ca) -> u16 {
    let leaf = ca.leaf("localhost");
    let config = ServerConfig::builder_with_provider(linkerd_tls::provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(leaf.chain, leaf.key)
        .expect("a certificate");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut stream = BufReader::new(StreamOwned::new(connection, stream));
            let mut line = String::new();
            if stream.read_line(&mut line).is_err() {
                continue;
            }
            let answer = match line.split(' ').nth(1).unwrap_or_default() {
                "/app.yaml" => format!("200 OK\r\ncontent-length: {}\r\n\r\n{WEB}", WEB.len()),
                "/moved" => {
                    "302 Found\r\nlocation: /app.yaml\r\ncontent-length: 0\r\n\r\n".to_owned()
                }
                "/out" => "302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n"
                    .to_owned(),
                "/round" => "302 Found\r\nlocation: /round\r\ncontent-length: 0\r\n\r\n".to_owned(),
                _ => "404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
            };
            let stream = stream.get_mut();
            let _ = stream.write_all(format!("HTTP/1.1 {answer}").as_bytes());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    port
}

#[test]
fn manifests_come_from_https() {
    let dir = tempfile::tempdir().expect("a directory");
    let ca = Ca::root("root.example");
    let roots = dir.path().join("roots.pem");
    fs::write(&roots, ca.pem()).expect("ours");
    let port = https(&ca);
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let base = format!("https://localhost:{port}");
    for (path, error) in [
        ("/app.yaml", String::new()),
        ("/moved", String::new()),
        (
            "/missing",
            format!(
                "Error: unable to read URL \"{base}/missing\", server reported 404 Not Found, status code=404\n"
            ),
        ),
        ("/out", "Error: only HTTPS URLs are allowed\n".to_owned()),
        (
            "/round",
            format!("Error: unable to read URL \"{base}/round\", more than 5 redirects\n"),
        ),
    ] {
        let url = format!("{base}{path}");
        let variables = [("SSL_CERT_FILE", roots.to_str().expect("UTF-8"))];
        let ran = linkerd_with(
            nobody,
            &["inject", "--ignore-cluster", &url],
            "",
            &variables,
        );
        if error.is_empty() {
            assert_eq!(
                (ran.code, ran.err.as_str()),
                (0, "\ndeployment \"web\" injected\n\n"),
                "{path}"
            );
        } else {
            assert_eq!((ran.code, ran.err), (1, error), "{path}");
        }
    }
}
