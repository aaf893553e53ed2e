//! One worker's thread: accepts connections on its own listeners, serves them, and ends when they have.

use std::{rc::Rc, sync::Arc, time::Duration};

use linkerd_runtime::drain;
use linkerd_tls::Store;
use tokio::{net::TcpListener, runtime::Runtime, sync::Notify, task::LocalSet};

use crate::{
    config::{Config, SocketOptions},
    connect::LoopGuard,
    control::Discovery,
    inbound,
    metrics::Registry,
    observe::Observers,
    outbound,
    socket::{self, OrigDst},
    worker::{InFlightLimits, Worker},
};

/// Everything a worker thread starts from.
pub(super) struct WorkerSeed {
    pub(super) config: Arc<Config>,
    pub(super) discovery: Discovery,
    pub(super) store: Arc<Store>,
    pub(super) registry: Arc<Registry>,
    pub(super) observers: Observers,
    pub(super) outbound: Vec<std::net::TcpListener>,
    pub(super) inbound: std::net::TcpListener,
    pub(super) inbound_port: u16,
    pub(super) outbound_dst: OrigDst,
    pub(super) inbound_dst: OrigDst,
    pub(super) allow_loopback: bool,
    /// Told when the pod leaves: peers are sent elsewhere, the application is still served.
    pub(super) leaving: drain::Watch,
    pub(super) in_flight: InFlightLimits,
    /// Told when the application is gone.
    pub(super) drain: drain::Watch,
}

pub(super) fn run(runtime: &Runtime, seed: WorkerSeed) {
    let local = LocalSet::new();
    runtime.block_on(local.run_until(serve(seed)));
}

async fn serve(seed: WorkerSeed) {
    let WorkerSeed {
        config,
        discovery,
        store,
        registry,
        observers,
        outbound,
        inbound,
        inbound_port,
        outbound_dst,
        inbound_dst,
        allow_loopback,
        mut leaving,
        in_flight,
        mut drain,
    } = seed;
    // The kernel queues connections until there is a certificate.
    tokio::select! {
        () = store.certified() => {}
        () = leaving.signaled() => return,
    }
    let outbound_guard = match allow_loopback {
        true => LoopGuard::None,
        false => LoopGuard::Loopback,
    };
    let worker = Worker::new(
        config.clone(),
        discovery,
        store,
        registry,
        observers,
        [outbound_guard, LoopGuard::Port(inbound_port)],
        in_flight,
    );
    linkerd_runtime::spawn_local("sweep", worker.clone().sweep());
    let open = Rc::new(Open {
        worker: worker.clone(),
        empty: Notify::new(),
    });
    let mut loops = Vec::new();
    for listener in outbound {
        let worker = worker.clone();
        let serve = move |accepted| outbound::serve(worker.clone(), accepted);
        let accept = accept_loop(
            "outbound",
            listener,
            config.outbound.accept,
            outbound_dst.clone(),
            open.clone(),
            serve,
        );
        loops.push(linkerd_runtime::spawn_local("outbound-accept", accept));
    }
    let inbound_worker = worker.clone();
    let serve = move |accepted| inbound::serve(inbound_worker.clone(), accepted, inbound_port);
    let accept = accept_loop(
        "inbound",
        inbound,
        config.inbound.accept,
        inbound_dst,
        open.clone(),
        serve,
    );
    loops.push(linkerd_runtime::spawn_local("inbound-accept", accept));

    leaving.signaled().await;
    worker.inbound_drain.start();
    drop(leaving);
    drain.signaled().await;
    for accept in loops {
        accept.abort();
    }
    worker.outbound_drain.start();
    open.none().await;
    drop(drain);
}

async fn accept_loop<F>(
    name: &'static str,
    listener: std::net::TcpListener,
    options: SocketOptions,
    orig_dst: OrigDst,
    open: Rc<Open>,
    serve: impl Fn(socket::Accepted) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, listener = name, "Listener cannot be used");
            return;
        }
    };
    loop {
        match socket::accept(&listener, options, &orig_dst).await {
            Ok(Ok(accepted)) => {
                let guard = open.one();
                let connection = serve(accepted);
                linkerd_runtime::spawn_local("connection", async move {
                    let _guard = guard;
                    connection.await;
                });
            }
            Ok(Err(refused)) => {
                let error: &dyn std::error::Error = &refused;
                tracing::info!(error, listener = name, "Connection refused");
            }
            Err(error) => {
                tracing::warn!(%error, listener = name, "Accept failed");
                if !socket::is_transient(&error) {
                    // Out of descriptors, most likely: let some be given back.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Counts open connections.
#[derive(Debug)]
struct Open {
    worker: Rc<Worker>,
    empty: Notify,
}

struct OpenGuard(Rc<Open>);

impl Open {
    fn one(self: &Rc<Self>) -> OpenGuard {
        self.worker.in_flight.connections.enter(usize::MAX);
        OpenGuard(self.clone())
    }

    async fn none(&self) {
        while self.worker.in_flight.connections.mine() > 0 {
            self.empty.notified().await;
        }
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        let connections = &self.0.worker.in_flight.connections;
        connections.leave();
        if connections.mine() == 0 {
            self.0.empty.notify_one();
        }
    }
}
