//! An endpoint with everything a client must know about it, and the order and filters by which
//! sets of endpoints are cut for one client.

use std::{net::SocketAddr, sync::Arc};

use crate::intern::{Name, ObjectId};

/// Sorted by address, one entry per address.
pub type Endpoints = Arc<[Arc<Endpoint>]>;

/// Label names and values.
pub type Labels = Arc<[(Name, Name)]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub addr: SocketAddr,
    /// What stands behind the address.
    pub target: Target,
    pub identity: Option<Identity>,
    pub hint: Hint,
    /// Port of the peer's proxy that takes a transport header.
    pub opaque_transport: Option<u16>,
    /// Whether the peer's HTTP/2 server is a proxy of ours.
    pub http2: bool,
    pub authority: Option<Name>,
    pub labels: Labels,
    pub zone: Option<Name>,
    /// Zones that should use the endpoint.
    pub hints: Option<Arc<[Name]>>,
    pub hostname: Option<Name>,
    pub node: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Pod(ObjectId),
    ExternalWorkload(ObjectId),
    /// A gateway or an address somebody wrote by hand.
    Address,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A pod: the name of its certificate is also the name to ask for.
    Pod(Name),
    /// A gateway of another cluster, asked for without a name of its own.
    Gateway(Name),
    External {
        uri: Name,
        server_name: Name,
    },
}

/// What the peer's proxy is known to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Nothing is known of the peer.
    None,
    /// A proxy, but upgrades are turned off.
    Meshed,
    H2,
    Opaque,
}

/// How a client's position and question cut a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    pub hostname: Option<Name>,
    /// Zone of the client's node, when known.
    pub zone: Option<Name>,
    /// The client's node; only kept while the Service's traffic must stay on it.
    pub node: Option<Name>,
    /// Whether the client's place matters at all: it does not for another cluster's endpoints.
    pub anywhere: bool,
}

impl Endpoint {
    /// An address of which nothing is known.
    pub fn bare(addr: SocketAddr) -> Self {
        Self {
            addr,
            target: Target::Address,
            identity: None,
            hint: Hint::None,
            opaque_transport: None,
            http2: false,
            authority: None,
            labels: Arc::new([]),
            zone: None,
            hints: None,
            hostname: None,
            node: None,
        }
    }

    /// The workload behind the address: its other addresses are the same peer.
    fn workload(&self) -> Option<&ObjectId> {
        match &self.target {
            Target::Pod(id) | Target::ExternalWorkload(id) => Some(id),
            Target::Address => None,
        }
    }
}

/// The pipeline of filters: hostname, then node or zone, then address family.
pub fn filter(all: &Endpoints, cut: &Cut, local: bool, enable_ipv6: bool) -> Endpoints {
    let mut kept: Vec<&Arc<Endpoint>> = match &cut.hostname {
        Some(hostname) => all
            .iter()
            .filter(|it| it.hostname.as_ref() == Some(hostname))
            .collect(),
        None => all.iter().collect(),
    };
    if cut.anywhere {
        // Neither node nor zone of this cluster means anything over there.
    } else if local {
        kept.retain(|it| {
            matches!(it.target, Target::Pod(_)) && it.node.is_some() && it.node == cut.node
        });
    } else if kept.iter().all(|endpoint| endpoint.hints.is_some()) {
        let ours = |it: &&Arc<Endpoint>| {
            let zone = cut.zone.as_ref();
            zone.is_some_and(|zone| it.hints.iter().any(|hints| hints.contains(zone)))
        };
        if kept.iter().any(ours) {
            kept.retain(ours);
        }
    }
    prefer_family(&mut kept, enable_ipv6);
    if kept.len() == all.len() {
        return all.clone();
    }
    kept.into_iter().cloned().collect()
}

/// A workload with addresses of both families keeps one of them. Where IPv6 is off pods keep
/// IPv4 alone; a machine outside the cluster is reached by the address it has.
fn prefer_family(kept: &mut Vec<&Arc<Endpoint>>, enable_ipv6: bool) {
    let preferred = |addr: &SocketAddr| addr.is_ipv6() == enable_ipv6;
    if kept.iter().all(|it| preferred(&it.addr)) {
        return;
    }
    let settled: ahash::AHashSet<ObjectId> = kept
        .iter()
        .filter(|it| preferred(&it.addr))
        .filter_map(|it| it.workload().cloned())
        .collect();
    kept.retain(|it| {
        let other = || it.workload().is_none_or(|id| !settled.contains(id));
        let never = !enable_ipv6 && matches!(it.target, Target::Pod(_));
        preferred(&it.addr) || (!never && other())
    });
}

/// What turns one set into another: new or different endpoints, and addresses that went.
pub fn diff(from: &[Arc<Endpoint>], to: &[Arc<Endpoint>]) -> (Vec<Arc<Endpoint>>, Vec<SocketAddr>) {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (from.iter().peekable(), to.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(before), Some(after)) if before.addr == after.addr => {
                if !Arc::ptr_eq(before, after) && before != after {
                    added.push((*after).clone());
                }
                old.next();
                new.next();
            }
            (Some(before), after) if after.is_none_or(|after| before.addr < after.addr) => {
                removed.push(before.addr);
                old.next();
            }
            (_, Some(after)) => {
                added.push((*after).clone());
                new.next();
            }
            (None, None) => return (added, removed),
            (Some(_), None) => unreachable!("the guard above takes what is left of the old set"),
        }
    }
}
