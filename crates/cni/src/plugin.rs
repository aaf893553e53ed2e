//! Which pods are redirected and how, and what the runtime is answered. Nothing here touches the
//! node or the cluster.

use crate::conf::Redirect;
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use linkerd_core::duration;
use linkerd_init::args::Args;
use linkerd_k8s::labels::{
    ADMIN_PORT, CLOSE_WAIT_TIMEOUT, CONTROL_PLANE_COMPONENT, CONTROL_PORT, INBOUND_PORT,
    OUTBOUND_PORT, PROXY_GID, PROXY_UID, SKIP_INBOUND_PORTS, SKIP_INBOUND_SUBNETS,
    SKIP_OUTBOUND_PORTS, SKIP_OUTBOUND_SUBNETS, SKIP_SUBNETS,
};
use serde::Serialize as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Versions of the protocol that are spoken.
pub const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];
/// Codes of the protocol: a version that does not allow what is asked for, and what cannot be read.
const INCOMPATIBLE: u32 = 1;
const UNREADABLE: u32 = 6;
/// The code of errors that are a plugin's own.
const OWN_ERROR: u32 = 999;

/// What the runtime is told when something went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: u32,
    pub message: String,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            code: OWN_ERROR,
            message: format!("{error:#}"),
        }
    }
}

/// Whether a configuration of this version knows the command: those of the later protocols came
/// with them.
pub fn allowed(command: &str, version: &str) -> Result<(), Failure> {
    let since = match command {
        "CHECK" => [0, 4, 0],
        "GC" | "STATUS" => [1, 1, 0],
        _ => return Ok(()),
    };
    let given = if version.is_empty() { "0.1.0" } else { version };
    let numbers: Result<Vec<u32>, _> = given.split('.').map(str::parse).collect();
    match numbers.as_deref() {
        Ok(numbers @ [_, _, _]) if numbers >= since.as_slice() => Ok(()),
        Ok([_, _, _]) => Err(Failure {
            code: INCOMPATIBLE,
            message: format!("config version does not allow {command}"),
        }),
        _ => Err(Failure {
            code: UNREADABLE,
            message: format!("linkerd-cni: cniVersion {given:?} is not a version"),
        }),
    }
}

/// The pod of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

/// Reads `CNI_ARGS`; none when the sandbox is not a pod's.
pub fn pod_of(arguments: &str) -> Result<Option<PodName>> {
    const KNOWN: [&str; 4] = [
        "IgnoreUnknown",
        "K8S_POD_INFRA_CONTAINER_ID",
        "K8S_POD_NAME",
        "K8S_POD_NAMESPACE",
    ];
    let mut given = BTreeMap::new();
    for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            bail!("linkerd-cni: CNI_ARGS: invalid pair {pair:?}");
        };
        given.insert(key, value);
    }
    let lenient = given
        .get("IgnoreUnknown")
        .is_some_and(|value| ["1", "t", "T", "true", "TRUE", "True"].contains(value));
    if let Some(unknown) = given.keys().find(|key| !lenient && !KNOWN.contains(key)) {
        bail!("linkerd-cni: CNI_ARGS: unknown args [{unknown:?}]");
    }
    let value = |key: &str| given.get(key).filter(|value| !value.is_empty());
    Ok(match (value("K8S_POD_NAMESPACE"), value("K8S_POD_NAME")) {
        (Some(namespace), Some(name)) => Some(PodName {
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
        }),
        _ => None,
    })
}

/// Whether the pod is one of the installer's, in its own namespace. It must start without our help:
/// when the token on the node is dead, it is what brings a new one.
pub fn is_installer(pod: &PodName, namespace: &str) -> bool {
    pod.namespace == namespace && pod.name.starts_with("linkerd-cni-")
}

/// Whether the pod has a proxy and nothing of its own that redirects traffic to it.
pub fn is_ours(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let inits = || spec.init_containers.iter().flatten();
    let has_init = inits().any(|container| container.name == "linkerd-init");
    let mut all = spec.containers.iter().chain(inits());
    !has_init && all.any(|container| container.name == "linkerd-proxy")
}

/// Whether the pod belongs to the control plane, whose way to the API server must stay open.
pub fn is_control_plane(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.is_some_and(|labels| {
        labels
            .get(CONTROL_PLANE_COMPONENT)
            .is_some_and(|component| !component.is_empty())
    })
}

/// The rules of a pod: the node's settings, with the annotations of pod and namespace laid over
/// them. `api_ports` are let through as well.
pub fn rules(
    settings: &Redirect,
    pod: &Pod,
    namespace: &BTreeMap<String, String>,
    api_ports: &[String],
) -> Result<Args> {
    let own = pod.metadata.annotations.as_ref();
    let annotation = |key: &str| {
        let own = own.and_then(|annotations| annotations.get(key));
        let own = own.filter(|value| !value.is_empty());
        own.or_else(|| namespace.get(key))
            .filter(|value| !value.is_empty())
    };
    let number = |key: &str, default: i64| match annotation(key) {
        Some(value) => value
            .trim()
            .parse()
            .with_context(|| format!("linkerd-cni: annotation {key}: {value:?} is not a number")),
        None => Ok(default),
    };
    let list = |text: &String| -> Vec<String> {
        let parts = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    };
    let mut inbound = settings.inbound_ports_to_ignore.clone();
    for key in [ADMIN_PORT, CONTROL_PORT] {
        inbound.extend(annotation(key).cloned());
    }
    inbound.extend(annotation(SKIP_INBOUND_PORTS).map(list).unwrap_or_default());
    let mut outbound = annotation(SKIP_OUTBOUND_PORTS)
        .map_or_else(|| settings.outbound_ports_to_ignore.clone(), list);
    outbound.extend(api_ports.iter().cloned());
    let mut subnets =
        annotation(SKIP_SUBNETS).map_or_else(|| settings.subnets_to_ignore.clone(), list);
    let more = annotation(SKIP_INBOUND_SUBNETS).map(list);
    subnets.extend(more.unwrap_or_default());
    let outbound_subnets = annotation(SKIP_OUTBOUND_SUBNETS).map(list);
    // Only the pod's own counts. The injector tells of one that is no duration.
    let close_wait = own
        .and_then(|annotations| annotations.get(CLOSE_WAIT_TIMEOUT))
        .and_then(|text| duration::parse(text).ok())
        .and_then(|timeout| i64::try_from(timeout.as_secs()).ok());
    // Naming the program and not the mode leaves the way open to netlink where a node has no such
    // program.
    let (mode, program) = match settings.iptables_mode.as_str() {
        "nft" => ("", "iptables-nft"),
        "" | "legacy" => ("", "iptables-legacy"),
        "plain" => ("", "iptables"),
        "native" => ("native", ""),
        other => {
            bail!("linkerd-cni: iptables-mode {other:?} is none of nft, legacy, plain, native")
        }
    };
    // No group is no rule.
    let gid = match number(PROXY_GID, settings.proxy_gid)? {
        gid if gid <= 0 => -1,
        gid => gid,
    };
    Ok(Args {
        incoming_proxy_port: number(INBOUND_PORT, settings.incoming_proxy_port)?,
        outgoing_proxy_port: number(OUTBOUND_PORT, settings.outgoing_proxy_port)?,
        proxy_uid: number(PROXY_UID, settings.proxy_uid)?,
        proxy_gid: gid,
        ports_to_redirect: settings.ports_to_redirect.clone(),
        inbound_ports_to_ignore: inbound,
        outbound_ports_to_ignore: outbound,
        inbound_subnets_to_ignore: subnets,
        outbound_subnets_to_ignore: outbound_subnets.unwrap_or_default(),
        timeout_close_wait_secs: close_wait.unwrap_or_default(),
        simulate: settings.simulate,
        use_wait_flag: settings.use_wait_flag,
        iptables_mode: mode.to_owned(),
        firewall_bin_path: program.to_owned(),
        ipv6: settings.ipv6,
        ..Args::default()
    })
}

/// The result of the plugins before, or an empty one where there is none.
pub fn answer(version: &str, previous: Option<Value>) -> String {
    let version = if version.is_empty() { "0.1.0" } else { version };
    let mut result = match previous {
        Some(Value::Object(result)) => Value::Object(result),
        _ => json!({}),
    };
    result["cniVersion"] = version.into();
    pretty(&result)
}

/// What `VERSION` is answered.
pub fn versions() -> String {
    let newest = VERSIONS[VERSIONS.len() - 1];
    json!({"cniVersion": newest, "supportedVersions": VERSIONS}).to_string()
}

/// What the runtime reads when something failed.
pub fn failed(version: &str, failure: &Failure) -> String {
    let version = if version.is_empty() {
        VERSIONS[VERSIONS.len() - 1]
    } else {
        version
    };
    pretty(&json!({"cniVersion": version, "code": failure.code, "msg": failure.message}))
}

fn pretty(value: &Value) -> String {
    let mut text = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut writer = serde_json::Serializer::with_formatter(&mut text, format);
    match value.serialize(&mut writer) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).expect("a pod")
    }

    #[test]
    fn the_pod_of_a_sandbox() {
        let known = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;X=y";
        let expected = PodName {
            namespace: "shop".to_owned(),
            name: "web-1".to_owned(),
        };
        assert_eq!(pod_of(known).expect("read"), Some(expected));
        assert_eq!(pod_of("").expect("read"), None);
        assert_eq!(pod_of("K8S_POD_NAME=web").expect("read"), None);
        let error = pod_of("X=y").expect_err("unknown").to_string();
        assert_eq!(error, "linkerd-cni: CNI_ARGS: unknown args [\"X\"]");
        pod_of("IgnoreUnknown").expect_err("no value");
    }

    #[test]
    fn only_pods_with_a_proxy_and_without_an_init_container() {
        for (name, spec, expected) in [
            (
                "meshed",
                json!({"containers": [{"name": "linkerd-proxy"}]}),
                true,
            ),
            (
                "a native sidecar",
                json!({"containers": [{"name": "a"}], "initContainers": [{"name": "linkerd-proxy"}]}),
                true,
            ),
            (
                "redirects itself",
                json!({"containers": [{"name": "linkerd-proxy"}], "initContainers": [{"name": "linkerd-init"}]}),
                false,
            ),
            ("not meshed", json!({"containers": [{"name": "a"}]}), false),
        ] {
            assert_eq!(
                is_ours(&pod(json!({"metadata": {}, "spec": spec}))),
                expected,
                "{name}"
            );
        }
        let labels = json!({"linkerd.io/control-plane-component": "identity"});
        assert!(is_control_plane(&pod(
            json!({"metadata": {"labels": labels}})
        )));
        assert!(!is_control_plane(&pod(json!({"metadata": {}}))));
    }

    #[test]
    fn annotations_are_laid_over_the_nodes_settings() {
        let settings = Redirect {
            inbound_ports_to_ignore: vec!["4191".to_owned(), "4190".to_owned()],
            outbound_ports_to_ignore: vec!["25".to_owned()],
            iptables_mode: "nft".to_owned(),
            ..Redirect::default()
        };
        let plain = rules(
            &settings,
            &pod(json!({"metadata": {}})),
            &BTreeMap::new(),
            &[],
        );
        let plain = plain.expect("rules");
        assert_eq!(
            (plain.incoming_proxy_port, plain.proxy_uid, plain.proxy_gid),
            (4143, 2102, -1)
        );
        assert_eq!(plain.inbound_ports_to_ignore, ["4191", "4190"]);
        assert_eq!(plain.outbound_ports_to_ignore, ["25"]);
        assert_eq!(plain.firewall_bin_path, "iptables-nft");
        let annotated = pod(json!({"metadata": {"annotations": {
            SKIP_INBOUND_PORTS: "80, 443", SKIP_OUTBOUND_PORTS: "3306",
            INBOUND_PORT: "5143", ADMIN_PORT: "5191", PROXY_UID: "3000", SKIP_SUBNETS: "",
        }}}));
        let namespace: BTreeMap<String, String> = [
            (SKIP_SUBNETS.to_owned(), "10.0.0.0/8".to_owned()),
            (SKIP_OUTBOUND_PORTS.to_owned(), "1".to_owned()),
        ]
        .into();
        let api = ["443".to_owned(), "6443".to_owned()];
        let laid = rules(&settings, &annotated, &namespace, &api).expect("rules");
        assert_eq!((laid.incoming_proxy_port, laid.proxy_uid), (5143, 3000));
        assert_eq!(
            laid.inbound_ports_to_ignore,
            ["4191", "4190", "5191", "80", "443"]
        );
        assert_eq!(laid.outbound_ports_to_ignore, ["3306", "443", "6443"]);
        assert_eq!(laid.inbound_subnets_to_ignore, ["10.0.0.0/8"]);
        let wrong = pod(json!({"metadata": {"annotations": {PROXY_UID: "me"}}}));
        rules(&settings, &wrong, &BTreeMap::new(), &[]).expect_err("not a number");
    }

    #[test]
    fn subnets_by_direction_and_the_close_wait_timeout() {
        let settings = Redirect {
            subnets_to_ignore: vec!["192.168.0.0/16".to_owned()],
            ..Redirect::default()
        };
        let namespace: BTreeMap<String, String> = [
            (SKIP_OUTBOUND_SUBNETS.to_owned(), "10.2.0.0/16".to_owned()),
            (CLOSE_WAIT_TIMEOUT.to_owned(), "9s".to_owned()),
        ]
        .into();
        let with = |annotations: Value| {
            let pod = pod(json!({"metadata": {"annotations": annotations}}));
            rules(&settings, &pod, &namespace, &[]).expect("rules")
        };
        let plain = with(json!({}));
        assert_eq!(plain.inbound_subnets_to_ignore, ["192.168.0.0/16"]);
        assert_eq!(plain.outbound_subnets_to_ignore, ["10.2.0.0/16"]);
        assert_eq!(
            plain.timeout_close_wait_secs, 0,
            "only the pod's own counts"
        );
        let laid = with(json!({
            SKIP_INBOUND_SUBNETS: "10.0.0.0/8, fd00::/8", SKIP_OUTBOUND_SUBNETS: "10.1.0.0/16",
            CLOSE_WAIT_TIMEOUT: "1m5s",
        }));
        assert_eq!(
            laid.inbound_subnets_to_ignore,
            ["192.168.0.0/16", "10.0.0.0/8", "fd00::/8"]
        );
        assert_eq!(laid.outbound_subnets_to_ignore, ["10.1.0.0/16"]);
        assert_eq!(laid.timeout_close_wait_secs, 65);
        assert_eq!(
            with(json!({CLOSE_WAIT_TIMEOUT: "soon"})).timeout_close_wait_secs,
            0
        );
    }

    #[test]
    fn modes_and_other_settings_of_the_node() {
        let read = |mode: &str| {
            let settings = Redirect {
                iptables_mode: mode.to_owned(),
                proxy_gid: 2103,
                ports_to_redirect: vec![80, 443],
                use_wait_flag: true,
                ipv6: true,
                ..Redirect::default()
            };
            rules(
                &settings,
                &pod(json!({"metadata": {}})),
                &BTreeMap::new(),
                &[],
            )
        };
        for (mode, named, program) in [
            ("nft", "", "iptables-nft"),
            ("legacy", "", "iptables-legacy"),
            ("", "", "iptables-legacy"),
            ("plain", "", "iptables"),
            ("native", "native", ""),
        ] {
            let args = read(mode).expect("rules");
            assert_eq!(
                (args.iptables_mode.as_str(), args.firewall_bin_path.as_str()),
                (named, program),
                "{mode}"
            );
            assert_eq!(args.proxy_gid, 2103, "{mode}");
            assert_eq!(args.ports_to_redirect, [80, 443], "{mode}");
            assert!(args.use_wait_flag && args.ipv6, "{mode}");
        }
        let error = read("nonsense").expect_err("no mode").to_string();
        assert_eq!(
            error,
            "linkerd-cni: iptables-mode \"nonsense\" is none of nft, legacy, plain, native"
        );
    }

    #[test]
    fn the_installers_own_pods() {
        for (namespace, name, expected) in [
            ("net", "linkerd-cni-x7k2p", true),
            ("net", "web-1", false),
            ("shop", "linkerd-cni-x7k2p", false),
        ] {
            let pod = PodName {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            assert_eq!(is_installer(&pod, "net"), expected, "{namespace}/{name}");
        }
    }

    #[test]
    fn commands_came_with_versions() {
        for (command, version, code) in [
            ("ADD", "0.1.0", None),
            ("DEL", "nonsense", None),
            ("CHECK", "0.3.1", Some(INCOMPATIBLE)),
            ("CHECK", "", Some(INCOMPATIBLE)),
            ("CHECK", "0.4.0", None),
            ("CHECK", "nonsense", Some(UNREADABLE)),
            ("GC", "1.0.0", Some(INCOMPATIBLE)),
            ("GC", "1.1.0", None),
            ("STATUS", "1.0.0", Some(INCOMPATIBLE)),
            ("STATUS", "1.1.0", None),
            ("STATUS", "1.1", Some(UNREADABLE)),
        ] {
            let refused = allowed(command, version).err();
            let found = refused.as_ref().map(|failure| failure.code);
            assert_eq!(found, code, "{command} {version}");
            if code == Some(INCOMPATIBLE) {
                let said = format!("config version does not allow {command}");
                assert_eq!(refused.expect("refused").message, said);
            }
        }
    }

    #[test]
    fn what_the_runtime_reads() {
        let previous = json!({"cniVersion": "0.3.1", "ips": [{"address": "10.0.0.2/24"}]});
        assert_eq!(
            answer("1.0.0", Some(previous)),
            "{\n    \"cniVersion\": \"1.0.0\",\n    \"ips\": [\n        {\n            \"address\": \"10.0.0.2/24\"\n        }\n    ]\n}"
        );
        assert_eq!(answer("0.4.0", None), "{\n    \"cniVersion\": \"0.4.0\"\n}");
        let oops = Failure::from(anyhow::anyhow!("oops"));
        let said: Value = serde_json::from_str(&failed("1.0.0", &oops)).expect("JSON");
        assert_eq!(
            said,
            json!({"cniVersion": "1.0.0", "code": 999, "msg": "oops"})
        );
        let versions: Value = serde_json::from_str(&versions()).expect("JSON");
        assert_eq!(versions["supportedVersions"][6], "1.1.0");
    }
}
