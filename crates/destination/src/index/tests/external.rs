//! What is said of ExternalWorkloads, gateways and addresses written by hand (spec 2.8 to 2.10).

use super::*;

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
            proxy.clone(),
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
            "opaque, own proxy port",
            false,
            with(proxy.clone(), opaque("8080")),
            8080,
            vec![],
            "hint=opaque transport=5143 ",
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

/// Spec 2.8: labels of metrics.
#[test]
fn labels_of_external_workloads() {
    let owned = |owners: &[&str]| {
        let owners = owners.iter();
        let owners = owners.map(
            |name| json!({"apiVersion": "x/v1", "kind": "MachineSet", "name": name, "uid": name}),
        );
        json!({"metadata": {"ownerReferences": owners.collect::<Vec<_>>()}})
    };
    for (name, extra, zone, client, expected) in [
        (
            "zone and locality",
            json!({}),
            json!({"zone": "east"}),
            Some("node-1"),
            "external_workload=vm zone=east zone_locality=local",
        ),
        (
            "another zone",
            json!({}),
            json!({"zone": "west"}),
            Some("node-1"),
            "external_workload=vm zone=west zone_locality=remote",
        ),
        (
            "client unknown",
            json!({}),
            json!({"zone": "east"}),
            None,
            "external_workload=vm zone=east zone_locality=unknown",
        ),
        (
            "one owner",
            owned(&["vms"]),
            json!({}),
            None,
            "external_workload=vm machineset=vms zone= zone_locality=unknown",
        ),
        (
            "two owners: none shown",
            owned(&["vms", "more"]),
            json!({}),
            None,
            "external_workload=vm zone= zone_locality=unknown",
        ),
    ] {
        let world = World::new();
        world.apply("Node", node("node-1", "east"));
        world.apply("Service", service("10.0.0.1"));
        let endpoint = with(to_external("vm", "172.16.0.1"), zone);
        world.apply("EndpointSlice", slice("web-1", &[endpoint]));
        let workload = with(external_workload("vm", "172.16.0.1"), extra);
        world.apply("ExternalWorkload", workload);
        let seen = world.subscribe(80, None, client).seen;
        let endpoint = seen.endpoints.values().next().expect("one");
        assert_eq!(labels(endpoint), expected, "{name}");
    }
}

/// Spec 2.10: nobody watches the ExternalWorkloads of another cluster.
#[test]
fn a_slice_of_another_cluster_that_names_an_external_workload() {
    let world = simple();
    let endpoints = [to_external("vm", "172.16.0.1"), to_pod("a", "10.1.0.1")];
    world.apply("EndpointSlice", slice("web-1", &endpoints));
    let client = Client {
        anywhere: true,
        ..Client::default()
    };
    let mut client = world.subscribe_as(80, client);
    assert_eq!(client.seen.addresses(), ["10.1.0.1:8080".to_owned()].into());
    world.apply("EndpointSlice", slice("web-1", &endpoints[..1]));
    client.catch_up(&world.wire);
    assert_eq!(client.seen.exists, Some(true));
    assert!(client.seen.endpoints.is_empty());
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

#[test]
fn a_gateway_in_a_zone_shows_only_how_near_it_is() {
    let world = World::new();
    world.apply("Node", node("node-1", "east"));
    world.apply("Service", service("10.0.0.1"));
    let zoned = json!({"addresses": ["172.16.0.1"], "zone": "east"});
    world.apply("EndpointSlice", slice("web-1", &[zoned]));
    let seen = world.subscribe(80, None, Some("node-1")).seen;
    let endpoint = seen.endpoints.values().next().expect("one");
    assert_eq!(labels(endpoint), "zone_locality=local");
}

/// Where slices are off the annotations are those of the Endpoints object.
#[test]
fn an_endpoints_object_of_a_gateway() {
    let world = World::with(Config {
        enable_endpoint_slices: false,
        enable_ipv6: false,
        ..Config::default()
    });
    world.apply("Service", service("10.0.0.1"));
    world.apply(
        "Endpoints",
        json!({
            "metadata": {"namespace": "ns", "name": "web", "annotations": {
                "mirror.linkerd.io/remote-svc-fq-name": "db.data.svc.east",
                "mirror.linkerd.io/remote-gateway-identity": "gw.east",
            }},
            "subsets": [{"addresses": [{"ip": "172.16.0.1"}], "ports": [{"name": "http", "port": 4143}]}],
        }),
    );
    assert_eq!(
        world.get().lines(),
        ["172.16.0.1:4143 hint=h2 dns=gw.east authority=db.data.svc.east:80"]
    );
}
