//! Whether a connection lives on, and what the client must be told about it and about the length of its answer.

use crate::framing::Framing;
use crate::head::Version;
use crate::request::RequestHead;

/// What a head says about its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persist {
    /// Nothing: the version's default holds.
    #[default]
    Default,
    /// `connection: keep-alive`, which HTTP/1.0 needs to hear.
    KeepAlive,
    /// `connection: close`
    Close,
}

/// How a body's framing changes between the two legs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyEdit {
    /// Bytes and framing fields pass unchanged.
    #[default]
    Keep,
    /// The writer makes chunks: length and coding fields are replaced by `transfer-encoding: chunked`.
    Chunked,
    /// The writer sends plain payload and closes: length and coding fields are left out.
    UntilClose,
}

/// What to do with a response for a given client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponsePlan {
    pub persist: Persist,
    pub body: BodyEdit,
}

impl ResponsePlan {
    /// `framing` is how the answer's body arrives, `closing` whether we want the client's connection to end
    /// (a closing class of error, drain, or a request body that will not be read).
    pub fn new(request: &RequestHead, framing: Framing, closing: bool) -> Self {
        Self::for_client(request.version(), request.keep_alive(), framing, closing)
    }

    /// The same when only facts about the client are left.
    pub fn for_client(version: Version, keep_alive: bool, framing: Framing, closing: bool) -> Self {
        let body = match (framing, version) {
            (Framing::UntilClose, Version::Http11) => BodyEdit::Chunked,
            (Framing::UntilClose | Framing::Chunked, Version::Http10) => BodyEdit::UntilClose,
            _ => BodyEdit::Keep,
        };
        let persist = if framing == Framing::Tunnel {
            Persist::Default
        } else if closing || !keep_alive || body == BodyEdit::UntilClose {
            Persist::Close
        } else if version == Version::Http10 {
            Persist::KeepAlive
        } else {
            Persist::Default
        };
        Self { persist, body }
    }

    /// Whether the client's connection ends with this answer.
    pub fn closes(&self) -> bool {
        self.persist == Persist::Close
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans() {
        use Framing::{Chunked, Length, None, Tunnel, UntilClose};
        use Version::{Http10, Http11};
        let cases = [
            (
                "1.1 with a length",
                Http11,
                true,
                Length(1),
                false,
                Persist::Default,
                BodyEdit::Keep,
            ),
            (
                "1.1 chunked",
                Http11,
                true,
                Chunked,
                false,
                Persist::Default,
                BodyEdit::Keep,
            ),
            (
                "1.1 without a body",
                Http11,
                true,
                None,
                false,
                Persist::Default,
                BodyEdit::Keep,
            ),
            (
                "1.1 until close becomes chunks",
                Http11,
                true,
                UntilClose,
                false,
                Persist::Default,
                BodyEdit::Chunked,
            ),
            (
                "1.1 client closes",
                Http11,
                false,
                Length(1),
                false,
                Persist::Close,
                BodyEdit::Keep,
            ),
            (
                "1.1 we close",
                Http11,
                true,
                Length(1),
                true,
                Persist::Close,
                BodyEdit::Keep,
            ),
            (
                "1.0 keep-alive with a length",
                Http10,
                true,
                Length(1),
                false,
                Persist::KeepAlive,
                BodyEdit::Keep,
            ),
            (
                "1.0 keep-alive chunked",
                Http10,
                true,
                Chunked,
                false,
                Persist::Close,
                BodyEdit::UntilClose,
            ),
            (
                "1.0 keep-alive until close",
                Http10,
                true,
                UntilClose,
                false,
                Persist::Close,
                BodyEdit::UntilClose,
            ),
            (
                "1.0 plain",
                Http10,
                false,
                Length(1),
                false,
                Persist::Close,
                BodyEdit::Keep,
            ),
            (
                "1.1 tunnel",
                Http11,
                true,
                Tunnel,
                false,
                Persist::Default,
                BodyEdit::Keep,
            ),
        ];
        for (name, version, keep_alive, framing, closing, persist, body) in cases {
            let plan = ResponsePlan::for_client(version, keep_alive, framing, closing);
            assert_eq!(plan, ResponsePlan { persist, body }, "{name}");
        }
    }
}
