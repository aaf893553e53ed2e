//! The control plane as the proxy sees it: one channel per service, one stream per target for the
//! whole process, and the last value of each kept through any outage. Wire types stop here.

pub mod client;
mod convert;
mod destination;
pub mod discovery;
pub mod dns;
pub mod identity;
mod policy;
pub mod spire;
mod stream;
pub mod trust;
pub mod wire;

pub use self::{
    client::Channel,
    discovery::{Discovery, Outbound, ProfileLookup, Target},
};
