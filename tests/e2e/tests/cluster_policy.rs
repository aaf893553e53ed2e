//! Policy against a real API server: an authorization reaches a proxy that watches, statuses are
//! written by one replica and then by the next, and admission refuses what it should. The
//! controller runs beside the test and talks to the cluster under test.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use linkerd_api::proto::{
    inbound::{self, PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
    meta::metadata,
    net::TcpAddress,
    outbound::{
        OutboundPolicy, TrafficSpec, outbound_policies_client::OutboundPoliciesClient,
        proxy_protocol::Kind as Protocol, traffic_spec::Target,
    },
};
use linkerd_e2e::{Kubectl, Namespace};
use linkerd_k8s::{
    PortSet, Watches, crd,
    lease::WriterEnded,
    watch::{Metrics as WatchMetrics, Running},
};
use linkerd_policy::{
    Index,
    args::{self, Args},
    grpc::Policies,
    status::{self, Writer},
};
use linkerd_runtime::{drain, metrics::grpc::Calls, ready::Readiness};
use linkerd_testkit::{wait_for, wait_for_some};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tonic::{Streaming, transport::Channel};

#[path = "cluster_policy/admission.rs"]
mod admission;
#[path = "cluster_policy/gateway.rs"]
mod gateway;

const PATIENCE: Duration = Duration::from_secs(120);

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// One replica of the policy controller.
struct Replica {
    channel: Channel,
    drain: drain::Signal,
    lease: JoinHandle<Result<(), WriterEnded>>,
    _watches: Running,
}

impl Replica {
    /// Starts against the cluster, with its lease in the test's namespace.
    async fn start(client: &Client, namespace: &Namespace, identity: &str) -> Self {
        let lease_namespace = format!("--control-plane-namespace={}", namespace.name());
        let args = Command::parse_from(["policy", &lease_namespace]).args;
        let index = Index::new(args.cluster("cluster.local", PortSet::default()));
        let index = Arc::new(Mutex::new(index));
        let mut watches = Watches::new();
        args::subscribe(&index, &mut watches);
        let ready = Readiness::new();
        let watches = watches.start(client, &WatchMetrics::unregistered(), &ready);
        let (signal, watch) = drain::channel();

        let policies = Policies::new(index.clone(), watch.clone(), Calls::unregistered());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let router = tonic::transport::Server::builder()
            .add_service(policies.inbound())
            .add_service(policies.outbound());
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        linkerd_runtime::spawn("policy", async move {
            router.serve_with_incoming(incoming).await
        });

        let (candidate, leadership) = args.candidate(client.clone(), identity, None);
        let writer = Writer::new(
            index,
            client.clone(),
            leadership,
            watch.clone(),
            args.patch_timeout(),
            status::Metrics::unregistered(),
        )
        .when_listed(ready.clone());
        let writer = linkerd_runtime::spawn("statuses", writer.run());
        let lease = candidate.run_for(writer, watch, args.patch_timeout());
        let lease = linkerd_runtime::spawn("lease", lease);
        timeout(PATIENCE, ready.ready())
            .await
            .unwrap_or_else(|_| panic!("not ready: {:?}", ready.waiting_for()));
        let channel = Channel::from_shared(format!("http://{addr}")).expect("an address");
        let channel = channel.connect().await.expect("connects");
        Self {
            channel,
            drain: signal,
            lease,
            _watches: watches,
        }
    }

    /// Gives the lease back and goes away.
    async fn stop(self) {
        drop(self.channel);
        // The server of this test has no end of its own; the lease has.
        let drained = self.drain.drain_within(PATIENCE);
        tokio::select! {
            _ = drained => {}
            ended = self.lease => ended.expect("runs").expect("lets the lease go"),
        }
    }
}

async fn connect(kubectl: &Kubectl) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubectl.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .expect("a cluster");
    let client = Client::try_from(config).expect("a client");
    install_definitions(&client).await;
    client
}

/// Other tests may do the same at the same time; they mean the same.
async fn install_definitions(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("linkerd-e2e").force();
    for mut definition in crd::all() {
        let name = format!("{}.{}", definition.spec.names.plural, definition.spec.group);
        definition.metadata.name = Some(name.clone());
        api.patch(&name, &params, &Patch::Apply(&definition))
            .await
            .expect("installs a definition");
    }
}

/// kubectl blocks; the replicas beside it must go on.
async fn blocking<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    tokio::task::block_in_place(work)
}

/// A pod no node will ever run: policy needs only the object.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, "linkerd.io/control-plane-ns": "linkerd"}},
        "spec": {
            "nodeSelector": {"linkerd-rs/nowhere": "true"},
            "containers": [{"name": "app", "image": "none", "ports": [{"name": "http", "containerPort": 8080}]}],
        },
    })
}

fn policy(version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("policy.linkerd.io/{version}"),
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    })
}

fn server(name: &str) -> Value {
    policy(
        "v1beta3",
        "Server",
        name,
        json!({"podSelector": {"matchLabels": {"app": "web"}}, "port": "http", "proxyProtocol": "HTTP/1"}),
    )
}

async fn until(
    stream: &mut Streaming<inbound::Server>,
    what: &str,
    wanted: impl Fn(&inbound::Server) -> bool,
) {
    let since = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(since.elapsed());
        let message = timeout(left, stream.message())
            .await
            .unwrap_or_else(|_| panic!("not in time: {what}"));
        let server = message.expect("no error").expect("the stream is open");
        if wanted(&server) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authorization_reaches_a_watching_client() {
    let kubectl = Kubectl::from_env();
    let client = connect(&kubectl).await;
    let namespace = Namespace::create(&kubectl, "policy-inbound");
    let replica = Replica::start(&client, &namespace, "one").await;
    blocking(|| namespace.apply(&pod("web"))).await;

    let mut policies = InboundServerPoliciesClient::new(replica.channel.clone());
    let spec = PortSpec {
        workload: format!(r#"{{"ns":"{}","pod":"web"}}"#, namespace.name()),
        port: 8080,
    };
    let since = Instant::now();
    let mut stream = loop {
        match policies.watch_port(spec.clone()).await {
            Ok(stream) => break stream.into_inner(),
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::NotFound, "{status}");
                assert!(since.elapsed() < PATIENCE, "the pod is never seen");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    until(&mut stream, "the default", |server| {
        server.labels["kind"] == "default"
    })
    .await;

    blocking(|| namespace.apply(&server("http"))).await;
    until(&mut stream, "the Server", |server| {
        server.labels["name"] == "http" && server.authorizations.is_empty()
    })
    .await;

    let target = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "http"});
    let grant = policy(
        "v1alpha1",
        "AuthorizationPolicy",
        "clients",
        json!({
            "targetRef": target,
            "requiredAuthenticationRefs": [{"kind": "ServiceAccount", "name": "front"}],
        }),
    );
    blocking(|| namespace.apply(&grant)).await;
    until(&mut stream, "the authorization", |server| {
        server.authorizations.len() == 1
    })
    .await;

    blocking(|| {
        namespace.run(&[
            "delete",
            "authorizationpolicies.policy.linkerd.io",
            "clients",
        ])
    })
    .await;
    until(&mut stream, "its end", |server| {
        server.authorizations.is_empty()
    })
    .await;

    blocking(|| namespace.run(&["delete", "pod", "web", "--force", "--grace-period=0"])).await;
    let end = timeout(PATIENCE, async {
        while let Ok(Some(_)) = stream.message().await {}
    })
    .await;
    assert!(end.is_ok(), "the stream ends with the pod");
    replica.stop().await;
}

/// Names of the HTTP routes a policy has.
fn http_routes(policy: &OutboundPolicy) -> Vec<String> {
    let Some(Protocol::Detect(detect)) = policy
        .protocol
        .as_ref()
        .and_then(|protocol| protocol.kind.as_ref())
    else {
        return Vec::new();
    };
    let routes = detect.http1.iter().flat_map(|http| &http.routes);
    let names = routes
        .filter_map(|route| route.metadata.as_ref()?.kind.as_ref())
        .map(|kind| match kind {
            metadata::Kind::Default(name) => name.clone(),
            metadata::Kind::Resource(resource) => format!("{}/{}", resource.kind, resource.name),
        });
    names.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outbound_policies_follow_routes_and_egress_networks() {
    let kubectl = Kubectl::from_env();
    let client = connect(&kubectl).await;
    let namespace = Namespace::create(&kubectl, "policy-outbound");
    let replica = Replica::start(&client, &namespace, "one").await;
    let mut policies = OutboundPoliciesClient::new(replica.channel.clone());
    let spec = |addr: &str| TrafficSpec {
        source_workload: format!(r#"{{"ns":"{}","pod":"curl"}}"#, namespace.name()),
        target: Some(Target::Addr(TcpAddress::from(
            addr.parse::<std::net::SocketAddr>().expect("an address"),
        ))),
    };
    let next = async |stream: &mut Streaming<OutboundPolicy>| {
        let message = timeout(PATIENCE, stream.message()).await.expect("in time");
        message.expect("no error")
    };

    let ip = blocking(|| {
        namespace.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}));
        namespace.run(&["get", "service", "web", "--output=jsonpath={.spec.clusterIP}"])
    })
    .await;
    let since = Instant::now();
    let mut web = loop {
        match policies.watch(spec(&format!("{ip}:80"))).await {
            Ok(stream) => break stream.into_inner(),
            Err(status) => {
                assert!(since.elapsed() < PATIENCE, "{status}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    assert_eq!(http_routes(&next(&mut web).await.expect("open")), ["http"]);
    blocking(|| namespace.apply(&route("web"))).await;
    assert_eq!(
        http_routes(&next(&mut web).await.expect("open")),
        ["HTTPRoute/route"]
    );
    blocking(|| namespace.run(&["delete", "httproutes.policy.linkerd.io", "route"])).await;
    assert_eq!(http_routes(&next(&mut web).await.expect("open")), ["http"]);

    let outside = spec("192.0.2.1:80");
    let mut fallback = policies
        .watch(outside.clone())
        .await
        .expect("watched")
        .into_inner();
    assert_eq!(
        http_routes(&next(&mut fallback).await.expect("open")),
        ["egress-fallback"]
    );
    blocking(|| {
        namespace.apply(&policy(
            "v1alpha1",
            "EgressNetwork",
            "outside",
            json!({"trafficPolicy": "Deny"}),
        ))
    })
    .await;
    assert_eq!(
        next(&mut fallback).await,
        None,
        "the client has to ask again"
    );
    // Networks of other tests end the stream as well: what counts is the answer in the end.
    let since = Instant::now();
    loop {
        let mut asked = policies
            .watch(outside.clone())
            .await
            .expect("watched")
            .into_inner();
        let found = http_routes(&next(&mut asked).await.expect("open"));
        if found == ["http-egress-deny"] {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "still {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    replica.stop().await;
}

fn conditions(namespace: &Namespace, object: &str, path: &str) -> Option<Vec<String>> {
    let (found, text) = namespace.try_run(&["get", object, "--output=json"]);
    if !found {
        return None;
    }
    let object: Value = serde_json::from_str(&text).ok()?;
    let list = object.pointer(path)?.as_array()?;
    let shown = list.iter().map(|condition| {
        let field = |name: &str| condition[name].as_str().unwrap_or_default();
        format!("{}={}/{}", field("type"), field("status"), field("reason"))
    });
    Some(shown.collect())
}

fn route(parent: &str) -> Value {
    policy(
        "v1beta3",
        "HTTPRoute",
        "route",
        json!({
            "parentRefs": [{"group": "core", "kind": "Service", "name": parent, "port": 80}],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}],
        }),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_are_written_by_one_replica_and_then_by_the_next() {
    const PARENT: &str = "/status/parents/0/conditions";
    let kubectl = Kubectl::from_env();
    let client = connect(&kubectl).await;
    let namespace = Namespace::create(&kubectl, "policy-status");
    let expect = async |object: &str, path: &str, expected: &[&str]| {
        blocking(|| {
            let mut last = None;
            let what = format!("{object} to have {expected:?}");
            wait_for(PATIENCE, &what, || {
                last = conditions(&namespace, object, path);
                last.as_deref().is_some_and(|found| found == expected)
            });
        })
        .await;
    };
    let holder = || {
        let lease = namespace.try_run(&[
            "get",
            "lease",
            "policy-controller-write",
            "--output=jsonpath={.spec.holderIdentity}",
        ]);
        Some(lease.1).filter(|holder| lease.0 && !holder.is_empty())
    };
    let one = Replica::start(&client, &namespace, "one").await;
    assert_eq!(
        blocking(|| wait_for_some(PATIENCE, "a leader", holder)).await,
        "one"
    );
    let two = Replica::start(&client, &namespace, "two").await;

    blocking(|| {
        namespace.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}));
        namespace.apply(&route("web"));
        namespace.apply(&server("http"));
        namespace.apply(&policy("v1alpha1", "HTTPLocalRateLimitPolicy", "limit", json!({
            "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "http"},
            "total": {"requestsPerSecond": 10},
        })));
        namespace.apply(&policy("v1alpha1", "EgressNetwork", "inside", json!({"trafficPolicy": "Allow", "networks": [{"cidr": "10.0.0.0/16"}]})));
        namespace.apply(&policy("v1alpha1", "EgressNetwork", "outside", json!({"trafficPolicy": "Deny"})));
    })
    .await;
    expect(
        "httproutes.policy.linkerd.io/route",
        PARENT,
        &["Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs"],
    )
    .await;
    expect(
        "httplocalratelimitpolicies/limit",
        "/status/conditions",
        &["Accepted=True/Accepted"],
    )
    .await;
    expect(
        "egressnetworks/inside",
        "/status/conditions",
        &["Accepted=False/EgressReasonNetworkOverlap"],
    )
    .await;
    expect(
        "egressnetworks/outside",
        "/status/conditions",
        &["Accepted=True/Accepted"],
    )
    .await;
    assert_eq!(
        blocking(holder).await.as_deref(),
        Some("one"),
        "the other replica waits"
    );

    one.stop().await;
    blocking(|| {
        wait_for(PATIENCE, "the other replica to lead", || {
            holder().as_deref() == Some("two")
        })
    })
    .await;
    blocking(|| namespace.run(&["delete", "service", "web"])).await;
    expect(
        "httproutes.policy.linkerd.io/route",
        PARENT,
        &[
            "Accepted=False/NoMatchingParent",
            "ResolvedRefs=False/BackendNotFound",
        ],
    )
    .await;
    blocking(|| namespace.run(&["delete", "servers.policy.linkerd.io", "http"])).await;
    expect(
        "httplocalratelimitpolicies/limit",
        "/status/conditions",
        &["Accepted=False/NoMatchingTarget"],
    )
    .await;
    two.stop().await;
}
