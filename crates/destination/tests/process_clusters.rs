//! Services of linked clusters and federated ones, over gRPC; objects go straight into the indexes.

use std::time::Duration;

use linkerd_destination::{Config, Discovery, Metrics};
use linkerd_k8s::{EndpointSlice, Index as _, Key, Node, Pod, Service};
use serde_json::json;
use tokio::time::timeout;
use tonic::Code;

#[path = "support/service.rs"]
mod service;

use service::{PATIENCE, Running, fixture::*, next, until};

#[tokio::test]
async fn a_service_of_a_linked_cluster() {
    let mut running = Running::start().await;
    let remote_config = Config {
        trust_domain: "east.td".to_owned(),
        cluster_domain: "east.local".to_owned(),
        ..Config::default()
    };
    let remote = Discovery::new(remote_config, Metrics::default());
    {
        let mut index = remote.index().lock();
        index.apply(object::<Service>(service("10.9.0.1")));
        // Hints of zones mean nothing from here.
        let hinted = with(
            to_pod("a", "10.8.0.1"),
            json!({"hints": {"forZones": [{"name": "x"}]}, "zone": "east"}),
        );
        let stranger = with(to_pod("b", "10.8.0.2"), json!({"zone": "west"}));
        index.apply(object::<EndpointSlice>(slice("web-1", &[hinted, stranger])));
        index.apply(object::<Pod>(pod("a", "10.8.0.1")));
        let label = json!({"linkerd.io/control-plane-ns": "theirs"});
        let theirs = json!({"metadata": {"labels": label}});
        index.apply(object::<Pod>(with(pod("b", "10.8.0.2"), theirs)));
        // A node over there that has the name of the client's is another node.
        index.apply(object::<Node>(node("node-1", "west")));
    }
    let listing = remote.listed().block("endpointslices");
    running.clusters.insert("east", remote);
    running.index(|index| {
        index.apply(object::<Node>(node("node-1", "east")));
        index.apply(object::<Service>(with(
            service("10.0.0.1"),
            json!({"metadata": {"name": "web-east", "labels": {
                "multicluster.linkerd.io/remote-discovery": "east",
                "multicluster.linkerd.io/remote-service": "web",
            }}}),
        )));
    });
    // What has not been listed is not told: it might take endpoints away that are still there.
    let refused = running.get("web-east.ns.svc.cluster.local:80", "").await;
    assert_eq!(refused.expect_err("not listed").code(), Code::Unavailable);
    drop(listing);
    let token = r#"{"ns":"ns","nodeName":"node-1"}"#;
    let mut stream = running
        .get("web-east.ns.svc.cluster.local:80", token)
        .await
        .expect("a stream");
    let mut seen = Replay::default();
    seen.update(next(&mut stream).await);
    let identity = "sa.ns.serviceaccount.identity.linkerd.east.td";
    assert_eq!(
        seen.lines(),
        [
            format!("10.8.0.1:8080 hint=h2 dns={identity} sni={identity}"),
            "10.8.0.2:8080 hint=h2".to_owned(),
        ],
        "a pod of another control plane over there has no identity"
    );
    assert_eq!(seen.set_labels["service"], "web");
    let near = seen.endpoints.values();
    let near: Vec<_> = near
        .map(|it| it.metric_labels["zone_locality"].as_str())
        .collect();
    assert_eq!(near, ["local", "remote"], "by the client's own node");
    // Another kind of Service now: the client must ask again.
    running.index(|index| {
        index.apply(object::<Service>(with(
            service("10.0.0.1"),
            json!({"metadata": {"name": "web-east"}}),
        )));
    });
    let end = timeout(PATIENCE, stream.message()).await.expect("in time");
    assert!(matches!(end, Ok(None)), "{end:?}");
}

/// A stream does not outlive the link it came by.
#[tokio::test]
async fn streams_of_a_cluster_that_is_unlinked_or_linked_anew_end() {
    let mut running = Running::start().await;
    let linked = |ip: &str| {
        let discovery = Discovery::new(Config::default(), Metrics::default());
        let mut index = discovery.index().lock();
        index.apply(object::<Service>(service("10.9.0.1")));
        index.apply(object::<EndpointSlice>(slice("web-1", &[to_pod("a", ip)])));
        index.apply(object::<Pod>(pod("a", ip)));
        drop(index);
        discovery
    };
    running.index(|index| {
        index.apply(object::<Service>(with(
            service("10.0.0.1"),
            json!({"metadata": {"name": "web-east", "labels": {
                "multicluster.linkerd.io/remote-discovery": "east",
                "multicluster.linkerd.io/remote-service": "web",
            }}}),
        )));
    });
    const EAST: &str = "web-east.ns.svc.cluster.local:80";
    running.clusters.insert("east", linked("10.8.0.1"));
    let mut stream = running.get(EAST, "").await.expect("a stream");
    let mut seen = Replay::default();
    seen.update(next(&mut stream).await);
    assert_eq!(seen.addresses(), ["10.8.0.1:8080".to_owned()].into());

    // Another cluster is none of its business.
    running.clusters.insert("west", linked("10.7.0.1"));
    let quiet = timeout(Duration::from_millis(100), stream.message()).await;
    assert!(quiet.is_err(), "{quiet:?}");

    running.clusters.insert("east", linked("10.8.0.2"));
    let end = timeout(PATIENCE, stream.message()).await.expect("in time");
    assert!(matches!(end, Ok(None)), "linked anew: {end:?}");
    let mut stream = running.get(EAST, "").await.expect("a stream");
    let mut seen = Replay::default();
    seen.update(next(&mut stream).await);
    assert_eq!(seen.addresses(), ["10.8.0.2:8080".to_owned()].into());

    running.clusters.remove("east");
    let end = timeout(PATIENCE, stream.message()).await.expect("in time");
    assert!(matches!(end, Ok(None)), "unlinked: {end:?}");
    let refused = running.get(EAST, "").await.expect_err("unlinked");
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::NotFound, "Remote cluster not found: east")
    );
}

#[tokio::test]
async fn a_federated_service() {
    let mut running = Running::with_web().await;
    let federated = |local: &str, remote: &str| {
        object::<Service>(with(
            service("10.0.0.9"),
            json!({"metadata": {"name": "web-federated", "annotations": {
                "multicluster.linkerd.io/local-discovery": local,
                "multicluster.linkerd.io/remote-discovery": remote,
            }}}),
        ))
    };
    let east = || {
        let discovery = Discovery::new(Config::default(), Metrics::default());
        let mut index = discovery.index().lock();
        index.apply(object::<Service>(service("10.9.0.1")));
        index.apply(object::<EndpointSlice>(slice(
            "web-1",
            &[to_pod("a", "10.8.0.1")],
        )));
        index.apply(object::<Pod>(pod("a", "10.8.0.1")));
        drop(index);
        discovery
    };
    running.clusters.insert("east", east());
    // A cluster that is away does not keep the others from being served.
    let away = Discovery::new(Config::default(), Metrics::default());
    let _away = away.listed().block("endpointslices");
    running.clusters.insert("away", away);
    running.index(|index| {
        index.apply(federated("web", "web@east,web@west,web@away,broken,@,"));
    });
    let mut stream = running
        .get("web-federated.ns.svc.cluster.local:80", "")
        .await
        .expect("a stream");
    let mut seen = Replay::default();
    seen.update(next(&mut stream).await);
    let both = ["10.1.0.1:8080", "10.8.0.1:8080"].map(str::to_owned);
    assert_eq!(
        seen.addresses(),
        both.into(),
        "the first set holds all members"
    );
    for endpoint in seen.endpoints.values() {
        assert_eq!(endpoint.metric_labels["service"], "web");
    }

    // A cluster that is linked later joins, one that is not wanted any more leaves.
    let west = Discovery::new(Config::default(), Metrics::default());
    west.index()
        .lock()
        .apply(object::<Service>(service("10.9.0.1")));
    west.index().lock().apply(object::<EndpointSlice>(slice(
        "web-1",
        &[to_pod("w", "10.7.0.1")],
    )));
    west.index()
        .lock()
        .apply(object::<Pod>(pod("w", "10.7.0.1")));
    running.clusters.insert("west", west);
    until(&mut stream, &mut seen, |seen| seen.endpoints.len() == 3).await;
    running.index(|index| index.apply(federated("web", "web@west")));
    until(&mut stream, &mut seen, |seen| {
        !seen.addresses().contains("10.8.0.1:8080")
    })
    .await;
    assert_eq!(seen.endpoints.len(), 2);
    running.index(|index| index.apply(federated("", "web@west")));
    until(&mut stream, &mut seen, |seen| seen.endpoints.len() == 1).await;

    const FEDERATED: &str = "web-federated.ns.svc.cluster.local:80";
    running.index(|index| {
        linkerd_k8s::Index::<Service>::delete(index, &Key::new("ns", "web-federated"))
    });
    let end = timeout(PATIENCE, stream.message()).await.expect("in time");
    assert!(matches!(end, Ok(None)), "deleted: {end:?}");

    running.index(|index| index.apply(federated("web", "")));
    let mut stream = running.get(FEDERATED, "").await.expect("a stream");
    next(&mut stream).await;
    running.index(|index| {
        let plain = json!({"metadata": {"name": "web-federated"}});
        index.apply(object::<Service>(with(service("10.0.0.9"), plain)));
    });
    let end = timeout(PATIENCE, stream.message()).await.expect("in time");
    assert!(matches!(end, Ok(None)), "not federated any more: {end:?}");
}

/// Spec 2.2 and 2.5: where the client is matters for the members of its own cluster only; the
/// instance it asks for matters for all.
#[tokio::test]
async fn members_of_a_federated_service_are_filtered() {
    let mut running = Running::start().await;
    // Two pods, on nodes and in zones of their own, each with a hostname.
    let members = |discovery: &Discovery, network: &str, service: serde_json::Value| {
        let mut index = discovery.index().lock();
        index.apply(object::<Service>(service));
        let mut endpoints = Vec::new();
        for (n, zone) in [(1, "east"), (2, "west")] {
            let (name, ip) = (format!("web-{n}"), format!("{network}.{n}"));
            let on_node = json!({"spec": {"nodeName": format!("node-{n}")}});
            index.apply(object::<Pod>(with(pod(&name, &ip), on_node)));
            index.apply(object::<Node>(node(&format!("node-{n}"), zone)));
            let hints = json!({"forZones": [{"name": zone}]});
            let extra = json!({"hostname": name, "hints": hints});
            endpoints.push(with(to_pod(&name, &ip), extra));
        }
        index.apply(object::<EndpointSlice>(slice("web-1", &endpoints)));
    };
    let local_policy = || {
        with(
            service("10.9.0.1"),
            json!({"spec": {"internalTrafficPolicy": "Local"}}),
        )
    };
    let east = Discovery::new(Config::default(), Metrics::default());
    members(&east, "10.8.0", local_policy());
    running.clusters.insert("east", east);
    running.index(|index| {
        index.apply(object::<Service>(with(
            service("10.0.0.9"),
            json!({"metadata": {"name": "all", "annotations": {
                "multicluster.linkerd.io/local-discovery": "web",
                "multicluster.linkerd.io/remote-discovery": "web@east",
            }}}),
        )));
    });
    let node_2 = r#"{"ns":"ns","nodeName":"node-2"}"#;
    for (name, own, path, token, expected) in [
        (
            "local members by zone, remote ones not",
            service("10.0.0.1"),
            "all.ns.svc.cluster.local:80",
            node_2,
            ["10.1.0.2:8080", "10.8.0.1:8080", "10.8.0.2:8080"].as_slice(),
        ),
        (
            "local members by node, remote ones not",
            local_policy(),
            "all.ns.svc.cluster.local:80",
            node_2,
            &["10.1.0.2:8080", "10.8.0.1:8080", "10.8.0.2:8080"],
        ),
        (
            "no node: no local member may be used",
            local_policy(),
            "all.ns.svc.cluster.local:80",
            "",
            &["10.8.0.1:8080", "10.8.0.2:8080"],
        ),
        (
            "hostname",
            service("10.0.0.1"),
            "web-1.all.ns.svc.cluster.local:80",
            "",
            &["10.1.0.1:8080", "10.8.0.1:8080"],
        ),
    ] {
        members(&running.discovery, "10.1.0", own);
        let mut stream = running.get(path, token).await.expect("a stream");
        let mut seen = Replay::default();
        seen.update(next(&mut stream).await);
        assert_eq!(Vec::from_iter(seen.addresses()), expected, "{name}");
    }
}
