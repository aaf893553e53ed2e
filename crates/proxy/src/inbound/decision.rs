//! What is logged of decisions about clients: which policy decided, and about whom.

use super::Client;
use crate::policy::{Meta, server::ServerPolicy};

/// About a connection as a whole.
pub(super) fn connection(
    message: &'static str,
    policy: &ServerPolicy,
    authz: Option<&Meta>,
    client: &Client,
) {
    tracing::info!(
        server.group = policy.meta.group(),
        server.kind = policy.meta.kind(),
        server.name = policy.meta.name(),
        authz.group = authz.map(Meta::group),
        authz.kind = authz.map(Meta::kind),
        authz.name = authz.map(Meta::name),
        client.ip = %client.addr.ip(),
        client.tls = ?client.tls,
        "{message}"
    );
}

/// About one request.
pub(super) fn request(
    message: &'static str,
    policy: &ServerPolicy,
    route: &Meta,
    authz: Option<&Meta>,
    client: &Client,
) {
    tracing::info!(
        server.group = policy.meta.group(),
        server.kind = policy.meta.kind(),
        server.name = policy.meta.name(),
        route.group = route.group(),
        route.kind = route.kind(),
        route.name = route.name(),
        authz.group = authz.map(Meta::group),
        authz.kind = authz.map(Meta::kind),
        authz.name = authz.map(Meta::name),
        client.ip = %client.addr.ip(),
        client.tls = ?client.tls,
        "{message}"
    );
}
