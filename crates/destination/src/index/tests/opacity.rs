//! Which ports are opaque, and who says so (spec 2.11).

use super::*;

/// Spec 2.11: Servers.
#[test]
fn servers_make_ports_opaque() {
    let other_namespace = json!({"metadata": {"namespace": "other"}});
    let other_pods = json!({"spec": {"podSelector": {"matchLabels": {"app": "api"}}}});
    let not_opaque = json!({"spec": {"proxyProtocol": "HTTP/1"}});
    let expression = json!({"spec": {"podSelector": {"matchLabels": null,
        "matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}}});
    let none = json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": ""}}});
    let side = json!({"spec": {"initContainers": [
        {"name": "side", "ports": [{"containerPort": 8080, "name": "side"}]},
    ]}});
    let twice = json!({"spec": {"containers": [
        {"name": "one", "ports": [{"containerPort": 9000, "name": "web"}]},
        {"name": "two", "ports": [{"containerPort": 8080, "name": "web"}]},
        proxy_container(),
    ]}});
    let by = |port: Value| opaque_server("s", port);
    let plain = || json!({});
    for (name, pod_extra, server, expected) in [
        ("number", plain(), by(json!(8080)), true),
        ("other number", plain(), by(json!(8081)), false),
        ("name", plain(), by(json!("http")), true),
        ("other name", plain(), by(json!("grpc")), false),
        (
            "all pods",
            plain(),
            with(
                by(json!(8080)),
                json!({"spec": {"podSelector": {"matchLabels": null}}}),
            ),
            true,
        ),
        (
            "expression",
            plain(),
            with(by(json!(8080)), expression),
            true,
        ),
        (
            "other pods",
            plain(),
            with(by(json!(8080)), other_pods),
            false,
        ),
        (
            "other namespace",
            plain(),
            with(by(json!(8080)), other_namespace),
            false,
        ),
        (
            "another protocol",
            plain(),
            with(by(json!(8080)), not_opaque),
            false,
        ),
        (
            "Server beats an empty annotation",
            none,
            by(json!(8080)),
            true,
        ),
        (
            "Server names a port of an init container",
            side,
            by(json!("side")),
            true,
        ),
        ("one name, two containers", twice, by(json!("web")), true),
    ] {
        let world = simple();
        world.apply("Pod", with(pod("a", "10.1.0.1"), pod_extra));
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
