//! The workload a pod belongs to, found through its owner references.

use k8s_openapi::{
    api::{apps::v1::ReplicaSet, batch::v1::Job},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use linkerd_k8s::kube::{Api, Client};
use serde_json::Value;
use std::fmt;

/// Kinds whose name becomes a label of the pod.
const LABELLED: [&str; 6] = [
    "deployment",
    "replicationcontroller",
    "replicaset",
    "job",
    "daemonset",
    "statefulset",
];
/// Owners of a ReplicaSet that are followed; others (rollout controllers) are not ours to name.
const ABOVE_REPLICA_SETS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "Job"];

#[derive(Clone, Debug)]
pub(super) struct Owner {
    reference: OwnerReference,
    label_kind: String,
}

impl Owner {
    fn new(reference: OwnerReference) -> Self {
        let label_kind = reference.kind.to_lowercase();
        Self {
            reference,
            label_kind,
        }
    }

    pub(super) fn reference(&self) -> &OwnerReference {
        &self.reference
    }

    pub(super) fn name(&self) -> &str {
        &self.reference.name
    }

    pub(super) fn label_kind(&self) -> &str {
        &self.label_kind
    }

    pub(super) fn is_labelled(&self) -> bool {
        LABELLED.contains(&self.label_kind.as_str())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.label_kind, self.reference.name)
    }
}

/// The owner of a pod; nothing for a bare pod or one with several owners.
pub(super) async fn of(client: &Client, namespace: &str, pod: &Value) -> Option<Owner> {
    let references = pod
        .pointer("/metadata/ownerReferences")
        .cloned()
        .unwrap_or_default();
    let references: Vec<OwnerReference> = serde_json::from_value(references).ok()?;
    let direct = single(references)?;
    let above = match direct.kind.as_str() {
        "ReplicaSet" => {
            let api: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
            let above = api
                .get_metadata_opt(&direct.name)
                .await
                .map(|found| found.and_then(|found| owner(found.metadata)));
            above.map(|above| {
                above.filter(|above| ABOVE_REPLICA_SETS.contains(&above.kind.as_str()))
            })
        }
        "Job" => {
            let api: Api<Job> = Api::namespaced(client.clone(), namespace);
            api.get_metadata_opt(&direct.name)
                .await
                .map(|found| found.and_then(|found| owner(found.metadata)))
        }
        _ => Ok(None),
    };
    let above = above.unwrap_or_else(|error| {
        tracing::warn!(%error, kind = %direct.kind, name = %direct.name, "Cannot read a pod's owner");
        None
    });
    Some(Owner::new(above.unwrap_or(direct)))
}

fn owner(metadata: ObjectMeta) -> Option<OwnerReference> {
    single(metadata.owner_references.unwrap_or_default())
}

fn single(references: Vec<OwnerReference>) -> Option<OwnerReference> {
    let [reference] = <[OwnerReference; 1]>::try_from(references).ok()?;
    Some(reference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::tests::client;
    use linkerd_testkit::api_server::ApiServer;
    use serde_json::json;

    fn reference(kind: &str, name: &str) -> Value {
        json!({"apiVersion": "x/v1", "kind": kind, "name": name, "uid": name})
    }

    #[tokio::test]
    async fn the_workload_above_a_pod() {
        let mut server = ApiServer::start().await;
        for (collection, name, above) in [
            ("replicasets.apps", "of-deployment", Some("Deployment")),
            ("replicasets.apps", "of-rollout", Some("Rollout")),
            ("replicasets.apps", "of-nobody", None),
            ("jobs.batch", "of-cronjob", Some("CronJob")),
            ("jobs.batch", "of-nobody", None),
        ] {
            let above: Vec<Value> = above
                .map(|kind| reference(kind, "top"))
                .into_iter()
                .collect();
            server.apply(
                collection,
                json!({"metadata": {"name": name, "namespace": "shop", "ownerReferences": above}}),
            );
        }
        let client = client(&server).await;
        let owner = async |references: &[Value]| {
            let pod = json!({"metadata": {"ownerReferences": references}});
            let owner = of(&client, "shop", &pod).await?;
            Some((owner.to_string(), owner.is_labelled()))
        };
        for (kind, name, expected, labelled) in [
            ("ReplicaSet", "of-deployment", "deployment/top", true),
            ("ReplicaSet", "of-rollout", "replicaset/of-rollout", true),
            ("ReplicaSet", "of-nobody", "replicaset/of-nobody", true),
            ("ReplicaSet", "missing", "replicaset/missing", true),
            ("Job", "of-cronjob", "cronjob/top", false),
            ("Job", "of-nobody", "job/of-nobody", true),
            ("StatefulSet", "db", "statefulset/db", true),
            ("DaemonSet", "agent", "daemonset/agent", true),
            (
                "ReplicationController",
                "rc",
                "replicationcontroller/rc",
                true,
            ),
            ("Workflow", "w", "workflow/w", false),
        ] {
            assert_eq!(
                owner(&[reference(kind, name)]).await,
                Some((expected.to_owned(), labelled)),
                "{kind} {name}"
            );
        }
        assert_eq!(owner(&[]).await, None, "a bare pod");
        let two = [reference("Job", "a"), reference("Job", "b")];
        assert_eq!(owner(&two).await, None, "two owners");
        server.go_away().await;
        let unread = owner(&[reference("ReplicaSet", "of-deployment")]).await;
        let direct = ("replicaset/of-deployment".to_owned(), true);
        assert_eq!(unread, Some(direct), "nobody to ask");
    }
}
