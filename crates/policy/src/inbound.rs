//! Inbound policy: computes what one port of one workload allows, from what the index stores.

use linkerd_core::policy::{
    GrpcFilter, GrpcMatch, HttpFilter, HttpMatch, Origin, POLICY_GROUP, PathMatch, ResourceRef,
    inbound::{
        Authentication, Authorization, GrpcRoute, Http, HttpRoute, Network, Protocol, RateLimit,
        Route, Rule, Server,
    },
};
use std::{sync::Arc, time::Duration};

use crate::{
    cluster::Cluster,
    index::{
        Store,
        route::{self, Flavor, ParentId, ParentKind, RouteHead},
        server::ServerProtocol,
        workload::{Workload, WorkloadId},
    },
    outbound::accepts,
};

mod authorization;
mod default_policy;

pub use default_policy::{DefaultPolicy, UnknownPolicy};

const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The policy of a port; `None` if there is no such workload.
pub(crate) fn server(
    store: &Store,
    cluster: &Cluster,
    id: &WorkloadId,
    port: u16,
) -> Option<Server> {
    let workload = store.workload(id)?;
    let probes = probe_route(workload, port, cluster);
    let Some((name, server)) = selected(store, id, workload, port) else {
        return Some(default_server(workload, port, probes, cluster));
    };
    let namespace = id.namespace.as_str();
    let http = || Http {
        routes: http_routes(store, cluster, namespace, name, probes),
        rate_limit: rate_limit(store, namespace, name),
    };
    let protocol = match server.protocol {
        ServerProtocol::Detect => Protocol::Detect {
            timeout: DETECT_TIMEOUT,
            http: http(),
        },
        ServerProtocol::Http1 => Protocol::Http1(http()),
        ServerProtocol::Http2 => Protocol::Http2(http()),
        ServerProtocol::Grpc => Protocol::Grpc {
            routes: grpc_routes(store, cluster, namespace, name),
        },
        ServerProtocol::Opaque => Protocol::Opaque,
        ServerProtocol::Tls => Protocol::Tls,
    };
    Some(Server {
        origin: resource("server", name),
        protocol,
        authorizations: authorization::of_server(store, cluster, namespace, name, server),
    })
}

/// The Server a port has: the oldest that selects it.
fn selected<'s>(
    store: &'s Store,
    id: &WorkloadId,
    workload: &Workload,
    port: u16,
) -> Option<(&'s str, &'s crate::index::server::Server)> {
    let servers = store.servers.namespace(&id.namespace);
    let selecting = servers.filter(|(_, server)| server.selects(id.kind, workload, port));
    let mut selecting: Vec<_> = selecting
        .map(|(name, server)| (server.created, name, server))
        .collect();
    selecting.sort_by_key(|(created, name, _)| (*created, *name));
    if let [(_, first, _), (_, second, _), ..] = selecting.as_slice() {
        tracing::debug!(
            port,
            server = first,
            skipped = second,
            "Port already matched by another server; skipping"
        );
    }
    selecting
        .first()
        .map(|(_, name, server)| (*name, &***server))
}

fn default_server(
    workload: &Workload,
    port: u16,
    probes: Option<HttpRoute>,
    cluster: &Cluster,
) -> Server {
    let policy = workload.default_policy(port, cluster);
    let protocol = if workload.is_opaque(port) {
        Protocol::Opaque
    } else {
        let http = Http {
            routes: default_http_routes(probes),
            rate_limit: None,
        };
        Protocol::Detect {
            timeout: DETECT_TIMEOUT,
            http,
        }
    };
    Server {
        origin: Origin::Default(policy.name()),
        protocol,
        authorizations: policy.authorization(cluster).into_iter().collect(),
    }
}

/// Routes a Server accepts, in order of precedence.
fn attached<'s, R>(
    store: &'s Store,
    namespace: &str,
    server: &str,
    find: impl Fn(&route::RouteId) -> Option<&'s Arc<R>>,
    head: impl Fn(&R) -> &RouteHead,
) -> Vec<&'s R> {
    let parent = ParentId::server(namespace, server);
    let routes = store
        .routes_of(&parent)
        .filter(|id| id.namespace == namespace);
    let mut routes: Vec<&R> = routes
        .filter_map(|id| find(id).map(Arc::as_ref))
        .filter(|route| serves_inbound(store, head(route), &parent))
        .collect();
    routes.sort_by(|a, b| head(a).precedence().cmp(&head(b).precedence()));
    routes
}

/// Whether the Server accepts the route. One that is for part of a Server, or for a Server of
/// another namespace, is left out as a whole.
fn serves_inbound(store: &Store, head: &RouteHead, server: &ParentId) -> bool {
    let servers = || {
        let parents = head.parents.iter();
        parents.filter(|parent| parent.id.kind == ParentKind::Server)
    };
    let whole = |parent: &route::Parent| {
        let own = parent.id.namespace == head.id.namespace;
        own && parent.port.is_none() && !parent.section
    };
    servers().all(whole)
        && servers()
            .filter(|parent| parent.id == *server)
            .any(|parent| accepts(store, head, parent).is_ok())
}

fn http_routes(
    store: &Store,
    cluster: &Cluster,
    namespace: &str,
    server: &str,
    probes: Option<HttpRoute>,
) -> Vec<HttpRoute> {
    let routes = attached(
        store,
        namespace,
        server,
        |id| store.http_route(id),
        |route| &route.head,
    );
    if routes.is_empty() {
        return default_http_routes(probes);
    }
    // There is no way to say what happens to response headers.
    let keep = |filter: &HttpFilter| !matches!(filter, HttpFilter::ResponseHeaders(_));
    routes
        .into_iter()
        .map(|route| convert(store, cluster, route, HttpMatch::any, keep))
        .collect()
}

fn grpc_routes(store: &Store, cluster: &Cluster, namespace: &str, server: &str) -> Vec<GrpcRoute> {
    let find = |id: &route::RouteId| match id.kind {
        route::RouteKind::Grpc => store.grpc.get(&id.namespace, &id.name),
        _ => None,
    };
    let routes = attached(store, namespace, server, find, |route| &route.head);
    if routes.is_empty() {
        return vec![default_route(vec![GrpcMatch::default()])];
    }
    routes
        .into_iter()
        .map(|route| {
            convert(
                store,
                cluster,
                route,
                GrpcMatch::default,
                |_: &GrpcFilter| true,
            )
        })
        .collect()
}

fn convert<P: Flavor>(
    store: &Store,
    cluster: &Cluster,
    route: &route::Route<P>,
    any: impl Fn() -> P::Match,
    keep: impl Fn(&P::Filter) -> bool,
) -> Route<P::Match, P::Filter> {
    let id = &route.head.id;
    let rules = route.rules.iter().filter_map(|rule| {
        let matches = match (&rule.matches, &rule.problem) {
            (matches, None) if matches.is_empty() => vec![any()],
            // What it matches could not be read either.
            (matches, Some(_)) if matches.is_empty() => return None,
            (matches, _) => matches.clone(),
        };
        let filters = match &rule.problem {
            Some(problem) => vec![P::broken_rule(problem.clone())],
            None => rule
                .filters
                .iter()
                .filter(|filter| keep(filter))
                .cloned()
                .collect(),
        };
        Some(Rule { matches, filters })
    });
    Route {
        origin: Origin::Resource(ResourceRef {
            group: id.kind.group().to_owned(),
            kind: id.kind.kind().to_owned(),
            name: id.name.clone(),
            ..ResourceRef::default()
        }),
        hosts: route.hosts.clone(),
        authorizations: authorization::of_route(store, cluster, id),
        rules: rules.collect(),
    }
}

fn default_route<M, F>(matches: Vec<M>) -> Route<M, F> {
    Route {
        origin: Origin::Default("default"),
        hosts: Vec::new(),
        authorizations: Vec::new(),
        rules: vec![Rule {
            matches,
            filters: Vec::new(),
        }],
    }
}

fn default_http_routes(probes: Option<HttpRoute>) -> Vec<HttpRoute> {
    let default = default_route(vec![HttpMatch::any()]);
    [Some(default), probes].into_iter().flatten().collect()
}

/// Lets the kubelet probe the port without an identity.
fn probe_route(workload: &Workload, port: u16, cluster: &Cluster) -> Option<HttpRoute> {
    if cluster.probe_networks.is_empty() {
        return None;
    }
    let paths = workload.probe_paths(port);
    let matches = paths.map(|path| HttpMatch {
        path: Some(PathMatch::Exact(path.to_owned())),
        method: Some("GET".to_owned()),
        ..HttpMatch::default()
    });
    let matches: Vec<_> = matches.collect();
    if matches.is_empty() {
        return None;
    }
    let mut route = default_route(matches);
    route.origin = Origin::Default("probe");
    route.authorizations = vec![Authorization {
        origin: Origin::Default("probe"),
        networks: cluster
            .probe_networks
            .iter()
            .copied()
            .map(Network::from)
            .collect(),
        authentication: Authentication::Unauthenticated,
    }];
    Some(route)
}

fn rate_limit(store: &Store, namespace: &str, server: &str) -> Option<RateLimit> {
    let (name, limit) = store.rate_limit_of(namespace, server)?;
    Some(RateLimit {
        origin: resource("HTTPLocalRateLimitPolicy", name),
        total: limit.total,
        identity: limit.identity,
        overrides: limit.overrides.clone(),
    })
}

/// A policy resource of the workload's own namespace, which the wire leaves out.
fn resource(kind: &str, name: &str) -> Origin {
    Origin::Resource(ResourceRef {
        group: POLICY_GROUP.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        ..ResourceRef::default()
    })
}

#[cfg(test)]
mod tests;
