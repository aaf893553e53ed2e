//! `linkerd-cni-plugin`: the CNI plugin's objects, when the control plane relies on them.

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::Facts,
};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};

const NAME: &str = "linkerd-cni";
const CONFIG: &str = "linkerd-cni-config";

pub fn category() -> Category<Facts> {
    Category {
        id: "linkerd-cni-plugin",
        checks: vec![
            Check::new(
                "cni plugin ConfigMap exists",
                "cni-plugin-cm-exists",
                |facts| Box::pin(config(facts)),
            )
            .fatal(),
            Check::new(
                "cni plugin ClusterRole exists",
                "cni-plugin-cr-exists",
                |facts| Box::pin(role(facts)),
            )
            .fatal(),
            Check::new(
                "cni plugin ClusterRoleBinding exists",
                "cni-plugin-crb-exists",
                |facts| Box::pin(binding(facts)),
            )
            .fatal(),
            Check::new(
                "cni plugin ServiceAccount exists",
                "cni-plugin-sa-exists",
                |facts| Box::pin(account(facts)),
            )
            .fatal(),
            Check::new(
                "cni plugin DaemonSet exists",
                "cni-plugin-ds-exists",
                |facts| Box::pin(async { daemon_set(facts).await.map(drop) }),
            )
            .fatal(),
            Check::new(
                "cni plugin pod is running on all nodes",
                "cni-plugin-ready",
                |facts| Box::pin(everywhere(facts)),
            )
            .fatal()
            .retry()
            .surface(),
        ],
    }
}

fn enabled(facts: &Facts) -> Verdict {
    if facts.settings.cni || facts.is_set("cniEnabled") {
        return Ok(());
    }
    Err(Problem::skip("CNI is not enabled"))
}

fn present<K>(kind: &str, object: Option<K>) -> Result<K, Problem> {
    object.ok_or_else(|| Problem::failed(format!("missing {kind}: {NAME}")))
}

async fn config(facts: &mut Facts) -> Verdict {
    enabled(facts)?;
    match facts
        .named_in::<ConfigMap>(&facts.settings.cni_namespace, CONFIG)
        .await?
    {
        Some(_) => Ok(()),
        None => Err(Problem::failed(format!(
            "configmaps \"{CONFIG}\" not found"
        ))),
    }
}

async fn role(facts: &mut Facts) -> Verdict {
    enabled(facts)?;
    present("ClusterRole", facts.named::<ClusterRole>(NAME).await?).map(drop)
}

async fn binding(facts: &mut Facts) -> Verdict {
    enabled(facts)?;
    present(
        "ClusterRoleBinding",
        facts.named::<ClusterRoleBinding>(NAME).await?,
    )
    .map(drop)
}

async fn account(facts: &mut Facts) -> Verdict {
    enabled(facts)?;
    let namespace = &facts.settings.cni_namespace;
    present(
        "ServiceAccount",
        facts.named_in::<ServiceAccount>(namespace, NAME).await?,
    )
    .map(drop)
}

async fn daemon_set(facts: &Facts) -> Result<DaemonSet, Problem> {
    enabled(facts)?;
    let namespace = &facts.settings.cni_namespace;
    present("DaemonSet", facts.named_in(namespace, NAME).await?)
}

async fn everywhere(facts: &mut Facts) -> Verdict {
    let status = daemon_set(facts).await?.status.unwrap_or_default();
    let (ready, scheduled) = (status.number_ready, status.desired_number_scheduled);
    if ready == scheduled {
        return Ok(());
    }
    Err(Problem::failed(format!(
        "number ready: {ready}, number scheduled: {scheduled}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says, verdict};
    use serde_json::{Value, json};

    fn objects(ready: i32) -> Vec<Value> {
        let object = |kind: &str, name: &str| {
            let version = match kind {
                "ClusterRole" | "ClusterRoleBinding" => "rbac.authorization.k8s.io/v1",
                "DaemonSet" => "apps/v1",
                _ => "v1",
            };
            json!({"kind": kind, "apiVersion": version, "metadata": {"name": name, "namespace": "linkerd-cni"}})
        };
        let mut binding = object("ClusterRoleBinding", NAME);
        binding["roleRef"] = json!({"apiGroup": "", "kind": "ClusterRole", "name": NAME});
        let mut set = object("DaemonSet", NAME);
        set["status"] = json!({"currentNumberScheduled": 2, "numberMisscheduled": 0,
            "desiredNumberScheduled": 2, "numberReady": ready});
        vec![
            object("ConfigMap", CONFIG),
            object("ClusterRole", NAME),
            binding,
            object("ServiceAccount", NAME),
            set,
        ]
    }

    #[tokio::test]
    async fn all_skip_without_the_plugin() {
        let category = category();
        let mut facts = Fake::of(vec![]).facts();
        for check in &category.checks {
            let skipped = verdict(&category, &check.description, &mut facts).await;
            assert_eq!(
                skipped,
                Err(Problem::skip("CNI is not enabled")),
                "{}",
                check.description
            );
        }
    }

    #[tokio::test]
    async fn all_pass_with_the_plugin() {
        let category = category();
        let mut facts = Fake::of(objects(2)).facts();
        facts.values = Some(json!({"cniEnabled": true}));
        for check in &category.checks {
            assert_says(&category, &check.description, &mut facts, "").await;
        }
    }

    #[tokio::test]
    async fn each_fails_with_its_message() {
        let mut facts = Fake::of(vec![]).facts();
        facts.settings.cni = true;
        for (description, error) in [
            (
                "cni plugin ConfigMap exists",
                "configmaps \"linkerd-cni-config\" not found",
            ),
            (
                "cni plugin ClusterRole exists",
                "missing ClusterRole: linkerd-cni",
            ),
            (
                "cni plugin ClusterRoleBinding exists",
                "missing ClusterRoleBinding: linkerd-cni",
            ),
            (
                "cni plugin ServiceAccount exists",
                "missing ServiceAccount: linkerd-cni",
            ),
            (
                "cni plugin DaemonSet exists",
                "missing DaemonSet: linkerd-cni",
            ),
        ] {
            assert_says(&category(), description, &mut facts, error).await;
        }
        let mut facts = Fake::of(objects(1)).facts();
        facts.settings.cni = true;
        let error = "number ready: 1, number scheduled: 2";
        assert_says(
            &category(),
            "cni plugin pod is running on all nodes",
            &mut facts,
            error,
        )
        .await;
    }
}
