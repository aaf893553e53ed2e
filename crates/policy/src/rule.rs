//! Rules of routes, from what a resource says to what a proxy understands.
//!
//! Reading is strict: what cannot be honoured is a [`RuleError`], which either marks a single rule
//! as unusable (in the index) or refuses the whole object (at admission).

use http::{HeaderName, HeaderValue, StatusCode};
use linkerd_core::policy::{
    GrpcFilter, GrpcMatch, HeaderModifier, HttpFilter, HttpMatch, NamedMatch, PathMatch,
    PathModifier, Redirect, ValueMatch,
};
use linkerd_k8s::policy::route as k8s;

/// Why a rule cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The API allows it, this mesh does not do it.
    #[error("unsupported {what}: {value}")]
    Unsupported {
        /// Which part of the rule.
        what: &'static str,
        /// What it says.
        value: String,
    },
    /// It makes no sense.
    #[error("invalid {what}: {reason}")]
    Invalid {
        /// Which part of the rule.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
}

fn unsupported(what: &'static str, value: &str) -> RuleError {
    RuleError::Unsupported {
        what,
        value: value.to_owned(),
    }
}

fn invalid(what: &'static str, reason: impl ToString) -> RuleError {
    RuleError::Invalid {
        what,
        reason: reason.to_string(),
    }
}

/// Reads conditions on an HTTP request.
pub fn http_match(source: &k8s::HttpMatch) -> Result<HttpMatch, RuleError> {
    let path = source.path.as_ref().map(path_match).transpose()?;
    Ok(HttpMatch {
        path: Some(path.unwrap_or_else(|| PathMatch::Prefix("/".to_owned()))),
        headers: source
            .headers
            .iter()
            .map(header_match)
            .collect::<Result<_, _>>()?,
        query: source
            .query_params
            .iter()
            .map(query_match)
            .collect::<Result<_, _>>()?,
        method: source.method.as_deref().map(method).transpose()?,
    })
}

/// Reads conditions on a gRPC call.
pub fn grpc_match(source: &k8s::GrpcMatch) -> Result<GrpcMatch, RuleError> {
    let headers = source
        .headers
        .iter()
        .map(header_match)
        .collect::<Result<_, _>>()?;
    let Some(method) = &source.method else {
        return Ok(GrpcMatch {
            headers,
            ..GrpcMatch::default()
        });
    };
    if let Some(type_) = method.type_.as_deref().filter(|type_| *type_ != "Exact") {
        return Err(unsupported("method match type", type_));
    }
    let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    Ok(GrpcMatch {
        service: named(&method.service),
        method: named(&method.method),
        headers,
    })
}

fn path_match(source: &k8s::PathMatch) -> Result<PathMatch, RuleError> {
    let value = source.value.clone().unwrap_or_else(|| "/".to_owned());
    let absolute = |value: String| {
        if value.starts_with('/') {
            Ok(value)
        } else {
            Err(invalid(
                "path",
                format!("{value:?} is not an absolute path"),
            ))
        }
    };
    match source.type_.as_deref().unwrap_or("PathPrefix") {
        "Exact" => absolute(value).map(PathMatch::Exact),
        "PathPrefix" => absolute(value).map(PathMatch::Prefix),
        "RegularExpression" => regex("path", value).map(PathMatch::Regex),
        other => Err(unsupported("path match type", other)),
    }
}

fn header_match(source: &k8s::NamedMatch) -> Result<NamedMatch, RuleError> {
    header_name(&source.name)?;
    let value = value_match("header match type", "header", source)?;
    if let ValueMatch::Exact(value) = &value {
        header_value(value)?;
    }
    Ok(NamedMatch {
        name: source.name.clone(),
        value,
    })
}

fn query_match(source: &k8s::NamedMatch) -> Result<NamedMatch, RuleError> {
    let value = value_match("query match type", "query parameter", source)?;
    Ok(NamedMatch {
        name: source.name.clone(),
        value,
    })
}

fn value_match(
    type_: &'static str,
    what: &'static str,
    source: &k8s::NamedMatch,
) -> Result<ValueMatch, RuleError> {
    match source.type_.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(ValueMatch::Exact(source.value.clone())),
        "RegularExpression" => regex(what, source.value.clone()).map(ValueMatch::Regex),
        other => Err(unsupported(type_, other)),
    }
}

fn regex(what: &'static str, value: String) -> Result<String, RuleError> {
    match regex::Regex::new(&value) {
        Ok(_) => Ok(value),
        Err(error) => Err(invalid(what, error)),
    }
}

fn method(value: &str) -> Result<String, RuleError> {
    match http::Method::from_bytes(value.as_bytes()) {
        Ok(method) => Ok(method.to_string()),
        Err(error) => Err(invalid("method", error)),
    }
}

fn header_name(name: &str) -> Result<(), RuleError> {
    HeaderName::from_bytes(name.as_bytes())
        .map(drop)
        .map_err(|error| invalid("header name", format!("{name:?}: {error}")))
}

fn header_value(value: &str) -> Result<(), RuleError> {
    HeaderValue::from_str(value)
        .map(drop)
        .map_err(|error| invalid("header value", format!("{value:?}: {error}")))
}

/// Reads a filter of an HTTP rule or of one of its backends.
pub fn http_filter(source: &k8s::Filter) -> Result<HttpFilter, RuleError> {
    match source.type_.as_str() {
        "RequestHeaderModifier" => {
            let modifier = required(
                "requestHeaderModifier",
                source.request_header_modifier.as_ref(),
            )?;
            header_modifier(modifier).map(HttpFilter::RequestHeaders)
        }
        "ResponseHeaderModifier" => {
            let modifier = required(
                "responseHeaderModifier",
                source.response_header_modifier.as_ref(),
            )?;
            header_modifier(modifier).map(HttpFilter::ResponseHeaders)
        }
        "RequestRedirect" => {
            let target = required("requestRedirect", source.request_redirect.as_ref())?;
            redirect(target).map(HttpFilter::Redirect)
        }
        other => Err(unsupported("filter", other)),
    }
}

/// Reads a filter of a gRPC rule or of one of its backends. Response headers cannot be changed on
/// gRPC routes: such a filter is left out.
pub fn grpc_filter(source: &k8s::Filter) -> Result<Option<GrpcFilter>, RuleError> {
    match source.type_.as_str() {
        "RequestHeaderModifier" => {
            let modifier = required(
                "requestHeaderModifier",
                source.request_header_modifier.as_ref(),
            )?;
            Ok(Some(GrpcFilter::RequestHeaders(header_modifier(modifier)?)))
        }
        "ResponseHeaderModifier" => {
            let modifier = required(
                "responseHeaderModifier",
                source.response_header_modifier.as_ref(),
            )?;
            header_modifier(modifier).map(|_| None)
        }
        other => Err(unsupported("filter", other)),
    }
}

fn required<'a, T>(what: &'static str, value: Option<&'a T>) -> Result<&'a T, RuleError> {
    value.ok_or_else(|| invalid(what, "must be set for the filter of that type"))
}

fn header_modifier(source: &k8s::HeaderModifier) -> Result<HeaderModifier, RuleError> {
    let headers = |headers: &[k8s::Header]| {
        let pairs = headers.iter().map(|header| {
            header_name(&header.name)?;
            header_value(&header.value)?;
            Ok((header.name.clone(), header.value.clone()))
        });
        pairs.collect::<Result<Vec<_>, RuleError>>()
    };
    source
        .remove
        .iter()
        .try_for_each(|name| header_name(name))?;
    Ok(HeaderModifier {
        add: headers(&source.add)?,
        set: headers(&source.set)?,
        remove: source.remove.clone(),
    })
}

fn redirect(source: &k8s::Redirect) -> Result<Redirect, RuleError> {
    let status = source
        .status_code
        .map(|code| match StatusCode::from_u16(code) {
            Ok(status) if (100..=599).contains(&code) => Ok(status.as_u16()),
            _ => Err(invalid(
                "status code",
                format!("{code} is not an HTTP status"),
            )),
        });
    let scheme = source.scheme.as_deref().map(|scheme| {
        scheme
            .parse::<http::uri::Scheme>()
            .map_err(|error| invalid("scheme", error))
    });
    Ok(Redirect {
        scheme: scheme.transpose()?.map(|scheme| scheme.to_string()),
        host: source.hostname.clone(),
        path: source.path.as_ref().map(path_modifier).transpose()?,
        port: source.port,
        status: status.transpose()?,
    })
}

fn path_modifier(source: &k8s::PathModifier) -> Result<PathModifier, RuleError> {
    let absolute = |what, value: &Option<String>| match value {
        None => Err(invalid(
            what,
            "must be set for the path modifier of that type",
        )),
        Some(value) if !value.starts_with('/') => {
            Err(invalid(what, format!("{value:?} is not an absolute path")))
        }
        Some(value) => Ok(value.clone()),
    };
    match source.type_.as_str() {
        "ReplaceFullPath" => {
            absolute("replaceFullPath", &source.replace_full_path).map(PathModifier::Full)
        }
        "ReplacePrefixMatch" => {
            absolute("replacePrefixMatch", &source.replace_prefix_match).map(PathModifier::Prefix)
        }
        other => Err(unsupported("path modifier", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn matched(value: Value) -> Result<HttpMatch, String> {
        http_match(&serde_json::from_value(value).expect("shape"))
            .map_err(|error| error.to_string())
    }

    fn filtered(value: Value) -> Result<HttpFilter, String> {
        http_filter(&serde_json::from_value(value).expect("shape"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn matches() {
        let path = |path| {
            Ok(HttpMatch {
                path: Some(path),
                ..HttpMatch::default()
            })
        };
        for (name, source, expected) in [
            ("nothing is everything", json!({}), Ok(HttpMatch::any())),
            ("path defaults", json!({"path": {}}), Ok(HttpMatch::any())),
            (
                "exact",
                json!({"path": {"type": "Exact", "value": "/a"}}),
                path(PathMatch::Exact("/a".into())),
            ),
            (
                "regex",
                json!({"path": {"type": "RegularExpression", "value": "/a+"}}),
                path(PathMatch::Regex("/a+".into())),
            ),
            (
                "method",
                json!({"method": "GET"}),
                Ok(HttpMatch {
                    method: Some("GET".into()),
                    ..HttpMatch::any()
                }),
            ),
            (
                "headers and query",
                json!({
                    "headers": [{"name": "x", "value": "1"}],
                    "queryParams": [{"name": "q", "type": "RegularExpression", "value": "a|b"}],
                }),
                Ok(HttpMatch {
                    headers: vec![NamedMatch {
                        name: "x".into(),
                        value: ValueMatch::Exact("1".into()),
                    }],
                    query: vec![NamedMatch {
                        name: "q".into(),
                        value: ValueMatch::Regex("a|b".into()),
                    }],
                    ..HttpMatch::any()
                }),
            ),
        ] {
            assert_eq!(matched(source), expected, "{name}");
        }
        for (name, source, expected) in [
            (
                "relative prefix",
                json!({"path": {"value": "a"}}),
                "is not an absolute path",
            ),
            (
                "relative exact",
                json!({"path": {"type": "Exact", "value": "a"}}),
                "is not an absolute path",
            ),
            (
                "bad regex",
                json!({"path": {"type": "RegularExpression", "value": "("}}),
                "invalid path: ",
            ),
            (
                "new path type",
                json!({"path": {"type": "Glob", "value": "/"}}),
                "unsupported path match type: Glob",
            ),
            (
                "header name",
                json!({"headers": [{"name": "a b", "value": "1"}]}),
                "invalid header name",
            ),
            (
                "header value",
                json!({"headers": [{"name": "a", "value": "\n"}]}),
                "invalid header value",
            ),
            (
                "header regex",
                json!({"headers": [{"name": "a", "type": "RegularExpression", "value": "["}]}),
                "invalid header: ",
            ),
        ] {
            let error = matched(source).expect_err(name);
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn filters() {
        let redirected = filtered(json!({"type": "RequestRedirect", "requestRedirect": {
            "scheme": "https", "hostname": "a.b", "port": 8443, "statusCode": 307,
            "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/x"},
        }}));
        assert_eq!(
            redirected,
            Ok(HttpFilter::Redirect(Redirect {
                scheme: Some("https".into()),
                host: Some("a.b".into()),
                path: Some(PathModifier::Prefix("/x".into())),
                port: Some(8443),
                status: Some(307),
            }))
        );
        for (name, source, expected) in [
            (
                "mirror",
                json!({"type": "RequestMirror"}),
                "unsupported filter: RequestMirror",
            ),
            (
                "rewrite",
                json!({"type": "URLRewrite"}),
                "unsupported filter: URLRewrite",
            ),
            (
                "extension",
                json!({"type": "ExtensionRef"}),
                "unsupported filter: ExtensionRef",
            ),
            (
                "empty",
                json!({"type": "RequestHeaderModifier"}),
                "invalid requestHeaderModifier",
            ),
            (
                "relative redirect",
                json!({"type": "RequestRedirect", "requestRedirect": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "x"}}}),
                "is not an absolute path",
            ),
            (
                "redirect path missing",
                json!({"type": "RequestRedirect", "requestRedirect": {"path": {"type": "ReplaceFullPath"}}}),
                "invalid replaceFullPath",
            ),
            (
                "status",
                json!({"type": "RequestRedirect", "requestRedirect": {"statusCode": 999}}),
                "invalid status code",
            ),
        ] {
            let error = filtered(source).expect_err(name);
            assert!(error.contains(expected), "{name}: {error}");
        }
        let dropped = grpc_filter(
            &serde_json::from_value(
                json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {}}),
            )
            .expect("shape"),
        );
        assert_eq!(dropped, Ok(None));
    }

    #[test]
    fn grpc_methods() {
        for (name, source, expected) in [
            ("any", json!({}), Ok((None, None))),
            (
                "service",
                json!({"method": {"service": "a.B"}}),
                Ok((Some("a.B"), None)),
            ),
            (
                "both",
                json!({"method": {"type": "Exact", "service": "a.B", "method": "C"}}),
                Ok((Some("a.B"), Some("C"))),
            ),
            (
                "regex",
                json!({"method": {"type": "RegularExpression", "method": "C.*"}}),
                Err("unsupported method match type: RegularExpression"),
            ),
        ] {
            let found = grpc_match(&serde_json::from_value(source).expect("shape"));
            let found = found
                .map(|found| (found.service, found.method))
                .map_err(|error| error.to_string());
            let expected = expected
                .map(|(service, method): (Option<&str>, Option<&str>)| {
                    (service.map(str::to_owned), method.map(str::to_owned))
                })
                .map_err(str::to_owned);
            assert_eq!(found, expected, "{name}");
        }
    }
}
