//! Authorizations, read: which Servers and routes, and what a client must prove.

use linkerd_core::policy::{
    GATEWAY_GROUP, POLICY_GROUP,
    inbound::{Authentication, IdentityMatch, Network},
};
use linkerd_k8s::{Key, Selector, intern::Names, policy as k8s};
use std::{collections::BTreeMap, sync::Arc};

use super::{Dirty, Store, Stored, Table, route::RouteKind};
use crate::{cluster::Cluster, network};

/// A ServerAuthorization: everything it says is in the object itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServerAuthorization {
    servers: Servers,
    pub(crate) networks: Vec<Network>,
    pub(crate) authentication: Authentication,
}

#[derive(Clone, Debug, PartialEq)]
enum Servers {
    Name(String),
    Selector(Selector),
}

/// An AuthorizationPolicy: its authentications are objects of their own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuthorizationPolicy {
    pub(crate) target: Target,
    pub(crate) authentications: Vec<AuthenticationRef>,
}

/// What an AuthorizationPolicy is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Server(String),
    Namespace,
    Route(RouteKind, String),
}

/// What a client must satisfy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthenticationRef {
    MeshTls(Key),
    Network(Key),
    /// The identity of a ServiceAccount.
    Identity(String),
}

impl ServerAuthorization {
    pub(crate) fn selects(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        match &self.servers {
            Servers::Name(wanted) => wanted == name,
            Servers::Selector(selector) => selector.matches(labels),
        }
    }
}

impl AuthorizationPolicy {
    pub(crate) fn targets_server(&self, name: &str) -> bool {
        match &self.target {
            Target::Namespace => true,
            Target::Server(wanted) => wanted == name,
            Target::Route(..) => false,
        }
    }

    pub(crate) fn targets_route(&self, kind: RouteKind, name: &str) -> bool {
        matches!(&self.target, Target::Route(wanted, target) if *wanted == kind && target.eq_ignore_ascii_case(name))
    }
}

/// Reads who the clients of a ServerAuthorization are.
fn client_authentication(
    client: &k8s::Client,
    namespace: &str,
    cluster: &Cluster,
) -> Result<Authentication, String> {
    if client.unauthenticated {
        return Ok(Authentication::Unauthenticated);
    }
    let Some(mesh_tls) = &client.mesh_tls else {
        return Err("no client authentication configured".to_owned());
    };
    if mesh_tls.unauthenticated_tls {
        return Ok(Authentication::TlsUnauthenticated);
    }
    let named = mesh_tls
        .identities
        .iter()
        .flatten()
        .map(|identity| IdentityMatch::parse(identity));
    let accounts = mesh_tls.service_accounts.iter().flatten().map(|account| {
        let namespace = account.namespace.as_deref().unwrap_or(namespace);
        IdentityMatch::Exact(cluster.service_account_identity(namespace, &account.name))
    });
    let identities: Vec<_> = named.chain(accounts).collect();
    if identities.is_empty() {
        return Err("no client identities configured".to_owned());
    }
    Ok(Authentication::TlsAuthenticated(identities))
}

impl Stored for k8s::ServerAuthorization {
    type Model = ServerAuthorization;

    fn read(
        object: &Arc<Self>,
        cluster: &Cluster,
        _: &mut Names,
    ) -> Result<Option<ServerAuthorization>, String> {
        let k8s::ServerAuthorizationSpec { server, client } = &object.spec;
        let servers = match (&server.name, &server.selector) {
            (Some(name), _) => Servers::Name(name.clone()),
            (None, Some(selector)) => {
                Servers::Selector(Selector::compile(selector).map_err(|error| error.to_string())?)
            }
            (None, None) => Servers::Selector(Selector::default()),
        };
        let networks = match client.networks.as_deref() {
            None | Some([]) => cluster.as_networks(),
            Some(networks) => network::parse_all(networks).map_err(|error| error.to_string())?,
        };
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        Ok(Some(ServerAuthorization {
            servers,
            networks,
            authentication: client_authentication(client, namespace, cluster)?,
        }))
    }

    fn table(store: &mut Store) -> &mut Table<ServerAuthorization> {
        &mut store.server_authorizations
    }

    fn changed(
        _: &mut Store,
        key: &Key,
        _: Option<&Self::Model>,
        _: Option<&Self::Model>,
        dirty: &mut Dirty,
    ) {
        dirty.namespaces.insert(key.namespace.clone());
    }
}

/// Reads what an AuthorizationPolicy is for.
pub(crate) fn target(reference: &k8s::LocalRef) -> Option<Target> {
    let name = || reference.name.clone();
    if reference.targets(POLICY_GROUP, "Server") {
        Some(Target::Server(name()))
    } else if reference.targets("", "Namespace") {
        Some(Target::Namespace)
    } else if reference.targets(POLICY_GROUP, "HTTPRoute") {
        Some(Target::Route(RouteKind::PolicyHttp, name()))
    } else if reference.targets(GATEWAY_GROUP, "HTTPRoute") {
        Some(Target::Route(RouteKind::GatewayHttp, name()))
    } else if reference.targets(GATEWAY_GROUP, "GRPCRoute") {
        Some(Target::Route(RouteKind::Grpc, name()))
    } else {
        None
    }
}

impl Stored for k8s::AuthorizationPolicy {
    type Model = AuthorizationPolicy;

    fn read(
        object: &Arc<Self>,
        cluster: &Cluster,
        _: &mut Names,
    ) -> Result<Option<AuthorizationPolicy>, String> {
        let own = object.metadata.namespace.as_deref().unwrap_or_default();
        let reference = &object.spec.target_ref;
        let target = target(reference)
            .ok_or_else(|| format!("unsupported target kind {}", reference.kind))?;
        if target == Target::Namespace && reference.name != own {
            return Err(format!(
                "cannot target another namespace: {}",
                reference.name
            ));
        }
        let mut authentications = Vec::new();
        let (mut identities, mut networks) = (0, 0);
        for reference in &object.spec.required_authentication_refs {
            let namespace = reference.namespace.as_deref().unwrap_or(own);
            let key = Key::new(namespace, reference.name.as_str());
            authentications.push(
                if reference.targets(POLICY_GROUP, "MeshTLSAuthentication") {
                    identities += 1;
                    AuthenticationRef::MeshTls(key)
                } else if reference.targets("", "ServiceAccount") {
                    identities += 1;
                    AuthenticationRef::Identity(
                        cluster.service_account_identity(namespace, &reference.name),
                    )
                } else if reference.targets(POLICY_GROUP, "NetworkAuthentication") {
                    networks += 1;
                    AuthenticationRef::Network(key)
                } else {
                    return Err(format!(
                        "unsupported authentication kind {}",
                        reference.kind
                    ));
                },
            );
        }
        if identities > 1 || networks > 1 {
            return Err(
                "at most one identity and one network authentication may be required".to_owned(),
            );
        }
        Ok(Some(AuthorizationPolicy {
            target,
            authentications,
        }))
    }

    fn table(store: &mut Store) -> &mut Table<AuthorizationPolicy> {
        &mut store.authorization_policies
    }

    fn changed(
        _: &mut Store,
        key: &Key,
        _: Option<&Self::Model>,
        _: Option<&Self::Model>,
        dirty: &mut Dirty,
    ) {
        dirty.namespaces.insert(key.namespace.clone());
    }
}
