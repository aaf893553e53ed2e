//! The `linkerd` command.

pub mod chart;
pub mod yaml;
