//! Where the proxy's certificates come from: what is known at start, and what runs from then on.

use std::{path::PathBuf, sync::Arc, time::Duration};

use linkerd_tls::{Store, TrustAnchors, renewal, rotation};
use tokio::sync::Notify;

use super::StartError;
use crate::{
    config::{self, ControlAddr, IdentitySource},
    control::{
        Channel,
        client::ConnectOptions,
        dns::Resolver,
        identity::{self, Certification, TokenFile},
        spire::Spire,
        trust::TrustFollower,
    },
    identity_bootstrap::{Credentials, saved_anchors},
    metrics::control::ControlMetrics,
};

/// The anchors last told to this pod, or those it was made with.
pub(super) fn anchors(identity: &config::Identity) -> Result<TrustAnchors, StartError> {
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
    pub(super) store: Arc<Store>,
    pub(super) dir: PathBuf,
    pub(super) credentials: Credentials,
    pub(super) token: TokenFile,
    pub(super) refresh: (Duration, Duration),
    pub(super) addr: ControlAddr,
    pub(super) options: ConnectOptions,
    pub(super) resolver: Resolver,
    pub(super) metrics: identity::Metrics,
    pub(super) control_metrics: Arc<ControlMetrics>,
}

impl CertificationSeed {
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
            store,
            dir,
            credentials,
            token,
            refresh: (min_refresh, max_refresh),
            addr,
            options,
            resolver,
            metrics,
            control_metrics,
        } = self;
        let service = store.clone();
        let connect = move || {
            let channel = Channel::new(
                &addr,
                service.clone(),
                resolver.clone(),
                options,
                control_metrics.clone(),
            );
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
