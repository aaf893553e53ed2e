//! Statuses by tables: objects in, conditions out.

use super::*;
use crate::testing::{
    World, created, egress, object, route, server, service, to_server, to_service, with,
};
use serde_json::Value;

mod routes;

fn now() -> Timestamp {
    "2025-06-01T00:00:00Z".parse().expect("a time")
}

fn patch_of(world: &World, kind: &str, name: &str) -> Option<Value> {
    let patches = world.index.status_patches(now());
    patches
        .into_iter()
        .find(|patch| patch.kind == kind && patch.key.name == name)
        .map(|patch| patch.status)
}

/// `Type=Status/Reason[/message]` of every condition of one parent.
fn conditions(status: &Value, parent: usize) -> Vec<String> {
    let list = status
        .pointer(&format!("/parents/{parent}/conditions"))
        .or_else(|| status.get("conditions"));
    let list = list.and_then(Value::as_array).expect("conditions");
    let shown = list.iter().map(|condition| {
        let field = |name: &str| condition[name].as_str().unwrap_or_default();
        let message = if field("message").is_empty() {
            String::new()
        } else {
            format!("/{}", field("message"))
        };
        format!(
            "{}={}/{}{message}",
            field("type"),
            field("status"),
            field("reason")
        )
    });
    shown.collect()
}

#[test]
fn rate_limits() {
    let limit = |name: &str, target: Value| {
        object(
            "policy.linkerd.io/v1alpha1",
            "HTTPLocalRateLimitPolicy",
            name,
            json!({"targetRef": target}),
        )
    };
    let mut world = World::new([
        server("s", json!({})),
        server("t", json!({})),
        limit("y", to_server("t")),
        limit("x", to_server("t")),
        limit("first", to_server("s")),
        created(limit("later", to_server("s")), "2025-02-01T00:00:00Z"),
        limit("lost", to_server("nope")),
        limit("odd", json!({"kind": "Service", "name": "s"})),
    ]);
    for (name, expected) in [
        ("first", "Accepted=True/Accepted"),
        ("later", "Accepted=False/RateLimitReasonAlreadyExists"),
        ("lost", "Accepted=False/NoMatchingTarget"),
        ("odd", "Accepted=False/NoMatchingTarget"),
        // Same age: by name.
        ("x", "Accepted=True/Accepted"),
        ("y", "Accepted=False/RateLimitReasonAlreadyExists"),
    ] {
        let status = patch_of(&world, "HTTPLocalRateLimitPolicy", name).expect(name);
        assert_eq!(conditions(&status, 0), [expected], "{name}");
        assert!(status["targetRef"]["name"].is_string(), "{name}");
    }

    let status = patch_of(&world, "HTTPLocalRateLimitPolicy", "first").expect("differs");
    let written = |target: Value, status: &Value| {
        with(limit("first", target), &[("/status", status.clone())])
    };
    world.apply(&written(to_server("s"), &status));
    let found = patch_of(&world, "HTTPLocalRateLimitPolicy", "first");
    assert_eq!(found, None, "written as it is: no patch");
    world.apply(&written(to_server("nope"), &status));
    let found = patch_of(&world, "HTTPLocalRateLimitPolicy", "first").expect("differs");
    assert_eq!(found["targetRef"]["name"], "nope");
}

#[test]
fn egress_networks() {
    const OVERLAP: &str =
        "Accepted=False/EgressReasonNetworkOverlap/networks overlap with clusterNetworks";
    for (case, spec, expected) in [
        ("everything outside", json!({}), "Accepted=True/Accepted"),
        (
            "apart",
            json!({"networks": [{"cidr": "1.0.0.0/8"}]}),
            "Accepted=True/Accepted",
        ),
        (
            "inside",
            json!({"networks": [{"cidr": "10.1.0.0/16"}]}),
            OVERLAP,
        ),
        (
            "around",
            json!({"networks": [{"cidr": "0.0.0.0/0"}]}),
            OVERLAP,
        ),
        (
            "one of many",
            json!({"networks": [{"cidr": "1.1.1.1"}, {"cidr": "fd00::/16"}]}),
            OVERLAP,
        ),
        (
            "around, excepted",
            json!({"networks": [{"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"]}]}),
            "Accepted=True/Accepted",
        ),
    ] {
        let world = World::new([egress("out", spec)]);
        let status = patch_of(&world, "EgressNetwork", "out").expect(case);
        assert_eq!(conditions(&status, 0), [expected], "{case}");
    }
    let mut written = egress("out", json!({}));
    let other = json!({"type": "Other", "status": "True", "reason": "Why", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z"});
    written["status"] = json!({"conditions": [other]});
    let mut world = World::new([written.clone()]);
    let status = patch_of(&world, "EgressNetwork", "out").expect("differs");
    assert_eq!(status["conditions"][0], other, "other conditions stay");
    assert_eq!(status["conditions"].as_array().map(Vec::len), Some(2));
    written["status"] = status;
    world.apply(&written);
    let found = patch_of(&world, "EgressNetwork", "out");
    assert_eq!(found, None, "written as it is: no patch");
}
