//! Who the peer is: chain verification on both sides and exact comparison of identity names.

use std::{sync::Arc, time::SystemTime};

use linkerd_core::identity::Id;
use rustls::{
    CertificateError as TlsCertificateError, CommonState, DigitallySignedStruct, Error, OtherError,
    RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::verify_tls13_signature,
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::{
    certificate::{Leaf, not_after},
    clock::unix_seconds,
    provider::SIGNATURES,
    session::ClientSessions,
};

/// The server's certificate is good but belongs to somebody else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("certificate does not match TLS identity: expected {expected}, found {found:?}")]
pub struct IdMismatch {
    pub expected: Id,
    pub found: Vec<Id>,
}

/// Why a finished handshake must not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RejectedPeer {
    #[error("the server presented no certificate")]
    NoCertificate,
    #[error("the peer's certificate does not parse")]
    Unparsable,
    #[error("the peer's certificate has expired since the session began")]
    Expired,
    #[error(transparent)]
    IdMismatch(#[from] IdMismatch),
}

/// The peer's identity: the first usable DNS or URI name of its certificate, if it showed one.
pub fn peer_id(conn: &CommonState) -> Option<Id> {
    let leaf = conn.peer_certificates()?.first()?;
    Leaf::from_der(leaf).ok()?.names.into_iter().next()
}

/// Server side, after the handshake: who the client is. `None` is TLS without an identity.
/// A resumed session whose client certificate has expired meanwhile is rejected.
pub fn client_id(conn: &CommonState, now: SystemTime) -> Result<Option<Id>, RejectedPeer> {
    let Some(leaf) = conn.peer_certificates().and_then(|chain| chain.first()) else {
        return Ok(None);
    };
    let leaf = Leaf::from_der(leaf).map_err(|_| RejectedPeer::Unparsable)?;
    if unix_seconds(now) > leaf.not_after {
        return Err(RejectedPeer::Expired);
    }
    Ok(leaf.names.into_iter().next())
}

/// Client side, after the handshake and before the first byte is sent: the server is `expected`.
/// Full handshakes were checked by the verifier already; this also covers resumed ones.
pub fn confirm_server(
    conn: &CommonState,
    expected: &Id,
    now: SystemTime,
) -> Result<(), RejectedPeer> {
    let leaf = conn
        .peer_certificates()
        .and_then(|chain| chain.first())
        .ok_or(RejectedPeer::NoCertificate)?;
    let leaf = Leaf::from_der(leaf).map_err(|_| RejectedPeer::Unparsable)?;
    if unix_seconds(now) > leaf.not_after {
        return Err(RejectedPeer::Expired);
    }
    check_names(&leaf, expected).map_err(RejectedPeer::from)
}

fn check_names(leaf: &Leaf, expected: &Id) -> Result<(), IdMismatch> {
    if leaf.names.contains(expected) {
        return Ok(());
    }
    Err(IdMismatch {
        expected: expected.clone(),
        found: leaf.names.clone(),
    })
}

/// Checks that a chain verifies against `roots` and that its leaf carries `expected`.
pub(crate) fn verify_chain(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &RootCertStore,
    expected: &Id,
    now: UnixTime,
) -> Result<(), Error> {
    let parsed = ParsedCertificate::try_from(leaf)?;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, SIGNATURES.all)?;
    let leaf = Leaf::from_der(leaf).map_err(|error| Error::InvalidCertificate(other(error)))?;
    check_names(&leaf, expected).map_err(|error| Error::InvalidCertificate(other(error)))
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> TlsCertificateError {
    TlsCertificateError::Other(OtherError(Arc::new(error)))
}

/// Verifies one peer's certificate in the handshake, so that a stranger sees neither our
/// certificate nor our data.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    pub(crate) expected: Id,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) sessions: Arc<ClientSessions>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_chain(end_entity, intermediates, &self.roots, &self.expected, now)?;
        // Every presented certificate counts, needed or not: too early is safe, too late is not.
        let ends = std::iter::once(end_entity)
            .chain(intermediates)
            .filter_map(|c| not_after(c).ok());
        self.sessions.verified(ends.min().unwrap_or(0));
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURES.supported_schemes()
    }
}
