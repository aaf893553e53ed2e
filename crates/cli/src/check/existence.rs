//! `linkerd-crd` and `linkerd-existence`: is the control plane there and running?

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::{CONTROL_PLANE_SELECTOR, Facts, name, require},
    networks,
};
use crate::{
    chart::Chart,
    cluster::{CONFIG_MAP, lift_global},
    install::{CRDS, Objects, defaults},
    values::{get, text},
    yaml,
};
use k8s_openapi::{
    api::{
        apps::v1::ReplicaSet,
        core::v1::{ConfigMap, Pod, ServiceAccount},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use linkerd_k8s::labels::CONTROL_PLANE_COMPONENT;

/// Categories that look at the control plane's values, or at where they say the version server is.
const OF_VALUES: [&str; 9] = [
    "linkerd-existence",
    "linkerd-config",
    "linkerd-cni-plugin",
    "linkerd-identity",
    "linkerd-version",
    "control-plane-version",
    "linkerd-control-plane-proxy",
    "linkerd-data-plane",
    "linkerd-ha-checks",
];
const COMPONENTS: [&str; 3] = ["destination", "identity", "proxy-injector"];

pub fn crds() -> Category<Facts> {
    Category {
        id: "linkerd-crd",
        checks: vec![
            Check::new(
                "control plane CustomResourceDefinitions exist",
                "l5d-existence-crd",
                |facts| Box::pin(definitions_exist(facts)),
            )
            .fatal()
            .retry(),
        ],
    }
}

pub fn category() -> Category<Facts> {
    Category {
        id: "linkerd-existence",
        checks: vec![
            Check::new(
                "'linkerd-config' config map exists",
                "l5d-existence-linkerd-config",
                |facts| Box::pin(config_map(facts)),
            )
            .fatal()
            .informs(&OF_VALUES),
            Check::new(
                "heartbeat ServiceAccount exist",
                "l5d-existence-sa",
                |facts| Box::pin(heartbeat(facts)),
            )
            .fatal(),
            Check::new(
                "control plane replica sets are ready",
                "l5d-existence-replicasets",
                |facts| Box::pin(replica_sets(facts)),
            )
            .fatal()
            .retry(),
            Check::new(
                "no unschedulable pods",
                "l5d-existence-unschedulable-pods",
                |facts| Box::pin(unschedulable(facts)),
            )
            .warning()
            .retry()
            .surface(),
            Check::new(
                "control plane pods are ready",
                "l5d-api-control-ready",
                |facts| Box::pin(pods_ready(facts)),
            )
            .fatal()
            .retry()
            .surface(),
            Check::new(
                "cluster networks contains all node podCIDRs",
                "l5d-cluster-networks-cidr",
                |facts| Box::pin(networks::nodes(facts)),
            ),
            Check::new(
                "cluster networks contains all pods",
                "l5d-cluster-networks-pods",
                |facts| Box::pin(networks::pods(facts)),
            ),
            Check::new(
                "cluster networks contains all services",
                "l5d-cluster-networks-pods",
                |facts| Box::pin(networks::services(facts)),
            ),
        ],
    }
}

/// The definitions this version brings, each with the last of its versions.
pub fn definitions(namespace: &str) -> anyhow::Result<Vec<(String, String)>> {
    let objects = Objects::crds(&defaults(&Chart::named(CRDS)?)?, namespace)?.parsed()?;
    let definitions = objects.iter().map(|object| {
        let versions = get(object, "spec.versions").as_array();
        let newest = versions.and_then(|versions| versions.last()?["name"].as_str());
        (
            text(object, "metadata.name").to_owned(),
            newest.unwrap_or_default().to_owned(),
        )
    });
    Ok(definitions.collect())
}

pub(super) async fn definitions_exist(facts: &mut Facts) -> Verdict {
    let found: Vec<CustomResourceDefinition> = facts.all("").await?;
    let mut errors = Vec::new();
    for (expected, version) in &facts.definitions {
        match found
            .iter()
            .find(|definition| name(*definition) == expected)
        {
            None => errors.push(format!("missing {expected}")),
            Some(found) if !found.spec.versions.iter().any(|v| v.name == *version) => {
                errors.push(format!("CRD {expected} is missing version {version}"));
            }
            Some(_) => {}
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(errors.join(", ")))
}

async fn config_map(facts: &mut Facts) -> Verdict {
    let map: ConfigMap = facts
        .named_in(facts.namespace(), CONFIG_MAP)
        .await?
        .ok_or_else(|| Problem::failed(format!("configmaps \"{CONFIG_MAP}\" not found")))?;
    let values = map.data.as_ref().and_then(|data| data.get("values"));
    let values =
        values.ok_or_else(|| Problem::failed(format!("{CONFIG_MAP} has no key \"values\"")))?;
    let mut values = yaml::parse(values).map_err(|error| {
        Problem::failed(format!("failed to load values from {CONFIG_MAP}: {error}"))
    })?;
    lift_global(&mut values);
    facts.values = Some(values);
    facts.config_uid = map.metadata.uid;
    Ok(())
}

async fn heartbeat(facts: &mut Facts) -> Verdict {
    if facts.is_set("disableHeartBeat") {
        return Ok(());
    }
    let accounts: Vec<ServiceAccount> = facts
        .within(facts.namespace(), CONTROL_PLANE_SELECTOR)
        .await?;
    require("ServiceAccounts", &["linkerd-heartbeat"], &accounts)
}

async fn replica_sets(facts: &mut Facts) -> Verdict {
    let sets: Vec<ReplicaSet> = facts.within(facts.namespace(), "").await?;
    let conditions = sets.iter().flat_map(|set| {
        set.status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
    });
    let failures: Vec<String> = conditions
        .filter(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
        .map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!(
                "{reason}: {}",
                condition.message.as_deref().unwrap_or_default()
            )
        })
        .collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(failures.join("\n   ")))
}

async fn unschedulable(facts: &mut Facts) -> Verdict {
    let pods: Vec<Pod> = facts.within(facts.namespace(), "").await?;
    let mut errors = Vec::new();
    for pod in &pods {
        for condition in pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
        {
            if condition.reason.as_deref() == Some("Unschedulable") {
                let message = condition.message.as_deref().unwrap_or_default();
                errors.push(format!("{}: {message}", name(pod)));
            }
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(errors.join("\n    ")))
}

async fn pods_ready(facts: &mut Facts) -> Verdict {
    let pods: Vec<Pod> = facts
        .within(facts.namespace(), CONTROL_PLANE_COMPONENT)
        .await?;
    for component in COMPONENTS {
        let running: Vec<&Pod> = pods
            .iter()
            .filter(|pod| {
                let labels = pod.metadata.labels.as_ref();
                let label = labels.and_then(|labels| labels.get(CONTROL_PLANE_COMPONENT));
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                label.is_some_and(|label| label == component) && phase == Some("Running")
            })
            .collect();
        if running.is_empty() {
            return Err(Problem::failed(format!(
                "No running pods for \"linkerd-{component}\""
            )));
        }
        let waiting: Vec<String> = running.iter().filter_map(|pod| unready(pod)).collect();
        if waiting.len() == running.len() {
            return Err(Problem::failed(waiting[0].clone()));
        }
    }
    Ok(())
}

fn unready(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let container = status
        .container_statuses
        .iter()
        .flatten()
        .find(|container| !container.ready)?;
    Some(format!(
        "pod/{} container {} is not ready",
        name(pod),
        container.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says};
    use serde_json::{Value, json};

    fn pod(component: &str, phase: &str, ready: bool) -> Value {
        json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": format!("linkerd-{component}-x"), "namespace": "linkerd",
                "labels": {CONTROL_PLANE_COMPONENT: component}},
            "status": {"phase": phase, "containerStatuses": [
                {"name": "linkerd-proxy", "ready": ready, "image": "", "imageID": "", "restartCount": 0}]}})
    }

    #[tokio::test]
    async fn the_config_map_is_read() {
        let map = |data: Value| {
            json!({"kind": "ConfigMap", "apiVersion": "v1", "data": data,
                "metadata": {"name": "linkerd-config", "namespace": "linkerd", "uid": "u"}})
        };
        for (objects, error) in [
            (vec![], "configmaps \"linkerd-config\" not found"),
            (vec![map(json!({}))], "linkerd-config has no key \"values\""),
            (vec![map(json!({"values": "cniEnabled: true"}))], ""),
            (
                vec![map(json!({"values": "global: {cniEnabled: true}"}))],
                "",
            ),
        ] {
            let mut facts = Fake::of(objects).facts();
            assert_says(
                &category(),
                "'linkerd-config' config map exists",
                &mut facts,
                error,
            )
            .await;
            assert_eq!(facts.is_set("cniEnabled"), error.is_empty());
            assert_eq!(facts.config_uid.is_some(), error.is_empty());
        }
    }

    #[tokio::test]
    async fn the_heartbeat_may_be_off() {
        let mut facts = Fake::of(vec![]).facts();
        let error = "missing ServiceAccounts: linkerd-heartbeat";
        assert_says(
            &category(),
            "heartbeat ServiceAccount exist",
            &mut facts,
            error,
        )
        .await;
        facts.values = Some(json!({"disableHeartBeat": true}));
        assert_says(
            &category(),
            "heartbeat ServiceAccount exist",
            &mut facts,
            "",
        )
        .await;
    }

    #[tokio::test]
    async fn replica_sets_fail_with_their_reasons() {
        let set = |name: &str| {
            json!({"kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": {"name": name, "namespace": "linkerd"},
                "status": {"replicas": 0, "conditions": [
                    {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}]}})
        };
        let mut facts = Fake::of(vec![set("a"), set("b")]).facts();
        let error = "FailedCreate: quota\n   FailedCreate: quota";
        assert_says(
            &category(),
            "control plane replica sets are ready",
            &mut facts,
            error,
        )
        .await;
    }

    #[tokio::test]
    async fn unschedulable_pods_are_named() {
        let mut pending = pod("identity", "Pending", false);
        pending["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/1 nodes are available"}]);
        let mut facts = Fake::of(vec![pending]).facts();
        let error = "linkerd-identity-x: 0/1 nodes are available";
        assert_says(&category(), "no unschedulable pods", &mut facts, error).await;
    }

    #[tokio::test]
    async fn every_component_needs_a_ready_pod() {
        let fine = || {
            COMPONENTS
                .map(|component| pod(component, "Running", true))
                .to_vec()
        };
        let mut pending = fine();
        pending[1] = pod("identity", "Pending", false);
        let mut unready = fine();
        unready[0] = pod("destination", "Running", false);
        let mut one_of_two = unready.clone();
        one_of_two.push(pod("destination", "Running", true));
        for (objects, error) in [
            (fine(), ""),
            (one_of_two, ""),
            (vec![], "No running pods for \"linkerd-destination\""),
            (pending, "No running pods for \"linkerd-identity\""),
            (
                unready,
                "pod/linkerd-destination-x container linkerd-proxy is not ready",
            ),
        ] {
            let mut facts = Fake::of(objects).facts();
            assert_says(
                &category(),
                "control plane pods are ready",
                &mut facts,
                error,
            )
            .await;
        }
    }

    #[tokio::test]
    async fn definitions_have_their_newest_version() {
        let expected = definitions("linkerd").expect("the chart renders");
        let names: Vec<String> = expected
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        for name in [
            "authorizationpolicies.policy.linkerd.io v1alpha1",
            "httproutes.policy.linkerd.io v1beta3",
            "serverauthorizations.policy.linkerd.io v1beta1",
            "servers.policy.linkerd.io v1beta3",
            "serviceprofiles.linkerd.io v1alpha2",
            "externalworkloads.workload.linkerd.io v1beta1",
        ] {
            assert!(
                names.iter().any(|found| found == name),
                "{name} in {names:?}"
            );
        }
        assert_eq!(names.len(), 10);
        let old = json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
            "metadata": {"name": "servers.policy.linkerd.io"},
            "spec": {"group": "g", "scope": "Namespaced", "names": {"kind": "K", "plural": "p"},
                "versions": [{"name": "v1beta1", "served": true, "storage": true}]}});
        let mut facts = Fake::of(vec![old]).facts();
        facts.definitions = vec![
            ("servers.policy.linkerd.io".to_owned(), "v1beta3".to_owned()),
            (
                "serviceprofiles.linkerd.io".to_owned(),
                "v1alpha2".to_owned(),
            ),
        ];
        let error = "CRD servers.policy.linkerd.io is missing version v1beta3, missing serviceprofiles.linkerd.io";
        assert_says(
            &crds(),
            "control plane CustomResourceDefinitions exist",
            &mut facts,
            error,
        )
        .await;
    }
}
