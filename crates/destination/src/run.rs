//! The destination part of a process: what it counts, what it watches, what it serves. The
//! process gives it a client, the watches it shares with others, and the signals to stop.

use std::{sync::Arc, time::Duration};

use kube::Client;
use linkerd_k8s::{Secret, Watches, lease::Candidate, watch};
use linkerd_runtime::{drain, metrics::Registry, ready::Readiness};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

use crate::{
    clusters::{ClusterStore, Clusters},
    config::Config,
    external,
    grpc::{CallMetrics, Server},
    metrics::Metrics,
    stream::Discovery,
};

const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Discovery and what belongs to it, ready to be fed and served.
#[derive(Debug)]
pub struct Destination {
    discovery: Discovery,
    clusters: Clusters,
    store: Arc<Mutex<ClusterStore>>,
    calls: CallMetrics,
    /// Where slices are on, this process may be the one to write those of ExternalWorkloads.
    slices: Option<external::Controller>,
}

impl Destination {
    /// `watch_metrics` are those of the process's watches; linked clusters count there too.
    pub fn new(config: Config, registry: &mut Registry, watch_metrics: watch::Metrics) -> Self {
        let metrics = Metrics::register(registry);
        let clusters = Clusters::default();
        let slices = config
            .enable_endpoint_slices
            .then(|| external::Controller::new(external::Metrics::register(registry)));
        let discovery = Discovery::new(config, metrics.clone());
        let config = discovery.config().clone();
        let store = ClusterStore::new(clusters.clone(), config, metrics, watch_metrics);
        Self {
            discovery,
            clusters,
            store: Arc::new(Mutex::new(store)),
            calls: CallMetrics::register(registry),
            slices,
        }
    }

    pub fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    /// Asks for every kind it needs.
    pub fn subscribe(&self, watches: &mut Watches) {
        self.discovery.subscribe(watches);
        let namespace = &self.discovery.config().controller_namespace;
        watches.subscribe_in::<Secret, _>(namespace, &self.store);
        if let Some(slices) = &self.slices {
            slices.subscribe(watches);
        }
    }

    /// Takes part in the election of the replica that writes EndpointSlices, under the name
    /// `identity`, until the process drains.
    pub fn write_slices(&self, client: &Client, identity: &str, mut drain: drain::Watch) {
        let Some(slices) = self.slices.clone() else {
            return;
        };
        let params =
            external::lease_params(&self.discovery.config().controller_namespace, identity);
        let (candidate, leadership) = Candidate::new(client.clone(), params);
        let writer =
            linkerd_runtime::spawn("external-slices", slices.run(client.clone(), leadership));
        linkerd_runtime::spawn("external-slices-lease", async move {
            candidate.run_until(drain.signaled()).await;
            writer.abort();
            drop(drain);
        });
    }

    /// Serves until the process drains; open streams end then.
    pub async fn serve(
        &self,
        listener: TcpListener,
        ready: Readiness,
        drain: drain::Watch,
    ) -> Result<(), tonic::transport::Error> {
        let server = Server::new(
            self.discovery.clone(),
            self.clusters.clone(),
            ready,
            drain.clone(),
            self.calls.clone(),
        );
        serve(server, listener, drain).await
    }
}

/// Serves the gRPC service on a listener until `drain` is signalled and all streams have ended.
pub async fn serve(
    server: Server,
    listener: TcpListener,
    mut drain: drain::Watch,
) -> Result<(), tonic::transport::Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        // A client that vanished does not keep its streams for ever.
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .add_service(server)
        .serve_with_incoming_shutdown(incoming, drain.signaled())
        .await
}
