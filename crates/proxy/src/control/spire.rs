//! Certificates from a SPIRE agent instead of the identity service: a stream over a Unix socket
//! that speaks whenever the agent has renewed ours. Anchors still come from the configuration.

use std::{path::PathBuf, sync::Arc, time::SystemTime};

use linkerd_api::spiffe::{FETCH_X509_SVID, HEADER, X509SvidRequest, X509SvidResponse};
use linkerd_tls::{CertificateError, Key, KeyError, PublishError, Store, chain_from_der};
use tonic::{Code, Status, Streaming, metadata::MetadataValue};

use super::{
    client::UnixChannel,
    identity::Metrics,
    stream::{FOREVER, Keep},
};
use crate::config::{Backoff, StreamLimits};

/// An answer holds a handful of certificates.
const MAX_ANSWER_LEN: usize = 1024 * 1024;
/// The agent says so when it will never have anything for us.
const TERMINAL: &[Code] = &[Code::InvalidArgument];

#[derive(Debug, thiserror::Error)]
enum SvidError {
    #[error("the agent has no SVID for {0}")]
    NotOurs(String),
    #[error("the SVID's certificates are unusable")]
    Chain(#[from] CertificateError),
    #[error("the SVID's key is unusable")]
    Key(#[from] KeyError),
    #[error("the SVID is unusable")]
    Publish(#[from] PublishError),
}

/// Keeps the store certified by a SPIRE agent.
#[derive(Debug)]
pub struct Spire {
    pub store: Arc<Store>,
    pub socket: PathBuf,
    pub backoff: Backoff,
    pub metrics: Metrics,
}

impl Spire {
    /// Follows the agent; ends only if it refuses for good.
    pub async fn run(self) {
        let keep = Keep {
            limits: StreamLimits::default(),
            backoff: self.backoff,
            terminal: TERMINAL,
        };
        let open = || async {
            self.open().await.inspect_err(|status| {
                let socket = self.socket.display();
                tracing::warn!(%socket, error = status.message(), "SPIRE agent not usable");
            })
        };
        let status = keep
            .run("spire", open, |answer, _| self.take(&answer))
            .await;
        tracing::error!(error = status.message(), "Failed to obtain identity");
        tokio::time::sleep(FOREVER).await;
    }

    async fn open(&self) -> Result<Streaming<X509SvidResponse>, Status> {
        let channel = UnixChannel::connect(&self.socket)
            .await
            .map_err(|error| Status::from_error(error.into()))?;
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_ANSWER_LEN);
        let mut request = tonic::Request::new(X509SvidRequest {});
        let yes = MetadataValue::from_static("true");
        request.metadata_mut().insert(HEADER, yes);
        let codec = tonic_prost::ProstCodec::<X509SvidRequest, X509SvidResponse>::default();
        let path = http::uri::PathAndQuery::from_static(FETCH_X509_SVID);
        let answer = grpc.server_streaming(request, path, codec).await?;
        Ok(answer.into_inner())
    }

    fn take(&self, answer: &X509SvidResponse) {
        match self.publish(answer) {
            Ok(not_after) => {
                self.metrics.certified(not_after, SystemTime::now());
                tracing::info!(id = %self.store.local().id, "Certified identity");
            }
            Err(error) => {
                self.metrics.failed();
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "Failed to obtain identity");
            }
        }
    }

    fn publish(&self, answer: &X509SvidResponse) -> Result<SystemTime, SvidError> {
        let id = self.store.local().id.as_str();
        let svid = answer
            .svids
            .iter()
            .find(|svid| svid.spiffe_id == id)
            .ok_or_else(|| SvidError::NotOurs(id.to_owned()))?;
        let chain = chain_from_der(&svid.x509_svid)?;
        let key = Key::from_der(&svid.x509_svid_key)?;
        self.store.publish(chain, &key)?;
        let snapshot = self.store.snapshot();
        let certificate = snapshot.certificate().ok_or(PublishError::Empty)?;
        Ok(certificate.not_after)
    }
}
