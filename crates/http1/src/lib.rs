//! Our HTTP/1 engine: strict parsing, framing and pass-through, with no I/O of its own.
//!
//! A message travels like this, each step naming its file:
//!
//! 1. [`RequestHead::parse`] or [`ResponseHead::parse`] reads a head once and keeps offsets, never copies (`request.rs`,
//!    `response.rs`, on `head.rs`). What is needed after the bytes are gone (framing, keep-alive, upgrade) is kept by value.
//! 2. [`RequestView`] and [`ResponseView`] pair the offsets with the bytes: look-ups, iteration, and `write`, which copies the
//!    untouched lines into an output buffer in as few moves as possible and edits the few that change (`rewrite.rs`).
//! 3. [`Body`] follows the framing of what comes behind the head, passing bytes through unchanged or decoding chunks
//!    (`body.rs`, `chunked.rs`); `encode.rs` makes chunks for bodies that come from HTTP/2.
//! 4. [`ResponsePlan`] says what the client must be told about length and connection (`persist.rs`).
//! 5. `convert.rs` goes to and from `http` types for HTTP/2 legs, `reply.rs` writes answers of our own.
//!
//! Whatever two parsers could read in two ways is an error here: see [`HeadError`] and [`BodyError`].

mod body;
mod chunked;
mod convert;
mod encode;
mod error;
mod framing;
mod head;
mod name;
mod persist;
mod reply;
mod request;
mod response;
mod rewrite;
mod target;

pub use body::{Body, Decoded, Progress};
pub use convert::{BodyEncoding, OutboundRequest, OutboundResponse, write_request, write_response};
pub use encode::{ChunkSize, put_chunk, put_last_chunk};
pub use error::{BodyError, HeadError};
pub use framing::Framing;
pub use head::{FieldView, Fields, Limits, Status, Version};
pub use name::{Name, NameSet};
pub use persist::{BodyEdit, Persist, ResponsePlan};
pub use reply::{CONTINUE, Reply};
pub use request::{Method, RequestHead, RequestView};
pub use response::{ResponseHead, ResponseView};
pub use rewrite::{RequestEdit, ResponseEdit, TargetEdit};
pub use target::TargetForm;
