//! Authentications, read: identities and networks of clients.

use linkerd_core::policy::inbound::{IdentityMatch, Network};
use linkerd_k8s::{Key, intern::Names, policy as k8s};
use std::sync::Arc;

use super::{Dirty, Store, Stored, Table, authorization::AuthenticationRef};
use crate::{cluster::Cluster, network};

/// A MeshTLSAuthentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeshTls(pub(crate) Vec<IdentityMatch>);

/// A NetworkAuthentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Networks(pub(crate) Vec<Network>);

/// Marks the namespaces whose policies need the authentication.
fn mark(store: &Store, reference: &AuthenticationRef, dirty: &mut Dirty) {
    for (namespace, _, policy) in store.authorization_policies.iter() {
        if policy.authentications.contains(reference) {
            dirty.namespaces.insert(namespace.to_owned());
        }
    }
}

impl Stored for k8s::MeshTLSAuthentication {
    type Model = MeshTls;

    fn read(
        object: &Arc<Self>,
        cluster: &Cluster,
        _: &mut Names,
    ) -> Result<Option<MeshTls>, String> {
        let own = object.metadata.namespace.as_deref().unwrap_or_default();
        let mut identities: Vec<_> = object
            .spec
            .identities
            .iter()
            .flatten()
            .map(|identity| IdentityMatch::parse(identity))
            .collect();
        for reference in object.spec.identity_refs.iter().flatten() {
            if reference.name.is_empty() {
                return Err(format!("reference to a {} without a name", reference.kind));
            }
            let identity = if reference.targets("", "ServiceAccount") {
                let namespace = reference.namespace.as_deref().unwrap_or(own);
                cluster.service_account_identity(namespace, &reference.name)
            } else if reference.targets("", "Namespace") {
                cluster.namespace_identity(&reference.name)
            } else {
                return Err(format!("unsupported identity kind {}", reference.kind));
            };
            identities.push(IdentityMatch::parse(&identity));
        }
        if identities.is_empty() {
            return Err("no identities".to_owned());
        }
        Ok(Some(MeshTls(identities)))
    }

    fn table(store: &mut Store) -> &mut Table<MeshTls> {
        &mut store.mesh_tls
    }

    fn changed(
        store: &mut Store,
        key: &Key,
        _: Option<&MeshTls>,
        _: Option<&MeshTls>,
        dirty: &mut Dirty,
    ) {
        mark(store, &AuthenticationRef::MeshTls(key.clone()), dirty);
    }
}

impl Stored for k8s::NetworkAuthentication {
    type Model = Networks;

    fn read(object: &Arc<Self>, _: &Cluster, _: &mut Names) -> Result<Option<Networks>, String> {
        if object.spec.networks.is_empty() {
            return Err("no networks".to_owned());
        }
        network::parse_all(&object.spec.networks)
            .map(Networks)
            .map(Some)
            .map_err(|error| error.to_string())
    }

    fn table(store: &mut Store) -> &mut Table<Networks> {
        &mut store.networks
    }

    fn changed(
        store: &mut Store,
        key: &Key,
        _: Option<&Networks>,
        _: Option<&Networks>,
        dirty: &mut Dirty,
    ) {
        mark(store, &AuthenticationRef::Network(key.clone()), dirty);
    }
}
