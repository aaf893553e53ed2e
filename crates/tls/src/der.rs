//! The little DER we write ourselves: certificates and signing requests are built from raw parts, so
//! that an issuer's name goes into a leaf byte for byte, whatever string types it uses.

use std::time::SystemTime;

use crate::clock::unix_seconds;

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Object identifiers, content bytes only.
pub(crate) mod oid {
    pub(crate) const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    pub(crate) const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    pub(crate) const ECDSA_SHA384: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03];
    pub(crate) const ECDSA_SHA512: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04];
    pub(crate) const EXTENSION_REQUEST: &[u8] =
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
    pub(crate) const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
    pub(crate) const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
    pub(crate) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
    pub(crate) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
    pub(crate) const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
    pub(crate) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
    pub(crate) const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
    pub(crate) const CLIENT_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
}

/// Tag, length, content; `parts` are joined.
pub(crate) fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = Vec::with_capacity(len + 6);
    out.push(tag);
    if len < 0x80 {
        out.push(len.to_le_bytes()[0]);
    } else {
        let bytes = len.to_be_bytes();
        let skip = bytes.iter().take_while(|b| **b == 0).count();
        let significant = &bytes[skip..];
        out.push(0x80 | significant.len().to_le_bytes()[0]);
        out.extend_from_slice(significant);
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

pub(crate) fn seq(parts: &[&[u8]]) -> Vec<u8> {
    tlv(SEQUENCE, parts)
}

pub(crate) fn oid(content: &[u8]) -> Vec<u8> {
    tlv(OID, &[content])
}

pub(crate) fn boolean_true() -> Vec<u8> {
    tlv(BOOLEAN, &[&[0xff]])
}

/// A non-negative integer from big-endian bytes, in its shortest form.
pub(crate) fn integer(magnitude: &[u8]) -> Vec<u8> {
    let skip = magnitude.iter().take_while(|b| **b == 0).count();
    let trimmed = &magnitude[skip..];
    match trimmed.first() {
        None => tlv(INTEGER, &[&[0]]),
        Some(first) if first & 0x80 != 0 => tlv(INTEGER, &[&[0], trimmed]),
        Some(_) => tlv(INTEGER, &[trimmed]),
    }
}

pub(crate) fn bit_string(unused_bits: u8, content: &[u8]) -> Vec<u8> {
    tlv(BIT_STRING, &[&[unused_bits], content])
}

pub(crate) fn octet_string(content: &[u8]) -> Vec<u8> {
    tlv(OCTET_STRING, &[content])
}

/// A context-specific constructed element.
pub(crate) fn explicit(number: u8, parts: &[&[u8]]) -> Vec<u8> {
    tlv(0xa0 | number, parts)
}

/// A context-specific primitive element.
pub(crate) fn implicit(number: u8, content: &[u8]) -> Vec<u8> {
    tlv(0x80 | number, &[content])
}

/// A name with one common name, or the empty name.
pub(crate) fn name(common_name: Option<&str>) -> Vec<u8> {
    let Some(cn) = common_name else {
        return seq(&[]);
    };
    let attribute = seq(&[&oid(oid::COMMON_NAME), &tlv(UTF8_STRING, &[cn.as_bytes()])]);
    seq(&[&tlv(SET, &[&attribute])])
}

pub(crate) fn validity(not_before: SystemTime, not_after: SystemTime) -> Vec<u8> {
    seq(&[&time(not_before), &time(not_after)])
}

/// UTCTime until 2049, GeneralizedTime from then on, as RFC 5280 wants.
fn time(t: SystemTime) -> Vec<u8> {
    let seconds = i64::try_from(unix_seconds(t)).unwrap_or(i64::MAX);
    let ts = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    let full = ts.strftime("%Y%m%d%H%M%SZ").to_string();
    if full.as_str() < "2050" {
        tlv(UTC_TIME, &[&full.as_bytes()[2..]])
    } else {
        tlv(GENERALIZED_TIME, &[full.as_bytes()])
    }
}

pub(crate) fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let value = octet_string(value);
    if critical {
        seq(&[&oid(id), &boolean_true(), &value])
    } else {
        seq(&[&oid(id), &value])
    }
}

/// The value of a subjectAltName extension with DNS names only.
pub(crate) fn dns_names<S: AsRef<str>>(names: &[S]) -> Vec<u8> {
    let names: Vec<_> = names
        .iter()
        .map(|n| implicit(2, n.as_ref().as_bytes()))
        .collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    seq(&names)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn lengths() {
        for (len, head) in [
            (0, vec![SEQUENCE, 0]),
            (127, vec![SEQUENCE, 127]),
            (128, vec![SEQUENCE, 0x81, 128]),
            (256, vec![SEQUENCE, 0x82, 1, 0]),
        ] {
            let out = seq(&[&vec![0; len]]);
            assert_eq!(&out[..out.len() - len], head, "{len}");
        }
    }

    #[test]
    fn integers() {
        for (bytes, want) in [
            (&[][..], &[2, 1, 0][..]),
            (&[0, 0], &[2, 1, 0]),
            (&[1], &[2, 1, 1]),
            (&[0, 0x80], &[2, 2, 0, 0x80]),
            (&[0x7f, 0xff], &[2, 2, 0x7f, 0xff]),
        ] {
            assert_eq!(integer(bytes), want, "{bytes:?}");
        }
    }

    #[test]
    fn times() {
        for (secs, want) in [
            (0, &b"\x17\x0d700101000000Z"[..]),
            (2_524_607_999, b"\x17\x0d491231235959Z"),
            (2_524_608_000, b"\x18\x0f20500101000000Z"),
        ] {
            assert_eq!(time(UNIX_EPOCH + Duration::from_secs(secs)), want, "{secs}");
        }
    }
}
