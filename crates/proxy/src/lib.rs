//! The data plane.

pub mod config;
pub mod detect;
pub mod socket;
pub mod transport_header;
