//! Makes chunked bodies out of payload that comes from elsewhere, such as an HTTP/2 stream.

use bytes::{BufMut, BytesMut};
use http::HeaderMap;

use crate::name::Name;
use crate::rewrite::put_line;

/// The line in front of a chunk, for callers that send head line and payload in one vectored write.
#[derive(Clone, Copy, Debug)]
pub struct ChunkSize {
    text: [u8; 18],
    start: u8,
}

impl ChunkSize {
    /// `size` must not be zero: that would end the body.
    pub fn new(size: usize) -> Self {
        debug_assert!(size > 0, "an empty chunk ends a body");
        let mut text = *b"0000000000000000\r\n";
        let mut start = 16;
        let mut left = size;
        while left > 0 {
            start -= 1;
            text[start] = b"0123456789abcdef"[left & 15];
            left >>= 4;
        }
        Self {
            text,
            start: u8::try_from(start).unwrap_or(0),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.text[usize::from(self.start)..]
    }
}

/// Appends one chunk; nothing when `data` is empty.
pub fn put_chunk(out: &mut BytesMut, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let size = ChunkSize::new(data.len());
    out.reserve(size.as_bytes().len() + data.len() + 2);
    out.put_slice(size.as_bytes());
    out.put_slice(data);
    out.put_slice(b"\r\n");
}

/// Ends a chunked body, with trailers if there are any. Names that frame or route a message are left out.
pub fn put_last_chunk(out: &mut BytesMut, trailers: Option<&HeaderMap>) {
    out.put_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        let forbidden = matches!(
            Name::of(name.as_str().as_bytes()),
            Name::Host
                | Name::ContentLength
                | Name::TransferEncoding
                | Name::Connection
                | Name::Te
                | Name::Trailer
        );
        if !forbidden {
            put_line(out, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, Framing};

    #[test]
    fn chunk_sizes() {
        for (size, want) in [
            (1, "1\r\n"),
            (15, "f\r\n"),
            (16, "10\r\n"),
            (65_536, "10000\r\n"),
            (usize::MAX, "ffffffffffffffff\r\n"),
        ] {
            assert_eq!(ChunkSize::new(size).as_bytes(), want.as_bytes());
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        trailers.insert("content-length", http::HeaderValue::from_static("7"));
        let mut out = BytesMut::new();
        put_chunk(&mut out, b"hello ");
        put_chunk(&mut out, b"");
        put_chunk(&mut out, b"world");
        put_last_chunk(&mut out, Some(&trailers));
        let mut body = Body::new(Framing::Chunked);
        let (mut at, mut data) = (0, Vec::new());
        while !body.is_done() {
            let step = body.decode(&out[at..]).expect("our own chunks");
            data.extend_from_slice(&out[at..][step.data]);
            at += step.take;
        }
        assert_eq!((data.as_slice(), at), (&b"hello world"[..], out.len()));
        let got = body.trailers().expect("trailers");
        assert_eq!((got.len(), got["grpc-status"].as_bytes()), (1, &b"0"[..]));
    }
}
