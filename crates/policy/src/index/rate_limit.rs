//! Rate limits, read.

use linkerd_core::policy::{POLICY_GROUP, inbound::RateOverride};
use linkerd_k8s::{Key, intern::Names, policy as k8s};
use std::sync::Arc;

use super::{Created, Dirty, Store, Stored, Table};
use crate::cluster::Cluster;

/// An HTTPLocalRateLimitPolicy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RateLimit {
    pub(crate) created: Created,
    pub(crate) generation: Option<i64>,
    /// The Server it is for; none if the target is something else.
    pub(crate) server: Option<String>,
    pub(crate) target: k8s::LocalRef,
    pub(crate) total: Option<u32>,
    pub(crate) identity: Option<u32>,
    pub(crate) overrides: Vec<RateOverride>,
    /// What the API server has.
    pub(crate) status: Option<k8s::HTTPLocalRateLimitPolicyStatus>,
}

impl Stored for k8s::HTTPLocalRateLimitPolicy {
    type Model = RateLimit;

    fn read(
        object: &Arc<Self>,
        cluster: &Cluster,
        _: &mut Names,
    ) -> Result<Option<RateLimit>, String> {
        let own = object.metadata.namespace.as_deref().unwrap_or_default();
        let spec = &object.spec;
        let overrides = spec.overrides.iter().flatten().map(|limit| {
            let clients = limit.client_refs.iter().map(|reference| {
                if !reference.targets("", "ServiceAccount") {
                    return Err(format!("unsupported client kind {}", reference.kind));
                }
                let namespace = reference.namespace.as_deref().unwrap_or(own);
                Ok(cluster.service_account_identity(namespace, &reference.name))
            });
            Ok(RateOverride {
                requests_per_second: limit.requests_per_second,
                clients: clients.collect::<Result<_, String>>()?,
            })
        });
        let targets_server = spec.target_ref.targets(POLICY_GROUP, "Server");
        Ok(Some(RateLimit {
            created: Created::of(&object.metadata),
            generation: object.metadata.generation,
            server: targets_server.then(|| spec.target_ref.name.clone()),
            target: spec.target_ref.clone(),
            total: spec.total.as_ref().map(|limit| limit.requests_per_second),
            identity: spec
                .identity
                .as_ref()
                .map(|limit| limit.requests_per_second),
            overrides: overrides.collect::<Result<_, String>>()?,
            status: object.status.clone(),
        }))
    }

    fn table(store: &mut Store) -> &mut Table<RateLimit> {
        &mut store.rate_limits
    }

    fn changed(
        _: &mut Store,
        key: &Key,
        _: Option<&RateLimit>,
        _: Option<&RateLimit>,
        dirty: &mut Dirty,
    ) {
        dirty.namespaces.insert(key.namespace.clone());
        dirty.status = true;
    }
}

impl Store {
    /// The rate limit in force on a Server: the oldest that is for it.
    pub(crate) fn rate_limit_of(
        &self,
        namespace: &str,
        server: &str,
    ) -> Option<(&str, &Arc<RateLimit>)> {
        let limits = self.rate_limits.namespace(namespace);
        limits
            .filter(|(_, limit)| limit.server.as_deref() == Some(server))
            .min_by_key(|(name, limit)| (limit.created, *name))
    }
}
