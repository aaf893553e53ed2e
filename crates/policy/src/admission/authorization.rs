//! Rules of AuthorizationPolicies and ServerAuthorizations.

use linkerd_core::policy::POLICY_GROUP;
use linkerd_k8s::policy::{AuthorizationPolicySpec, NamespacedRef, ServerAuthorizationSpec};

use super::authentication::networks;
use crate::index::authorization::{Target, target};

pub(super) fn policy(spec: &AuthorizationPolicySpec, namespace: &str) -> Result<(), String> {
    let reference = &spec.target_ref;
    match target(reference) {
        None => {
            let group = reference.group.as_deref().unwrap_or_default();
            return Err(format!(
                "unsupported target kind: {group}/{}",
                reference.kind
            ));
        }
        Some(Target::Namespace) if reference.name != namespace => {
            return Err(format!(
                "cannot target another namespace: {}",
                reference.name
            ));
        }
        Some(_) => {}
    }
    let refs = &spec.required_authentication_refs;
    let count = |group: &str, kind: &str| {
        refs.iter()
            .filter(|reference| reference.targets(group, kind))
            .count()
    };
    let mesh_tls = count(POLICY_GROUP, "MeshTLSAuthentication");
    let accounts = count("", "ServiceAccount");
    let networks = count(POLICY_GROUP, "NetworkAuthentication");
    if mesh_tls > 1 {
        return Err("only a single MeshTLSAuthentication may be set".to_owned());
    }
    if accounts > 1 {
        return Err("only a single ServiceAccount may be set".to_owned());
    }
    if mesh_tls + accounts > 1 {
        return Err(
            "a MeshTLSAuthentication and ServiceAccount may not be set together".to_owned(),
        );
    }
    if networks > 1 {
        return Err("only a single NetworkAuthentication may be set".to_owned());
    }
    if mesh_tls + accounts + networks < refs.len() {
        let known = |reference: &&NamespacedRef| {
            reference.targets(POLICY_GROUP, "MeshTLSAuthentication")
                || reference.targets(POLICY_GROUP, "NetworkAuthentication")
                || reference.targets("", "ServiceAccount")
        };
        let unknown: Vec<_> = refs
            .iter()
            .filter(|reference| !known(reference))
            .map(
                |reference| match reference.group.as_deref().unwrap_or_default() {
                    "" => reference.kind.clone(),
                    group => format!("{}.{group}", reference.kind),
                },
            )
            .collect();
        return Err(format!(
            "unsupported authentication kind(s): {}",
            unknown.join(", ")
        ));
    }
    Ok(())
}

pub(super) fn server_authorization(spec: &ServerAuthorizationSpec) -> Result<(), String> {
    let client = &spec.client;
    networks(client.networks.as_deref().unwrap_or_default())?;
    if let Some(mesh_tls) = &client.mesh_tls {
        if client.unauthenticated {
            return Err("`unauthenticated` must be false if `meshTLS` is specified".to_owned());
        }
        let named = mesh_tls
            .identities
            .as_ref()
            .is_some_and(|list| !list.is_empty())
            || mesh_tls
                .service_accounts
                .as_ref()
                .is_some_and(|list| !list.is_empty());
        if mesh_tls.unauthenticated_tls && named {
            return Err("`unauthenticatedTLS` must be false if `identities` or `serviceAccounts` are specified".to_owned());
        }
    }
    Ok(())
}
