//! Tells proxies which endpoints stand behind a name or an address.
//!
//! ```text
//! watches ─apply/delete/reset→ index ─publish→ view (shared snapshots) ─next→ stream ─bytes→ grpc
//! ```
//!
//! * [`name`]: what a request asks for. [`index`]: everything known of a cluster, pure.
//! * [`view`]: snapshots and differences shared by all who see the same. [`stream`]: one client.
//! * [`grpc`]: the service. [`clusters`], `federated`: Services of other clusters.
//! * [`external`]: writes the EndpointSlices of ExternalWorkloads. [`Destination`]: all of it.

pub mod args;
pub mod clusters;
pub mod config;
pub mod endpoint;
pub mod external;
mod federated;
#[cfg(test)]
mod fixture;
pub mod grpc;
pub mod index;
mod intern;
pub mod metrics;
pub mod name;
pub mod profile;
mod run;
pub mod stream;
pub mod view;

pub use self::{
    args::Args,
    clusters::Clusters,
    config::Config,
    grpc::{Server, Wire},
    index::Index,
    intern::{Name, ObjectId},
    metrics::Metrics,
    run::{Destination, serve},
    stream::Discovery,
};
