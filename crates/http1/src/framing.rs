//! How long a body is: content-length and transfer-encoding values, and the rules that combine them.

use crate::error::HeadError;
use crate::head::Side;

/// How the bytes behind a head are delimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// No body at all.
    #[default]
    None,
    /// Exactly this many bytes (more than none).
    Length(u64),
    /// Chunks, then trailers.
    Chunked,
    /// Everything until the peer closes; responses only.
    UntilClose,
    /// Not a body: the connection becomes a byte pipe (CONNECT answered 2xx, or 101).
    Tunnel,
}

/// What transfer-encoding lines add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Coding {
    #[default]
    Absent,
    Chunked,
}

/// Reads one content-length value. Digits only, no sign, no list; more than 2^63-1 is refused.
pub(crate) fn content_length(value: &[u8]) -> Result<u64, HeadError> {
    if value.is_empty() || value.len() > 19 {
        return Err(HeadError::ContentLength);
    }
    let mut length = 0u64;
    for byte in value {
        if !byte.is_ascii_digit() {
            return Err(HeadError::ContentLength);
        }
        // 19 digits cannot overflow 64 bits.
        length = length * 10 + u64::from(byte - b'0');
    }
    if length > i64::MAX.unsigned_abs() {
        return Err(HeadError::ContentLength);
    }
    Ok(length)
}

/// Reads one transfer-encoding value. A list that ends in `chunked` ends where the chunks do: a server may
/// answer so, and what is in the chunks is the client's business. In a request `chunked` alone is taken.
/// Anything else has no known end.
pub(crate) fn transfer_encoding(value: &[u8], side: Side) -> Result<Coding, HeadError> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(Coding::Chunked);
    }
    let mut codings = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let last = codings.next_back().unwrap_or_default();
    let listed = last.eq_ignore_ascii_case(b"chunked")
        && codings.all(|coding| is_token(coding) && !coding.eq_ignore_ascii_case(b"chunked"));
    match (listed, side) {
        (true, Side::Response) => Ok(Coding::Chunked),
        (true, Side::Request) => Err(HeadError::UnknownCoding),
        (false, _) => Err(HeadError::TransferEncoding),
    }
}

fn is_token(text: &[u8]) -> bool {
    let mark = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || mark(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_length_values() {
        let cases: &[(&str, Option<u64>)] = &[
            ("0", Some(0)),
            ("42", Some(42)),
            ("007", Some(7)),
            ("9223372036854775807", Some(9_223_372_036_854_775_807)),
            ("9223372036854775808", None),
            ("18446744073709551616", None),
            ("", None),
            ("+1", None),
            ("-1", None),
            ("1 2", None),
            ("5, 5", None),
            ("5,5", None),
            ("0x10", None),
            ("1_0", None),
            ("1.0", None),
            ("١", None),
        ];
        for (value, want) in cases {
            assert_eq!(content_length(value.as_bytes()).ok(), *want, "{value:?}");
        }
    }

    #[test]
    fn transfer_encoding_values() {
        use HeadError::{TransferEncoding, UnknownCoding};
        let cases: &[(&str, Result<Coding, HeadError>)] = &[
            ("chunked", Ok(Coding::Chunked)),
            ("Chunked", Ok(Coding::Chunked)),
            ("gzip, chunked", Err(UnknownCoding)),
            ("identity, chunked", Err(UnknownCoding)),
            ("deflate , gzip,\tCHUNKED", Err(UnknownCoding)),
            ("g\u{e4}zip, chunked", Err(TransferEncoding)),
            ("gzip;q=1, chunked", Err(TransferEncoding)),
            ("gzip, , chunked", Err(TransferEncoding)),
            ("chunked, chunked", Err(TransferEncoding)),
            ("chunked, gzip", Err(TransferEncoding)),
            ("chunked,", Err(TransferEncoding)),
            (",chunked", Err(TransferEncoding)),
            ("identity", Err(TransferEncoding)),
            ("xchunked", Err(TransferEncoding)),
            ("chunked;q=1", Err(TransferEncoding)),
            ("\"chunked\"", Err(TransferEncoding)),
            ("chun\u{000b}ked", Err(TransferEncoding)),
            ("", Err(TransferEncoding)),
        ];
        for (value, want) in cases {
            let got = |side| transfer_encoding(value.as_bytes(), side);
            assert_eq!(got(Side::Request), *want, "{value:?}");
            // What is in the chunks of an answer is not for us to know.
            let want = match *want {
                Err(UnknownCoding) => Ok(Coding::Chunked),
                want => want,
            };
            assert_eq!(got(Side::Response), want, "{value:?}");
        }
    }
}
