//! The data plane. A connection's way through it: `socket.rs` accepts, `outbound.rs` or `inbound.rs`
//! tell its story, `detect.rs` and `sniff.rs` find out what it speaks, `http/` exchanges requests or
//! `tunnel.rs` copies bytes, `balance.rs` and `endpoint.rs` choose and keep the other side,
//! `connect.rs` reaches it. `control/` feeds them policy, `app.rs` wires it all up.

pub mod admin;
pub mod app;
pub mod await_ready;
pub mod balance;
pub mod block;
pub mod breaker;
pub mod budget;
pub mod config;
pub mod connect;
pub mod control;
pub mod detect;
pub mod endpoint;
pub mod errors;
pub mod h1;
pub mod h2io;
pub mod http;
pub mod identity_bootstrap;
pub mod inbound;
pub mod io;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod outbound;
pub mod policy;
pub mod presence;
pub mod service_io;
pub mod sniff;
pub mod socket;
pub mod tls;
pub mod transport_header;
pub mod tunnel;
pub mod worker;
