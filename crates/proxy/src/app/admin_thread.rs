//! The thread beside the workers: admin server, tap, identity, export of traces, and the end.

use std::{pin::Pin, sync::Arc};

use linkerd_runtime::{admin::Admin, ready};
use linkerd_tls::Store;
use tokio::{net::TcpListener, runtime::Runtime, sync::watch, task::LocalSet};

use super::{
    certification::CertificationSeed,
    shutdown::Ending,
    tap::{BoundTap, serve_tap},
};
use crate::{
    admin::port::{self, Gate},
    control::identity,
    policy::server::ServerPolicy,
};

/// Everything the admin thread starts from.
pub(super) struct AdminSeed {
    pub(super) admin: Arc<Admin>,
    pub(super) listener: std::net::TcpListener,
    pub(super) gate: Gate,
    pub(super) tap: Option<BoundTap>,
    /// Sends traces to their collector.
    pub(super) export: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub(super) store: Arc<Store>,
    pub(super) certification: CertificationSeed,
    /// Released when there is a certificate.
    pub(super) certified: ready::Block,
    /// Policies of the ports known from the start, watched for the life of the process.
    pub(super) eager: Vec<watch::Receiver<Arc<ServerPolicy>>>,
    pub(super) ending: Ending,
}

pub(super) fn run(runtime: &Runtime, seed: AdminSeed) {
    let local = LocalSet::new();
    runtime.block_on(local.run_until(serve(seed)));
}

async fn serve(seed: AdminSeed) {
    let AdminSeed {
        admin,
        listener,
        gate,
        tap,
        export,
        store,
        certification,
        certified,
        eager,
        ending,
    } = seed;
    let Ok(listener) = TcpListener::from_std(listener) else {
        tracing::error!("Admin listener cannot be used");
        return;
    };
    linkerd_runtime::spawn_local("admin", port::serve(admin, listener, gate));
    if let Some((listener, taps, identity)) = tap {
        let serve = serve_tap(listener, store.clone(), taps, identity);
        linkerd_runtime::spawn_local("tap", serve);
    }
    if let Some(export) = export {
        linkerd_runtime::spawn_local("trace-export", export);
    }
    linkerd_runtime::spawn_local("identity", certification.run());
    linkerd_runtime::spawn_local("readiness", async move {
        identity::certified(&store).await;
        certified.release();
    });
    ending.run().await;
    drop(eager);
}
