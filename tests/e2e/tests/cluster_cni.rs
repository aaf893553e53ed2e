//! The CNI plugin instead of init containers: the node redirects what its pods say, the pods need no
//! capabilities for it, and the node is as it was when the plugin is taken away.

use std::time::Duration;

use linkerd_e2e::{Kubectl, Mesh, Namespace, house_image};
use linkerd_testkit::wait_for_some;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(180);
const OBJECTS: &str = "clusterroles,clusterrolebindings";
const LABEL: &str = "linkerd.io/cni-resource=true";

/// The plugin on every node, taken away when the test ends.
struct Plugin(Kubectl);

impl Plugin {
    fn remove(&self) {
        let namespace = [
            "delete",
            "namespace",
            "linkerd-cni",
            "--ignore-not-found",
            "--timeout=120s",
        ];
        self.0.try_run(&namespace);
        self.0
            .try_run(&["delete", OBJECTS, "-l", LABEL, "--ignore-not-found"]);
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.remove();
    }
}

fn deployment(name: &str, image: &str, args: &Value) -> Value {
    let labels = json!({"app": name});
    let container = json!({
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "args": args,
        "ports": [{"containerPort": 8080}],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
            },
        },
    })
}

#[test]
fn the_node_redirects_what_its_pods_say() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let plugin = Plugin(kubectl.clone());
    plugin.remove();
    let mesh = Mesh::begin(&kubectl);
    mesh.apply(&["install-cni"]);
    kubectl.run(&[
        "--namespace=linkerd-cni",
        "rollout",
        "status",
        "daemonset/linkerd-cni",
        "--timeout=180s",
    ]);
    mesh.linkerd(&["check", "--pre", "--linkerd-cni-enabled", "--offline"]);
    // The control plane's own pods are redirected by the node too.
    mesh.add(&["--linkerd-cni-enabled"]);
    let check = mesh.linkerd(&["check", "--offline", "--wait=120s"]);
    for line in [
        "√ cni plugin ConfigMap exists",
        "√ cni plugin pod is running on all nodes",
        "Status check results are √",
    ] {
        assert!(check.contains(line), "{line} in\n{check}");
    }

    let namespace = Namespace::create(&kubectl, "cni");
    let name = namespace.name().to_owned();
    kubectl.run(&["annotate", "namespace", &name, "linkerd.io/inject=enabled"]);
    let serve = json!(["serve", "0.0.0.0:8080", "/", "hello"]);
    namespace.apply(&deployment("server", image, &serve));
    namespace.apply(&deployment("client", image, &json!(["wait"])));
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }));
    namespace.wait_deployment("server", PATIENCE);
    namespace.wait_deployment("client", PATIENCE);

    // Nothing in the pod may change its network; something asks whether the node did.
    let first = namespace.pod("client", "spec.initContainers[0].name");
    assert_eq!(first, "linkerd-network-validator");
    let added = "spec['initContainers','containers'][*].securityContext.capabilities.add";
    assert_eq!(namespace.pod("client", added), "");

    let url = format!("http://{}:80/", namespace.host("server"));
    let house = "/linkerd-e2e-house";
    let get = [
        "exec",
        "deploy/client",
        "--container=client",
        "--",
        house,
        "get",
        &url,
    ];
    let answer = wait_for_some(PATIENCE, "an answer through the mesh", || {
        let (answered, output) = namespace.try_run(&get);
        answered.then_some(output)
    });
    assert!(answer.contains("hello"), "{answer}");
    let identity = format!("default.{name}.serviceaccount.identity.linkerd.cluster.local");
    let labels = [
        r#"direction="inbound""#.to_owned(),
        r#"tls="true""#.to_owned(),
        format!(r#"client_id="{identity}""#),
    ];
    let counted = wait_for_some(PATIENCE, "the request in the server's metrics", || {
        namespace.series("server", "request_total", &labels)
    });
    assert!(counted >= 1.0, "{counted}");

    // Without the plugin new pods start, and nothing redirects them.
    drop(mesh);
    plugin.remove();
    let args = json!([
        "get",
        format!("http://{}:8080/", namespace.pod("server", "status.podIP"))
    ]);
    let metadata = json!({"name": "after", "annotations": {"linkerd.io/inject": "disabled"}});
    let container =
        json!({"name": "after", "image": image, "imagePullPolicy": "IfNotPresent", "args": args});
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"restartPolicy": "OnFailure", "containers": [container]},
    }));
    let said = namespace.wait_pod_success("after", PATIENCE);
    assert!(said.contains("hello"), "{said}");
}
