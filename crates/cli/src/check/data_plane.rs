//! `linkerd-data-plane`: the proxies beside the applications, and the labels and annotations that
//! steer them.

use super::{
    config::namespace_exists,
    engine::{Category, Check, Problem, Verdict},
    facts::{Facts, place},
    opaque_ports,
    proxies::{data_plane_pods, healthy, match_cli, up_to_date},
};
use k8s_openapi::api::core::v1::Service;
use kube::Resource;
use linkerd_k8s::labels::INJECT;

const EXPORTED: &str = "mirror.linkerd.io/exported";

pub fn category() -> Category<Facts> {
    Category {
        id: "linkerd-data-plane",
        checks: vec![
            Check::new(
                "data plane namespace exists",
                "l5d-data-plane-exists",
                |facts: &mut Facts| {
                    Box::pin(async {
                        match &facts.settings.data_plane_namespace {
                            Some(namespace) => namespace_exists(facts, namespace).await,
                            None => Ok(()),
                        }
                    })
                },
            )
            .fatal(),
            Check::new(
                "data plane proxies are ready",
                "l5d-data-plane-ready",
                |facts| {
                    Box::pin(async {
                        let pods = data_plane_pods(facts).await?;
                        healthy(&pods, facts.settings.data_plane_namespace.as_deref())
                    })
                },
            )
            .fatal()
            .retry(),
            Check::new(
                "data plane is up-to-date",
                "l5d-data-plane-version",
                |facts| Box::pin(async { up_to_date(facts, &data_plane_pods(facts).await?) }),
            )
            .warning(),
            Check::new(
                "data plane and cli versions match",
                "l5d-data-plane-cli-version",
                |facts| Box::pin(async { match_cli(facts, &data_plane_pods(facts).await?) }),
            )
            .warning(),
            Check::new(
                "data plane pod labels are configured correctly",
                "l5d-data-plane-pod-labels",
                |facts| {
                    Box::pin(async {
                        let pods = data_plane_pods(facts).await?;
                        misplaced(
                            "Some labels on data plane pods should be annotations:",
                            &pods,
                            misplaced_labels,
                        )
                    })
                },
            )
            .warning(),
            Check::new(
                "data plane service labels are configured correctly",
                "l5d-data-plane-services-labels",
                |facts: &mut Facts| {
                    Box::pin(async {
                        let services: Vec<Service> = facts.data_plane("").await?;
                        let heading = "Some labels on data plane services should be annotations:";
                        misplaced(heading, &services, misplaced_labels)
                    })
                },
            )
            .warning(),
            Check::new(
                "data plane service annotations are configured correctly",
                "l5d-data-plane-services-annotations",
                |facts: &mut Facts| {
                    Box::pin(async {
                        let services: Vec<Service> = facts.data_plane("").await?;
                        let heading = "Some annotations on data plane services should be labels:";
                        misplaced(heading, &services, misplaced_annotations)
                    })
                },
            )
            .warning(),
            Check::new(
                "opaque ports are properly annotated",
                "linkerd-opaque-ports-definition",
                |facts| Box::pin(opaque_ports::annotated(facts)),
            )
            .warning(),
        ],
    }
}

/// Lists the objects with keys in the wrong place.
fn misplaced<K: Resource>(heading: &str, objects: &[K], keys: fn(&K) -> Vec<&str>) -> Verdict {
    let mut error = String::new();
    for object in objects {
        let keys = keys(object);
        if keys.is_empty() {
            continue;
        }
        error.push_str(&format!("\n\t* {}", place(object)));
        for key in keys {
            error.push_str(&format!("\n\t\t{key}"));
        }
    }
    if error.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(format!("{heading}{error}")))
}

fn misplaced_labels<K: Resource>(object: &K) -> Vec<&str> {
    let keys = object.meta().labels.iter().flat_map(|labels| labels.keys());
    keys.map(String::as_str)
        .filter(|key| {
            key.starts_with("config.linkerd.io")
                || key.starts_with("config.alpha.linkerd.io")
                || *key == INJECT
        })
        .collect()
}

fn misplaced_annotations<K: Resource>(object: &K) -> Vec<&str> {
    let keys = object
        .meta()
        .annotations
        .iter()
        .flat_map(|annotations| annotations.keys());
    keys.map(String::as_str)
        .filter(|key| *key == EXPORTED)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{
        fake::{Fake, assert_says},
        proxies::tests::pod,
        version::Channels,
    };
    use serde_json::{Value, json};

    fn service(labels: Value, annotations: Value) -> Value {
        json!({"kind": "Service", "apiVersion": "v1",
            "metadata": {"name": "web", "namespace": "a", "labels": labels, "annotations": annotations}})
    }

    #[tokio::test]
    async fn a_fine_data_plane_passes() {
        let namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "a"}});
        let objects = vec![
            namespace,
            pod("a", "web", "edge-25.10.7"),
            service(json!({}), json!({})),
        ];
        let mut facts = Fake::of(objects).facts();
        facts.settings.data_plane_namespace = Some("a".to_owned());
        facts.latest = Some(Channels::of(["edge-25.10.7"]).expect("a version"));
        let category = category();
        for check in &category.checks {
            assert_says(&category, &check.description, &mut facts, "").await;
        }
    }

    #[tokio::test]
    async fn each_fails_with_its_message() {
        let mut labelled = pod("a", "web-1", "edge-25.9.1");
        labelled["metadata"]["labels"]["config.linkerd.io/proxy-log-level"] = json!("debug");
        labelled["metadata"]["labels"][INJECT] = json!("enabled");
        labelled["status"]["containerStatuses"][0]["ready"] = json!(false);
        let misplaced = service(
            json!({"config.alpha.linkerd.io/x": "y"}),
            json!({EXPORTED: "true"}),
        );
        let mut facts = Fake::of(vec![labelled, misplaced]).facts();
        facts.latest = Some(Channels::of(["edge-25.10.7"]).expect("a version"));
        for (description, error) in [
            (
                "data plane proxies are ready",
                "container \"linkerd-proxy\" in pod \"web-1\" is not ready",
            ),
            (
                "data plane is up-to-date",
                "some proxies are not running the current version:\n\t* web-1 (edge-25.9.1)",
            ),
            (
                "data plane and cli versions match",
                "web-1 running edge-25.9.1 but cli running edge-25.10.7",
            ),
            (
                "data plane pod labels are configured correctly",
                "Some labels on data plane pods should be annotations:\n\t* a/web-1\n\t\tconfig.linkerd.io/proxy-log-level\n\t\tlinkerd.io/inject",
            ),
            (
                "data plane service labels are configured correctly",
                "Some labels on data plane services should be annotations:\n\t* a/web\n\t\tconfig.alpha.linkerd.io/x",
            ),
            (
                "data plane service annotations are configured correctly",
                "Some annotations on data plane services should be labels:\n\t* a/web\n\t\tmirror.linkerd.io/exported",
            ),
        ] {
            assert_says(&category(), description, &mut facts, error).await;
        }
        facts.settings.data_plane_namespace = Some("b".to_owned());
        let error = "The \"b\" namespace does not exist";
        assert_says(
            &category(),
            "data plane namespace exists",
            &mut facts,
            error,
        )
        .await;
        let error = "no \"linkerd-proxy\" containers found in the \"b\" namespace";
        assert_says(
            &category(),
            "data plane proxies are ready",
            &mut facts,
            error,
        )
        .await;
        facts.settings.data_plane_namespace = None;
        let mut facts = Fake::of(vec![]).facts();
        let error = "no \"linkerd-proxy\" containers found";
        assert_says(
            &category(),
            "data plane proxies are ready",
            &mut facts,
            error,
        )
        .await;
    }
}
