//! Messages of a stream, and what clients share (spec 2.6).

use super::*;

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

/// Spec 2.6: a proxy that loses an endpoint has its successor already.
#[test]
fn the_addition_comes_before_the_removal() {
    let world = simple();
    let mut client = world.subscribe(80, None, None);
    world.apply("Pod", pod("b", "10.1.0.2"));
    world.apply("EndpointSlice", slice("web-1", &[to_pod("b", "10.1.0.2")]));
    let kinds: Vec<_> = client
        .read(&world.wire)
        .into_iter()
        .map(|message| match message.update.expect("a kind") {
            pb::update::Update::Add(set) => format!("add {}", set.addrs.len()),
            pb::update::Update::Remove(set) => format!("remove {}", set.addrs.len()),
            pb::update::Update::NoEndpoints(_) => "none".to_owned(),
        })
        .collect();
    assert_eq!(kinds, ["add 1", "remove 1"]);
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
