//! Parts both services send: where a policy comes from, matches, header changes.

use linkerd_api::proto::{
    grpc_route, http_route, http_types,
    meta::{self, Metadata},
};
use linkerd_core::policy::{
    GrpcMatch, HeaderModifier, HostMatch, HttpMatch, NamedMatch, Origin, PathMatch, PathModifier,
    Redirect, ValueMatch,
};
use std::time::Duration;

pub(super) fn metadata(origin: &Origin) -> Metadata {
    let kind = match origin {
        Origin::Default(name) => meta::metadata::Kind::Default((*name).to_owned()),
        Origin::Resource(resource) => meta::metadata::Kind::Resource(meta::Resource {
            group: resource.group.clone(),
            kind: resource.kind.clone(),
            name: resource.name.clone(),
            namespace: resource.namespace.clone(),
            section: resource.section.clone(),
            port: resource.port.map(u32::from).unwrap_or_default(),
        }),
    };
    Metadata { kind: Some(kind) }
}

pub(super) fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

pub(super) fn host(host: &HostMatch) -> http_route::HostMatch {
    use http_route::host_match::{Match, Suffix};
    let matched = match host {
        HostMatch::Exact(name) => Match::Exact(name.clone()),
        HostMatch::Suffix(labels) => Match::Suffix(Suffix {
            reverse_labels: labels.clone(),
        }),
    };
    http_route::HostMatch {
        r#match: Some(matched),
    }
}

pub(super) fn http_match(source: &HttpMatch) -> http_route::HttpRouteMatch {
    let path = source.path.as_ref().map(|path| {
        use http_route::path_match::Kind;
        let kind = match path {
            PathMatch::Exact(path) => Kind::Exact(path.clone()),
            PathMatch::Prefix(prefix) => Kind::Prefix(prefix.clone()),
            PathMatch::Regex(regex) => Kind::Regex(regex.clone()),
        };
        http_route::PathMatch { kind: Some(kind) }
    });
    let query = source.query.iter().map(|query| {
        use http_route::query_param_match::Value;
        let value = match &query.value {
            ValueMatch::Exact(value) => Value::Exact(value.clone()),
            ValueMatch::Regex(regex) => Value::Regex(regex.clone()),
        };
        http_route::QueryParamMatch {
            name: query.name.clone(),
            value: Some(value),
        }
    });
    http_route::HttpRouteMatch {
        path,
        headers: source.headers.iter().map(header_match).collect(),
        query_params: query.collect(),
        method: source.method.as_deref().map(method),
    }
}

fn header_match(source: &NamedMatch) -> http_route::HeaderMatch {
    use http_route::header_match::Value;
    let value = match &source.value {
        ValueMatch::Exact(value) => Value::Exact(value.clone().into_bytes()),
        ValueMatch::Regex(regex) => Value::Regex(regex.clone()),
    };
    http_route::HeaderMatch {
        name: source.name.clone(),
        value: Some(value),
    }
}

fn method(name: &str) -> http_types::HttpMethod {
    match http::Method::from_bytes(name.as_bytes()) {
        Ok(method) => method.into(),
        Err(_) => http_types::HttpMethod {
            r#type: Some(http_types::http_method::Type::Unregistered(name.to_owned())),
        },
    }
}

pub(super) fn grpc_match(source: &GrpcMatch) -> grpc_route::GrpcRouteMatch {
    grpc_route::GrpcRouteMatch {
        rpc: Some(grpc_route::GrpcRpcMatch {
            service: source.service.clone().unwrap_or_default(),
            method: source.method.clone().unwrap_or_default(),
        }),
        headers: source.headers.iter().map(header_match).collect(),
    }
}

fn headers(pairs: &[(String, String)]) -> Option<http_types::Headers> {
    let headers = pairs
        .iter()
        .map(|(name, value)| http_types::headers::Header {
            name: name.clone(),
            value: value.clone().into_bytes(),
        });
    Some(http_types::Headers {
        headers: headers.collect(),
    })
}

pub(super) fn request_headers(source: &HeaderModifier) -> http_route::RequestHeaderModifier {
    http_route::RequestHeaderModifier {
        add: headers(&source.add),
        set: headers(&source.set),
        remove: source.remove.clone(),
    }
}

pub(super) fn response_headers(source: &HeaderModifier) -> http_route::ResponseHeaderModifier {
    http_route::ResponseHeaderModifier {
        add: headers(&source.add),
        set: headers(&source.set),
        remove: source.remove.clone(),
    }
}

pub(super) fn redirect(source: &Redirect) -> http_route::RequestRedirect {
    use http_route::path_modifier::Replace;
    let path = source.path.as_ref().map(|path| http_route::PathModifier {
        replace: Some(match path {
            PathModifier::Full(path) => Replace::Full(path.clone()),
            PathModifier::Prefix(prefix) => Replace::Prefix(prefix.clone()),
        }),
    });
    http_route::RequestRedirect {
        scheme: source.scheme.as_deref().map(Into::into),
        host: source.host.clone().unwrap_or_default(),
        path,
        port: source.port.map(u32::from).unwrap_or_default(),
        status: source.status.map(u32::from).unwrap_or_default(),
    }
}

pub(super) fn http_failure(status: u16, message: &str) -> http_route::HttpFailureInjector {
    http_route::HttpFailureInjector {
        status: status.into(),
        message: message.to_owned(),
        ratio: None,
    }
}

pub(super) fn grpc_failure(code: u32, message: &str) -> grpc_route::GrpcFailureInjector {
    grpc_route::GrpcFailureInjector {
        code,
        message: message.to_owned(),
        ratio: None,
    }
}
