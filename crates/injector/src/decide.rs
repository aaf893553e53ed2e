//! Whether a pod is injected. All reasons against it are collected, so that an event or the CLI can
//! name them at once.

use crate::{Annotations, Template, Values};
use linkerd_k8s::labels::{INJECT, INJECT_DISABLED, INJECT_ENABLED, INJECT_INGRESS};

/// Why a pod is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    HostNetwork,
    SidecarExists,
    UnsupportedResource,
    EnableAnnotationAbsent,
    DisableAnnotationPresent,
    InvalidAtNamespace,
    InvalidAtWorkload,
    TokenAutomountDisabled,
    UdpPorts,
}

impl Reason {
    /// The key used in metrics.
    pub fn key(self) -> &'static str {
        match self {
            Self::HostNetwork => "host_network_enabled",
            Self::SidecarExists => "sidecar_already_exists",
            Self::UnsupportedResource => "unsupported_resource",
            Self::EnableAnnotationAbsent => "injection_enable_annotation_absent",
            Self::DisableAnnotationPresent => "injection_disable_annotation_present",
            Self::InvalidAtNamespace => "invalid_inject_annotation_at_ns",
            Self::InvalidAtWorkload => "invalid_inject_annotation_at_workload",
            Self::TokenAutomountDisabled => "disabled_automount_service_account_token_account",
            Self::UdpPorts => "udp_ports_enabled",
        }
    }

    /// The text people read.
    pub fn text(self) -> &'static str {
        match self {
            Self::HostNetwork => "hostNetwork is enabled",
            Self::SidecarExists => "pod has a sidecar injected already",
            Self::UnsupportedResource => "this resource kind is unsupported",
            Self::EnableAnnotationAbsent => {
                "neither the namespace nor the pod have the annotation \"linkerd.io/inject:enabled\""
            }
            Self::DisableAnnotationPresent => {
                "pod has the annotation \"linkerd.io/inject:disabled\""
            }
            Self::InvalidAtNamespace => {
                "invalid value for annotation \"linkerd.io/inject\" at namespace"
            }
            Self::InvalidAtWorkload => {
                "invalid value for annotation \"linkerd.io/inject\" at workload"
            }
            Self::TokenAutomountDisabled => {
                "automountServiceAccountToken set to \"false\", with Values.identity.serviceAccountTokenProjection set to \"false\""
            }
            Self::UdpPorts => "UDP port(s) configured on pod spec",
        }
    }
}

/// Reasons against injecting the pod; none means inject.
pub fn decide(values: &Values, namespace: &Annotations, pod: &Template) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if pod.host_network() {
        reasons.push(Reason::HostNetwork);
    }
    if pod.has_sidecar() {
        reasons.push(Reason::SidecarExists);
    }
    if !values.identity.service_account_token_projection
        && (!pod.automounts_token() || pod.token_mount().is_none())
    {
        reasons.push(Reason::TokenAutomountDisabled);
    }
    reasons.extend(annotations(
        namespace.get(INJECT).map(String::as_str),
        pod.annotation(INJECT),
    ));
    reasons
}

fn annotations(namespace: Option<&str>, pod: Option<&str>) -> Option<Reason> {
    let on = |value: &str| matches!(value, INJECT_ENABLED | INJECT_INGRESS);
    let known = |value: &str| on(value) || value == INJECT_DISABLED;
    // An empty value says nothing, as if the annotation were not there.
    let (namespace, pod) = (
        namespace.filter(|value| !value.is_empty()),
        pod.filter(|value| !value.is_empty()),
    );
    if namespace.is_some_and(|value| !known(value)) {
        return Some(Reason::InvalidAtNamespace);
    }
    if pod.is_some_and(|value| !known(value)) {
        return Some(Reason::InvalidAtWorkload);
    }
    match (namespace.is_some_and(on), pod.map(on)) {
        (_, Some(true)) | (true, None) => None,
        (true, Some(false)) => Some(Reason::DisableAnnotationPresent),
        (false, Some(false) | None) => Some(Reason::EnableAnnotationAbsent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_pair_of_annotations() {
        use Reason::*;
        for (namespace, pod, expected) in [
            (Some("enabled"), None, None),
            (Some("enabled"), Some("enabled"), None),
            (Some("enabled"), Some("ingress"), None),
            (Some("ingress"), None, None),
            (
                Some("enabled"),
                Some("disabled"),
                Some(DisableAnnotationPresent),
            ),
            (
                Some("ingress"),
                Some("disabled"),
                Some(DisableAnnotationPresent),
            ),
            (None, Some("enabled"), None),
            (None, Some("ingress"), None),
            (Some("disabled"), Some("enabled"), None),
            (None, None, Some(EnableAnnotationAbsent)),
            (None, Some("disabled"), Some(EnableAnnotationAbsent)),
            (Some("disabled"), None, Some(EnableAnnotationAbsent)),
            (
                Some("disabled"),
                Some("disabled"),
                Some(EnableAnnotationAbsent),
            ),
            (Some("yes"), Some("enabled"), Some(InvalidAtNamespace)),
            (Some("enabled"), Some("true"), Some(InvalidAtWorkload)),
            (None, Some(""), Some(EnableAnnotationAbsent)),
            (Some("enabled"), Some(""), None),
            (Some(""), Some("enabled"), None),
            (Some(""), Some(""), Some(EnableAnnotationAbsent)),
        ] {
            assert_eq!(
                annotations(namespace, pod),
                expected,
                "{namespace:?} {pod:?}"
            );
        }
    }

    #[test]
    fn vetoes_are_collected() {
        let values =
            Values::from_yaml("identity: {serviceAccountTokenProjection: false}").expect("values");
        let pod = Template::read(&json!({
            "metadata": {"annotations": {"linkerd.io/inject": "disabled"}},
            "spec": {"hostNetwork": true, "automountServiceAccountToken": false, "containers": [{"name": "linkerd-proxy"}]},
        }))
        .expect("pod");
        use Reason::*;
        let expected = [
            HostNetwork,
            SidecarExists,
            TokenAutomountDisabled,
            EnableAnnotationAbsent,
        ];
        assert_eq!(decide(&values, &Annotations::new(), &pod), expected);
    }

    #[test]
    fn each_veto() {
        use Reason::*;
        let token =
            json!({"name": "t", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
        let with_token = json!([{"name": "a", "volumeMounts": [token]}]);
        let second_only = json!([{"name": "a"}, {"name": "b", "volumeMounts": [token]}]);
        let named = |name: &str| json!([{"name": name}]);
        let of_image = |image: &str| json!([{"name": "x", "image": image}]);
        for (name, projection, spec, expected) in [
            ("plain", true, json!({}), None),
            (
                "host network",
                true,
                json!({"hostNetwork": true}),
                Some(HostNetwork),
            ),
            ("no host network", true, json!({"hostNetwork": false}), None),
            (
                "our proxy",
                true,
                json!({"containers": named("linkerd-proxy")}),
                Some(SidecarExists),
            ),
            (
                "istio's proxy",
                true,
                json!({"containers": named("istio-proxy")}),
                Some(SidecarExists),
            ),
            (
                "our init",
                true,
                json!({"initContainers": named("linkerd-init")}),
                Some(SidecarExists),
            ),
            (
                "istio's init",
                true,
                json!({"initContainers": named("istio-init")}),
                Some(SidecarExists),
            ),
            (
                "our image",
                true,
                json!({"containers": of_image("cr.l5d.io/linkerd/proxy:edge-1")}),
                Some(SidecarExists),
            ),
            (
                "our init's image",
                true,
                json!({"initContainers": of_image("cr.l5d.io/linkerd/proxy-init:v2")}),
                Some(SidecarExists),
            ),
            (
                "istio's image",
                true,
                json!({"containers": of_image("gcr.io/istio-release/proxyv2:1")}),
                Some(SidecarExists),
            ),
            (
                "istio's init's image",
                true,
                json!({"initContainers": of_image("gcr.io/istio-release/proxy_init:1")}),
                Some(SidecarExists),
            ),
            (
                "no automount, projected",
                true,
                json!({"automountServiceAccountToken": false}),
                None,
            ),
            (
                "no automount",
                false,
                json!({"automountServiceAccountToken": false, "containers": with_token}),
                Some(TokenAutomountDisabled),
            ),
            ("no mount", false, json!({}), Some(TokenAutomountDisabled)),
            (
                "not in the first container",
                false,
                json!({"containers": second_only}),
                Some(TokenAutomountDisabled),
            ),
            ("mounted", false, json!({"containers": with_token}), None),
            (
                "UDP",
                true,
                json!({"containers": [{"name": "a", "ports": [{"containerPort": 53, "protocol": "UDP"}]}]}),
                None,
            ),
        ] {
            let values = format!("identity: {{serviceAccountTokenProjection: {projection}}}");
            let values = Values::from_yaml(&values).expect("values");
            let mut spec = spec;
            if spec.get("containers").is_none() {
                spec["containers"] = named("web");
            }
            let annotations = json!({INJECT: INJECT_ENABLED});
            let pod = json!({"metadata": {"annotations": annotations}, "spec": spec});
            let pod = Template::read(&pod).expect("a pod");
            let found = decide(&values, &Annotations::new(), &pod);
            assert_eq!(found, Vec::from_iter(expected), "{name}");
        }
    }
}
