//! The webhooks' settings in the charts: who is asked about, with which certificate, and which
//! settings contradict each other.

use cluster::{linkerd, object, printed};
use serde_json::{Value, json};
use std::net::SocketAddr;

#[path = "process_bad_input/cluster.rs"]
mod cluster;

/// The objects of an install with these values.
fn rendered(sets: &[&str]) -> Vec<Value> {
    let mut args = vec!["install", "--ignore-cluster"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    printed(&args)
}

/// These values do not render, and the message says why.
fn refused(set: &str, message: &str) {
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let ran = linkerd(nobody, &["install", "--ignore-cluster", "--set", set], "");
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{set}");
    assert!(ran.err.contains(message), "{set}: {}", ran.err);
}

fn container<'a>(objects: &'a [Value], deployment: &str, name: &str) -> &'a Value {
    let deployment = object(objects, "Deployment", deployment);
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array();
    let mut containers = containers.expect("containers").iter();
    let found = containers.find(|container| container["name"] == name);
    found.unwrap_or_else(|| panic!("there is a container {name}"))
}

const WEBHOOKS: [(&str, &str, &str); 3] = [
    (
        "proxyInjector",
        "linkerd-proxy-injector",
        "MutatingWebhookConfiguration",
    ),
    (
        "profileValidator",
        "linkerd-sp-validator",
        "ValidatingWebhookConfiguration",
    ),
    (
        "policyValidator",
        "linkerd-policy-validator",
        "ValidatingWebhookConfiguration",
    ),
];

#[test]
fn settings_of_a_webhook_that_contradict_each_other_are_refused() {
    for (w, _, _) in WEBHOOKS {
        for (set, message) in [
            (
                format!("{w}.externalSecret=true,{w}.injectCaFrom=a/b,{w}.injectCaFromSecret=a/c"),
                "injectCaFrom and injectCaFromSecret cannot both be set",
            ),
            (
                format!("{w}.externalSecret=true,{w}.injectCaFrom=a/b,{w}.caBundle=pem"),
                "caBundle cannot be set together with injectCaFrom or injectCaFromSecret",
            ),
            (
                format!("{w}.externalSecret=true,{w}.injectCaFromSecret=a/b,{w}.caBundle=pem"),
                "caBundle cannot be set together with injectCaFrom or injectCaFromSecret",
            ),
            (
                format!("{w}.externalSecret=true"),
                "externalSecret needs one of caBundle, injectCaFrom and injectCaFromSecret",
            ),
            (
                format!("{w}.injectCaFrom=a/b"),
                "injectCaFrom and injectCaFromSecret need externalSecret",
            ),
            (
                format!("{w}.injectCaFromSecret=a/b"),
                "injectCaFrom and injectCaFromSecret need externalSecret",
            ),
        ] {
            refused(&set, &format!("{w}: {message}"));
        }
    }
}

#[test]
fn a_webhook_takes_its_certificate_from_where_it_is_told() {
    for (w, service, kind) in WEBHOOKS {
        for (set, annotation, bundled) in [
            (String::new(), None, true),
            (
                format!("{w}.externalSecret=true,{w}.injectCaFrom=linkerd/cert"),
                Some(("cert-manager.io/inject-ca-from", "linkerd/cert")),
                false,
            ),
            (
                format!("{w}.externalSecret=true,{w}.injectCaFromSecret=linkerd/ca"),
                Some(("cert-manager.io/inject-ca-from-secret", "linkerd/ca")),
                false,
            ),
            (
                format!("{w}.externalSecret=true,{w}.caBundle=pem"),
                None,
                true,
            ),
        ] {
            let sets = [set.as_str()];
            let objects = rendered(if set.is_empty() { &[] } else { &sets });
            let name = format!("{service}-webhook-config");
            let configuration = object(&objects, kind, &name);
            let annotations = &configuration["metadata"]["annotations"];
            for key in [
                "cert-manager.io/inject-ca-from",
                "cert-manager.io/inject-ca-from-secret",
            ] {
                let expected = annotation.filter(|(wanted, _)| *wanted == key);
                assert_eq!(
                    annotations.get(key).and_then(Value::as_str),
                    expected.map(|(_, value)| value),
                    "{set} {key}"
                );
            }
            let config = &configuration["webhooks"][0]["clientConfig"];
            assert_eq!(config.get("caBundle").is_some(), bundled, "{set}");
            let secret = format!("{service}-k8s-tls");
            let rendered = objects
                .iter()
                .any(|object| object["kind"] == "Secret" && object["metadata"]["name"] == secret);
            assert_eq!(rendered, set.is_empty(), "{set}: {secret}");
        }
    }
}

/// Section 5: who is never asked about.
#[test]
fn webhooks_leave_out_namespaces_that_say_so() {
    let objects = rendered(&[]);
    let disabled = json!({"key": "config.linkerd.io/admission-webhooks", "operator": "NotIn", "values": ["disabled"]});
    let system = json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "cert-manager"]});
    for (w, service, kind) in WEBHOOKS {
        let configuration = object(&objects, kind, &format!("{service}-webhook-config"));
        let webhook = &configuration["webhooks"][0];
        assert_eq!(webhook["name"], format!("{service}.linkerd.io"));
        let expected = if w == "proxyInjector" {
            json!([disabled, system])
        } else {
            json!([disabled])
        };
        assert_eq!(
            webhook["namespaceSelector"],
            json!({"matchExpressions": expected}),
            "{service}"
        );
        assert_eq!(webhook["failurePolicy"], "Ignore", "{service}");
        assert_eq!(webhook["sideEffects"], "None", "{service}");
        let versions = json!(["v1", "v1beta1"]);
        assert_eq!(webhook["admissionReviewVersions"], versions, "{service}");
    }
    let injector = object(
        &objects,
        "MutatingWebhookConfiguration",
        "linkerd-proxy-injector-webhook-config",
    );
    let keys: Vec<&Value> = injector["webhooks"][0]["objectSelector"]["matchExpressions"]
        .as_array()
        .expect("expressions")
        .iter()
        .map(|expression| &expression["key"])
        .collect();
    let components = [
        "linkerd.io/control-plane-component",
        "linkerd.io/cni-resource",
    ];
    assert_eq!(keys, components);
    let sets = ["profileValidator.namespaceSelector.matchLabels.mesh=yes"];
    let objects = rendered(&sets);
    let profiles = object(
        &objects,
        "ValidatingWebhookConfiguration",
        "linkerd-sp-validator-webhook-config",
    );
    let selector = &profiles["webhooks"][0]["namespaceSelector"];
    assert_eq!(selector["matchLabels"], json!({"mesh": "yes"}));
}

/// Section 9: what stands beside `--ha` wins over what it brings.
#[test]
fn flags_beside_ha_win() {
    let objects = printed(&[
        "install",
        "--ignore-cluster",
        "--ha",
        "--controller-replicas",
        "2",
        "--proxy-memory-limit",
        "1Gi",
        "--set",
        "webhookFailurePolicy=Ignore",
    ]);
    for name in ["identity", "destination", "proxy-injector"] {
        let deployment = object(&objects, "Deployment", &format!("linkerd-{name}"));
        assert_eq!(deployment["spec"]["replicas"], 2, "{name}");
        let proxy = container(&objects, &format!("linkerd-{name}"), "linkerd-proxy");
        assert_eq!(
            proxy["resources"],
            json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "20Mi"}}),
            "{name}"
        );
    }
    for name in ["identity", "dst", "proxy-injector"] {
        object(&objects, "PodDisruptionBudget", &format!("linkerd-{name}"));
    }
    for (_, service, kind) in WEBHOOKS {
        let configuration = object(&objects, kind, &format!("{service}-webhook-config"));
        let policy = &configuration["webhooks"][0]["failurePolicy"];
        assert_eq!(policy, "Ignore", "{service}");
    }
}
