//! The listeners of the proxy, and one set of those for traffic for every worker.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

use super::StartError;
use crate::{config::Config, socket};

/// Bound, and nobody accepts yet.
pub(super) struct Listeners {
    pub(super) outbound: Vec<TcpListener>,
    pub(super) outbound_addrs: Vec<SocketAddr>,
    pub(super) inbound: TcpListener,
    pub(super) inbound_addr: SocketAddr,
    pub(super) admin: TcpListener,
    pub(super) admin_addr: SocketAddr,
}

impl Listeners {
    pub(super) fn bind(config: &Config) -> Result<Self, StartError> {
        let inbound = socket::bind(config.inbound.listen, config.inbound.backlog)
            .map_err(|e| StartError::Bind("inbound", e))?;
        let mut outbound = Vec::new();
        for addr in &config.outbound.listen {
            let listener = socket::bind(*addr, config.outbound.backlog)
                .map_err(|e| StartError::Bind("outbound", e))?;
            outbound.push(listener);
        }
        let outbound_addrs = outbound.iter().map(TcpListener::local_addr);
        let admin =
            socket::bind(config.admin.listen, None).map_err(|e| StartError::Bind("admin", e))?;
        Ok(Self {
            outbound_addrs: outbound_addrs.collect::<io::Result<_>>()?,
            outbound,
            inbound_addr: inbound.local_addr()?,
            inbound,
            admin_addr: admin.local_addr()?,
            admin,
        })
    }
}

/// The first worker takes the listeners as bound, the others bind the same addresses again.
pub(super) fn again(
    listeners: &[TcpListener],
    addrs: &[SocketAddr],
    backlog: Option<u32>,
    index: usize,
) -> Result<Vec<TcpListener>, StartError> {
    if index == 0 {
        let taken = listeners.iter().map(TcpListener::try_clone);
        return Ok(taken.collect::<io::Result<_>>()?);
    }
    let bound = addrs.iter().map(|addr| socket::bind(*addr, backlog));
    Ok(bound.collect::<io::Result<_>>()?)
}
