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
