//! Links that follow their Secrets, against API servers that are there, away or nonsense.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;

use linkerd_k8s::Service;
use linkerd_testkit::api_server::ApiServer;

use super::*;
use crate::{
    ObjectId, Wire,
    federated::FederatedStream,
    fixture::{Replay, object, pod, service, slice, to_pod, with},
    grpc::{Source as _, frame::PREFIX},
    stream::{Client, Next},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn secret(extra: serde_json::Value) -> Arc<Secret> {
    let json = json!({
        "metadata": {
            "namespace": "linkerd", "name": "cluster-credentials-east",
            "labels": {"multicluster.linkerd.io/cluster-name": "east"},
            "annotations": {
                "multicluster.linkerd.io/trust-domain": "east.td",
                "multicluster.linkerd.io/cluster-domain": "east.local",
            },
        },
        "type": "mirror.linkerd.io/remote-kubeconfig",
        "data": {"kubeconfig": kubeconfig(1)},
    });
    object(with(json, extra))
}

/// Leads to a port where nobody listens.
fn kubeconfig(port: u16) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    STANDARD.encode(config.to_string())
}

fn store() -> (Clusters, ClusterStore) {
    let clusters = Clusters::default();
    let store = ClusterStore::new(
        clusters.clone(),
        Arc::new(Config::default()),
        Metrics::default(),
        watch::Metrics::unregistered(),
    );
    (clusters, store)
}

/// The cluster, as soon as it is known.
async fn linked(clusters: &Clusters) -> Discovery {
    let mut follow = clusters.follow();
    let known = follow.wait_for(|clusters| clusters.contains_key("east"));
    let known = tokio::time::timeout(PATIENCE, known).await;
    known.expect("in time").expect("open")["east"].clone()
}

/// Lets everything happen that is going to.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn credentials_that_cannot_be_used_link_nothing() {
    let (clusters, mut store) = store();
    for (name, kubeconfig) in [
        ("not text", "/w==".to_owned()),
        ("not a kubeconfig", STANDARD.encode("foo")),
        ("nothing in it", STANDARD.encode("{}")),
    ] {
        store.apply(secret(json!({"data": {"kubeconfig": kubeconfig}})));
        settle().await;
        assert!(clusters.get("east").is_none(), "{name}");
    }
    store.apply(secret(json!({})));
    linked(&clusters).await;
    store.apply(secret(json!({"data": {"kubeconfig": "Zm9v"}})));
    assert!(clusters.get("east").is_none(), "the old ones are void");
    settle().await;
    assert!(clusters.get("east").is_none());
}

/// Credentials may name files that are not there yet.
#[tokio::test]
async fn credentials_are_tried_again() {
    let files = tempfile::tempdir().expect("a directory");
    let token = files.path().join("token");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "test", "user": {"tokenFile": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    let (clusters, mut store) = store();
    let config = STANDARD.encode(config.to_string());
    store.apply(secret(json!({"data": {"kubeconfig": config}})));
    settle().await;
    assert!(clusters.get("east").is_none(), "there is no token");
    std::fs::write(&token, "secret").expect("writes");
    linked(&clusters).await;
}

#[tokio::test]
async fn clusters_follow_their_secrets() {
    let (clusters, mut store) = store();
    store.apply(secret(json!({})));
    let first = linked(&clusters).await;
    assert!(!first.listed().is_ready(), "nothing is known of it yet");
    assert_eq!(first.config().trust_domain, "east.td");
    assert_eq!(first.config().cluster_domain, "east.local");

    store.apply(secret(json!({})));
    let same = linked(&clusters).await;
    assert!(
        Arc::ptr_eq(same.index(), first.index()),
        "an equal Secret changes nothing"
    );

    store.apply(secret(json!({"data": {"kubeconfig": kubeconfig(2)}})));
    let other = linked(&clusters).await;
    assert!(
        !Arc::ptr_eq(other.index(), first.index()),
        "new credentials replace the cluster"
    );

    store.delete(&Key::new("linkerd", "cluster-credentials-east"));
    assert!(clusters.get("east").is_none());
    for (name, extra) in [
        ("another type", json!({"type": "Opaque"})),
        ("no name", json!({"metadata": {"labels": null}})),
        (
            "no trust domain",
            json!({"metadata": {"annotations": {"multicluster.linkerd.io/trust-domain": null}}}),
        ),
        ("no kubeconfig", json!({"data": null})),
    ] {
        store.apply(secret(extra));
        settle().await;
        assert!(clusters.get("east").is_none(), "{name}");
    }
    store.reset(vec![secret(json!({}))]);
    linked(&clusters).await;
    store.reset(Vec::new());
    assert!(clusters.get("east").is_none());
}

/// A cluster with one pod behind Service `web`.
async fn cluster(pod_ip: &str) -> ApiServer {
    let server = ApiServer::start().await;
    server.apply("services", service("10.9.0.1"));
    server.apply("pods", pod("a", pod_ip));
    let slice = slice("web-1", &[to_pod("a", pod_ip)]);
    server.apply("endpointslices.discovery.k8s.io", slice);
    server
}

/// A client of a federated Service.
struct Federated {
    stream: FederatedStream,
    wire: Wire,
    seen: Replay,
}

impl Federated {
    fn new(clusters: &Clusters, remote: &str) -> Self {
        let local = Discovery::new(Config::default(), Metrics::default());
        let annotations = json!({"multicluster.linkerd.io/remote-discovery": remote});
        let federated = with(
            service("10.0.0.9"),
            json!({"metadata": {"annotations": annotations}}),
        );
        local.index().lock().apply(object::<Service>(federated));
        let id = ObjectId::new("ns", "web");
        Self {
            stream: FederatedStream::new(&local, clusters, &id, 80, Client::default()),
            wire: Wire::new(local.config()),
            seen: Replay::default(),
        }
    }

    /// Reads until the set is as wanted; answers every set there was on the way.
    async fn until(&mut self, wanted: &[&str]) -> Vec<Vec<String>> {
        let mut sets = Vec::new();
        let shown = |seen: &Replay| Vec::from_iter(seen.addresses());
        while shown(&self.seen) != wanted {
            match self.stream.next(&self.wire) {
                Next::Send(messages) => {
                    for bytes in messages {
                        let update = prost::Message::decode(bytes.slice(PREFIX..));
                        self.seen.update(update.expect("a message"));
                        sets.push(shown(&self.seen));
                    }
                }
                Next::Wait => {
                    let changed = tokio::time::timeout(PATIENCE, self.stream.changed()).await;
                    changed.unwrap_or_else(|_| panic!("{wanted:?} in vain, {sets:?}"));
                }
                Next::End => panic!("it is still federated"),
            }
        }
        sets
    }
}

/// Credentials are rotated: what clients have stays until the new ones have shown what there is.
#[tokio::test]
async fn a_relinked_cluster_does_not_lose_its_endpoints_meanwhile() {
    let encoded = |server: &ApiServer| STANDARD.encode(server.kubeconfig());
    let by = |kubeconfig: String| secret(json!({"data": {"kubeconfig": kubeconfig}}));
    let (clusters, mut store) = store();
    let old = cluster("10.8.0.1").await;
    store.apply(by(encoded(&old)));
    let first = linked(&clusters).await;
    let mut client = Federated::new(&clusters, "web@east");
    client.until(&["10.8.0.1:8080"]).await;
    tokio::time::timeout(PATIENCE, first.listed().ready())
        .await
        .expect("listed");

    // Credentials that cannot be used, and a server that is away, change nothing.
    store.apply(by(STANDARD.encode("nonsense")));
    let mut new = cluster("10.8.0.2").await;
    new.go_away().await;
    store.apply(by(encoded(&new)));
    settle().await;
    let served = clusters.get("east").expect("still served");
    assert!(Arc::ptr_eq(served.index(), first.index()));
    old.apply("pods", pod("b", "10.8.0.3"));
    old.apply(
        "endpointslices.discovery.k8s.io",
        slice("web-1", &[to_pod("a", "10.8.0.1"), to_pod("b", "10.8.0.3")]),
    );
    let sets = client.until(&["10.8.0.1:8080", "10.8.0.3:8080"]).await;
    assert_eq!(sets.len(), 1, "the old one is followed meanwhile: {sets:?}");

    new.come_back().await;
    let sets = client.until(&["10.8.0.2:8080"]).await;
    let all = ["10.8.0.1:8080", "10.8.0.2:8080", "10.8.0.3:8080"];
    assert_eq!(sets, [all.as_slice(), &["10.8.0.2:8080"]], "one swap");
    let served = clusters.get("east").expect("served");
    assert!(served.listed().is_ready());
    assert!(!Arc::ptr_eq(served.index(), first.index()));

    // Unlinked is unlinked, and a name of its own is another cluster.
    store.apply(by(STANDARD.encode("nonsense again")));
    store.delete(&Key::new("linkerd", "cluster-credentials-east"));
    assert!(clusters.get("east").is_none());
    client.until(&[]).await;
    settle().await;
    assert!(clusters.get("east").is_none(), "for good");
}
