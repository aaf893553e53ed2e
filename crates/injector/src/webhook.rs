//! The injector's webhook: finds out about a pod's namespace and owner, decides, patches, tells.
//!
//! It keeps no cache: the namespace and the owner are read when a pod is made, so an annotation
//! counts from the moment it is written and memory does not grow with the cluster.

mod args;
mod events;
mod metrics;
mod owner;

use crate::{
    Annotations, Reason, Request, Template, Values, decide, inject,
    opaque::{of_pod, of_service},
    patch::annotate_opaque_ports,
};
use k8s_openapi::api::core::v1::{Namespace, Service};
use linkerd_k8s::{
    admission::{Handler, Review, Verdict},
    kube::{Api, Client},
};
use serde_json::Value;
use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

pub use args::{Args, run};
use events::Events;
use metrics::{Metrics, Subject};
use owner::Owner;

/// The reason in metrics when a pod that should be injected cannot be.
const FAILED: &str = "injection_failed";

/// Where the configuration is mounted.
#[derive(Clone, Debug)]
pub struct Paths {
    pub values: PathBuf,
    pub trust_anchors: PathBuf,
}

pub struct Webhook {
    client: Client,
    paths: Paths,
    control_plane_ns: String,
    events: Events,
    metrics: Metrics,
    /// What the failure policy said when it could last be read.
    fails_closed: AtomicBool,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot read {}", .path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the configuration is not usable")]
    Values(#[from] crate::values::InvalidValues),
    #[error("cannot read namespace {name}")]
    Namespace {
        name: String,
        source: Box<linkerd_k8s::kube::Error>,
    },
    #[error("the Service is malformed")]
    Service(#[source] serde_json::Error),
    #[error(transparent)]
    Inject(#[from] crate::Error),
}

impl Failure {
    /// With its causes.
    fn line(&self) -> String {
        let mut message = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        message
    }
}

/// The configuration as it is now; read for every review, so that an upgrade takes effect at once.
struct Config {
    values: Values,
    trust_anchors: String,
}

impl Paths {
    fn read(&self) -> Result<Config, Failure> {
        let read = |path: &PathBuf| {
            fs::read_to_string(path).map_err(|source| Failure::File {
                path: path.clone(),
                source,
            })
        };
        Ok(Config {
            values: Values::from_yaml(&read(&self.values)?)?,
            trust_anchors: read(&self.trust_anchors)?,
        })
    }
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook")
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl Handler for Webhook {
    async fn review(&self, review: Review) -> Verdict {
        let config = match self.config() {
            Ok(config) => config,
            Err(error) => return self.failed(&review, &error),
        };
        let outcome = match review.kind.kind.as_str() {
            "Pod" => self.pod(&review, &config).await,
            "Service" => self.service(&review, &config).await,
            _ => Ok(Verdict::Allow),
        };
        outcome.unwrap_or_else(|error| self.failed(&review, &error))
    }
}

impl Webhook {
    fn new(client: Client, paths: Paths, control_plane_ns: String, metrics: Metrics) -> Self {
        Self {
            events: Events::new(client.clone()),
            client,
            paths,
            control_plane_ns,
            metrics,
            fails_closed: AtomicBool::new(false),
        }
    }

    fn config(&self) -> Result<Config, Failure> {
        let config = self.paths.read()?;
        let closed = config.values.webhook_failure_policy == "Fail";
        self.fails_closed.store(closed, Ordering::Relaxed);
        Ok(config)
    }

    /// An error of ours blocks a pod only where the failure policy asks for that.
    fn failed(&self, review: &Review, error: &Failure) -> Verdict {
        let message = error.line();
        tracing::error!(namespace = %review.namespace, name = %review.name, error = %message, "Injection failed");
        if self.fails_closed.load(Ordering::Relaxed) {
            Verdict::Deny { code: 500, message }
        } else {
            Verdict::Allow
        }
    }

    async fn namespace(&self, name: &str) -> Result<Annotations, Failure> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = api.get_metadata_opt(name).await;
        let namespace = namespace.map_err(|source| Failure::Namespace {
            name: name.to_owned(),
            source: Box::new(source),
        })?;
        Ok(namespace
            .and_then(|namespace| namespace.metadata.annotations)
            .unwrap_or_default())
    }

    async fn pod(&self, review: &Review, config: &Config) -> Result<Verdict, Failure> {
        let template = Template::read(&review.object)?;
        let namespace = self.namespace(&review.namespace).await?;
        let owner = owner::of(&self.client, &review.namespace, &review.object).await;
        let subject = Subject::new(owner.as_ref(), &review.namespace, &namespace, &template);
        self.metrics.requested(&subject);

        let reasons = decide(&config.values, &namespace, &template);
        if !reasons.is_empty() {
            self.skipped(review, owner.as_ref(), &subject, &reasons);
            return Ok(opaque(
                &review.object,
                of_pod(&config.values, &namespace, &template),
            ));
        }
        let created_by = format!(
            "linkerd/proxy-injector {}",
            linkerd_runtime::version::VERSION
        );
        let labelled = owner.as_ref().filter(|owner| owner.is_labelled());
        let injected = inject(&Request {
            values: &config.values,
            template: &template,
            prefix: "",
            namespace: &review.namespace,
            namespace_annotations: &namespace,
            owner: labelled.map(|owner| (owner.label_kind(), owner.name())),
            control_plane_ns: &self.control_plane_ns,
            trust_anchors: config.trust_anchors.trim(),
            created_by: &created_by,
        });
        let injection = match injected {
            Ok(injection) => injection,
            Err(error) => {
                // The pod may start all the same, without a proxy: its owner tells why.
                let error = Failure::from(error);
                self.metrics.responded(&subject, Some(FAILED));
                let message = format!("Linkerd sidecar proxy injection failed: {}", error.line());
                self.publish(review, owner.as_ref(), &[], events::FAILED, &message);
                return Err(error);
            }
        };
        for ignored in &injection.ignored {
            tracing::warn!(namespace = %review.namespace, annotation = %ignored, "Ignored an annotation");
        }
        tracing::info!(namespace = %review.namespace, owner = owner.as_ref().map(Owner::to_string), "Injected");
        self.metrics.responded(&subject, None);
        self.publish(
            review,
            owner.as_ref(),
            &injection.ignored,
            events::INJECTED,
            "Linkerd sidecar proxy injected",
        );
        Ok(Verdict::Patch(injection.patch))
    }

    fn skipped(
        &self,
        review: &Review,
        owner: Option<&Owner>,
        subject: &Subject,
        reasons: &[Reason],
    ) {
        let keys: Vec<&str> = reasons.iter().map(|reason| reason.key()).collect();
        let texts: Vec<&str> = reasons.iter().map(|reason| reason.text()).collect();
        tracing::debug!(namespace = %review.namespace, reasons = %keys.join(","), "Skipped");
        self.metrics.responded(subject, Some(&keys.join(",")));
        let message = format!(
            "Linkerd sidecar proxy injection skipped: {}",
            texts.join(", ")
        );
        self.publish(review, owner, &[], events::SKIPPED, &message);
    }

    fn publish(
        &self,
        review: &Review,
        owner: Option<&Owner>,
        ignored: &[String],
        reason: &'static str,
        message: &str,
    ) {
        if review.dry_run == Some(true) {
            return;
        }
        if let Some(owner) = owner {
            self.events
                .publish(owner, &review.namespace, reason, message);
            for ignored in ignored {
                self.events.publish(
                    owner,
                    &review.namespace,
                    events::IGNORED,
                    &format!("Ignored annotation {ignored}"),
                );
            }
        }
    }

    async fn service(&self, review: &Review, config: &Config) -> Result<Verdict, Failure> {
        let service: Service =
            serde_json::from_value(review.object.clone()).map_err(Failure::Service)?;
        let namespace = self.namespace(&review.namespace).await?;
        let subject = Subject::of_service(&review.namespace, &namespace, &service);
        self.metrics.requested(&subject);
        let reason = Reason::UnsupportedResource.key();
        self.metrics.responded(&subject, Some(reason));
        Ok(opaque(
            &review.object,
            of_service(&config.values, &namespace, &service),
        ))
    }
}

fn opaque(object: &Value, ports: Option<String>) -> Verdict {
    let Some(ports) = ports else {
        return Verdict::Allow;
    };
    let annotated = object
        .pointer("/metadata/annotations")
        .is_some_and(Value::is_object);
    Verdict::Patch(annotate_opaque_ports(annotated, &ports))
}

#[cfg(test)]
mod tests;
