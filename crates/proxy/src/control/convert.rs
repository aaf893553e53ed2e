//! Wire types that both policy services and the destination service share → our types.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, StatusCode};
use linkerd_api::proto::{destination as dst, grpc_route, http_route, http_types, meta, outbound};
use linkerd_core::identity::Id;
use linkerd_tls::Peer;
use regex::Regex;

use crate::{
    config::{
        Backoff,
        value::{LARGEST_WINDOW, LONGEST},
    },
    h2io::ping::KeepAlive,
    policy::{
        Meta,
        endpoint::{EndpointMeta, EndpointUpdate, Hint, Http2Params},
        filter::{Failure, HeaderChange, PathChange, Redirect},
        matching::{GrpcMatch, HostMatch, HttpMatch, PathMatch, ValueMatch},
    },
};

/// A message that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unusable(String);

impl Unusable {
    pub(super) fn new(what: impl std::fmt::Display) -> Self {
        Self(what.to_string())
    }
}

pub(super) type Result<T> = std::result::Result<T, Unusable>;

/// Converts all of a list, or says what is wrong with the first that cannot be used.
pub(super) fn each<T, U>(list: Vec<T>, convert: impl FnMut(T) -> Result<U>) -> Result<Vec<U>> {
    list.into_iter().map(convert).collect()
}

/// Largest compiled regular expression.
const REGEX_SIZE: usize = 256 * 1024;

pub(super) fn meta(m: Option<meta::Metadata>) -> Result<Arc<Meta>> {
    match m.and_then(|m| m.kind) {
        Some(meta::metadata::Kind::Default(name)) => Ok(Meta::default_named(&name)),
        Some(meta::metadata::Kind::Resource(r)) => Ok(Arc::new(Meta::Resource {
            group: r.group,
            kind: r.kind,
            namespace: r.namespace,
            name: r.name,
            section: r.section,
            port: u16::try_from(r.port).ok().filter(|p| *p != 0),
        })),
        None => Err(Unusable::new("missing metadata")),
    }
}

/// At most [`LONGEST`].
pub(super) fn duration(d: prost_types::Duration) -> Result<Duration> {
    Duration::try_from(d)
        .map(|d| d.min(LONGEST))
        .map_err(|_| Unusable::new("negative duration"))
}

pub(super) fn opt_duration(d: Option<prost_types::Duration>) -> Result<Option<Duration>> {
    d.map(duration).transpose()
}

pub(super) fn backoff(b: outbound::ExponentialBackoff) -> Result<Backoff> {
    let min = opt_duration(b.min_backoff)?.ok_or_else(|| Unusable::new("missing min_backoff"))?;
    let max = opt_duration(b.max_backoff)?.ok_or_else(|| Unusable::new("missing max_backoff"))?;
    Backoff::new(min, max, f64::from(b.jitter_ratio)).map_err(Unusable::new)
}

pub(super) fn regex(pattern: &str) -> Result<Regex> {
    regex::RegexBuilder::new(&format!("^(?:{pattern})$"))
        .size_limit(REGEX_SIZE)
        .build()
        .map_err(Unusable::new)
}

pub(super) fn host_match(m: http_route::HostMatch) -> Result<HostMatch> {
    match m.r#match {
        Some(http_route::host_match::Match::Exact(name)) => {
            let name = name.strip_suffix('.').unwrap_or(&name);
            Ok(HostMatch::Exact(name.to_ascii_lowercase()))
        }
        Some(http_route::host_match::Match::Suffix(s)) => Ok(suffix(s.reverse_labels)),
        None => Err(Unusable::new("empty host match")),
    }
}

pub(super) fn suffix(reverse_labels: Vec<String>) -> HostMatch {
    let mut text = String::new();
    for label in reverse_labels.iter().rev() {
        text.push('.');
        text.push_str(&label.to_ascii_lowercase());
    }
    HostMatch::Suffix(text)
}

pub(super) fn http_match(m: http_route::HttpRouteMatch) -> Result<HttpMatch> {
    use http_route::{path_match, query_param_match};
    let path = match m.path.and_then(|p| p.kind) {
        Some(path_match::Kind::Exact(path)) => Some(PathMatch::Exact(path)),
        Some(path_match::Kind::Prefix(path)) => Some(PathMatch::prefix(&path)),
        Some(path_match::Kind::Regex(pattern)) => Some(PathMatch::Regex(regex(&pattern)?)),
        None => None,
    };
    let query = m
        .query_params
        .into_iter()
        .map(|q| {
            let value = match q.value {
                Some(query_param_match::Value::Exact(text)) => ValueMatch::Exact(text.into_bytes()),
                Some(query_param_match::Value::Regex(p)) => ValueMatch::Regex(regex(&p)?),
                None => return Err(Unusable::new("empty query match")),
            };
            Ok((q.name, value))
        })
        .collect::<Result<_>>()?;
    let method = m
        .method
        .map(|method| http::Method::try_from(method).map_err(Unusable::new))
        .transpose()?;
    Ok(HttpMatch {
        path,
        headers: header_matches(m.headers)?,
        query,
        method,
    })
}

pub(super) fn grpc_match(m: grpc_route::GrpcRouteMatch) -> Result<GrpcMatch> {
    let rpc = m.rpc.unwrap_or_default();
    Ok(GrpcMatch {
        service: rpc.service,
        method: rpc.method,
        headers: header_matches(m.headers)?,
    })
}

fn header_matches(list: Vec<http_route::HeaderMatch>) -> Result<Vec<(HeaderName, ValueMatch)>> {
    use http_route::header_match::Value;
    list.into_iter()
        .map(|h| {
            let name = h.name.parse().map_err(Unusable::new)?;
            let value = match h.value {
                Some(Value::Exact(bytes)) => ValueMatch::Exact(bytes),
                Some(Value::Regex(pattern)) => ValueMatch::Regex(regex(&pattern)?),
                None => return Err(Unusable::new("empty header match")),
            };
            Ok((name, value))
        })
        .collect()
}

pub(super) fn header_change(
    add: Option<http_types::Headers>,
    set: Option<http_types::Headers>,
    remove: Vec<String>,
) -> Result<HeaderChange> {
    let lines = |headers: Option<http_types::Headers>| {
        headers
            .unwrap_or_default()
            .headers
            .into_iter()
            .map(|h| {
                let name: HeaderName = h.name.parse().map_err(Unusable::new)?;
                let value = HeaderValue::from_bytes(&h.value).map_err(Unusable::new)?;
                Ok((name, value))
            })
            .collect::<Result<Vec<_>>>()
    };
    Ok(HeaderChange {
        add: lines(add)?,
        set: lines(set)?,
        remove: remove
            .iter()
            .map(|n| n.parse().map_err(Unusable::new))
            .collect::<Result<_>>()?,
    })
}

pub(super) fn redirect(r: http_route::RequestRedirect) -> Result<Redirect> {
    use http_route::path_modifier::Replace;
    let scheme = r
        .scheme
        .map(|s| {
            http::uri::Scheme::try_from(s)
                .map(|s| s.to_string())
                .map_err(Unusable::new)
        })
        .transpose()?;
    let status = match r.status {
        0 => None,
        status => Some(status_code(status)?),
    };
    let port = match r.port {
        0 => None,
        port => Some(u16::try_from(port).map_err(Unusable::new)?),
    };
    Ok(Redirect {
        scheme,
        host: Some(r.host).filter(|h| !h.is_empty()),
        port,
        path: r.path.and_then(|p| p.replace).map(|p| match p {
            Replace::Full(path) => PathChange::Full(path),
            Replace::Prefix(path) => PathChange::Prefix(path),
        }),
        status,
    })
}

pub(super) fn http_failure(f: http_route::HttpFailureInjector) -> Result<Failure<StatusCode>> {
    let ratio = f.ratio.unwrap_or_default();
    Ok(Failure {
        status: status_code(f.status)?,
        message: f.message,
        numerator: ratio.numerator,
        denominator: ratio.denominator,
    })
}

pub(super) fn grpc_failure(f: grpc_route::GrpcFailureInjector) -> Result<Failure<u16>> {
    let ratio = f.ratio.unwrap_or_default();
    Ok(Failure {
        status: u16::try_from(f.code).map_err(Unusable::new)?,
        message: f.message,
        numerator: ratio.numerator,
        denominator: ratio.denominator,
    })
}

fn status_code(status: u32) -> Result<StatusCode> {
    u16::try_from(status)
        .ok()
        .and_then(|s| StatusCode::from_u16(s).ok())
        .ok_or_else(|| Unusable::new("invalid status"))
}

/// One address with its metadata; `None` when it cannot be understood (it is then left out).
pub(super) fn endpoint(
    addr: dst::WeightedAddr,
    set_labels: &std::collections::HashMap<String, String>,
) -> Option<(SocketAddr, EndpointMeta)> {
    let socket = SocketAddr::try_from(addr.addr?).ok()?;
    let mut labels: Vec<(String, String)> = set_labels
        .iter()
        .filter(|(k, _)| !addr.metric_labels.contains_key(*k))
        .chain(&addr.metric_labels)
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    labels.sort();
    let peer = addr.tls_identity.and_then(peer);
    let (hint, inbound_port) = match addr.protocol_hint {
        None => (Hint::Unknown, None),
        Some(hint) => {
            let port = hint
                .opaque_transport
                .and_then(|t| u16::try_from(t.inbound_port).ok())
                .filter(|p| *p != 0 && *p != u16::MAX);
            let hint = match hint.protocol {
                Some(dst::protocol_hint::Protocol::H2(_)) => Hint::H2,
                Some(dst::protocol_hint::Protocol::Opaque(_)) => Hint::Opaque,
                None => Hint::Unknown,
            };
            (hint, port)
        }
    };
    let meta = EndpointMeta {
        labels,
        peer: peer.map(Arc::new),
        hint,
        inbound_port,
        authority: addr
            .authority_override
            .map(|a| a.authority_override)
            .filter(|a| !a.is_empty()),
        http2: addr.http2.map(http2_params).unwrap_or_default(),
    };
    Some((socket, meta))
}

fn peer(tls: dst::TlsIdentity) -> Option<Peer> {
    use dst::tls_identity::Strategy;
    let id = match tls.strategy? {
        Strategy::DnsLikeIdentity(id) => Id::parse_dns(&id.name).ok()?,
        Strategy::UriLikeIdentity(id) => Id::parse_uri(&id.uri).ok()?,
    };
    let server_name = tls.server_name.map(|n| n.name).filter(|n| !n.is_empty());
    Peer::new(id, server_name.as_deref()).ok()
}

fn http2_params(p: dst::Http2ClientParams) -> Http2Params {
    let flow = p.flow_control.unwrap_or_default();
    let internals = p.internals.unwrap_or_default();
    let positive = |n: u32| Some(n).filter(|n| *n != 0);
    let size = |n: u32| positive(n).and_then(|n| usize::try_from(n).ok());
    let possible = |n: &u32| *n <= LARGEST_WINDOW;
    Http2Params {
        connection_window: positive(flow.initial_connection_window_size).filter(possible),
        stream_window: positive(flow.initial_stream_window_size).filter(possible),
        adaptive: flow.adaptive_flow_control,
        keep_alive: p.keep_alive.and_then(|k| {
            Some(KeepAlive {
                interval: k.interval.and_then(|d| duration(d).ok())?,
                timeout: k.timeout.and_then(|d| duration(d).ok())?,
                while_idle: k.while_idle,
            })
        }),
        max_frame_size: positive(internals.max_frame_size)
            .filter(|n| (16_384..=16_777_215).contains(n)),
        max_concurrent_reset_streams: size(internals.max_concurrent_reset_streams),
        max_send_buf_size: size(internals.max_send_buf_size),
    }
}

/// One message of `Destination.Get`.
pub(super) fn endpoint_update(update: dst::Update) -> Option<EndpointUpdate> {
    Some(match update.update? {
        dst::update::Update::Add(set) => EndpointUpdate::Add(
            set.addrs
                .into_iter()
                .filter_map(|addr| endpoint(addr, &set.metric_labels))
                .collect(),
        ),
        dst::update::Update::Remove(set) => EndpointUpdate::Remove(
            set.addrs
                .into_iter()
                .filter_map(|addr| SocketAddr::try_from(addr).ok())
                .collect(),
        ),
        dst::update::Update::NoEndpoints(none) => EndpointUpdate::None {
            exists: none.exists,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_bounded() {
        for (name, seconds, want) in [
            ("a second", 1, Ok(Duration::from_secs(1))),
            ("for ever", i64::MAX, Ok(LONGEST)),
            ("negative", -1, Err(Unusable::new("negative duration"))),
        ] {
            let wire = prost_types::Duration { seconds, nanos: 0 };
            assert_eq!(duration(wire), want, "{name}");
        }
    }

    #[test]
    fn impossible_windows_are_left_out() {
        for (size, want) in [
            (0, None),
            (65_535, Some(65_535)),
            (LARGEST_WINDOW, Some(LARGEST_WINDOW)),
            (LARGEST_WINDOW + 1, None),
        ] {
            let params = http2_params(dst::Http2ClientParams {
                flow_control: Some(dst::http2_client_params::FlowControl {
                    initial_connection_window_size: size,
                    initial_stream_window_size: size,
                    ..Default::default()
                }),
                ..Default::default()
            });
            assert_eq!(params.connection_window, want, "{size}");
            assert_eq!(params.stream_window, want, "{size}");
        }
    }
}
