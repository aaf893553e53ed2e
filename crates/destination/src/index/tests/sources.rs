//! Where endpoints come from: dispatch, ports, slices, owners (spec 2.2 to 2.4).

use super::*;
use crate::index::Dispatch;

/// Spec 2.2: what the labels and annotations of a Service say about where its endpoints are.
#[test]
fn dispatch() {
    const REMOTE: &str = "multicluster.linkerd.io/remote-discovery";
    const LOCAL: &str = "multicluster.linkerd.io/local-discovery";
    const NAME: &str = "multicluster.linkerd.io/remote-service";
    let federated = |local: Option<&str>, remote: Option<&str>| Dispatch::Federated {
        local: local.map(Into::into),
        remote: remote.map(Into::into),
    };
    let remote = |service: Option<&str>| Dispatch::Remote {
        cluster: "east".into(),
        service: service.map(Into::into),
    };
    for (name, labels, annotations, expected) in [
        ("neither", json!({}), json!({}), Dispatch::Local),
        (
            "annotation before label",
            json!({REMOTE: "east", NAME: "web"}),
            json!({REMOTE: "web@west"}),
            federated(None, Some("web@west")),
        ),
        (
            "annotation present but empty is federated",
            json!({REMOTE: "east", NAME: "web"}),
            json!({LOCAL: ""}),
            federated(Some(""), None),
        ),
        (
            "both annotations",
            json!({}),
            json!({LOCAL: "web", REMOTE: "web@west"}),
            federated(Some("web"), Some("web@west")),
        ),
        (
            "label alone is remote",
            json!({REMOTE: "east", NAME: "web"}),
            json!({}),
            remote(Some("web")),
        ),
        (
            "label without remote-service",
            json!({REMOTE: "east"}),
            json!({}),
            remote(None),
        ),
        (
            "remote-service without label",
            json!({NAME: "web"}),
            json!({}),
            Dispatch::Local,
        ),
    ] {
        let world = World::new();
        let extra = json!({"metadata": {"labels": labels, "annotations": annotations}});
        world.apply("Service", with(service("10.0.0.1"), extra));
        let found = world.discovery.dispatch(&ObjectId::new("ns", "web"));
        assert_eq!(found, Ok(expected), "{name}");
    }
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
            "protocol is not compared",
            json!([{"name": "http", "port": 80, "protocol": "TCP"}]),
            json!([{"name": "http", "port": 7000, "protocol": "UDP"}]),
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
fn two_slices_may_have_two_numbers_for_one_name() {
    let world = simple();
    world.apply("Pod", pod("b", "10.1.0.2"));
    let other = slice("web-2", &[to_pod("b", "10.1.0.2")]);
    let ports = json!({"ports": [{"name": "http", "port": 9090}]});
    world.apply("EndpointSlice", with(other, ports));
    let expected = ["10.1.0.1:8080", "10.1.0.2:9090"].map(str::to_owned);
    assert_eq!(world.get().addresses(), expected.into());
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
    let owned = |labels: Value, kind: &str, name: &str| {
        let owner = json!([{"apiVersion": "v1", "kind": kind, "name": name, "uid": "1"}]);
        with(
            one(to_pod("a", "10.1.0.1")),
            json!({"metadata": {"labels": labels, "ownerReferences": owner}}),
        )
    };
    let labelled = |service: &str| json!({"kubernetes.io/service-name": service});
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
            owned(Value::Null, "Service", "web"),
            1,
        ),
        (
            "label before owner reference",
            owned(labelled("web"), "Service", "other"),
            1,
        ),
        (
            "label of another Service before owner reference",
            owned(labelled("other"), "Service", "web"),
            0,
        ),
        (
            "owner of another kind",
            owned(Value::Null, "Endpoints", "web"),
            0,
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
                {"addresses": [with(to("a", "10.1.0.1"), json!({"hostname": "a-0"}))],
                 "ports": [{"name": "http", "port": 8080}]},
                {"addresses": [with(to("vm", "172.16.0.1"), json!({"targetRef": {"kind": "ExternalWorkload"}}))],
                 "ports": [{"name": "http", "port": 8080}]},
                {"addresses": [to("b", "10.1.0.2")], "ports": [{"name": "http", "port": 8081}],
                 "notReadyAddresses": [to("c", "10.1.0.3")]},
            ],
        }),
    );
    world.apply("ExternalWorkload", external_workload("vm", "172.16.0.1"));
    for (name, hostname, expected) in [
        (
            "ExternalWorkload reference is dropped",
            None,
            ["10.1.0.1:8080", "10.1.0.2:8081"].as_slice(),
        ),
        ("hostname", Some("a-0"), &["10.1.0.1:8080"]),
        ("unknown hostname", Some("b-0"), &[]),
    ] {
        let seen = world.subscribe(80, hostname, None).seen.addresses();
        assert_eq!(Vec::from_iter(seen), expected, "{name}");
    }
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
    let owned_by = |owners: Value| {
        with(
            orphan.clone(),
            json!({"metadata": {"ownerReferences": owners}}),
        )
    };
    let job = json!({"metadata": {"namespace": "ns", "name": "web-5", "ownerReferences": owner("CronJob", "nightly")}});
    for (name, references, objects, expected) in [
        ("none", json!([]), vec![], ""),
        ("several", two.clone(), vec![], ""),
        (
            "ReplicaSet with two owners",
            owner("ReplicaSet", "web-5"),
            vec![("ReplicaSet", owned_by(two))],
            "replicaset=web-5",
        ),
        (
            "ReplicaSet of a Rollout",
            owner("ReplicaSet", "web-5"),
            vec![("ReplicaSet", owned_by(owner("Rollout", "web")))],
            "rollout=web",
        ),
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
            vec![("ReplicaSet", orphan.clone())],
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

#[test]
fn a_replica_set_that_is_deleted_is_called_by_its_own_name_again() {
    let owner = |kind: &str, name: &str| json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "1"}]}});
    let world = simple();
    let owned = with(pod("a", "10.1.0.1"), owner("ReplicaSet", "web-5"));
    world.apply("Pod", owned);
    let replica_set = json!({"metadata": {"namespace": "ns", "name": "web-5"}});
    world.apply("ReplicaSet", with(replica_set, owner("Deployment", "web")));
    let mut client = world.subscribe(80, None, None);
    let shown = |client: &Subscriber| labels(client.seen.endpoints.values().next().expect("one"));
    assert!(shown(&client).contains("deployment=web"));
    world.delete("ReplicaSet", "web-5");
    assert_eq!(client.catch_up(&world.wire), 1);
    assert!(
        shown(&client).contains("replicaset=web-5"),
        "{}",
        shown(&client)
    );
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
