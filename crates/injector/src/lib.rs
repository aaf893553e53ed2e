//! The sidecar a pod gets.
//!
//! A pure function from values, annotations and a pod template to a JSON patch, used by the webhook
//! (`linkerd-controller proxy-injector`) and by `linkerd inject --manual`:
//!
//! - [`decide`]: whether an object is injected, and every reason why not
//! - [`settings`]: the values with the annotations of namespace and pod laid over them
//! - [`proxy`], [`init`], [`debug`]: the containers
//! - [`opaque`]: opaque ports of pods and Services that do not say so themselves
//! - [`patch`]: all of it as JSON patch operations, in a fixed order
//!
//! [`webhook`] answers admission reviews with it.

pub mod debug;
pub mod decide;
pub mod init;
pub mod opaque;
pub mod patch;
pub mod proxy;
pub mod settings;
pub mod template;
pub mod values;
pub mod webhook;

pub use decide::{Reason, decide};
pub use patch::{Injection, Request, inject};
pub use template::Template;
pub use values::Values;

use std::collections::BTreeMap;

/// Annotations of one object.
pub type Annotations = BTreeMap<String, String>;

/// Why a pod that should be injected cannot be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the pod template is malformed")]
    Template(#[source] serde_json::Error),
    #[error(
        "Unsupported value {0:?} for proxyInit.iptablesMode\nValid values: [\"nft\", \"legacy\", \"native\"]"
    )]
    IptablesMode(String),
    #[error("proxyInit.runAsRoot must be set to use proxyInit.closeWaitTimeoutSecs")]
    CloseWaitNeedsRoot,
    #[error("proxy.tracing needs collector.endpoint and collector.meshIdentity")]
    Tracing,
}
