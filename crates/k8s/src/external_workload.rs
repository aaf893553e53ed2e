//! ExternalWorkloads: meshed machines outside the cluster, `workload.linkerd.io`.

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd;

/// Name of the workload port its proxy listens on.
pub const PROXY_PORT: &str = "linkerd-proxy";

#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "workload.linkerd.io",
    version = "v1beta1",
    kind = "ExternalWorkload",
    plural = "externalworkloads",
    singular = "externalworkload",
    category = "external",
    status = "ExternalWorkloadStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Identity","type":"string","jsonPath":".spec.meshTLS.identity","description":"The identity the workload proves"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    namespaced
)]
#[serde(rename_all = "camelCase")]
pub struct ExternalWorkloadSpec {
    /// How the workload proves who it is.
    #[serde(rename = "meshTLS")]
    pub mesh_tls: MeshTls,
    /// Ports the workload serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<Port>>,
    /// Addresses of the workload, at most one of each family.
    #[serde(
        rename = "workloadIPs",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("maxItems" = 2))]
    pub workload_ips: Option<Vec<WorkloadIp>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshTls {
    /// Name in the workload's certificate.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub identity: String,
    /// Name clients ask for when they connect.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub server_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[schemars(schema_with = "crd::port_number")]
    pub port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "TCP"))]
    pub protocol: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadIp {
    pub ip: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalWorkloadStatus {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub status: String,
    #[serde(rename = "type")]
    pub type_: String,
}

impl ExternalWorkload {
    pub fn is_ready(&self) -> bool {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }
}

/// All versions. The oldest spells `meshTls`, has one address and no status of its own.
pub fn definition() -> CustomResourceDefinition {
    let mut definition = ExternalWorkload::crd();
    let newest = definition.spec.versions[0].clone();
    let mut oldest = newest.clone();
    oldest.name = "v1alpha1".to_owned();
    oldest.storage = false;
    oldest.subresources = None;
    for column in oldest.additional_printer_columns.iter_mut().flatten() {
        column.json_path = column.json_path.replace("meshTLS", "meshTls");
    }
    let spec = crd::spec_schema(&mut oldest);
    if let Some(properties) = &mut spec.properties {
        if let Some(mesh_tls) = properties.remove("meshTLS") {
            properties.insert("meshTls".to_owned(), mesh_tls);
        }
        if let Some(addresses) = properties.get_mut("workloadIPs") {
            addresses.max_items = Some(1);
        }
    }
    spec.required = Some(vec!["meshTls".to_owned()]);
    definition.spec.versions = vec![oldest, newest];
    definition
}
