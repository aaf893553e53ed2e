//! `prune` and `uninstall`: what they print for deletion, and what they leave alone.

use cluster::{holding, linkerd, printed};
use serde_json::{Value, json};

#[path = "process_bad_input/cluster.rs"]
mod cluster;

/// An object of the control plane in that namespace.
fn owned(api: &str, kind: &str, namespace: Option<&str>, name: &str, control_plane: &str) -> Value {
    let labels = json!({"linkerd.io/control-plane-ns": control_plane});
    let mut object =
        json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels}});
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

fn namespace(name: &str, label: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {label: value}}})
}

/// Everything an install applies.
fn installed() -> Vec<Value> {
    let mut objects = printed(&["install", "--ignore-cluster"]);
    objects.extend(printed(&["install", "--ignore-cluster", "--crds"]));
    objects
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

#[test]
fn prune_prints_what_the_release_no_longer_has() {
    let mut objects = installed();
    let fresh = holding(objects.clone());
    let nothing = linkerd(fresh, &["prune"], "");
    assert_eq!(
        (nothing.code, nothing.out.as_str(), nothing.err.as_str()),
        (0, "", "")
    );
    let mut child = owned("apps/v1", "Deployment", Some("linkerd"), "made", "linkerd");
    child["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": "u"}]);
    objects.extend([
        owned(
            "v1",
            "ConfigMap",
            Some("linkerd"),
            "linkerd-config-addons",
            "linkerd",
        ),
        owned(
            RBAC,
            "ClusterRole",
            None,
            "linkerd-linkerd-controller",
            "linkerd",
        ),
        owned(
            "apps/v1",
            "Deployment",
            Some("other"),
            "linkerd-old",
            "other",
        ),
        child,
    ]);
    let server = holding(objects);
    let yaml = linkerd(server, &["prune"], "");
    assert_eq!(yaml.code, 0, "{}", yaml.err);
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: linkerd-config-addons\n  namespace: linkerd\n---\n";
    let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: linkerd-linkerd-controller\n---\n";
    assert_eq!(yaml.out, format!("{config}{role}"));
    let json = linkerd(server, &["prune", "-o", "json"], "");
    let lines: Vec<Value> = json
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let metadata = json!({"name": "linkerd-config-addons", "namespace": "linkerd"});
    let first = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    assert_eq!((lines.len(), &lines[0]), (2, &first));
}

#[test]
fn prune_needs_what_the_cli_stored() {
    let ran = linkerd(holding(vec![]), &["prune"], "");
    assert_eq!(ran.code, 1);
    let start = "Error: Could not find the linkerd-config-overrides secret.\n";
    assert!(ran.err.starts_with(start), "{}", ran.err);
}

#[test]
fn uninstall_prints_what_goes_and_leaves_other_control_planes() {
    let label = "linkerd.io/control-plane-ns";
    let objects = vec![
        owned(RBAC, "ClusterRole", None, "b", "linkerd"),
        owned(RBAC, "ClusterRole", None, "a", "linkerd"),
        owned(RBAC, "ClusterRole", None, "others", "other"),
        owned(
            RBAC,
            "RoleBinding",
            Some("kube-system"),
            "reader",
            "linkerd",
        ),
        owned(
            "v1",
            "ConfigMap",
            Some("linkerd"),
            "linkerd-config",
            "linkerd",
        ),
        namespace("linkerd", label, "linkerd"),
        namespace("other", label, "other"),
    ];
    let server = holding(objects);
    let ran = linkerd(server, &["uninstall", "-o", "json"], "");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let role = |name: &str| {
        format!(r#"{{"apiVersion":"{RBAC}","kind":"ClusterRole","metadata":{{"name":"{name}"}}}}"#)
    };
    let binding = format!(
        r#"{{"apiVersion":"{RBAC}","kind":"RoleBinding","metadata":{{"name":"reader","namespace":"kube-system"}}}}"#
    );
    let gone = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"linkerd"}}"#.to_owned();
    assert_eq!(
        ran.out.lines().collect::<Vec<_>>(),
        [role("a"), role("b"), binding, gone]
    );
    let yaml = linkerd(server, &["uninstall"], "");
    let end = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: linkerd\n---\n";
    assert!(yaml.out.ends_with(end), "{}", yaml.out);
    let others = linkerd(server, &["uninstall", "-L", "other", "-o", "json"], "");
    assert_eq!(others.out.lines().count(), 2, "{}", others.out);
    let none = linkerd(server, &["uninstall", "-L", "third"], "");
    assert_eq!(
        (none.code, none.out.as_str(), none.err.as_str()),
        (0, "", "No resources found to uninstall\n")
    );
}

#[test]
fn uninstall_stops_while_something_needs_the_mesh() {
    let extension = "linkerd.io/extension";
    let base = namespace("linkerd", "linkerd.io/control-plane-ns", "linkerd");
    let pod = |namespace: &str, name: &str| owned("v1", "Pod", Some(namespace), name, "linkerd");
    let way_out = "or use --force to uninstall the control-plane anyway\n";
    for (name, more, error) in [
        (
            "extensions",
            vec![
                namespace("linkerd-viz", extension, "viz"),
                namespace("linkerd-multicluster", extension, "multicluster"),
            ],
            "Please uninstall the following extensions before uninstalling the control-plane:\n\t* multicluster\n\t* viz\n",
        ),
        (
            "pods",
            vec![
                pod("shop", "web"),
                pod("shop", "api"),
                pod("linkerd", "linkerd-identity"),
            ],
            "Please uninject the following resources before uninstalling the control-plane:\n\t* api\n\t* web\n",
        ),
    ] {
        let server = holding([vec![base.clone()], more].concat());
        let ran = linkerd(server, &["uninstall"], "");
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err),
            (1, "", format!("{error}{way_out}")),
            "{name}"
        );
        for flag in ["--force", "-f"] {
            let forced = linkerd(server, &["uninstall", flag], "");
            assert_eq!((forced.code, forced.err.as_str()), (0, ""), "{name} {flag}");
            assert!(forced.out.contains("kind: Namespace"), "{name} {flag}");
        }
    }
}
