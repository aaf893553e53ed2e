//! How long a request waits for clusters that are not listed yet, and what is counted of streams
//! that are too slow.

use linkerd_k8s::{EndpointSlice, Index as _, Pod, Service, ServiceProfile};
use prometheus_client::registry::Registry;
use serde_json::json;

use super::*;
use crate::{config::Config, fixture::*, metrics::Metrics};

fn server(clusters: &Clusters) -> Server {
    let local = Discovery::new(Config::default(), Metrics::default());
    let (_, drain) = drain::channel();
    let calls = Calls::unregistered();
    Server::new(
        local,
        clusters.clone(),
        Readiness::new(),
        drain,
        calls,
        Gate::open(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_stays_away_is_waited_for_only_while_it_is_new() {
    let clusters = Clusters::default();
    let server = server(&clusters);
    let cluster = Discovery::new(Config::default(), Metrics::default());
    let listing = cluster.listed().block("pods");
    clusters.insert("east", cluster);
    let waited = async || {
        let started = tokio::time::Instant::now();
        server.0.members_listed("web@east,web@nowhere").await;
        started.elapsed()
    };
    assert_eq!(waited().await, SYNC_PATIENCE, "it may be listed any moment");
    tokio::time::advance(NEW_CLUSTER).await;
    assert_eq!(waited().await, Duration::ZERO, "it is away");
    drop(listing);
    assert_eq!(waited().await, Duration::ZERO, "it is there");
}

/// Reads a source three updates late, then four: its queue would have held three. Answers what was
/// counted after each, and after a read that was in time.
fn counted(
    source: &mut impl Source,
    wire: &Wire,
    change: impl Fn(u32),
    count: impl Fn() -> u64,
) -> [u64; 3] {
    let mut read = |updates: std::ops::Range<u32>| {
        updates.for_each(&change);
        assert!(matches!(source.next(wire), Next::Send(_)));
        assert_eq!(source.next(wire), Next::Wait);
        count()
    };
    read(0..0);
    [read(0..3), read(3..7), read(7..8)]
}

/// Spec 2.6 and 3.4: updates that a queue would not have held, per kind of stream.
#[test]
fn more_updates_missed_than_the_queue_holds_are_counted() {
    let mut registry = Registry::default();
    let config = Config {
        stream_queue_capacity: 3,
        ..Config::default()
    };
    let local = Discovery::new(config, Metrics::register(&mut registry));
    let wire = Wire::new(local.config());
    let count = |series: &str| {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        let values = text.lines().filter_map(|line| line.strip_prefix(series));
        let mut value = values.filter_map(|value| value.trim().parse::<u64>().ok());
        value.next_back().unwrap_or_default()
    };
    let moves = |n: u32| {
        let mut index = local.index().lock();
        let ip = format!("10.1.0.{n}");
        index.apply(object::<EndpointSlice>(slice("web-1", &[to_pod("a", &ip)])));
    };
    let renames = |n: u32| {
        let profile = json!({
            "metadata": {"namespace": "ns", "name": "web.ns.svc.cluster.local"},
            "spec": {"routes": [{"name": n.to_string(), "condition": {"method": "GET"}}]},
        });
        let mut index = local.index().lock();
        index.apply(object::<ServiceProfile>(profile));
    };
    let annotates = |n: u32| {
        let ports = if n.is_multiple_of(2) { "8080" } else { "" };
        let ports = json!({"config.linkerd.io/opaque-ports": ports});
        let annotated = json!({"metadata": {"annotations": ports}});
        let mut index = local.index().lock();
        index.apply(object::<Pod>(with(pod("a", "10.1.0.1"), annotated)));
    };
    let federated = json!({"metadata": {"name": "all", "annotations": {
        "multicluster.linkerd.io/local-discovery": "web",
    }}});
    {
        let mut index = local.index().lock();
        index.apply(object::<Service>(service("10.0.0.1")));
        index.apply(object::<Service>(with(service("10.0.0.2"), federated)));
        index.apply(object::<Pod>(pod("a", "10.1.0.1")));
    }
    let (web, all) = (ObjectId::new("ns", "web"), ObjectId::new("ns", "all"));
    let once = [0, 1, 1];

    let stream = local.endpoints(&web, 80, Client::default(), local.zones());
    let mut endpoints = Endpoints {
        stream,
        discovery: local.clone(),
        id: web.clone(),
        port: 80,
    };
    let series = r#"endpoint_updates_queue_overflow{service="web.ns:80"}"#;
    let found = counted(&mut endpoints, &wire, moves, || count(series));
    assert_eq!(found, once, "endpoints");

    let clusters = Clusters::default();
    let mut union = FederatedStream::new(&local, &clusters, &all, 80, Client::default());
    let series = r#"endpoint_updates_queue_overflow{service="all.ns:80"}"#;
    let found = counted(&mut union, &wire, moves, || count(series));
    assert_eq!(found, once, "a federated Service");

    let profiles = |stream| Profiles {
        stream,
        discovery: local.clone(),
    };
    let stream = local.service_profile(&web, 80, None, None);
    let mut profile = profiles(stream.expect("a Service"));
    let series = r#"profile_updates_queue_overflow{fqn="web.ns.svc.cluster.local",port="80"}"#;
    let found = counted(&mut profile, &wire, renames, || count(series));
    assert_eq!(found, once, "the profile of a Service");

    let ip = "10.1.0.1".parse().expect("an address");
    let AtAddress::Profile(stream) = local.address(ip, 8080) else {
        panic!("a profile")
    };
    let series = "endpoint_profile_updates_queue_overflow";
    let found = counted(&mut profiles(stream), &wire, annotates, || count(series));
    assert_eq!(found, once, "the profile of an address");
}
