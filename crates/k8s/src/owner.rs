//! Kinds of which only the metadata is watched: owners of pods, and nodes for their zone.

use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    api::{apps::v1 as apps, batch::v1 as batch, core::v1 as core},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};

use crate::object::stands_for;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplicaSet {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

stands_for!(ReplicaSet, apps::ReplicaSet, NamespaceResourceScope, metadata_only: true);
stands_for!(Job, batch::Job, NamespaceResourceScope, metadata_only: true);
stands_for!(Node, core::Node, ClusterResourceScope, metadata_only: true);
