//! How many pods were seen, injected and left alone, by workload kind and namespace.

use super::owner::Owner;
use crate::{Annotations, Template};
use linkerd_k8s::labels::INJECT;
use linkerd_runtime::metrics::Registry;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family},
};

/// Where the inject annotation was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "written as label values")]
pub(super) enum AnnotationAt {
    workload,
    namespace,
    none,
}

impl AnnotationAt {
    pub(super) fn of(namespace: &Annotations, template: &Template) -> Self {
        if template.annotation(INJECT).is_some() {
            Self::workload
        } else if namespace.contains_key(INJECT) {
            Self::namespace
        } else {
            Self::none
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    owner_kind: String,
    namespace: String,
    annotation_at: AnnotationAt,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    owner_kind: String,
    namespace: String,
    annotation_at: AnnotationAt,
    skip: String,
    skip_reason: String,
}

#[derive(Clone, Debug)]
pub(super) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    responses: Family<ResponseLabels, Counter>,
}

impl Metrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            responses: Family::default(),
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

    pub(super) fn requested(&self, owner: Option<&Owner>, namespace: &str, at: AnnotationAt) {
        let labels = RequestLabels {
            owner_kind: kind(owner),
            namespace: namespace.to_owned(),
            annotation_at: at,
        };
        self.requests.get_or_create(&labels).inc();
    }

    pub(super) fn responded(
        &self,
        owner: Option<&Owner>,
        namespace: &str,
        at: AnnotationAt,
        skipped: Option<&str>,
    ) {
        let labels = ResponseLabels {
            owner_kind: kind(owner),
            namespace: namespace.to_owned(),
            annotation_at: at,
            skip: skipped.is_some().to_string(),
            skip_reason: skipped.unwrap_or_default().to_owned(),
        };
        self.responses.get_or_create(&labels).inc();
    }
}

fn kind(owner: Option<&Owner>) -> String {
    owner.map_or_else(|| "pod".to_owned(), |owner| owner.label_kind().to_owned())
}
