//! Destination, policy and both validators: one process over one watch cache, on the ports and
//! admin addresses each of them is known by.

use anyhow::{Context as _, ensure};
use k8s_openapi::jiff;
use linkerd_destination::Destination;
use linkerd_k8s::{
    PortSet,
    admission::{self, Handler},
    kube::Client,
    watch::{self, Watches},
};
use linkerd_policy::{
    Index,
    admission::{PolicyValidator, ServiceProfileValidator},
    grpc::Policies,
    index::Sizes,
    status::{self, Writer},
};
use linkerd_runtime::{
    admin::{Admin, Flavor},
    drain,
    gate::{Gate, Rate},
    listen::ListenAddr,
    log,
    metrics::{self, Exposition, Registry, grpc::Calls},
    ready::Readiness,
    spawn,
};
use linkerd_tls::ServerFiles;
use parking_lot::Mutex;
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

use crate::{diagnostics::Diagnostics, parts::Parts};

/// How often certificate files are looked at.
const REFRESH: Duration = Duration::from_secs(1);
/// A client that vanished does not keep its streams for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    destination: linkerd_destination::Args,

    #[command(flatten)]
    policy: linkerd_policy::args::Args,

    /// Address of the policy service's admin server
    #[arg(long, default_value = "0.0.0.0:9990")]
    admin_addr: ListenAddr,

    /// Address of the ServiceProfile validator
    #[arg(long, default_value = "0.0.0.0:8443")]
    sp_validator_addr: ListenAddr,

    /// Address of the ServiceProfile validator's admin server
    #[arg(long, default_value = "0.0.0.0:9997")]
    sp_validator_metrics_addr: ListenAddr,

    /// How many new streams each service takes on per second; a tenth of it for one client
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    new_streams_per_second: u32,

    /// Certificate of the ServiceProfile validator
    #[arg(long, default_value = "/var/run/linkerd/sp-tls/tls.crt")]
    sp_validator_tls_certs: PathBuf,

    /// Private key of the ServiceProfile validator
    #[arg(long, default_value = "/var/run/linkerd/sp-tls/tls.key")]
    sp_validator_tls_key: PathBuf,
}

impl Args {
    /// How many streams each service takes on at once: what a whole cluster needs when it comes
    /// back, and what one proxy does.
    fn gate(&self) -> Gate {
        let each = |share: u32| Rate {
            per_second: (self.new_streams_per_second / share).max(1),
            burst: (self.new_streams_per_second / share)
                .max(1)
                .saturating_mul(2),
        };
        Gate::new(each(1), each(10))
    }
}

/// Serves until the drain begins or one of the parts fails.
pub(crate) async fn run(
    args: Args,
    client: Client,
    log: log::Handle,
    drain: drain::Watch,
) -> anyhow::Result<()> {
    // Two replicas under one name would both write.
    let identity = args.destination.hostname.clone();
    ensure!(
        !identity.is_empty(),
        "HOSTNAME is not set: it is the name under which this replica claims leases"
    );
    let readiness = Readiness::new();
    let mut registry = Registry::default();
    metrics::register_process(&mut registry);
    metrics::register_build_info(&mut registry, "destination");
    // The policy service counts the same gRPC families, for its own calls, on its own admin port.
    let mut policy_registry = Registry::default();
    metrics::register_process(&mut policy_registry);

    // One watch per kind feeds both indexes.
    let watch_metrics = watch::Metrics::register(&mut registry);
    let destination = Destination::new(
        args.destination.config()?,
        &mut registry,
        watch_metrics.clone(),
    );
    let opaque = PortSet::parse_named(
        &args.destination.default_opaque_ports,
        |_| None::<u16>,
        |_| {},
    );
    let domain = &destination.discovery().config().cluster_domain;
    let policies = Arc::new(Mutex::new(Index::new(args.policy.cluster(domain, opaque))));
    Sizes::register(&policies, &mut policy_registry);
    let mut watches = Watches::new();
    destination.subscribe(&mut watches);
    linkerd_policy::args::subscribe(&policies, &mut watches);
    let _watches = watches.start(&client, &watch_metrics, &readiness);

    let policy = Policies::new(
        policies.clone(),
        drain.clone(),
        Calls::register(&mut policy_registry),
    )
    .when_ready(readiness.clone())
    .behind(args.gate());
    let writer_metrics = status::Metrics::register(&mut policy_registry);

    let lease = Arc::new(OnceLock::new());
    let diagnostics = Diagnostics {
        started: jiff::Timestamp::now(),
        watches: watch_metrics,
        namespace: args.policy.control_plane_namespace.clone(),
        identity: identity.clone(),
        lease: lease.clone(),
    };
    let diagnostics = Arc::new(diagnostics);
    let mut parts = Parts::new(drain.clone());
    let registry = Arc::new(Exposition::new(registry));
    for (flavor, addr, registry) in [
        (
            Flavor::Controller,
            args.destination.metrics_addr,
            registry.clone(),
        ),
        (
            Flavor::Policy,
            args.admin_addr,
            Arc::new(Exposition::new(policy_registry)),
        ),
        (Flavor::Controller, args.sp_validator_metrics_addr, registry),
    ] {
        let mut admin = Admin::new(flavor, readiness.clone(), registry).log_level(log.clone());
        if flavor == Flavor::Policy {
            let diagnostics = diagnostics.clone();
            admin = admin.loopback_route("/kubert.json", move |request| diagnostics.page(request));
        }
        let listener = bind(addr, "admin").await?;
        let mut stop = drain.clone();
        let serving = Arc::new(admin).serve(listener, async move { stop.signaled().await });
        parts.spawn("an admin server", async move {
            serving.await;
            Ok(())
        });
    }

    let destination = Arc::new(destination);
    let (slices, cluster, name) = (destination.clone(), client.clone(), identity.clone());
    let (ready, stop) = (readiness.clone(), drain.clone());
    parts.spawn("the writer of EndpointSlices", async move {
        Ok(slices.write_slices(&cluster, &name, ready, stop).await?)
    });

    let listener = bind(args.destination.addr, "destination").await?;
    let (ready, stop, gate) = (readiness.clone(), drain.clone(), args.gate());
    parts.spawn("the destination service", async move {
        Ok(destination.serve(listener, ready, stop, gate).await?)
    });

    let listener = bind(args.policy.grpc_addr, "policy").await?;
    let listener = TcpIncoming::from(listener).with_nodelay(Some(true));
    let mut stop = drain.clone();
    let router = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .add_service(policy.inbound())
        .add_service(policy.outbound());
    parts.spawn("the policy service", async move {
        let stop = async move { stop.signaled().await };
        Ok(router.serve_with_incoming_shutdown(listener, stop).await?)
    });

    if !args.policy.admission_controller_disabled {
        let (certs, key) = (
            args.policy.server_tls_certs.clone(),
            args.policy.server_tls_key.clone(),
        );
        let files = ServerFiles::load(certs, key)?;
        let addr = args.policy.server_addr;
        let validator = validator(addr, files, PolicyValidator, drain.clone());
        parts.spawn("the policy validator", validator);
    }
    let files = ServerFiles::load(args.sp_validator_tls_certs, args.sp_validator_tls_key)?;
    let addr = args.sp_validator_addr;
    let validator = validator(addr, files, ServiceProfileValidator, drain.clone());
    parts.spawn("the ServiceProfile validator", validator);

    // Only the holder of the lease writes statuses.
    let owner = args.policy.lease_owner(client.clone()).await;
    let (candidate, leadership) = args.policy.candidate(client.clone(), &identity, owner);
    let _ = lease.set(leadership.clone());
    let timeout = args.policy.patch_timeout();
    let writer = Writer::new(
        policies,
        client,
        leadership,
        drain.clone(),
        timeout,
        writer_metrics,
    )
    .when_listed(readiness);
    let writer = spawn("statuses", writer.run());
    parts.spawn("the writer of statuses", async move {
        Ok(candidate.run_for(writer, drain, timeout).await?)
    });
    parts.all_ended().await
}

async fn bind(addr: ListenAddr, what: &'static str) -> anyhow::Result<TcpListener> {
    let listener = addr.bind().await;
    let listener = listener.with_context(|| format!("cannot bind the {what} service on {addr}"))?;
    tracing::info!(%addr, service = what, "Serving");
    Ok(listener)
}

async fn validator(
    addr: ListenAddr,
    files: ServerFiles,
    handler: impl Handler,
    mut drain: drain::Watch,
) -> anyhow::Result<()> {
    let listener = bind(addr, "validator").await?;
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
