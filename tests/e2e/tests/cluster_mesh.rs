//! The thinnest path through the whole mesh: installed as the quick start says, one request from
//! one injected pod to another, followed through every step: redirected, looked up, encrypted,
//! decrypted, answered, counted and logged on both sides.

#[path = "cluster_mesh/capture.rs"]
mod capture;

use std::time::Duration;

use capture::{Capture, Segment};

use linkerd_e2e::{Kubectl, Mesh, Namespace, house_image};
use linkerd_testkit::{wait_for, wait_for_some};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(180);

/// Whoever reads this on the wire has read a request.
const PATH: &str = "a-path-nobody-else-asks-for";
const GREETING: &str = "an answer nobody else gives";

#[test]
fn a_request_is_meshed_encrypted_counted_and_authorized() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let _mesh = Mesh::install(&kubectl, &[]);
    let namespace = Namespace::create(&kubectl, "mesh");
    let name = namespace.name().to_owned();
    kubectl.run(&["annotate", "namespace", &name, "linkerd.io/inject=enabled"]);

    for (app, args) in [
        ("server", json!(["serve", "0.0.0.0:8080", "/", GREETING])),
        ("client", json!(["wait"])),
    ] {
        let labels = json!({"app": app});
        let container = json!({
            "name": app,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "args": args,
            "ports": [{"containerPort": 8080}],
        });
        let capture = json!({
            "name": "capture",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "args": ["capture"],
            "securityContext": {"runAsUser": 0, "capabilities": {"add": ["NET_RAW"]}},
        });
        let annotations = json!({"config.linkerd.io/access-log": "json"});
        let spec = json!({
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {"containers": [container, capture], "terminationGracePeriodSeconds": 1},
            },
        });
        let metadata = json!({"name": app, "namespace": name});
        namespace.apply(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec,
        }));
    }
    namespace.apply(&json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server", "namespace": name},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }));
    namespace.wait_deployment("server", PATIENCE);
    namespace.wait_deployment("client", PATIENCE);

    let url = format!("http://{}:80/{PATH}", namespace.host("server"));
    let get = [
        "exec",
        "deploy/client",
        "-c",
        "client",
        "--",
        "/linkerd-e2e-house",
        "get",
        &url,
    ];
    let answer = wait_for_some(PATIENCE, "an answer through the mesh", || {
        let (answered, output) = namespace.try_run(&get);
        answered.then_some(output)
    });
    assert!(answer.contains(GREETING), "{answer}");
    follow(&namespace);

    let identity = format!("default.{name}.serviceaccount.identity.linkerd.cluster.local");
    let inbound = [
        r#"direction="inbound""#.to_owned(),
        r#"tls="true""#.to_owned(),
        format!(r#"client_id="{identity}""#),
    ];
    let outbound = [
        r#"direction="outbound""#.to_owned(),
        r#"tls="true""#.to_owned(),
        format!(r#"server_id="{identity}""#),
        r#"dst_deployment="server""#.to_owned(),
    ];
    for (app, labels) in [("server", &inbound[..]), ("client", &outbound[..])] {
        for family in ["request_total", "response_total"] {
            let counted = wait_for_some(PATIENCE, family, || namespace.series(app, family, labels));
            assert!(counted >= 1.0, "{family} of {app}: {counted}");
        }
    }

    // A Server without an authorization lets nobody in; an AuthorizationPolicy opens it.
    let reached = || namespace.try_run(&get).0;
    let object = |kind: &str, version: &str, name: &str, spec: serde_json::Value| {
        let metadata = json!({"name": name, "namespace": namespace.name()});
        let version = format!("policy.linkerd.io/{version}");
        namespace.apply(&json!({
            "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec,
        }));
    };
    let selector = json!({"matchLabels": {"app": "server"}});
    let spec = json!({"podSelector": selector, "port": 8080, "proxyProtocol": "HTTP/1"});
    object("Server", "v1beta3", "server", spec);
    wait_for(PATIENCE, "the Server to close the port", || !reached());
    let spec = json!({"identities": [identity]});
    object("MeshTLSAuthentication", "v1alpha1", "client", spec);
    let group = "policy.linkerd.io";
    let spec = json!({
        "targetRef": {"group": group, "kind": "Server", "name": "server"},
        "requiredAuthenticationRefs": [
            {"group": group, "kind": "MeshTLSAuthentication", "name": "client"},
        ],
    });
    object("AuthorizationPolicy", "v1alpha1", "server", spec);
    wait_for(PATIENCE, "the policy to open the port", reached);
}

/// The way of the request through both pods, by what was seen on their networks, by what their
/// proxies counted and by what they logged.
fn follow(namespace: &Namespace) {
    let address = |app: &str| namespace.pod(app, "status.podIP");
    let (client, server) = (address("client"), address("server"));
    let service = namespace.run(&["get", "svc/server", "-o=jsonpath={.spec.clusterIP}"]);
    let service = service.trim();
    let capture = |app: &str| Capture::of(namespace, app, |c| c.says(GREETING));

    // The application speaks to the service's address; the kernel leads that to its own proxy.
    let seen = capture("client");
    let redirected = seen.stream(|s| s.to.ends_with(":4140"));
    assert!(redirected.begins(), "no SYN came to 4140");
    let asked = format!("GET /{PATH} HTTP/1.1\r\n");
    assert!(redirected.text().starts_with(&asked), "{redirected:?}");
    let to_service = |segment: &Segment| segment.to == format!("{service}:80");
    assert!(seen.stream(to_service).is_empty(), "it went past the proxy");
    let target = format!(r#"target_addr="{service}:80""#);
    let labels = [r#"direction="outbound""#, r#"peer="src""#, &target].map(str::to_owned);
    let opened = namespace.series("client", "tcp_open_total", &labels);
    assert!(opened >= Some(1.0), "the original destination: {opened:?}");

    // Discovery told of one endpoint, policy of a route.
    let parent = format!(r#"parent_namespace="{}""#, namespace.name());
    let labels = [parent, r#"parent_name="server""#.to_owned()];
    for family in [
        "outbound_http_balancer_endpoints",
        "outbound_http_route_request_statuses_total",
    ] {
        let value = namespace.series("client", family, &labels);
        assert!(value >= Some(1.0), "{family}: {value:?}");
    }

    // Between the pods there is nothing but TLS 1.3, seen from either side.
    for app in ["client", "server"] {
        let seen = capture(app);
        let port = |s: &str| s == format!("{server}:4143");
        let there = seen.stream(|s| s.from.starts_with(&client) && port(&s.to));
        let back = seen.stream(|s| port(&s.from) && s.to.starts_with(&client));
        assert!(there.begins(), "{app}: no SYN to the endpoint");
        there.assert_tls(app);
        back.assert_tls(app);
        assert_eq!(back.tls_version(), Some(0x0304), "{app}: TLS 1.3");
        for plain in [PATH, GREETING] {
            // The kernel writes the service's address on what the proxy answers the application;
            // nothing went there, as seen above.
            let wire = seen.stream(|s| s.is_between_hosts() && s.from != format!("{service}:80"));
            assert!(
                !wire.text().contains(plain),
                "{app}: {plain:?} in the clear"
            );
        }
    }

    // The server's proxy gives the application what was asked, and takes its answer.
    let seen = capture("server");
    let forwarded = seen.stream(|s| !s.is_between_hosts() && s.to.ends_with(":8080"));
    assert!(forwarded.text().contains(&asked), "{forwarded:?}");
    let answered = seen.stream(|s| !s.is_between_hosts() && s.from.ends_with(":8080"));
    assert!(answered.text().contains(GREETING), "{answered:?}");
    let identity = format!(
        "default.{}.serviceaccount.identity.linkerd.cluster.local",
        namespace.name()
    );
    let target = format!(r#"target_addr="{server}:8080""#);
    let client_id = format!(r#"client_id="{identity}""#);
    let labels = [
        r#"direction="inbound""#,
        r#"peer="src""#,
        r#"tls="true""#,
        &target,
        &client_id,
    ];
    let opened = namespace.series("server", "tcp_open_total", &labels.map(str::to_owned));
    assert!(opened >= Some(1.0), "the original destination: {opened:?}");

    // Its log tells the same story.
    let line = wait_for_some(PATIENCE, "the access log", || {
        let log = namespace.run(&["logs", "deploy/server", "-c", "linkerd-proxy"]);
        let line = log.lines().find(|line| line.contains(PATH))?;
        serde_json::from_str::<Value>(line).ok()
    });
    let told = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    assert_eq!(told("method"), "GET", "{line}");
    assert!(told("uri").ends_with(PATH), "{line}");
    assert_eq!(
        line["status"].to_string().trim_matches('"'),
        "200",
        "{line}"
    );
    assert_eq!(told("client.id"), identity, "{line}");
    assert!(told("client.addr").starts_with(&client), "{line}");
}
