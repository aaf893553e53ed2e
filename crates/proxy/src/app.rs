//! Builds the whole proxy and starts its threads: `admin` for the admin server, identity and the
//! control plane, and workers for traffic. Tests start the same thing on port 0.

mod admin_thread;
mod certification;
mod clients;
mod listeners;
mod shutdown;
mod tap;
mod worker_thread;

use std::{io, net::SocketAddr, sync::Arc, thread::JoinHandle, time::Instant};

use linkerd_runtime::{
    drain, log,
    metrics::{Exposition, register_build_info, register_process},
    ready::Readiness,
};
use linkerd_tls::Store;
use prometheus_client::registry::Registry as OpenMetrics;
use tokio::{runtime::Builder, sync::mpsc};

use self::{
    admin_thread::AdminSeed,
    certification::CertificationSeed,
    clients::Clients,
    listeners::{Listeners, again},
    shutdown::Ending,
    tap::bind_tap,
    worker_thread::WorkerSeed,
};
use crate::{
    admin,
    config::Config,
    control::{Discovery, dns::Resolver, identity},
    metrics::{
        Registry,
        balancer::Kind,
        process::{Runtimes, write_rustls_info},
    },
    observe::{Observers, access, trace},
    presence::Presence,
    socket::OrigDst,
    worker::InFlightLimits,
};

/// What tests replace.
pub struct Seams {
    /// Original destination of outbound connections.
    pub outbound_dst: OrigDst,
    /// Original destination of inbound connections.
    pub inbound_dst: OrigDst,
    /// Whether peers may be on loopback.
    pub allow_loopback: bool,
    /// DNS.
    pub resolver: Resolver,
    /// Changes the log filter.
    pub log: Option<log::Handle>,
    /// Whom to leave after.
    pub application: Presence,
    /// Where the access log goes, in place of standard error.
    pub access_log: Option<Box<dyn io::Write + Send>>,
}

impl std::fmt::Debug for Seams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seams").finish_non_exhaustive()
    }
}

impl Default for Seams {
    fn default() -> Self {
        Self {
            outbound_dst: OrigDst::Kernel,
            inbound_dst: OrigDst::Kernel,
            allow_loopback: false,
            resolver: Resolver::default(),
            log: None,
            application: Presence::Unknown,
            access_log: None,
        }
    }
}

/// Why the proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener could not be bound.
    #[error("Failed to bind {0} listener")]
    Bind(&'static str, #[source] io::Error),
    /// The trust anchors are unusable.
    #[error("invalid trust anchors")]
    Anchors(#[from] linkerd_tls::AnchorsError),
    /// Our name is unusable.
    #[error("invalid identity")]
    Id(#[from] linkerd_core::identity::InvalidId),
    /// Key or signing request are unusable.
    #[error("invalid identity documents")]
    Credentials(#[from] crate::identity_bootstrap::BootstrapError),
    /// The token is unusable.
    #[error("invalid token")]
    Token(#[from] identity::CertifyError),
    /// A control-plane address is unusable.
    #[error("invalid control-plane address")]
    Channel(#[from] crate::control::client::ChannelError),
    /// Something the operating system refused.
    #[error("cannot start threads")]
    Io(#[from] io::Error),
    /// Asked for something that is not there yet.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
}

/// A running proxy.
#[derive(Debug)]
pub struct Running {
    /// Outbound listeners.
    pub outbound: Vec<SocketAddr>,
    /// Inbound listener.
    pub inbound: SocketAddr,
    /// Admin listener.
    pub admin: SocketAddr,
    /// Tap listener, if there is one.
    pub tap: Option<SocketAddr>,
    /// Certificates.
    pub store: Arc<Store>,
    shutdown: mpsc::Sender<()>,
    admin_thread: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

/// Starts the proxy.
pub fn start(config: Config, seams: Seams) -> Result<Running, StartError> {
    let config = Arc::new(config);
    let registry = Arc::new(Registry::new(config.admin.metrics_retain_idle));
    let mut open_metrics = OpenMetrics::default();
    register_process(&mut open_metrics);
    register_build_info(&mut open_metrics, "proxy");
    let identity_metrics = identity::Metrics::register(&mut open_metrics);

    let store = certification::store(&config.identity)?;
    let clients = Clients {
        config: config.clone(),
        registry: registry.clone(),
        store: store.clone(),
        resolver: seams.resolver,
    };
    let certification = CertificationSeed::new(&clients, identity_metrics)?;

    let admin_runtime = Builder::new_current_thread().enable_all().build()?;
    let control = &config.control;
    let discovery = Discovery::new(
        admin_runtime.handle().clone(),
        clients.channel(&control.destination, Kind::Destination)?,
        clients.channel(&control.policy, Kind::Policy)?,
        config.clone(),
    );

    let Listeners {
        outbound,
        outbound_addrs,
        inbound,
        inbound_addr,
        admin: admin_listener,
        admin_addr,
    } = Listeners::bind(&config)?;
    // Ports known from the start are watched for the life of the process.
    let gateway = !config.inbound.gateway_suffixes.is_empty();
    let ports = config
        .inbound
        .ports
        .iter()
        .chain([admin_addr.port()])
        .chain(gateway.then_some(inbound_addr.port()));
    let eager = ports.map(|port| discovery.inbound(port)).collect();

    let (leave, leaving) = drain::channel();
    let tap = config.tap.as_ref().map(bind_tap).transpose()?;
    let (tracer, export) = match &config.control.trace {
        Some(addr) => {
            let (tracer, spans) = trace::Tracer::new();
            let resource = trace::export::resource(&config.trace_resource);
            let backoff = config.outbound.backoff;
            let collector = clients.channel(addr, Kind::Trace)?;
            let exported = trace::export::Exported::new(&registry);
            let export = trace::export::run(spans, collector, resource, backoff, exported);
            (Some(tracer), Some(Box::pin(export) as _))
        }
        None => (None, None),
    };
    let observers = Observers {
        taps: tap.as_ref().map(|(_, taps, _)| taps.clone()),
        tracer,
        access: match config.access_log {
            Some(format) => {
                let to = seams.access_log.unwrap_or_else(|| Box::new(io::stderr()));
                Some(access::Log::start(format, to)?)
            }
            None => None,
        },
    };

    let tap_addr = tap
        .as_ref()
        .map(|(listener, ..)| listener.local_addr())
        .transpose()?;

    let (end, watch) = drain::channel();
    let (shutdown, shutdown_asked) = mpsc::channel(1);
    let count = config.workers.count(available_cpus());
    let mut workers = Vec::with_capacity(count);
    let mut runtimes = Runtimes::default();
    runtimes.add(admin_runtime.metrics());
    for (index, in_flight) in InFlightLimits::for_workers(count).into_iter().enumerate() {
        let seed = WorkerSeed {
            config: config.clone(),
            discovery: discovery.clone(),
            store: store.clone(),
            registry: registry.clone(),
            observers: observers.clone(),
            outbound: again(&outbound, &outbound_addrs, config.outbound.backlog, index)?,
            inbound: again(
                std::slice::from_ref(&inbound),
                &[inbound_addr],
                config.inbound.backlog,
                index,
            )?
            .remove(0),
            inbound_port: inbound_addr.port(),
            outbound_dst: seams.outbound_dst.clone(),
            inbound_dst: seams.inbound_dst.clone(),
            allow_loopback: seams.allow_loopback,
            leaving: leaving.clone(),
            in_flight,
            drain: watch.clone(),
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtimes.add(runtime.metrics());
        let thread = std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || worker_thread::run(&runtime, seed))?;
        workers.push(thread);
    }
    drop((inbound, outbound, leaving, watch));

    let readiness = Readiness::new();
    let certified = readiness.block("identity");
    let gate_registry = registry.clone();
    let exposition = Exposition::new(open_metrics).prelude(move |out| {
        registry.write(out, Instant::now())?;
        observers.write_dropped(out)?;
        runtimes.write(out)?;
        write_rustls_info(out)
    });
    let admin_shutdown = config.admin.shutdown_enabled.then(|| shutdown.clone());
    let exposition = Arc::new(exposition);
    let admin = admin::build(
        readiness,
        exposition,
        seams.log,
        admin_shutdown,
        store.clone(),
    );
    let seed = AdminSeed {
        admin,
        listener: admin_listener,
        gate: admin::port::Gate {
            store: store.clone(),
            policy: discovery.inbound(admin_addr.port()),
            registry: gate_registry,
            series: parking_lot::Mutex::default(),
        },
        tap,
        export,
        store: store.clone(),
        certification,
        certified,
        eager,
        ending: Ending {
            asked: shutdown_asked,
            leave,
            end,
            application: seams.application,
            grace: config.shutdown_grace,
        },
    };
    let admin_thread = std::thread::Builder::new()
        .name("admin".into())
        .spawn(move || admin_thread::run(&admin_runtime, seed))?;

    tracing::info!("Admin interface on {admin_addr}");
    tracing::info!("Inbound interface on {inbound_addr}");
    for addr in &outbound_addrs {
        tracing::info!("Outbound interface on {addr}");
    }
    match &tap_addr {
        Some(addr) => tracing::info!("Tap interface on {addr}"),
        None => tracing::info!("Tap DISABLED"),
    }
    tracing::info!("SNI is {}", config.identity.server_name);
    tracing::info!("Local identity is {}", config.identity.id);
    tracing::info!(
        "Destinations resolved via {}",
        config.control.destination.addr
    );
    Ok(Running {
        outbound: outbound_addrs,
        inbound: inbound_addr,
        admin: admin_addr,
        tap: tap_addr,
        store,
        shutdown,
        admin_thread: Some(admin_thread),
        workers,
    })
}

fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl Running {
    /// Starts a graceful shutdown.
    pub fn shutdown(&self) {
        // A full channel means that it has been asked already.
        let _ = self.shutdown.try_send(());
    }

    /// Waits until everything has ended. Workers that outlive the grace period are left behind.
    pub fn join(mut self) {
        if let Some(admin) = self.admin_thread.take() {
            let _ = admin.join();
        }
        for worker in self.workers.drain(..) {
            if worker.is_finished() {
                let _ = worker.join();
            }
        }
    }
}
