//! Builds the whole proxy and starts its threads: `admin` for the admin server, identity and the
//! control plane, and workers for traffic. Tests start the same thing on port 0.

mod certification;
mod shutdown;
mod tap;
mod worker_thread;

use std::{io, net::SocketAddr, sync::Arc, thread::JoinHandle, time::Instant};

use linkerd_core::identity::Id;
use linkerd_runtime::{
    drain, log,
    metrics::{Exposition, register_build_info, register_process},
    ready::Readiness,
};
use linkerd_tls::{Local, Store};
use prometheus_client::registry::Registry as OpenMetrics;
use tokio::{net::TcpListener, runtime::Builder, sync::mpsc, task::LocalSet};

use self::{
    certification::{CertificationSeed, LinkerdSeed, anchors},
    shutdown::{APPLICATION_SHARE, Asked, until_shutdown},
    tap::{bind_tap, serve_tap},
    worker_thread::{WorkerSeed, again},
};
use crate::{
    admin,
    config::{Config, ControlAddr, IdentitySource},
    control::{
        Channel, Discovery,
        client::{ConnectOptions, Refresh},
        dns::Resolver,
        identity::{self, TokenFile},
        spire::Spire,
    },
    identity_bootstrap::load_or_bootstrap,
    metrics::{
        Registry,
        balancer::Kind,
        control::ControlMetrics,
        process::{Runtimes, write_rustls_info},
    },
    observe::{Observers, access, trace},
    presence::Presence,
    socket::{self, OrigDst},
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

    let anchors = anchors(&config.identity)?;
    let store = Store::new(
        anchors,
        Local {
            id: Id::parse(&config.identity.id)?,
            server_name: config.identity.server_name.clone(),
        },
    );
    let store = Arc::new(if config.identity.resumption {
        store
    } else {
        store.without_resumption()
    });
    let refresh = Refresh {
        min: config.control.dns_min_ttl,
        max: config.control.dns_max_ttl,
    };
    let options = |addr: &ControlAddr| {
        if addr.addr.is_loopback() {
            ConnectOptions {
                timeout: config.inbound.connect_timeout,
                socket: config.inbound.connect,
                refresh,
            }
        } else {
            ConnectOptions {
                timeout: config.outbound.connect_timeout,
                socket: config.outbound.connect,
                refresh,
            }
        }
    };
    let control_metrics = |addr: &ControlAddr, kind| {
        let identity = addr.identity.as_deref();
        ControlMetrics::new(&registry, kind, &addr.addr.to_string(), identity)
    };
    let channel = |addr: &ControlAddr, metrics: &Arc<ControlMetrics>| {
        Channel::new(
            addr,
            store.clone(),
            seams.resolver.clone(),
            options(addr),
            metrics.clone(),
        )
    };
    let certification = match &config.identity.source {
        IdentitySource::Linkerd {
            dir,
            token_file,
            min_refresh,
            max_refresh,
        } => {
            let credentials = load_or_bootstrap(dir, &config.identity.id)?;
            let token = TokenFile::open(token_file.clone())?;
            let addr = config
                .control
                .identity
                .clone()
                .ok_or(StartError::Unsupported("identity without a service"))?;
            let control_metrics = control_metrics(&addr, Kind::Identity);
            // A bad address is an error of configuration, to be told now.
            channel(&addr, &control_metrics)?;
            CertificationSeed::Linkerd(Box::new(LinkerdSeed {
                store: store.clone(),
                dir: dir.clone(),
                credentials,
                token,
                refresh: (*min_refresh, *max_refresh),
                options: options(&addr),
                addr,
                resolver: seams.resolver.clone(),
                metrics: identity_metrics,
                control_metrics,
            }))
        }
        IdentitySource::Spire { socket, backoff } => CertificationSeed::Spire(Spire {
            store: store.clone(),
            socket: socket.clone(),
            backoff: *backoff,
            metrics: identity_metrics,
        }),
    };

    let admin_runtime = Builder::new_current_thread().enable_all().build()?;
    let addr = &config.control.destination;
    let destination = channel(addr, &control_metrics(addr, Kind::Destination))?;
    let addr = &config.control.policy;
    let policy = channel(addr, &control_metrics(addr, Kind::Policy))?;
    let discovery = Discovery::new(
        admin_runtime.handle().clone(),
        destination,
        policy,
        config.clone(),
    );

    let inbound = socket::bind(config.inbound.listen, config.inbound.backlog)
        .map_err(|e| StartError::Bind("inbound", e))?;
    let inbound_addr = inbound.local_addr()?;
    let mut outbound = Vec::new();
    for addr in &config.outbound.listen {
        let listener = socket::bind(*addr, config.outbound.backlog)
            .map_err(|e| StartError::Bind("outbound", e))?;
        outbound.push(listener);
    }
    let outbound_addrs = outbound
        .iter()
        .map(std::net::TcpListener::local_addr)
        .collect::<io::Result<Vec<_>>>()?;
    let admin_listener =
        socket::bind(config.admin.listen, None).map_err(|e| StartError::Bind("admin", e))?;
    let admin_addr = admin_listener.local_addr()?;

    // Ports known from the start are watched for the life of the process.
    let gateway = !config.inbound.gateway_suffixes.is_empty();
    let ports = config
        .inbound
        .ports
        .iter()
        .chain([admin_addr.port()])
        .chain(gateway.then_some(inbound_addr.port()));
    let eager: Vec<_> = ports.map(|port| discovery.inbound(port)).collect();

    let (leave, leaving) = drain::channel();
    let taps = config.tap.as_ref().map(bind_tap).transpose()?;
    let (tracer, export) = match &config.control.trace {
        Some(addr) => {
            let (tracer, spans) = trace::Tracer::new();
            let resource = trace::export::resource(&config.trace_resource);
            let backoff = config.outbound.backoff;
            let metrics = control_metrics(addr, Kind::Trace);
            let collector = channel(addr, &metrics)?;
            let exported = trace::export::Exported::new(&registry);
            let export = trace::export::run(spans, collector, resource, backoff, exported);
            (Some(tracer), Some(export))
        }
        None => (None, None),
    };
    let observers = Observers {
        taps: taps.as_ref().map(|(_, taps, _)| taps.clone()),
        tracer,
        access: match config.access_log {
            Some(format) => {
                let to = seams.access_log.unwrap_or_else(|| Box::new(io::stderr()));
                Some(access::Log::start(format, to)?)
            }
            None => None,
        },
    };

    let tap_addr = taps
        .as_ref()
        .map(|(listener, ..)| listener.local_addr())
        .transpose()?;

    let (signal, watch) = drain::channel();
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
    let grace = config.shutdown_grace;
    let application = seams.application;
    let gate = admin::port::Gate {
        store: store.clone(),
        policy: discovery.inbound(admin_addr.port()),
        registry: gate_registry,
        series: parking_lot::Mutex::default(),
    };
    let admin_store = store.clone();
    let admin_thread = std::thread::Builder::new()
        .name("admin".into())
        .spawn(move || {
            let local = LocalSet::new();
            admin_runtime.block_on(local.run_until(async move {
                let Ok(listener) = TcpListener::from_std(admin_listener) else {
                    tracing::error!("Admin listener cannot be used");
                    return;
                };
                linkerd_runtime::spawn_local("admin", admin::port::serve(admin, listener, gate));
                if let Some((listener, taps, identity)) = taps {
                    let serve = serve_tap(listener, admin_store.clone(), taps, identity);
                    linkerd_runtime::spawn_local("tap", serve);
                }
                if let Some(export) = export {
                    linkerd_runtime::spawn_local("trace-export", export);
                }
                linkerd_runtime::spawn_local("identity", certification.run());
                linkerd_runtime::spawn_local("readiness", async move {
                    identity::certified(&admin_store).await;
                    certified.release();
                });
                let asked = until_shutdown(shutdown_asked).await;
                let start = Instant::now();
                leave.drain().await;
                // Who asks over the admin port has ended already, or says so.
                if asked == Asked::Signal {
                    let wait = grace.mul_f64(APPLICATION_SHARE);
                    let _ = tokio::time::timeout(wait, application.gone()).await;
                }
                let left = grace.saturating_sub(start.elapsed());
                if tokio::time::timeout(left, signal.drain()).await.is_err() {
                    tracing::warn!(
                        "Graceful shutdown did not complete in {grace:?}, terminating now"
                    );
                }
                drop(eager);
            }));
        })?;

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
