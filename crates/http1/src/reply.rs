//! Answers the proxy makes itself: errors, redirects, `100 Continue`.

use bytes::{BufMut, BytesMut};
use http::StatusCode;

use crate::head::Version;
use crate::persist::Persist;
use crate::rewrite::{put_line, put_persist};

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A small answer with its whole body.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    pub status: u16,
    /// The version the client spoke.
    pub version: Version,
    pub fields: &'a [(&'a str, &'a [u8])],
    pub body: &'a [u8],
    pub persist: Persist,
    /// The request was HEAD: the length is told, the body left out.
    pub head_only: bool,
}

impl Default for Reply<'_> {
    fn default() -> Self {
        Self {
            status: 500,
            version: Version::Http11,
            fields: &[],
            body: b"",
            persist: Persist::Default,
            head_only: false,
        }
    }
}

impl Reply<'_> {
    /// Appends the answer to `out`.
    pub fn write(&self, out: &mut BytesMut) {
        out.reserve(
            128 + self.body.len()
                + self
                    .fields
                    .iter()
                    .map(|(n, v)| n.len() + v.len() + 4)
                    .sum::<usize>(),
        );
        put_status_line(out, self.version, self.status);
        for (name, value) in self.fields {
            put_line(out, name.as_bytes(), value);
        }
        if self.status != 204 && self.status != 304 && self.status >= 200 {
            put_line(
                out,
                b"content-length",
                self.body.len().to_string().as_bytes(),
            );
        }
        put_persist(out, self.persist);
        out.put_slice(b"\r\n");
        if !self.head_only {
            out.put_slice(self.body);
        }
    }
}

pub(crate) fn put_status_line(out: &mut BytesMut, version: Version, status: u16) {
    out.put_slice(version.as_str().as_bytes());
    out.put_u8(b' ');
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    out.put_slice(code.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(code.canonical_reason().unwrap_or_default().as_bytes());
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Framing, Limits, Method, ResponseHead};

    #[test]
    fn an_error_reads_back() {
        let mut out = BytesMut::new();
        let reply = Reply {
            status: 502,
            fields: &[("l5d-proxy-error", b"connect\r\nevil: 1")],
            persist: Persist::Close,
            ..Reply::default()
        };
        reply.write(&mut out);
        assert_eq!(
            out,
            "HTTP/1.1 502 Bad Gateway\r\nl5d-proxy-error: connect  evil: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let mut head = ResponseHead::new();
        head.parse(&out, &Limits::default(), Method::Get)
            .expect("our own answer");
        assert_eq!(
            (head.status(), head.framing(), head.reusable()),
            (502, Framing::None, false)
        );
    }
}
