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
