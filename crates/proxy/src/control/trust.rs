//! Follows the trust anchors of the identity service, so that a rotation needs no restart. What to
//! do about an answer is decided by [`linkerd_tls::rotation`]; answers come only over the channel
//! that certification uses, whose peer is verified by the anchors believed so far. Linkerd's own
//! service does not know the question; then the anchors of the start stay.

use std::{
    future::Future,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use linkerd_api::trust::{GET, GetRequest, GetResponse};
use linkerd_tls::{
    AnchorsError, CertificateError, Store, TrustAnchors,
    rotation::{Config, Held, Offer, Own, Rotation},
};
use tokio::sync::Notify;
use tonic::{Code, client::GrpcService};

use crate::identity_bootstrap::save_anchors;

/// One question, from connecting to the last byte of the answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// A bundle holds a handful of certificates.
const MAX_ANSWER_LEN: usize = 1024 * 1024;
/// Whatever the service says, we ask neither more nor less often.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(600);
/// How often a service that does not know the question is asked again: it may have been replaced.
const UNSUPPORTED: Duration = Duration::from_secs(600);
/// Pauses after failures.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("the identity service cannot be reached")]
    Connect(#[source] BoxError),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the identity service refused: {}: {}", .0.code(), .0.message())]
    Refused(tonic::Status),
    #[error("the bundle is unusable")]
    Bundle(#[from] AnchorsError),
    #[error("no anchor is valid")]
    NotValid(#[from] CertificateError),
}

impl AskError {
    fn is_unsupported(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code() == Code::Unimplemented)
    }
}

/// Keeps the store's anchors up to date. `C` makes a fresh channel for each question.
#[derive(Debug)]
pub struct TrustFollower<C> {
    store: Arc<Store>,
    connect: C,
    /// Told when a new certificate is wanted.
    renew: Arc<Notify>,
    /// Where anchors are kept for the next start of this container.
    dir: Option<PathBuf>,
    rotation: Rotation,
}

impl<C, F, S> TrustFollower<C>
where
    C: FnMut() -> F,
    F: Future<Output = Result<S, BoxError>>,
    S: GrpcService<tonic::body::Body>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<BoxError> + Send,
{
    pub fn new(
        store: Arc<Store>,
        connect: C,
        renew: Arc<Notify>,
        dir: Option<PathBuf>,
        config: Config,
    ) -> Self {
        Self {
            store,
            connect,
            renew,
            dir,
            rotation: Rotation::new(config),
        }
    }

    /// Asks for ever.
    pub async fn run(mut self) {
        let mut failures = 0_u32;
        loop {
            let asked = tokio::time::timeout(ATTEMPT_TIMEOUT, self.ask())
                .await
                .unwrap_or(Err(AskError::Timeout(ATTEMPT_TIMEOUT)));
            let wait = match asked {
                Ok(offer) => {
                    failures = 0;
                    self.take(&offer);
                    offer.round
                }
                Err(error) if error.is_unsupported() => {
                    tracing::debug!("The identity service does not tell its trust anchors");
                    UNSUPPORTED
                }
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::debug!(error, failures, "Trust anchors not asked for");
                    let wait = FIRST_RETRY.saturating_mul(1 << failures.min(6));
                    failures = failures.saturating_add(1);
                    wait.min(LAST_RETRY).mul_f64(1.0 + rand::random::<f64>())
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn ask(&mut self) -> Result<Offer, AskError> {
        let channel = (self.connect)().await.map_err(AskError::Connect)?;
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_ANSWER_LEN);
        grpc.ready()
            .await
            .map_err(|error| AskError::Connect(error.into()))?;
        let codec = tonic_prost::ProstCodec::<GetRequest, GetResponse>::default();
        let path = http::uri::PathAndQuery::from_static(GET);
        let answer = grpc
            .unary(tonic::Request::new(GetRequest {}), path, codec)
            .await
            .map_err(AskError::Refused)?
            .into_inner();
        let ders = answer.anchors.iter().map(Vec::as_slice);
        let anchors = TrustAnchors::from_ders("the identity service", ders)?;
        anchors.check_validity(SystemTime::now())?;
        let round = Duration::from_millis(answer.ask_again_ms.into()).clamp(SHORTEST, LONGEST);
        Ok(Offer {
            anchors,
            issuer: answer.issuer_sha256,
            round,
        })
    }

    fn take(&mut self, offer: &Offer) {
        let snapshot = self.store.snapshot();
        let issuer = snapshot.issuer_sha256();
        let certificate = if snapshot.is_certified() {
            Own::Present {
                issuer: issuer.as_deref(),
                chains: snapshot.chains_to(&offer.anchors),
            }
        } else {
            Own::Missing
        };
        let held = Held {
            anchors: snapshot.anchors(),
            certificate,
        };
        let step = self.rotation.step(held, offer, Instant::now());
        if let Some(anchors) = step.anchors {
            let count = anchors.certificates().len();
            if let Some(dir) = &self.dir
                && let Err(error) = save_anchors(dir, &anchors)
            {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "Trust anchors not kept for a restart");
            }
            self.store.set_anchors(anchors);
            tracing::info!(count, "Updated trust anchors");
        }
        if step.renew {
            tracing::info!("Renewing the certificate for another issuer");
            self.renew.notify_one();
        }
    }
}
