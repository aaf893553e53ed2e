//! Which endpoints one client sees (spec 2.5).

use super::*;

/// Spec 2.5: the pipeline of filters. Pod `a` is on node-1 in east, `b` and `c` on node-2 in west;
/// `c` is there only where a case says what it has.
#[test]
fn filters() {
    struct Case {
        name: &'static str,
        service: Value,
        a: Value,
        b: Value,
        c: Option<Value>,
        hostname: Option<&'static str>,
        node: Option<&'static str>,
        anywhere: bool,
        expected: &'static [&'static str],
    }
    let case = |name, expected| Case {
        name,
        service: json!({}),
        a: json!({}),
        b: json!({}),
        c: None,
        hostname: None,
        node: Some("node-1"),
        anywhere: false,
        expected,
    };
    let zones = |zones: &[&str]| {
        let zones: Vec<_> = zones.iter().map(|zone| json!({"name": zone})).collect();
        json!({"hints": {"forZones": zones}})
    };
    let hinted = |zone: &str| with(zones(&[zone]), json!({"zone": zone}));
    let named = |hostname: &str| json!({"hostname": hostname});
    let local = || json!({"spec": {"internalTrafficPolicy": "Local"}});
    let cases = [
        case("nothing to filter by", &["a", "b"]),
        Case {
            a: named("a-0"),
            hostname: Some("a-0"),
            ..case("hostname", &["a"])
        },
        Case {
            hostname: Some("x"),
            ..case("unknown hostname", &[])
        },
        Case {
            service: local(),
            ..case("local", &["a"])
        },
        Case {
            service: local(),
            node: None,
            ..case("local, node unknown", &[])
        },
        Case {
            service: local(),
            a: hinted("west"),
            b: hinted("east"),
            ..case("local ignores hints", &["a"])
        },
        Case {
            a: hinted("east"),
            b: hinted("west"),
            ..case("zone", &["a"])
        },
        Case {
            a: hinted("east"),
            b: hinted("west"),
            node: Some("node-2"),
            ..case("other zone", &["b"])
        },
        Case {
            a: hinted("east"),
            ..case("zone, one without hint", &["a", "b"])
        },
        Case {
            a: zones(&[]),
            b: hinted("east"),
            ..case("empty forZones is no hint", &["a", "b"])
        },
        Case {
            a: zones(&["east", "west"]),
            b: hinted("west"),
            ..case("two zones in one hint, the first", &["a"])
        },
        Case {
            a: zones(&["east", "west"]),
            b: hinted("west"),
            node: Some("node-2"),
            ..case("two zones in one hint, the second", &["a", "b"])
        },
        Case {
            a: hinted("north"),
            b: hinted("north"),
            ..case("no endpoint for the zone", &["a", "b"])
        },
        Case {
            a: hinted("east"),
            b: hinted("west"),
            node: None,
            ..case("client without zone", &["a", "b"])
        },
        Case {
            a: with(hinted("east"), named("h")),
            b: with(hinted("west"), named("h")),
            c: Some(json!({})),
            hostname: Some("h"),
            ..case(
                "hostname first: a lack of hints elsewhere does not count",
                &["a"],
            )
        },
        Case {
            service: local(),
            anywhere: true,
            ..case("another cluster: Local is not consulted", &["a", "b"])
        },
        Case {
            a: hinted("east"),
            b: hinted("west"),
            anywhere: true,
            ..case("another cluster: hints are not consulted", &["a", "b"])
        },
        Case {
            b: named("b-0"),
            hostname: Some("b-0"),
            anywhere: true,
            ..case("another cluster: hostname still is", &["b"])
        },
    ];
    for case in cases {
        let world = World::new();
        world.apply("Node", node("node-1", "east"));
        world.apply("Node", node("node-2", "west"));
        world.apply("Service", with(service("10.0.0.1"), case.service));
        world.apply("Pod", pod("a", "10.1.0.1"));
        let over_there = json!({"spec": {"nodeName": "node-2"}});
        world.apply("Pod", with(pod("b", "10.1.0.2"), over_there.clone()));
        world.apply("Pod", with(pod("c", "10.1.0.3"), over_there));
        let mut endpoints = vec![
            with(to_pod("a", "10.1.0.1"), case.a),
            with(to_pod("b", "10.1.0.2"), case.b),
        ];
        endpoints.extend(case.c.map(|extra| with(to_pod("c", "10.1.0.3"), extra)));
        world.apply("EndpointSlice", slice("web-1", &endpoints));
        let client = Client {
            hostname: case.hostname.map(Into::into),
            node: case.node.map(Into::into),
            anywhere: case.anywhere,
        };
        let seen = world.subscribe_as(80, client).seen;
        let pods: Vec<_> = seen
            .endpoints
            .values()
            .map(|it| it.metric_labels["pod"].as_str())
            .collect();
        assert_eq!(pods, case.expected, "{}", case.name);
    }
}

/// Only pods are on a node: where traffic must stay on the client's, nothing else is left.
#[test]
fn local_drops_workloads_and_bare_addresses() {
    let world = World::new();
    let local = json!({"spec": {"internalTrafficPolicy": "Local"}});
    let endpoints = [
        to_pod("a", "10.1.0.1"),
        to_external("vm", "172.16.0.1"),
        json!({"addresses": ["172.16.0.2"], "nodeName": "node-1"}),
    ];
    world.apply("Pod", pod("a", "10.1.0.1"));
    world.apply("ExternalWorkload", external_workload("vm", "172.16.0.1"));
    world.apply("EndpointSlice", slice("web-1", &endpoints));
    world.apply("Service", service("10.0.0.1"));
    assert_eq!(world.get().endpoints.len(), 3);
    world.apply("Service", with(service("10.0.0.1"), local));
    let seen = world.subscribe(80, None, Some("node-1")).seen;
    assert_eq!(seen.addresses(), ["10.1.0.1:8080".to_owned()].into());
}

/// Spec 2.5, step 5: one family per workload.
#[test]
fn families() {
    const V4: &str = "10.1.0.1";
    const V6: &str = "fd00::1";
    const V4_PORT: &str = "10.1.0.1:8080";
    const V6_PORT: &str = "[fd00::1]:8080";
    let pod_at = |ip: &str| to_pod("a", ip);
    let machine_at = |ip: &str| to_external("vm", ip);
    let bare = |ip: &str| json!({"addresses": [ip]});
    /// Name, whether IPv6 is on, what the addresses are of, the addresses, what is left.
    type Case<'a> = (&'a str, bool, To<'a>, &'a [&'a str], &'a [&'a str]);
    type To<'a> = &'a dyn Fn(&str) -> Value;
    let cases: [Case<'_>; 12] = [
        ("both, IPv6 wins", true, &pod_at, &[V4, V6], &[V6_PORT]),
        ("both, IPv6 off", false, &pod_at, &[V4, V6], &[V4_PORT]),
        ("IPv4 only", true, &pod_at, &[V4], &[V4_PORT]),
        ("IPv6 only, IPv6 on", true, &pod_at, &[V6], &[V6_PORT]),
        ("IPv6 only, IPv6 off", false, &pod_at, &[V6], &[]),
        (
            "bare IPv6 address, IPv6 off",
            false,
            &bare,
            &[V6],
            &[V6_PORT],
        ),
        (
            "bare addresses are nobody's other address",
            true,
            &bare,
            &[V4, V6],
            &[V4_PORT, V6_PORT],
        ),
        (
            "ExternalWorkload, both families",
            true,
            &machine_at,
            &[V4, V6],
            &[V6_PORT],
        ),
        (
            "ExternalWorkload, both families, IPv6 off",
            false,
            &machine_at,
            &[V4, V6],
            &[V4_PORT],
        ),
        (
            "ExternalWorkload, IPv4 only",
            true,
            &machine_at,
            &[V4],
            &[V4_PORT],
        ),
        (
            "ExternalWorkload, IPv6 only",
            true,
            &machine_at,
            &[V6],
            &[V6_PORT],
        ),
        (
            "ExternalWorkload, IPv6 only, IPv6 off: it has no other address",
            false,
            &machine_at,
            &[V6],
            &[V6_PORT],
        ),
    ];
    for (name, enable_ipv6, to, ips, expected) in cases {
        let world = World::with(Config {
            enable_ipv6,
            ..Config::default()
        });
        world.apply("Service", service("10.0.0.1"));
        world.apply("Pod", pod("a", V4));
        world.apply("ExternalWorkload", external_workload("vm", V4));
        for ip in ips {
            let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
            let slice = slice(&format!("web-{}", family.to_lowercase()), &[to(ip)]);
            world.apply("EndpointSlice", with(slice, json!({"addressType": family})));
        }
        for anywhere in [false, true] {
            let client = Client {
                anywhere,
                ..Client::default()
            };
            let seen = world.subscribe_as(80, client).seen.addresses();
            assert_eq!(
                Vec::from_iter(seen),
                expected,
                "{name}, anywhere: {anywhere}"
            );
        }
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
