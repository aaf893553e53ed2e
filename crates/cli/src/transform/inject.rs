//! Makes the workloads of a manifest meshed: annotations for the injector in the cluster or, with
//! `--manual`, the whole sidecar as the injector itself would write it.

use super::{
    kind, mapping, name,
    report::{Entry, Outcome},
    template_path,
};
use linkerd_injector::{Annotations, Reason, Request, Template, Values, inject};
use linkerd_k8s::labels::{
    CONTROL_PLANE_COMPONENT, INJECT, INJECT_DISABLED, INJECT_ENABLED, INJECT_INGRESS, OPAQUE_PORTS,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// What every object gets.
#[derive(Debug)]
pub struct Settings {
    /// Values with the flags laid over them.
    pub values: Values,
    pub annotations: BTreeMap<String, String>,
    pub ingress: bool,
    /// Write the sidecar instead of asking for it.
    pub manual: bool,
    pub control_plane_ns: String,
    pub created_by: String,
    pub trust_anchors: String,
}

/// Injects one object. The answer is what to report and whether the object changed.
pub fn object(settings: &Settings, object: &mut Value) -> Result<(Entry, bool), String> {
    let mut entry = Entry {
        kind: kind(object).to_lowercase(),
        name: name(object).to_owned(),
        ..Entry::default()
    };
    let component = object["metadata"]["labels"]
        .get(CONTROL_PLANE_COMPONENT)
        .is_some();
    let Some(path) = template_path(kind(object)) else {
        return match kind(object) {
            "Namespace" => {
                annotate(object, settings, true);
                entry.outcome = Outcome::Annotated;
                Ok((entry, true))
            }
            "Service" => {
                let Some(ports) = settings.annotations.get(OPAQUE_PORTS) else {
                    return Ok((entry, false));
                };
                if let Some(annotations) = annotations(object) {
                    annotations.insert(OPAQUE_PORTS.to_owned(), ports.as_str().into());
                }
                entry.outcome = Outcome::Annotated;
                Ok((entry, true))
            }
            _ => Ok((entry, false)),
        };
    };
    if component && !settings.manual {
        return Err("--manual must be set when injecting control plane components".to_owned());
    }
    let failed = |reason: &dyn std::fmt::Display| {
        format!(
            "failed to inject {}/{}: {reason}",
            kind(object).to_lowercase(),
            name(object)
        )
    };
    let Some(template) = object.pointer(path) else {
        return Err(failed(&"it has no pod template"));
    };
    let template = Template::read(template).map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        failed(&format!("{error}: {}", cause.unwrap_or_default()))
    })?;
    entry.host_network = template.host_network();
    entry.sidecar = template.has_sidecar();
    entry.udp = template.has_udp_ports();
    entry.disabled = template.annotation(INJECT) == Some(INJECT_DISABLED);
    entry.no_token =
        !settings.values.identity.service_account_token_projection && !template.automounts_token();
    if entry.disabled {
        return Ok((entry, false));
    }
    if entry.host_network || entry.sidecar || entry.no_token {
        let vetoes = [
            (entry.no_token, Reason::TokenAutomountDisabled),
            (entry.host_network, Reason::HostNetwork),
            (entry.sidecar, Reason::SidecarExists),
            (entry.udp, Reason::UdpPorts),
        ];
        let vetoes = vetoes.into_iter().filter(|(given, _)| *given);
        let vetoes: Vec<&str> = vetoes.map(|(_, reason)| reason.text()).collect();
        return Err(failed(&vetoes.join(", ")));
    }
    if settings.manual {
        let patched = sidecar(settings, object, path);
        (*object, entry.ignored) = patched.map_err(|error| failed(&error))?;
    } else if let Some(template) = object.pointer_mut(path) {
        annotate(template, settings, true);
    }
    entry.outcome = Outcome::Injected;
    Ok((entry, true))
}

fn annotations(parent: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    mapping(parent, "metadata")?;
    mapping(&mut parent["metadata"], "annotations")
}

fn annotate(parent: &mut Value, settings: &Settings, ask: bool) {
    let Some(annotations) = annotations(parent) else {
        return;
    };
    if ask {
        let value = if settings.ingress {
            INJECT_INGRESS
        } else {
            INJECT_ENABLED
        };
        annotations.insert(INJECT.to_owned(), value.into());
    }
    for (key, value) in &settings.annotations {
        annotations.insert(key.clone(), value.as_str().into());
    }
}

/// The object with the sidecar, through the same patch that the webhook answers with, and the
/// annotations that were not understood.
fn sidecar(
    settings: &Settings,
    object: &Value,
    path: &str,
) -> Result<(Value, Vec<String>), String> {
    let mut object = object.clone();
    let had_inject = object
        .pointer(path)
        .is_some_and(|template| template["metadata"]["annotations"].get(INJECT).is_some());
    if let Some(template) = object.pointer_mut(path) {
        // Ingress mode is read from the annotation, as in the webhook.
        annotate(template, settings, settings.ingress || had_inject);
    }
    let template = object.pointer(path).ok_or("it has no pod template")?;
    let template = Template::read(template).map_err(|error| error.to_string())?;
    let owner_kind = kind(&object).to_lowercase();
    let owner_name = name(&object).to_owned();
    // Without a namespace here it is `kubectl apply -n` that chooses one.
    let namespace = object["metadata"]["namespace"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let request = Request {
        values: &settings.values,
        template: &template,
        prefix: path,
        namespace: &namespace,
        namespace_annotations: &Annotations::new(),
        owner: (!path.is_empty()).then_some((owner_kind.as_str(), owner_name.as_str())),
        control_plane_ns: &settings.control_plane_ns,
        trust_anchors: &settings.trust_anchors,
        created_by: &settings.created_by,
    };
    let injection = inject(&request).map_err(|error| error.to_string())?;
    let patch: json_patch::Patch =
        serde_json::from_value(Value::Array(injection.patch)).map_err(|e| e.to_string())?;
    json_patch::patch(&mut object, &patch).map_err(|error| error.to_string())?;
    if let Some(annotations) = object.pointer_mut(path).and_then(annotations) {
        annotations.shift_remove(INJECT);
    }
    Ok((object, injection.ignored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(manual: bool) -> Settings {
        Settings {
            values: Values::default(),
            annotations: BTreeMap::new(),
            ingress: false,
            manual,
            control_plane_ns: "linkerd".to_owned(),
            created_by: "linkerd/proxy-injector x".to_owned(),
            trust_anchors: "anchors".to_owned(),
        }
    }

    /// The template of a Deployment injected here is the pod that the webhook makes of it.
    #[test]
    fn manual_is_the_webhooks_result() {
        let template = json!({
            "metadata": {"labels": {"app": "web"}, "annotations": {"config.linkerd.io/proxy-log-level": "debug"}},
            "spec": {"containers": [{"name": "web", "image": "web", "ports": [{"containerPort": 3306}]}],
                "volumes": [{"name": "data", "emptyDir": {}}]},
        });
        let mut workload = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"template": template},
        });
        let (entry, changed) = object(&settings(true), &mut workload).expect("injected");
        assert_eq!((entry.outcome, changed), (Outcome::Injected, true));
        let settings = settings(true);
        let injection = inject(&Request {
            values: &settings.values,
            template: &Template::read(&template).expect("a template"),
            prefix: "",
            namespace: "shop",
            namespace_annotations: &[(INJECT.to_owned(), INJECT_ENABLED.to_owned())].into(),
            owner: Some(("deployment", "web")),
            control_plane_ns: "linkerd",
            trust_anchors: "anchors",
            created_by: "linkerd/proxy-injector x",
        })
        .expect("a patch");
        let patch: json_patch::Patch =
            serde_json::from_value(Value::Array(injection.patch)).expect("a patch");
        let mut pod = template;
        json_patch::patch(&mut pod, &patch).expect("applies");
        // The webhook copies the namespace's wish; by hand there is nothing to wish for.
        pod["metadata"]["annotations"]
            .as_object_mut()
            .expect("annotations")
            .shift_remove(INJECT);
        assert_eq!(workload["spec"]["template"], pod);
    }

    #[test]
    fn manual_says_what_it_did_not_understand_and_guesses_no_namespace() {
        let annotations =
            json!({"config.linkerd.io/proxy-uid": "root", "config.linkerd.io/proxy-gid": "7"});
        let mut workload = json!({
            "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"template": {"metadata": {"annotations": annotations}, "spec": {"containers": []}}},
        });
        let (entry, _) = object(&settings(true), &mut workload).expect("injected");
        assert_eq!(entry.ignored.len(), 1, "{:?}", entry.ignored);
        assert!(entry.ignored[0].starts_with("config.linkerd.io/proxy-uid"));
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels.get("linkerd.io/workload-ns"), None);
        assert_eq!(labels["linkerd.io/proxy-deployment"], "web");
    }

    #[test]
    fn control_plane_components_need_manual() {
        let mut component = json!({
            "kind": "Deployment", "metadata": {"name": "x", "labels": {CONTROL_PLANE_COMPONENT: "identity"}},
            "spec": {"template": {"spec": {"containers": []}}},
        });
        let error = object(&settings(false), &mut component).expect_err("refused");
        assert_eq!(
            error,
            "--manual must be set when injecting control plane components"
        );
    }

    #[test]
    fn what_cannot_be_injected_passes_through() {
        for (name, value) in [
            ("another kind", json!({"kind": "ConfigMap", "data": {}})),
            ("no kind", json!({"a": 1})),
            (
                "a service",
                json!({"kind": "Service", "spec": {"ports": [{"port": 6379}]}}),
            ),
            ("a text", json!("text")),
        ] {
            let mut after = value.clone();
            let (entry, changed) = object(&settings(false), &mut after).expect(name);
            assert_eq!(
                (entry.outcome, changed, after),
                (Outcome::Skipped, false, value),
                "{name}"
            );
        }
    }
}
