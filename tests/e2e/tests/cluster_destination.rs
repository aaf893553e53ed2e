//! Discovery against a real API server: endpoints follow a rolling deployment, ExternalWorkloads
//! get their EndpointSlices, and another replica takes over writing. The service runs beside the
//! test and talks to the cluster under test.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use linkerd_api::proto::destination::{
    GetDestination, Update, destination_client::DestinationClient, update,
};
use linkerd_destination::{Config as Settings, Destination};
use linkerd_e2e::{Kubectl, Namespace, house_image};
use linkerd_k8s::{
    CustomResourceDefinition, Watches, crd,
    watch::{Metrics, Running},
};
use linkerd_runtime::{drain, gate::Gate, metrics::Registry, ready::Readiness};
use serde_json::json;
use tokio::{net::TcpListener, time::timeout};
use tonic::{Streaming, transport::Channel};

const PATIENCE: Duration = Duration::from_secs(180);

/// One replica of the service.
struct Replica {
    client: DestinationClient<Channel>,
    drain: drain::Signal,
    _watches: Running,
}

impl Replica {
    /// Starts against the cluster and waits until it is ready. With an identity it takes part in
    /// the election; whoever wins writes the slices of the whole cluster, so that only the
    /// replicas of one test may.
    async fn start(kubectl: &Kubectl, namespace: &Namespace, identity: Option<&str>) -> Self {
        let kube = connect(kubectl).await;
        install_definitions(&kube).await;
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let settings = Settings {
            controller_namespace: namespace.name().to_owned(),
            ..Settings::default()
        };
        let destination = Destination::new(settings, &mut registry, metrics.clone());
        let destination = Arc::new(destination);
        let mut watches = Watches::new();
        destination.subscribe(&mut watches);
        let ready = Readiness::new();
        let running = watches.start(&kube, &metrics, &ready);
        let (signal, watch) = drain::channel();
        if let Some(identity) = identity {
            let (slices, listed, stop) = (destination.clone(), ready.clone(), watch.clone());
            let identity = identity.to_owned();
            linkerd_runtime::spawn("slices", async move {
                let written = slices.write_slices(&kube, &identity, listed, stop).await;
                written.expect("the writer ends with the process");
            });
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let served = ready.clone();
        linkerd_runtime::spawn("destination", async move {
            destination
                .serve(listener, served, watch, Gate::open())
                .await
                .expect("serves");
        });
        timeout(PATIENCE, ready.ready())
            .await
            .unwrap_or_else(|_| panic!("not ready: {:?}", ready.waiting_for()));
        let client = DestinationClient::connect(format!("http://{addr}"))
            .await
            .expect("connects");
        Self {
            client,
            drain: signal,
            _watches: running,
        }
    }

    async fn get(&mut self, path: String) -> Streaming<Update> {
        let started = Instant::now();
        loop {
            let request = GetDestination {
                path: path.clone(),
                ..GetDestination::default()
            };
            match self.client.get(request).await {
                Ok(stream) => return stream.into_inner(),
                // The watch has not brought the Service yet.
                Err(status) if started.elapsed() < PATIENCE => {
                    assert_eq!(status.code(), tonic::Code::NotFound, "{status}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(status) => panic!("{status}"),
            }
        }
    }
}

async fn connect(kubectl: &Kubectl) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubectl.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .expect("a cluster");
    Client::try_from(config).expect("a client")
}

/// Other tests may do the same at the same time; they mean the same.
async fn install_definitions(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("linkerd-e2e").force();
    for definition in crd::all() {
        let name = format!("{}.{}", definition.spec.names.plural, definition.spec.group);
        let mut definition = definition;
        definition.metadata.name = Some(name.clone());
        api.patch(&name, &params, &Patch::Apply(&definition))
            .await
            .expect("installs a definition");
    }
}

/// What a proxy makes of a stream.
#[derive(Default)]
struct Seen {
    endpoints: BTreeSet<SocketAddr>,
    /// How many times there was no endpoint after there had been one.
    emptied: usize,
}

impl Seen {
    async fn read(&mut self, stream: &mut Streaming<Update>) {
        let update = timeout(PATIENCE, stream.message())
            .await
            .expect("an update in time");
        let update = update.expect("no error").expect("the stream is open");
        let had = !self.endpoints.is_empty();
        match update.update.expect("a kind") {
            update::Update::Add(set) => {
                let addrs = set.addrs.into_iter().filter_map(|it| it.addr);
                self.endpoints
                    .extend(addrs.map(|addr| SocketAddr::try_from(addr).expect("an address")));
            }
            update::Update::Remove(set) => {
                for addr in set.addrs {
                    self.endpoints
                        .remove(&SocketAddr::try_from(addr).expect("an address"));
                }
            }
            update::Update::NoEndpoints(_) => self.endpoints.clear(),
        }
        self.emptied += usize::from(had && self.endpoints.is_empty());
    }

    async fn until(
        &mut self,
        stream: &mut Streaming<Update>,
        wanted: impl Fn(&BTreeSet<SocketAddr>) -> bool,
    ) {
        while !wanted(&self.endpoints) {
            self.read(stream).await;
        }
    }
}

fn deployment(image: &str, round: &str) -> serde_json::Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}, "annotations": {"round": round}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "web",
                        "image": image,
                        "args": ["serve", "0.0.0.0:8080", "/linkerd-e2e-house", "hello"],
                        "ports": [{"containerPort": 8080, "name": "http"}],
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

fn pod_addresses(namespace: &Namespace) -> BTreeSet<SocketAddr> {
    let pods = namespace.run(&["get", "pods", "--selector=app=web", "--output=json"]);
    let pods: serde_json::Value = serde_json::from_str(&pods).expect("JSON");
    let pods = pods["items"].as_array().expect("a list");
    pods.iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .filter_map(|pod| {
            format!("{}:8080", pod["status"]["podIP"].as_str()?)
                .parse()
                .ok()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_follow_a_rolling_deployment() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let namespace = Namespace::create(&kubectl, "destination");
    let mut replica = Replica::start(&kubectl, &namespace, None).await;
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }));
    let mut stream = replica.get(format!("{}:80", namespace.host("web"))).await;
    let mut seen = Seen::default();
    seen.read(&mut stream).await;
    assert!(seen.endpoints.is_empty(), "there is no pod yet");

    namespace.apply(&deployment(image, "1"));
    seen.until(&mut stream, |endpoints| endpoints.len() == 3)
        .await;
    namespace.wait_deployment("web", PATIENCE);
    let first = pod_addresses(&namespace);
    seen.until(&mut stream, |endpoints| *endpoints == first)
        .await;

    namespace.apply(&deployment(image, "2"));
    seen.until(&mut stream, |endpoints| {
        endpoints.len() >= 3 && endpoints.is_disjoint(&first)
    })
    .await;
    namespace.wait_deployment("web", PATIENCE);
    let second = pod_addresses(&namespace);
    assert!(second.is_disjoint(&first), "every pod was replaced");
    seen.until(&mut stream, |endpoints| *endpoints == second)
        .await;
    assert_eq!(seen.emptied, 0, "there was always an endpoint");

    namespace.run(&["scale", "deployment/web", "--replicas=0"]);
    seen.until(&mut stream, BTreeSet::is_empty).await;
}

fn external_workload(name: &str, ip: &str) -> serde_json::Value {
    json!({
        "apiVersion": "workload.linkerd.io/v1beta1",
        "kind": "ExternalWorkload",
        "metadata": {"name": name, "labels": {"app": "vm"}},
        "spec": {
            "meshTLS": {"identity": "spiffe://td/vm", "serverName": "vm.td"},
            "ports": [{"name": "http", "port": 8080}],
            "workloadIPs": [{"ip": ip}],
        },
    })
}

fn set_ready(namespace: &Namespace, name: &str) {
    let status =
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}).to_string();
    let target = format!("externalworkload/{name}");
    namespace.run(&[
        "patch",
        &target,
        "--subresource=status",
        "--type=merge",
        "--patch",
        &status,
    ]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_workloads_become_endpoints_and_another_replica_takes_over() {
    let kubectl = Kubectl::from_env();
    let namespace = Namespace::create(&kubectl, "external");
    let mut first = Replica::start(&kubectl, &namespace, Some("first")).await;
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "vm"},
        "spec": {"selector": {"app": "vm"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    }));
    namespace.apply(&external_workload("vm-1", "192.0.2.1"));
    set_ready(&namespace, "vm-1");
    let path = format!("{}:80", namespace.host("vm"));
    let addr = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let mut stream = first.get(path.clone()).await;
    let mut seen = Seen::default();
    seen.until(&mut stream, |endpoints| {
        *endpoints == [addr("192.0.2.1:8080")].into()
    })
    .await;
    let holder = || {
        let jsonpath = "--output=jsonpath={.spec.holderIdentity}";
        namespace.run(&[
            "get",
            "lease",
            "linkerd-destination-endpoint-write",
            jsonpath,
        ])
    };
    assert_eq!(holder(), "first");

    // The second replica waits; when the first one goes, it writes.
    let mut second = Replica::start(&kubectl, &namespace, Some("second")).await;
    assert_eq!(holder(), "first");
    drop((stream, first.client));
    timeout(PATIENCE, first.drain.drain())
        .await
        .expect("the first replica ends");
    assert_ne!(holder(), "first", "the lease is let go at the end");
    namespace.apply(&external_workload("vm-2", "192.0.2.2"));
    set_ready(&namespace, "vm-2");
    let mut stream = second.get(path).await;
    let mut seen = Seen::default();
    let both = [addr("192.0.2.1:8080"), addr("192.0.2.2:8080")].into();
    seen.until(&mut stream, |endpoints| *endpoints == both)
        .await;
    assert_eq!(holder(), "second");

    namespace.run(&["delete", "externalworkload/vm-1"]);
    seen.until(&mut stream, |endpoints| {
        *endpoints == [addr("192.0.2.2:8080")].into()
    })
    .await;
}
