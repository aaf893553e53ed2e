//! Manifests changed in place: [`inject`] adds what makes workloads meshed, [`uninject`] takes it
//! away again, [`report`] says what was done. Text that need not change stays as it was.

pub mod annotations;
pub mod inject;
pub mod report;
pub mod uninject;

use crate::{manifest::Document, yaml};
use serde_json::{Map, Value};

/// Where the pod template of a workload stands; `None` for kinds that run no pods.
pub fn template_path(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some(""),
        "Deployment"
        | "ReplicaSet"
        | "ReplicationController"
        | "DaemonSet"
        | "StatefulSet"
        | "Job" => Some("/spec/template"),
        "CronJob" => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}

pub(crate) fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    let metadata = &object["metadata"];
    let name = metadata["name"]
        .as_str()
        .or_else(|| metadata["generateName"].as_str());
    name.unwrap_or_default()
}

/// Calls `change` for the object of the document or, for a `List`, for each item. The text follows
/// with as few edits as possible, comments and order kept, or is written anew.
pub fn each(document: &mut Document, mut change: impl FnMut(&mut Value) -> bool) {
    let before = document.value.clone();
    let changed = if kind(&document.value) == "List" {
        let items = document.value["items"].as_array_mut();
        // Every item is visited: no short cut.
        items
            .into_iter()
            .flatten()
            .fold(false, |changed, item| change(item) | changed)
    } else {
        change(&mut document.value)
    };
    if changed && before != document.value {
        let edited = yaml::edit(&document.text, &before, &document.value);
        let text = edited.unwrap_or_else(|| yaml::write(&document.value));
        document.text = text.trim_end().to_owned();
    }
}

/// The mapping at a key, made when it is not there.
pub(crate) fn mapping<'a>(parent: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    let parent = parent.as_object_mut()?;
    let entry = parent.entry(key).or_insert(Value::Null);
    if entry.is_null() {
        *entry = Value::Object(Map::new());
    }
    entry.as_object_mut()
}
