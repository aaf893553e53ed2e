//! The index with objects and no cluster: endpoints.

use linkerd_api::proto::destination as pb;
use linkerd_k8s::{
    EndpointSlice, Endpoints, ExternalWorkload, Index as _, Job, Key, Node, Pod, ReplicaSet,
    Service, policy::Server,
};
use prost::Message;
use serde_json::{Value, json};

use crate::{
    Discovery, Metrics, ObjectId, Wire,
    config::{Config, Http2Params},
    fixture::*,
    grpc::frame::PREFIX,
    stream::{Client, EndpointsStream, Next},
};

mod profile;
mod random;

/// An index and what its streams are encoded with.
pub(super) struct World {
    pub(super) discovery: Discovery,
    pub(super) wire: Wire,
}

/// A client of a stream of endpoints.
pub(super) struct Subscriber {
    stream: EndpointsStream,
    pub(super) seen: Replay,
    pub(super) ended: bool,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(super) fn with(config: Config) -> Self {
        let wire = Wire::new(&config);
        Self {
            discovery: Discovery::new(config, Metrics::default()),
            wire,
        }
    }

    /// Applies an object; its fields tell its kind.
    pub(super) fn apply(&self, kind: &str, json: Value) {
        let mut index = self.discovery.index().lock();
        match kind {
            "Pod" => index.apply(object::<Pod>(json)),
            "Service" => index.apply(object::<Service>(json)),
            "EndpointSlice" => index.apply(object::<EndpointSlice>(json)),
            "Endpoints" => index.apply(object::<Endpoints>(json)),
            "Server" => index.apply(object::<Server>(json)),
            "ExternalWorkload" => index.apply(object::<ExternalWorkload>(json)),
            "ReplicaSet" => index.apply(object::<ReplicaSet>(json)),
            "Job" => index.apply(object::<Job>(json)),
            "Node" => index.apply(object::<Node>(json)),
            "ServiceProfile" => index.apply(object::<linkerd_k8s::ServiceProfile>(json)),
            other => panic!("unknown kind {other}"),
        }
    }

    pub(super) fn delete(&self, kind: &str, name: &str) {
        let key = Key::new("ns", name);
        let mut index = self.discovery.index().lock();
        let index = &mut *index;
        match kind {
            "Pod" => linkerd_k8s::Index::<Pod>::delete(index, &key),
            "Service" => linkerd_k8s::Index::<Service>::delete(index, &key),
            "EndpointSlice" => linkerd_k8s::Index::<EndpointSlice>::delete(index, &key),
            "Server" => linkerd_k8s::Index::<Server>::delete(index, &key),
            "ExternalWorkload" => linkerd_k8s::Index::<ExternalWorkload>::delete(index, &key),
            "ReplicaSet" => linkerd_k8s::Index::<ReplicaSet>::delete(index, &key),
            "ServiceProfile" => {
                linkerd_k8s::Index::<linkerd_k8s::ServiceProfile>::delete(index, &key)
            }
            "Node" => linkerd_k8s::Index::<Node>::delete(index, &Key::new("", name)),
            other => panic!("unknown kind {other}"),
        }
    }

    pub(super) fn subscribe(
        &self,
        port: u16,
        hostname: Option<&str>,
        node: Option<&str>,
    ) -> Subscriber {
        let client = Client {
            hostname: hostname.map(Into::into),
            node: node.map(Into::into),
            anywhere: false,
        };
        let zones = self.discovery.zones();
        let stream = self
            .discovery
            .endpoints(&ObjectId::new("ns", "web"), port, client, zones);
        let mut subscriber = Subscriber {
            stream,
            seen: Replay::default(),
            ended: false,
        };
        subscriber.catch_up(&self.wire);
        subscriber
    }

    /// What a new client of port 80 sees.
    pub(super) fn get(&self) -> Replay {
        self.subscribe(80, None, None).seen
    }
}

impl Subscriber {
    /// Reads what there is to read; answers how many messages that were.
    pub(super) fn catch_up(&mut self, wire: &Wire) -> usize {
        match self.stream.next(wire) {
            Next::Send(messages) => {
                let count = messages.len();
                for bytes in messages {
                    self.seen
                        .update(pb::Update::decode(bytes.slice(PREFIX..)).expect("a message"));
                }
                count
            }
            Next::Wait => 0,
            Next::End => {
                self.ended = true;
                0
            }
        }
    }
}

/// Service, one slice and one pod.
pub(super) fn simple() -> World {
    let world = World::new();
    world.apply("Service", service("10.0.0.1"));
    world.apply("EndpointSlice", slice("web-1", &[to_pod("a", "10.1.0.1")]));
    world.apply("Pod", pod("a", "10.1.0.1"));
    world
}

const IDENTITY: &str = "sa.ns.serviceaccount.identity.linkerd.cluster.local";

fn meshed(rest: &str) -> String {
    rest.replace("ID", &format!("dns={IDENTITY} sni={IDENTITY}"))
}

#[test]
fn objects_may_arrive_in_any_order() {
    let objects = [
        ("Service", service("10.0.0.1")),
        ("EndpointSlice", slice("web-1", &[to_pod("a", "10.1.0.1")])),
        ("Pod", pod("a", "10.1.0.1")),
    ];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let world = World::new();
        let mut early = world.subscribe(80, None, None);
        for at in order {
            let (kind, json) = objects[at].clone();
            world.apply(kind, json);
        }
        let expected = [meshed("10.1.0.1:8080 hint=h2 ID http2").replace(" http2", "")];
        assert_eq!(world.get().lines(), expected, "{order:?}");
        early.catch_up(&world.wire);
        assert_eq!(early.seen.lines(), expected, "{order:?}");
    }
}

/// One row of spec 2.3: which port of an endpoint a port of the Service is.
#[test]
fn from_service_port_to_endpoint_port() {
    let two_ports = json!([{"name": "http", "port": 8080}, {"name": "admin", "port": 9000}]);
    for (name, service_ports, slice_ports, asked, expected) in [
        (
            "by name",
            json!([{"name": "http", "port": 80}]),
            two_ports.clone(),
            80,
            Some(8080),
        ),
        (
            "the other name",
            json!([{"name": "admin", "port": 81}]),
            two_ports.clone(),
            81,
            Some(9000),
        ),
        (
            "empty name",
            json!([{"port": 80}]),
            json!([{"port": 7000}]),
            80,
            Some(7000),
        ),
        (
            "empty name spelt",
            json!([{"port": 80}]),
            json!([{"name": "", "port": 7000}]),
            80,
            Some(7000),
        ),
        (
            "port the Service lacks",
            json!([{"name": "http", "port": 80}]),
            two_ports.clone(),
            4321,
            Some(4321),
        ),
        (
            "name the slice lacks",
            json!([{"name": "grpc", "port": 80}]),
            two_ports.clone(),
            80,
            None,
        ),
        (
            "no ports in the slice",
            json!([{"name": "http", "port": 80}]),
            Value::Null,
            80,
            None,
        ),
        (
            "literal port, no ports in the slice",
            json!([]),
            Value::Null,
            80,
            None,
        ),
    ] {
        let world = World::new();
        world.apply(
            "Service",
            with(
                service("10.0.0.1"),
                json!({"spec": {"ports": service_ports}}),
            ),
        );
        let slice = slice("web-1", &[to_pod("a", "10.1.0.1")]);
        world.apply("EndpointSlice", with(slice, json!({"ports": slice_ports})));
        world.apply("Pod", pod("a", "10.1.0.1"));
        let seen = world.subscribe(asked, None, None).seen;
        let ports: Vec<_> = seen
            .endpoints
            .keys()
            .map(std::net::SocketAddr::port)
            .collect();
        assert_eq!(ports, Vec::from_iter(expected), "{name}");
        assert_eq!(seen.exists, Some(true), "{name}");
    }
}

#[test]
fn a_changed_port_mapping_moves_the_endpoints() {
    let world = simple();
    let mut client = world.subscribe(80, None, None);
    world.apply(
        "Service",
        with(
            service("10.0.0.1"),
            json!({"spec": {"ports": [{"name": "other", "port": 80}]}}),
        ),
    );
    client.catch_up(&world.wire);
    assert!(client.seen.endpoints.is_empty());
    let moved = slice("web-1", &[to_pod("a", "10.1.0.1")]);
    world.apply(
        "EndpointSlice",
        with(moved, json!({"ports": [{"name": "other", "port": 9999}]})),
    );
    client.catch_up(&world.wire);
    assert_eq!(client.seen.addresses(), ["10.1.0.1:9999".to_owned()].into());
}

/// Spec 2.4: what counts as an endpoint.
#[test]
fn sources_of_endpoints() {
    let ready = |ready: Value| with(to_pod("a", "10.1.0.1"), json!({"conditions": ready}));
    let target = |kind: &str| {
        with(
            to_pod("a", "10.1.0.1"),
            json!({"targetRef": {"kind": kind}}),
        )
    };
    let one = |endpoint: Value| slice("web-1", &[endpoint]);
    for (name, slice, expected) in [
        ("ready", one(ready(json!({"ready": true}))), 1),
        (
            "readiness unset",
            one(json!({"addresses": ["10.1.0.1"], "targetRef": {"kind": "Pod", "name": "a"}})),
            1,
        ),
        (
            "not ready",
            one(with(
                ready(json!(null)),
                json!({"conditions": {"ready": false}}),
            )),
            0,
        ),
        (
            "terminating but ready",
            one(ready(
                json!({"ready": true, "serving": false, "terminating": true}),
            )),
            1,
        ),
        ("reference of another kind", one(target("Node")), 0),
        ("unknown pod", one(to_pod("nobody", "10.1.0.9")), 0),
        ("no reference", one(json!({"addresses": ["10.1.0.1"]})), 1),
        (
            "not an address",
            one(json!({"addresses": ["web.example.com"]})),
            0,
        ),
        (
            "owned instead of labelled",
            with(
                one(to_pod("a", "10.1.0.1")),
                json!({"metadata": {
                    "labels": null,
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "1"}],
                }}),
            ),
            1,
        ),
        (
            "neither",
            with(
                one(to_pod("a", "10.1.0.1")),
                json!({"metadata": {"labels": null}}),
            ),
            0,
        ),
        (
            "no endpoints",
            with(one(json!({})), json!({"endpoints": null})),
            0,
        ),
    ] {
        let world = World::new();
        world.apply("Service", service("10.0.0.1"));
        world.apply("Pod", pod("a", "10.1.0.1"));
        world.apply("EndpointSlice", slice);
        assert_eq!(world.get().endpoints.len(), expected, "{name}");
    }
}

#[test]
fn endpoints_objects_where_slices_are_off() {
    let config = Config {
        enable_endpoint_slices: false,
        enable_ipv6: false,
        ..Config::default()
    };
    let world = World::with(config);
    world.apply("Service", service("10.0.0.1"));
    world.apply("Pod", pod("a", "10.1.0.1"));
    world.apply("Pod", pod("b", "10.1.0.2"));
    let to = |name: &str, ip: &str| json!({"ip": ip, "targetRef": {"kind": "Pod", "namespace": "ns", "name": name}});
    world.apply(
        "Endpoints",
        json!({
            "metadata": {"namespace": "ns", "name": "web"},
            "subsets": [
                {"addresses": [to("a", "10.1.0.1")], "ports": [{"name": "http", "port": 8080}]},
                {"addresses": [to("b", "10.1.0.2")], "ports": [{"name": "http", "port": 8081}],
                 "notReadyAddresses": [to("c", "10.1.0.3")]},
            ],
        }),
    );
    let expected = ["10.1.0.1:8080", "10.1.0.2:8081"].map(str::to_owned);
    assert_eq!(world.get().addresses(), expected.into());
}

/// Spec 2.4: who is named as the owner of a pod.
#[test]
fn owners() {
    let owner = |kind: &str, name: &str| json!([{"apiVersion": "v1", "kind": kind, "name": name, "uid": "1"}]);
    let two = json!([
        {"apiVersion": "v1", "kind": "ReplicaSet", "name": "a", "uid": "1"},
        {"apiVersion": "v1", "kind": "ReplicaSet", "name": "b", "uid": "2"},
    ]);
    let replica_set = json!({"metadata": {"namespace": "ns", "name": "web-5",
        "ownerReferences": owner("Deployment", "web")}});
    let orphan = json!({"metadata": {"namespace": "ns", "name": "web-5"}});
    let job = json!({"metadata": {"namespace": "ns", "name": "web-5", "ownerReferences": owner("CronJob", "nightly")}});
    for (name, references, objects, expected) in [
        ("none", json!([]), vec![], ""),
        ("several", two, vec![], ""),
        (
            "ReplicaSet of a Deployment",
            owner("ReplicaSet", "web-5"),
            vec![("ReplicaSet", replica_set)],
            "deployment=web",
        ),
        (
            "ReplicaSet nobody knows",
            owner("ReplicaSet", "web-5"),
            vec![],
            "replicaset=web-5",
        ),
        (
            "ReplicaSet without owner",
            owner("ReplicaSet", "web-5"),
            vec![("ReplicaSet", orphan)],
            "replicaset=web-5",
        ),
        ("Job", owner("Job", "web-5"), vec![], "k8s_job=web-5"),
        (
            "Job of a CronJob",
            owner("Job", "web-5"),
            vec![("Job", job)],
            "cronjob=nightly",
        ),
        (
            "StatefulSet",
            owner("StatefulSet", "db"),
            vec![],
            "statefulset=db",
        ),
        (
            "DaemonSet",
            owner("DaemonSet", "agent"),
            vec![],
            "daemonset=agent",
        ),
    ] {
        let world = simple();
        world.apply(
            "Pod",
            with(
                pod("a", "10.1.0.1"),
                json!({"metadata": {"ownerReferences": references}}),
            ),
        );
        let mut client = world.subscribe(80, None, None);
        for (kind, json) in objects {
            world.apply(kind, json);
        }
        client.catch_up(&world.wire);
        let found = labels(client.seen.endpoints.values().next().expect("one"));
        let mut expected = format!("control_plane_ns=linkerd pod=a serviceaccount=sa {expected}");
        expected += " zone= zone_locality=unknown";
        let mut expected: Vec<_> = expected.split_whitespace().map(str::to_owned).collect();
        expected.sort();
        assert_eq!(
            found.split(' ').map(str::to_owned).collect::<Vec<_>>(),
            expected,
            "{name}"
        );
    }
}

/// Spec 2.5: the pipeline of filters.
#[test]
fn filters() {
    let endpoint = |pod: &str, ip: &str, extra: Value| with(to_pod(pod, ip), extra);
    let hinted = |zone: &str| json!({"hints": {"forZones": [{"name": zone}]}, "zone": zone});
    let plain = json!({});
    let local = json!({"spec": {"internalTrafficPolicy": "Local"}});
    struct Case {
        name: &'static str,
        service: Value,
        a: Value,
        b: Value,
        hostname: Option<&'static str>,
        node: Option<&'static str>,
        expected: &'static [&'static str],
    }
    let base = Case {
        name: "",
        service: plain.clone(),
        a: plain.clone(),
        b: plain.clone(),
        hostname: None,
        node: Some("node-1"),
        expected: &["a", "b"],
    };
    let cases = [
        Case {
            name: "nothing to filter by",
            ..base
        },
        Case {
            name: "hostname",
            a: json!({"hostname": "a-0"}),
            hostname: Some("a-0"),
            expected: &["a"],
            service: plain.clone(),
            b: plain.clone(),
            ..base
        },
        Case {
            name: "unknown hostname",
            hostname: Some("x"),
            expected: &[],
            service: plain.clone(),
            a: plain.clone(),
            b: plain.clone(),
            ..base
        },
        Case {
            name: "local",
            service: local.clone(),
            expected: &["a"],
            a: plain.clone(),
            b: plain.clone(),
            ..base
        },
        Case {
            name: "local, node unknown",
            service: local.clone(),
            node: None,
            expected: &[],
            a: plain.clone(),
            b: plain.clone(),
            ..base
        },
        Case {
            name: "local ignores hints",
            service: local.clone(),
            a: hinted("west"),
            b: hinted("east"),
            expected: &["a"],
            ..base
        },
        Case {
            name: "zone",
            a: hinted("east"),
            b: hinted("west"),
            expected: &["a"],
            service: plain.clone(),
            ..base
        },
        Case {
            name: "other zone",
            a: hinted("east"),
            b: hinted("west"),
            node: Some("node-2"),
            expected: &["b"],
            service: plain.clone(),
            ..base
        },
        Case {
            name: "zone, one without hint",
            a: hinted("east"),
            expected: &["a", "b"],
            service: plain.clone(),
            b: plain.clone(),
            ..base
        },
        Case {
            name: "no endpoint for the zone",
            a: hinted("north"),
            b: hinted("north"),
            expected: &["a", "b"],
            service: plain.clone(),
            ..base
        },
        Case {
            name: "client without zone",
            a: hinted("east"),
            b: hinted("west"),
            node: None,
            expected: &["a", "b"],
            service: plain.clone(),
            ..base
        },
    ];
    for case in cases {
        let world = World::new();
        world.apply("Node", node("node-1", "east"));
        world.apply("Node", node("node-2", "west"));
        world.apply("Service", with(service("10.0.0.1"), case.service));
        world.apply("Pod", pod("a", "10.1.0.1"));
        world.apply(
            "Pod",
            with(
                pod("b", "10.1.0.2"),
                json!({"spec": {"nodeName": "node-2"}}),
            ),
        );
        let endpoints = [
            endpoint("a", "10.1.0.1", case.a),
            endpoint("b", "10.1.0.2", case.b),
        ];
        world.apply("EndpointSlice", slice("web-1", &endpoints));
        let seen = world.subscribe(80, case.hostname, case.node).seen;
        let pods: Vec<_> = seen
            .endpoints
            .values()
            .map(|it| it.metric_labels["pod"].as_str())
            .collect();
        assert_eq!(pods, case.expected, "{}", case.name);
    }
}

#[test]
fn families() {
    let v6 = |name: &str, endpoints: &[Value]| {
        with(slice(name, endpoints), json!({"addressType": "IPv6"}))
    };
    for (name, enable_ipv6, second, expected) in [
        ("both, IPv6 wins", true, true, ["[fd00::1]:8080"].as_slice()),
        ("both, IPv6 off", false, true, &["10.1.0.1:8080"]),
        ("IPv4 only", true, false, &["10.1.0.1:8080"]),
    ] {
        let world = World::with(Config {
            enable_ipv6,
            ..Config::default()
        });
        world.apply("Service", service("10.0.0.1"));
        world.apply("Pod", pod("a", "10.1.0.1"));
        world.apply("EndpointSlice", slice("web-4", &[to_pod("a", "10.1.0.1")]));
        if second {
            world.apply("EndpointSlice", v6("web-6", &[to_pod("a", "fd00::1")]));
        }
        let seen: Vec<_> = world.get().addresses().into_iter().collect();
        assert_eq!(seen, expected, "{name}");
    }
}

/// A family is chosen after the zone: an endpoint of the zone with IPv4 alone stays.
#[test]
fn the_zone_comes_before_the_family() {
    let world = World::new();
    world.apply("Node", node("node-1", "east"));
    world.apply("Service", service("10.0.0.1"));
    world.apply("Pod", pod("a", "10.1.0.1"));
    let hinted = |ip: &str, zone: &str| {
        with(
            to_pod("a", ip),
            json!({"hints": {"forZones": [{"name": zone}]}}),
        )
    };
    world.apply(
        "EndpointSlice",
        slice("web-4", &[hinted("10.1.0.1", "east")]),
    );
    world.apply(
        "EndpointSlice",
        slice("web-6", &[hinted("fd00::1", "west")]),
    );
    let seen = world.subscribe(80, None, Some("node-1")).seen;
    assert_eq!(seen.addresses(), ["10.1.0.1:8080".to_owned()].into());
}

/// Spec 2.6: messages of a stream.
#[test]
fn the_update_stream() {
    let world = World::new();
    world.apply("Service", service("10.0.0.1"));
    let mut client = world.subscribe(80, None, None);
    assert_eq!(
        client.seen.exists,
        Some(true),
        "an empty Service is said to be empty at once"
    );

    world.apply("Pod", pod("a", "10.1.0.1"));
    world.apply("Pod", pod("b", "10.1.0.2"));
    world.apply("EndpointSlice", slice("web-1", &[to_pod("a", "10.1.0.1")]));
    assert_eq!(client.catch_up(&world.wire), 1, "one addition");

    world.apply("EndpointSlice", slice("web-1", &[to_pod("a", "10.1.0.1")]));
    assert_eq!(client.catch_up(&world.wire), 0, "equal objects say nothing");

    world.apply("EndpointSlice", slice("web-1", &[to_pod("b", "10.1.0.2")]));
    assert_eq!(
        client.catch_up(&world.wire),
        2,
        "an addition, then a removal"
    );
    assert_eq!(client.seen.addresses(), ["10.1.0.2:8080".to_owned()].into());

    world.apply("Pod", pod("b", "10.1.0.3"));
    world.apply("EndpointSlice", slice("web-1", &[to_pod("b", "10.1.0.3")]));
    client.catch_up(&world.wire);
    assert_eq!(
        client.seen.addresses(),
        ["10.1.0.3:8080".to_owned()].into(),
        "a pod of the same name with another address leaves nothing behind"
    );

    world.delete("Pod", "b");
    world.delete("EndpointSlice", "web-1");
    client.catch_up(&world.wire);
    assert!(
        client.seen.endpoints.is_empty(),
        "members whose pod is gone are removed too"
    );
    assert_eq!(client.seen.exists, Some(true));

    world.delete("Service", "web");
    client.catch_up(&world.wire);
    assert_eq!(client.seen.exists, Some(false));
    assert!(!client.ended, "the stream stays open");

    world.apply("Pod", pod("b", "10.1.0.3"));
    world.apply("EndpointSlice", slice("web-1", &[to_pod("b", "10.1.0.3")]));
    world.apply("Service", service("10.0.0.1"));
    client.catch_up(&world.wire);
    assert_eq!(
        client.seen.addresses().len(),
        1,
        "a Service that comes back is seen on the same stream"
    );
}

#[test]
fn a_slow_client_skips_what_happened_in_between() {
    let world = simple();
    let mut slow = world.subscribe(80, None, None);
    let mut quick = world.subscribe(80, None, None);
    for n in 2..9 {
        let ip = format!("10.1.0.{n}");
        world.apply("Pod", pod("a", &ip));
        world.apply("EndpointSlice", slice("web-1", &[to_pod("a", &ip)]));
        quick.catch_up(&world.wire);
    }
    assert_eq!(slow.catch_up(&world.wire), 2, "one addition, one removal");
    assert_eq!(slow.seen.lines(), quick.seen.lines());
    assert_eq!(slow.seen.lines(), world.get().lines());
}

#[test]
fn all_who_see_the_same_share_one_snapshot_and_its_bytes() {
    let world = simple();
    world.apply("Node", node("node-1", "east"));
    let mut clients: Vec<_> = (0..3)
        .map(|_| world.subscribe(80, None, Some("node-1")))
        .collect();
    world.apply("Pod", pod("b", "10.1.0.2"));
    world.apply(
        "EndpointSlice",
        slice("web-1", &[to_pod("a", "10.1.0.1"), to_pod("b", "10.1.0.2")]),
    );
    let sent: Vec<_> = clients
        .iter_mut()
        .map(|client| match client.stream.next(&world.wire) {
            Next::Send(messages) => messages[0].as_ptr(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(sent.iter().all(|bytes| *bytes == sent[0]), "{sent:?}");
}

#[test]
fn views_go_with_their_last_client() {
    let world = simple();
    let first = world.subscribe(80, None, None);
    let second = world.subscribe(80, None, None);
    drop(first);
    assert!(!world.discovery.index().lock().views.is_empty());
    drop(second);
    assert!(world.discovery.index().lock().views.is_empty());
}

/// Spec 2.2: a Service that changes how it is discovered ends its streams.
#[test]
fn another_way_of_discovery_ends_the_stream() {
    let world = simple();
    let mut client = world.subscribe(80, None, None);
    let remote =
        json!({"metadata": {"labels": {"multicluster.linkerd.io/remote-discovery": "east"}}});
    world.apply("Service", with(service("10.0.0.1"), remote));
    client.catch_up(&world.wire);
    assert!(client.ended);
}

/// Spec 2.7: what is said about a pod.
#[test]
fn pods() {
    let config = || Config {
        default_opaque_ports: "3306".parse().expect("ports"),
        http2: Some(Http2Params::default()),
        ..Config::default()
    };
    let annotated = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let opaque = |list: &str| annotated("config.linkerd.io/opaque-ports", list);
    let no_proxy =
        json!({"spec": {"containers": [{"name": "app", "ports": [{"containerPort": 8080}]}]}});
    let native = json!({"spec": {
        "initContainers": [with(proxy_container(), json!({"env": [
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "[::]:5143"},
        ]}))],
        "containers": [{"name": "app", "ports": [{"containerPort": 8080}]}],
    }});
    let port = |number: u16| json!([{"name": "http", "port": number}]);
    struct Case {
        name: &'static str,
        config: Config,
        pod: Value,
        port: u16,
        expected: &'static str,
    }
    let case = |name, expected| Case {
        name,
        config: config(),
        pod: json!({}),
        port: 8080,
        expected,
    };
    let header = || Config {
        transport_header: true,
        ..config()
    };
    let cases = [
        case("meshed", "hint=h2 ID http2"),
        Case {
            pod: json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": null}}}),
            ..case("not meshed", "")
        },
        Case {
            pod: json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": ""}}}),
            ..case("empty label", "")
        },
        Case {
            pod: json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": "other"}}}),
            ..case("of another control plane", "hint=h2 http2")
        },
        Case {
            pod: annotated("config.linkerd.io/skip-inbound-ports", "8080-8081"),
            ..case("skipped port", "")
        },
        Case {
            config: Config {
                enable_h2_upgrade: false,
                ..config()
            },
            ..case("no upgrade", "hint=none ID http2")
        },
        Case {
            config: Config {
                trust_domain: String::new(),
                ..config()
            },
            ..case("no trust domain", "hint=h2 http2")
        },
        Case {
            config: Config {
                http2: None,
                ..config()
            },
            ..case("no settings", "hint=h2 ID")
        },
        Case {
            config: header(),
            ..case("transport header", "hint=h2 transport=4143 ID http2")
        },
        Case {
            config: header(),
            port: 4191,
            ..case("admin port", "hint=h2 ID http2")
        },
        Case {
            config: header(),
            port: 4190,
            ..case("control port", "hint=h2 ID http2")
        },
        Case {
            port: 3306,
            ..case("opaque by default", "hint=opaque transport=4143 ID http2")
        },
        Case {
            pod: opaque("8080"),
            ..case(
                "opaque by annotation",
                "hint=opaque transport=4143 ID http2",
            )
        },
        Case {
            pod: opaque("8000-9000"),
            ..case("opaque by range", "hint=opaque transport=4143 ID http2")
        },
        Case {
            pod: opaque("http"),
            ..case("opaque by name", "hint=opaque transport=4143 ID http2")
        },
        Case {
            pod: opaque(""),
            port: 3306,
            ..case("annotation replaces the defaults", "hint=h2 ID http2")
        },
        Case {
            pod: no_proxy,
            config: header(),
            ..case("label without proxy", "hint=h2 ID http2")
        },
        Case {
            pod: native,
            config: header(),
            ..case("native sidecar", "hint=h2 transport=5143 ID http2")
        },
        Case {
            pod: json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": null}}}),
            port: 3306,
            ..case("opaque but not meshed", "")
        },
    ];
    for Case {
        name,
        config,
        pod: extra,
        port: number,
        expected,
    } in cases
    {
        let world = World::with(config);
        world.apply("Service", service("10.0.0.1"));
        let slice = slice("web-1", &[to_pod("a", "10.1.0.1")]);
        world.apply("EndpointSlice", with(slice, json!({"ports": port(number)})));
        world.apply("Pod", with(pod("a", "10.1.0.1"), extra));
        let expected = meshed(&format!("10.1.0.1:{number} {expected}"));
        assert_eq!(world.get().lines(), [expected.trim()], "{name}");
    }
}

#[test]
fn the_default_service_account_is_default() {
    let world = simple();
    world.apply(
        "Pod",
        with(
            pod("a", "10.1.0.1"),
            json!({"spec": {"serviceAccountName": null}}),
        ),
    );
    let lines = world.get().lines();
    assert!(
        lines[0].contains("dns=default.ns.serviceaccount.identity.linkerd.cluster.local"),
        "{lines:?}"
    );
}

#[test]
fn zones_in_labels_and_weights() {
    for (name, zone_weights, client, endpoint, expected, weight) in [
        (
            "same zone",
            false,
            Some("node-1"),
            Some("east"),
            "zone=east zone_locality=local",
            10_000,
        ),
        (
            "other zone",
            false,
            Some("node-1"),
            Some("west"),
            "zone=west zone_locality=remote",
            10_000,
        ),
        (
            "client unknown",
            false,
            None,
            Some("east"),
            "zone=east zone_locality=unknown",
            10_000,
        ),
        (
            "endpoint unknown",
            false,
            Some("node-1"),
            None,
            "zone= zone_locality=unknown",
            10_000,
        ),
        (
            "weighted",
            true,
            Some("node-1"),
            Some("east"),
            "zone=east zone_locality=local",
            100_000,
        ),
        (
            "not weighted",
            true,
            Some("node-1"),
            Some("west"),
            "zone=west zone_locality=remote",
            10_000,
        ),
    ] {
        let world = World::with(Config {
            zone_weights,
            ..Config::default()
        });
        world.apply("Node", node("node-1", "east"));
        world.apply("Service", service("10.0.0.1"));
        let zone = endpoint.map_or_else(|| json!({}), |zone| json!({"zone": zone}));
        world.apply(
            "EndpointSlice",
            slice("web-1", &[with(to_pod("a", "10.1.0.1"), zone)]),
        );
        world.apply("Pod", pod("a", "10.1.0.1"));
        let seen = world.subscribe(80, None, client).seen;
        let endpoint = seen.endpoints.values().next().expect("one");
        assert!(
            labels(endpoint).ends_with(expected),
            "{name}: {}",
            labels(endpoint)
        );
        assert_eq!(endpoint.weight, weight, "{name}");
    }
}

#[test]
fn the_zone_of_a_node_is_followed() {
    let world = simple();
    let zoned = with(to_pod("a", "10.1.0.1"), json!({"zone": "east"}));
    world.apply("EndpointSlice", slice("web-1", &[zoned]));
    let mut client = world.subscribe(80, None, Some("node-1"));
    let locality = |client: &Subscriber| {
        client
            .seen
            .endpoints
            .values()
            .next()
            .expect("one")
            .metric_labels["zone_locality"]
            .clone()
    };
    assert_eq!(locality(&client), "unknown");
    world.apply("Node", node("node-1", "east"));
    client.catch_up(&world.wire);
    assert_eq!(locality(&client), "local");
    world.apply("Node", node("node-1", "west"));
    client.catch_up(&world.wire);
    assert_eq!(locality(&client), "remote");
    world.delete("Node", "node-1");
    client.catch_up(&world.wire);
    assert_eq!(locality(&client), "unknown");
}

#[test]
fn labels_of_the_set() {
    let mirrored = json!({"metadata": {
        "labels": {"mirror.linkerd.io/cluster-name": "east"},
        "annotations": {"mirror.linkerd.io/remote-svc-fq-name": "db.data.svc.east.local"},
    }});
    let plain = [("namespace", "ns"), ("service", "web")];
    let full = [
        ("namespace", "ns"),
        ("service", "web"),
        ("target_cluster", "east"),
        ("target_service", "db"),
        ("target_service_namespace", "data"),
    ];
    for (name, service_extra, slice_extra, expected) in [
        ("plain", json!({}), json!({}), plain.as_slice()),
        ("mirrored slice", json!({}), mirrored.clone(), &full),
        ("mirrored Service", mirrored, json!({}), &full),
    ] {
        let world = simple();
        world.apply("Service", with(service("10.0.0.1"), service_extra));
        let slice = slice("web-1", &[to_pod("a", "10.1.0.1")]);
        world.apply("EndpointSlice", with(slice, slice_extra));
        let seen = world.get().set_labels;
        let seen: Vec<_> = seen
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(seen, expected, "{name}");
    }
}

/// Spec 2.8: what is said about an ExternalWorkload.
#[test]
fn external_workloads() {
    const ID: &str = "uri=spiffe://td/vm sni=vm.td http2";
    let config = || Config {
        default_opaque_ports: "3306".parse().expect("ports"),
        http2: Some(Http2Params::default()),
        enable_h2_upgrade: false,
        ..Config::default()
    };
    let server = json!({
        "metadata": {"namespace": "ns", "name": "vm"},
        "spec": {"externalWorkloadSelector": {"matchLabels": {"app": "vm"}}, "port": "http", "proxyProtocol": "opaque"},
    });
    let proxy = json!({"spec": {"ports": [{"name": "http", "port": 8080}, {"name": "linkerd-proxy", "port": 5143}]}});
    let opaque =
        |list: &str| json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": list}}});
    for (name, header, extra, port, servers, expected) in [
        (
            "plain, upgrade flag ignored",
            false,
            json!({}),
            8080,
            vec![],
            "hint=h2 ",
        ),
        (
            "transport header",
            true,
            json!({}),
            8080,
            vec![],
            "hint=h2 transport=4143 ",
        ),
        (
            "own proxy port",
            true,
            proxy,
            8080,
            vec![],
            "hint=h2 transport=5143 ",
        ),
        (
            "opaque by default",
            false,
            json!({}),
            3306,
            vec![],
            "hint=opaque transport=4143 ",
        ),
        (
            "opaque by annotation",
            false,
            opaque("http"),
            8080,
            vec![],
            "hint=opaque transport=4143 ",
        ),
        (
            "annotation replaces the defaults",
            false,
            opaque(""),
            3306,
            vec![],
            "hint=h2 ",
        ),
        (
            "opaque by Server",
            false,
            json!({}),
            8080,
            vec![server],
            "hint=opaque transport=4143 ",
        ),
    ] {
        let world = World::with(Config {
            transport_header: header,
            ..config()
        });
        world.apply("Service", service("10.0.0.1"));
        let slice = slice("web-1", &[to_external("vm", "172.16.0.1")]);
        world.apply(
            "EndpointSlice",
            with(slice, json!({"ports": [{"name": "http", "port": port}]})),
        );
        let mut client = world.subscribe(80, None, None);
        assert!(client.seen.endpoints.is_empty());
        world.apply(
            "ExternalWorkload",
            with(external_workload("vm", "172.16.0.1"), extra),
        );
        for server in servers {
            world.apply("Server", server);
        }
        client.catch_up(&world.wire);
        assert_eq!(
            client.seen.lines(),
            [format!("172.16.0.1:{port} {expected}{ID}")],
            "{name}"
        );
        let endpoint = client.seen.endpoints.values().next().expect("one");
        assert_eq!(
            labels(endpoint),
            "external_workload=vm zone= zone_locality=unknown",
            "{name}"
        );
    }
}

#[test]
fn a_changed_external_workload_is_sent_again() {
    let world = World::new();
    world.apply("Service", service("10.0.0.1"));
    world.apply(
        "EndpointSlice",
        slice("web-1", &[to_external("vm", "172.16.0.1")]),
    );
    world.apply("ExternalWorkload", external_workload("vm", "172.16.0.1"));
    let mut client = world.subscribe(80, None, None);
    let renamed = json!({"spec": {"meshTLS": {"identity": "spiffe://td/other"}},
        "metadata": {"ownerReferences": [{"apiVersion": "x/v1", "kind": "Group", "name": "vms", "uid": "1"}]}});
    world.apply(
        "ExternalWorkload",
        with(external_workload("vm", "172.16.0.1"), renamed),
    );
    assert_eq!(client.catch_up(&world.wire), 1);
    assert!(client.seen.lines()[0].contains("uri=spiffe://td/other"));
    let endpoint = client.seen.endpoints.values().next().expect("one");
    assert!(labels(endpoint).contains("group=vms"));
}

#[test]
fn a_slice_speaks_only_for_workloads_of_its_namespace() {
    let world = World::new();
    world.apply("Service", service("10.0.0.1"));
    let foreign = with(
        to_external("vm", "172.16.0.1"),
        json!({"targetRef": {"namespace": "elsewhere"}}),
    );
    world.apply("EndpointSlice", slice("web-1", &[foreign]));
    let elsewhere = json!({"metadata": {"namespace": "elsewhere"}});
    world.apply(
        "ExternalWorkload",
        with(external_workload("vm", "172.16.0.1"), elsewhere),
    );
    assert!(world.get().endpoints.is_empty());
}

/// Spec 2.9: addresses without a workload.
#[test]
fn gateways_and_addresses_written_by_hand() {
    let config = || Config {
        http2: Some(Http2Params::default()),
        transport_header: true,
        ..Config::default()
    };
    let annotations = |list: Value| json!({"metadata": {"annotations": list}});
    let name = "mirror.linkerd.io/remote-svc-fq-name";
    let identity = "mirror.linkerd.io/remote-gateway-identity";
    for (case, upgrade, extra, expected) in [
        ("bare", true, json!({}), ""),
        (
            "name",
            true,
            annotations(json!({name: "db.data.svc.east"})),
            " authority=db.data.svc.east:80",
        ),
        (
            "name and identity",
            true,
            annotations(json!({name: "db.data.svc.east", identity: "gw.east"})),
            " hint=h2 dns=gw.east authority=db.data.svc.east:80 http2",
        ),
        (
            "no upgrade",
            false,
            annotations(json!({name: "db.data.svc.east", identity: "gw.east"})),
            " dns=gw.east authority=db.data.svc.east:80 http2",
        ),
        (
            "empty identity",
            true,
            annotations(json!({name: "db.data.svc.east", identity: ""})),
            " authority=db.data.svc.east:80",
        ),
        (
            "identity alone",
            true,
            annotations(json!({identity: "gw.east"})),
            " hint=h2 dns=gw.east http2",
        ),
        (
            "empty identity alone",
            true,
            annotations(json!({identity: ""})),
            "",
        ),
    ] {
        let world = World::with(Config {
            enable_h2_upgrade: upgrade,
            ..config()
        });
        world.apply("Service", service("10.0.0.1"));
        let slice = slice("web-1", &[json!({"addresses": ["172.16.0.1"]})]);
        world.apply("EndpointSlice", with(slice, extra));
        let seen = world.get();
        assert_eq!(
            seen.lines(),
            [format!("172.16.0.1:8080{expected}")],
            "{case}"
        );
        let endpoint = seen.endpoints.values().next().expect("one");
        assert_eq!(labels(endpoint), "zone_locality=unknown", "{case}");
    }
}

/// Spec 2.11: Servers.
#[test]
fn servers_make_ports_opaque() {
    let other_namespace = json!({"metadata": {"namespace": "other"}});
    let other_pods = json!({"spec": {"podSelector": {"matchLabels": {"app": "api"}}}});
    let not_opaque = json!({"spec": {"proxyProtocol": "HTTP/1"}});
    let expression = json!({"spec": {"podSelector": {"matchLabels": null,
        "matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}}});
    for (name, server, expected) in [
        ("number", opaque_server("s", json!(8080)), true),
        ("other number", opaque_server("s", json!(8081)), false),
        ("name", opaque_server("s", json!("http")), true),
        ("other name", opaque_server("s", json!("grpc")), false),
        (
            "all pods",
            with(
                opaque_server("s", json!(8080)),
                json!({"spec": {"podSelector": {"matchLabels": null}}}),
            ),
            true,
        ),
        (
            "expression",
            with(opaque_server("s", json!(8080)), expression),
            true,
        ),
        (
            "other pods",
            with(opaque_server("s", json!(8080)), other_pods),
            false,
        ),
        (
            "other namespace",
            with(opaque_server("s", json!(8080)), other_namespace),
            false,
        ),
        (
            "another protocol",
            with(opaque_server("s", json!(8080)), not_opaque),
            false,
        ),
    ] {
        let world = simple();
        let mut client = world.subscribe(80, None, None);
        let opaque = |client: &Subscriber| client.seen.lines()[0].contains("hint=opaque");
        assert!(!opaque(&client), "{name}");
        world.apply("Server", server);
        client.catch_up(&world.wire);
        assert_eq!(opaque(&client), expected, "{name}");
        assert_eq!(world.get().lines(), client.seen.lines(), "{name}");
        world.delete("Server", "s");
        client.catch_up(&world.wire);
        assert!(!opaque(&client), "{name}: gone with the Server");
    }
}

#[test]
fn a_server_that_changes_or_a_pod_that_is_relabelled() {
    let world = simple();
    let mut client = world.subscribe(80, None, None);
    let opaque = |client: &Subscriber| client.seen.lines()[0].contains("hint=opaque");
    world.apply("Server", opaque_server("s", json!(8080)));
    client.catch_up(&world.wire);
    assert!(opaque(&client));
    world.apply(
        "Pod",
        with(
            pod("a", "10.1.0.1"),
            json!({"metadata": {"labels": {"app": "api"}}}),
        ),
    );
    client.catch_up(&world.wire);
    assert!(!opaque(&client));
    world.apply("Pod", pod("a", "10.1.0.1"));
    client.catch_up(&world.wire);
    assert!(opaque(&client));
    world.apply(
        "Server",
        with(
            opaque_server("s", json!(8080)),
            json!({"spec": {"proxyProtocol": "TLS"}}),
        ),
    );
    client.catch_up(&world.wire);
    assert!(!opaque(&client));
}

#[test]
fn a_reset_forgets_what_it_does_not_list() {
    let world = simple();
    world.apply("Pod", pod("b", "10.1.0.2"));
    world.apply(
        "EndpointSlice",
        slice("web-1", &[to_pod("a", "10.1.0.1"), to_pod("b", "10.1.0.2")]),
    );
    let mut client = world.subscribe(80, None, None);
    assert_eq!(client.seen.endpoints.len(), 2);
    world
        .discovery
        .index()
        .lock()
        .reset(vec![object::<Pod>(pod("b", "10.1.0.2"))]);
    client.catch_up(&world.wire);
    assert_eq!(client.seen.addresses(), ["10.1.0.2:8080".to_owned()].into());
    world
        .discovery
        .index()
        .lock()
        .reset(Vec::<std::sync::Arc<EndpointSlice>>::new());
    client.catch_up(&world.wire);
    assert!(client.seen.endpoints.is_empty());
    world.delete("Pod", "never-there");
}
