//! The flags of `linkerd-controller proxy-injector` and the wiring behind them.

use super::{Metrics, Paths, Webhook};
use anyhow::Context as _;
use linkerd_k8s::{admission, kube::Client};
use linkerd_runtime::{
    admin::{Admin, Flavor},
    drain,
    listen::ListenAddr,
    log,
    metrics::{self, Exposition, Registry},
    ready::Readiness,
};
use linkerd_tls::ServerFiles;
use std::{path::PathBuf, sync::Arc, time::Duration};

/// How often the certificate files are looked at.
const REFRESH: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Address of the webhook
    #[arg(long, default_value = ":8443")]
    pub addr: ListenAddr,

    /// Address of the admin server
    #[arg(long, default_value = ":9995")]
    pub metrics_addr: ListenAddr,

    /// Namespace of the control plane
    #[arg(long, default_value = "linkerd")]
    pub linkerd_namespace: String,

    /// Values of the control plane
    #[arg(long, default_value = "/var/run/linkerd/config/values")]
    pub values: PathBuf,

    /// Trust anchors that pods get
    #[arg(
        long,
        default_value = "/var/run/linkerd/identity/trust-roots/ca-bundle.crt"
    )]
    pub trust_anchors: PathBuf,

    /// Certificate of the webhook
    #[arg(long, default_value = "/var/run/linkerd/tls/tls.crt")]
    pub tls_certs: PathBuf,

    /// Private key of the webhook
    #[arg(long, default_value = "/var/run/linkerd/tls/tls.key")]
    pub tls_key: PathBuf,
}

/// Serves until the drain begins.
pub async fn run(
    args: Args,
    client: Client,
    log: log::Handle,
    mut drain: drain::Watch,
) -> anyhow::Result<()> {
    let mut registry = Registry::default();
    metrics::register_process(&mut registry);
    metrics::register_build_info(&mut registry, "proxy-injector");
    let paths = Paths {
        values: args.values,
        trust_anchors: args.trust_anchors,
    };
    let metrics = Metrics::register(&mut registry);
    let webhook = Webhook::new(client, paths, args.linkerd_namespace, metrics);
    webhook
        .config()
        .context("the mounted configuration cannot be used")?;

    let readiness = Readiness::new();
    let block = readiness.block("webhook");
    let admin = Admin::new(
        Flavor::Controller,
        readiness,
        Arc::new(Exposition::new(registry)),
    )
    .log_level(log);
    let listener = args
        .metrics_addr
        .bind()
        .await
        .context("cannot bind the admin server")?;
    let mut stop = drain.clone();
    linkerd_runtime::spawn(
        "admin",
        Arc::new(admin).serve(listener, async move { stop.signaled().await }),
    );

    let tls = Arc::new(ServerFiles::load(args.tls_certs, args.tls_key)?);
    let listener = args.addr.bind().await.context("cannot bind the webhook")?;
    tracing::info!(addr = %args.addr, "Injector webhook");
    block.release();
    let refresh = async {
        let mut ticks = tokio::time::interval(REFRESH);
        loop {
            ticks.tick().await;
            match tls.refresh() {
                Ok(true) => tracing::info!("Webhook certificate reloaded"),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "Webhook certificate not reloaded"),
            }
        }
    };
    tokio::select! {
        () = admission::serve(listener, || tls.config(), Arc::new(webhook), drain.signaled()) => Ok(()),
        () = refresh => unreachable!("the refresh loop has no end"),
    }
}
