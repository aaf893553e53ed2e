//! `linkerd-ha-checks`: enough replicas, when the control plane is meant to survive a node.

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::{Facts, name},
};
use k8s_openapi::api::apps::v1::Deployment;

const DEPLOYMENTS: [&str; 3] = [
    "linkerd-destination",
    "linkerd-identity",
    "linkerd-proxy-injector",
];

pub fn category() -> Category<Facts> {
    let description = "multiple replicas of control plane pods";
    Category {
        id: "linkerd-ha-checks",
        checks: vec![
            Check::new(description, "l5d-control-plane-replicas", |facts| {
                Box::pin(replicas(facts))
            })
            .warning()
            .retry(),
        ],
    }
}

async fn replicas(facts: &mut Facts) -> Verdict {
    if !facts.is_set("highAvailability") {
        return Err(Problem::skip("not run for non HA installs"));
    }
    let deployments: Vec<Deployment> = facts.within(facts.namespace(), "").await?;
    let available = |wanted: &str| {
        let found = deployments
            .iter()
            .find(|deployment| name(*deployment) == wanted);
        let status = found.and_then(|deployment| deployment.status.as_ref());
        status
            .and_then(|status| status.available_replicas)
            .unwrap_or(0)
    };
    let few: Vec<&str> = DEPLOYMENTS
        .into_iter()
        .filter(|wanted| available(wanted) <= 1)
        .collect();
    if few.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(format!(
        "not enough replicas available for [{}]",
        few.join(" ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says, verdict};
    use serde_json::json;

    #[tokio::test]
    async fn replicas_are_counted_with_ha_only() {
        let objects = |identity: i32| {
            let replicas = [3, identity, 2];
            let pairs = DEPLOYMENTS.into_iter().zip(replicas);
            pairs
                .map(|(name, replicas)| {
                    json!({"kind": "Deployment", "apiVersion": "apps/v1", "status": {"availableReplicas": replicas},
                        "metadata": {"name": name, "namespace": "linkerd"}})
                })
                .collect()
        };
        let description = "multiple replicas of control plane pods";
        let mut facts = Fake::of(objects(1)).facts();
        assert!(matches!(
            verdict(&category(), description, &mut facts).await,
            Err(Problem::Skip(_))
        ));
        facts.values = Some(json!({"highAvailability": true}));
        let error = "not enough replicas available for [linkerd-identity]";
        assert_says(&category(), description, &mut facts, error).await;
        let mut facts = Fake::of(objects(2)).facts();
        facts.values = Some(json!({"highAvailability": true}));
        assert_says(&category(), description, &mut facts, "").await;
    }
}
