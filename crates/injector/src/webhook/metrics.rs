//! How many pods were seen, injected and left alone, by workload kind, namespace and the annotations
//! that configure their proxies.

use super::owner::Owner;
use crate::{
    Annotations, Template,
    settings::{ANNOTATIONS, inheritable},
};
use k8s_openapi::api::core::v1::Service;
use linkerd_k8s::labels::{INJECT, PROXY_ADDITIONAL_ENV};
use linkerd_runtime::metrics::Registry;
use prometheus_client::metrics::{counter::Counter, family::Family};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

/// Sets of labels that are kept apart; pods beyond are counted without their annotations.
const MOST: usize = 2000;
/// Longer values of annotations are cut.
const LONGEST: usize = 64;

/// Names and values. A label that is empty is left out, which is the same to Prometheus.
type Labels = Vec<(String, String)>;

/// Where the inject annotation was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnotationAt {
    Workload,
    Namespace,
    None,
}

impl AnnotationAt {
    fn of(namespace: &Annotations, own: Option<&str>) -> Self {
        if own.is_some() {
            Self::Workload
        } else if namespace.contains_key(INJECT) {
            Self::Namespace
        } else {
            Self::None
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Workload => "workload",
            Self::Namespace => "namespace",
            Self::None => "none",
        }
    }
}

/// What one review is counted under.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    general: Labels,
    annotations: Labels,
}

impl Subject {
    pub(super) fn new(
        owner: Option<&Owner>,
        namespace: &str,
        annotations: &Annotations,
        template: &Template,
    ) -> Self {
        let kind = owner.map_or("pod", Owner::label_kind);
        let at = AnnotationAt::of(annotations, template.annotation(INJECT));
        let own = |key: &str| template.annotation(key);
        Self::counted(kind, namespace, at, configuration(annotations, own))
    }

    pub(super) fn of_service(
        namespace: &str,
        annotations: &Annotations,
        service: &Service,
    ) -> Self {
        let of_service = service.metadata.annotations.as_ref();
        let own = |key: &str| Some(of_service?.get(key)?.as_str());
        let at = AnnotationAt::of(annotations, own(INJECT));
        Self::counted("service", namespace, at, configuration(annotations, own))
    }

    fn counted(kind: &str, namespace: &str, at: AnnotationAt, annotations: Labels) -> Self {
        let general = [
            ("owner_kind", kind),
            ("namespace", namespace),
            ("annotation_at", at.text()),
        ];
        Self {
            general: general.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            annotations,
        }
    }
}

/// `config.linkerd.io/proxy-cpu-limit: 1` as `proxy_cpu_limit="1"`, from the object itself or, where
/// they are inherited, from the namespace. Variables may hold secrets and are not told.
fn configuration<'a>(namespace: &'a Annotations, own: impl Fn(&str) -> Option<&'a str>) -> Labels {
    let mut labels = Labels::new();
    for key in ANNOTATIONS {
        let inherited = || namespace.get(key).filter(|_| inheritable(key));
        let value = own(key).or_else(|| inherited().map(String::as_str));
        let Some(value) = value.filter(|v| !v.is_empty() && key != PROXY_ADDITIONAL_ENV) else {
            continue;
        };
        let name = key.rsplit('/').next().unwrap_or_default().replace('-', "_");
        // The newest of several names of one setting counts, and stands first.
        if !labels.iter().any(|(known, _)| *known == name) {
            labels.push((name, value.chars().take(LONGEST).collect()));
        }
    }
    labels
}

#[derive(Clone, Debug)]
pub(super) struct Metrics {
    requests: Family<Labels, Counter>,
    responses: Family<Labels, Counter>,
    seen: Arc<Mutex<HashSet<Labels>>>,
}

impl Metrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            responses: Family::default(),
            seen: Arc::default(),
        };
        let name = "proxy_inject_admission_requests";
        registry.register(
            name,
            "A counter for number of admission requests to proxy injector",
            metrics.requests.clone(),
        );
        let name = "proxy_inject_admission_responses";
        registry.register(
            name,
            "A counter for number of admission responses from proxy injector",
            metrics.responses.clone(),
        );
        metrics
    }

    pub(super) fn requested(&self, subject: &Subject) {
        let labels = self.labels(subject, vec![]);
        self.requests.get_or_create(&labels).inc();
    }

    pub(super) fn responded(&self, subject: &Subject, skipped: Option<&str>) {
        let mut answer = vec![("skip".to_owned(), skipped.is_some().to_string())];
        answer.extend(skipped.map(|reason| ("skip_reason".to_owned(), reason.to_owned())));
        let labels = self.labels(subject, answer);
        self.responses.get_or_create(&labels).inc();
    }

    /// With the annotations, while there are not too many combinations of them.
    fn labels(&self, subject: &Subject, answer: Labels) -> Labels {
        let mut general = subject.general.clone();
        general.extend(answer);
        if subject.annotations.is_empty() {
            return general;
        }
        let mut whole = general.clone();
        whole.extend(subject.annotations.iter().cloned());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(&whole) {
            return whole;
        }
        if seen.len() >= MOST {
            return general;
        }
        seen.insert(whole.clone());
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linkerd_runtime::metrics::Exposition;
    use serde_json::json;

    fn subject(annotations: serde_json::Value, namespace: &[(&str, &str)]) -> Subject {
        let template = Template::read(&json!({"metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "a"}]}}))
        .expect("a pod");
        let namespace = namespace.iter();
        let namespace = namespace.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Subject::new(None, "shop", &namespace.collect(), &template)
    }

    #[test]
    fn annotations_are_labels() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let subject = subject(
            json!({
                INJECT: "enabled",
                "config.linkerd.io/proxy-cpu-limit": "1",
                "config.linkerd.io/proxy-additional-env": "[]",
                "config.linkerd.io/proxy-enable-native-sidecar": "true",
                "config.alpha.linkerd.io/proxy-enable-native-sidecar": "false",
            }),
            &[
                ("config.linkerd.io/opaque-ports", "3306"),
                (
                    "config.linkerd.io/debug-image",
                    "of a namespace, which does not count",
                ),
            ],
        );
        metrics.requested(&subject);
        metrics.responded(&subject, Some("host_network_enabled"));
        let text = Exposition::new(registry).encode().expect("text");
        let rest =
            r#"opaque_ports="3306",proxy_cpu_limit="1",proxy_enable_native_sidecar="true"} 1"#;
        let general = r#"owner_kind="pod",namespace="shop",annotation_at="workload""#;
        for line in [
            format!("proxy_inject_admission_requests_total{{{general},{rest}"),
            format!(
                r#"proxy_inject_admission_responses_total{{{general},skip="true",skip_reason="host_network_enabled",{rest}"#
            ),
        ] {
            assert!(
                text.lines().any(|written| written == line),
                "{line}\n{text}"
            );
        }
    }

    #[test]
    fn combinations_are_bounded() {
        let metrics = Metrics::register(&mut Registry::default());
        for port in 0..MOST + 10 {
            let ports = port.to_string();
            metrics.requested(&subject(
                json!({"config.linkerd.io/opaque-ports": ports}),
                &[],
            ));
        }
        assert_eq!(metrics.seen.lock().expect("one thread").len(), MOST);
        let long = subject(
            json!({"config.linkerd.io/opaque-ports": "1".repeat(500)}),
            &[],
        );
        assert_eq!(long.annotations[0].1.len(), LONGEST);
    }
}
