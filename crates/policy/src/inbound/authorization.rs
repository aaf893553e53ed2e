//! Who may use a Server or a route: grants of every resource that names it.

use linkerd_core::policy::inbound::{Authentication, Authorization, IdentityMatch};

use super::resource;
use crate::{
    cluster::{Cluster, all_networks},
    index::{
        Store,
        authorization::{AuthenticationRef, AuthorizationPolicy},
        route::RouteId,
        server::Server,
    },
};

/// Grants on a Server, in a fixed order: its own access policy, then by kind and name.
pub(super) fn of_server(
    store: &Store,
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    server: &Server,
) -> Vec<Authorization> {
    let access = server
        .access
        .and_then(|policy| policy.authorization(cluster));
    let policies = policies(store, namespace, |policy| policy.targets_server(name));
    let older = store.server_authorizations.namespace(namespace);
    let older = older
        .filter(|(_, authz)| authz.selects(name, &server.labels))
        .map(|(name, authz)| Authorization {
            origin: resource("serverauthorization", name),
            networks: authz.networks.clone(),
            authentication: authz.authentication.clone(),
        });
    access.into_iter().chain(policies).chain(older).collect()
}

/// Grants on a route.
pub(super) fn of_route(store: &Store, _: &Cluster, route: &RouteId) -> Vec<Authorization> {
    policies(store, &route.namespace, |policy| {
        policy.targets_route(route.kind, &route.name)
    })
    .collect()
}

fn policies(
    store: &Store,
    namespace: &str,
    targets: impl Fn(&AuthorizationPolicy) -> bool,
) -> impl Iterator<Item = Authorization> {
    let policies = store.authorization_policies.namespace(namespace);
    policies
        .filter(move |(_, policy)| targets(policy))
        .filter_map(move |(name, policy)| grant(store, name, policy))
}

/// What a policy grants; nothing while an authentication it needs is missing.
fn grant(store: &Store, name: &str, policy: &AuthorizationPolicy) -> Option<Authorization> {
    let mut networks = None;
    let mut authentication = Authentication::Unauthenticated;
    for reference in &policy.authentications {
        match reference {
            AuthenticationRef::Identity(identity) => {
                let identity = IdentityMatch::Exact(identity.clone());
                authentication = Authentication::TlsAuthenticated(vec![identity]);
            }
            AuthenticationRef::MeshTls(key) => {
                let Some(mesh_tls) = store.mesh_tls.get(&key.namespace, &key.name) else {
                    tracing::info!(policy = name, authentication = %key, "Skipping a policy whose authentication is missing");
                    return None;
                };
                authentication = Authentication::TlsAuthenticated(mesh_tls.0.clone());
            }
            AuthenticationRef::Network(key) => {
                let Some(found) = store.networks.get(&key.namespace, &key.name) else {
                    tracing::info!(policy = name, authentication = %key, "Skipping a policy whose authentication is missing");
                    return None;
                };
                networks = Some(found.0.clone());
            }
        }
    }
    Some(Authorization {
        origin: resource("authorizationpolicy", name),
        networks: networks.unwrap_or_else(all_networks),
        authentication,
    })
}
