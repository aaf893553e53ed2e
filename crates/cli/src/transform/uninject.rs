//! Takes from a manifest everything that injection, manual or not, puts into it. Settings
//! (`config.linkerd.io/…`) are the user's and stay.

use super::{kind, template_path};
use linkerd_k8s::labels::{CONTROL_PLANE_COMPONENT, INJECT, INJECT_DISABLED};
use serde_json::Value;

const CONTAINERS: [&str; 4] = [
    "linkerd-proxy",
    "linkerd-init",
    "linkerd-network-validator",
    "linkerd-debug",
];
const VOLUMES: [&str; 4] = [
    "linkerd-identity-end-entity",
    "linkerd-proxy-init-xtables-lock",
    "linkerd-identity-token",
    "linkerd-podinfo",
];

/// Whether the object changed.
pub fn object(object: &mut Value) -> bool {
    let path = template_path(kind(object));
    if path.is_none() && !matches!(kind(object), "Namespace" | "Service") {
        return false;
    }
    let component = object["metadata"]["labels"]
        .get(CONTROL_PLANE_COMPONENT)
        .is_some();
    let mut changed = false;
    if !component {
        changed |= metadata(object);
    }
    let template = path.and_then(|path| object.pointer_mut(path));
    if let Some(template) = template {
        if !component {
            changed |= metadata(template);
        }
        if let Some(spec) = template.get_mut("spec") {
            changed |= without(spec, "containers", &CONTAINERS);
            changed |= without(spec, "initContainers", &CONTAINERS);
            changed |= without(spec, "volumes", &VOLUMES);
        }
    }
    changed
}

/// Removes our labels and annotations; a mapping that held nothing else goes too.
fn metadata(parent: &mut Value) -> bool {
    let Some(metadata) = parent.get_mut("metadata").and_then(Value::as_object_mut) else {
        return false;
    };
    let mut changed = false;
    for part in ["annotations", "labels"] {
        let Some(map) = metadata.get_mut(part).and_then(Value::as_object_mut) else {
            continue;
        };
        let before = map.len();
        map.retain(|key, value| {
            !key.starts_with("linkerd.io/") || (key == INJECT && value == INJECT_DISABLED)
        });
        if map.len() < before {
            changed = true;
            if map.is_empty() {
                metadata.shift_remove(part);
            }
        }
    }
    if changed && metadata.is_empty() {
        parent
            .as_object_mut()
            .map(|parent| parent.shift_remove("metadata"));
    }
    changed
}

fn without(spec: &mut Value, list: &str, names: &[&str]) -> bool {
    let Some(items) = spec.get_mut(list).and_then(Value::as_array_mut) else {
        return false;
    };
    let before = items.len();
    items.retain(|item| {
        !item["name"]
            .as_str()
            .is_some_and(|name| names.contains(&name))
    });
    let changed = items.len() < before;
    if changed && items.is_empty() && list != "containers" {
        spec.as_object_mut().map(|spec| spec.shift_remove(list));
    }
    changed
}
