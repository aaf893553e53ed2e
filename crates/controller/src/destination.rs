//! Destination, policy and both validators: one process over one watch cache, on the ports and
//! admin addresses each of them is known by.

use anyhow::Context as _;
use linkerd_destination::{CallMetrics, Clusters, Discovery, Metrics, Server};
use linkerd_k8s::{
    PortSet,
    admission::{self, Handler},
    kube::Client,
    watch::{self, Watches},
};
use linkerd_policy::{
    Index,
    admission::{PolicyValidator, ServiceProfileValidator},
    grpc::{self, Policies},
    status::{self, Writer},
};
use linkerd_runtime::{
    admin::{Admin, Flavor},
    drain, log,
    metrics::{self, Exposition, Registry},
    ready::Readiness,
    spawn,
};
use linkerd_tls::ServerFiles;
use parking_lot::Mutex;
use std::{env, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_stream::wrappers::TcpListenerStream;

/// How often certificate files are looked at.
const REFRESH: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    destination: linkerd_destination::Args,

    #[command(flatten)]
    policy: linkerd_policy::args::Args,

    /// Address of the policy service's admin server
    #[arg(long, default_value = "0.0.0.0:9990")]
    admin_addr: SocketAddr,

    /// Address of the ServiceProfile validator
    #[arg(long, default_value = "0.0.0.0:8443")]
    sp_validator_addr: SocketAddr,

    /// Address of the ServiceProfile validator's admin server
    #[arg(long, default_value = "0.0.0.0:9997")]
    sp_validator_metrics_addr: SocketAddr,

    /// Certificate of the ServiceProfile validator
    #[arg(long, default_value = "/var/run/linkerd/sp-tls/tls.crt")]
    sp_validator_tls_certs: PathBuf,

    /// Private key of the ServiceProfile validator
    #[arg(long, default_value = "/var/run/linkerd/sp-tls/tls.key")]
    sp_validator_tls_key: PathBuf,
}

/// Serves until the drain begins or one of the parts fails.
pub(crate) async fn run(
    args: Args,
    client: Client,
    log: log::Handle,
    drain: drain::Watch,
) -> anyhow::Result<()> {
    let mut registry = Registry::default();
    metrics::register_process(&mut registry);
    metrics::register_build_info(&mut registry, "destination");
    let readiness = Readiness::new();

    // One watch per kind feeds both indexes.
    let discovery = Discovery::new(args.destination.config()?, Metrics::register(&mut registry));
    let opaque = PortSet::parse_named(
        &args.destination.default_opaque_ports,
        |_| None::<u16>,
        |_| {},
    );
    let cluster = args
        .policy
        .cluster(&discovery.config().cluster_domain, opaque);
    let policies = Arc::new(Mutex::new(Index::new(cluster)));
    let mut watches = Watches::new();
    discovery.subscribe(&mut watches);
    linkerd_policy::args::subscribe(&policies, &mut watches);
    let _watches = watches.start(
        &client,
        &watch::Metrics::register(&mut registry),
        &readiness,
    );

    let mut parts = JoinSet::new();
    let destination = Server::new(
        discovery,
        Clusters::default(),
        readiness.clone(),
        drain.clone(),
        CallMetrics::register(&mut registry),
    );
    let policy = Policies::new(
        policies.clone(),
        drain.clone(),
        grpc::Metrics::register(&mut registry),
    );
    let writer_metrics = status::Metrics::register(&mut registry);

    let exposition = Arc::new(Exposition::new(registry));
    for (flavor, addr) in [
        (Flavor::Controller, args.destination.metrics_addr),
        (Flavor::Policy, args.admin_addr),
        (Flavor::Controller, args.sp_validator_metrics_addr),
    ] {
        let admin = Arc::new(
            Admin::new(flavor, readiness.clone(), exposition.clone()).log_level(log.clone()),
        );
        let listener = TcpListener::bind(addr)
            .await
            .with_context(|| format!("cannot bind the admin server on {addr}"))?;
        let mut stop = drain.clone();
        spawn(
            "admin",
            admin.serve(listener, async move { stop.signaled().await }),
        );
    }

    let listener = bind(args.destination.addr, "destination").await?;
    let mut stop = drain.clone();
    let router = tonic::transport::Server::builder().add_service(destination);
    parts.spawn(async move {
        Ok(router
            .serve_with_incoming_shutdown(listener, async move { stop.signaled().await })
            .await?)
    });

    let listener = bind(args.policy.grpc_addr, "policy").await?;
    let mut stop = drain.clone();
    let router = tonic::transport::Server::builder()
        .add_service(policy.inbound())
        .add_service(policy.outbound());
    parts.spawn(async move {
        Ok(router
            .serve_with_incoming_shutdown(listener, async move { stop.signaled().await })
            .await?)
    });

    if !args.policy.admission_controller_disabled {
        let files = ServerFiles::load(
            args.policy.server_tls_certs.clone(),
            args.policy.server_tls_key.clone(),
        )?;
        let part = validator(
            args.policy.server_addr,
            files,
            PolicyValidator,
            drain.clone(),
        );
        parts.spawn(part);
    }
    let files = ServerFiles::load(args.sp_validator_tls_certs, args.sp_validator_tls_key)?;
    let part = validator(
        args.sp_validator_addr,
        files,
        ServiceProfileValidator,
        drain.clone(),
    );
    parts.spawn(part);

    // Only the holder of the lease writes statuses.
    let identity = env::var("HOSTNAME").unwrap_or_else(|_| "linkerd-destination".to_owned());
    let owner = args.policy.lease_owner(client.clone()).await;
    let (candidate, leadership) = args.policy.candidate(client.clone(), &identity, owner);
    let mut stop = drain.clone();
    parts.spawn(async move {
        candidate
            .run_until(async move { stop.signaled().await })
            .await;
        Ok(())
    });
    let writer = Writer::new(
        policies,
        client,
        leadership,
        args.policy.patch_timeout(),
        writer_metrics,
    );
    let writer = spawn("statuses", writer.run());

    let mut outcome = Ok(());
    while let Some(part) = parts.join_next().await {
        outcome = outcome.and(part.context("a part of the controller panicked")?);
        if outcome.is_err() || !drain.is_draining() {
            break;
        }
    }
    writer.abort();
    outcome
}

async fn bind(addr: SocketAddr, what: &'static str) -> anyhow::Result<TcpListenerStream> {
    let listener = TcpListener::bind(addr)
        .await
        .with_context(|| format!("cannot bind the {what} service on {addr}"))?;
    tracing::info!(%addr, service = what, "Serving");
    Ok(TcpListenerStream::new(listener))
}

async fn validator(
    addr: SocketAddr,
    files: ServerFiles,
    handler: impl Handler,
    mut drain: drain::Watch,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(addr)
        .await
        .with_context(|| format!("cannot bind the validator on {addr}"))?;
    let refresh = async {
        let mut ticks = tokio::time::interval(REFRESH);
        loop {
            ticks.tick().await;
            match files.refresh() {
                Ok(true) => tracing::info!(%addr, "Validator certificate reloaded"),
                Ok(false) => {}
                Err(error) => tracing::warn!(%addr, %error, "Validator certificate not reloaded"),
            }
        }
    };
    tokio::select! {
        () = admission::serve(listener, || files.config(), Arc::new(handler), drain.signaled()) => Ok(()),
        () = refresh => unreachable!("the refresh loop has no end"),
    }
}
