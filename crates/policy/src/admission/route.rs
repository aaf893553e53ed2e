//! Rules of routes of all kinds.

use linkerd_core::duration;
use linkerd_k8s::policy::route::{
    BackendRef, ConnectionRule, Filter, GrpcRule, HttpRule, ParentRef, Spec, Timeouts,
};
use std::time::Duration;

use crate::{
    annotation::{self, Annotations},
    index::route::{BackendTarget, Parent, ParentKind},
    rule::{self, RuleError},
};

/// HTTPRoute of this mesh.
pub(super) fn policy_http(spec: &Spec<HttpRule>, annotations: &Annotations) -> Result<(), String> {
    parents(&spec.parent_refs)?;
    if is_outbound(&spec.parent_refs) {
        annotation::http_retry(annotations).map_err(|error| error.to_string())?;
        annotation::timeouts(annotations).map_err(|error| error.to_string())?;
    }
    for rule in &spec.rules {
        http_rule(rule)?;
        named(&rule.backend_refs)?;
        if let Some(limits) = &rule.timeouts {
            timeouts(limits)?;
        }
    }
    Ok(())
}

/// HTTPRoute of the Gateway API.
pub(super) fn gateway_http(spec: &Spec<HttpRule>, annotations: &Annotations) -> Result<(), String> {
    parents(&spec.parent_refs)?;
    if is_outbound(&spec.parent_refs) {
        annotation::http_retry(annotations).map_err(|error| error.to_string())?;
        annotation::timeouts(annotations).map_err(|error| error.to_string())?;
    }
    for rule in &spec.rules {
        http_rule(rule)?;
        backends(&rule.backend_refs)?;
    }
    Ok(())
}

/// GRPCRoute.
pub(super) fn grpc(spec: &Spec<GrpcRule>, annotations: &Annotations) -> Result<(), String> {
    parents(&spec.parent_refs)?;
    if is_outbound(&spec.parent_refs) {
        annotation::grpc_retry(annotations).map_err(|error| error.to_string())?;
        annotation::timeouts(annotations).map_err(|error| error.to_string())?;
    }
    for rule in &spec.rules {
        for matched in &rule.matches {
            rule::grpc_match(matched).map_err(|error| error.to_string())?;
        }
        filters(&rule.filters, |filter| rule::grpc_filter(filter).map(drop))?;
        for backend in &rule.backend_refs {
            filters(&backend.filters, |filter| {
                rule::grpc_filter(filter).map(drop)
            })?;
        }
        backends(&rule.backend_refs)?;
    }
    Ok(())
}

/// TLSRoute and TCPRoute.
pub(super) fn connection(spec: &Spec<ConnectionRule>, kind: &str) -> Result<(), String> {
    parents(&spec.parent_refs)?;
    if spec.rules.len() != 1 {
        return Err(format!("{kind} supports a single rule only"));
    }
    spec.rules
        .iter()
        .try_for_each(|rule| named(&rule.backend_refs))
}

fn parents(refs: &[ParentRef]) -> Result<(), String> {
    let egress_without_port = refs
        .iter()
        .filter_map(|parent| Parent::read(parent, ""))
        .any(|parent| parent.id.kind == ParentKind::EgressNetwork && parent.port.is_none());
    if egress_without_port {
        return Err("cannot target an EgressNetwork without specifying a port".to_owned());
    }
    Ok(())
}

/// Annotations count only where the route is for clients.
fn is_outbound(refs: &[ParentRef]) -> bool {
    let mut parents = refs.iter().filter_map(|parent| Parent::read(parent, ""));
    parents.any(|parent| parent.id.kind != ParentKind::Server)
}

fn http_rule(rule: &HttpRule) -> Result<(), String> {
    for matched in &rule.matches {
        admissible(rule::http_match(matched))?;
    }
    filters(&rule.filters, |filter| rule::http_filter(filter).map(drop))?;
    for backend in &rule.backend_refs {
        filters(&backend.filters, |filter| {
            rule::http_filter(filter).map(drop)
        })?;
    }
    Ok(())
}

fn filters(list: &[Filter], read: impl Fn(&Filter) -> Result<(), RuleError>) -> Result<(), String> {
    list.iter().try_for_each(|filter| admissible(read(filter)))
}

/// What is merely not supported is admitted: the status says so, and others may support it.
fn admissible<T>(read: Result<T, RuleError>) -> Result<(), String> {
    match read {
        Err(error @ RuleError::Invalid { .. }) => Err(error.to_string()),
        Ok(_) | Err(RuleError::Unsupported { .. }) => Ok(()),
    }
}

/// A reference without a name refers to nothing.
fn named<F>(refs: &[BackendRef<F>]) -> Result<(), String> {
    match refs.iter().any(|backend| backend.name.is_empty()) {
        true => Err("backendRefs must have a name".to_owned()),
        false => Ok(()),
    }
}

fn backends<F>(refs: &[BackendRef<F>]) -> Result<(), String> {
    named(refs)?;
    for backend in refs {
        let service = matches!(BackendTarget::read(backend, ""), BackendTarget::Service(_));
        if service && backend.port.is_none_or(|port| port == 0) {
            return Err("cannot reference a Service without a port".to_owned());
        }
    }
    Ok(())
}

fn timeouts(limits: &Timeouts) -> Result<(), String> {
    let read = |what: &str, text: &Option<String>| -> Result<Option<Duration>, String> {
        let Some(text) = text else { return Ok(None) };
        if text.trim().starts_with('-') {
            return Err(format!("{what} timeout must not be negative"));
        }
        let duration = duration::parse_gateway(text).or_else(|_| duration::parse_plain(text));
        duration
            .map(Some)
            .map_err(|error| format!("{what} timeout: {error}"))
    };
    let request = read("request", &limits.request)?.filter(|limit| !limit.is_zero());
    let backend = read("backendRequest", &limits.backend_request)?;
    if let (Some(request), Some(backend)) = (request, backend)
        && backend > request
    {
        return Err(
            "backendRequest timeout must not be greater than the request timeout".to_owned(),
        );
    }
    Ok(())
}
