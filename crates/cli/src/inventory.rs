//! Objects in the cluster that carry the control plane's label, as the minimal documents that
//! `kubectl delete` needs.

use crate::cluster::Cluster;
use futures::future::join_all;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
};
use linkerd_k8s::labels::CONTROL_PLANE_NS;
use serde_json::{Value, json};

/// A kind: group, version, kind, plural.
pub type Kind = (&'static str, &'static str, &'static str, &'static str);

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const POLICY: &str = "policy.linkerd.io";

/// What `uninstall` deletes: everything else goes with the namespace.
pub const CLUSTER_SCOPED: [Kind; 9] = [
    (RBAC, "v1", "ClusterRole", "clusterroles"),
    (RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings"),
    (RBAC, "v1", "Role", "roles"),
    (RBAC, "v1", "RoleBinding", "rolebindings"),
    (
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    ),
    ("apiregistration.k8s.io", "v1", "APIService", "apiservices"),
    (
        ADMISSION,
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
    (
        ADMISSION,
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
    ("", "v1", "Namespace", "namespaces"),
];

/// What `prune` looks through.
pub const EVERY: [Kind; 27] = [
    ("", "v1", "ConfigMap", "configmaps"),
    ("batch", "v1", "CronJob", "cronjobs"),
    ("apps", "v1", "DaemonSet", "daemonsets"),
    ("apps", "v1", "Deployment", "deployments"),
    ("batch", "v1", "Job", "jobs"),
    (
        POLICY,
        "v1alpha1",
        "MeshTLSAuthentication",
        "meshtlsauthentications",
    ),
    (
        POLICY,
        "v1alpha1",
        "NetworkAuthentication",
        "networkauthentications",
    ),
    ("", "v1", "ReplicationController", "replicationcontrollers"),
    ("", "v1", "Secret", "secrets"),
    ("", "v1", "Service", "services"),
    (
        "linkerd.io",
        "v1alpha2",
        "ServiceProfile",
        "serviceprofiles",
    ),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    (RBAC, "v1", "Role", "roles"),
    (RBAC, "v1", "RoleBinding", "rolebindings"),
    ("", "v1", "ServiceAccount", "serviceaccounts"),
    (
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
    ),
    (POLICY, "v1beta3", "Server", "servers"),
    (
        POLICY,
        "v1beta1",
        "ServerAuthorization",
        "serverauthorizations",
    ),
    (
        POLICY,
        "v1alpha1",
        "AuthorizationPolicy",
        "authorizationpolicies",
    ),
    ("multicluster.linkerd.io", "v1alpha3", "Link", "links"),
    (POLICY, "v1beta3", "HTTPRoute", "httproutes"),
    (RBAC, "v1", "ClusterRole", "clusterroles"),
    (RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings"),
    ("apiregistration.k8s.io", "v1", "APIService", "apiservices"),
    (
        ADMISSION,
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
    (
        ADMISSION,
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
    (
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    ),
];

/// Objects of these kinds that belong to the control plane, in the order of the kinds, by namespace
/// and name. A kind that cannot be listed is left out.
pub async fn list(cluster: &Cluster, kinds: &[Kind], control_plane: &str) -> Vec<Value> {
    let selector = format!("{CONTROL_PLANE_NS}={control_plane}");
    let asked = kinds.iter().map(|(group, version, kind, plural)| {
        let resource = ApiResource {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
            api_version: if group.is_empty() {
                (*version).to_owned()
            } else {
                format!("{group}/{version}")
            },
            kind: (*kind).to_owned(),
            plural: (*plural).to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(cluster.client(), &resource);
        let params = ListParams::default().labels(&selector);
        async move {
            let found = match api.list_metadata(&params).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(kind = resource.kind, %error, "cannot be listed");
                    return Vec::new();
                }
            };
            let mut names: Vec<_> = found
                .iter()
                // What a controller made goes with its owner.
                .filter(|object| object.owner_references().is_empty())
                .map(|object| (object.namespace(), object.name_any()))
                .collect();
            names.sort();
            let minimal = names.into_iter().map(|(namespace, name)| {
                let mut metadata = json!({"name": name});
                if let Some(namespace) = namespace {
                    metadata["namespace"] = namespace.into();
                }
                json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata})
            });
            minimal.collect()
        }
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// Group, kind, namespace and name: what makes two documents the same object.
pub fn identity(object: &Value) -> (String, String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let group = version
        .split_once('/')
        .map_or("", |(group, _)| group)
        .to_owned();
    let metadata = &object["metadata"];
    (
        group,
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"]),
    )
}
