//! `linkerd-controller destination`, the program, against an API server that goes away and comes
//! back: what is known is served meanwhile, and what changed is found afterwards.

use std::{net::SocketAddr, time::Duration};

use linkerd_api::proto::{
    destination::{GetDestination, Update, destination_client::DestinationClient, update},
    inbound::{
        PortSpec, Server, inbound_server_policies_client::InboundServerPoliciesClient,
        proxy_protocol::Kind,
    },
};
use linkerd_testkit::{api_server::ApiServer, wait_for_async};
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::{Streaming, transport::Channel};

#[path = "process_controller/running.rs"]
mod running;

use running::{Running, get};

const PATIENCE: Duration = Duration::from_secs(120);
/// How long the API server is away. Long enough for every watch to have tried again.
const AWAY: Duration = Duration::from_secs(5);

fn pod(ip: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": "web-1",
            "labels": {"app": "web", "linkerd.io/control-plane-ns": "linkerd"},
        },
        "spec": {"containers": [{"name": "app", "ports": [{"containerPort": 8080, "name": "http"}]}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
    })
}

fn slice(ip: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "web-abc", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-1"}}],
    })
}

fn server(protocol: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": "http", "proxyProtocol": protocol},
    })
}

fn fill(api: &ApiServer) {
    api.apply(
        "services",
        json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        }),
    );
    api.apply("pods", pod("10.1.0.1"));
    api.apply("endpointslices.discovery.k8s.io", slice("10.1.0.1"));
    api.apply("servers.policy.linkerd.io", server("HTTP/1"));
    api.apply(
        "httproutes.policy.linkerd.io",
        json!({
            "apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute",
            "metadata": {"namespace": "shop", "name": "route"},
            "spec": {"parentRefs": [{"group": "policy.linkerd.io", "kind": "Server", "name": "web"}], "rules": [{}]},
        }),
    );
}

async fn next<T>(stream: &mut Streaming<T>) -> T {
    let message = timeout(PATIENCE, stream.message()).await;
    let message = message.expect("in time").expect("no error");
    message.expect("the stream is open")
}

fn added(update: Update) -> Vec<SocketAddr> {
    match update.update {
        Some(update::Update::Add(set)) => {
            let addrs = set.addrs.into_iter().filter_map(|it| it.addr);
            addrs.filter_map(|it| it.try_into().ok()).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn is_http1(server: &Server) -> bool {
    let kind = server.protocol.as_ref().and_then(|it| it.kind.as_ref());
    matches!(kind, Some(Kind::Http1(_)))
}

struct Clients {
    destination: DestinationClient<Channel>,
    policy: InboundServerPoliciesClient<Channel>,
}

impl Clients {
    async fn connect(running: &Running) -> Self {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        Self {
            destination: DestinationClient::connect(url(running.destination))
                .await
                .expect("connects"),
            policy: InboundServerPoliciesClient::connect(url(running.policy))
                .await
                .expect("connects"),
        }
    }

    async fn endpoints(&mut self) -> Streaming<Update> {
        let request = GetDestination {
            path: "web.shop.svc.cluster.local:80".to_owned(),
            ..GetDestination::default()
        };
        let stream = self.destination.get(request).await;
        stream.expect("a stream").into_inner()
    }

    async fn policies(&mut self) -> Streaming<Server> {
        let request = PortSpec {
            workload: r#"{"ns":"shop","pod":"web-1"}"#.to_owned(),
            port: 8080,
        };
        let stream = self.policy.watch_port(request).await;
        stream.expect("a stream").into_inner()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_goes_away_takes_nothing_with_it() {
    let mut api = ApiServer::start().await;
    fill(&api);
    let mut running = Running::start(&api).await;
    let mut clients = Clients::connect(&running).await;
    let first: SocketAddr = "10.1.0.1:8080".parse().expect("an address");
    let mut endpoints = clients.endpoints().await;
    assert_eq!(added(next(&mut endpoints).await), [first]);
    let mut policies = clients.policies().await;
    assert!(is_http1(&next(&mut policies).await));
    // The lease was claimed and statuses are written under it.
    let status = async || {
        let route = api.get("httproutes.policy.linkerd.io", "shop", "route")?;
        route
            .pointer("/status/parents/0/conditions/0/type")
            .cloned()
    };
    wait_for_async(PATIENCE, "a status", async || {
        status().await == Some(json!("Accepted"))
    })
    .await;

    api.go_away().await;
    let until = tokio::time::Instant::now() + AWAY;
    while tokio::time::Instant::now() < until {
        let mut fresh = clients.endpoints().await;
        assert_eq!(added(next(&mut fresh).await), [first], "still served");
        assert!(is_http1(&next(&mut clients.policies().await).await));
        assert!(
            running.is_ready().await,
            "an API server that is away is no reason to go too"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let quiet = timeout(Duration::from_millis(100), endpoints.message()).await;
    assert!(
        quiet.is_err(),
        "open streams stay open and say nothing: {quiet:?}"
    );

    // Nobody saw these changes happen, and nobody remembers them.
    api.apply("pods", pod("10.1.0.2"));
    api.apply("endpointslices.discovery.k8s.io", slice("10.1.0.2"));
    api.apply("servers.policy.linkerd.io", server("HTTP/2"));
    api.forget_history();
    api.come_back().await;
    let second: SocketAddr = "10.1.0.2:8080".parse().expect("an address");
    assert_eq!(added(next(&mut endpoints).await), [second]);
    assert!(!is_http1(&next(&mut policies).await));

    // The process ends when told to, its streams end well, and the leases are let go.
    linkerd_testkit::terminate(running.pid());
    let end = timeout(PATIENCE, policies.message())
        .await
        .expect("in time");
    assert!(matches!(end, Ok(None)), "{end:?}");
    drop((endpoints, policies, clients));
    let ended = timeout(PATIENCE, running.child.wait()).await;
    assert!(ended.expect("in time").expect("waited").success());
    for lease in [
        "policy-controller-write",
        "linkerd-destination-endpoint-write",
    ] {
        let lease = api.get("leases.coordination.k8s.io", "linkerd", lease);
        let lease = lease.expect("it was claimed");
        assert_eq!(lease["spec"]["holderIdentity"], "", "{lease}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_ports_answer_as_documented() {
    let api = ApiServer::start().await;
    fill(&api);
    api.lacks("tcproutes.gateway.networking.k8s.io");
    let running = Running::start(&api).await;
    for (port, path, expected) in [
        (running.destination_admin, "/ping", "pong\n"),
        (running.destination_admin, "/ready", "ok\n"),
        (running.policy_admin, "/live", "alive\n"),
        (running.policy_admin, "/ready", "ready\n"),
    ] {
        let answer = get(port, path).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(answer.ends_with(expected), "{path}: {answer}");
    }
    let diagnostics = get(running.policy_admin, "/kubert.json?resources").await;
    let diagnostics = diagnostics.expect("an answer");
    let (_, body) = diagnostics.split_once("\r\n\r\n").expect("a body");
    let diagnostics: Value = serde_json::from_str(body).expect("JSON");
    let watches = diagnostics["watches"].as_array().expect("a list");
    let pods = watches.iter().find(|it| it["kind"] == "Pod").expect("pods");
    assert_eq!(
        pods["resources"],
        json!([{"namespace": "shop", "name": "web-1"}])
    );
    assert_eq!(pods["stats"]["resets"], 1);
    let leases = diagnostics["leases"].as_array().expect("a list");
    assert_eq!(leases[0]["name"], "policy-controller-write");
    let metrics = get(running.policy_admin, "/metrics")
        .await
        .expect("an answer");
    assert!(metrics.contains("inbound_index_pod_index_size{namespace=\"shop\"} 1"));
}
