//! The cluster itself: what every later test stands on. Pods with init containers, probes,
//! services, names, sidecars, tokens, exec, logs, port-forward, admission webhooks and
//! aggregated APIs.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use linkerd_e2e::{Kubectl, Namespace, PortForward, house_image};
use linkerd_testkit::ca::Ca;
use linkerd_testkit::{wait_for, wait_for_some};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);
const GREETING: &str = "good evening";
const PROGRAM: &str = "/linkerd-e2e-house";

/// A web server that an init container has to make ready, and its service.
fn deploy_web(namespace: &Namespace, image: &str) {
    let work = json!([{ "name": "work", "mountPath": "/work" }]);
    namespace.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "initContainers": [{
                        "name": "prepare",
                        "image": image,
                        "args": ["write", "/work/ready", "yes"],
                        "volumeMounts": work,
                    }],
                    "containers": [{
                        "name": "web",
                        "image": image,
                        "args": ["serve", "0.0.0.0:8080", "/work/ready", GREETING],
                        "readinessProbe": {
                            "httpGet": { "path": "/ready", "port": 8080 },
                            "periodSeconds": 1,
                        },
                        "volumeMounts": work,
                    }],
                    "volumes": [{ "name": "work", "emptyDir": {} }],
                },
            },
        },
    }));
    namespace.apply(&service("web", 80, 8080));
    namespace.wait_deployment("web", PATIENCE);
}

fn service(name: &str, port: u16, target: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name },
        "spec": {
            "selector": { "app": name },
            "ports": [{ "port": port, "targetPort": target }],
        },
    })
}

/// A pod that runs once.
fn one_shot(name: &str, image: &str, arguments: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{ "name": name, "image": image, "args": arguments }],
        },
    })
}

#[test]
fn a_service_answers_by_name_from_another_pod() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let namespace = Namespace::create(&kubectl, "house-dns");
    deploy_web(&namespace, image);
    let hosts = [
        ("full name", namespace.host("web")),
        ("short name", "web".to_owned()),
    ];
    for (index, (case, host)) in hosts.iter().enumerate() {
        let name = format!("client-{index}");
        let url = format!("http://{host}:80/");
        namespace.apply(&one_shot(&name, image, &["get", &url]));
        let logs = namespace.wait_pod_success(&name, PATIENCE);
        assert_eq!(logs.trim(), GREETING, "{case}");
    }
}

#[test]
fn exec_logs_and_port_forward_work() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let namespace = Namespace::create(&kubectl, "house-exec");
    deploy_web(&namespace, image);

    let url = "http://127.0.0.1:8080/";
    let said = namespace.run(&["exec", "deployment/web", "--", PROGRAM, "get", url]);
    assert_eq!(said.trim(), GREETING, "exec");

    let logs = namespace.run(&["logs", "deployment/web", "--container=web"]);
    assert!(logs.contains("serving on 0.0.0.0:8080"), "logs: {logs}");

    let forward = PortForward::start(&kubectl, namespace.name(), "deployment/web", 8080);
    let mut stream = TcpStream::connect(forward.address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
        .write_all(b"GET / HTTP/1.0\r\n\r\n")
        .expect("it takes a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.ends_with(GREETING), "port-forward: {answer}");
}

#[test]
fn an_ephemeral_container_joins_a_running_pod() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let namespace = Namespace::create(&kubectl, "house-debug");
    deploy_web(&namespace, image);
    let pod = namespace.run(&["get", "pods", "--selector=app=web", "--output=name"]);
    let pod = pod.trim();
    let image_flag = format!("--image={image}");
    namespace.run(&[
        "debug",
        pod,
        &image_flag,
        "--container=visitor",
        "--image-pull-policy=IfNotPresent",
        "--",
        PROGRAM,
        "get",
        "http://127.0.0.1:8080/",
    ]);
    let logs = wait_for_some(PATIENCE, "the visitor's words", || {
        let (done, logs) = namespace.try_run(&["logs", pod, "--container=visitor"]);
        (done && !logs.trim().is_empty()).then_some(logs)
    });
    assert_eq!(logs.trim(), GREETING);
}

#[test]
fn a_native_sidecar_runs_first_and_does_not_keep_a_pod_from_ending() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let namespace = Namespace::create(&kubectl, "house-sidecar");
    let mut pod = one_shot("with-sidecar", image, &["get", "http://127.0.0.1:8080/"]);
    pod["spec"]["initContainers"] = json!([{
        "name": "sidecar",
        "image": image,
        "restartPolicy": "Always",
        "args": ["serve", "0.0.0.0:8080", PROGRAM, GREETING],
        "startupProbe": {
            "httpGet": { "path": "/ready", "port": 8080 },
            "periodSeconds": 1,
            "failureThreshold": 60,
        },
    }]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    namespace.apply(&pod);
    let logs = namespace.wait_pod_success("with-sidecar", PATIENCE);
    assert!(logs.contains(GREETING), "{logs}");
}

#[test]
fn tokens_carry_the_audience_they_were_asked_for() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let namespace = Namespace::create(&kubectl, "house-token");
    let mut pod = one_shot("holder", image, &["cat", "/tokens/token"]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "tokens", "mountPath": "/tokens" }]);
    pod["spec"]["volumes"] = json!([{ "name": "tokens", "projected": { "sources": [{
        "serviceAccountToken": { "path": "token", "audience": "house.test", "expirationSeconds": 3600 },
    }]}}]);
    namespace.apply(&pod);
    let logs = namespace.wait_pod_success("holder", PATIENCE);
    let token = logs.trim();
    for (audience, expected) in [("house.test", true), ("somebody.else", false)] {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": token, "audiences": [audience] },
        });
        let answer = kubectl.feed(&["create", "--output=json"], &review);
        let answer: Value = serde_json::from_str(&answer).expect("kubectl prints JSON");
        let status = &answer["status"];
        assert_eq!(
            status["authenticated"] == true,
            expected,
            "{audience}: {status}"
        );
        if expected {
            let name = format!("system:serviceaccount:{}:default", namespace.name());
            assert_eq!(status["user"]["username"], name.as_str());
        }
    }
}

/// A server with a certificate for its service's name; gives the authority as a CA bundle.
fn deploy_webhook(namespace: &Namespace, image: &str) -> String {
    let ca = Ca::root("house tests");
    let leaf = ca.leaf(&format!("webhook.{}.svc", namespace.name()));
    namespace.apply(&json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "webhook" },
        "data": {
            "tls.crt.der": BASE64.encode(&leaf.chain[0]),
            "tls.key.der": BASE64.encode(leaf.key.secret_der()),
        },
    }));
    namespace.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "webhook" },
        "spec": {
            "selector": { "matchLabels": { "app": "webhook" } },
            "template": {
                "metadata": { "labels": { "app": "webhook" } },
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "webhook",
                        "image": image,
                        "args": ["webhook", "0.0.0.0:8443", "/tls"],
                        "readinessProbe": { "tcpSocket": { "port": 8443 }, "periodSeconds": 1 },
                        "volumeMounts": [{ "name": "tls", "mountPath": "/tls" }],
                    }],
                    "volumes": [{ "name": "tls", "secret": { "secretName": "webhook" } }],
                },
            },
        },
    }));
    namespace.apply(&service("webhook", 443, 8443));
    namespace.wait_deployment("webhook", PATIENCE);
    BASE64.encode(ca.pem())
}

#[test]
fn an_admission_webhook_changes_objects() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let mut namespace = Namespace::create(&kubectl, "house-admit");
    let bundle = deploy_webhook(&namespace, image);
    let name = namespace.name().to_owned();
    namespace.apply_attached(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": name },
        "webhooks": [{
            "name": "house.linkerd-rs.test",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "namespaceSelector": { "matchLabels": { "linkerd-rs/test": name } },
            "clientConfig": {
                "caBundle": bundle,
                "service": { "name": "webhook", "namespace": name, "path": "/mutate" },
            },
            "rules": [{
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["configmaps"],
            }],
        }],
    }));
    // The API server learns of a new webhook within a moment, not at once; while it does, a
    // kube-proxy that has not written the service yet makes creation fail.
    let mut attempt = 0;
    wait_for(PATIENCE, "a label from the webhook", || {
        attempt += 1;
        let object = format!("guest-{attempt}");
        let (created, _) = namespace.try_run(&["create", "configmap", &object]);
        let wanted = "--output=jsonpath={.metadata.labels.house}";
        created && namespace.run(&["get", "configmap", &object, wanted]) == "was-here"
    });
}

#[test]
fn an_aggregated_api_answers_through_the_api_server() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let mut namespace = Namespace::create(&kubectl, "house-api");
    let bundle = deploy_webhook(&namespace, image);
    let name = namespace.name().to_owned();
    let group = format!("{name}.linkerd-rs.test");
    namespace.apply_attached(&json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": { "name": format!("v1.{group}") },
        "spec": {
            "group": group,
            "version": "v1",
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "caBundle": bundle,
            "service": { "name": "webhook", "namespace": name, "port": 443 },
        },
    }));
    let object = format!("apiservice/v1.{group}");
    kubectl.run(&[
        "wait",
        "--for=condition=Available",
        &object,
        "--timeout=120s",
    ]);
    let path = format!("/apis/{group}/v1/namespaces/{name}/greetings");
    let list: Value = serde_json::from_str(&kubectl.run(&["get", "--raw", &path])).expect("JSON");
    assert_eq!(list["items"][0]["metadata"]["name"], "hello");
    // As kubectl's users see it: found by discovery, listed by its kind.
    let resource = format!("greetings.v1.{group}");
    let names = wait_for_some(PATIENCE, "the kind's discovery", || {
        let (found, names) = namespace.try_run(&["get", &resource, "--output=name"]);
        found.then_some(names)
    });
    assert!(names.trim().ends_with("/hello"), "{names}");
}
