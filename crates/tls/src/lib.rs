//! Certificates, trust anchors and rustls configurations of the mesh.
//!
//! A tour: [`TrustAnchors`] are what we believe, a [`Key`] and its [`SigningRequest`] are what a
//! workload starts with, an [`Issuer`] turns the request into a certificate, a [`Store`] publishes
//! certificate and anchors as [`Snapshot`]s. A connection takes one snapshot, asks it for a rustls
//! configuration (for a [`Peer`] on the client side) and keeps it for life.

mod anchors;
mod certificate;
mod clock;
mod der;
mod key;
mod peer;
mod provider;
mod request;
mod server_files;
mod session;
mod store;
mod verify;

pub mod file;
pub mod handshake;
pub mod issuer;
pub mod renewal;
pub mod rotation;

pub use self::{
    anchors::{AnchorsError, TrustAnchors},
    certificate::{Certificate, CertificateError, KeyKind, certificates_from_pem, chain_from_der},
    clock::{Clock, SystemClock, unix_seconds},
    handshake::{HANDSHAKE_DEADLINE, HandshakeError},
    issuer::{Issued, Issuer, IssuerError, TrustedPeriod, Validity},
    key::{Key, KeyError},
    peer::{Alpn, Peer, PeerError},
    provider::provider,
    request::{MAX_REQUEST_LEN, NameError, RequestError, SigningRequest},
    server_files::{ServerFiles, ServerFilesError},
    store::{Local, PublishError, Snapshot, Store},
    verify::{IdMismatch, RejectedPeer, client_id, confirm_server, peer_id},
};
pub use rustls;
pub use tokio_rustls;
