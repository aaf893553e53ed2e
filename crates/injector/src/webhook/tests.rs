//! The handler against an API server: verdicts, events and counters for pods and Services.

use super::*;
use k8s_openapi::api::events::v1::Event;
use linkerd_k8s::{
    admission::Kind,
    kube::{
        Config as ClientConfig,
        api::ListParams,
        config::{KubeConfigOptions, Kubeconfig},
    },
};
use linkerd_runtime::metrics::{Exposition, Registry};
use linkerd_testkit::{api_server::ApiServer, wait_for_some_async};
use serde_json::json;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

pub(super) async fn client(server: &ApiServer) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let mut config = ClientConfig::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .expect("a configuration");
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}

/// An injector with a cluster: namespace `shop` is meshed, Deployment `web` owns its pods.
struct Injector {
    webhook: Webhook,
    server: ApiServer,
    registry: Registry,
    files: tempfile::TempDir,
}

impl Injector {
    async fn new(values: &str) -> Self {
        let server = ApiServer::start().await;
        let annotations =
            json!({"linkerd.io/inject": "enabled", "config.linkerd.io/opaque-ports": "7777"});
        server.apply(
            "namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "shop", "annotations": annotations}}),
        );
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d"});
        server.apply(
            "replicasets.apps",
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
                "metadata": {"name": "web-1", "namespace": "shop", "ownerReferences": [owner]}}),
        );
        let files = tempfile::tempdir().expect("a directory");
        let paths = Paths {
            values: files.path().join("values"),
            trust_anchors: files.path().join("anchors"),
        };
        fs::write(&paths.values, values).expect("ours");
        fs::write(&paths.trust_anchors, "anchors").expect("ours");
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let client = client(&server).await;
        Self {
            webhook: Webhook::new(client, paths, "linkerd".to_owned(), metrics),
            server,
            registry,
            files,
        }
    }

    async fn review(&self, kind: &str, object: Value) -> Verdict {
        self.reviewed(kind, object, None).await
    }

    async fn reviewed(&self, kind: &str, object: Value, dry_run: Option<bool>) -> Verdict {
        let review = Review {
            uid: "u".to_owned(),
            kind: Kind {
                group: String::new(),
                version: "v1".to_owned(),
                kind: kind.to_owned(),
            },
            name: String::new(),
            namespace: "shop".to_owned(),
            operation: "CREATE".to_owned(),
            object,
            old_object: Value::Null,
            dry_run,
        };
        self.webhook.review(review).await
    }

    /// `Type Reason Kind/name: note`, once there are that many.
    async fn events(&self, count: usize) -> Vec<String> {
        let api: Api<Event> = Api::namespaced(client(&self.server).await, "shop");
        wait_for_some_async(SOON, "the events", async || {
            let events = api.list(&ListParams::default()).await.ok()?.items;
            let mut lines: Vec<String> = events.iter().map(line).collect();
            lines.sort();
            (lines.len() >= count).then_some(lines)
        })
        .await
    }

    fn counters(self) -> Vec<String> {
        let text = Exposition::new(self.registry).encode().expect("text");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    }
}

fn line(event: &Event) -> String {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    let regarding = event.regarding.clone().unwrap_or_default();
    format!(
        "{} {} {}/{}: {}",
        of(&event.type_),
        of(&event.reason),
        of(&regarding.kind),
        of(&regarding.name),
        of(&event.note)
    )
}

/// A pod of the Deployment `web`.
fn pod(annotations: Value, spec: Value) -> Value {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "web"}]);
    }
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "r"});
    json!({"metadata": {"annotations": annotations, "ownerReferences": [owner]}, "spec": spec})
}

fn paths(verdict: &Verdict) -> Vec<&str> {
    let Verdict::Patch(operations) = verdict else {
        return vec![];
    };
    operations
        .iter()
        .filter_map(|operation| operation["path"].as_str())
        .collect()
}

#[tokio::test]
async fn a_pod_is_injected_and_its_deployment_says_so() {
    let injector = Injector::new("{}").await;
    let annotations = json!({"config.linkerd.io/proxy-uid": "root"});
    let verdict = injector.review("Pod", pod(annotations, json!({}))).await;
    let label = "/metadata/labels/linkerd.io~1proxy-deployment";
    assert!(paths(&verdict).contains(&label), "{verdict:?}");
    assert!(
        paths(&verdict).contains(&"/spec/containers/0"),
        "{verdict:?}"
    );
    let events = injector.events(2).await;
    assert_eq!(
        events[0],
        "Normal Injected Deployment/web: Linkerd sidecar proxy injected"
    );
    let ignored =
        "Warning AnnotationIgnored Deployment/web: Ignored annotation config.linkerd.io/proxy-uid";
    assert!(events[1].starts_with(ignored), "{events:?}");
    let labels = r#"{owner_kind="deployment",namespace="shop",annotation_at="namespace""#;
    let rest = r#"opaque_ports="7777",proxy_uid="root"} 1"#;
    let expected = [
        format!("proxy_inject_admission_requests_total{labels},{rest}"),
        format!(r#"proxy_inject_admission_responses_total{labels},skip="false",{rest}"#),
    ];
    assert_eq!(injector.counters(), expected);
}

#[tokio::test]
async fn a_pod_left_alone_keeps_its_opaque_ports() {
    let injector = Injector::new("{}").await;
    let spec = json!({"hostNetwork": true});
    let verdict = injector
        .review("Pod", pod(json!({"linkerd.io/inject": "disabled"}), spec))
        .await;
    let operation = json!({"op": "add", "value": "7777",
        "path": "/metadata/annotations/config.linkerd.io~1opaque-ports"});
    assert_eq!(verdict, Verdict::Patch(vec![operation]));
    let reasons = "hostNetwork is enabled, pod has the annotation \"linkerd.io/inject:disabled\"";
    assert_eq!(
        injector.events(1).await,
        [format!(
            "Normal InjectionSkipped Deployment/web: Linkerd sidecar proxy injection skipped: {reasons}"
        )]
    );
    let counters = injector.counters();
    let skipped =
        r#"skip="true",skip_reason="host_network_enabled,injection_disable_annotation_present""#;
    assert!(counters[1].contains(skipped), "{counters:?}");
}

/// Services went through without being counted.
#[tokio::test]
async fn a_service_gets_its_annotation_and_is_counted() {
    let injector = Injector::new("{}").await;
    let service = json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 3306}]}});
    let verdict = injector.review("Service", service).await;
    let expected = [
        "/metadata/annotations",
        "/metadata/annotations/config.linkerd.io~1opaque-ports",
    ];
    assert_eq!(paths(&verdict), expected);
    let own = json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "1"}}});
    assert_eq!(injector.review("Service", own).await, Verdict::Allow);
    let other = injector.review("ConfigMap", json!({})).await;
    assert_eq!(other, Verdict::Allow);
    let labels = r#"{owner_kind="service",namespace="shop",annotation_at="namespace""#;
    let skipped = r#"skip="true",skip_reason="unsupported_resource""#;
    let mut counters = injector.counters();
    counters.sort();
    assert_eq!(
        counters,
        [
            format!(r#"proxy_inject_admission_requests_total{labels},opaque_ports="1"}} 1"#),
            format!(r#"proxy_inject_admission_requests_total{labels},opaque_ports="7777"}} 1"#),
            format!(
                r#"proxy_inject_admission_responses_total{labels},{skipped},opaque_ports="1"}} 1"#
            ),
            format!(
                r#"proxy_inject_admission_responses_total{labels},{skipped},opaque_ports="7777"}} 1"#
            ),
        ]
    );
}

/// A pod that cannot be injected started without a proxy and nothing told why.
#[tokio::test]
async fn a_failed_injection_is_told_and_blocks_only_if_asked_to() {
    let message = "proxyInit.runAsRoot must be set to use proxyInit.closeWaitTimeoutSecs";
    for (policy, expected) in [
        ("Ignore", Verdict::Allow),
        (
            "Fail",
            Verdict::Deny {
                code: 500,
                message: message.to_owned(),
            },
        ),
    ] {
        let injector = Injector::new(&format!("webhookFailurePolicy: {policy}")).await;
        let annotations = json!({"config.linkerd.io/close-wait-timeout": "10s"});
        let verdict = injector.review("Pod", pod(annotations, json!({}))).await;
        assert_eq!(verdict, expected, "{policy}");
        assert_eq!(
            injector.events(1).await,
            [format!(
                "Warning InjectionFailed Deployment/web: Linkerd sidecar proxy injection failed: {message}"
            )]
        );
        let counters = injector.counters();
        let failed = r#"skip="true",skip_reason="injection_failed""#;
        assert!(counters[1].contains(failed), "{counters:?}");
    }
}

/// What cannot be read fails by the policy that held before.
#[tokio::test]
async fn errors_of_ours_follow_the_failure_policy() {
    for (policy, denied) in [("Ignore", false), ("Fail", true)] {
        let mut injector = Injector::new(&format!("webhookFailurePolicy: {policy}")).await;
        injector.webhook.config().expect("readable at the start");
        let values = injector.files.path().join("values");
        let plain = || pod(json!({}), json!({}));
        fs::write(&values, "proxy: {await: enabled}").expect("ours");
        let unreadable = injector.review("Pod", plain()).await;
        fs::write(&values, format!("webhookFailurePolicy: {policy}")).expect("ours");
        let malformed = injector
            .review("Pod", json!({"spec": {"containers": "none"}}))
            .await;
        let odd_service = injector.review("Service", json!({"spec": []})).await;
        injector.server.go_away().await;
        let no_cluster = injector.review("Pod", plain()).await;
        for (name, verdict) in [
            ("values", unreadable),
            ("pod", malformed),
            ("service", odd_service),
            ("namespace", no_cluster),
        ] {
            match verdict {
                Verdict::Allow => assert!(!denied, "{policy} {name}"),
                Verdict::Deny { code: 500, message } => {
                    assert!(denied && !message.is_empty(), "{policy} {name}");
                }
                other => panic!("{policy} {name}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_dry_run_leaves_no_event() {
    let injector = Injector::new("{}").await;
    let object = || pod(json!({}), json!({}));
    let verdict = injector.reviewed("Pod", object(), Some(true)).await;
    assert!(matches!(verdict, Verdict::Patch(_)), "{verdict:?}");
    // The event of the next, real one is the only one.
    let skipped = pod(json!({"linkerd.io/inject": "disabled"}), json!({}));
    injector.review("Pod", skipped).await;
    let events = injector.events(1).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].starts_with("Normal InjectionSkipped"),
        "{events:?}"
    );
}
