//! Flags of `inject` as annotations: each value that a flag changes has its annotation.

use crate::values::get;
use linkerd_k8s::labels::{
    ADMIN_PORT, CONTROL_PORT, DEBUG_IMAGE, DEFAULT_INBOUND_POLICY, ENABLE_EXTERNAL_PROFILES,
    IMAGE_PULL_POLICY, INBOUND_PORT, INIT_IMAGE, INIT_IMAGE_VERSION, OUTBOUND_PORT,
    PROXY_CPU_LIMIT, PROXY_CPU_REQUEST, PROXY_GID, PROXY_IMAGE, PROXY_IMAGE_VERSION,
    PROXY_LOG_LEVEL, PROXY_MEMORY_LIMIT, PROXY_MEMORY_REQUEST, PROXY_UID, SKIP_INBOUND_PORTS,
    SKIP_OUTBOUND_PORTS,
};
use serde_json::Value;
use std::collections::BTreeMap;

const OF_VALUES: [(&str, &str); 21] = [
    ("proxy.image.name", PROXY_IMAGE),
    ("proxy.image.version", PROXY_IMAGE_VERSION),
    ("proxy.image.pullPolicy", IMAGE_PULL_POLICY),
    ("proxyInit.image.name", INIT_IMAGE),
    ("proxyInit.image.version", INIT_IMAGE_VERSION),
    ("debugContainer.image.name", DEBUG_IMAGE),
    ("proxy.ports.control", CONTROL_PORT),
    ("proxy.ports.inbound", INBOUND_PORT),
    ("proxy.ports.outbound", OUTBOUND_PORT),
    ("proxy.ports.admin", ADMIN_PORT),
    ("proxyInit.ignoreInboundPorts", SKIP_INBOUND_PORTS),
    ("proxyInit.ignoreOutboundPorts", SKIP_OUTBOUND_PORTS),
    ("proxy.resources.cpu.request", PROXY_CPU_REQUEST),
    ("proxy.resources.cpu.limit", PROXY_CPU_LIMIT),
    ("proxy.resources.memory.request", PROXY_MEMORY_REQUEST),
    ("proxy.resources.memory.limit", PROXY_MEMORY_LIMIT),
    ("proxy.uid", PROXY_UID),
    ("proxy.gid", PROXY_GID),
    ("proxy.logLevel", PROXY_LOG_LEVEL),
    ("proxy.enableExternalProfiles", ENABLE_EXTERNAL_PROFILES),
    ("proxy.defaultInboundPolicy", DEFAULT_INBOUND_POLICY),
];

/// Annotations for what differs between the values with and without the flags.
pub fn of_flags(base: &Value, flagged: &Value) -> BTreeMap<String, String> {
    OF_VALUES
        .into_iter()
        .filter(|(path, _)| get(base, path) != get(flagged, path))
        .filter_map(|(path, annotation)| {
            let text = match get(flagged, path) {
                Value::String(text) => text.clone(),
                Value::Null => return None,
                other => other.to_string(),
            };
            Some((annotation.to_owned(), text))
        })
        .collect()
}
