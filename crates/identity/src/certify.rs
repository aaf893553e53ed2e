//! One certificate request through its checks, in the order the wire contract fixes. Nothing is
//! locked while the API server is asked: the issuer in use is held as a snapshot.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use linkerd_core::identity::ServiceAccountId;
use linkerd_tls::{
    Certificate, CertificateError, Issued, IssuerError, NameError, RequestError, SigningRequest,
    Validity,
};
use tokio::sync::Semaphore;

use crate::{
    authority::Authority,
    events::Recorder,
    limit::Limiter,
    metrics::Metrics,
    token::{AUDIENCE, InvalidUsername, Review, ReviewError, TokenReviewer, Username},
};

/// Requests worked on at a time; more are turned away at once.
const MAX_IN_FLIGHT: usize = 1024;
/// Longer than any identity; keeps logs and messages short.
const MAX_IDENTITY_LEN: usize = 512;

/// What the service is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    pub controller_namespace: String,
    pub trust_domain: String,
    pub validity: Validity,
    /// How often a proxy asks for the trust anchors when there are few proxies.
    pub anchors_interval: Duration,
}

impl Config {
    /// The service's own identity, a name its issuer must be able to certify.
    pub fn own_name(&self) -> String {
        let ns = &self.controller_namespace;
        ServiceAccountId::new("linkerd-identity", ns, ns, &self.trust_domain).to_string()
    }
}

#[derive(Clone)]
pub struct Request {
    pub identity: String,
    /// Never logged, not even by `Debug`.
    pub token: Vec<u8>,
    /// DER, whatever the API's comments say.
    pub csr: Vec<u8>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// Why no certificate is issued. The text goes to the proxy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    #[error("cert issuer not ready yet")]
    NotReady,
    #[error("too many certificate requests, retry later")]
    TooBusy,
    #[error("missing identity")]
    MissingIdentity,
    #[error("identity is longer than {MAX_IDENTITY_LEN} bytes")]
    IdentityTooLong,
    #[error("missing token")]
    MissingToken,
    #[error("token is not text")]
    TokenNotText,
    #[error("missing certificate signing request")]
    MissingRequest,
    #[error(transparent)]
    Request(RequestError),
    #[error("{0}")]
    Issuer(CertificateError),
    #[error(transparent)]
    Names(#[from] NameError),
    #[error("{0}")]
    Signature(RequestError),
    #[error("error validating token for {identity}: {source}")]
    Review {
        identity: String,
        source: ReviewError,
    },
    #[error("{0}")]
    InvalidToken(String),
    #[error("authentication token could not be authenticated")]
    NotAuthenticated,
    #[error(transparent)]
    Username(#[from] InvalidUsername),
    #[error(
        "requested identity did not match provided token: requested={requested}; found={found}"
    )]
    WrongIdentity { requested: String, found: String },
    #[error(transparent)]
    Sign(IssuerError),
}

impl Refusal {
    /// A word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotReady => "not_ready",
            Self::TooBusy => "too_busy",
            Self::MissingIdentity
            | Self::IdentityTooLong
            | Self::MissingToken
            | Self::TokenNotText
            | Self::MissingRequest => "malformed",
            Self::Request(_) => "csr",
            Self::Issuer(_) => "issuer",
            Self::Names(_) => "csr_names",
            Self::Signature(_) => "csr_signature",
            Self::Review { .. } => "token_review",
            Self::InvalidToken(_) => "invalid_token",
            Self::NotAuthenticated => "not_authenticated",
            Self::Username(_) => "username",
            Self::WrongIdentity { .. } => "wrong_identity",
            Self::Sign(_) => "sign",
        }
    }
}

/// The service behind Certify.
#[derive(Debug)]
pub struct Certifier<R> {
    config: Config,
    authority: Arc<Authority>,
    reviewer: R,
    limiter: Limiter,
    recorder: Recorder,
    metrics: Metrics,
    in_flight: Semaphore,
}

impl<R: TokenReviewer> Certifier<R> {
    pub fn new(
        config: Config,
        authority: Arc<Authority>,
        reviewer: R,
        limiter: Limiter,
        recorder: Recorder,
        metrics: Metrics,
    ) -> Self {
        let in_flight = Semaphore::new(MAX_IN_FLIGHT);
        Self {
            config,
            authority,
            reviewer,
            limiter,
            recorder,
            metrics,
            in_flight,
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// Checks, issues, counts and logs; each outcome is logged once, here.
    pub async fn certify(&self, request: Request) -> Result<Issued, Refusal> {
        let outcome = self.check_and_issue(&request).await;
        match &outcome {
            Ok(_) => self.metrics.issued(),
            Err(refusal) => {
                self.metrics.refused(refusal.label());
                // Both come from outside: as fields of text they are quoted and escaped.
                let identity: String = request.identity.chars().take(MAX_IDENTITY_LEN).collect();
                let error = refusal.to_string();
                tracing::warn!(identity, error, "Certificate refused");
            }
        }
        outcome
    }

    async fn check_and_issue(&self, request: &Request) -> Result<Issued, Refusal> {
        let _permit = self.in_flight.try_acquire().map_err(|_| Refusal::TooBusy)?;
        let current = self.authority.current().ok_or(Refusal::NotReady)?;
        let Request {
            identity,
            token,
            csr,
        } = request;
        if identity.is_empty() {
            return Err(Refusal::MissingIdentity);
        }
        if identity.len() > MAX_IDENTITY_LEN {
            return Err(Refusal::IdentityTooLong);
        }
        if token.is_empty() {
            return Err(Refusal::MissingToken);
        }
        let token = std::str::from_utf8(token).map_err(|_| Refusal::TokenNotText)?;
        if csr.is_empty() {
            return Err(Refusal::MissingRequest);
        }
        let csr = SigningRequest::from_der(csr).map_err(Refusal::Request)?;

        current.period.check(SystemTime::now()).map_err(|error| {
            self.recorder
                .validation_failed(&error.to_string(), identity);
            Refusal::Issuer(error)
        })?;

        csr.check_names(identity)?;
        if csr.key.is_ecdsa() {
            // Other keys are refused below, where the contract has it.
            csr.verify_signature().map_err(Refusal::Signature)?;
        }

        let user = self.authenticate(token, identity).await?;
        let found = user.identity(&self.config.controller_namespace, &self.config.trust_domain);
        let found = found.to_string();
        if found != *identity {
            return Err(Refusal::WrongIdentity {
                requested: identity.clone(),
                found,
            });
        }

        let now = SystemTime::now();
        let issued = current
            .issuer
            .issue(&csr, identity, self.config.validity, now)
            .map_err(Refusal::Sign)?;
        self.announce(&issued, &user, identity);
        Ok(issued)
    }

    async fn authenticate(&self, token: &str, identity: &str) -> Result<Username, Refusal> {
        let mut review = self.review(token, &[AUDIENCE], identity).await?;
        if review.error.contains("token audiences") {
            // A token without our audience may still be a plain service-account token, which is
            // what pods have when token projection is turned off.
            review = self.review(token, &[], identity).await?;
        }
        if !review.error.is_empty() {
            return Err(Refusal::InvalidToken(review.error));
        }
        if !review.authenticated {
            return Err(Refusal::NotAuthenticated);
        }
        Ok(Username::parse(&review.username)?)
    }

    async fn review(
        &self,
        token: &str,
        audiences: &[&str],
        identity: &str,
    ) -> Result<Review, Refusal> {
        let wait = self
            .limiter
            .reserve(Instant::now())
            .map_err(|_| Refusal::TooBusy)?;
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let review = self
            .reviewer
            .review(token, audiences)
            .await
            .map_err(|source| Refusal::Review {
                identity: identity.to_owned(),
                source,
            })?;
        let aware = review.audiences.is_empty()
            || audiences.is_empty()
            || audiences
                .iter()
                .any(|want| review.audiences.iter().any(|has| has == want));
        Ok(if aware {
            review
        } else {
            Review {
                authenticated: false,
                ..review
            }
        })
    }

    fn announce(&self, issued: &Issued, user: &Username, identity: &str) {
        let until = jiff::Timestamp::try_from(issued.not_after)
            .map(|t| t.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string())
            .unwrap_or_default();
        let hash = Certificate::from_der(&issued.leaf)
            .map(|c| c.sha256())
            .unwrap_or_default();
        let message = format!("issued certificate for {identity} until {until}: {hash}");
        tracing::info!("{message}");
        self.recorder.issued(&user.namespace, &user.name, message);
    }
}
