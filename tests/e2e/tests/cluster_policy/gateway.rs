//! The Gateway API's kinds, with the definitions people install: routes of all four are served to
//! clients, and their statuses say what came of them.

use std::{fs, path::Path};

use super::*;

const PARENT: &str = "/status/parents/0/conditions";
const GROUP: &str = "gateway.networking.k8s.io";
const ACCEPTED: [&str; 2] = ["Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs"];

/// The definitions, gone when the test ends: other tests run in clusters that lack them.
struct Definitions<'k>(&'k Kubectl);

impl<'k> Definitions<'k> {
    /// From the chart that `cargo xtask charts` completes, less what only Helm understands.
    fn install(kubectl: &'k Kubectl) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = root.join("charts/linkerd-crds/templates").join(GROUP);
        let definitions = Self(kubectl);
        let scratch = tempfile::tempdir().expect("a directory");
        for plural in ["httproutes", "grpcroutes", "tlsroutes", "tcproutes"] {
            let file = folder.join(format!("{plural}.yaml"));
            let template = fs::read_to_string(&file).unwrap_or_else(|error| {
                panic!("{}: {error}; run `cargo xtask charts`", file.display())
            });
            let plain: Vec<&str> = template.lines().filter(|it| !it.contains("{{")).collect();
            // What is left of the labels is nothing.
            let plain = plain.join("\n").replace("  labels:\n", "");
            let path = scratch.path().join(plural);
            fs::write(&path, plain).expect("written");
            let path = path.to_str().expect("a path that is text");
            kubectl.run(&["apply", "--server-side", "--force-conflicts", "-f", path]);
            let name = format!("crd/{plural}.{GROUP}");
            kubectl.run(&[
                "wait",
                "--for=condition=established",
                &name,
                "--timeout=60s",
            ]);
        }
        definitions
    }
}

impl Drop for Definitions<'_> {
    fn drop(&mut self) {
        for plural in ["httproutes", "grpcroutes", "tlsroutes", "tcproutes"] {
            let name = format!("crd/{plural}.{GROUP}");
            let _ = self
                .0
                .try_run(&["delete", &name, "--ignore-not-found", "--wait=false"]);
        }
    }
}

fn route(kind: &str, name: &str, parent: Value, rules: Value) -> Value {
    let version = match kind {
        "HTTPRoute" | "GRPCRoute" => "v1",
        _ => "v1alpha2",
    };
    json!({
        "apiVersion": format!("{GROUP}/{version}"), "kind": kind, "metadata": {"name": name},
        "spec": {"parentRefs": [parent], "rules": rules},
    })
}

fn to_service(port: u16) -> Value {
    json!({"group": "", "kind": "Service", "name": "web", "port": port})
}

fn names(policy: &OutboundPolicy) -> Vec<String> {
    let origin = |metadata: &Option<linkerd_api::proto::meta::Metadata>| match metadata
        .as_ref()
        .and_then(|it| it.kind.as_ref())
    {
        Some(metadata::Kind::Default(name)) => name.clone(),
        Some(metadata::Kind::Resource(it)) => format!("{}/{}", it.kind, it.name),
        None => String::new(),
    };
    match policy.protocol.as_ref().and_then(|it| it.kind.as_ref()) {
        Some(Protocol::Detect(it)) => {
            let http = it.http1.iter().flat_map(|it| &it.routes);
            http.map(|it| origin(&it.metadata)).collect()
        }
        Some(Protocol::Grpc(it)) => it.routes.iter().map(|it| origin(&it.metadata)).collect(),
        Some(Protocol::Tls(it)) => it.routes.iter().map(|it| origin(&it.metadata)).collect(),
        Some(Protocol::Opaque(it)) => it.routes.iter().map(|it| origin(&it.metadata)).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_of_the_gateway_api() {
    let kubectl = Kubectl::from_env();
    let client = connect(&kubectl).await;
    let namespace = Namespace::create(&kubectl, "policy-gateway");
    let _definitions = blocking(|| Definitions::install(&kubectl)).await;
    let replica = Replica::start(&client, &namespace, "one").await;
    let backend = || json!([{"name": "web", "port": 80}]);
    let rewrite = json!([{"type": "URLRewrite", "urlRewrite": {"hostname": "other.example"}}]);
    blocking(|| {
        let ports: Vec<Value> = [80, 81, 82, 443, 444]
            .map(|port| json!({"name": format!("p{port}"), "port": port}))
            .into();
        namespace.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": ports}}));
        namespace.apply(&server("http"));
        let inbound = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "http"});
        let matching = |path: &str| json!([{"path": {"type": "PathPrefix", "value": path}}]);
        for object in [
            // One rule cannot be honoured, the other can.
            route("HTTPRoute", "partly", to_service(80), json!([
                {"matches": matching("/new"), "filters": rewrite, "backendRefs": backend()},
                {"matches": matching("/old"), "backendRefs": backend()},
            ])),
            route("HTTPRoute", "not-at-all", to_service(82), json!([{"filters": rewrite, "backendRefs": backend()}])),
            route("HTTPRoute", "inbound", inbound, json!([{"matches": matching("/")}])),
            route("GRPCRoute", "calls", to_service(81), json!([{"backendRefs": backend()}])),
            // The gRPC route has the port already.
            route("HTTPRoute", "late", to_service(81), json!([{"backendRefs": backend()}])),
            route("TLSRoute", "secure", to_service(443), json!([{"backendRefs": backend()}])),
            route("TCPRoute", "plain", to_service(444), json!([{"backendRefs": [{"name": "nobody", "port": 1}]}])),
        ] {
            namespace.apply(&object);
        }
    })
    .await;
    let expect = async |object: &str, expected: &[&str]| {
        blocking(|| {
            let object = object.replacen('/', &format!(".{GROUP}/"), 1);
            let mut last = None;
            wait_for(PATIENCE, &format!("{object} to have {expected:?}"), || {
                last = conditions(&namespace, &object, PARENT);
                last.as_deref().is_some_and(|found| found == expected)
            });
        })
        .await;
    };
    let partly = [&ACCEPTED[..], &["PartiallyInvalid=True/UnsupportedValue"]].concat();
    expect("httproutes/partly", &partly).await;
    expect(
        "httproutes/not-at-all",
        &["Accepted=False/UnsupportedValue", ACCEPTED[1]],
    )
    .await;
    expect("httproutes/inbound", &ACCEPTED[..1]).await;
    expect("grpcroutes/calls", &ACCEPTED).await;
    expect(
        "httproutes/late",
        &["Accepted=False/RouteReasonConflicted", ACCEPTED[1]],
    )
    .await;
    expect("tlsroutes/secure", &ACCEPTED).await;
    expect(
        "tcproutes/plain",
        &[ACCEPTED[0], "ResolvedRefs=False/BackendNotFound"],
    )
    .await;

    let mut policies = OutboundPoliciesClient::new(replica.channel.clone());
    for (port, expected) in [
        (80, "HTTPRoute/partly"),
        (81, "GRPCRoute/calls"),
        (82, "http"),
        (443, "TLSRoute/secure"),
        (444, "TCPRoute/plain"),
    ] {
        let spec = TrafficSpec {
            source_workload: format!(r#"{{"ns":"{}","pod":"curl"}}"#, namespace.name()),
            target: Some(Target::Authority(format!(
                "{}:{port}",
                namespace.host("web")
            ))),
        };
        let policy = policies.get(spec).await.expect("a policy").into_inner();
        assert_eq!(names(&policy), [expected], "port {port}");
    }
    replica.stop().await;
}
