//! The index with objects and no cluster: profiles.

use std::net::IpAddr;

use linkerd_api::proto::{destination as pb, meta};
use prost::Message;
use serde_json::{Value, json};

use super::{World, simple};
use crate::{
    ObjectId,
    config::Config,
    fixture::*,
    grpc::frame::PREFIX,
    index::NoService,
    stream::{AtAddress, Next, ProfileStream},
};

/// A client of a profile stream.
struct Subscriber {
    stream: ProfileStream,
    seen: pb::DestinationProfile,
    ended: bool,
}

impl Subscriber {
    fn new(stream: ProfileStream, world: &World) -> Self {
        let mut subscriber = Self {
            stream,
            seen: pb::DestinationProfile::default(),
            ended: false,
        };
        assert!(subscriber.catch_up(world), "something is said at once");
        subscriber
    }

    fn catch_up(&mut self, world: &World) -> bool {
        match self.stream.next(|profile| world.wire.profile(profile)) {
            Next::Send(messages) => {
                let [bytes] = messages.as_slice() else {
                    panic!("one message at a time")
                };
                self.seen =
                    pb::DestinationProfile::decode(bytes.slice(PREFIX..)).expect("a message");
                true
            }
            Next::Wait => false,
            Next::End => {
                self.ended = true;
                false
            }
        }
    }

    fn endpoint(&self) -> String {
        self.seen.endpoint.as_ref().map(line).unwrap_or_default()
    }
}

fn service_profile(world: &World, port: u16, client: Option<&str>) -> Subscriber {
    let id = ObjectId::new("ns", "web");
    let stream = world
        .discovery
        .service_profile(&id, port, None, client)
        .expect("a Service");
    Subscriber::new(stream, world)
}

fn at(world: &World, ip: &str, port: u16) -> Result<Subscriber, String> {
    match world
        .discovery
        .address(ip.parse::<IpAddr>().expect("an address"), port)
    {
        AtAddress::Profile(stream) => Ok(Subscriber::new(stream, world)),
        AtAddress::Service(id) => Err(format!("service {id}")),
        AtAddress::Conflict(message) => Err(message),
    }
}

fn profile(namespace: &str, route: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": "web.ns.svc.cluster.local"},
        "spec": {"routes": [{"name": route, "condition": {"method": "GET"}}]},
    })
}

fn resource(metadata: Option<&meta::Metadata>) -> String {
    match metadata.and_then(|it| it.kind.as_ref()) {
        Some(meta::metadata::Kind::Resource(it)) => {
            format!(
                "{}/{}/{}/{}:{}",
                it.group, it.kind, it.namespace, it.name, it.port
            )
        }
        _ => String::new(),
    }
}

#[test]
fn a_service_without_profile() {
    let world = simple();
    let seen = service_profile(&world, 80, None).seen;
    assert_eq!(seen.fully_qualified_name, "web.ns.svc.cluster.local");
    assert_eq!(resource(seen.parent_ref.as_ref()), "core/Service/ns/web:80");
    assert_eq!(seen.profile_ref, None);
    assert!(seen.routes.is_empty() && seen.endpoint.is_none() && !seen.opaque_protocol);
    let budget = seen.retry_budget.expect("a budget");
    assert_eq!(
        (budget.retry_ratio, budget.min_retries_per_second),
        (0.2, 10)
    );
    assert_eq!(budget.ttl.map(|ttl| ttl.seconds), Some(10));
}

#[test]
fn the_requested_name_comes_back() {
    let world = simple();
    let id = ObjectId::new("ns", "web");
    let stream = world
        .discovery
        .service_profile(&id, 80, Some("Web.ns.svc.cluster.local"), None);
    let seen = Subscriber::new(stream.expect("a Service"), &world).seen;
    assert_eq!(seen.fully_qualified_name, "Web.ns.svc.cluster.local");
}

#[test]
fn an_undefined_port_is_an_empty_profile_until_it_is_defined() {
    let world = simple();
    let mut client = service_profile(&world, 81, None);
    assert_eq!(client.seen, pb::DestinationProfile::default());
    world.apply(
        "Service",
        with(
            service("10.0.0.1"),
            json!({"spec": {"ports": [{"port": 81}]}}),
        ),
    );
    assert!(client.catch_up(&world));
    assert_eq!(
        resource(client.seen.parent_ref.as_ref()),
        "core/Service/ns/web:81"
    );
}

#[test]
fn services_that_cannot_be_asked() {
    let world = World::new();
    let id = ObjectId::new("ns", "web");
    let ask = || {
        world
            .discovery
            .service_profile(&id, 80, None, None)
            .expect_err("no profile")
    };
    assert_eq!(ask(), NoService::Unknown);
    world.apply(
        "Service",
        json!({"metadata": {"namespace": "ns", "name": "web"},
        "spec": {"type": "ExternalName", "externalName": "example.com", "ports": [{"port": 80}]}}),
    );
    assert_eq!(ask(), NoService::ExternalName);
    assert_eq!(world.discovery.dispatch(&id), Err(NoService::ExternalName));
}

#[test]
fn a_deleted_service_ends_the_stream() {
    let world = simple();
    let mut client = service_profile(&world, 80, None);
    world.delete("Service", "web");
    client.catch_up(&world);
    assert!(client.ended);
}

/// Spec 3.3: the client's namespace comes first.
#[test]
fn which_profile() {
    for (name, profiles, client, expected) in [
        ("none", [].as_slice(), Some("shop"), None),
        ("the Service's", &["ns"], Some("shop"), Some("ns")),
        ("the client's", &["shop"], Some("shop"), Some("shop")),
        (
            "the client's first",
            &["ns", "shop"],
            Some("shop"),
            Some("shop"),
        ),
        ("no client", &["ns", "shop"], None, Some("ns")),
        ("no client, only the client's", &["shop"], None, None),
        ("a third namespace", &["other"], Some("shop"), None),
    ] {
        let world = simple();
        let mut early = service_profile(&world, 80, client);
        for namespace in profiles {
            world.apply("ServiceProfile", profile(namespace, namespace));
        }
        early.catch_up(&world);
        let late = service_profile(&world, 80, client);
        for seen in [&early.seen, &late.seen] {
            let route = seen
                .routes
                .first()
                .map(|route| route.metrics_labels["route"].as_str());
            assert_eq!(route, expected, "{name}");
            let reference = expected.map(|namespace| {
                format!("linkerd.io/ServiceProfile/{namespace}/web.ns.svc.cluster.local:0")
            });
            assert_eq!(
                resource(seen.profile_ref.as_ref()),
                reference.unwrap_or_default(),
                "{name}"
            );
        }
    }
}

#[test]
fn profiles_are_followed_and_equal_ones_are_not_sent_again() {
    let world = simple();
    let mut client = service_profile(&world, 80, Some("ns"));
    world.apply("ServiceProfile", profile("ns", "one"));
    assert!(client.catch_up(&world));
    world.apply("ServiceProfile", profile("ns", "one"));
    assert!(!client.catch_up(&world));
    let invalid = json!({"spec": {"routes": [{"name": "two", "condition": {}}]}});
    world.apply("ServiceProfile", with(profile("ns", "two"), invalid));
    assert!(!client.catch_up(&world), "an invalid one changes nothing");
    world.delete("ServiceProfile", "web.ns.svc.cluster.local");
    assert!(client.catch_up(&world));
    assert!(client.seen.routes.is_empty());
}

/// No time is sent as no limit: a proxy takes a zero for one.
#[test]
fn no_time_is_not_sent() {
    let world = simple();
    world.apply(
        "ServiceProfile",
        json!({
            "metadata": {"namespace": "ns", "name": "web.ns.svc.cluster.local"},
            "spec": {
                "retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": 3, "ttl": "0s"},
                "routes": [
                    {"name": "zero", "condition": {"method": "GET"}, "timeout": "0s"},
                    {"name": "one", "condition": {"method": "PUT"}, "timeout": "1s"},
                ],
            },
        }),
    );
    let seen = service_profile(&world, 80, None).seen;
    let budget = seen.retry_budget.expect("a budget");
    assert_eq!(budget.ttl, None);
    let timeouts = seen.routes.iter().map(|it| it.timeout.map(|it| it.seconds));
    assert_eq!(timeouts.collect::<Vec<_>>(), [None, Some(1)]);
}

#[test]
fn budgets_and_overrides() {
    let world = simple();
    world.apply(
        "ServiceProfile",
        json!({
            "metadata": {"namespace": "ns", "name": "web.ns.svc.cluster.local"},
            "spec": {
                "opaquePorts": ["80"],
                "retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": 3, "ttl": "1m"},
                "dstOverrides": [
                    {"authority": "a.ns.svc.cluster.local", "weight": "500m"},
                    {"authority": "b.ns.svc.cluster.local:8080", "weight": 1},
                ],
            },
        }),
    );
    let seen = service_profile(&world, 80, None).seen;
    let budget = seen.retry_budget.expect("a budget");
    assert_eq!(
        (budget.retry_ratio, budget.min_retries_per_second),
        (0.5, 3)
    );
    assert_eq!(budget.ttl.map(|ttl| ttl.seconds), Some(60));
    let overrides: Vec<_> = seen
        .dst_overrides
        .iter()
        .map(|it| (it.authority.as_str(), it.weight))
        .collect();
    assert_eq!(
        overrides,
        [
            ("a.ns.svc.cluster.local:80", 5000),
            ("b.ns.svc.cluster.local:8080", 10000)
        ]
    );
    assert!(
        !seen.opaque_protocol,
        "the profile's opaque ports have no effect"
    );
}

/// Spec 2.11, the row of GetProfile for a Service.
#[test]
fn opaque_ports_of_a_service() {
    let annotated =
        |list: &str| json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": list}}});
    for (name, port, extra, expected) in [
        ("default list", 3306, json!({}), true),
        ("not in the default list", 80, json!({}), false),
        ("annotated", 80, annotated("80"), true),
        ("annotated by name", 80, annotated("http"), true),
        ("annotated range", 80, annotated("70-90"), true),
        (
            "the annotation replaces the defaults",
            3306,
            annotated("80"),
            false,
        ),
        ("none at all", 3306, annotated(""), false),
        (
            "a name like a range is a name first",
            80,
            with(
                annotated("1-2"),
                json!({"spec": {"ports": [
            {"name": "1-2", "port": 80}]}}),
            ),
            true,
        ),
        ("noise is left out", 80, annotated("nonsense,80"), true),
    ] {
        let world = World::with(Config {
            default_opaque_ports: "3306".parse().expect("ports"),
            ..Config::default()
        });
        let ports = json!({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "sql", "port": 3306}]}});
        world.apply("Server", opaque_server("s", json!(80)));
        world.apply("Service", with(with(service("10.0.0.1"), ports), extra));
        assert_eq!(
            service_profile(&world, port, None).seen.opaque_protocol,
            expected,
            "{name}"
        );
    }
}

#[test]
fn a_changed_annotation_reaches_the_stream() {
    let world = simple();
    let mut client = service_profile(&world, 80, None);
    let annotated = json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "80"}}});
    world.apply("Service", with(service("10.0.0.1"), annotated));
    assert!(client.catch_up(&world));
    assert!(client.seen.opaque_protocol);
}

const IDENTITY: &str = "sa.ns.serviceaccount.identity.linkerd.cluster.local";

/// Spec 3.1 and 3.4: what stands behind an address.
#[test]
fn addresses() {
    let meshed = format!("hint=h2 dns={IDENTITY} sni={IDENTITY}");
    let host = json!({"spec": {"hostNetwork": true, "containers": [
        {"name": "app", "ports": [{"containerPort": 8080, "hostPort": 8080}]}]},
        "status": {"podIP": "192.168.0.1", "podIPs": [{"ip": "192.168.0.1"}]}});
    let host_port = json!({"spec": {"containers": [
        {"name": "app", "ports": [{"containerPort": 8080, "hostPort": 7777}]}]}});
    let dual = json!({"status": {"podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}]}});
    let finished = |phase: &str| json!({"status": {"phase": phase}});
    let terminating = json!({"metadata": {"deletionTimestamp": "2025-01-01T00:00:00Z"}});
    let sidecar = json!({"spec": {"initContainers": [
        {"name": "side", "ports": [{"containerPort": 9000, "hostPort": 9999}]}]}});
    for (name, pod_extra, ip, port, expected) in [
        (
            "pod",
            json!({}),
            "10.1.0.1",
            8080,
            format!("10.1.0.1:8080 {meshed}"),
        ),
        (
            "any port of a pod",
            json!({}),
            "10.1.0.1",
            1234,
            format!("10.1.0.1:1234 {meshed}"),
        ),
        (
            "its second address",
            dual,
            "fd00::1",
            8080,
            format!("[fd00::1]:8080 {meshed}"),
        ),
        (
            "not running yet",
            finished("Pending"),
            "10.1.0.1",
            8080,
            format!("10.1.0.1:8080 {meshed}"),
        ),
        (
            "succeeded",
            finished("Succeeded"),
            "10.1.0.1",
            8080,
            "10.1.0.1:8080".to_owned(),
        ),
        (
            "failed",
            finished("Failed"),
            "10.1.0.1",
            8080,
            "10.1.0.1:8080".to_owned(),
        ),
        (
            "terminating",
            terminating,
            "10.1.0.1",
            8080,
            "10.1.0.1:8080".to_owned(),
        ),
        ("unknown", json!({}), "8.8.8.8", 53, "8.8.8.8:53".to_owned()),
        (
            "host port",
            host_port.clone(),
            "192.168.0.1",
            7777,
            format!("192.168.0.1:7777 {meshed}"),
        ),
        (
            "other host port",
            host_port,
            "192.168.0.1",
            7778,
            "192.168.0.1:7778".to_owned(),
        ),
        (
            "host network",
            host.clone(),
            "192.168.0.1",
            8080,
            format!("192.168.0.1:8080 {meshed}"),
        ),
        (
            "host network, port nobody declares",
            host,
            "192.168.0.1",
            22,
            "192.168.0.1:22".to_owned(),
        ),
        (
            "host port of a sidecar",
            sidecar,
            "192.168.0.1",
            9999,
            format!("192.168.0.1:9999 {meshed}"),
        ),
    ] {
        let world = World::new();
        world.apply("Pod", with(pod("a", "10.1.0.1"), pod_extra));
        let client = at(&world, ip, port).expect("a profile");
        assert_eq!(client.endpoint(), expected, "{name}");
        let seen = &client.seen;
        assert!(seen.fully_qualified_name.is_empty(), "{name}");
        assert!(
            seen.parent_ref.is_none() && seen.profile_ref.is_none(),
            "{name}"
        );
        assert!(seen.retry_budget.is_some(), "{name}");
        let endpoint = seen.endpoint.as_ref().expect("an endpoint");
        let known = expected.contains("dns=");
        let expected = if known {
            "control_plane_ns=linkerd namespace=ns pod=a serviceaccount=sa"
        } else {
            ""
        };
        assert_eq!(labels(endpoint), expected, "{name}");
    }
}

#[test]
fn the_address_of_a_service_and_conflicts() {
    let world = simple();
    assert_eq!(
        at(&world, "10.0.0.1", 80).err().as_deref(),
        Some("service ns/web")
    );
    let dual = json!({"spec": {"clusterIPs": ["10.0.0.1", "fd00::10"]}});
    world.apply("Service", with(service("10.0.0.1"), dual));
    assert_eq!(
        at(&world, "fd00::10", 80).err().as_deref(),
        Some("service ns/web")
    );
    let twin = json!({"metadata": {"name": "twin"}});
    world.apply("Service", with(service("10.0.0.1"), twin));
    let conflict = "found 2 services with conflicting cluster IP 10.0.0.1";
    assert_eq!(at(&world, "10.0.0.1", 80).err().as_deref(), Some(conflict));
    world.delete("Service", "twin");
    assert_eq!(
        at(&world, "10.0.0.1", 80).err().as_deref(),
        Some("service ns/web")
    );

    world.apply("Pod", pod("b", "10.1.0.1"));
    let conflict = "found 2 pods with a conflicting pod network IP 10.1.0.1";
    assert_eq!(at(&world, "10.1.0.1", 80).err().as_deref(), Some(conflict));
    world.delete("Pod", "b");
    assert!(at(&world, "10.1.0.1", 80).is_ok());

    let host_port = json!({"spec": {"containers": [{"name": "x", "ports": [{"containerPort": 1, "hostPort": 7777}]}]}});
    world.apply("Pod", with(pod("c", "10.1.0.3"), host_port.clone()));
    world.apply("Pod", with(pod("d", "10.1.0.4"), host_port));
    let conflict = "found 2 pods with a conflicting host network endpoint 192.168.0.1:7777";
    assert_eq!(
        at(&world, "192.168.0.1", 7777).err().as_deref(),
        Some(conflict)
    );

    world.apply("ExternalWorkload", external_workload("one", "172.16.0.1"));
    world.apply("ExternalWorkload", external_workload("two", "172.16.0.1"));
    let conflict = "found 2 externalworkloads with a conflicting ip 172.16.0.1";
    assert_eq!(
        at(&world, "172.16.0.1", 8080).err().as_deref(),
        Some(conflict)
    );
    assert!(
        at(&world, "172.16.0.1", 9999).is_ok(),
        "neither declares the port"
    );
}

#[test]
fn the_address_of_an_external_workload() {
    let world = World::new();
    let mut client = at(&world, "172.16.0.1", 8080).expect("unknown yet");
    assert_eq!(client.endpoint(), "172.16.0.1:8080");
    world.apply("ExternalWorkload", external_workload("vm", "172.16.0.1"));
    assert!(client.catch_up(&world));
    assert_eq!(
        client.endpoint(),
        "172.16.0.1:8080 hint=h2 uri=spiffe://td/vm sni=vm.td"
    );
    let endpoint = client.seen.endpoint.as_ref().expect("an endpoint");
    assert_eq!(labels(endpoint), "external_workload=vm namespace=ns");
    let server = json!({"metadata": {"namespace": "ns", "name": "s"}, "spec": {
        "externalWorkloadSelector": {}, "port": 8080, "proxyProtocol": "opaque"}});
    world.apply("Server", server);
    assert!(client.catch_up(&world));
    assert!(client.seen.opaque_protocol);
    world.delete("Server", "s");
    assert!(client.catch_up(&world));
    assert!(!client.seen.opaque_protocol);
}

#[test]
fn an_address_is_followed_through_the_life_of_its_pod() {
    let world = World::new();
    let mut client = at(&world, "10.1.0.1", 8080).expect("unknown yet");
    assert_eq!(client.endpoint(), "10.1.0.1:8080");
    world.apply("Pod", pod("a", "10.1.0.1"));
    assert!(client.catch_up(&world));
    assert!(client.endpoint().contains("hint=h2"));
    world.apply("Pod", pod("a", "10.1.0.1"));
    assert!(
        !client.catch_up(&world),
        "equal messages are not sent again"
    );
    let annotated =
        json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "8080"}}});
    world.apply("Pod", with(pod("a", "10.1.0.1"), annotated));
    assert!(client.catch_up(&world), "a running pod's annotation counts");
    assert!(client.seen.opaque_protocol);
    world.apply(
        "Pod",
        with(
            pod("a", "10.1.0.1"),
            json!({"status": {"phase": "Succeeded"}}),
        ),
    );
    assert!(client.catch_up(&world));
    assert_eq!(client.endpoint(), "10.1.0.1:8080");
    world.delete("Pod", "a");
    world.apply("Pod", pod("b", "10.1.0.1"));
    assert!(client.catch_up(&world));
    assert!(client.endpoint().contains("hint=h2"));
    // The address becomes a Service's: the client must ask again.
    world.apply("Service", service("10.1.0.1"));
    client.catch_up(&world);
    assert!(client.ended);
}

#[test]
fn opaque_ports_of_an_address() {
    let config = Config {
        default_opaque_ports: "3306".parse().expect("ports"),
        ..Config::default()
    };
    let world = World::with(config);
    let opaque = |ip: &str, port: u16| {
        at(&world, ip, port)
            .expect("a profile")
            .seen
            .opaque_protocol
    };
    assert!(
        opaque("8.8.8.8", 3306),
        "unknown addresses go by the default list"
    );
    assert!(!opaque("8.8.8.8", 80));
    world.apply("Pod", pod("a", "10.1.0.1"));
    assert!(opaque("10.1.0.1", 3306));
    assert!(!opaque("10.1.0.1", 8080));
    let mut client = at(&world, "10.1.0.1", 8080).expect("a profile");
    world.apply("Server", opaque_server("s", json!("http")));
    assert!(client.catch_up(&world));
    assert!(
        client.seen.opaque_protocol && client.endpoint().contains("hint=opaque transport=4143")
    );
    world.delete("Server", "s");
    assert!(client.catch_up(&world), "opacity goes with the Server");
    assert!(!client.seen.opaque_protocol);
    let host = json!({"spec": {"containers": [proxy_container(),
        {"name": "app", "ports": [{"containerPort": 8080, "hostPort": 7777, "name": "http"}]}]}});
    world.apply("Pod", with(pod("a", "10.1.0.1"), host));
    world.apply("Server", opaque_server("s", json!("http")));
    assert!(
        at(&world, "192.168.0.1", 7777)
            .expect("a profile")
            .seen
            .opaque_protocol,
        "a named host port"
    );
}

#[test]
fn instances_by_hostname() {
    let world = World::new();
    world.apply("Service", service("None"));
    let named = |pod: &str, ip: &str, hostname: &str, ready: bool| {
        with(
            to_pod(pod, ip),
            json!({"hostname": hostname, "conditions": {"ready": ready}}),
        )
    };
    world.apply(
        "EndpointSlice",
        slice(
            "web-1",
            &[
                named("web-0", "10.1.0.1", "web-0", true),
                named("web-1", "10.1.0.2", "web-1", false),
                with(
                    json!({"addresses": ["10.1.0.9"]}),
                    json!({"hostname": "by-hand"}),
                ),
            ],
        ),
    );
    world.apply("Pod", pod("web-0", "10.1.0.1"));
    world.apply("Pod", pod("web-1", "10.1.0.2"));
    let id = ObjectId::new("ns", "web");
    for (hostname, expected) in [
        ("web-0", Some("10.1.0.1")),
        ("web-1", Some("10.1.0.2")),
        ("by-hand", None),
        ("web-2", None),
    ] {
        let ip = world
            .discovery
            .instance(&id, hostname)
            .map(|ip| ip.to_string());
        assert_eq!(ip.as_deref(), expected, "{hostname}");
    }
    // Only ready instances are endpoints.
    assert_eq!(
        world
            .subscribe(80, Some("web-0"), None)
            .seen
            .endpoints
            .len(),
        1
    );
    assert_eq!(
        world
            .subscribe(80, Some("web-1"), None)
            .seen
            .endpoints
            .len(),
        0
    );
}
