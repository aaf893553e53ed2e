//! Where the proxy's certificates come from: what is known at start, and what runs from then on.

use std::{path::PathBuf, sync::Arc, time::Duration};

use linkerd_core::identity::Id;
use linkerd_tls::{Local, Store, TrustAnchors, renewal, rotation};
use tokio::sync::Notify;

use super::{StartError, clients::Clients};
use crate::{
    config::{self, ControlAddr, IdentitySource},
    control::{
        identity::{self, Certification, TokenFile},
        spire::Spire,
        trust::TrustFollower,
    },
    identity_bootstrap::{Credentials, load_or_bootstrap, saved_anchors},
    metrics::{balancer::Kind, control::ControlMetrics},
};

/// A store without a certificate.
pub(super) fn store(identity: &config::Identity) -> Result<Arc<Store>, StartError> {
    let anchors = anchors(identity)?;
    let local = Local {
        id: Id::parse(&identity.id)?,
        server_name: identity.server_name.clone(),
    };
    let store = Store::new(anchors, local);
    Ok(Arc::new(match identity.resumption {
        true => store,
        false => store.without_resumption(),
    }))
}

/// The anchors last told to this pod, or those it was made with.
fn anchors(identity: &config::Identity) -> Result<TrustAnchors, StartError> {
    if let IdentitySource::Linkerd { dir, .. } = &identity.source
        && let Some(saved) = saved_anchors(dir)
    {
        return Ok(saved);
    }
    let pem = identity.trust_anchors.as_bytes();
    let anchors = TrustAnchors::from_pem(config::env::IDENTITY_TRUST_ANCHORS, pem)?;
    if let Err(error) = anchors.check_validity(std::time::SystemTime::now()) {
        tracing::warn!(%error, "No trust anchor is valid");
    }
    Ok(anchors)
}

/// Where certificates come from, ready to run.
pub(super) enum CertificationSeed {
    Linkerd(Box<LinkerdSeed>),
    Spire(Spire),
}

pub(super) struct LinkerdSeed {
    clients: Clients,
    addr: ControlAddr,
    control_metrics: Arc<ControlMetrics>,
    dir: PathBuf,
    credentials: Credentials,
    token: TokenFile,
    refresh: (Duration, Duration),
    metrics: identity::Metrics,
}

impl CertificationSeed {
    pub(super) fn new(clients: &Clients, metrics: identity::Metrics) -> Result<Self, StartError> {
        let config = &clients.config;
        let (dir, token_file, refresh) = match &config.identity.source {
            IdentitySource::Linkerd {
                dir,
                token_file,
                min_refresh,
                max_refresh,
            } => (dir, token_file, (*min_refresh, *max_refresh)),
            IdentitySource::Spire { socket, backoff } => {
                return Ok(Self::Spire(Spire {
                    store: clients.store.clone(),
                    socket: socket.clone(),
                    backoff: *backoff,
                    metrics,
                }));
            }
        };
        let credentials = load_or_bootstrap(dir, &config.identity.id)?;
        let token = TokenFile::open(token_file.clone())?;
        let addr = config.control.identity.clone();
        let addr = addr.ok_or(StartError::Unsupported("identity without a service"))?;
        let control_metrics = clients.metrics(&addr, Kind::Identity);
        // A bad address is an error of configuration, to be told now.
        clients.counted(&addr, &control_metrics)?;
        Ok(Self::Linkerd(Box::new(LinkerdSeed {
            clients: clients.clone(),
            addr,
            control_metrics,
            dir: dir.clone(),
            credentials,
            token,
            refresh,
            metrics,
        })))
    }

    pub(super) async fn run(self) {
        match self {
            Self::Linkerd(seed) => seed.run().await,
            Self::Spire(spire) => spire.run().await,
        }
    }
}

impl LinkerdSeed {
    /// Certifies, and follows the service's trust anchors beside that.
    async fn run(self) {
        let Self {
            clients,
            addr,
            control_metrics,
            dir,
            credentials,
            token,
            refresh: (min_refresh, max_refresh),
            metrics,
        } = self;
        let store = clients.store.clone();
        let connect = move || {
            let channel = clients.counted(&addr, &control_metrics);
            async move { channel.map_err(Box::<dyn std::error::Error + Send + Sync>::from) }
        };
        let refresh = renewal::Config {
            min_refresh,
            max_refresh,
        };
        let renew = Arc::new(Notify::new());
        let follower = TrustFollower::new(
            store.clone(),
            connect.clone(),
            renew.clone(),
            Some(dir),
            rotation::Config::default(),
        );
        let certification =
            Certification::new(store, credentials, token, refresh, connect, metrics);
        tokio::join!(certification.hastened_by(renew).run(), follower.run());
    }
}
