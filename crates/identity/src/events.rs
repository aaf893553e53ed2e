//! What Kubernetes users are told: events, put on a bounded queue and written by somebody else.
//! When the queue is full an event is dropped; issuing never waits for it.

use tokio::sync::mpsc;

/// Events waiting to be written. One is a few hundred bytes.
const QUEUE: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// The identity deployment itself, in this namespace.
    Deployment {
        namespace: String,
    },
    ServiceAccount {
        namespace: String,
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub about: About,
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
}

/// The sending side; cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    namespace: String,
    queue: mpsc::Sender<Event>,
}

pub fn channel(controller_namespace: &str) -> (Recorder, mpsc::Receiver<Event>) {
    let (queue, events) = mpsc::channel(QUEUE);
    (
        Recorder {
            namespace: controller_namespace.to_owned(),
            queue,
        },
        events,
    )
}

impl Recorder {
    pub(crate) fn issuer_updated(&self) {
        self.deployment(
            Severity::Normal,
            "IssuerUpdated",
            "Updated identity issuer".to_owned(),
        );
    }

    pub(crate) fn issuer_skipped(&self, error: &str) {
        self.deployment(
            Severity::Warning,
            "IssuerUpdateSkipped",
            format!("Skipping issuer update as certs could not be read from disk: {error}"),
        );
    }

    pub(crate) fn anchors_updated(&self) {
        let message = "Updated identity trust anchors".to_owned();
        self.deployment(Severity::Normal, "TrustAnchorsUpdated", message);
    }

    pub(crate) fn anchors_skipped(&self, error: &str) {
        let message = format!("Skipping trust anchor update: {error}");
        self.deployment(Severity::Warning, "TrustAnchorsUpdateSkipped", message);
    }

    pub(crate) fn validation_failed(&self, error: &str, identity: &str) {
        let message = format!("{error} - CSR Identity : {identity}");
        self.deployment(Severity::Warning, "IssuerValidationFailed", message);
    }

    pub(crate) fn issued(&self, namespace: &str, name: &str, message: String) {
        self.send(Event {
            about: About::ServiceAccount {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            severity: Severity::Normal,
            reason: "IssuedLeafCertificate",
            message,
        });
    }

    fn deployment(&self, severity: Severity, reason: &'static str, message: String) {
        let about = About::Deployment {
            namespace: self.namespace.clone(),
        };
        self.send(Event {
            about,
            severity,
            reason,
            message,
        });
    }

    fn send(&self, event: Event) {
        if let Err(error) = self.queue.try_send(event) {
            tracing::debug!(%error, "Event dropped");
        }
    }
}
