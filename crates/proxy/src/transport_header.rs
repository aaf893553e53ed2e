//! The transport header two proxies exchange at the start of an mTLS connection to the inbound port:
//! which local port (or gateway name) the bytes are for, and which HTTP version they speak.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// First bytes of the header, after TLS.
pub const PREFACE: &[u8] = b"transport.l5d.io/v1\r\n\r\n";

/// Largest message accepted.
pub const MAX_LEN: usize = 64 * 1024 - PREFACE.len() - 4;

/// What the payload speaks when it is HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Session {
    /// HTTP/1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Where the payload goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Target port.
    pub port: u16,
    /// Gateway name; none means local delivery.
    pub name: Option<String>,
    /// HTTP version; none means opaque bytes.
    pub session: Option<Session>,
}

/// Why bytes are no transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The preface is missing.
    #[error("Connection did not include a transport header")]
    Missing,
    /// The message is larger than allowed.
    #[error("transport header is too large")]
    TooLarge,
    /// The message does not parse.
    #[error("transport header does not parse")]
    Malformed,
    /// The port is out of range.
    #[error("transport header names an invalid port")]
    Port,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(int32, tag = "1")]
    port: i32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, optional, tag = "3")]
    session_protocol: Option<WireSession>,
}

#[derive(Clone, PartialEq, Message)]
struct WireSession {
    #[prost(oneof = "WireKind", tags = "1, 2")]
    kind: Option<WireKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum WireKind {
    #[prost(message, tag = "1")]
    Http1(WireEmpty),
    #[prost(message, tag = "2")]
    Http2(WireEmpty),
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireEmpty {}

impl Header {
    /// The header as it goes on the wire.
    pub fn encode(&self) -> Bytes {
        let wire = Wire {
            port: self.port.into(),
            name: self.name.clone().unwrap_or_default(),
            session_protocol: self.session.map(|session| WireSession {
                kind: Some(match session {
                    Session::Http1 => WireKind::Http1(WireEmpty {}),
                    Session::Http2 => WireKind::Http2(WireEmpty {}),
                }),
            }),
        };
        let len = wire.encoded_len();
        let mut out = BytesMut::with_capacity(PREFACE.len() + 4 + len);
        out.put_slice(PREFACE);
        out.put_u32(u32::try_from(len).expect("a port and a DNS name are short"));
        wire.encode(&mut out).expect("the buffer grows");
        out.freeze()
    }

    /// Takes a header off the front of `buf`; `None` when more bytes are needed.
    pub fn decode(buf: &mut BytesMut) -> Result<Option<Self>, HeaderError> {
        let seen = buf.len().min(PREFACE.len());
        if buf[..seen] != PREFACE[..seen] {
            return Err(HeaderError::Missing);
        }
        let Some(len) = buf.get(PREFACE.len()..PREFACE.len() + 4) else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([len[0], len[1], len[2], len[3]]);
        let len = usize::try_from(len).map_err(|_| HeaderError::TooLarge)?;
        if len > MAX_LEN {
            return Err(HeaderError::TooLarge);
        }
        let start = PREFACE.len() + 4;
        let Some(message) = buf.get(start..start + len) else {
            return Ok(None);
        };
        let wire = Wire::decode(message).map_err(|_| HeaderError::Malformed)?;
        buf.advance(start + len);
        Self::from_wire(wire).map(Some)
    }

    fn from_wire(wire: Wire) -> Result<Self, HeaderError> {
        let port = u16::try_from(wire.port)
            .ok()
            .filter(|p| *p != 0)
            .ok_or(HeaderError::Port)?;
        let session = wire
            .session_protocol
            .and_then(|s| s.kind)
            .map(|kind| match kind {
                WireKind::Http1(_) => Session::Http1,
                WireKind::Http2(_) => Session::Http2,
            });
        Ok(Self {
            port,
            name: Some(wire.name).filter(|n| !n.is_empty()),
            session,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(port: u16, name: Option<&str>, session: Option<Session>) -> Header {
        Header {
            port,
            name: name.map(str::to_owned),
            session,
        }
    }

    #[test]
    fn known_bytes() {
        let mut want = PREFACE.to_vec();
        want.extend([0, 0, 0, 3, 0x08, 0x90, 0x3f]);
        assert_eq!(header(8080, None, None).encode(), want);
    }

    #[test]
    fn round_trips() {
        for h in [
            header(1, None, None),
            header(65535, None, Some(Session::Http1)),
            header(80, Some("web.ns.svc.cluster.local"), Some(Session::Http2)),
        ] {
            let bytes = h.encode();
            for n in 0..bytes.len() {
                let mut part = BytesMut::from(&bytes[..n]);
                assert_eq!(Header::decode(&mut part), Ok(None), "{n} of {h:?}");
            }
            let mut whole = BytesMut::from(&bytes[..]);
            whole.extend_from_slice(b"payload");
            assert_eq!(Header::decode(&mut whole), Ok(Some(h)));
            assert_eq!(&whole[..], b"payload");
        }
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let mut bytes = PREFACE.to_vec();
        bytes.extend([0, 0, 0, 6, 0x08, 0x50, 0x7a, 0x02, 1, 2]);
        let mut buf = BytesMut::from(&bytes[..]);
        assert_eq!(Header::decode(&mut buf), Ok(Some(header(80, None, None))));
    }

    #[test]
    fn refusals() {
        let with = |tail: &[u8]| {
            let mut bytes = PREFACE.to_vec();
            bytes.extend(tail);
            Header::decode(&mut BytesMut::from(&bytes[..]))
        };
        assert_eq!(
            Header::decode(&mut BytesMut::from(&b"GET / HTTP/1.1"[..])),
            Err(HeaderError::Missing)
        );
        assert_eq!(with(&[0, 1, 0, 0]), Err(HeaderError::TooLarge));
        assert_eq!(with(&[0, 0, 0, 1, 0xff]), Err(HeaderError::Malformed));
        assert_eq!(with(&[0, 0, 0, 0]), Err(HeaderError::Port));
        assert_eq!(
            with(&[0, 0, 0, 4, 0x08, 0x80, 0x80, 0x04]),
            Err(HeaderError::Port)
        );
    }
}
