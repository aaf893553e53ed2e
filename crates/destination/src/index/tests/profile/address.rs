//! What stands behind an address or an instance (spec 3.1 and 3.4).

use super::*;

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
    let with_host_port = |extra: &Value| with(host_port.clone(), extra.clone());
    let (terminating_host_port, finished_host_port) = (
        with_host_port(&terminating),
        with_host_port(&finished("Failed")),
    );
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
            host_port.clone(),
            "192.168.0.1",
            7778,
            "192.168.0.1:7778".to_owned(),
        ),
        (
            "terminating pod gives its host port away",
            terminating_host_port,
            "192.168.0.1",
            7777,
            "192.168.0.1:7777".to_owned(),
        ),
        (
            "finished pod gives its host port away",
            finished_host_port,
            "192.168.0.1",
            7777,
            "192.168.0.1:7777".to_owned(),
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

    let edited = json!({"spec": {"meshTLS": {"identity": "spiffe://td/other"}}});
    world.apply(
        "ExternalWorkload",
        with(external_workload("vm", "172.16.0.1"), edited),
    );
    assert!(client.catch_up(&world), "edited");
    assert!(client.endpoint().contains("uri=spiffe://td/other"));
    let annotated =
        json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "http"}}});
    world.apply(
        "ExternalWorkload",
        with(external_workload("vm", "172.16.0.1"), annotated),
    );
    assert!(client.catch_up(&world), "its annotation edited");
    assert!(client.seen.opaque_protocol);
    world.delete("ExternalWorkload", "vm");
    assert!(client.catch_up(&world), "deleted: metadata dropped");
    assert_eq!(client.endpoint(), "172.16.0.1:8080");
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
    world.apply("Server", opaque_server("s", json!(8080)));
    assert!(client.catch_up(&world));
    let relabelled = json!({"metadata": {"labels": {"app": "api"}}});
    world.apply("Pod", with(pod("a", "10.1.0.1"), relabelled));
    assert!(
        client.catch_up(&world),
        "a relabelled pod leaves the Server"
    );
    assert!(!client.seen.opaque_protocol);
    world.apply("Pod", pod("a", "10.1.0.1"));
    assert!(client.catch_up(&world), "a relabelled pod joins the Server");
    assert!(client.seen.opaque_protocol);
    world.delete("Server", "s");
    assert!(client.catch_up(&world));
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
    let meshed = format!("hint=h2 dns={IDENTITY} sni={IDENTITY}");
    for (hostname, expected) in [
        ("web-0", Some(format!("10.1.0.1:80 {meshed}"))),
        ("web-1", Some(format!("10.1.0.2:80 {meshed}"))),
        ("by-hand", None),
        ("web-2", None),
    ] {
        let found = world.discovery.instance(&id, hostname, 80);
        let found = found.map(|it| Subscriber::new(it, &world).endpoint());
        assert_eq!(found, expected, "{hostname}");
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

/// Spec 3.1: an instance is the pod its Service names, though nobody would find that pod by its
/// address.
#[test]
fn an_instance_is_its_pod() {
    let meshed = format!("10.1.0.1:80 hint=h2 dns={IDENTITY} sni={IDENTITY}");
    let bare = "10.1.0.1:80".to_owned();
    let finished = |phase: &str| json!({"status": {"phase": phase}});
    let id = ObjectId::new("ns", "web");
    for (name, extra, expected) in [
        ("running", json!({}), &meshed),
        (
            "host network, port nobody declares",
            json!({"spec": {"hostNetwork": true}}),
            &meshed,
        ),
        (
            "terminating",
            json!({"metadata": {"deletionTimestamp": "2025-01-01T00:00:00Z"}}),
            &meshed,
        ),
        ("not running yet", finished("Pending"), &meshed),
        ("succeeded", finished("Succeeded"), &bare),
        ("failed", finished("Failed"), &bare),
    ] {
        let world = World::new();
        world.apply("Service", service("None"));
        let named = with(to_pod("a", "10.1.0.1"), json!({"hostname": "web-0"}));
        world.apply("EndpointSlice", slice("web-1", &[named]));
        world.apply("Pod", with(pod("a", "10.1.0.1"), extra));
        let found = world.discovery.instance(&id, "web-0", 80);
        let client = Subscriber::new(found.expect("an instance"), &world);
        assert_eq!(client.endpoint(), *expected, "{name}");
        drop(client);
        assert!(world.discovery.index().lock().views.is_empty(), "{name}");
    }
}

/// An instance keeps its name when its pod gets another address; while it has no pod there is only
/// the address that was.
#[test]
fn an_instance_is_followed_to_its_next_pod() {
    let world = World::new();
    let id = ObjectId::new("ns", "web");
    let named = |pod: &str, ip: &str| with(to_pod(pod, ip), json!({"hostname": "web-0"}));
    let meshed = |ip: &str| format!("{ip}:80 hint=h2 dns={IDENTITY} sni={IDENTITY}");
    let bare = |ip: &str| format!("{ip}:80");
    world.apply("Service", service("None"));
    world.apply("EndpointSlice", slice("web-1", &[named("a", "10.1.0.1")]));
    world.apply("Pod", pod("a", "10.1.0.1"));
    let found = world.discovery.instance(&id, "web-0", 80);
    let mut client = Subscriber::new(found.expect("an instance"), &world);
    assert_eq!(client.endpoint(), meshed("10.1.0.1"));
    let mut expect = |what: &str, expected: String| {
        assert!(client.catch_up(&world), "{what}");
        assert_eq!(client.endpoint(), expected, "{what}");
    };
    world.delete("Pod", "a");
    expect("its pod is gone", bare("10.1.0.1"));
    assert!(world.discovery.instance(&id, "web-0", 80).is_none());
    world.apply("Pod", pod("a", "10.1.0.2"));
    expect("a pod of the same name elsewhere", meshed("10.1.0.2"));
    world.apply("Pod", pod("b", "10.1.0.3"));
    world.apply("EndpointSlice", slice("web-1", &[named("b", "10.1.0.3")]));
    expect("another pod has the hostname", meshed("10.1.0.3"));
    world.delete("EndpointSlice", "web-1");
    expect("nobody has the hostname", bare("10.1.0.3"));
    world.apply("EndpointSlice", slice("web-1", &[named("b", "10.1.0.3")]));
    expect("somebody has it again", meshed("10.1.0.3"));
    world.delete("Service", "web");
    expect("a Service that is gone has no instances", bare("10.1.0.3"));
}

/// A client that asks for the address does not see what one sees that asks for the instance.
#[test]
fn an_instance_and_its_address_are_told_apart() {
    let world = World::new();
    world.apply("Service", service("None"));
    let named = with(to_pod("a", "10.1.0.1"), json!({"hostname": "web-0"}));
    world.apply("EndpointSlice", slice("web-1", &[named]));
    let host = json!({"spec": {"hostNetwork": true}});
    world.apply("Pod", with(pod("a", "10.1.0.1"), host));
    let by_address = at(&world, "10.1.0.1", 80).expect("a profile");
    let id = ObjectId::new("ns", "web");
    let instance = world.discovery.instance(&id, "web-0", 80);
    let instance = Subscriber::new(instance.expect("an instance"), &world);
    assert_eq!(by_address.endpoint(), "10.1.0.1:80");
    assert!(instance.endpoint().contains("dns="));
}
