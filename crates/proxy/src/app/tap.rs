//! The tap server's listener.

use std::sync::Arc;

use linkerd_tls::Store;
use tokio::net::TcpListener;

use super::StartError;
use crate::{observe::tap, socket};

pub(super) type BoundTap = (std::net::TcpListener, Arc<tap::Taps>, String);

pub(super) fn bind_tap(config: &crate::config::Tap) -> Result<BoundTap, StartError> {
    let listener = socket::bind(config.listen, None).map_err(|e| StartError::Bind("tap", e))?;
    Ok((listener, Arc::default(), config.identity.clone()))
}

pub(super) async fn serve_tap(
    listener: std::net::TcpListener,
    store: Arc<Store>,
    taps: Arc<tap::Taps>,
    identity: String,
) {
    match TcpListener::from_std(listener) {
        Ok(listener) => tap::server::serve(listener, store, taps, identity).await,
        Err(error) => tracing::error!(%error, "Tap listener cannot be used"),
    }
}
