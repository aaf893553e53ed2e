//! The gRPC services over a real connection: default policies, Servers, authorizations, outbound
//! lookups, bad input and the end of streams.

use linkerd_api::proto::{
    inbound::{
        self, PortSpec, inbound_server_policies_client::InboundServerPoliciesClient,
        proxy_protocol::Kind as Inbound,
    },
    meta::metadata,
    net,
    outbound::{
        self, TrafficSpec, outbound_policies_client::OutboundPoliciesClient,
        proxy_protocol::Kind as Outbound, traffic_spec,
    },
};
use linkerd_k8s::{Index as _, Pod, Service, policy as k8s};
use linkerd_policy::{Cluster, Index, grpc::Policies, inbound::DefaultPolicy};
use linkerd_runtime::{
    drain,
    gate::{Gate, Rate},
    metrics::grpc::Calls,
    ready::Readiness,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tonic::{Code, Status, Streaming, transport::Channel};

const DEADLINE: Duration = Duration::from_secs(20);

struct Controller {
    index: Arc<Mutex<Index>>,
    channel: Channel,
    signal: drain::Signal,
}

fn cluster() -> Cluster {
    Cluster {
        networks: vec!["10.0.0.0/8".parse().expect("net")],
        control_plane_namespace: "linkerd".to_owned(),
        identity_domain: "cluster.local".to_owned(),
        dns_domain: "cluster.local".to_owned(),
        default_policy: DefaultPolicy::AllUnauthenticated,
        default_opaque_ports: "3306".parse().expect("ports"),
        probe_networks: vec!["0.0.0.0/0".parse().expect("net")],
        global_egress_namespace: "linkerd-egress".to_owned(),
        allow_l5d_request_headers: false,
    }
}

async fn start() -> Controller {
    let index = Arc::new(Mutex::new(Index::new(cluster())));
    let (signal, watch) = drain::channel();
    let policies = Policies::new(index.clone(), watch, Calls::unregistered());
    let channel = serve(&policies).await;
    Controller {
        index,
        channel,
        signal,
    }
}

async fn serve(policies: &Policies) -> Channel {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let addr = listener.local_addr().expect("bound");
    let router = tonic::transport::Server::builder()
        .add_service(policies.inbound())
        .add_service(policies.outbound());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    linkerd_runtime::spawn("policy", async move {
        router.serve_with_incoming(incoming).await
    });
    let channel = Channel::from_shared(format!("http://{addr}")).expect("uri");
    channel.connect().await.expect("connects")
}

fn read<T: DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).expect("an object"))
}

fn pod(name: &str) -> Arc<Pod> {
    read(json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"app": name, "linkerd.io/control-plane-ns": "linkerd"}},
        "spec": {"containers": [{"name": "app", "ports": [{"containerPort": 80, "name": "http"}]}]},
    }))
}

fn server(protocol: &str) -> Arc<k8s::Server> {
    read(json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"namespace": "shop", "name": "http"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": "http", "proxyProtocol": protocol},
    }))
}

fn policy() -> Arc<k8s::AuthorizationPolicy> {
    read(json!({
        "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": {"namespace": "shop", "name": "clients"},
        "spec": {
            "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "http"},
            "requiredAuthenticationRefs": [{"kind": "ServiceAccount", "name": "front"}],
        },
    }))
}

fn service() -> Arc<Service> {
    read(json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"clusterIP": "10.1.0.1", "clusterIPs": ["10.1.0.1"], "ports": [{"port": 80}]},
    }))
}

fn port_spec(pod: &str, port: u32) -> PortSpec {
    PortSpec {
        workload: format!(r#"{{"ns":"shop","pod":"{pod}"}}"#),
        port,
    }
}

fn traffic(addr: &str) -> TrafficSpec {
    let addr: SocketAddr = addr.parse().expect("address");
    TrafficSpec {
        source_workload: r#"{"ns":"client","pod":"curl"}"#.to_owned(),
        target: Some(traffic_spec::Target::Addr(net::TcpAddress::from(addr))),
    }
}

async fn next<T>(stream: &mut Streaming<T>) -> Option<T> {
    let message = tokio::time::timeout(DEADLINE, stream.message())
        .await
        .expect("in time");
    message.expect("no error")
}

fn name(server: &inbound::Server) -> &str {
    &server.labels["name"]
}

#[tokio::test]
async fn inbound_policies_follow_the_cluster() {
    let controller = start().await;
    let mut client = InboundServerPoliciesClient::new(controller.channel.clone());
    let missing = client
        .watch_port(port_spec("web", 80))
        .await
        .expect_err("not there yet");
    assert_eq!(
        (missing.code(), missing.message()),
        (Code::NotFound, "unknown server")
    );

    controller.index.lock().apply(pod("web"));
    let mut stream = client
        .watch_port(port_spec("web", 80))
        .await
        .expect("watched")
        .into_inner();
    let first = next(&mut stream).await.expect("at once");
    assert_eq!(name(&first), "all-unauthenticated");
    assert_eq!(
        (
            first.labels["group"].as_str(),
            first.labels["kind"].as_str()
        ),
        ("", "default")
    );
    assert_eq!(first.authorizations.len(), 1);
    assert!(matches!(
        first.protocol.and_then(|protocol| protocol.kind),
        Some(Inbound::Detect(_))
    ));

    controller.index.lock().apply(server("HTTP/2"));
    let selected = next(&mut stream).await.expect("open");
    assert_eq!(
        (name(&selected), selected.authorizations.len()),
        ("http", 0)
    );
    assert!(matches!(
        selected.protocol.and_then(|protocol| protocol.kind),
        Some(Inbound::Http2(_))
    ));

    controller.index.lock().apply(policy());
    let authorized = next(&mut stream).await.expect("open");
    let [authz] = authorized.authorizations.as_slice() else {
        panic!("one authorization")
    };
    assert_eq!(authz.labels["kind"], "authorizationpolicy");
    let Some(inbound::authn::Permit::MeshTls(tls)) = authz
        .authentication
        .as_ref()
        .and_then(|authn| authn.permit.as_ref())
    else {
        panic!("mesh TLS: {authz:?}")
    };
    let Some(inbound::authn::permit_mesh_tls::Clients::Identities(clients)) = &tls.clients else {
        panic!("identities")
    };
    assert_eq!(
        clients.identities[0].name,
        "front.shop.serviceaccount.identity.linkerd.cluster.local"
    );

    let got = client
        .get_port(port_spec("web", 80))
        .await
        .expect("found")
        .into_inner();
    assert_eq!(got, authorized, "a stream ends where a fresh lookup starts");
    let legacy = PortSpec {
        workload: "shop:web".to_owned(),
        port: 80,
    };
    assert_eq!(
        client.get_port(legacy).await.expect("found").into_inner(),
        got
    );

    linkerd_k8s::Index::<Pod>::delete(
        &mut *controller.index.lock(),
        &linkerd_k8s::Key::new("shop", "web"),
    );
    assert_eq!(
        next(&mut stream).await,
        None,
        "the stream ends with the pod"
    );
}

#[tokio::test]
async fn outbound_policies_follow_the_cluster() {
    let controller = start().await;
    let mut client = OutboundPoliciesClient::new(controller.channel.clone());
    let missing = client
        .watch(traffic("10.1.0.1:80"))
        .await
        .expect_err("not there yet");
    assert_eq!(
        (missing.code(), missing.message()),
        (Code::NotFound, "No such service")
    );

    controller.index.lock().apply(service());
    let mut stream = client
        .watch(traffic("10.1.0.1:80"))
        .await
        .expect("watched")
        .into_inner();
    let first = next(&mut stream).await.expect("at once");
    let Some(Outbound::Detect(detect)) = first.protocol.and_then(|protocol| protocol.kind) else {
        panic!("detect")
    };
    let route = &detect.http1.expect("http1").routes[0];
    let backends = route.rules[0]
        .backends
        .as_ref()
        .and_then(|backends| backends.kind.as_ref());
    let Some(outbound::http_route::distribution::Kind::FirstAvailable(first)) = backends else {
        panic!("first available")
    };
    let backend = first.backends[0].backend.as_ref().expect("a backend");
    let Some(outbound::backend::Kind::Balancer(balancer)) = &backend.kind else {
        panic!("balancer")
    };
    let Some(outbound::backend::endpoint_discovery::Kind::Dst(dst)) = balancer
        .discovery
        .as_ref()
        .and_then(|discovery| discovery.kind.as_ref())
    else {
        panic!("discovery")
    };
    assert_eq!(dst.path, "web.shop.svc.cluster.local:80");

    let mut annotated = (*service()).clone();
    annotated.metadata.annotations =
        Some([("config.linkerd.io/opaque-ports".to_owned(), "80".to_owned())].into());
    controller.index.lock().apply(Arc::new(annotated));
    let opaque = next(&mut stream).await.expect("open");
    assert!(matches!(
        opaque.protocol.and_then(|protocol| protocol.kind),
        Some(Outbound::Opaque(_))
    ));

    let outside = client
        .get(traffic("1.1.1.1:443"))
        .await
        .expect("found")
        .into_inner();
    assert_eq!(
        outside.metadata.and_then(|metadata| metadata.kind),
        Some(metadata::Kind::Default("egress-fallback".into()))
    );
    let undefined = client
        .get(traffic("10.1.0.1:1"))
        .await
        .expect("found")
        .into_inner();
    let of = undefined.metadata.and_then(|metadata| metadata.kind);
    let Some(metadata::Kind::Resource(service)) = of else {
        panic!("the Service's: {of:?}")
    };
    assert_eq!((service.name.as_str(), service.port), ("web", 1));
    let named = TrafficSpec {
        source_workload: "default:diagnostics".to_owned(),
        target: Some(traffic_spec::Target::Authority(
            "web.shop.svc:80".to_owned(),
        )),
    };
    let by_name = client.get(named).await.expect("found").into_inner();
    assert_eq!(
        by_name,
        client
            .get(traffic("10.1.0.1:80"))
            .await
            .expect("found")
            .into_inner()
    );
}

#[tokio::test]
async fn bad_requests_have_their_codes() {
    let controller = start().await;
    controller.index.lock().apply(pod("web"));
    let mut inbound = InboundServerPoliciesClient::new(controller.channel.clone());
    let mut outbound = OutboundPoliciesClient::new(controller.channel.clone());
    let code = |status: Result<(), Status>| status.map_err(|status| status.code());

    for (case, workload, port, expected) in [
        ("known", "shop:web", 80, Ok(())),
        ("port zero", "shop:web", 0, Err(Code::InvalidArgument)),
        ("large port", "shop:web", 70000, Err(Code::InvalidArgument)),
        ("bad workload", "web", 80, Err(Code::InvalidArgument)),
        ("unknown pod", "shop:db", 80, Err(Code::NotFound)),
        ("unknown namespace", "nowhere:web", 80, Err(Code::NotFound)),
    ] {
        let spec = PortSpec {
            workload: workload.to_owned(),
            port,
        };
        let got = code(inbound.get_port(spec.clone()).await.map(drop));
        let watched = code(inbound.watch_port(spec).await.map(drop));
        assert_eq!((got, watched), (expected, expected), "{case}");
    }
    let named = |authority: &str| Some(traffic_spec::Target::Authority(authority.to_owned()));
    for (case, target, expected) in [
        ("absent service", named("a.b.svc.cluster.local:80"), Ok(())),
        ("no target", None, Err(Code::InvalidArgument)),
        (
            "external name",
            named("example.com:80"),
            Err(Code::NotFound),
        ),
        ("not an authority", named("a b"), Err(Code::InvalidArgument)),
        (
            "v6 inside nothing",
            traffic("[2001:db8::1]:80").target,
            Ok(()),
        ),
        (
            "pod address",
            traffic("10.9.9.9:80").target,
            Err(Code::NotFound),
        ),
    ] {
        let spec = TrafficSpec {
            source_workload: "client:curl".to_owned(),
            target,
        };
        let got = code(outbound.get(spec.clone()).await.map(drop));
        let watched = code(outbound.watch(spec).await.map(drop));
        assert_eq!((got, watched), (expected, expected), "{case}");
    }
}

#[tokio::test]
async fn a_drain_ends_streams_without_an_error() {
    let Controller {
        index,
        channel,
        signal,
    } = start().await;
    index.lock().apply(pod("web"));
    let mut client = InboundServerPoliciesClient::new(channel);
    let mut stream = client
        .watch_port(port_spec("web", 80))
        .await
        .expect("watched")
        .into_inner();
    assert!(next(&mut stream).await.is_some());
    let drained = linkerd_runtime::spawn("drain", signal.drain());
    assert_eq!(next(&mut stream).await, None);
    drained.abort();
}

#[tokio::test]
async fn nothing_is_answered_before_everything_is_listed() {
    let index = Arc::new(Mutex::new(Index::new(cluster())));
    index.lock().apply(pod("web"));
    let (_signal, watch) = drain::channel();
    let ready = Readiness::new();
    let block = ready.block("servers");
    let policies = Policies::new(index.clone(), watch, Calls::unregistered()).when_ready(ready);
    let channel = serve(&policies).await;
    let mut client = InboundServerPoliciesClient::new(channel);
    let early = client
        .get_port(port_spec("web", 80))
        .await
        .expect_err("not listed");
    assert_eq!(early.code(), Code::Unavailable);
    let bad = client
        .get_port(port_spec("web", 0))
        .await
        .expect_err("never");
    assert_eq!(bad.code(), Code::InvalidArgument);

    let waiting = linkerd_runtime::spawn("early", {
        let mut client = client.clone();
        async move { client.get_port(port_spec("web", 80)).await }
    });
    index.lock().apply(server("HTTP/1"));
    block.release();
    let server = waiting
        .await
        .expect("no panic")
        .expect("found")
        .into_inner();
    assert_eq!(name(&server), "http", "what is answered is the whole truth");
}

#[tokio::test]
async fn a_client_that_storms_is_told_to_come_later() {
    let index = Arc::new(Mutex::new(Index::new(cluster())));
    index.lock().apply(pod("web"));
    index.lock().apply(pod("db"));
    let (_signal, watch) = drain::channel();
    let rate = |burst| Rate {
        per_second: 1,
        burst,
    };
    let policies = Policies::new(index.clone(), watch, Calls::unregistered())
        .behind(Gate::new(rate(100), rate(1)));
    let mut client = InboundServerPoliciesClient::new(serve(&policies).await);
    assert!(client.watch_port(port_spec("web", 80)).await.is_ok());
    let refused = client.watch_port(port_spec("web", 81)).await;
    assert_eq!(refused.expect_err("too many").code(), Code::Unavailable);
    assert!(client.watch_port(port_spec("db", 80)).await.is_ok());
    // A single question is always answered.
    assert!(client.get_port(port_spec("web", 81)).await.is_ok());
    // Whoever names no workload is told so, however often it asks.
    for _ in 0..5 {
        let unnamed = PortSpec {
            workload: String::new(),
            port: 80,
        };
        let refused = client.watch_port(unnamed).await.expect_err("unnamed");
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
}
