//! Events on the workloads whose pods are injected or left alone.

use super::owner::Owner;
use k8s_openapi::api::core::v1::ObjectReference;
use linkerd_k8s::kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use std::sync::Arc;
use tokio::sync::Semaphore;

pub(super) const INJECTED: &str = "Injected";
pub(super) const SKIPPED: &str = "InjectionSkipped";
pub(super) const FAILED: &str = "InjectionFailed";
pub(super) const IGNORED: &str = "AnnotationIgnored";

/// Events on their way at once; more are dropped, they are only news.
const IN_FLIGHT: usize = 32;

#[derive(Clone)]
pub(super) struct Events {
    recorder: Recorder,
    slots: Arc<Semaphore>,
}

impl Events {
    pub(super) fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: "linkerd-proxy-injector".into(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client, reporter),
            slots: Arc::new(Semaphore::new(IN_FLIGHT)),
        }
    }

    /// Publishes in the background: a pod does not wait for its event.
    pub(super) fn publish(
        &self,
        owner: &Owner,
        namespace: &str,
        reason: &'static str,
        message: &str,
    ) {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            return;
        };
        let recorder = self.recorder.clone();
        let type_ = if reason == IGNORED || reason == FAILED {
            EventType::Warning
        } else {
            EventType::Normal
        };
        let note = Some(message.to_owned());
        let event = Event {
            type_,
            reason: reason.into(),
            note,
            action: "Injection".into(),
            secondary: None,
        };
        let owner = owner.reference();
        let reference = ObjectReference {
            api_version: Some(owner.api_version.clone()),
            kind: Some(owner.kind.clone()),
            name: Some(owner.name.clone()),
            namespace: Some(namespace.to_owned()),
            uid: Some(owner.uid.clone()),
            ..ObjectReference::default()
        };
        linkerd_runtime::spawn("injector event", async move {
            let _slot = slot;
            if let Err(error) = recorder.publish(&event, &reference).await {
                tracing::debug!(%error, "Cannot publish an event");
            }
        });
    }
}
