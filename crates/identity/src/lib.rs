//! Issues certificates to proxies that prove who they are with a service-account token.
//!
//! A tour: [`Args`] are the flags; [`Authority`] holds issuer and trust anchors and reloads both;
//! [`Certifier`] runs a request through the ordered checks, asking a [`TokenReviewer`] who the
//! token belongs to; [`grpc`] puts it on the wire; [`events`] tells Kubernetes what happened;
//! `trust` tells proxies which anchors are in force.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use futures::stream::{FuturesUnordered, StreamExt as _};
use linkerd_api::proto::identity::identity_server::IdentityServer;
use linkerd_runtime::{
    admin::{Admin, Flavor},
    drain,
    metrics::{self as runtime_metrics, Exposition, Registry},
    ready::Readiness,
};
use tokio::{net::TcpListener, task::JoinHandle};
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
    let mut stop = drain.clone();
    let serving = serve(certifier, metrics, listener, async move {
        stop.signaled().await
    });
    let tasks = [watching, bundle, events, admin];
    until_served(serving, tasks.into_iter().collect(), &drain).await
}

/// Ends with the service and its tasks. Each of these ends with the drain: one that ends before has
/// left its work undone, and the service ends with an error.
async fn until_served(
    serving: impl Future<Output = anyhow::Result<()>>,
    mut tasks: FuturesUnordered<JoinHandle<()>>,
    drain: &drain::Watch,
) -> anyhow::Result<()> {
    let mut serving = pin!(serving);
    loop {
        tokio::select! {
            served = &mut serving => {
                served?;
                break;
            }
            Some(ended) = tasks.next() => {
                ended.context("A task of the identity service failed")?;
                ensure!(drain.is_draining(), "A task of the identity service ended by itself");
            }
        }
    }
    while let Some(ended) = tasks.next().await {
        ended.context("A task of the identity service failed")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn task(ends: impl Future<Output = ()> + Send + 'static) -> FuturesUnordered<JoinHandle<()>> {
        [linkerd_runtime::spawn("task", ends)].into_iter().collect()
    }

    #[tokio::test]
    async fn a_task_that_ends_by_itself_ends_the_service() {
        let (_signal, drain) = drain::channel();
        let serving = std::future::pending();
        let ended = until_served(serving, task(async {}), &drain).await;
        let error = ended.expect_err("nobody asked it to end").to_string();
        assert_eq!(error, "A task of the identity service ended by itself");
    }

    #[tokio::test]
    async fn a_task_that_fails_ends_the_service() {
        let (_signal, drain) = drain::channel();
        let failing = task(async { panic!("on purpose") });
        let ended = until_served(std::future::pending(), failing, &drain).await;
        let error = ended.expect_err("it failed").to_string();
        assert_eq!(error, "A task of the identity service failed");
    }

    #[tokio::test]
    async fn calls_under_way_are_finished_after_the_tasks_are() {
        let (signal, drain) = drain::channel();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let mut told = drain.clone();
        let tasks = task(async move { told.signaled().await });
        let serving = async move {
            let _ = finished.await;
            Ok(())
        };
        let service = async move {
            let ended = until_served(serving, tasks, &drain).await;
            drop(drain);
            ended
        };
        let finish = async move {
            tokio::task::yield_now().await;
            finish.send(()).expect("the call is still under way");
        };
        let (ended, (), ()) = tokio::join!(service, signal.drain(), finish);
        ended.expect("all is well");
    }
}
