//! Endpoints as discovery gives them: an address, what is known about it, and sets of them.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use linkerd_tls::Peer;

use crate::h2io::ping::KeepAlive;

/// What discovery says about one address.
#[derive(Debug, Default)]
pub struct EndpointMeta {
    /// Metric labels, sorted by name.
    pub labels: Vec<(String, String)>,
    /// Its mesh identity; none means plain text.
    pub peer: Option<Arc<Peer>>,
    /// What it may be sent.
    pub hint: Hint,
    /// Port of its proxy that takes a transport header.
    pub inbound_port: Option<u16>,
    /// Authority requests are rewritten to (multicluster).
    pub authority: Option<String>,
    /// HTTP/2 settings for connections to it.
    pub http2: Http2Params,
}

/// What an endpoint may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// Nothing is known.
    #[default]
    Unknown,
    /// HTTP/2 with upgraded HTTP/1 requests.
    H2,
    /// Opaque bytes only.
    Opaque,
}

/// HTTP/2 client settings of an endpoint; unset fields come from the environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2Params {
    /// Connection window.
    pub connection_window: Option<u32>,
    /// Stream window.
    pub stream_window: Option<u32>,
    /// Windows grow with what is received, whatever they were set to.
    pub adaptive: bool,
    /// When it is asked for a sign of life.
    pub keep_alive: Option<KeepAlive>,
    /// Largest frame.
    pub max_frame_size: Option<u32>,
    /// Streams that are remembered after a reset.
    pub max_concurrent_reset_streams: Option<usize>,
    /// Bytes that may wait on one stream.
    pub max_send_buf_size: Option<usize>,
}

impl EndpointMeta {
    /// Whether it is in our zone, as far as discovery says.
    pub fn zone_locality(&self) -> &'static str {
        let value = |name: &str| self.labels.iter().find(|(k, _)| k == name);
        match value("zone_locality").map(|(_, v)| v.as_str()) {
            Some("local") => "Local",
            Some("remote") => "Remote",
            _ => "Unknown",
        }
    }
}

impl PartialEq for EndpointMeta {
    fn eq(&self, other: &Self) -> bool {
        let id = |m: &Self| m.peer.as_ref().map(|p| (p.id().clone(), p.server_name()));
        self.labels == other.labels
            && self.hint == other.hint
            && self.inbound_port == other.inbound_port
            && self.authority == other.authority
            && self.http2 == other.http2
            && id(self) == id(other)
    }
}

/// The endpoints of one service.
#[derive(Clone, Debug, Default)]
pub enum Endpoints {
    /// Discovery has not answered yet.
    #[default]
    Pending,
    /// The service does not exist.
    Unknown,
    /// These, maybe none.
    Known(Arc<BTreeMap<SocketAddr, Arc<EndpointMeta>>>),
}

impl Endpoints {
    /// Applies one update to the set of known addresses. `first` is true for the first update after
    /// a (re)connect: an addition then replaces everything and a removal means nothing.
    #[must_use]
    pub fn apply(&self, update: EndpointUpdate, first: bool) -> Self {
        let current = match self {
            Self::Known(map) if !first => map.as_ref().clone(),
            _ => BTreeMap::new(),
        };
        match update {
            EndpointUpdate::Add(added) => {
                let old = match self {
                    Self::Known(map) => Some(map.clone()),
                    _ => None,
                };
                let mut map = current;
                for (addr, meta) in added {
                    // An unchanged endpoint keeps its metadata, and with it its TLS tickets.
                    let kept = old
                        .as_ref()
                        .and_then(|old| old.get(&addr))
                        .filter(|old| ***old == meta)
                        .cloned();
                    map.insert(addr, kept.unwrap_or_else(|| Arc::new(meta)));
                }
                Self::Known(Arc::new(map))
            }
            EndpointUpdate::Remove(_) if first => self.clone(),
            EndpointUpdate::Remove(removed) => {
                let mut map = current;
                for addr in removed {
                    map.remove(&addr);
                }
                Self::Known(Arc::new(map))
            }
            EndpointUpdate::None { exists: true } => Self::Known(Arc::default()),
            EndpointUpdate::None { exists: false } => Self::Unknown,
        }
    }
}

/// One message of an endpoint stream.
#[derive(Debug)]
pub enum EndpointUpdate {
    /// These are there.
    Add(Vec<(SocketAddr, EndpointMeta)>),
    /// These are gone.
    Remove(Vec<SocketAddr>),
    /// There are none.
    None {
        /// Whether the service exists.
        exists: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(n: u8) -> SocketAddr {
        ([10, 0, 0, n], 80).into()
    }

    fn add(list: &[u8]) -> EndpointUpdate {
        EndpointUpdate::Add(
            list.iter()
                .map(|n| (addr(*n), EndpointMeta::default()))
                .collect(),
        )
    }

    fn known(endpoints: &Endpoints) -> Option<Vec<u16>> {
        match endpoints {
            Endpoints::Known(map) => Some(
                map.keys()
                    .map(|a| match a.ip() {
                        std::net::IpAddr::V4(ip) => u16::from(ip.octets()[3]),
                        std::net::IpAddr::V6(_) => 0,
                    })
                    .collect(),
            ),
            _ => None,
        }
    }

    #[test]
    fn updates() {
        let set = Endpoints::Pending.apply(add(&[1, 2]), true);
        assert_eq!(known(&set), Some(vec![1, 2]));
        let set = set.apply(add(&[3]), false);
        assert_eq!(known(&set), Some(vec![1, 2, 3]));
        let set = set.apply(EndpointUpdate::Remove(vec![addr(1), addr(9)]), false);
        assert_eq!(known(&set), Some(vec![2, 3]));
        assert_eq!(
            known(&set.apply(add(&[7]), true)),
            Some(vec![7]),
            "reconnect replaces"
        );
        let same = set.apply(EndpointUpdate::Remove(vec![addr(2)]), true);
        assert_eq!(
            known(&same),
            Some(vec![2, 3]),
            "an initial removal is ignored"
        );
        assert_eq!(
            known(&set.apply(EndpointUpdate::None { exists: true }, false)),
            Some(vec![])
        );
        let gone = set.apply(EndpointUpdate::None { exists: false }, false);
        assert!(matches!(gone, Endpoints::Unknown));
    }

    #[test]
    fn unchanged_endpoints_keep_their_metadata() {
        let set = Endpoints::Pending.apply(add(&[1]), true);
        let again = set.apply(add(&[1, 2]), true);
        let (Endpoints::Known(a), Endpoints::Known(b)) = (&set, &again) else {
            panic!("both known");
        };
        assert!(Arc::ptr_eq(&a[&addr(1)], &b[&addr(1)]));
    }
}
