//! Why a message was refused: one variant per rule, each with the status a client gets and a label for metrics.

use thiserror::Error;

/// A head that breaks a rule. For a response, whatever the variant, the client gets 502 and the connection is not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum HeadError {
    #[error("head is larger than allowed")]
    TooLarge,
    #[error("request target is longer than allowed")]
    TargetTooLong,
    #[error("head has more fields than allowed")]
    TooManyFields,
    #[error("invalid method")]
    Method,
    #[error("invalid request target")]
    Target,
    #[error("unsupported HTTP version")]
    Version,
    #[error("malformed start line")]
    StartLine,
    #[error("line does not end in CRLF")]
    LineEnding,
    #[error("invalid field name, or a folded line")]
    FieldName,
    #[error("invalid field value")]
    FieldValue,
    #[error("invalid or repeated host")]
    Host,
    #[error("host is missing")]
    MissingHost,
    #[error("host differs from the authority of the target")]
    HostMismatch,
    #[error("invalid or repeated content-length")]
    ContentLength,
    #[error("both content-length and transfer-encoding")]
    LengthAndCoding,
    #[error("invalid transfer-encoding")]
    TransferEncoding,
    #[error("transfer coding is not implemented")]
    UnknownCoding,
    #[error("invalid CONNECT request")]
    Connect,
    #[error("invalid status code")]
    Status,
}

impl HeadError {
    /// The status to answer a client's bad request with.
    pub fn status(self) -> u16 {
        match self {
            Self::TooLarge | Self::TooManyFields => 431,
            Self::TargetTooLong => 414,
            Self::Version => 505,
            Self::UnknownCoding => 501,
            _ => 400,
        }
    }

    /// A short stable name for logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::TooLarge => "head_too_large",
            Self::TargetTooLong => "target_too_long",
            Self::TooManyFields => "too_many_fields",
            Self::Method => "method",
            Self::Target => "target",
            Self::Version => "version",
            Self::StartLine => "start_line",
            Self::LineEnding => "line_ending",
            Self::FieldName => "field_name",
            Self::FieldValue => "field_value",
            Self::Host => "host",
            Self::MissingHost => "missing_host",
            Self::HostMismatch => "host_mismatch",
            Self::ContentLength => "content_length",
            Self::LengthAndCoding => "length_and_coding",
            Self::TransferEncoding => "transfer_encoding",
            Self::UnknownCoding => "unknown_coding",
            Self::Connect => "connect",
            Self::Status => "status",
        }
    }
}

/// A body that breaks its framing. The connection it came on cannot be used any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum BodyError {
    #[error("invalid chunk size")]
    ChunkSize,
    #[error("invalid or oversized chunk extension")]
    ChunkExtension,
    #[error("chunk does not end in CRLF")]
    ChunkEnd,
    #[error("invalid trailer field")]
    Trailer,
    #[error("trailers are larger than allowed")]
    TrailerTooLarge,
    #[error("connection closed before the body was complete")]
    Incomplete,
}

impl BodyError {
    /// The status to answer a client's bad request body with, while no answer was begun.
    pub fn status(self) -> u16 {
        match self {
            Self::TrailerTooLarge => 431,
            _ => 400,
        }
    }

    /// A short stable name for logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::ChunkSize => "chunk_size",
            Self::ChunkExtension => "chunk_extension",
            Self::ChunkEnd => "chunk_end",
            Self::Trailer => "trailer",
            Self::TrailerTooLarge => "trailer_too_large",
            Self::Incomplete => "incomplete",
        }
    }
}
