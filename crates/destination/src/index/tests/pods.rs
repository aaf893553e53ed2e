//! What is said of a pod, and of the set it is in (spec 2.7).

use super::*;

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
    let listens = |addr: &str| {
        json!({"name": "linkerd-proxy", "env": [
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": addr},
        ]})
    };
    let both = json!({"spec": {
        "initContainers": [listens("[::]:5143")],
        "containers": [listens("0.0.0.0:4143")],
    }});
    let odd = json!({"spec": {"initContainers": [], "containers": [listens("localhost:4143")]}});
    let declares = |ports: &[Value]| {
        let containers = ports.iter().enumerate();
        let mut containers: Vec<_> = containers
            .map(|(at, port)| json!({"name": format!("app-{at}"), "ports": [port]}))
            .collect();
        containers.push(proxy_container());
        json!({"spec": {"containers": containers}})
    };
    let side = json!({"spec": {"initContainers": [
        {"name": "side", "ports": [{"containerPort": 9000, "name": "side"}]},
    ]}});
    let ranged = declares(&[json!({"containerPort": 8080, "name": "1-2"})]);
    let twice = declares(&[
        json!({"containerPort": 8080, "name": "web"}),
        json!({"containerPort": 8081, "name": "web"}),
    ]);
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
        Case {
            config: header(),
            pod: opaque("4191"),
            port: 4191,
            ..case("opaque admin port: no transport", "hint=opaque ID http2")
        },
        Case {
            config: Config {
                enable_h2_upgrade: false,
                ..header()
            },
            ..case(
                "no upgrade, transport header",
                "hint=none transport=4143 ID http2",
            )
        },
        Case {
            config: header(),
            pod: annotated("config.linkerd.io/skip-inbound-ports", "8080"),
            ..case("skipped port, transport header", "")
        },
        Case {
            config: header(),
            pod: both,
            ..case(
                "proxy in init and app containers: init first",
                "hint=h2 transport=5143 ID http2",
            )
        },
        Case {
            config: header(),
            pod: odd,
            ..case("listen address is not ip:port", "hint=h2 ID http2")
        },
        Case {
            pod: with(opaque("side"), side),
            port: 9000,
            ..case(
                "annotation names a port of an init container",
                "hint=opaque transport=4143 ID http2",
            )
        },
        Case {
            pod: with(opaque("1-2"), ranged.clone()),
            ..case(
                "port called 1-2 is a name first",
                "hint=opaque transport=4143 ID http2",
            )
        },
        Case {
            pod: with(opaque("1-2"), ranged),
            port: 2,
            ..case("port called 1-2 is no range then", "hint=h2 ID http2")
        },
        Case {
            pod: with(opaque("web"), twice.clone()),
            ..case(
                "one name, two containers: the first",
                "hint=opaque transport=4143 ID http2",
            )
        },
        Case {
            pod: with(opaque("web"), twice),
            port: 8081,
            ..case(
                "one name, two containers: the second",
                "hint=opaque transport=4143 ID http2",
            )
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

/// Spec 2.7: labels of metrics, but for the owner and the zone.
#[test]
fn labels_of_pods() {
    let labelled = |key: &str, value: Value| json!({"metadata": {"labels": {key: value}}});
    for (name, extra, expected) in [
        ("meshed", json!({}), "control_plane_ns=linkerd pod=a"),
        (
            "not meshed",
            labelled("linkerd.io/control-plane-ns", Value::Null),
            "pod=a",
        ),
        (
            "pod_template_hash",
            labelled("pod-template-hash", json!("5d4f")),
            "control_plane_ns=linkerd pod=a pod_template_hash=5d4f",
        ),
    ] {
        let world = simple();
        world.apply("Pod", with(pod("a", "10.1.0.1"), extra));
        let seen = world.get();
        let found = labels(seen.endpoints.values().next().expect("one"));
        let rest = "serviceaccount=sa zone= zone_locality=unknown";
        assert_eq!(found, format!("{expected} {rest}"), "{name}");
    }
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
    let nameless = json!({"metadata": {"labels": {"mirror.linkerd.io/cluster-name": "east"}}});
    let cluster = [
        ("namespace", "ns"),
        ("service", "web"),
        ("target_cluster", "east"),
    ];
    for (name, service_extra, slice_extra, expected) in [
        (
            "mirrored without fq-name: target_cluster alone",
            json!({}),
            nameless,
            cluster.as_slice(),
        ),
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
