//! A peer we connect to: the identity it must prove and the name we greet it with. It keeps the
//! client configurations made for it, one pair per credential generation, and with them its tickets.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use linkerd_core::identity::Id;
use rustls::{ClientConfig, client::Resumption};
use rustls_pki_types::ServerName;

use crate::{session::ClientSessions, store::Snapshot, verify::ServerVerifier};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error("{0:?} is not a DNS name and cannot be sent as server name")]
    ServerName(String),
    #[error("identity {0} is not a DNS name and no server name is given")]
    NoServerName(Id),
}

/// Which application protocol a connection offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// None: the payload starts right away.
    None,
    /// The transport header precedes the payload.
    TransportHeader,
}

impl Alpn {
    /// The protocol's name on the wire.
    pub const TRANSPORT_HEADER: &'static [u8] = b"transport.l5d.io/v1";

    pub(crate) fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::None => Vec::new(),
            Self::TransportHeader => vec![Self::TRANSPORT_HEADER.to_vec()],
        }
    }
}

/// One server we talk mTLS to. Keep it with the endpoint: tickets are remembered in it.
#[derive(Debug)]
pub struct Peer {
    id: Id,
    server_name: ServerName<'static>,
    configs: ArcSwapOption<Configs>,
}

#[derive(Debug)]
struct Configs {
    generation: u64,
    plain: Arc<ClientConfig>,
    header: Arc<ClientConfig>,
}

impl Peer {
    /// `server_name` is what goes into SNI; without it the identity must be a DNS name.
    pub fn new(id: Id, server_name: Option<&str>) -> Result<Self, PeerError> {
        let name = match (server_name, &id) {
            (Some(name), _) => name.to_owned(),
            (None, Id::Dns(name)) => name.to_string(),
            (None, Id::Uri(_)) => return Err(PeerError::NoServerName(id)),
        };
        let server_name = match ServerName::try_from(name.clone()) {
            Ok(dns @ ServerName::DnsName(_)) => dns,
            _ => return Err(PeerError::ServerName(name)),
        };
        Ok(Self {
            id,
            server_name,
            configs: ArcSwapOption::empty(),
        })
    }

    pub fn id(&self) -> &Id {
        &self.id
    }

    /// What rustls wants beside the configuration; sent as SNI.
    pub fn server_name(&self) -> ServerName<'static> {
        self.server_name.clone()
    }

    /// The configuration for a connection to this peer with the credentials of `snapshot`.
    pub fn client_config(&self, snapshot: &Snapshot, alpn: Alpn) -> Arc<ClientConfig> {
        let cached = self.configs.load();
        let pick = |configs: &Configs| match alpn {
            Alpn::None => configs.plain.clone(),
            Alpn::TransportHeader => configs.header.clone(),
        };
        if let Some(configs) = cached.as_ref()
            && configs.generation == snapshot.generation()
        {
            return pick(configs);
        }
        let fresh = Arc::new(self.build(snapshot));
        let config = pick(&fresh);
        // A connection that still holds an older snapshot must not throw newer tickets away.
        if cached
            .as_ref()
            .is_none_or(|c| c.generation < fresh.generation)
        {
            self.configs.store(Some(fresh));
        }
        config
    }

    fn build(&self, snapshot: &Snapshot) -> Configs {
        let sessions = Arc::new(ClientSessions::new(
            snapshot.clock(),
            self.server_name.clone(),
            snapshot.own_not_after(),
        ));
        let mut plain = snapshot.client_template().clone();
        plain
            .dangerous()
            .set_certificate_verifier(Arc::new(ServerVerifier {
                expected: self.id.clone(),
                roots: snapshot.anchors().roots(),
                sessions: sessions.clone(),
            }));
        plain.resumption = if snapshot.resumption() {
            Resumption::store(sessions)
        } else {
            Resumption::disabled()
        };
        let mut header = plain.clone();
        header.alpn_protocols = Alpn::TransportHeader.protocols();
        Configs {
            generation: snapshot.generation(),
            plain: Arc::new(plain),
            header: Arc::new(header),
        }
    }
}
