//! Whole manifests of `install`, `upgrade` and `install-cni`, away from every cluster.

use cluster::{linkerd_with, object, objects};
use serde_json::Value;
use std::{fs, net::SocketAddr};

#[path = "process_bad_input/cluster.rs"]
mod cluster;

fn linkerd(args: &[&str]) -> cluster::Ran {
    let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    cluster::linkerd(nobody, args, "")
}

/// What install stored gives the same manifests through upgrade, webhook certificates aside.
#[test]
fn upgrade_repeats_the_install() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("linkerd.yaml");
    let first = linkerd(&[
        "install",
        "--ignore-cluster",
        "--ha",
        "--set",
        "proxy.logLevel=debug,heartbeatSchedule=1 2 * * *",
    ]);
    fs::write(&file, &first.out).expect("ours");
    let file = file.to_str().expect("UTF-8");
    let second = linkerd(&["upgrade", "--from-manifests", file]);
    assert_eq!(second.code, 0, "{}", second.err);
    let stable = |text: &str| -> Vec<Value> {
        let rendered = objects(text).into_iter();
        let kept = rendered.filter(|object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            !name.ends_with("-k8s-tls") && !name.ends_with("-webhook-config")
        });
        let mut kept: Vec<Value> = kept.collect();
        for object in &mut kept {
            if let Some(checksum) =
                object.pointer_mut("/spec/template/metadata/annotations/checksum~1config")
            {
                *checksum = Value::Null;
            }
        }
        kept
    };
    assert_eq!(stable(&second.out), stable(&first.out));
    let config = objects(&first.out)
        .into_iter()
        .find(|o| o["metadata"]["name"] == "linkerd-config")
        .expect("the config");
    assert!(
        !config.to_string().contains("PRIVATE KEY"),
        "no key in the ConfigMap"
    );
}

/// The anchor that an install makes is named after its namespace and trust domain.
#[test]
fn the_anchor_is_named_after_the_trust_domain() {
    for (flags, name) in [
        (&[][..], "identity.linkerd.cluster.local"),
        (
            &["--cluster-domain", "corp.example"],
            "identity.linkerd.corp.example",
        ),
        (
            &["--identity-trust-domain", "mesh.example", "-L", "other"],
            "identity.other.mesh.example",
        ),
    ] {
        let mut args = vec!["install", "--ignore-cluster"];
        args.extend(flags);
        let rendered = objects(&linkerd(&args).out);
        let roots = object(&rendered, "ConfigMap", "linkerd-identity-trust-roots");
        let pem = roots["data"]["ca-bundle.crt"].as_str().expect("PEM");
        let anchors = linkerd_tls::certificates_from_pem(pem.as_bytes()).expect("certificates");
        let found = anchors[0].common_name.as_deref();
        assert_eq!((anchors.len(), found), (1, Some(name)), "{flags:?}");
    }
}

#[test]
fn the_namespace_of_the_environment_gives_way_to_the_flag() {
    for (variable, flags, expected) in [
        ("", &[][..], "linkerd"),
        ("mesh", &[], "mesh"),
        ("mesh", &["-L", "other"], "other"),
        ("", &["--linkerd-namespace=other"], "other"),
    ] {
        let mut args = vec!["install", "--ignore-cluster"];
        args.extend(flags);
        let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let ran = linkerd_with(nobody, &args, "", &[("LINKERD_NAMESPACE", variable)]);
        let first = &objects(&ran.out)[0];
        assert_eq!(
            (&first["kind"], &first["metadata"]["name"]),
            (&Value::from("Namespace"), &Value::from(expected)),
            "{variable} {flags:?}"
        );
    }
}

/// The plugin's objects, and its entry for the node's configuration.
#[test]
fn install_cni_objects() {
    let flags = [
        "install-cni",
        "--cni-namespace",
        "net",
        "--registry",
        "example.org/mesh",
        "--admin-port",
        "5191",
        "--skip-inbound-ports",
        "25,8000-9000",
        "--skip-outbound-ports",
        "3306",
        "--redirect-ports",
        "80,443",
        "--use-wait-flag",
        "--proxy-gid",
        "2102",
        "--dest-cni-bin-dir",
        "/home/kubernetes/bin",
    ];
    let ran = linkerd(&flags);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.ends_with("\n---\n"), "{}", ran.out);
    let rendered = objects(&ran.out);
    let named: Vec<String> = rendered
        .iter()
        .filter(|object| !object.is_null())
        .map(|object| {
            let (_, kind, namespace, name) = linkerd_cli::inventory::identity(object);
            format!("{kind} {namespace}/{name}")
        })
        .collect();
    assert_eq!(
        named,
        [
            "Namespace /net",
            "ServiceAccount net/linkerd-cni",
            "ClusterRole /linkerd-cni",
            "ClusterRoleBinding /linkerd-cni",
            "ConfigMap net/linkerd-cni-config",
            "DaemonSet net/linkerd-cni",
        ]
    );
    let config = rendered[4]["data"]["cni_network_config"]
        .as_str()
        .expect("text");
    let config: Value = serde_json::from_str(config).expect("JSON");
    assert_eq!(
        config["linkerd"],
        serde_json::json!({
            "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102,
            "proxy-gid": 2102, "ports-to-redirect": [80, 443],
            "inbound-ports-to-ignore": ["5191", "4190", "25", "8000-9000"],
            "outbound-ports-to-ignore": ["3306"], "simulate": false, "use-wait-flag": true,
            "iptables-mode": "nft", "ipv6": false,
        })
    );
    let pod = &rendered[5]["spec"]["template"]["spec"];
    let image = format!(
        "example.org/mesh/cni-plugin:{}",
        linkerd_runtime::version::VERSION
    );
    assert_eq!(pod["containers"][0]["image"], image);
    assert_eq!(
        pod["containers"][0]["volumeMounts"][0]["mountPath"],
        "/host/home/kubernetes/bin"
    );
}
