//! Issues certificates to proxies that prove who they are with a service-account token.
//!
//! A tour: [`Args`] are the flags; [`Authority`] holds issuer and trust anchors and reloads both;
//! [`Certifier`] runs a request through the ordered checks, asking a [`TokenReviewer`] who the
//! token belongs to; [`grpc`] puts it on the wire; [`events`] tells Kubernetes what happened;
//! `trust` tells proxies which anchors are in force.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::Context;
use linkerd_api::proto::identity::identity_server::IdentityServer;
use linkerd_runtime::{
    admin::{Admin, Flavor},
    drain,
    metrics::{self as runtime_metrics, Exposition, Registry},
    ready::Readiness,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

mod args;
mod authority;
mod certify;
pub mod events;
pub mod grpc;
mod kubernetes;
mod limit;
mod metrics;
mod token;
mod trust;

pub use self::{
    args::Args,
    authority::{Authority, Files, LiveAnchors, LoadError},
    certify::{Certifier, Config, Refusal, Request},
    limit::Limiter,
    metrics::Metrics,
    token::{AUDIENCE, Review, ReviewError, TokenReviewer, Username},
};

/// How often the mounted files are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a new anchor is told to proxies before an issuer below it is used.
const SETTLE: Duration = Duration::from_secs(60);
/// Streams one connection may have open: the pod's proxy may carry all clients on one connection.
const MAX_STREAMS: u32 = 10_000;

/// Runs the service until `drain` is signalled. An empty scheme or trust domain means that identity
/// is off: the process ends at once, without an error.
pub async fn run(args: Args, drain: drain::Watch) -> anyhow::Result<()> {
    if args.identity_scheme.is_empty() || args.identity_trust_domain.is_empty() {
        tracing::info!("Identity disabled in control plane configuration.");
        return Ok(());
    }
    let config = args.config()?;
    let files = args.files();

    let mut registry = Registry::default();
    runtime_metrics::register_process(&mut registry);
    let readiness = Readiness::new();
    let starting = readiness.block("issuer");
    let (recorder, mut queue) = events::channel(&config.controller_namespace);
    let metrics = Metrics::register(
        &mut registry,
        (args.kube_apiclient_qps, args.kube_apiclient_burst),
    );

    let (authority, mut reload) =
        Authority::load(files, &config.own_name()).context("Failed to load the identity issuer")?;
    let authority = Arc::new(authority);
    metrics::register_ttl(&mut registry, authority.clone());

    let client = kubernetes::client(&args.kubeconfig).await?;
    kubernetes::check_access(&client).await?;

    let (live, live_anchors) = tokio::sync::watch::channel(None);
    reload.settle_for(SETTLE);
    reload.prefer(LiveAnchors {
        origin: format!("ConfigMap {}", args.trust_roots_config_map),
        text: live_anchors,
    });
    let bundle = kubernetes::Bundle::new(
        client.clone(),
        &config.controller_namespace,
        &args.trust_roots_config_map,
    );
    let mut stop = drain.clone();
    let bundle = linkerd_runtime::spawn("trust-roots", async move {
        tokio::select! {
            () = bundle.follow(live) => {}
            () = stop.signaled() => {}
        }
    });

    let admin = Arc::new(Admin::new(
        Flavor::Controller,
        readiness.clone(),
        Arc::new(Exposition::new(registry)),
    ));
    let admin_listener = args
        .admin_addr
        .bind()
        .await
        .context("Failed to bind the admin server")?;
    let mut stop = drain.clone();
    let admin = linkerd_runtime::spawn("admin", async move {
        admin
            .serve(admin_listener, async move { stop.signaled().await })
            .await;
    });

    let mut stop = drain.clone();
    let writer = kubernetes::EventWriter::new(client.clone());
    let events = linkerd_runtime::spawn("events", async move {
        tokio::select! {
            () = writer.run(&mut queue) => {}
            () = stop.signaled() => {}
        }
    });
    let mut stop = drain.clone();
    let watched = (authority.clone(), recorder.clone());
    let watching = linkerd_runtime::spawn("reload", async move {
        tokio::select! {
            () = reload.run(&watched.0, &watched.1, POLL_INTERVAL) => {}
            () = stop.signaled() => {}
        }
    });

    let reviewer = kubernetes::KubeReviewer::new(client, metrics.clone());
    let limiter = Limiter::new(args.kube_apiclient_qps, args.kube_apiclient_burst);
    let certifier = Certifier::new(
        config,
        authority,
        reviewer,
        limiter,
        recorder,
        metrics.clone(),
    );
    let listener = args
        .addr
        .bind()
        .await
        .context("Failed to bind the identity service")?;
    tracing::info!(addr = %listener.local_addr()?, "starting gRPC server");
    starting.release();
    let mut stop = drain;
    serve(certifier, metrics, listener, async move {
        stop.signaled().await
    })
    .await?;
    for task in [watching, bundle, events, admin] {
        task.await
            .context("A task of the identity service failed")?;
    }
    Ok(())
}

/// Serves Certify and the trust anchors on `listener` until `stop` ends; calls in progress are finished.
pub async fn serve<R: TokenReviewer>(
    certifier: Certifier<R>,
    metrics: Metrics,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let trust = trust::TrustAnchorsServer::new(
        certifier.authority().clone(),
        certifier.config().anchors_interval,
    );
    let service = IdentityServer::new(grpc::Service::new(certifier))
        .max_decoding_message_size(grpc::MAX_MESSAGE_LEN);
    tonic::transport::Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .layer(grpc::Observe::layer(metrics))
        .add_service(service)
        .add_service(trust)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop)
        .await
        .context("The identity service failed")
}
