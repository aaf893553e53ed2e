//! The patch applied to pods: what comes out is a pod the API server takes and a proxy starts in.

use super::*;
use serde_json::json;

fn request<'a>(
    values: &'a Values,
    template: &'a Template,
    namespace: &'a Annotations,
) -> Request<'a> {
    Request {
        values,
        template,
        prefix: "",
        namespace: "emojivoto",
        namespace_annotations: namespace,
        owner: Some(("deployment", "web")),
        control_plane_ns: "linkerd",
        trust_anchors: "-----BEGIN CERTIFICATE-----\n",
        created_by: "linkerd/proxy-injector test",
    }
}

fn applied(values: &Values, namespace: &Annotations, pod: &Value) -> Value {
    let template = Template::read(pod).expect("template");
    let injection = inject(&request(values, &template, namespace)).expect("injected");
    let patch: json_patch::Patch =
        serde_json::from_value(json!(injection.patch)).expect("a JSON patch");
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).expect("applies");
    pod
}

fn names(containers: &Value) -> Vec<&str> {
    containers
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|container| container["name"].as_str())
        .collect()
}

fn env<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let containers = containers.chain(
        pod["spec"]["initContainers"]
            .as_array()
            .into_iter()
            .flatten(),
    );
    let proxy = containers
        .into_iter()
        .find(|container| container["name"] == "linkerd-proxy")?;
    proxy["env"]
        .as_array()?
        .iter()
        .find(|var| var["name"] == name)?["value"]
        .as_str()
}

#[test]
fn a_plain_pod_is_injected() {
    let pod = json!({"spec": {"containers": [{"name": "web", "ports": [{"containerPort": 8080}, {"containerPort": 6379}]}]}});
    let injected = applied(&Values::default(), &Annotations::new(), &pod);
    assert_eq!(
        names(&injected["spec"]["containers"]),
        ["linkerd-proxy", "web"]
    );
    assert_eq!(names(&injected["spec"]["initContainers"]), ["linkerd-init"]);
    let volumes = [
        "linkerd-proxy-init-xtables-lock",
        "linkerd-identity-end-entity",
        "linkerd-identity-token",
    ];
    assert_eq!(names(&injected["spec"]["volumes"]), volumes);
    assert_eq!(
        injected["metadata"]["labels"],
        json!({
            "linkerd.io/control-plane-ns": "linkerd",
            "linkerd.io/proxy-deployment": "web",
            "linkerd.io/workload-ns": "emojivoto",
        })
    );
    assert_eq!(
        injected["metadata"]["annotations"]["config.linkerd.io/opaque-ports"],
        "6379"
    );
    assert_eq!(
        env(&injected, "LINKERD2_PROXY_INBOUND_PORTS"),
        Some("6379,8080")
    );
    assert_eq!(
        env(
            &injected,
            "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL"
        ),
        Some("10s")
    );
    assert_eq!(
        injected["spec"]["initContainers"][0]["args"],
        json!([
            "--firewall-bin-path",
            "iptables-nft",
            "--firewall-save-bin-path",
            "iptables-nft-save",
            "--ipv6=false",
            "--incoming-proxy-port",
            "4143",
            "--outgoing-proxy-port",
            "4140",
            "--proxy-uid",
            "2102",
            "--inbound-ports-to-ignore",
            "4190,4191,4567,4568",
            "--outbound-ports-to-ignore",
            "4567,4568",
        ])
    );
}

#[test]
fn operations_come_in_the_documented_order() {
    let template = Template::read(&json!({"spec": {"containers": []}})).expect("template");
    let none = Annotations::new();
    let values = Values::default();
    let injection = inject(&request(&values, &template, &none)).expect("injected");
    let paths: Vec<&str> = injection
        .patch
        .iter()
        .filter_map(|op| op["path"].as_str())
        .collect();
    assert_eq!(
        paths,
        [
            "/metadata",
            "/metadata/annotations",
            "/metadata/annotations/linkerd.io~1created-by",
            "/metadata/annotations/linkerd.io~1proxy-version",
            "/metadata/annotations/linkerd.io~1trust-root-sha256",
            "/metadata/labels",
            "/metadata/labels/linkerd.io~1control-plane-ns",
            "/metadata/labels/linkerd.io~1proxy-deployment",
            "/metadata/labels/linkerd.io~1workload-ns",
            "/spec/volumes",
            "/spec/initContainers",
            "/spec/volumes/-",
            "/spec/initContainers/-",
            "/spec/volumes/-",
            "/spec/volumes/-",
            "/spec/containers/0",
        ]
    );
}

#[test]
fn a_native_sidecar_starts_before_other_init_containers() {
    let values = Values::from_yaml("proxy: {nativeSidecar: true}").expect("values");
    let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "job"}], "initContainers": [{"name": "migrate"}]}});
    let injected = applied(&values, &Annotations::new(), &pod);
    assert_eq!(
        names(&injected["spec"]["initContainers"]),
        ["linkerd-init", "linkerd-proxy", "migrate"]
    );
    assert_eq!(names(&injected["spec"]["containers"]), ["job"]);
    let proxy = &injected["spec"]["initContainers"][1];
    assert_eq!(proxy["restartPolicy"], "Always");
    assert_eq!(proxy["startupProbe"]["failureThreshold"], 120);
    assert!(proxy.get("lifecycle").is_none());
}

#[test]
fn a_cni_plugin_replaces_redirection() {
    let values = Values::from_yaml("cniEnabled: true\nproxy: {await: false}").expect("values");
    let injected = applied(
        &values,
        &Annotations::new(),
        &json!({"spec": {"containers": [{"name": "web"}]}}),
    );
    assert_eq!(
        names(&injected["spec"]["initContainers"]),
        ["linkerd-network-validator"]
    );
    assert_eq!(
        names(&injected["spec"]["containers"]),
        ["web", "linkerd-proxy"]
    );
    assert_eq!(
        names(&injected["spec"]["volumes"]),
        ["linkerd-identity-end-entity", "linkerd-identity-token"]
    );
}

/// A quote or a newline in an annotation once broke the text the patch was made of.
#[test]
fn hostile_annotations_stay_inside_their_value() {
    let hostile = "\"},\n{\"op\":\"remove\",\"path\":\"/spec\"";
    let namespace: Annotations = [(
        "config.linkerd.io/proxy-log-level".to_owned(),
        hostile.to_owned(),
    )]
    .into();
    let injected = applied(
        &Values::default(),
        &namespace,
        &json!({"spec": {"containers": [{"name": "web"}]}}),
    );
    assert_eq!(
        injected["metadata"]["annotations"]["config.linkerd.io/proxy-log-level"],
        hostile
    );
    let expected = format!("{hostile},[{{headers}}]=off,[{{request}}]=off");
    assert_eq!(
        env(&injected, "LINKERD2_PROXY_LOG"),
        Some(expected.as_str())
    );
}

#[test]
fn capabilities_and_token_of_the_application_are_kept() {
    let token = json!({"name": "t", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true});
    let capabilities = json!({"add": ["SYS_TIME"], "drop": ["NET_RAW", "CHOWN"]});
    let pod = json!({"spec": {"containers": [
        {"name": "web", "volumeMounts": [token], "securityContext": {"capabilities": capabilities}}]}});
    let injected = applied(&Values::default(), &Annotations::new(), &pod);
    let (init, proxy) = (
        &injected["spec"]["initContainers"][0],
        &injected["spec"]["containers"][0],
    );
    let expected = json!({"add": ["NET_ADMIN", "NET_RAW", "SYS_TIME"], "drop": ["CHOWN"]});
    assert_eq!(init["securityContext"]["capabilities"], expected);
    assert_eq!(proxy["securityContext"]["capabilities"], capabilities);
    assert!(
        proxy["volumeMounts"]
            .as_array()
            .expect("mounts")
            .contains(&token)
    );
}

#[test]
fn what_cannot_be_done_is_an_error() {
    let template = |annotations: Value| {
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": []}});
        Template::read(&pod).expect("template")
    };
    let none = Annotations::new();
    for (name, values, annotations, expected) in [
        (
            "close-wait without root",
            "{}",
            json!({"config.linkerd.io/close-wait-timeout": "10s"}),
            "runAsRoot",
        ),
        (
            "mode",
            "proxyInit: {iptablesMode: plain}",
            json!({}),
            "Unsupported value \"plain\"",
        ),
        (
            "tracing",
            "proxy: {tracing: {enabled: true}}",
            json!({}),
            "collector",
        ),
    ] {
        let values = Values::from_yaml(values).expect("values");
        let error = inject(&request(&values, &template(annotations), &none)).expect_err(name);
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
}

#[test]
fn the_debug_container_stands_last() {
    let debug = "config.linkerd.io/enable-debug-sidecar";
    let image = "debugContainer: {image: {name: example/debug, version: v3, pullPolicy: Never}}";
    let always = json!({"exec": {"command": ["true"]}});
    let asked: Annotations = [(debug.to_owned(), "true".to_owned())].into();
    let none = Annotations::new();
    for (name, values, namespace, own, expected) in [
        ("nobody asks", "{}", &none, json!({}), None),
        (
            "the pod",
            image,
            &none,
            json!({debug: "true"}),
            Some("Never"),
        ),
        ("its namespace", image, &asked, json!({}), Some("Never")),
        (
            "the pod declines",
            image,
            &asked,
            json!({debug: "false"}),
            None,
        ),
        (
            "the general pull policy",
            "imagePullPolicy: Always\ndebugContainer: {image: {name: example/debug, version: v3}}",
            &asked,
            json!({}),
            Some("Always"),
        ),
    ] {
        let values = Values::from_yaml(values).expect("values");
        let pod =
            json!({"metadata": {"annotations": own}, "spec": {"containers": [{"name": "web"}]}});
        let injected = applied(&values, namespace, &pod);
        let containers = injected["spec"]["containers"]
            .as_array()
            .expect("containers");
        let last = containers
            .last()
            .filter(|last| last["name"] == "linkerd-debug");
        let Some(policy) = expected else {
            assert_eq!(last, None, "{name}");
            continue;
        };
        assert_eq!(
            last,
            Some(&json!({
                "name": "linkerd-debug", "image": "example/debug:v3", "imagePullPolicy": policy,
                "livenessProbe": always, "readinessProbe": always,
                "terminationMessagePolicy": "FallbackToLogsOnError",
            })),
            "{name}"
        );
    }
}

#[test]
fn tracing_names_the_service_and_its_attributes() {
    let values = "
proxy:
  tracing:
    enabled: true
    traceServiceName: mesh
    labels: {k8s.pod.ip: $(_pod_ip)}
    collector: {endpoint: 'collector.t:4317', meshIdentity: {serviceAccountName: c, namespace: t}}";
    let values = Values::from_yaml(values).expect("values");
    let (instance, name) = ("app.kubernetes.io/instance", "app.kubernetes.io/name");
    for (labels, annotations, attributes) in [
        (json!({}), json!({}), "k8s.pod.ip=$(_pod_ip)"),
        (
            json!({instance: "web-1", name: "web"}),
            json!({}),
            "k8s.pod.ip=$(_pod_ip)\nservice.name=web-1",
        ),
        (
            json!({name: "web"}),
            json!({"resource.opentelemetry.io/team": "shop"}),
            "k8s.pod.ip=$(_pod_ip)\nservice.name=web\nteam=shop",
        ),
    ] {
        let pod = json!({"metadata": {"labels": labels, "annotations": annotations},
            "spec": {"containers": [{"name": "web"}]}});
        let injected = applied(&values, &Annotations::new(), &pod);
        for (variable, expected) in [
            ("ATTRIBUTES_PATH", "/var/run/linkerd/podinfo/labels"),
            ("ANNOTATIONS_PATH", "/var/run/linkerd/podinfo/annotations"),
            ("PROTOCOL", "opentelemetry"),
            ("SERVICE_NAME", "mesh"),
            ("COLLECTOR_SVC_ADDR", "collector.t:4317"),
            (
                "COLLECTOR_SVC_NAME",
                "c.t.serviceaccount.identity.linkerd.cluster.local",
            ),
            ("EXTRA_ATTRIBUTES", attributes),
        ] {
            let variable = format!("LINKERD2_PROXY_TRACE_{variable}");
            assert_eq!(env(&injected, &variable), Some(expected), "{variable}");
        }
        let volumes = injected["spec"]["volumes"].as_array().expect("volumes");
        let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
        let volume = json!({"name": "linkerd-podinfo", "downwardAPI": {"items": items}});
        assert!(volumes.contains(&volume), "{volumes:?}");
        let mounts = &injected["spec"]["containers"][0]["volumeMounts"];
        let mount = json!({"mountPath": "/var/run/linkerd/podinfo", "name": "linkerd-podinfo"});
        assert!(mounts.as_array().expect("mounts").contains(&mount));
    }
    let plain = json!({"spec": {"containers": [{"name": "web"}]}});
    let injected = applied(&Values::default(), &Annotations::new(), &plain);
    assert_eq!(env(&injected, "LINKERD2_PROXY_TRACE_PROTOCOL"), None);
    assert!(!names(&injected["spec"]["volumes"]).contains(&"linkerd-podinfo"));
}

/// A variable of the proxy, a place in the pod (`/…`), or what follows an argument of the first init
/// container (`--…`; the argument itself when it holds its value).
fn looked_up(pod: &Value, at: &str) -> Value {
    if at.starts_with('/') {
        return pod.pointer(at).cloned().unwrap_or_default();
    }
    if at.starts_with("--") {
        let args = pod["spec"]["initContainers"][0]["args"].as_array();
        let args = args.expect("arguments");
        let found = args.iter().position(|arg| arg == at);
        return found.map_or(Value::Null, |found| {
            args.get(found + usize::from(!at.contains('=')))
                .cloned()
                .unwrap_or_default()
        });
    }
    json!(env(pod, &format!("LINKERD2_PROXY_{at}")))
}

#[test]
fn values_and_annotations_reach_their_place() {
    const PROXY: &str = "/spec/containers/0";
    const INIT: &str = "/spec/initContainers/0";
    let none = || json!({});
    let close_wait = || json!({"config.linkerd.io/close-wait-timeout": "10s"});
    let rooted = "proxyInit: {runAsRoot: true}";
    let v6 = "disableIPv6: false";
    let validator = "cniEnabled: true";
    let validator6 = "cniEnabled: true\ndisableIPv6: false";
    let proxy = |rest: &str| format!("{PROXY}{rest}");
    let init = |rest: &str| format!("{INIT}{rest}");
    for (values, annotations, at, expected) in [
        ("{}", none(), proxy("/lifecycle/preStop"), Value::Null),
        (
            "proxy: {waitBeforeExitSeconds: 20}",
            none(),
            proxy("/lifecycle/preStop/exec/command"),
            json!(["/bin/sleep", "20"]),
        ),
        (
            "{}",
            json!({"config.alpha.linkerd.io/proxy-wait-before-exit-seconds": "7"}),
            proxy("/lifecycle/preStop/exec/command"),
            json!(["/bin/sleep", "7"]),
        ),
        (
            "proxy: {waitBeforeExitSeconds: 20, nativeSidecar: true}",
            none(),
            "/spec/initContainers/1/lifecycle".to_owned(),
            Value::Null,
        ),
        (
            "proxy: {disableOutboundProtocolDetectTimeout: true}",
            none(),
            "OUTBOUND_DETECT_TIMEOUT".to_owned(),
            json!("365d"),
        ),
        (
            "{}",
            json!({"config.linkerd.io/proxy-disable-inbound-protocol-detect-timeout": "true"}),
            "INBOUND_DETECT_TIMEOUT".to_owned(),
            json!("365d"),
        ),
        (
            "{}",
            none(),
            "INBOUND_DETECT_TIMEOUT".to_owned(),
            Value::Null,
        ),
        (
            "{}",
            json!({"linkerd.io/inject": "ingress"}),
            "INGRESS_MODE".to_owned(),
            json!("true"),
        ),
        ("{}", none(), "INGRESS_MODE".to_owned(), Value::Null),
        (
            "{}",
            json!({"config.linkerd.io/enable-gateway": "true"}),
            "INBOUND_GATEWAY_SUFFIXES".to_owned(),
            json!("svc.cluster.local."),
        ),
        (
            "proxy: {securityContext: {runAsUser: 7}}",
            none(),
            proxy("/securityContext"),
            json!({"runAsUser": 7}),
        ),
        (
            "{}",
            none(),
            proxy("/securityContext/runAsGroup"),
            Value::Null,
        ),
        (
            "proxy: {gid: 7}",
            none(),
            proxy("/securityContext/runAsGroup"),
            json!(7),
        ),
        (
            "proxy: {gid: 7}",
            none(),
            "--proxy-gid".to_owned(),
            json!("7"),
        ),
        ("{}", none(), "--proxy-gid".to_owned(), Value::Null),
        (
            v6,
            none(),
            "CONTROL_LISTEN_ADDR".to_owned(),
            json!("[::]:4190"),
        ),
        (
            v6,
            none(),
            "ADMIN_LISTEN_ADDR".to_owned(),
            json!("[::]:4191"),
        ),
        (
            v6,
            none(),
            "INBOUND_LISTEN_ADDR".to_owned(),
            json!("[::]:4143"),
        ),
        (
            v6,
            none(),
            "OUTBOUND_LISTEN_ADDR".to_owned(),
            json!("127.0.0.1:4140"),
        ),
        (
            v6,
            none(),
            "OUTBOUND_LISTEN_ADDRS".to_owned(),
            json!("127.0.0.1:4140,[::1]:4140"),
        ),
        (
            "{}",
            none(),
            "OUTBOUND_LISTEN_ADDRS".to_owned(),
            json!("127.0.0.1:4140"),
        ),
        (v6, none(), "--ipv6=false".to_owned(), Value::Null),
        (
            "{}",
            none(),
            "--ipv6=false".to_owned(),
            json!("--ipv6=false"),
        ),
        (
            "{}",
            json!({"config.linkerd.io/skip-subnets": "10.0.0.0/8"}),
            "--subnets-to-ignore".to_owned(),
            json!("10.0.0.0/8"),
        ),
        (
            "{}",
            json!({"config.linkerd.io/skip-inbound-subnets": "10.0.0.0/8"}),
            "--inbound-subnets-to-ignore".to_owned(),
            json!("10.0.0.0/8"),
        ),
        (
            "{}",
            json!({"config.linkerd.io/skip-outbound-subnets": "10.0.0.0/8"}),
            "--outbound-subnets-to-ignore".to_owned(),
            json!("10.0.0.0/8"),
        ),
        (
            "{}",
            none(),
            "--inbound-subnets-to-ignore".to_owned(),
            Value::Null,
        ),
        (
            "{}",
            none(),
            "--outbound-subnets-to-ignore".to_owned(),
            Value::Null,
        ),
        (
            rooted,
            close_wait(),
            "--timeout-close-wait-secs".to_owned(),
            json!("10"),
        ),
        (
            rooted,
            close_wait(),
            init("/securityContext/privileged"),
            json!(true),
        ),
        (
            rooted,
            close_wait(),
            init("/securityContext/allowPrivilegeEscalation"),
            json!(true),
        ),
        (
            rooted,
            none(),
            init("/securityContext/privileged"),
            json!(false),
        ),
        (rooted, none(), init("/securityContext/runAsUser"), json!(0)),
        (
            rooted,
            none(),
            init("/securityContext/runAsNonRoot"),
            json!(false),
        ),
        (
            "proxyInit: {runAsUser: 0, runAsGroup: 0}",
            none(),
            init("/securityContext/runAsUser"),
            json!(65534),
        ),
        (
            "proxyInit: {runAsUser: 0, runAsGroup: 0}",
            none(),
            init("/securityContext/runAsGroup"),
            json!(65534),
        ),
        (
            "proxyInit: {iptablesMode: legacy}",
            none(),
            init("/args/0"),
            json!("--ipv6=false"),
        ),
        (
            "proxyInit: {logLevel: debug, logFormat: json}",
            none(),
            "--log-level".to_owned(),
            json!("debug"),
        ),
        (
            "cniEnabled: true\nnetworkValidator: {enableSecurityContext: false}",
            none(),
            init("/securityContext"),
            Value::Null,
        ),
        (
            "cniEnabled: true\nnetworkValidator: {securityContext: {runAsUser: 9}}",
            none(),
            init("/securityContext"),
            json!({"runAsUser": 9}),
        ),
        (
            validator,
            none(),
            "--connect-addr".to_owned(),
            json!("1.1.1.1:20001"),
        ),
        (
            validator,
            none(),
            "--listen-addr".to_owned(),
            json!("0.0.0.0:4140"),
        ),
        (
            validator6,
            none(),
            "--connect-addr".to_owned(),
            json!("[fd00::1]:20001"),
        ),
        (
            validator6,
            none(),
            "--listen-addr".to_owned(),
            json!("[::]:4140"),
        ),
        (
            "cniEnabled: true\nnetworkValidator: {connectAddr: '9.9.9.9:1', timeout: 3s}",
            none(),
            "--connect-addr".to_owned(),
            json!("9.9.9.9:1"),
        ),
    ] {
        let parsed = Values::from_yaml(values).expect("values");
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "web"}]}});
        let injected = applied(&parsed, &Annotations::new(), &pod);
        assert_eq!(
            looked_up(&injected, &at),
            expected,
            "{values} {annotations} {at}"
        );
    }
}
