//! Redirects a pod's traffic to its proxy, and proves that it did.
//!
//! The road of one run: [`args`] (flags to a validated [`args::Config`]) → [`rules`] (pure: an ordered
//! rule list per address family) → [`apply`] (observe, change, read back) over one of two backends,
//! [`iptables`] (the named programs) or [`native`] (nf_tables over netlink). [`validate`] is the
//! second program of this crate: the network validator.

pub mod apply;
pub mod args;
pub mod echo;
pub mod flags;
pub mod iptables;
pub mod kernel;
pub mod log;
pub mod native;
pub mod observed;
pub mod ports;
pub mod privilege;
pub mod rules;
pub mod saved;
pub mod signal;
pub mod subnet;
pub mod validate;
