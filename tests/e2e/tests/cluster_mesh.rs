//! The thinnest path through the whole mesh: installed as the quick start says, one request from
//! one injected pod to another, over mTLS, counted on both sides.

use std::time::Duration;

use linkerd_e2e::{Kubectl, Mesh, Namespace, house_image};
use linkerd_testkit::{wait_for, wait_for_some};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(180);

/// Series of a pod's proxy that carry every one of `labels`.
fn series(namespace: &Namespace, app: &str, family: &str, labels: &[String]) -> Option<f64> {
    let pod = format!("-l=app={app}");
    let path = "-o=jsonpath={.items[0].metadata.name}";
    let name = namespace.run(&["get", "pods", &pod, path]);
    let admin = format!(
        "/api/v1/namespaces/{}/pods/{}:4191/proxy/metrics",
        namespace.name(),
        name.trim()
    );
    let scrape = namespace.run(&["get", "--raw", &admin]);
    let matching = scrape
        .lines()
        .filter(|line| line.starts_with(&format!("{family}{{")))
        .filter(|line| labels.iter().all(|label| line.contains(label.as_str())));
    let values: Vec<f64> = matching
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[test]
fn a_request_is_meshed_encrypted_counted_and_authorized() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let _mesh = Mesh::install(&kubectl, &[]);
    let namespace = Namespace::create(&kubectl, "mesh");
    let name = namespace.name().to_owned();
    kubectl.run(&["annotate", "namespace", &name, "linkerd.io/inject=enabled"]);

    for (app, args) in [
        (
            "server",
            json!(["serve", "0.0.0.0:8080", "/", "hello from the server"]),
        ),
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
        let spec = json!({
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
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

    let url = format!("http://{}:80/", namespace.host("server"));
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
    assert!(answer.contains("hello from the server"), "{answer}");

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
            let counted =
                wait_for_some(PATIENCE, family, || series(&namespace, app, family, labels));
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
