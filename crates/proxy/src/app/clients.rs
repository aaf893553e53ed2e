//! Makes the proxy's connections to its control plane.

use std::sync::Arc;

use linkerd_tls::Store;

use crate::{
    config::{Config, ControlAddr},
    control::{
        Channel,
        client::{ChannelError, ConnectOptions, Refresh},
        dns::Resolver,
    },
    metrics::{Registry, balancer::Kind, control::ControlMetrics},
};

/// What clients of the control plane have in common.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) config: Arc<Config>,
    pub(super) registry: Arc<Registry>,
    pub(super) store: Arc<Store>,
    pub(super) resolver: Resolver,
}

impl Clients {
    pub(super) fn metrics(&self, addr: &ControlAddr, kind: Kind) -> Arc<ControlMetrics> {
        let identity = addr.identity.as_deref();
        ControlMetrics::new(&self.registry, kind, &addr.addr.to_string(), identity)
    }

    /// A channel that counts in series of its own.
    pub(super) fn channel(&self, addr: &ControlAddr, kind: Kind) -> Result<Channel, ChannelError> {
        self.counted(addr, &self.metrics(addr, kind))
    }

    /// A channel that counts in these series.
    pub(super) fn counted(
        &self,
        addr: &ControlAddr,
        metrics: &Arc<ControlMetrics>,
    ) -> Result<Channel, ChannelError> {
        let (store, resolver) = (self.store.clone(), self.resolver.clone());
        Channel::new(addr, store, resolver, self.options(addr), metrics.clone())
    }

    /// A service in our own pod is reached as the application is.
    fn options(&self, addr: &ControlAddr) -> ConnectOptions {
        let config = &self.config;
        let refresh = Refresh {
            min: config.control.dns_min_ttl,
            max: config.control.dns_max_ttl,
        };
        let (timeout, socket) = match addr.addr.is_loopback() {
            true => (config.inbound.connect_timeout, config.inbound.connect),
            false => (config.outbound.connect_timeout, config.outbound.connect),
        };
        ConnectOptions {
            timeout,
            socket,
            refresh,
        }
    }
}
