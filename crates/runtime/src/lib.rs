//! What every daemon has: logs, metrics, admin server, readiness, drain, signals, version; and
//! what keeps those that serve streams from being overrun ([`gate`]).
//!
//! A daemon starts with [`log::init`], builds its metrics, takes [`ready::Block`]s and a
//! [`drain::Watch`] for each of its parts, serves an [`admin::Admin`], waits for
//! [`signal::shutdown`] and ends by draining.

pub mod admin;
pub mod drain;
pub mod gate;
pub mod listen;
pub mod log;
pub mod metrics;
pub mod ready;
pub mod signal;
mod task;
pub mod version;

pub use task::{spawn, spawn_local};
