//! `linkerd-control-plane-proxy`, and the same questions about the proxies of the data plane.

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::{Facts, MESHED, name},
    pod_status, version,
};
use k8s_openapi::api::core::v1::Pod;

const PROXY: &str = "linkerd-proxy";
/// Pods in these states have no proxy to worry about.
const OVER: [&str; 5] = [
    "Completed",
    "NodeShutdown",
    "Shutdown",
    "Terminated",
    "Evicted",
];

pub fn control_plane() -> Category<Facts> {
    Category {
        id: "linkerd-control-plane-proxy",
        checks: vec![
            Check::new(
                "control plane proxies are healthy",
                "l5d-cp-proxy-healthy",
                |facts| {
                    Box::pin(async {
                        let pods = control_plane_pods(facts).await?;
                        healthy(&pods, Some(facts.namespace()))
                    })
                },
            )
            .fatal()
            .retry()
            .surface(),
            Check::new(
                "control plane proxies are up-to-date",
                "l5d-cp-proxy-version",
                |facts| Box::pin(async { up_to_date(facts, &control_plane_pods(facts).await?) }),
            )
            .warning(),
            Check::new(
                "control plane proxies and cli versions match",
                "l5d-cp-proxy-cli-version",
                |facts| Box::pin(async { match_cli(facts, &control_plane_pods(facts).await?) }),
            )
            .warning(),
        ],
    }
}

async fn control_plane_pods(facts: &Facts) -> Result<Vec<Pod>, Problem> {
    facts.within(facts.namespace(), MESHED).await
}

/// Pods with a proxy of this control plane, in `-n` or everywhere.
pub(super) async fn data_plane_pods(facts: &Facts) -> Result<Vec<Pod>, Problem> {
    facts
        .data_plane(&format!("{MESHED}={}", facts.namespace()))
        .await
}

/// Every proxy runs and is ready.
pub(super) fn healthy(pods: &[Pod], namespace: Option<&str>) -> Verdict {
    if !pods.iter().any(|pod| image(pod).is_some()) {
        let place = namespace.map_or_else(String::new, |namespace| {
            format!(" in the \"{namespace}\" namespace")
        });
        return Err(Problem::failed(format!(
            "no \"{PROXY}\" containers found{place}"
        )));
    }
    for pod in pods {
        let status = pod_status::status(pod);
        if OVER.contains(&status.as_str()) {
            continue;
        }
        if status != "Running" {
            return Err(Problem::failed(format!(
                "pod \"{}\" status is {status}",
                name(pod)
            )));
        }
        if !is_ready(pod) {
            return Err(Problem::failed(format!(
                "container \"{PROXY}\" in pod \"{}\" is not ready",
                name(pod)
            )));
        }
    }
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    let Some(status) = &pod.status else {
        return false;
    };
    let mut containers = status
        .container_statuses
        .iter()
        .flatten()
        .chain(status.init_container_statuses.iter().flatten());
    containers.any(|container| container.name == PROXY && container.ready)
}

fn image(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    containers
        .find(|container| container.name == PROXY)?
        .image
        .as_deref()
        .or(Some(""))
}

/// Name and proxy version of running pods; images pinned by digest have no version.
fn versions(pods: &[Pod]) -> impl Iterator<Item = (&str, &str)> {
    pods.iter().filter_map(|pod| {
        let file = image(pod)?.rsplit('/').next()?;
        let (_, tag) = file.split_once(':').filter(|_| !file.contains('@'))?;
        (pod_status::status(pod) == "Running").then(|| (name(pod), tag))
    })
}

pub(super) fn up_to_date(facts: &Facts, pods: &[Pod]) -> Verdict {
    let latest = version::known(facts)?;
    let mut old: Vec<(&str, &str)> = versions(pods)
        .filter(|(_, running)| latest.matches(running).is_err())
        .collect();
    if old.is_empty() {
        return Ok(());
    }
    old.sort_unstable();
    let lines: String = old
        .iter()
        .map(|(pod, version)| format!("\n\t* {pod} ({version})"))
        .collect();
    Err(Problem::failed(format!(
        "some proxies are not running the current version:{lines}"
    )))
}

pub(super) fn match_cli(facts: &Facts, pods: &[Pod]) -> Verdict {
    let cli = &facts.settings.cli_version;
    match versions(pods).find(|(_, version)| version != cli) {
        Some((pod, version)) => Err(Problem::failed(format!(
            "{pod} running {version} but cli running {cli}"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says, verdict};
    use serde_json::{Value, json};

    pub(crate) fn pod(namespace: &str, name: &str, version: &str) -> Value {
        json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace, "labels": {MESHED: "linkerd"}},
            "spec": {"containers": [{"name": PROXY, "image": format!("r:5000/proxy:{version}")}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": PROXY, "ready": true,
                "state": {"running": {}}, "image": "", "imageID": "", "restartCount": 0}]}})
    }

    #[tokio::test]
    async fn proxies_must_be_healthy() {
        let description = "control plane proxies are healthy";
        let mut unready = pod("linkerd", "b", "edge-1");
        unready["status"]["containerStatuses"][0]["ready"] = json!(false);
        let mut pending = pod("linkerd", "c", "edge-1");
        pending["status"] = json!({"phase": "Pending"});
        let mut evicted = pod("linkerd", "d", "edge-1");
        evicted["status"] = json!({"phase": "Failed", "reason": "Evicted"});
        for (objects, error) in [
            (
                vec![],
                "no \"linkerd-proxy\" containers found in the \"linkerd\" namespace",
            ),
            (vec![pod("linkerd", "a", "edge-1"), evicted], ""),
            (
                vec![unready],
                "container \"linkerd-proxy\" in pod \"b\" is not ready",
            ),
            (vec![pending], "pod \"c\" status is Pending"),
        ] {
            let mut facts = Fake::of(objects).facts();
            assert_says(&control_plane(), description, &mut facts, error).await;
        }
    }

    #[tokio::test]
    async fn versions_of_proxies() {
        let digest = "x@sha256:00";
        let objects = vec![
            pod("linkerd", "b", "edge-25.9.1"),
            pod("linkerd", "a", "edge-25.10.7"),
            pod("linkerd", "d", digest),
        ];
        let mut facts = Fake::of(objects).facts();
        let up_to_date = "control plane proxies are up-to-date";
        assert!(matches!(
            verdict(&control_plane(), up_to_date, &mut facts).await,
            Err(Problem::Skip(_))
        ));
        facts.latest = Some(version::Channels::of(["edge-25.12.2"]).expect("a version"));
        let error = "some proxies are not running the current version:\n\t* a (edge-25.10.7)\n\t* b (edge-25.9.1)";
        assert_says(&control_plane(), up_to_date, &mut facts, error).await;
        let error = "b running edge-25.9.1 but cli running edge-25.10.7";
        assert_says(
            &control_plane(),
            "control plane proxies and cli versions match",
            &mut facts,
            error,
        )
        .await;
    }
}
