//! Kubernetes as the control plane sees it.
//!
//! * [`labels`]: every label and annotation of the public contract, grouped by who reads it.
//! * [`Pod`], [`Service`], [`EndpointSlice`] and friends: built-in kinds cut down to the fields we
//!   read. [`policy`], [`service_profile`] and [`external_workload`]: our own kinds, from which
//!   [`crd`] makes the definitions in the charts.
//! * [`watch`]: one watch per kind for the process, feeding every [`Index`] that asked for it.
//! * [`lease`]: which replica may write.
//!
//! ```text
//! API server ─watch→ Decoded<T> (trimmed, never fatal) ─Arc<T>→ Index<T>, Index<T>, …
//! ```

pub mod admission;
pub mod crd;
pub mod endpoint_slice;
pub mod external_workload;
pub mod intern;
pub mod labels;
pub mod lease;
pub mod object;
pub mod owner;
pub mod pod;
pub mod policy;
pub mod ports;
pub mod selector;
pub mod service;
pub mod service_profile;
pub mod watch;

pub use self::{
    endpoint_slice::{EndpointSlice, Endpoints},
    external_workload::ExternalWorkload,
    object::Key,
    owner::{Job, Node, ReplicaSet},
    pod::Pod,
    ports::PortSet,
    selector::Selector,
    service::Service,
    service_profile::ServiceProfile,
    watch::{Index, Watched, Watches},
};
pub use gateway_api;
pub use k8s_openapi::{
    api::core::v1::Secret,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
pub use kube;
