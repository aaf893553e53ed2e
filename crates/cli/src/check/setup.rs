//! `pre-kubernetes-setup`: may this user install the control plane into this cluster?

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::{Facts, name},
};
use crate::values::text;
use futures::future::try_join_all;
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::{ConfigMap, Namespace, Node},
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// How often kubelets say that they live, and a little more.
const SKEW: Duration = Duration::from_secs(5 * 60 + 10);

pub fn category() -> Category<Facts> {
    let may =
        |description: &str, verb: &'static str, group: &'static str, resource: &'static str| {
            Check::new(description, "pre-k8s", move |facts| {
                Box::pin(review(facts, verb, group, resource))
            })
        };
    Category {
        id: "pre-kubernetes-setup",
        checks: vec![
            Check::new(
                "control plane namespace does not already exist",
                "pre-ns",
                |facts| Box::pin(no_namespace(facts)),
            ),
            Check::new(
                "can create non-namespaced resources",
                "pre-k8s-cluster-k8s",
                |facts| Box::pin(dry_run(facts)),
            ),
            may(
                "can create ServiceAccounts",
                "create",
                "",
                "serviceaccounts",
            ),
            may("can create Services", "create", "", "services"),
            may("can create Deployments", "create", "apps", "deployments"),
            may("can create CronJobs", "create", "batch", "cronjobs"),
            may("can create ConfigMaps", "create", "", "configmaps"),
            may("can create Secrets", "create", "", "secrets"),
            may("can read Secrets", "get", "", "secrets"),
            Check::new(
                "can read extension-apiserver-authentication configmap",
                "pre-k8s",
                |facts| Box::pin(request_header_ca(facts)),
            ),
            Check::new("no clock skew detected", "pre-k8s-clock-skew", |facts| {
                Box::pin(clocks(facts))
            })
            .warning(),
        ],
    }
}

async fn no_namespace(facts: &mut Facts) -> Verdict {
    let namespace = facts.namespace();
    match facts.named::<Namespace>(namespace).await? {
        Some(_) => Err(Problem::failed(format!(
            "The \"{namespace}\" namespace already exists"
        ))),
        None => Ok(()),
    }
}

/// Asks the API server what it would say to every cluster-wide object of an install.
async fn dry_run(facts: &mut Facts) -> Verdict {
    let client = facts.client()?;
    let wide = facts
        .install
        .iter()
        .filter(|object| text(object, "metadata.namespace").is_empty());
    let refusals = wide.map(|object| {
        let client = client.clone();
        async move {
            let kind = text(object, "kind");
            let (group, version) = match text(object, "apiVersion").split_once('/') {
                Some((group, version)) => (group, version),
                None => ("", text(object, "apiVersion")),
            };
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::all_with(client, &resource);
            let parsed: DynamicObject =
                serde_json::from_value(object.clone()).map_err(anyhow::Error::from)?;
            let params = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let refusal = match api.create(&params, &parsed).await {
                Ok(_) => None,
                // The namespace has its own check, definitions are installed in a step before.
                Err(kube::Error::Api(status))
                    if status.code == 409
                        && matches!(kind, "Namespace" | "CustomResourceDefinition") =>
                {
                    None
                }
                Err(error) => Some(format!(
                    "cannot create {kind}/{}: {:#}",
                    text(object, "metadata.name"),
                    crate::cluster::plain(error)
                )),
            };
            Ok::<_, Problem>(refusal)
        }
    });
    let refusals: Vec<String> = try_join_all(refusals)
        .await?
        .into_iter()
        .flatten()
        .collect();
    if refusals.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(refusals.join("\n    ")))
}

async fn review(facts: &mut Facts, verb: &str, group: &str, resource: &str) -> Verdict {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(facts.namespace().to_owned()),
                verb: Some(verb.to_owned()),
                group: Some(group.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some(resource.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(facts.client()?);
    let answer = api.create(&PostParams::default(), &review).await?;
    let status = answer.status.unwrap_or_default();
    if status.allowed {
        return Ok(());
    }
    let dot = if group.is_empty() { "" } else { "." };
    let reason = match status.reason.as_deref() {
        None | Some("") => String::new(),
        Some(reason) => format!(": {reason}"),
    };
    Err(Problem::failed(format!(
        "not authorized to access {resource}{dot}{group}{reason}"
    )))
}

async fn request_header_ca(facts: &mut Facts) -> Verdict {
    let map_name = "extension-apiserver-authentication";
    let map: ConfigMap = facts
        .named_in("kube-system", map_name)
        .await?
        .ok_or_else(|| Problem::failed(format!("configmaps \"{map_name}\" not found")))?;
    let found = map
        .data
        .is_some_and(|data| data.contains_key("requestheader-client-ca-file"));
    if found {
        return Ok(());
    }
    Err(Problem::failed(
        "--requestheader-client-ca-file is not configured",
    ))
}

async fn clocks(facts: &mut Facts) -> Verdict {
    let nodes: Vec<Node> = facts.all("").await?;
    let skewed: Vec<&str> = nodes
        .iter()
        .filter(|node| is_skewed(node, facts.now))
        .map(name)
        .collect();
    if skewed.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(format!(
        "clock skew detected for node(s): {}",
        skewed.join(", ")
    )))
}

fn is_skewed(node: &Node, now: SystemTime) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready =
        conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready.any(|condition| {
        let Some(heartbeat) = &condition.last_heartbeat_time else {
            return false;
        };
        let heartbeat = SystemTime::from(heartbeat.0);
        let apart = now
            .duration_since(heartbeat)
            .unwrap_or_else(|future| future.duration());
        apart > SKEW
    })
}

/// What an install with default values would create, definitions included.
pub fn objects(namespace: &str) -> anyhow::Result<Vec<Value>> {
    use crate::{chart::Chart, install};
    let mut objects = install::Objects::crds(
        &install::defaults(&Chart::named(install::CRDS)?)?,
        namespace,
    )?
    .parsed()?;
    let mut values = install::defaults(&Chart::named(install::CONTROL_PLANE)?)?;
    install::ensure_issuer(&mut values, namespace)?;
    objects.extend(install::Objects::control_plane(&values, namespace)?.parsed()?);
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says};
    use serde_json::json;

    fn node(heartbeat: &str) -> Value {
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]}})
    }

    #[tokio::test]
    async fn a_fresh_cluster_passes() {
        let authentication = json!({"kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
            "data": {"requestheader-client-ca-file": "pem"}});
        let mut facts = Fake::of(vec![authentication, node("2025-12-31T23:58:00Z")]).facts();
        facts.install = objects("linkerd").expect("the charts render");
        let category = category();
        for check in &category.checks {
            assert_says(&category, &check.description, &mut facts, "").await;
        }
    }

    #[tokio::test]
    async fn each_fails_with_its_message() {
        let namespace =
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "linkerd"}});
        let empty = json!({"kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"}});
        let mut fake = Fake::of(vec![namespace, empty, node("2025-12-31T23:50:00Z")]);
        fake.denied = vec![
            "serviceaccounts",
            "services",
            "deployments",
            "cronjobs",
            "configmaps",
            "secrets",
            "ClusterRole",
        ];
        let mut facts = fake.facts();
        facts.install = ["a", "b"]
            .map(|name| {
                json!({"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}})
            })
            .to_vec();
        for (description, error) in [
            (
                "control plane namespace does not already exist",
                "The \"linkerd\" namespace already exists",
            ),
            (
                "can create non-namespaced resources",
                "cannot create ClusterRole/a: ClusterRole is forbidden\n    cannot create ClusterRole/b: ClusterRole is forbidden",
            ),
            (
                "can create ServiceAccounts",
                "not authorized to access serviceaccounts: RBAC says no",
            ),
            (
                "can create Services",
                "not authorized to access services: RBAC says no",
            ),
            (
                "can create Deployments",
                "not authorized to access deployments.apps: RBAC says no",
            ),
            (
                "can create CronJobs",
                "not authorized to access cronjobs.batch: RBAC says no",
            ),
            (
                "can create ConfigMaps",
                "not authorized to access configmaps: RBAC says no",
            ),
            (
                "can create Secrets",
                "not authorized to access secrets: RBAC says no",
            ),
            (
                "can read Secrets",
                "not authorized to access secrets: RBAC says no",
            ),
            (
                "can read extension-apiserver-authentication configmap",
                "--requestheader-client-ca-file is not configured",
            ),
            (
                "no clock skew detected",
                "clock skew detected for node(s): n1",
            ),
        ] {
            assert_says(&category(), description, &mut facts, error).await;
        }
    }

    #[tokio::test]
    async fn the_authentication_map_cannot_be_read() {
        let row = "can read extension-apiserver-authentication configmap";
        let mut facts = Fake::of(vec![]).facts();
        let missing = "configmaps \"extension-apiserver-authentication\" not found";
        assert_says(&category(), row, &mut facts, missing).await;
        let mut fake = Fake::of(vec![]);
        fake.unreadable = vec!["configmaps"];
        let forbidden = "configmaps is forbidden: User \"ann\" cannot get it";
        assert_says(&category(), row, &mut fake.facts(), forbidden).await;
    }
}
