//! A pod template as the injector reads it: metadata and spec of a Pod, or of the `template` of a
//! workload. What it does not know it leaves alone.

use crate::{Annotations, Error};
use k8s_openapi::api::core::v1::{Capabilities, Container, Pod, PodSpec, VolumeMount};
use serde_json::Value;
use std::collections::BTreeSet;

const SERVICE_ACCOUNT_MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const SIDECARS: [&str; 2] = ["linkerd-proxy", "istio-proxy"];
const SIDECAR_INITS: [&str; 2] = ["linkerd-init", "istio-init"];
/// Image names that are sidecars whatever the container is called; matched after the last registry part.
const SIDECAR_IMAGES: [&str; 4] = [
    "linkerd/proxy:",
    "linkerd/proxy-init:",
    "istio-release/proxyv2:",
    "istio-release/proxy_init:",
];

#[derive(Clone, Debug)]
pub struct Template {
    pod: Pod,
    spec: PodSpec,
    has_metadata: bool,
}

impl Template {
    pub fn read(value: &Value) -> Result<Self, Error> {
        let mut pod: Pod = serde_json::from_value(value.clone()).map_err(Error::Template)?;
        let spec = pod.spec.take().unwrap_or_default();
        let has_metadata = value
            .get("metadata")
            .is_some_and(|metadata| !metadata.is_null());
        Ok(Self {
            pod,
            spec,
            has_metadata,
        })
    }

    pub fn has_metadata(&self) -> bool {
        self.has_metadata
    }

    pub fn annotations(&self) -> Option<&Annotations> {
        self.pod.metadata.annotations.as_ref()
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations()?.get(key).map(String::as_str)
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.pod
            .metadata
            .labels
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    pub fn has_labels(&self) -> bool {
        self.pod.metadata.labels.is_some()
    }

    pub fn has_volumes(&self) -> bool {
        self.spec.volumes.is_some()
    }

    pub fn has_init_containers(&self) -> bool {
        self.spec.init_containers.is_some()
    }

    pub fn host_network(&self) -> bool {
        self.spec.host_network == Some(true)
    }

    pub fn automounts_token(&self) -> bool {
        self.spec.automount_service_account_token != Some(false)
    }

    fn inits(&self) -> &[Container] {
        self.spec.init_containers.as_deref().unwrap_or_default()
    }

    fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.containers.iter().chain(self.inits())
    }

    /// A proxy of ours or of another mesh is already there.
    pub fn has_sidecar(&self) -> bool {
        let named = |containers: &[Container], names: &[&str]| {
            containers
                .iter()
                .any(|container| names.contains(&container.name.as_str()))
        };
        let imaged = |container: &Container| {
            let image = container.image.as_deref().unwrap_or_default();
            SIDECAR_IMAGES.iter().any(|sidecar| {
                image
                    .strip_suffix(image.split_once(sidecar).map_or("", |(_, tag)| tag))
                    .is_some_and(|head| {
                        head.strip_suffix(sidecar)
                            .is_some_and(|registry| registry.is_empty() || registry.ends_with('/'))
                    })
            })
        };
        named(&self.spec.containers, &SIDECARS)
            || named(self.inits(), &SIDECAR_INITS)
            || named(self.inits(), &SIDECARS)
            || self.all_containers().any(imaged)
    }

    pub fn has_udp_ports(&self) -> bool {
        let ports = self
            .spec
            .containers
            .iter()
            .flat_map(|container| container.ports.iter().flatten());
        ports
            .into_iter()
            .any(|port| port.protocol.as_deref() == Some("UDP"))
    }

    /// The service-account token as the first application container sees it.
    pub fn token_mount(&self) -> Option<&VolumeMount> {
        let first = self.spec.containers.first()?;
        first
            .volume_mounts
            .iter()
            .flatten()
            .find(|mount| mount.mount_path == SERVICE_ACCOUNT_MOUNT)
    }

    /// Capabilities of the first application container, which the sidecar takes over.
    pub fn capabilities(&self) -> Option<&Capabilities> {
        self.spec
            .containers
            .first()?
            .security_context
            .as_ref()?
            .capabilities
            .as_ref()
    }

    /// Container ports in the order they are written.
    pub fn container_ports(&self) -> impl Iterator<Item = u16> {
        let ports = self
            .all_containers()
            .flat_map(|container| container.ports.iter().flatten());
        ports.filter_map(|port| u16::try_from(port.container_port).ok())
    }

    /// Ports with that name.
    pub fn ports_named(&self, name: &str) -> Vec<u16> {
        let ports = self
            .all_containers()
            .flat_map(|container| container.ports.iter().flatten());
        let named = ports.filter(|port| port.name.as_deref() == Some(name));
        named
            .filter_map(|port| u16::try_from(port.container_port).ok())
            .collect()
    }

    /// Container ports and ports of HTTP probes, sorted as texts, comma separated.
    pub fn inbound_ports(&self) -> String {
        let probes = self.all_containers().flat_map(|container| {
            [
                &container.liveness_probe,
                &container.readiness_probe,
                &container.startup_probe,
            ]
        });
        let probes = probes
            .flatten()
            .filter_map(|probe| match &probe.http_get.as_ref()?.port {
                k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(port) => {
                    u16::try_from(*port).ok()
                }
                k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String(_) => None,
            });
        let ports: BTreeSet<String> = self
            .container_ports()
            .chain(probes)
            .map(|port| port.to_string())
            .collect();
        ports.into_iter().collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(spec: Value) -> Template {
        Template::read(&json!({ "spec": spec })).expect("template")
    }

    #[test]
    fn sidecars_are_recognised() {
        for (name, spec, expected) in [
            (
                "plain",
                json!({"containers": [{"name": "app", "image": "app:1"}]}),
                false,
            ),
            (
                "ours by name",
                json!({"containers": [{"name": "linkerd-proxy"}]}),
                true,
            ),
            (
                "istio by name",
                json!({"containers": [{"name": "istio-proxy"}]}),
                true,
            ),
            (
                "init by name",
                json!({"containers": [], "initContainers": [{"name": "linkerd-init"}]}),
                true,
            ),
            (
                "native sidecar",
                json!({"containers": [], "initContainers": [{"name": "linkerd-proxy"}]}),
                true,
            ),
            (
                "by image, any registry",
                json!({"containers": [{"name": "x", "image": "example.org/linkerd/proxy:1"}]}),
                true,
            ),
            (
                "bare image",
                json!({"containers": [{"name": "x", "image": "linkerd/proxy:1"}]}),
                true,
            ),
            (
                "another image",
                json!({"containers": [{"name": "x", "image": "mylinkerd/proxy:1"}]}),
                false,
            ),
        ] {
            assert_eq!(template(spec).has_sidecar(), expected, "{name}");
        }
    }

    #[test]
    fn inbound_ports_are_unique_and_sorted_as_texts() {
        let template = template(json!({
            "containers": [
                {"name": "a", "ports": [{"containerPort": 8080}, {"containerPort": 9}],
                 "livenessProbe": {"httpGet": {"port": 10}}, "readinessProbe": {"httpGet": {"port": "http"}}},
                {"name": "b", "ports": [{"containerPort": 8080}]}],
            "initContainers": [{"name": "c", "ports": [{"containerPort": 7}]}],
        }));
        assert_eq!(template.inbound_ports(), "10,7,8080,9");
    }
}
