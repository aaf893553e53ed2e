//! Certification: asks the identity service for a certificate, publishes it in the store and keeps
//! it fresh. When to ask is decided by [`linkerd_tls::renewal`]; how to reach the service comes in
//! as a connector.

use std::{
    future::Future,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use linkerd_api::proto::identity::{
    CertifyRequest, CertifyResponse, identity_client::IdentityClient,
};
use linkerd_tls::{
    PublishError, Store, TrustAnchors,
    file::{self, FileError},
    renewal::{Action, Config, Renewal},
    rustls::pki_types::CertificateDer,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::sync::Notify;
use tonic::client::GrpcService;

use crate::identity_bootstrap::Credentials;

/// One attempt, from connecting to the last byte of the answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// An answer holds a handful of certificates.
const MAX_ANSWER_LEN: usize = 1024 * 1024;
/// How often somebody who waits for the first certificate is told that we still wait.
const WAITING_INTERVAL: Duration = Duration::from_secs(15);
/// How often a mounted trust bundle is looked at, unless told otherwise.
pub const BUNDLE_INTERVAL: Duration = Duration::from_secs(5);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    #[error("the identity service cannot be reached")]
    Connect(#[source] BoxError),
    #[error("no certificate within {0:?}")]
    Timeout(Duration),
    #[error("the token cannot be read")]
    Token(#[source] FileError),
    #[error("the token file {} is empty", .0.display())]
    EmptyToken(PathBuf),
    #[error("the identity service refused: {}: {}", .0.code(), .0.message())]
    Refused(tonic::Status),
    #[error("identity certification missing expiration")]
    NoExpiration,
    #[error("certificate already expired")]
    Expired,
    #[error("the certificate is not usable")]
    Publish(#[from] PublishError),
}

/// The projected service-account token, read anew for each attempt because the kubelet rotates it.
#[derive(Debug, Clone)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    /// Fails when the file cannot be read or is empty, which is an error of configuration.
    pub fn open(path: PathBuf) -> Result<Self, CertifyError> {
        let token = Self(path);
        token.read()?;
        Ok(token)
    }

    fn read(&self) -> Result<Vec<u8>, CertifyError> {
        let token = file::read(&self.0).map_err(CertifyError::Token)?;
        if token.is_empty() {
            return Err(CertifyError::EmptyToken(self.0.clone()));
        }
        Ok(token)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

#[derive(Debug, Clone)]
pub struct Metrics {
    expiration: Gauge<f64, AtomicU64>,
    refreshed: Gauge<f64, AtomicU64>,
    ok: Counter,
    error: Counter,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let refreshes = Family::<Outcome, Counter>::default();
        let metrics = Self {
            expiration: Gauge::default(),
            refreshed: Gauge::default(),
            ok: refreshes.get_or_create_owned(&Outcome { result: "ok" }),
            error: refreshes.get_or_create_owned(&Outcome { result: "error" }),
        };
        registry.register(
            "control_identity_cert_expiration_timestamp_seconds",
            "When the certificate in use expires",
            metrics.expiration.clone(),
        );
        registry.register(
            "control_identity_cert_refresh_timestamp_seconds",
            "When the certificate was last renewed",
            metrics.refreshed.clone(),
        );
        registry.register(
            "control_identity_cert_refreshes",
            "Attempts to renew the certificate, by result",
            refreshes,
        );
        metrics
    }

    pub(crate) fn certified(&self, not_after: SystemTime, now: SystemTime) {
        let seconds = |t: SystemTime| t.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.expiration.set(seconds(not_after).as_secs_f64());
        self.refreshed.set(seconds(now).as_secs_f64());
        self.ok.inc();
    }

    pub(crate) fn failed(&self) {
        self.error.inc();
    }
}

/// Keeps the store certified. `C` makes a fresh channel for each attempt: plain to loopback, TLS
/// with the service's identity otherwise.
#[derive(Debug)]
pub struct Certification<C> {
    store: Arc<Store>,
    credentials: Credentials,
    token: TokenFile,
    connect: C,
    metrics: Metrics,
    renewal: Renewal,
    hasten: Arc<Notify>,
}

impl<C, F, S> Certification<C>
where
    C: FnMut() -> F,
    F: Future<Output = Result<S, BoxError>>,
    S: GrpcService<tonic::body::Body>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<BoxError> + Send,
{
    pub fn new(
        store: Arc<Store>,
        credentials: Credentials,
        token: TokenFile,
        refresh: Config,
        connect: C,
        metrics: Metrics,
    ) -> Self {
        Self {
            store,
            credentials,
            token,
            connect,
            metrics,
            renewal: Renewal::new(refresh),
            hasten: Arc::default(),
        }
    }

    /// Renews at once whenever this is notified.
    pub fn hastened_by(mut self, hasten: Arc<Notify>) -> Self {
        self.hasten = hasten;
        self
    }

    /// Certifies and renews for ever.
    pub async fn run(mut self) {
        loop {
            match self.renewal.poll(SystemTime::now(), rand::random()) {
                Action::Wait(wait) => tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = self.hasten.notified() => self.renewal.hasten(),
                },
                Action::Renew => self.attempt().await,
            }
        }
    }

    async fn attempt(&mut self) {
        let outcome = tokio::time::timeout(ATTEMPT_TIMEOUT, self.certify())
            .await
            .unwrap_or(Err(CertifyError::Timeout(ATTEMPT_TIMEOUT)));
        let now = SystemTime::now();
        match outcome {
            Ok((not_before, not_after)) => {
                self.metrics.certified(not_after, now);
                self.renewal
                    .certified((not_before, not_after), now, rand::random());
                tracing::info!(id = %self.store.local().id, "Certified identity");
            }
            Err(error) => {
                self.metrics.failed();
                self.renewal.failed(now, rand::random());
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "Failed to obtain identity");
            }
        }
    }

    /// One attempt; returns the validity of the certificate that is now in use.
    async fn certify(&mut self) -> Result<(SystemTime, SystemTime), CertifyError> {
        let request = CertifyRequest {
            identity: self.store.local().id.to_string(),
            token: self.token.read()?,
            certificate_signing_request: self.credentials.csr.clone(),
        };
        let channel = (self.connect)().await.map_err(CertifyError::Connect)?;
        let mut client = IdentityClient::new(channel).max_decoding_message_size(MAX_ANSWER_LEN);
        let answer = client
            .certify(request)
            .await
            .map_err(CertifyError::Refused)?;
        self.publish(answer.into_inner())
    }

    fn publish(&self, answer: CertifyResponse) -> Result<(SystemTime, SystemTime), CertifyError> {
        let until = answer.valid_until.ok_or(CertifyError::NoExpiration)?;
        let until = u64::try_from(until.seconds).map_err(|_| CertifyError::Expired)?;
        let until = UNIX_EPOCH
            .checked_add(Duration::from_secs(until))
            .ok_or(CertifyError::NoExpiration)?;
        if until <= SystemTime::now() {
            return Err(CertifyError::Expired);
        }
        let leaf = CertificateDer::from(answer.leaf_certificate);
        let intermediates = answer
            .intermediate_certificates
            .into_iter()
            .map(CertificateDer::from);
        let chain = std::iter::once(leaf).chain(intermediates).collect();
        self.store.publish(chain, &self.credentials.key)?;
        let snapshot = self.store.snapshot();
        let Some(certificate) = snapshot.certificate() else {
            return Err(CertifyError::Publish(PublishError::Empty));
        };
        Ok((certificate.not_before, certificate.not_after.min(until)))
    }
}

/// Ends when the first certificate is in use, complaining meanwhile.
pub async fn certified(store: &Store) {
    let waiting = async {
        loop {
            tokio::time::sleep(WAITING_INTERVAL).await;
            tracing::warn!("Waiting for identity to be initialized...");
        }
    };
    tokio::select! {
        () = store.certified() => {}
        () = waiting => {}
    }
}

/// Follows a mounted trust bundle for ever. A bundle that cannot be used is told once and changes
/// nothing; a good one replaces the anchors, also those from the environment.
pub async fn follow_bundle(store: &Store, path: PathBuf, every: Duration) {
    let mut watch = file::Watch::new(vec![path]);
    let mut first = true;
    loop {
        if std::mem::take(&mut first) || watch.changed() {
            load_bundle(store, &watch.paths()[0]);
        }
        tokio::time::sleep(every).await;
    }
}

fn load_bundle(store: &Store, path: &std::path::Path) {
    let name = path.display().to_string();
    let bundle = file::read(path)
        .map_err(BoxError::from)
        .and_then(|pem| TrustAnchors::from_pem(&name, &pem).map_err(BoxError::from))
        .and_then(|anchors| {
            anchors.check_validity(SystemTime::now())?;
            Ok(anchors)
        });
    match bundle {
        Ok(anchors) => {
            let before = store.snapshot().generation();
            if store.set_anchors(anchors) != before {
                tracing::info!(bundle = name, "Updated trust anchors");
            }
        }
        Err(error) => tracing::warn!(bundle = name, %error, "Trust bundle not used"),
    }
}
