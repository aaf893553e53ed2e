//! Webhooks that run beside the test and are asked by the API server: each rule refuses with its
//! words, and a certificate is replaced while they run.

use std::{
    net::{IpAddr, UdpSocket},
    path::Path,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use linkerd_k8s::admission::{self, Handler};
use linkerd_policy::admission::{PolicyValidator, ServiceProfileValidator};
use linkerd_testkit::ca::Ca;
use linkerd_tls::ServerFiles;

use super::*;

/// The address this machine has towards the cluster.
fn own_address(client: &Config) -> IpAddr {
    let host = client
        .cluster_url
        .host()
        .expect("a host")
        .trim_matches(['[', ']'])
        .to_owned();
    let port = client.cluster_url.port_u16().unwrap_or(443);
    let socket = UdpSocket::bind(("0.0.0.0", 0)).expect("a socket");
    socket
        .connect((host.as_str(), port))
        .expect("a route to the cluster");
    socket.local_addr().expect("bound").ip()
}

fn write_certificate(files: &Path, ca: &Ca, name: &str) {
    let leaf = ca.leaf(name);
    let (chain, key) = leaf_pem(&leaf);
    std::fs::write(files.join("tls.crt"), chain).expect("writes");
    std::fs::write(files.join("tls.key"), key).expect("writes");
}

fn leaf_pem(leaf: &linkerd_testkit::ca::Leaf) -> (String, String) {
    let pem = |label: &str, der: &[u8]| {
        let text = BASE64.encode(der);
        let lines: Vec<&str> = (0..text.len())
            .step_by(64)
            .map(|at| &text[at..text.len().min(at + 64)])
            .collect();
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            lines.join("\n")
        )
    };
    let chain = leaf
        .chain
        .iter()
        .map(|certificate| pem("CERTIFICATE", certificate))
        .collect();
    (chain, pem("PRIVATE KEY", leaf.key.secret_der()))
}

/// A webhook that runs beside the test, reached through a Service of the test's namespace.
struct Webhook {
    files: Arc<ServerFiles>,
    directory: tempfile::TempDir,
    host: String,
    _server: JoinHandle<()>,
}

impl Webhook {
    async fn start(
        namespace: &Namespace,
        name: &str,
        ca: &Ca,
        address: IpAddr,
        handler: impl Handler,
    ) -> Self {
        let host = format!("{name}.{}.svc", namespace.name());
        let directory = tempfile::tempdir().expect("temporary directory");
        write_certificate(directory.path(), ca, &host);
        let paths = ["tls.crt", "tls.key"].map(|file| directory.path().join(file));
        let [certificate, key] = paths;
        let files = Arc::new(ServerFiles::load(certificate, key).expect("loads"));
        let listener = TcpListener::bind((address, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let config = files.clone();
        let server = linkerd_runtime::spawn("webhook", async move {
            admission::serve(
                listener,
                move || config.config(),
                Arc::new(handler),
                std::future::pending(),
            )
            .await;
        });
        blocking(|| {
            namespace.apply(&json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
            }));
            namespace.apply(&json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4",
                "ports": [{"name": "https", "port": port}],
                "endpoints": [{"addresses": [address.to_string()]}],
            }));
        })
        .await;
        Self {
            files,
            directory,
            host,
            _server: server,
        }
    }

    /// Another certificate, from another CA, without a restart.
    fn replace_certificate(&self, ca: &Ca) {
        write_certificate(self.directory.path(), ca, &self.host);
        wait_for(PATIENCE, "the new certificate", || {
            self.files.refresh().expect("readable")
        });
    }
}

fn webhook_configuration(namespace: &Namespace, service: &str, groups: &[&str], ca: &Ca) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": format!("{service}-{}", namespace.name())},
        "webhooks": [{
            "name": format!("{service}.linkerd.io"),
            "namespaceSelector": {"matchLabels": {"linkerd-rs/test": namespace.name()}},
            "clientConfig": {
                "service": {"name": service, "namespace": namespace.name(), "path": "/"},
                "caBundle": BASE64.encode(ca.pem()),
            },
            "failurePolicy": "Fail",
            "admissionReviewVersions": ["v1", "v1beta1"],
            "sideEffects": "None",
            "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": groups, "apiVersions": ["*"], "resources": ["*"]}],
        }],
    })
}

/// What the API server says to an object, without storing it.
fn dry_run(kubectl: &Kubectl, namespace: &Namespace, object: &Value) -> (bool, String) {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), object.to_string()).expect("writes");
    let path = file.path().to_str().expect("a path");
    let done = kubectl.try_run(&[
        "--namespace",
        namespace.name(),
        "create",
        "--dry-run=server",
        "-f",
        path,
    ]);
    (
        done.status.success(),
        String::from_utf8_lossy(&done.stderr).into_owned(),
    )
}

/// Objects the API server's own schemas let through, and the words they are refused with.
fn refused() -> Vec<(&'static str, Value, &'static str)> {
    let target = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "s"});
    let mesh = json!({"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "m"});
    let account = json!({"kind": "ServiceAccount", "name": "a"});
    let grant = |target: &Value, refs: Value| {
        policy(
            "v1alpha1",
            "AuthorizationPolicy",
            "x",
            json!({"targetRef": target, "requiredAuthenticationRefs": refs}),
        )
    };
    let network = |spec: Value| policy("v1alpha1", "NetworkAuthentication", "x", spec);
    let http = |rule: Value| {
        policy(
            "v1beta3",
            "HTTPRoute",
            "x",
            json!({
                "parentRefs": [{"group": "core", "kind": "Service", "name": "web", "port": 80}], "rules": [rule],
            }),
        )
    };
    let limit = |spec: Value| {
        let mut spec = spec;
        if spec.get("targetRef").is_none() {
            spec["targetRef"] = target.clone();
        }
        policy("v1alpha1", "HTTPLocalRateLimitPolicy", "x", spec)
    };
    let mut annotated = http(json!({}));
    annotated["metadata"]["annotations"] = json!({"retry.linkerd.io/http": "sometimes"});
    vec![
        (
            "another namespace",
            grant(&json!({"kind": "Namespace", "name": "other"}), json!([])),
            "cannot target another namespace: other",
        ),
        (
            "two mesh authentications",
            grant(&target, json!([mesh, mesh])),
            "only a single MeshTLSAuthentication",
        ),
        (
            "mesh and account",
            grant(&target, json!([mesh, account])),
            "may not be set together",
        ),
        (
            "unknown authentication",
            grant(&target, json!([{"kind": "Pod", "name": "p"}])),
            "unsupported authentication kind(s): Pod",
        ),
        (
            "unknown target",
            grant(&json!({"kind": "Pod", "name": "p"}), json!([])),
            "unsupported target kind",
        ),
        (
            "identity",
            policy(
                "v1alpha1",
                "MeshTLSAuthentication",
                "x",
                json!({"identities": ["a..b"]}),
            ),
            "neither a DNS name nor a SPIFFE ID",
        ),
        (
            "no network",
            network(json!({"networks": []})),
            "at least one network",
        ),
        (
            "negated network",
            network(json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}]})),
            "completely negated",
        ),
        (
            "exception outside",
            network(json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]}]})),
            "does not include exception",
        ),
        (
            "open and mesh TLS",
            policy(
                "v1beta1",
                "ServerAuthorization",
                "x",
                json!({"server": {"name": "s"}, "client": {"unauthenticated": true, "meshTLS": {"identities": ["a"]}}}),
            ),
            "`unauthenticated` must be false",
        ),
        (
            "access policy",
            policy(
                "v1beta3",
                "Server",
                "x",
                json!({"podSelector": {}, "port": 80, "accessPolicy": "everyone"}),
            ),
            "Invalid 'accessPolicy' field",
        ),
        (
            "protocol",
            policy(
                "v1beta3",
                "Server",
                "x",
                json!({"podSelector": {}, "port": 80, "proxyProtocol": "quic"}),
            ),
            "unknown proxyProtocol",
        ),
        (
            "empty egress",
            policy(
                "v1alpha1",
                "EgressNetwork",
                "x",
                json!({"trafficPolicy": "Allow", "networks": []}),
            ),
            "at least one network",
        ),
        (
            "relative path",
            http(json!({"matches": [{"path": {"type": "Exact", "value": "a"}}]})),
            "is not an absolute path",
        ),
        (
            "timeouts",
            http(json!({"timeouts": {"request": "1s", "backendRequest": "2s"}})),
            "must not be greater than the request timeout",
        ),
        ("annotation", annotated, "retry.linkerd.io/http"),
        (
            "egress parent without port",
            policy(
                "v1beta3",
                "HTTPRoute",
                "x",
                json!({"parentRefs": [{"kind": "EgressNetwork", "name": "e"}], "rules": []}),
            ),
            "without specifying a port",
        ),
        (
            "total of zero",
            limit(json!({"total": {"requestsPerSecond": 0}})),
            "must be greater than 0",
        ),
        (
            "rate limit of a Service",
            limit(json!({"targetRef": {"kind": "Service", "name": "s"}})),
            "invalid targetRef kind",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_refuses_what_makes_no_sense() {
    let kubectl = Kubectl::from_env();
    let client = connect(&kubectl).await;
    let kubeconfig = Kubeconfig::read_from(kubectl.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a cluster");
    let address = own_address(&config);
    drop(client);

    let mut namespace = Namespace::create(&kubectl, "policy-admission");
    let ca = Ca::root("first");
    let policies = Webhook::start(
        &namespace,
        "policy-validator",
        &ca,
        address,
        PolicyValidator,
    )
    .await;
    let _profiles = Webhook::start(
        &namespace,
        "sp-validator",
        &ca,
        address,
        ServiceProfileValidator,
    )
    .await;
    let groups = ["policy.linkerd.io", "gateway.networking.k8s.io"];
    let configurations = [
        webhook_configuration(&namespace, "policy-validator", &groups, &ca),
        webhook_configuration(&namespace, "sp-validator", &["linkerd.io"], &ca),
    ];
    for configuration in &configurations {
        blocking(|| namespace.apply_attached(configuration)).await;
    }
    let refuses = |object: &Value, words: &str| {
        let (admitted, said) = dry_run(&kubectl, &namespace, object);
        !admitted && said.contains(words)
    };
    let all = refused();
    // The API server takes a moment to know of a webhook and of its Service.
    blocking(|| {
        wait_for(PATIENCE, "the webhook to be asked", || {
            refuses(&all[0].1, all[0].2)
        });
        for (case, object, words) in &all {
            let (admitted, said) = dry_run(&kubectl, &namespace, object);
            assert!(!admitted && said.contains(words), "{case}: {said}");
        }
        let (admitted, said) = dry_run(&kubectl, &namespace, &server("good"));
        assert!(admitted, "{said}");
    })
    .await;

    let profile = |spec: Value| {
        json!({
            "apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile",
            "metadata": {"name": "web.default.svc.cluster.local"}, "spec": spec,
        })
    };
    let empty = profile(json!({"routes": [{"name": "r", "condition": {}}]}));
    let budget = profile(
        json!({"retryBudget": {"retryRatio": 0.2, "minRetriesPerSecond": 1, "ttl": "soon"}}),
    );
    let good = profile(json!({"routes": [{"name": "r", "condition": {"method": "GET"}}]}));
    blocking(|| {
        wait_for(PATIENCE, "the ServiceProfile webhook to be asked", || {
            refuses(&empty, "A request match must have a field set")
        });
        assert!(refuses(&budget, "RetryBudget: "));
        let (admitted, said) = dry_run(&kubectl, &namespace, &good);
        assert!(admitted, "{said}");
    })
    .await;

    // A certificate of another CA is picked up while the webhook runs.
    let next = Ca::root("second");
    let configuration = webhook_configuration(&namespace, "policy-validator", &groups, &next);
    blocking(|| {
        policies.replace_certificate(&next);
        kubectl.feed(&["apply"], &configuration);
        wait_for(PATIENCE, "the new certificate to be trusted", || {
            let (admitted, said) = dry_run(&kubectl, &namespace, &all[0].1);
            !admitted && said.contains(all[0].2)
        });
    })
    .await;
}
