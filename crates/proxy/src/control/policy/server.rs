//! Inbound policy messages → compiled policy of a port.

use std::{collections::HashMap, sync::Arc, time::Duration};

use linkerd_api::proto::{inbound, meta as meta_proto};
use linkerd_core::identity::Id;

use super::super::convert::{
    Result, Unusable, duration, each, grpc_failure, grpc_match, header_change, host_match,
    http_failure, http_match, meta, redirect,
};
use crate::{
    inbound::rate::Buckets,
    policy::{
        Meta,
        filter::Filter,
        matching::RuleMatch,
        server::{
            Authentication, Authorization, HttpRoute, HttpRoutes, HttpRule, Protocol, RateLimit,
            ServerPolicy, localhost,
        },
    },
};

/// One message of `InboundServerPolicies.WatchPort`.
pub(in crate::control) fn server_policy(server: inbound::Server) -> ServerPolicy {
    let meta = labelled(None, &server.labels);
    let authorizations = authorizations(server.authorizations);
    let protocol = server
        .protocol
        .and_then(|p| p.kind)
        .ok_or_else(|| Unusable::new("missing protocol"))
        .and_then(protocol);
    match (protocol, authorizations) {
        (Ok(protocol), Ok(mut authorizations)) => {
            authorizations.push(localhost());
            ServerPolicy {
                meta,
                protocol,
                authorizations,
            }
        }
        (Err(error), _) | (_, Err(error)) => ServerPolicy {
            meta,
            protocol: Protocol::Invalid(error.to_string()),
            authorizations: Vec::new(),
        },
    }
}

/// Metadata, or the older labels `group`, `kind`, `name`.
fn labelled(metadata: Option<meta_proto::Metadata>, labels: &HashMap<String, String>) -> Arc<Meta> {
    if let Ok(meta) = meta(metadata) {
        return meta;
    }
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    let kind = label("kind");
    if kind.is_empty() || kind == "default" {
        return Meta::default_named(&label("name"));
    }
    Arc::new(Meta::Resource {
        group: label("group"),
        kind,
        namespace: label("namespace"),
        name: label("name"),
        section: String::new(),
        port: None,
    })
}

fn protocol(kind: inbound::proxy_protocol::Kind) -> Result<Protocol> {
    use inbound::proxy_protocol::Kind;
    Ok(match kind {
        Kind::Detect(d) => Protocol::Detect {
            timeout: d
                .timeout
                .map(duration)
                .transpose()?
                .unwrap_or(Duration::from_secs(10)),
            http: http_routes(d.http_routes, d.http_local_rate_limit)?,
        },
        Kind::Http1(h) => Protocol::Http1(http_routes(h.routes, h.local_rate_limit)?),
        Kind::Http2(h) => Protocol::Http2(http_routes(h.routes, h.local_rate_limit)?),
        Kind::Grpc(g) => Protocol::Grpc(grpc_routes(g.routes)?),
        Kind::Opaque(_) => Protocol::Opaque,
        Kind::Tls(_) => Protocol::Tls,
    })
}

/// A route, HTTP or gRPC: the same in messages of different types. Its rules are numbered later.
macro_rules! http_route {
    ($route:ident, $matches:ident, $filters:ident) => {{
        let rules = each($route.rules, |rule| {
            Ok(HttpRule {
                index: 0,
                matches: each(rule.matches, $matches)?,
                filters: $filters(rule.filters)?,
            })
        })?;
        Ok(HttpRoute {
            meta: meta($route.metadata)?,
            hosts: each($route.hosts, host_match)?,
            authorizations: authorizations($route.authorizations)?,
            rules,
        })
    }};
}

fn http_routes(
    routes: Vec<inbound::HttpRoute>,
    limit: Option<inbound::HttpLocalRateLimit>,
) -> Result<HttpRoutes> {
    let rate_limit = limit.map(rate_limit).transpose()?;
    let matches = |m| http_match(m).map(RuleMatch::Http);
    let routes = each(routes, |route| http_route!(route, matches, http_filters))?;
    Ok(numbered(routes, rate_limit))
}

fn grpc_routes(routes: Vec<inbound::GrpcRoute>) -> Result<HttpRoutes> {
    let matches = |m| grpc_match(m).map(RuleMatch::Grpc);
    let routes = each(routes, |route| http_route!(route, matches, grpc_filters))?;
    Ok(numbered(routes, None))
}

fn numbered(mut routes: Vec<HttpRoute>, rate_limit: Option<RateLimit>) -> HttpRoutes {
    if routes.is_empty() {
        return HttpRoutes {
            rate_limit,
            ..HttpRoutes::all()
        };
    }
    let mut rules = 0;
    for rule in routes.iter_mut().flat_map(|route| &mut route.rules) {
        rule.index = rules;
        rules += 1;
    }
    HttpRoutes {
        routes,
        rules,
        rate_limit,
    }
}

fn http_filters(filters: Vec<inbound::http_route::Filter>) -> Result<Vec<Filter>> {
    use inbound::http_route::filter::Kind;
    each(filters, |f| {
        Ok(match f.kind {
            Some(Kind::FailureInjector(f)) => Filter::HttpFailure(http_failure(f)?),
            Some(Kind::RequestHeaderModifier(m)) => {
                Filter::RequestHeaders(header_change(m.add, m.set, m.remove)?)
            }
            Some(Kind::Redirect(r)) => Filter::Redirect(redirect(r)?),
            None => return Err(Unusable::new("unknown filter")),
        })
    })
}

fn grpc_filters(filters: Vec<inbound::grpc_route::Filter>) -> Result<Vec<Filter>> {
    use inbound::grpc_route::filter::Kind;
    each(filters, |f| {
        Ok(match f.kind {
            Some(Kind::FailureInjector(f)) => Filter::GrpcFailure(grpc_failure(f)?),
            Some(Kind::RequestHeaderModifier(m)) => {
                Filter::RequestHeaders(header_change(m.add, m.set, m.remove)?)
            }
            None => return Err(Unusable::new("unknown filter")),
        })
    })
}

fn authorizations(list: Vec<inbound::Authz>) -> Result<Vec<Authorization>> {
    each(list, authorization)
}

fn authorization(authz: inbound::Authz) -> Result<Authorization> {
    use inbound::authn::{Permit, permit_mesh_tls::Clients};
    let networks = authz
        .networks
        .into_iter()
        .map(|network| {
            let net = network
                .net
                .ok_or_else(|| Unusable::new("missing network"))?;
            let net = net.try_into().map_err(Unusable::new)?;
            let except = network
                .except
                .into_iter()
                .map(|e| e.try_into().map_err(Unusable::new))
                .collect::<Result<_>>()?;
            Ok((net, except))
        })
        .collect::<Result<_>>()?;
    let permit = authz
        .authentication
        .and_then(|a| a.permit)
        .ok_or_else(|| Unusable::new("missing authentication"))?;
    let authentication = match permit {
        Permit::Unauthenticated(_) => Authentication::Unauthenticated,
        Permit::MeshTls(tls) => match tls.clients {
            Some(Clients::Unauthenticated(_)) => Authentication::TlsUnauthenticated,
            Some(Clients::Identities(i)) => Authentication::Identities {
                ids: identities(i.identities)?,
                suffixes: i.suffixes.into_iter().map(|s| s.parts.join(".")).collect(),
            },
            None => return Err(Unusable::new("missing clients")),
        },
    };
    Ok(Authorization {
        meta: labelled(authz.metadata, &authz.labels),
        networks,
        authentication,
    })
}

fn identities(list: Vec<inbound::Identity>) -> Result<Vec<Id>> {
    list.into_iter()
        .map(|id| Id::parse(&id.name).map_err(Unusable::new))
        .collect()
}

fn rate_limit(limit: inbound::HttpLocalRateLimit) -> Result<RateLimit> {
    let rps = |l: inbound::http_local_rate_limit::Limit| l.requests_per_second;
    Ok(RateLimit {
        meta: meta(limit.metadata).unwrap_or_else(|_| Meta::default_named("")),
        total: limit.total.map(rps).filter(|n| *n > 0),
        identity: limit.identity.map(rps).filter(|n| *n > 0),
        buckets: Buckets::new(),
        overrides: limit
            .overrides
            .into_iter()
            .filter_map(|o| Some((o.limit.map(rps).filter(|n| *n > 0)?, o.clients)))
            .map(|(rps, clients)| Ok((rps, identities(clients.unwrap_or_default().identities)?)))
            .collect::<Result<_>>()?,
    })
}
