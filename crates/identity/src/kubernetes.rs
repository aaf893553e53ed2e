//! The Kubernetes API as this service uses it: token reviews, one access review, the trust bundle,
//! events.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::{
    api::{
        authentication::v1::{TokenReview, TokenReviewSpec},
        authorization::v1::{
            ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
        },
        core::v1::{ConfigMap, Event as KubeEvent, EventSource, ObjectReference},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::sync::{mpsc, watch};

use crate::{
    events::{About, Event, Severity},
    metrics::Metrics,
    token::{Review, ReviewError, TokenReviewer},
};

/// An answer later than this is useless to a proxy that waits.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
const BUNDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the trust bundle is read.
const BUNDLE_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is tried while it is not there or not ours to read.
const BUNDLE_RETRY: Duration = Duration::from_secs(60);
const BUNDLE_KEY: &str = "ca-bundle.crt";
const COMPONENT: &str = "linkerd-identity";

/// A client from a kubeconfig file, or from the pod's own credentials when `path` is empty.
pub(crate) async fn client(path: &str) -> anyhow::Result<Client> {
    let config = if path.is_empty() {
        kube::Config::infer()
            .await
            .context("No Kubernetes configuration found")?
    } else {
        let file = Kubeconfig::read_from(path).with_context(|| format!("Cannot read {path}"))?;
        kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .with_context(|| format!("Cannot use {path}"))?
    };
    Client::try_from(config).context("Cannot make a Kubernetes client")
}

/// Without the right to review tokens nothing could ever be certified: better to fail at start.
pub(crate) async fn check_access(client: &Client) -> anyhow::Result<()> {
    let review = SelfSubjectAccessReview {
        metadata: ObjectMeta::default(),
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some("create".to_owned()),
                group: Some("authentication.k8s.io".to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("tokenreviews".to_owned()),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        status: None,
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone())
        .create(&PostParams::default(), &review)
        .await
        .context("Cannot check the right to create token reviews")?;
    let status = answer.status.unwrap_or_default();
    ensure!(
        status.allowed,
        "not allowed to create tokenreviews.authentication.k8s.io: {}",
        status.reason.unwrap_or_default()
    );
    Ok(())
}

/// Reviews tokens at the API server.
#[derive(Clone)]
pub(crate) struct KubeReviewer {
    api: Api<TokenReview>,
    metrics: Metrics,
}

impl KubeReviewer {
    pub(crate) fn new(client: Client, metrics: Metrics) -> Self {
        Self {
            api: Api::all(client),
            metrics,
        }
    }
}

impl TokenReviewer for KubeReviewer {
    async fn review(&self, token: &str, audiences: &[&str]) -> Result<Review, ReviewError> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: (!audiences.is_empty())
                    .then(|| audiences.iter().map(|a| (*a).to_owned()).collect()),
            },
            status: None,
        };
        let call = self.metrics.api_call();
        let params = PostParams::default();
        let answer = tokio::time::timeout(REVIEW_TIMEOUT, self.api.create(&params, &review)).await;
        let review = match answer {
            Ok(Ok(review)) => {
                call.ended(201);
                review
            }
            Ok(Err(error)) => {
                call.ended(match &error {
                    kube::Error::Api(status) => status.code,
                    _ => 0,
                });
                return Err(ReviewError(error.to_string()));
            }
            Err(_) => {
                call.ended(0);
                return Err(ReviewError(format!("no answer within {REVIEW_TIMEOUT:?}")));
            }
        };
        let status = review.status.unwrap_or_default();
        Ok(Review {
            authenticated: status.authenticated.unwrap_or(false),
            username: status
                .user
                .and_then(|user| user.username)
                .unwrap_or_default(),
            error: status.error.unwrap_or_default(),
            audiences: status.audiences.unwrap_or_default(),
        })
    }
}

/// Reads the trust bundle's ConfigMap. One small request now and then needs no watch, and cannot
/// be stale the way a watch can.
pub(crate) struct Bundle {
    api: Api<ConfigMap>,
    name: String,
}

impl Bundle {
    pub(crate) fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
        }
    }

    /// Publishes the bundle whenever it changes; `None` when the mounted file has to do.
    pub(crate) async fn follow(&self, to: watch::Sender<Option<String>>) {
        let mut told = false;
        loop {
            let read = self.api.get_opt(&self.name);
            let missing = match tokio::time::timeout(BUNDLE_TIMEOUT, read).await {
                Ok(Ok(Some(mut map))) => {
                    let data = map.data.as_mut();
                    match data.and_then(|data| data.remove(BUNDLE_KEY)) {
                        Some(text) => {
                            publish(&to, Some(text));
                            told = false;
                            None
                        }
                        None => Some(format!("it has no key {BUNDLE_KEY}")),
                    }
                }
                Ok(Ok(None)) => Some("it does not exist".to_owned()),
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                    Some("reading it is not allowed".to_owned())
                }
                // The API server is away: what was read last stays true.
                Ok(Err(error)) => {
                    tracing::debug!(%error, "Trust bundle not read");
                    None
                }
                Err(_) => None,
            };
            let wait = match missing {
                None => BUNDLE_INTERVAL,
                Some(reason) => {
                    publish(&to, None);
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!(config_map = self.name, reason, "Using the mounted bundle");
                    }
                    BUNDLE_RETRY
                }
            };
            tokio::time::sleep(wait).await;
        }
    }
}

fn publish(to: &watch::Sender<Option<String>>, text: Option<String>) {
    to.send_if_modified(|current| {
        let changed = *current != text;
        if changed {
            *current = text;
        }
        changed
    });
}

/// Writes events one after the other; a failure is logged and forgotten.
pub(crate) struct EventWriter {
    client: Client,
}

impl EventWriter {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) async fn run(&self, events: &mut mpsc::Receiver<Event>) {
        while let Some(event) = events.recv().await {
            let (namespace, object) = object(&event);
            let api = Api::<KubeEvent>::namespaced(self.client.clone(), &namespace);
            let params = PostParams::default();
            match tokio::time::timeout(EVENT_TIMEOUT, api.create(&params, &object)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, reason = event.reason, "Event not written")
                }
                Err(_) => tracing::debug!(reason = event.reason, "Event not written in time"),
            }
        }
    }
}

fn object(event: &Event) -> (String, KubeEvent) {
    let (namespace, name, kind, version) = match &event.about {
        About::Deployment { namespace } => (namespace, COMPONENT, "Deployment", "apps/v1"),
        About::ServiceAccount { namespace, name } => {
            (namespace, name.as_str(), "ServiceAccount", "v1")
        }
    };
    let now = jiff::Timestamp::now();
    // The name client libraries give: the object and a number that does not repeat.
    let unique = format!("{name}.{:x}", now.as_nanosecond());
    let event = KubeEvent {
        metadata: ObjectMeta {
            name: Some(unique),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(version.to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
            namespace: Some(namespace.clone()),
            ..ObjectReference::default()
        },
        reason: Some(event.reason.to_owned()),
        message: Some(event.message.clone()),
        type_: Some(
            match event.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            }
            .to_owned(),
        ),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: None,
        }),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        ..KubeEvent::default()
    };
    (namespace.clone(), event)
}

#[cfg(test)]
mod tests;
