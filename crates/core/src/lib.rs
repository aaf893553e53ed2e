//! Plain domain types shared by the data plane and the control plane: no I/O, no async.

pub mod duration;
pub mod policy;
pub mod quantity;

pub mod identity;
