//! The destination part of a process: what it counts, what it watches, what it serves. The
//! process gives it a client, the watches it shares with others, and the signals to stop.

use std::{sync::Arc, time::Duration};

use kube::Client;
use linkerd_k8s::{
    Secret, Watches,
    lease::{Candidate, Leadership, WriterEnded},
    watch,
};
use linkerd_runtime::{
    drain,
    gate::Gate,
    metrics::{Registry, grpc::Calls},
    ready::Readiness,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

use crate::{
    clusters::{ClusterStore, Clusters},
    config::Config,
    external,
    grpc::Server,
    metrics::Metrics,
    stream::Discovery,
};

/// How long the last write may take before the lease is let go.
const LAST_WRITE: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Discovery and what belongs to it, ready to be fed and served.
#[derive(Debug)]
pub struct Destination {
    discovery: Discovery,
    clusters: Clusters,
    store: Arc<Mutex<ClusterStore>>,
    calls: Calls,
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
            calls: Calls::register(registry),
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
    /// `identity`, until the process drains. Writes once `listed` says that every kind was.
    pub async fn write_slices(
        &self,
        client: &Client,
        identity: &str,
        listed: Readiness,
        mut drain: drain::Watch,
    ) -> Result<(), WriterEnded> {
        let Some(slices) = self.slices.clone() else {
            drain.signaled().await;
            return Ok(());
        };
        let params =
            external::lease_params(&self.discovery.config().controller_namespace, identity);
        let (candidate, leadership) = Candidate::new(client.clone(), params);
        write_under_lease(slices, client.clone(), candidate, leadership, listed, drain).await
    }

    /// Serves until the process drains; open streams end then.
    pub async fn serve(
        &self,
        listener: TcpListener,
        ready: Readiness,
        drain: drain::Watch,
        gate: Gate,
    ) -> Result<(), tonic::transport::Error> {
        let server = Server::new(
            self.discovery.clone(),
            self.clusters.clone(),
            ready,
            drain.clone(),
            self.calls.clone(),
            gate,
        );
        serve(server, listener, drain).await
    }
}

/// Writes slices while this replica leads. The lease is let go when the last write is done, not
/// before: another replica writes from that moment on.
pub(crate) async fn write_under_lease(
    slices: external::Controller,
    client: Client,
    candidate: Candidate,
    leadership: Leadership,
    listed: Readiness,
    drain: drain::Watch,
) -> Result<(), WriterEnded> {
    let writer = slices.run(client, leadership, listed, drain.clone());
    let writer = linkerd_runtime::spawn("external-slices", writer);
    candidate.run_for(writer, drain, LAST_WRITE).await
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

#[cfg(test)]
mod tests {
    use linkerd_k8s::{Index as _, Service};

    use super::*;
    use crate::{ObjectId, stream::Client as Subscriber};

    /// Spec 1.7: what is watched.
    #[test]
    fn kinds() {
        for (name, slices, has, lacks) in [
            (
                "slices on",
                true,
                ["endpointslices", "externalworkloads"],
                "endpoints",
            ),
            (
                "slices off: ExternalWorkloads have addresses of their own",
                false,
                ["endpoints", "externalworkloads"],
                "endpointslices",
            ),
        ] {
            let config = Config {
                enable_endpoint_slices: slices,
                enable_ipv6: slices,
                ..Config::default()
            };
            let watches = watch::Metrics::unregistered();
            let destination = Destination::new(config, &mut Registry::default(), watches);
            let mut watches = Watches::new();
            destination.subscribe(&mut watches);
            let watched = format!("{watches:?}");
            let common = ["services", "pods", "serviceprofiles", "servers", "secrets"];
            let common = common.into_iter().chain(["nodes", "replicasets", "jobs"]);
            for kind in common.chain(has) {
                assert!(watched.contains(&format!("{kind:?}")), "{name}: {kind}");
            }
            assert!(!watched.contains(&format!("{lacks:?}")), "{name}: {lacks}");
        }
    }

    /// Names are public: dashboards and alerts are written with them.
    #[test]
    fn metric_names() {
        let mut registry = Registry::default();
        let watches = watch::Metrics::unregistered();
        let destination = Destination::new(Config::default(), &mut registry, watches);
        let discovery = destination.discovery();
        let web = ObjectId::new("ns", "web");
        let _stream = discovery.endpoints(&web, 80, Subscriber::default(), discovery.zones());
        let service = serde_json::json!({"metadata": {"namespace": "ns", "name": "web"}});
        discovery
            .index()
            .lock()
            .apply(crate::fixture::object::<Service>(service));
        let _profile = discovery
            .service_profile(&web, 80, None, None)
            .expect("a Service");
        discovery.metrics().overflow(&web, 80);
        discovery
            .metrics()
            .profile_overflow("web.ns.svc.cluster.local", 80);
        destination.calls.start(&crate::grpc::GET).end(0);
        // Families without a series are not written.
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        let types: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .collect();
        let expected = [
            "grpc_server_started counter",
            "grpc_server_handled counter",
            "grpc_server_msg_received counter",
            "grpc_server_msg_sent counter",
            "grpc_server_handling_seconds histogram",
            "workqueue_adds counter",
            "workqueue_retries counter",
            "workqueue_drops counter",
            "workqueue_depth gauge",
            "endpoints_subscribers gauge",
            "endpoints_updates gauge",
            "endpoints_pods gauge",
            "endpoints_exists gauge",
            "profile_subscribers gauge",
            "profile_updates gauge",
            "service_subscribers gauge",
            "workload_subscribers gauge",
            "workload_updates gauge",
            "endpoint_updates_queue_overflow gauge",
            "profile_updates_queue_overflow gauge",
            "endpoint_profile_updates_queue_overflow gauge",
            "cluster_store_size gauge",
        ];
        let sorted = |names: &[&str]| {
            let mut names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(sorted(&types), sorted(&expected));
        let series = r#"endpoints_subscribers{cluster="local",namespace="ns",service="web",port="80",hostname="",nodename=""} 1"#;
        assert!(text.contains(series), "{text}");
        assert!(
            text.contains(r#"workqueue_drops_total{name="endpoints_controller_workqueue"} 0"#),
            "{text}"
        );
    }
}
