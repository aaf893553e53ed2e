//! Test-only: network namespaces, certificate authorities, echo servers, an API server, waiting
//! for conditions.
//!
//! Everything here cleans up when it is dropped, also while a test panics, and says what went
//! wrong by panicking: a test has nobody else to tell.

pub mod api_server;
pub mod ca;
pub mod control_plane;
pub mod echo;
pub mod netns;
pub mod port;
mod signal;
mod tool;
mod wait;

pub use signal::terminate;
pub use tool::tool;
pub use wait::{wait_for, wait_for_async, wait_for_some, wait_for_some_async};
