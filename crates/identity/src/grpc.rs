//! Certify on the wire: protobuf to [`Request`] and back, refusals to gRPC codes, and a layer that
//! counts calls and logs what never reaches the handler.

use std::{
    task::{Context, Poll},
    time::{Instant, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use linkerd_api::proto::identity::{CertifyRequest, CertifyResponse, identity_server::Identity};
use tonic::{Code, Status};

use crate::{
    certify::{Certifier, Refusal, Request},
    metrics::Metrics,
    token::TokenReviewer,
};

/// Larger than any honest request: a token is about 1 KB, a CSR less than that.
pub const MAX_MESSAGE_LEN: usize = 64 * 1024;

const CERTIFY: &str = "/io.linkerd.proxy.identity.Identity/Certify";

#[derive(Debug)]
pub struct Service<R> {
    certifier: Certifier<R>,
}

impl<R> Service<R> {
    pub fn new(certifier: Certifier<R>) -> Self {
        Self { certifier }
    }
}

#[tonic::async_trait]
impl<R: TokenReviewer> Identity for Service<R> {
    async fn certify(
        &self,
        request: tonic::Request<CertifyRequest>,
    ) -> Result<tonic::Response<CertifyResponse>, Status> {
        let CertifyRequest {
            identity,
            token,
            certificate_signing_request: csr,
        } = request.into_inner();
        let issued = self
            .certifier
            .certify(Request {
                identity,
                token,
                csr,
            })
            .await
            .map_err(|refusal| Status::new(code(&refusal), refusal.to_string()))?;
        let until = issued
            .not_after
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        Ok(tonic::Response::new(CertifyResponse {
            leaf_certificate: issued.leaf.to_vec(),
            intermediate_certificates: issued.intermediates.iter().map(|c| c.to_vec()).collect(),
            valid_until: Some(prost_types::Timestamp {
                seconds: i64::try_from(until).unwrap_or(i64::MAX),
                nanos: 0,
            }),
        }))
    }
}

fn code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::NotReady => Code::Unavailable,
        Refusal::TooBusy => Code::ResourceExhausted,
        Refusal::MissingIdentity
        | Refusal::IdentityTooLong
        | Refusal::MissingToken
        | Refusal::TokenNotText
        | Refusal::MissingRequest
        | Refusal::Request(_)
        | Refusal::InvalidToken(_)
        | Refusal::Username(_) => Code::InvalidArgument,
        Refusal::Issuer(_) => Code::Unknown,
        Refusal::Names(_)
        | Refusal::Signature(_)
        | Refusal::NotAuthenticated
        | Refusal::WrongIdentity { .. } => Code::FailedPrecondition,
        Refusal::Review { .. } | Refusal::Sign(_) => Code::Internal,
    }
}

/// Wraps the gRPC server: counts each call to Certify by its code.
#[derive(Debug, Clone)]
pub struct Observe<S> {
    inner: S,
    metrics: Metrics,
}

/// Makes [`Observe`]s.
#[derive(Debug, Clone)]
pub struct ObserveLayer(Metrics);

impl Observe<()> {
    pub fn layer(metrics: Metrics) -> ObserveLayer {
        ObserveLayer(metrics)
    }
}

impl<S> tower::Layer<S> for ObserveLayer {
    type Service = Observe<S>;

    fn layer(&self, inner: S) -> Observe<S> {
        Observe {
            inner,
            metrics: self.0.clone(),
        }
    }
}

impl<S, ReqBody, ResBody> tower::Service<http::Request<ReqBody>> for Observe<S>
where
    S: tower::Service<http::Request<ReqBody>, Response = http::Response<ResBody>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ResBody: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<ReqBody>) -> Self::Future {
        // Only the one path we serve: labels must not come from the network.
        let known = request.uri().path() == CERTIFY;
        let started = Instant::now();
        let metrics = self.metrics.clone();
        let call = self.inner.call(request);
        Box::pin(async move {
            if known {
                metrics.call_started();
            }
            let response = call.await?;
            // An error of a unary call comes without a body, so its status is in the headers.
            let status = Status::from_header_map(response.headers());
            let code = status.as_ref().map_or(Code::Ok, Status::code);
            if known {
                metrics.call_handled(code, started.elapsed());
            }
            if let Some(status) = status
                && code == Code::OutOfRange
            {
                tracing::warn!(error = status.message(), "Oversized request refused");
            }
            Ok(response)
        })
    }
}
