//! The injection as JSON patch operations, in a fixed order, built as data: nothing a user writes
//! in an annotation can break out of its value.

use crate::{
    Annotations, Error, Template, Values, debug, init, opaque, proxy,
    settings::{self, inheritable},
};
use linkerd_k8s::labels::{
    CONTROL_PLANE_NS, CREATED_BY, OPAQUE_PORTS, PROXY_VERSION, TRUST_ROOT_SHA256, WORKLOAD_NS,
    proxy_owner,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Everything that decides what a pod gets.
#[derive(Debug)]
pub struct Request<'a> {
    pub values: &'a Values,
    pub template: &'a Template,
    /// Where the template stands in the object: empty for a Pod.
    pub prefix: &'a str,
    /// Empty when a manifest does not name it.
    pub namespace: &'a str,
    pub namespace_annotations: &'a Annotations,
    /// Lower-case kind and name of the workload that owns the pod.
    pub owner: Option<(&'a str, &'a str)>,
    pub control_plane_ns: &'a str,
    pub trust_anchors: &'a str,
    /// `linkerd/proxy-injector VERSION` or `linkerd/cli VERSION`.
    pub created_by: &'a str,
}

#[derive(Debug)]
pub struct Injection {
    pub patch: Vec<Value>,
    /// Annotations that were not understood and therefore have no effect.
    pub ignored: Vec<String>,
}

/// Hex SHA-256 of a bundle, as pods, charts and checks compare it.
pub fn trust_root_sha256(anchors: &str) -> String {
    Sha256::digest(anchors.trim().as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

struct Patch<'a> {
    prefix: &'a str,
    ops: Vec<Value>,
}

impl Patch<'_> {
    fn add(&mut self, path: &str, value: impl Into<Value>) {
        self.ops.push(
            json!({"op": "add", "path": format!("{}{path}", self.prefix), "value": value.into()}),
        );
    }

    fn add_all(&mut self, path: &str, entries: BTreeMap<String, String>) {
        for (key, value) in entries {
            self.add(&format!("{path}/{}", escape(&key)), value);
        }
    }
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The patch that makes the template meshed.
pub fn inject(request: &Request<'_>) -> Result<Injection, Error> {
    let template = request.template;
    let settings = settings::resolve(request.values, request.namespace_annotations, template);
    let native = settings.values.proxy.native_sidecar;
    let mut patch = Patch {
        prefix: request.prefix,
        ops: Vec::new(),
    };

    if !template.has_metadata() {
        patch.add("/metadata", json!({}));
    }
    if template.annotations().is_none() {
        patch.add("/metadata/annotations", json!({}));
    }
    patch.add_all(
        "/metadata/annotations",
        annotations(request, &settings.values),
    );
    if !template.has_labels() {
        patch.add("/metadata/labels", json!({}));
    }
    patch.add_all("/metadata/labels", labels(request));

    if !template.has_volumes() {
        patch.add("/spec/volumes", json!([]));
    }
    if !template.has_init_containers() {
        patch.add("/spec/initContainers", json!([]));
    }
    if !settings.values.cni_enabled {
        let lock = &settings.values.proxy_init.xt_mount_path.name;
        patch.add("/spec/volumes/-", json!({"name": lock, "emptyDir": {}}));
    }
    let first = init::container(&settings, template)?;
    patch.add(
        if native {
            "/spec/initContainers/0"
        } else {
            "/spec/initContainers/-"
        },
        first,
    );
    if settings.debug_sidecar {
        patch.add("/spec/containers/-", debug::container(&settings));
    }
    let end_entity =
        json!({"name": "linkerd-identity-end-entity", "emptyDir": {"medium": "Memory"}});
    patch.add("/spec/volumes/-", end_entity);
    if settings.values.proxy.tracing.enabled {
        let labels = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
        patch.add(
            "/spec/volumes/-",
            json!({"name": "linkerd-podinfo", "downwardAPI": {"items": labels}}),
        );
    }
    if settings.values.identity.service_account_token_projection {
        let token = json!({
            "path": "linkerd-identity-token",
            "expirationSeconds": 86400,
            "audience": "identity.l5d.io",
        });
        let sources = json!([{"serviceAccountToken": token}]);
        patch.add(
            "/spec/volumes/-",
            json!({"name": "linkerd-identity-token", "projected": {"sources": sources}}),
        );
    }
    let place = match (native, settings.values.proxy.await_ready) {
        (true, _) => "/spec/initContainers/1",
        (false, true) => "/spec/containers/0",
        (false, false) => "/spec/containers/-",
    };
    patch.add(place, proxy::container(request, &settings)?);
    Ok(Injection {
        patch: patch.ops,
        ignored: settings.ignored,
    })
}

fn annotations(request: &Request<'_>, values: &Values) -> BTreeMap<String, String> {
    let template = request.template;
    let inherited = request.namespace_annotations.iter();
    let inherited =
        inherited.filter(|(key, _)| inheritable(key) && template.annotation(key).is_none());
    let mut out: BTreeMap<String, String> = inherited
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if let Some(ports) = opaque::of_pod(request.values, request.namespace_annotations, template) {
        out.insert(OPAQUE_PORTS.to_owned(), ports);
    }
    out.insert(CREATED_BY.to_owned(), request.created_by.to_owned());
    out.insert(PROXY_VERSION.to_owned(), values.proxy_version().to_owned());
    out.insert(
        TRUST_ROOT_SHA256.to_owned(),
        trust_root_sha256(request.trust_anchors),
    );
    out
}

fn labels(request: &Request<'_>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::from([(
        CONTROL_PLANE_NS.to_owned(),
        request.control_plane_ns.to_owned(),
    )]);
    if !request.namespace.is_empty() {
        out.insert(WORKLOAD_NS.to_owned(), request.namespace.to_owned());
    }
    if let Some((kind, name)) = request.owner {
        out.insert(proxy_owner(kind), name.to_owned());
    }
    out
}

/// The patch of an object that only gets the opaque-ports annotation.
pub fn annotate_opaque_ports(has_annotations: bool, ports: &str) -> Vec<Value> {
    let mut patch = Patch {
        prefix: "",
        ops: Vec::new(),
    };
    if !has_annotations {
        patch.add("/metadata/annotations", json!({}));
    }
    patch.add_all(
        "/metadata/annotations",
        [(OPAQUE_PORTS.to_owned(), ports.to_owned())].into(),
    );
    patch.ops
}

#[cfg(test)]
mod tests;
