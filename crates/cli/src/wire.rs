//! Messages of the proxy API as JSON of the shape that scripts know: fields by their protobuf names,
//! zero values left out, and a oneof as an object with one CamelCase key, all in declared order.
//! Messages are read from their bytes along `wire/messages.txt`, so that no kind needs code.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost::Message;
use serde_json::{Map, Number, Value};
use std::{collections::HashMap, sync::OnceLock};

/// Kinds of messages that commands print.
pub const PROFILE: &str = "dst.DestinationProfile";
pub const HTTP2: &str = "dst.Http2ClientParams";
pub const INBOUND: &str = "in.Server";
pub const OUTBOUND: &str = "out.OutboundPolicy";

/// No message nests deeper; hostile bytes must not either.
const DEPTH: usize = 64;

/// The JSON form of a message of that kind.
pub fn json(kind: &str, message: &impl Message) -> Value {
    object(kind, &message.encode_to_vec(), DEPTH)
}

#[derive(Debug)]
enum Entry {
    Field(Field),
    OneOf(String, Vec<Field>),
}

#[derive(Debug)]
struct Field {
    name: &'static str,
    number: u64,
    list: bool,
    of: &'static str,
}

fn messages() -> &'static HashMap<&'static str, Vec<Entry>> {
    static MESSAGES: OnceLock<HashMap<&'static str, Vec<Entry>>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let lines = include_str!("wire/messages.txt").lines();
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| {
                let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
                (kind, entries(rest))
            })
            .collect()
    })
}

fn entries(mut rest: &'static str) -> Vec<Entry> {
    let mut entries = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return entries;
        }
        let end = rest.find(' ').unwrap_or(rest.len());
        match rest.find('{').filter(|open| *open < end) {
            Some(open) => {
                let close = rest.find('}').expect("our own file closes its braces");
                let members = rest[open + 1..close].split(' ').map(field).collect();
                entries.push(Entry::OneOf(camel(&rest[..open]), members));
                rest = &rest[close + 1..];
            }
            None => {
                entries.push(Entry::Field(field(&rest[..end])));
                rest = &rest[end..];
            }
        }
    }
}

fn field(text: &'static str) -> Field {
    let (name, text) = text.split_once('=').expect("name=number:type");
    let (number, of) = text.split_once(':').expect("name=number:type");
    Field {
        name,
        number: number.parse().expect("a field's number"),
        list: of.starts_with('*'),
        of: of.trim_start_matches('*'),
    }
}

/// `consecutive_failures` is `ConsecutiveFailures`; an underscore before a digit stays.
fn camel(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut letters = name.chars().peekable();
    let mut upper = true;
    while let Some(c) = letters.next() {
        if c == '_' && letters.peek().is_some_and(char::is_ascii_lowercase) {
            upper = true;
        } else if upper {
            out.push(c.to_ascii_uppercase());
            upper = false;
        } else {
            out.push(c);
        }
    }
    out
}

/// A field's value on the wire.
#[derive(Clone, Copy, Debug)]
enum Raw<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Fields in the order of the bytes. What is cut off or of an unknown form ends the list.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Raw<'_>)> {
    let mut found = Vec::new();
    while let Some(tag) = varint(&mut bytes) {
        let raw = match tag & 7 {
            0 => varint(&mut bytes).map(Raw::Number),
            1 => take(&mut bytes, 8).map(|b| Raw::Number(little_endian(b))),
            2 => varint(&mut bytes)
                .and_then(|length| usize::try_from(length).ok())
                .and_then(|length| take(&mut bytes, length))
                .map(Raw::Bytes),
            5 => take(&mut bytes, 4).map(|b| Raw::Number(little_endian(b))),
            _ => None,
        };
        let Some(raw) = raw else { break };
        found.push((tag >> 3, raw));
    }
    found
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn object(kind: &str, bytes: &[u8], depth: usize) -> Value {
    let found = fields(bytes);
    let mut out = Map::new();
    let entries = messages().get(kind).map_or(&[][..], Vec::as_slice);
    if depth == 0 {
        return Value::Object(out);
    }
    for entry in entries {
        match entry {
            Entry::Field(field) if field.list => {
                let items = found.iter().filter(|(number, _)| *number == field.number);
                let items: Vec<Value> =
                    items.map(|(_, raw)| value(field.of, *raw, depth)).collect();
                if !items.is_empty() {
                    out.insert(field.name.to_owned(), Value::Array(items));
                }
            }
            Entry::Field(field) if field.of == "map" => {
                let pairs = found.iter().filter(|(number, _)| *number == field.number);
                let mut pairs: Vec<(String, Value)> =
                    pairs.filter_map(|(_, raw)| pair(*raw)).collect();
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
                if !pairs.is_empty() {
                    let pairs = pairs.into_iter().collect();
                    out.insert(field.name.to_owned(), Value::Object(pairs));
                }
            }
            Entry::Field(field) => {
                let last = found
                    .iter()
                    .rev()
                    .find(|(number, _)| *number == field.number);
                if let Some((_, raw)) = last {
                    let value = value(field.of, *raw, depth);
                    if !is_zero(&value) {
                        out.insert(field.name.to_owned(), value);
                    }
                }
            }
            Entry::OneOf(name, members) => {
                let last = found.iter().rev().find_map(|(number, raw)| {
                    let member = members.iter().find(|member| member.number == *number)?;
                    Some((member, *raw))
                });
                let value = match last {
                    Some((member, raw)) => {
                        let value = value(member.of, raw, depth);
                        Value::Object(Map::from_iter([(camel(member.name), value)]))
                    }
                    None => Value::Null,
                };
                out.insert(name.clone(), value);
            }
        }
    }
    Value::Object(out)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn pair(raw: Raw<'_>) -> Option<(String, Value)> {
    let Raw::Bytes(bytes) = raw else { return None };
    let (mut key, mut value) = (String::new(), String::new());
    for (number, raw) in fields(bytes) {
        let Raw::Bytes(text) = raw else { continue };
        let text = String::from_utf8_lossy(text).into_owned();
        match number {
            1 => key = text,
            2 => value = text,
            _ => {}
        }
    }
    Some((key, value.into()))
}

fn value(of: &str, raw: Raw<'_>, depth: usize) -> Value {
    match (of, raw) {
        ("string", Raw::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned().into(),
        ("bytes", Raw::Bytes(bytes)) => BASE64_STANDARD.encode(bytes).into(),
        (kind, Raw::Bytes(bytes)) => object(kind, bytes, depth - 1),
        ("bool", Raw::Number(number)) => Value::Bool(number != 0),
        ("int", Raw::Number(number)) => number.cast_signed().into(),
        ("float", Raw::Number(bits)) => {
            let bits = u32::try_from(bits).unwrap_or_default();
            // Through its shortest text: 0.2, not 0.20000000298.
            let shortest = f32::from_bits(bits).to_string().parse();
            Number::from_f64(shortest.unwrap_or_default()).map_or(Value::Null, Value::Number)
        }
        ("double", Raw::Number(bits)) => {
            Number::from_f64(f64::from_bits(bits)).map_or(Value::Null, Value::Number)
        }
        (_, Raw::Number(number)) => number.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linkerd_api::proto::{destination, inbound, meta, net, outbound};
    use serde_json::json;

    #[test]
    fn every_kind_that_is_named_is_described() {
        let scalars = [
            "string", "bytes", "bool", "uint", "int", "enum", "map", "float", "double", "fixed32",
            "fixed64",
        ];
        for (kind, entries) in messages() {
            let fields = entries.iter().flat_map(|entry| match entry {
                Entry::Field(field) => std::slice::from_ref(field),
                Entry::OneOf(_, members) => members,
            });
            for field in fields {
                let known = scalars.contains(&field.of) || messages().contains_key(field.of);
                assert!(known, "{kind}: {}", field.of);
            }
        }
        for kind in [PROFILE, HTTP2, INBOUND, OUTBOUND] {
            assert!(messages().contains_key(kind), "{kind}");
        }
    }

    #[test]
    fn names_are_those_of_go() {
        for (name, expected) in [
            ("consecutive_failures", "ConsecutiveFailures"),
            ("kind", "Kind"),
            ("meshTLS", "MeshTLS"),
            ("ipv4", "Ipv4"),
            ("http_1", "Http_1"),
        ] {
            assert_eq!(camel(name), expected);
        }
    }

    #[test]
    fn a_policy_has_the_shape_that_scripts_read() {
        use outbound::{
            ExponentialBackoff, FailureAccrual, OutboundPolicy, ProxyProtocol, failure_accrual,
            proxy_protocol,
        };
        let accrual = FailureAccrual {
            kind: Some(failure_accrual::Kind::ConsecutiveFailures(
                failure_accrual::ConsecutiveFailures {
                    max_failures: 7,
                    backoff: Some(ExponentialBackoff {
                        min_backoff: Some(prost_duration(1, 500)),
                        max_backoff: Some(prost_duration(60, 0)),
                        jitter_ratio: 0.2,
                        ..ExponentialBackoff::default()
                    }),
                },
            )),
            ..FailureAccrual::default()
        };
        let policy = OutboundPolicy {
            protocol: Some(ProxyProtocol {
                kind: Some(proxy_protocol::Kind::Detect(proxy_protocol::Detect {
                    http1: Some(proxy_protocol::Http1 {
                        routes: vec![],
                        failure_accrual: Some(accrual),
                    }),
                    ..proxy_protocol::Detect::default()
                })),
            }),
            metadata: Some(meta::Metadata {
                kind: Some(meta::metadata::Kind::Default("default".to_owned())),
            }),
        };
        assert_eq!(
            json(OUTBOUND, &policy),
            json!({
                "protocol": {"Kind": {"Detect": {"http1": {"failure_accrual": {"Kind": {
                    "ConsecutiveFailures": {"max_failures": 7, "backoff": {
                        "min_backoff": {"seconds": 1, "nanos": 500},
                        "max_backoff": {"seconds": 60},
                        "jitter_ratio": 0.2,
                    }},
                }}}}}},
                "metadata": {"Kind": {"Default": "default"}},
            })
        );
    }

    fn prost_duration(seconds: i64, nanos: i32) -> prost_types::Duration {
        prost_types::Duration { seconds, nanos }
    }

    #[test]
    fn addresses_labels_and_empty_oneofs() {
        let address = net::IpAddress {
            ip: Some(net::ip_address::Ip::Ipv4(0)),
        };
        let profile = destination::DestinationProfile {
            fully_qualified_name: "web.default.svc.cluster.local".to_owned(),
            opaque_protocol: true,
            endpoint: Some(destination::WeightedAddr {
                addr: Some(net::TcpAddress {
                    ip: Some(address),
                    port: 80,
                }),
                weight: 10000,
                metric_labels: [("pod", "web-1"), ("app", "")]
                    .map(|(k, v)| (k.to_owned(), v.to_owned()))
                    .into(),
                protocol_hint: Some(destination::ProtocolHint::default()),
                ..destination::WeightedAddr::default()
            }),
            ..destination::DestinationProfile::default()
        };
        let text = serde_json::to_string(&json(PROFILE, &profile)).expect("JSON");
        assert_eq!(
            text,
            r#"{"fully_qualified_name":"web.default.svc.cluster.local","opaque_protocol":true,"endpoint":{"addr":{"ip":{"Ip":{"Ipv4":0}},"port":80},"weight":10000,"metric_labels":{"app":"","pod":"web-1"},"protocol_hint":{"Protocol":null}}}"#
        );
        let server = inbound::Server {
            server_ips: vec![address],
            labels: [("name".to_owned(), "x".to_owned())].into(),
            ..inbound::Server::default()
        };
        assert_eq!(
            json(INBOUND, &server),
            json!({"server_ips": [{"Ip": {"Ipv4": 0}}], "labels": {"name": "x"}})
        );
    }

    #[test]
    fn bytes_that_are_cut_off_end_quietly() {
        let profile = destination::DestinationProfile {
            fully_qualified_name: "web".to_owned(),
            ..destination::DestinationProfile::default()
        };
        let bytes = profile.encode_to_vec();
        for length in 0..bytes.len() {
            assert_eq!(object(PROFILE, &bytes[..length], DEPTH), json!({}));
        }
    }
}
