//! Service profiles → our type.

use std::{net::SocketAddr, sync::Arc};

use linkerd_api::proto::destination as dst;

use super::convert::endpoint;
use crate::policy::endpoint::EndpointMeta;

/// What `GetProfile` says about a destination.
#[derive(Debug, Default)]
pub struct Profile {
    /// The service's name.
    pub name: Option<String>,
    /// The service must not be looked at.
    pub opaque: bool,
    /// The destination is this one endpoint.
    pub endpoint: Option<(SocketAddr, Arc<EndpointMeta>)>,
}

impl Profile {
    pub(super) fn from_wire(profile: dst::DestinationProfile) -> Self {
        Self {
            name: Some(profile.fully_qualified_name).filter(|n| !n.is_empty()),
            opaque: profile.opaque_protocol,
            endpoint: profile
                .endpoint
                .and_then(|e| endpoint(e, &std::collections::HashMap::new()))
                .map(|(addr, meta)| (addr, Arc::new(meta))),
        }
    }
}
