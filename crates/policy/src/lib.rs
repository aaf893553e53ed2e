//! Tells proxies who may connect to their workload and where its traffic goes.
//!
//! * [`index`]: objects in, policies out. [`inbound`] and [`outbound`] compute a policy from what
//!   the index stores; [`mod@status`] computes what is written back to routes.
//! * [`grpc`]: the two services proxies talk to.
//! * [`admission`]: refuses objects that make no sense, before they are stored.
//! * [`args`]: flags and start-up.

pub mod admission;
pub mod annotation;
pub mod args;
pub mod cluster;
pub mod grpc;
pub mod inbound;
pub mod index;
pub mod network;
pub mod outbound;
pub mod rule;
pub mod status;

#[cfg(test)]
mod testing;

pub use self::{cluster::Cluster, index::Index};
