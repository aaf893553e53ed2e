//! What a failed exchange means: for its request, which may be sent again or not, and for a client
//! whose answer breaks in the middle.

use h2::Reason;

use super::{again::Why, server1::Failed, server2::Caller, stream::Sink};
use crate::errors::{Class, HttpError};

/// What an HTTP/2 error without an answer says about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The server has not looked at it.
    Unsent,
    /// The connection died.
    Died,
    /// The server decided, or the request is not whole any more.
    Known,
}

impl Fate {
    /// `h2` gives a peer's GOAWAY only to streams beyond the last one the peer looked at.
    pub(super) fn of(error: &h2::Error, whole: bool) -> Self {
        let refused = error.reason() == Some(Reason::REFUSED_STREAM);
        match whole {
            false => Self::Known,
            true if refused || (error.is_go_away() && error.is_remote()) => Self::Unsent,
            true if error.is_io() => Self::Died,
            true => Self::Known,
        }
    }

    pub(super) fn failed(self, error: HttpError) -> Failed {
        match self {
            Self::Unsent => Failed::Unsent(error, Why::Refused),
            // Streams share a connection that was there before them.
            Self::Died => Failed::Died {
                error,
                reused: true,
            },
            Self::Known => Failed::told(error),
        }
    }
}

/// The `error` label of an exchange that an HTTP/2 server broke.
pub(super) fn label(error: &h2::Error) -> &'static str {
    match error.reason() {
        _ if error.is_go_away() => "GO_AWAY",
        _ if error.is_io() => "IO",
        Some(Reason::CANCEL) => "CANCEL",
        Some(Reason::REFUSED_STREAM) => "REFUSED",
        Some(Reason::ENHANCE_YOUR_CALM) => "ENHANCE_YOUR_CALM",
        _ => "RESET",
    }
}

/// What the end of an HTTP/1 connection without an answer means. `end` says whether a proxy has ended
/// it in an orderly way, `safe` that the request is still whole and that nothing at all came back.
pub(super) fn died(end: std::io::Result<bool>, safe: bool, sent: bool, reused: bool) -> Failed {
    let orderly = matches!(end, Ok(true));
    let error = match end {
        Ok(_) => cut_short(),
        Err(error) => HttpError::io(error.to_string()),
    };
    if !safe {
        Failed::Answer(error)
    } else if !sent || orderly {
        Failed::Unsent(error, Why::Closed)
    } else {
        Failed::Died { error, reused }
    }
}

/// The body of an answer broke. As long as no byte of it has left for the client, that is no answer
/// at all: the request may be sent again if it is `whole`, and otherwise the client is told.
pub(super) fn broken(error: HttpError, unseen: bool, whole: bool, reused: bool) -> Failed {
    match unseen {
        false => Failed::Abort,
        true if whole => Failed::Died { error, reused },
        true => Failed::Answer(error),
    }
}

/// A server that closed too early.
pub(super) fn cut_short() -> HttpError {
    HttpError::io("connection closed before message completed")
}

/// A server that began to answer and does not go on.
pub(super) fn slow_head() -> HttpError {
    HttpError::new(
        Class::GatewayTimeout,
        "response timeout",
        "response head timed out",
    )
}

/// A client whose body cannot be read.
pub(super) fn bad_body(error: linkerd_http1::BodyError) -> Failed {
    let status =
        http::StatusCode::from_u16(error.status()).unwrap_or(http::StatusCode::BAD_REQUEST);
    Failed::Answer(HttpError::new(
        Class::BadRequest(status),
        "unexpected",
        error.to_string(),
    ))
}

/// An upgraded stream that failed.
pub(super) fn reset_error(error: &h2::Error) -> HttpError {
    HttpError::io(format!(
        "upgraded connection failed with HTTP/2 reset: {error}"
    ))
}

/// What an HTTP/2 client is told when its stream ended without an answer: what the server said is
/// passed on with its code, anything else is a bad gateway.
pub(super) fn unanswered(error: &h2::Error) -> HttpError {
    let mut told = HttpError::io(error.to_string());
    told.reset = passed_on(error);
    told
}

/// The code of a reset, or of the end of a connection that the server announced. One that ends in
/// peace has not looked at the stream, and for a single stream there is another word for that.
fn passed_on(error: &h2::Error) -> Option<Reason> {
    let announced = error.is_go_away() && error.is_remote();
    match error.reason()? {
        Reason::NO_ERROR if announced => Some(Reason::REFUSED_STREAM),
        reason if announced || error.is_reset() => Some(reason),
        _ => None,
    }
}

/// Ends an answer whose body broke upstream: a reset is passed on with its code, anything else a
/// gRPC client hears in trailers.
pub(super) fn break_off(sink: &mut Sink, error: &h2::Error, caller: &Caller<'_>) {
    match error.reason() {
        Some(reason) if error.is_reset() => sink.reset(reason),
        _ if caller.grpc => tell(sink, &HttpError::io(error.to_string()), caller),
        _ => sink.reset(Reason::INTERNAL_ERROR),
    }
}

/// Ends an answer that took too long.
pub(super) fn time_out(sink: &mut Sink, error: &HttpError, caller: &Caller<'_>) {
    if caller.grpc {
        tell(sink, error, caller);
    } else {
        sink.reset(Reason::CANCEL);
    }
}

fn tell(sink: &mut Sink, error: &HttpError, caller: &Caller<'_>) {
    if sink.trailers(error.trailers(caller.informational)).is_err() {
        sink.reset(Reason::INTERNAL_ERROR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_resets() {
        for (reason, want) in [
            (Reason::CANCEL, "CANCEL"),
            (Reason::REFUSED_STREAM, "REFUSED"),
            (Reason::ENHANCE_YOUR_CALM, "ENHANCE_YOUR_CALM"),
            (Reason::INTERNAL_ERROR, "RESET"),
            (Reason::PROTOCOL_ERROR, "RESET"),
        ] {
            assert_eq!(label(&reason.into()), want, "{reason:?}");
        }
    }
}
