//! The debug container, with the tools to look at a pod's traffic.

use crate::{
    init::{image, pull_policy},
    settings::Settings,
};
use serde_json::{Value, json};

pub fn container(settings: &Settings) -> Value {
    let v = &settings.values;
    let always = json!({"exec": {"command": ["true"]}});
    json!({
        "name": "linkerd-debug",
        "image": image(&v.debug_container.image, &v.linkerd_version),
        "imagePullPolicy": pull_policy(&v.debug_container.image, &v.image_pull_policy),
        "livenessProbe": always,
        "readinessProbe": always,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}
