//! ServiceProfiles: per-route settings of a Service, `linkerd.io`.

use k8s_openapi::{
    NamespaceResourceScope,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    crd,
    object::{or_default, stands_for},
};

/// A ServiceProfile. One without a spec says nothing about its Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceProfile {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    pub spec: ServiceProfileSpec,
}

stands_for!(ServiceProfile, Definition, NamespaceResourceScope, metadata_only: false);

#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "linkerd.io",
    version = "v1alpha2",
    kind = "ServiceProfile",
    root = "Definition",
    plural = "serviceprofiles",
    singular = "serviceprofile",
    shortname = "sp",
    namespaced
)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceProfileSpec {
    /// Weighted destinations that replace the Service's own endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dst_overrides: Vec<WeightedDst>,
    /// Ports whose protocol is not detected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opaque_ports: Vec<String>,
    /// How many requests may be retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget: Option<RetryBudget>,
    /// Kinds of requests, the first that matches wins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteSpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteSpec {
    /// Which requests belong to the route.
    pub condition: RequestMatch,
    /// Whether failed requests may be sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_retryable: Option<bool>,
    /// What the route is called in metrics.
    pub name: String,
    /// Which responses are failures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_classes: Vec<ResponseClass>,
    /// How long a request may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::list_of_objects")]
    pub all: Option<Vec<RequestMatch>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::list_of_objects")]
    pub any: Option<Vec<RequestMatch>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::any_object")]
    pub not: Option<Box<RequestMatch>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_regex: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResponseClass {
    /// Which responses belong to the class.
    pub condition: ResponseMatch,
    /// Whether they count as failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_failure: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResponseMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::list_of_objects")]
    pub all: Option<Vec<ResponseMatch>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::list_of_objects")]
    pub any: Option<Vec<ResponseMatch>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::any_object")]
    pub not: Option<Box<ResponseMatch>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<StatusRange>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StatusRange {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::integer")]
    pub max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::integer")]
    pub min: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryBudget {
    #[schemars(schema_with = "crd::integer")]
    pub min_retries_per_second: u32,
    #[schemars(schema_with = "crd::number")]
    pub retry_ratio: f32,
    pub ttl: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WeightedDst {
    /// Name and optional port of a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// A quantity such as `1` or `500m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::int_or_string")]
    pub weight: Option<k8s_openapi::apimachinery::pkg::util::intstr::IntOrString>,
}

/// All versions. The oldest demands routes and is otherwise the same; neither demands a spec.
pub fn definition() -> CustomResourceDefinition {
    let mut definition = Definition::crd();
    let mut newest = definition.spec.versions[0].clone();
    let schema = newest.schema.get_or_insert_default();
    let root = schema.open_api_v3_schema.get_or_insert_default();
    root.required = None;
    root.title = Some("ServiceProfile".to_owned());
    let mut oldest = newest.clone();
    oldest.name = "v1alpha1".to_owned();
    oldest.storage = false;
    crd::spec_schema(&mut oldest).required = Some(vec!["routes".to_owned()]);
    definition.spec.versions = vec![oldest, newest];
    definition
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_profile_needs_no_spec() {
        for (name, profile) in [
            ("none", json!({"metadata": {"name": "a"}})),
            ("null", json!({"metadata": {"name": "a"}, "spec": null})),
            ("empty", json!({"metadata": {"name": "a"}, "spec": {}})),
        ] {
            let profile: ServiceProfile = serde_json::from_value(profile).expect(name);
            assert_eq!(profile.spec, ServiceProfileSpec::default(), "{name}");
        }
        for version in definition().spec.versions {
            let schema = version.schema.and_then(|it| it.open_api_v3_schema);
            let required = schema.expect("a schema").required;
            assert_eq!(required, None, "{}", version.name);
        }
    }
}
