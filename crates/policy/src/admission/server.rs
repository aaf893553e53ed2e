//! Rules of Servers and EgressNetworks.

use linkerd_k8s::policy::{EgressNetworkSpec, ServerSpec};

use super::authentication::networks;
use crate::{
    inbound::DefaultPolicy,
    index::server::{Port, ServerProtocol},
};

pub(super) fn server(spec: &ServerSpec) -> Result<(), String> {
    ServerProtocol::parse(spec.proxy_protocol.as_deref())?;
    Port::parse(&spec.port)?;
    if let Some(policy) = &spec.access_policy {
        policy
            .parse::<DefaultPolicy>()
            .map_err(|error| format!("Invalid 'accessPolicy' field: {error}"))?;
    }
    Ok(())
}

pub(super) fn egress_network(spec: &EgressNetworkSpec) -> Result<(), String> {
    match spec.networks.as_deref() {
        Some([]) => Err("at least one network must be specified".to_owned()),
        list => networks(list.unwrap_or_default()),
    }
}
