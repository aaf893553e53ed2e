//! Redirection without an init container: a CNI plugin that the container runtime calls for every
//! sandbox, and the installer that chains it behind the node's own plugins.
//!
//! - [`conf`]: what the runtime hands over on stdin
//! - [`plugin`]: pure: which pods are redirected and how, and what is answered
//! - [`cluster`]: the pod and its namespace, from the API server
//! - [`chain`]: pure: our entry put into a node's configuration, and taken out again
//! - [`installer`]: the files of a node, kept as they should be until the installer is stopped

pub mod chain;
pub mod cluster;
pub mod conf;
pub mod installer;
pub mod plugin;
