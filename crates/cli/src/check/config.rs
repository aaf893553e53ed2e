//! `linkerd-config`: the objects around the control plane's workloads.

use super::{
    engine::{Category, Check, Problem, Verdict},
    existence::definitions_exist,
    facts::{CONTROL_PLANE_SELECTOR, Facts, require},
};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::{Namespace, Node, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};

const ACCOUNTS: [&str; 3] = [
    "linkerd-destination",
    "linkerd-identity",
    "linkerd-proxy-injector",
];

pub fn category() -> Category<Facts> {
    Category {
        id: "linkerd-config",
        checks: vec![
            Check::new(
                "control plane Namespace exists",
                "l5d-existence-ns",
                |facts| Box::pin(async { namespace_exists(facts, facts.namespace()).await }),
            )
            .fatal(),
            Check::new(
                "control plane ClusterRoles exist",
                "l5d-existence-cr",
                |facts| Box::pin(roles(facts)),
            )
            .fatal(),
            Check::new(
                "control plane ClusterRoleBindings exist",
                "l5d-existence-crb",
                |facts| Box::pin(bindings(facts)),
            )
            .fatal(),
            Check::new(
                "control plane ServiceAccounts exist",
                "l5d-existence-sa",
                |facts| Box::pin(accounts(facts)),
            )
            .fatal(),
            Check::new(
                "control plane CustomResourceDefinitions exist",
                "l5d-existence-crd",
                |facts| Box::pin(definitions_exist(facts)),
            )
            .fatal(),
            Check::new(
                "control plane MutatingWebhookConfigurations exist",
                "l5d-existence-mwc",
                |facts| Box::pin(mutating(facts)),
            )
            .fatal(),
            Check::new(
                "control plane ValidatingWebhookConfigurations exist",
                "l5d-existence-vwc",
                |facts| Box::pin(validating(facts)),
            )
            .fatal(),
            Check::new(
                "proxy-init container runs as root user if docker container runtime is used",
                "l5d-proxy-init-run-as-root",
                |facts| Box::pin(docker(facts)),
            ),
        ],
    }
}

pub(super) async fn namespace_exists(facts: &Facts, namespace: &str) -> Verdict {
    match facts.named::<Namespace>(namespace).await? {
        Some(_) => Ok(()),
        None => Err(Problem::failed(format!(
            "The \"{namespace}\" namespace does not exist"
        ))),
    }
}

/// Names of the cluster-wide roles and their bindings.
fn role_names(facts: &Facts) -> [String; 2] {
    ["identity", "proxy-injector"]
        .map(|component| format!("linkerd-{}-{component}", facts.namespace()))
}

async fn roles(facts: &mut Facts) -> Verdict {
    let found: Vec<ClusterRole> = facts.all(CONTROL_PLANE_SELECTOR).await?;
    require(
        "ClusterRoles",
        &role_names(facts).each_ref().map(String::as_str),
        &found,
    )
}

async fn bindings(facts: &mut Facts) -> Verdict {
    let found: Vec<ClusterRoleBinding> = facts.all(CONTROL_PLANE_SELECTOR).await?;
    require(
        "ClusterRoleBindings",
        &role_names(facts).each_ref().map(String::as_str),
        &found,
    )
}

async fn accounts(facts: &mut Facts) -> Verdict {
    let found: Vec<ServiceAccount> = facts
        .within(facts.namespace(), CONTROL_PLANE_SELECTOR)
        .await?;
    require("ServiceAccounts", &ACCOUNTS, &found)
}

async fn mutating(facts: &mut Facts) -> Verdict {
    let found: Vec<MutatingWebhookConfiguration> = facts.all(CONTROL_PLANE_SELECTOR).await?;
    require(
        "MutatingWebhookConfigurations",
        &["linkerd-proxy-injector-webhook-config"],
        &found,
    )
}

async fn validating(facts: &mut Facts) -> Verdict {
    let found: Vec<ValidatingWebhookConfiguration> = facts.all(CONTROL_PLANE_SELECTOR).await?;
    require(
        "ValidatingWebhookConfigurations",
        &["linkerd-sp-validator-webhook-config"],
        &found,
    )
}

async fn docker(facts: &mut Facts) -> Verdict {
    facts.values()?;
    if facts.is_set("proxyInit.runAsRoot") {
        return Ok(());
    }
    let nodes: Vec<Node> = facts.all("").await?;
    let docker = nodes.iter().any(|node| {
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        info.is_some_and(|info| info.container_runtime_version.starts_with("docker:"))
    });
    if docker {
        return Err(Problem::failed(
            "there are nodes using the docker container runtime and proxy-init container must run as root user.\n\
             try installing linkerd via --set proxyInit.runAsRoot=true",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says};
    use serde_json::{Value, json};

    fn object(kind: &str, version: &str, name: &str) -> Value {
        let mut object = json!({"kind": kind, "apiVersion": version,
            "metadata": {"name": name, "namespace": "linkerd", "labels": {"linkerd.io/control-plane-ns": "linkerd"}}});
        if kind == "ClusterRoleBinding" {
            object["roleRef"] = json!({"apiGroup": "", "kind": "ClusterRole", "name": name});
        }
        object
    }

    #[tokio::test]
    async fn missing_objects_are_named() {
        let mut facts = Fake::of(vec![object(
            "ClusterRole",
            "rbac.authorization.k8s.io/v1",
            "linkerd-linkerd-identity",
        )])
        .facts();
        facts.definitions = vec![("servers.policy.linkerd.io".to_owned(), "v1beta3".to_owned())];
        for (description, error) in [
            (
                "control plane Namespace exists",
                "The \"linkerd\" namespace does not exist",
            ),
            (
                "control plane ClusterRoles exist",
                "missing ClusterRoles: linkerd-linkerd-proxy-injector",
            ),
            (
                "control plane ClusterRoleBindings exist",
                "missing ClusterRoleBindings: linkerd-linkerd-identity, linkerd-linkerd-proxy-injector",
            ),
            (
                "control plane ServiceAccounts exist",
                "missing ServiceAccounts: linkerd-destination, linkerd-identity, linkerd-proxy-injector",
            ),
            (
                "control plane CustomResourceDefinitions exist",
                "missing servers.policy.linkerd.io",
            ),
            (
                "control plane MutatingWebhookConfigurations exist",
                "missing MutatingWebhookConfigurations: linkerd-proxy-injector-webhook-config",
            ),
            (
                "control plane ValidatingWebhookConfigurations exist",
                "missing ValidatingWebhookConfigurations: linkerd-sp-validator-webhook-config",
            ),
        ] {
            assert_says(&category(), description, &mut facts, error).await;
        }
    }

    #[tokio::test]
    async fn present_objects_pass() {
        let rbac = "rbac.authorization.k8s.io/v1";
        let admission = "admissionregistration.k8s.io/v1";
        let mut objects = vec![
            object("Namespace", "v1", "linkerd"),
            object(
                "MutatingWebhookConfiguration",
                admission,
                "linkerd-proxy-injector-webhook-config",
            ),
            object(
                "ValidatingWebhookConfiguration",
                admission,
                "linkerd-sp-validator-webhook-config",
            ),
        ];
        for name in ["linkerd-linkerd-identity", "linkerd-linkerd-proxy-injector"] {
            objects.push(object("ClusterRole", rbac, name));
            objects.push(object("ClusterRoleBinding", rbac, name));
        }
        objects.extend(ACCOUNTS.map(|name| object("ServiceAccount", "v1", name)));
        let mut facts = Fake::of(objects).facts();
        facts.values = Some(json!({}));
        let category = category();
        for check in &category.checks {
            assert_says(&category, &check.description, &mut facts, "").await;
        }
    }

    #[tokio::test]
    async fn docker_needs_root() {
        let info = |runtime: &str| {
            let mut info = json!({"containerRuntimeVersion": runtime});
            for key in [
                "machineID",
                "systemUUID",
                "bootID",
                "kernelVersion",
                "osImage",
                "kubeletVersion",
                "kubeProxyVersion",
                "operatingSystem",
                "architecture",
            ] {
                info[key] = json!("");
            }
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}, "status": {"nodeInfo": info}})
        };
        let error = "there are nodes using the docker container runtime and proxy-init container must run as root user.\ntry installing linkerd via --set proxyInit.runAsRoot=true";
        for (runtime, root, error) in [
            ("containerd://2", false, ""),
            ("docker://20", true, ""),
            ("docker://20", false, error),
        ] {
            let mut facts = Fake::of(vec![info(runtime)]).facts();
            facts.values = Some(json!({"proxyInit": {"runAsRoot": root}}));
            let description =
                "proxy-init container runs as root user if docker container runtime is used";
            assert_says(&category(), description, &mut facts, error).await;
        }
    }
}
