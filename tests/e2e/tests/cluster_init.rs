//! The init program as the init container of real pods, in every backend: as the chart runs it (not
//! root, read-only root, few capabilities) and as root. Who answers, and whether its log reads well.

use std::time::Duration;

use linkerd_e2e::{Kubectl, Namespace, house_image, product_image};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(180);
const HOUSE: &str = "/linkerd-e2e-house";

/// Pod name, arguments that choose the backend, whether as root, and a line of its log.
const CASES: &[(&str, &[&str], bool, &str)] = &[
    (
        "legacy",
        &[],
        false,
        "/usr/sbin/iptables-legacy -t nat -A PROXY_INIT_REDIRECT -p tcp --match multiport --dports 4190,4191,4567,4568 -j RETURN -m comment --comment proxy-init/ignore-port-4190,4191,4567,4568",
    ),
    (
        "nft",
        &[
            "--firewall-bin-path",
            "iptables-nft",
            "--firewall-save-bin-path",
            "iptables-nft-save",
        ],
        false,
        "/usr/sbin/iptables-nft -t nat -A PREROUTING -j PROXY_INIT_REDIRECT -m comment --comment proxy-init/install-proxy-init-prerouting",
    ),
    (
        "plain",
        &["--iptables-mode", "plain"],
        false,
        "/usr/sbin/iptables-restore --noflush --wait=5",
    ),
    (
        "native",
        &["--iptables-mode", "native"],
        false,
        "applied in one nf_tables transaction and read back",
    ),
    (
        "legacy-root",
        &["--iptables-mode", "legacy"],
        true,
        "/usr/sbin/iptables-legacy-restore --noflush --wait=5",
    ),
];

fn serving(name: &str, image: &str, port: u16, user: u32) -> Value {
    json!({
        "name": name,
        "image": image,
        "args": ["serve", format!("0.0.0.0:{port}"), "/", name],
        "securityContext": { "runAsUser": user },
    })
}

/// A pod with the init container as the chart writes it, stand-ins for the proxy, and an application.
fn pod(name: &str, image: &str, house: &str, mode: &[&str], root: bool) -> Value {
    let mut args = mode.to_vec();
    args.extend(
        "--incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102".split(' '),
    );
    args.extend(
        "--inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 4567,4568"
            .split(' '),
    );
    let user = if root { 0 } else { 65534 };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "initContainers": [{
                "name": "linkerd-init",
                "image": image,
                "args": args,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "privileged": false,
                    "capabilities": { "add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"] },
                    "readOnlyRootFilesystem": true,
                    "runAsUser": user,
                    "runAsGroup": user,
                    "runAsNonRoot": !root,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "volumeMounts": [{ "name": "linkerd-proxy-init-xtables-lock", "mountPath": "/run" }],
            }],
            "containers": [
                serving("inbound", house, 4143, 2102),
                serving("outbound", house, 4140, 2102),
                serving("admin", house, 4191, 2102),
                serving("app", house, 8080, 1000),
            ],
            "volumes": [{ "name": "linkerd-proxy-init-xtables-lock", "emptyDir": {} }],
        },
    })
}

#[test]
fn an_init_container_redirects_its_pod_in_every_backend() {
    let kubectl = Kubectl::from_env();
    let house = house_image(&kubectl);
    let image = product_image(&kubectl, "proxy-init");
    let namespace = Namespace::create(&kubectl, "init");
    let get = |container: &str, pod: &str, url: &str| -> String {
        let target = format!("pod/{pod}");
        let container = format!("--container={container}");
        let (_, said) = namespace.try_run(&["exec", &target, &container, "--", HOUSE, "get", url]);
        said.trim().to_owned()
    };
    let address = |pod: &str| -> String {
        namespace
            .run(&["get", "pod", pod, "--output=jsonpath={.status.podIP}"])
            .trim()
            .to_owned()
    };

    // A pod without rules: it asks from outside, and answers on one port.
    namespace.apply(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "peer" },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [serving("peer", house, 8080, 1000), serving("skipped", house, 4567, 1000)],
        },
    }));
    for (name, mode, root, _) in CASES {
        namespace.apply(&pod(name, &image, house, mode, *root));
    }
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    let (ready, said) =
        namespace.try_run(&["wait", "--for=condition=Ready", "pod", "--all", &timeout]);
    assert!(ready, "{said}\n{}", namespace.describe());

    let peer = address("peer");
    for (name, _, _, line) in CASES {
        let target = format!("pod/{name}");
        let log = namespace.run(&["logs", &target, "--container=linkerd-init"]);
        assert!(log.contains(line), "{name}: {log}");
        for level in ["level=error", "level=warning"] {
            assert!(!log.contains(level), "{name}: {log}");
        }

        let own = address(name);
        let inward = |port: u16| get("peer", "peer", &format!("http://{own}:{port}/"));
        assert_eq!(
            inward(8080),
            "inbound",
            "{name}: inbound traffic meets the proxy"
        );
        assert_eq!(inward(9999), "inbound", "{name}: on every port");
        assert_eq!(inward(4191), "admin", "{name}: but on those it ignores");
        let outward = |container: &str, url: &str| get(container, name, url);
        let (far, skipped) = (
            format!("http://{peer}:8080/"),
            format!("http://{peer}:4567/"),
        );
        assert_eq!(
            outward("app", &far),
            "outbound",
            "{name}: outbound traffic meets the proxy"
        );
        assert_eq!(
            outward("inbound", &far),
            "peer",
            "{name}: the proxy's own does not"
        );
        assert_eq!(
            outward("app", &skipped),
            "skipped",
            "{name}: nor ignored ports"
        );
        let near = "http://127.0.0.1:8080/";
        assert_eq!(outward("app", near), "app", "{name}: nor loopback");
    }
}
