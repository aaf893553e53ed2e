//! Statuses of routes (spec 5.12).

use super::*;

/// Name, other objects, the route's parent, its rules, its conditions.
type Case = (&'static str, Vec<Value>, Value, Value, Vec<&'static str>);

#[test]
fn routes() {
    const ACCEPTED: &str = "Accepted=True/Accepted";
    const RESOLVED: &str = "ResolvedRefs=True/ResolvedRefs";
    let to_egress = || json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 443});
    let headless = with(
        service("web", "None"),
        &[("/spec/clusterIPs", json!(["None"]))],
    );
    let external = object("v1", "Service", "web", json!({"type": "ExternalName"}));
    let overlapping = egress("out", json!({"networks": [{"cidr": "10.1.0.0/16"}]}));
    let backend = |backend: Value| json!([{"backendRefs": [backend]}]);
    let in_shop = |parent: Value| with(parent, &[("/namespace", json!("shop"))]);
    let egress_backend =
        || json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out"});
    let cases: Vec<Case> = vec![
        (
            "service",
            vec![service("web", "10.1.0.1")],
            to_service("web"),
            json!([{}]),
            vec![ACCEPTED, RESOLVED],
        ),
        (
            "server",
            vec![server("s", json!({}))],
            to_server("s"),
            json!([{}]),
            vec![ACCEPTED],
        ),
        (
            "egress network",
            vec![egress("out", json!({}))],
            to_egress(),
            json!([{}]),
            vec![ACCEPTED, RESOLVED],
        ),
        (
            "no service",
            vec![],
            to_service("web"),
            json!([{}]),
            vec!["Accepted=False/NoMatchingParent", RESOLVED],
        ),
        (
            "no server",
            vec![],
            to_server("s"),
            json!([{}]),
            vec!["Accepted=False/NoMatchingParent"],
        ),
        (
            "no egress network",
            vec![],
            to_egress(),
            json!([{}]),
            vec!["Accepted=False/NoMatchingParent", RESOLVED],
        ),
        (
            "headless",
            vec![headless],
            to_service("web"),
            json!([{}]),
            vec![
                "Accepted=False/NoMatchingParent/parent service must have a ClusterIP",
                RESOLVED,
            ],
        ),
        (
            "external name",
            vec![external],
            to_service("web"),
            json!([{}]),
            vec![
                "Accepted=False/NoMatchingParent/parent service must have a ClusterIP",
                RESOLVED,
            ],
        ),
        (
            "egress network not accepted",
            vec![overlapping],
            to_egress(),
            json!([{}]),
            vec![
                "Accepted=False/NoMatchingParent/EgressNetwork parent has not been accepted",
                RESOLVED,
            ],
        ),
        (
            "conflict",
            vec![
                service("web", "10.1.0.1"),
                route("GRPCRoute", "g", to_service("web"), json!([{}])),
            ],
            to_service("web"),
            json!([{}]),
            vec!["Accepted=False/RouteReasonConflicted", RESOLVED],
        ),
        (
            "no conflict on another port",
            vec![
                service("web", "10.1.0.1"),
                route(
                    "GRPCRoute",
                    "g",
                    with(to_service("web"), &[("/port", json!(8080))]),
                    json!([{}]),
                ),
            ],
            to_service("web"),
            json!([{}]),
            vec![ACCEPTED, RESOLVED],
        ),
        (
            "no conflict with a portless reference",
            vec![
                service("web", "10.1.0.1"),
                route(
                    "GRPCRoute",
                    "g",
                    with(to_service("web"), &[("/port", Value::Null)]),
                    json!([{}]),
                ),
            ],
            to_service("web"),
            json!([{}]),
            vec![ACCEPTED, RESOLVED],
        ),
        (
            "conflict on a server",
            vec![
                server("s", json!({})),
                route("GRPCRoute", "g", to_server("s"), json!([{}])),
            ],
            to_server("s"),
            json!([{}]),
            vec!["Accepted=False/RouteReasonConflicted"],
        ),
        (
            "no conflict on a server with a route of another namespace",
            vec![
                server("s", json!({})),
                with(
                    route("GRPCRoute", "g", in_shop(to_server("s")), json!([{}])),
                    &[("/metadata/namespace", json!("other"))],
                ),
            ],
            to_server("s"),
            json!([{}]),
            vec![ACCEPTED],
        ),
        (
            "server of another namespace",
            vec![with(
                server("s", json!({})),
                &[("/metadata/namespace", json!("other"))],
            )],
            with(to_server("s"), &[("/namespace", json!("other"))]),
            json!([{}]),
            vec![ACCEPTED],
        ),
        (
            "no such server in another namespace",
            vec![server("s", json!({}))],
            with(to_server("s"), &[("/namespace", json!("other"))]),
            json!([{}]),
            vec!["Accepted=False/NoMatchingParent"],
        ),
        (
            "unnamed backend",
            vec![service("web", "10.1.0.1")],
            to_service("web"),
            backend(json!({"port": 80})),
            vec![
                ACCEPTED,
                "ResolvedRefs=False/BackendNotFound/backend reference without a name",
            ],
        ),
        (
            "backend",
            vec![service("web", "10.1.0.1")],
            to_service("web"),
            backend(json!({"name": "web", "port": 80})),
            vec![ACCEPTED, RESOLVED],
        ),
        (
            "backend missing",
            vec![service("web", "10.1.0.1")],
            to_service("web"),
            backend(json!({"name": "db", "port": 80})),
            vec![ACCEPTED, "ResolvedRefs=False/BackendNotFound"],
        ),
        (
            "backend of another kind",
            vec![service("web", "10.1.0.1")],
            to_service("web"),
            backend(json!({"group": "x", "kind": "Y", "name": "db"})),
            vec![ACCEPTED, "ResolvedRefs=False/InvalidKind"],
        ),
        (
            "egress backend",
            vec![egress("out", json!({}))],
            to_egress(),
            backend(egress_backend()),
            vec![ACCEPTED, RESOLVED],
        ),
        (
            "egress backend missing",
            vec![service("web", "10.1.0.1")],
            to_service("web"),
            backend(egress_backend()),
            vec![ACCEPTED, "ResolvedRefs=False/BackendNotFound"],
        ),
        (
            "egress backend under a service",
            vec![service("web", "10.1.0.1"), egress("out", json!({}))],
            to_service("web"),
            backend(egress_backend()),
            vec![
                ACCEPTED,
                "ResolvedRefs=False/InvalidKind/EgressNetwork backend needs to be on a route that has an EgressNetwork parent",
            ],
        ),
        (
            "nothing supported",
            vec![service("web", "10.1.0.1")],
            to_service("web"),
            json!([{"filters": [{"type": "URLRewrite"}]}]),
            vec![
                "Accepted=False/UnsupportedValue/unsupported filter: URLRewrite",
                RESOLVED,
            ],
        ),
        (
            "partly supported",
            vec![service("web", "10.1.0.1")],
            to_service("web"),
            json!([{}, {"filters": [{"type": "URLRewrite"}]}]),
            vec![
                ACCEPTED,
                RESOLVED,
                "PartiallyInvalid=True/UnsupportedValue/Dropped Rule(s): unsupported filter: URLRewrite",
            ],
        ),
    ];
    for (case, objects, parent, rules, expected) in cases {
        for kind in ["HTTPRoute", "policy"] {
            let world = World::new(objects.iter().cloned().chain([route(
                kind,
                "r",
                parent.clone(),
                rules.clone(),
            )]));
            let status = patch_of(&world, "HTTPRoute", "r").expect(case);
            assert_eq!(conditions(&status, 0), expected, "{case} ({kind})");
        }
    }
}

/// Spec 5.12: among kinds that want the same parent and port, the highest has it.
#[test]
fn conflicts() {
    let kinds = ["GRPCRoute", "HTTPRoute", "TLSRoute", "TCPRoute"];
    for (rank, kind) in kinds.iter().enumerate() {
        for (rival_rank, rival) in kinds.iter().enumerate() {
            let world = World::new([
                service("web", "10.1.0.1"),
                route(kind, "mine", to_service("web"), json!([{}])),
                route(rival, "rival", to_service("web"), json!([{}])),
            ]);
            let status = patch_of(&world, kind, "mine").expect(kind);
            let expected = if rival_rank < rank {
                "Accepted=False/RouteReasonConflicted"
            } else {
                "Accepted=True/Accepted"
            };
            assert_eq!(conditions(&status, 0)[0], expected, "{kind} by {rival}");
        }
    }
}

/// Where the status of each kind is written.
#[test]
fn resources_of_routes() {
    const GATEWAY: &str = "gateway.networking.k8s.io";
    for (kind, expected) in [
        (
            "policy",
            ("policy.linkerd.io", "v1beta3", "HTTPRoute", "httproutes"),
        ),
        ("HTTPRoute", (GATEWAY, "v1", "HTTPRoute", "httproutes")),
        ("GRPCRoute", (GATEWAY, "v1", "GRPCRoute", "grpcroutes")),
        ("TLSRoute", (GATEWAY, "v1alpha2", "TLSRoute", "tlsroutes")),
        ("TCPRoute", (GATEWAY, "v1alpha2", "TCPRoute", "tcproutes")),
    ] {
        let world = World::new([route(kind, "r", to_service("web"), json!([{}]))]);
        let patches = world.index.status_patches(now());
        let [patch] = patches.as_slice() else {
            panic!("{kind}: one patch")
        };
        let found = (patch.group, patch.version, patch.kind, patch.plural);
        assert_eq!(found, expected, "{kind}");
        assert_eq!(patch.key, Key::new("shop", "r"), "{kind}");
    }
}

/// Spec 5.12: `parents[]`, one entry for each reference that is ours.
#[test]
fn entries_of_parents() {
    let to = |group: &str, kind: &str, name: &str| json!({"group": group, "kind": kind, "name": name, "namespace": "shop"});
    let on = |entry: Value, port: u16| with(entry, &[("/port", json!(port))]);
    let web = || to("core", "Service", "web");
    let portless = || with(to_service("web"), &[("/port", Value::Null)]);
    for (case, parents, expected) in [
        ("port", vec![to_service("web")], vec![on(web(), 80)]),
        (
            "portless parent: no port in the status",
            vec![portless()],
            vec![web()],
        ),
        (
            "the group is always written",
            vec![with(to_service("web"), &[("/group", Value::Null)])],
            vec![on(web(), 80)],
        ),
        (
            "two parents, two entries",
            vec![to_service("web"), to_server("s")],
            vec![on(web(), 80), to("policy.linkerd.io", "Server", "s")],
        ),
        (
            "two ports, two entries",
            vec![
                to_service("web"),
                with(to_service("web"), &[("/port", json!(8080))]),
                portless(),
            ],
            vec![on(web(), 80), on(web(), 8080), web()],
        ),
        (
            "the same parent twice, one entry",
            vec![to_service("web"), to_service("web")],
            vec![on(web(), 80)],
        ),
        (
            "no sectionName",
            vec![with(to_service("web"), &[("/sectionName", json!("http"))])],
            vec![on(web(), 80)],
        ),
        (
            "an egress network elsewhere",
            vec![
                json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "namespace": "other", "port": 443}),
            ],
            vec![on(
                with(
                    to("policy.linkerd.io", "EgressNetwork", "out"),
                    &[("/namespace", json!("other"))],
                ),
                443,
            )],
        ),
        (
            "kinds of others have none",
            vec![to_service("web"), json!({"kind": "Gateway", "name": "gw"})],
            vec![on(web(), 80)],
        ),
    ] {
        let mut written = route("HTTPRoute", "r", json!({}), json!([{}]));
        written["spec"]["parentRefs"] = json!(parents);
        let status = patch_of(&World::new([written]), "HTTPRoute", "r").expect(case);
        let entries = status["parents"].as_array().expect(case);
        let found: Vec<_> = entries.iter().map(|it| it["parentRef"].clone()).collect();
        assert_eq!(found, expected, "{case}");
        for entry in entries {
            assert_eq!(entry["controllerName"], CONTROLLER_NAME, "{case}");
        }
    }
}

/// Annotations are for traffic that leaves: a Server does not care.
#[test]
fn bad_annotations() {
    let bad = json!({"timeout.linkerd.io/request": "soon"});
    for (case, parent, expected) in [
        (
            "bad annotation: UnsupportedValue",
            to_service("web"),
            "Accepted=False/UnsupportedValue/",
        ),
        (
            "bad annotation on a Server route: Accepted",
            to_server("s"),
            "Accepted=True/Accepted",
        ),
    ] {
        let annotated = with(
            route("HTTPRoute", "r", parent, json!([{}])),
            &[("/metadata/annotations", bad.clone())],
        );
        let world = World::new([
            service("web", "10.1.0.1"),
            server("s", json!({})),
            annotated,
        ]);
        let status = patch_of(&world, "HTTPRoute", "r").expect(case);
        let found = conditions(&status, 0).remove(0);
        assert!(found.starts_with(expected), "{case}: {found}");
        let names_it = found.contains("timeout.linkerd.io/request");
        assert_eq!(names_it, expected.ends_with('/'), "{case}: {found}");
    }
}

#[test]
fn parents_of_others_are_left_alone() {
    let ours =
        json!({"group": "core", "kind": "Service", "name": "web", "namespace": "shop", "port": 80});
    let foreign = json!({
        "parentRef": {"name": "gw"}, "controllerName": "example.com/gw",
        "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z"}],
    });
    let mut written = route("HTTPRoute", "r", to_service("web"), json!([{}]));
    written["spec"]["parentRefs"]
        .as_array_mut()
        .expect("parents")
        .push(json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}));
    written["status"] = json!({"parents": [foreign]});
    let mut world = World::new([service("web", "10.1.0.1"), written.clone()]);
    let status = patch_of(&world, "HTTPRoute", "r").expect("differs");
    assert_eq!(status["parents"][0], foreign);
    assert_eq!(status["parents"][1]["parentRef"], ours);
    assert_eq!(status["parents"][1]["controllerName"], CONTROLLER_NAME);
    assert_eq!(
        status["parents"][1]["conditions"][0]["observedGeneration"],
        1
    );

    // Written back in another order, it needs no more writing.
    let mut parents = status["parents"].as_array().expect("parents").clone();
    parents.reverse();
    written["status"] = json!({"parents": parents});
    world.apply(&written);
    assert_eq!(patch_of(&world, "HTTPRoute", "r"), None);

    // A condition that stays keeps its time; one that changes gets a new one.
    for parent in written["status"]["parents"]
        .as_array_mut()
        .expect("parents")
    {
        for condition in parent["conditions"].as_array_mut().expect("conditions") {
            condition["lastTransitionTime"] = json!("2024-01-01T00:00:00Z");
        }
    }
    world.apply(&written);
    assert_eq!(
        patch_of(&world, "HTTPRoute", "r"),
        None,
        "times alone are no difference"
    );
    world.delete(&service("web", "10.1.0.1"));
    let status = patch_of(&world, "HTTPRoute", "r").expect("differs");
    let ours = status["parents"]
        .as_array()
        .expect("parents")
        .iter()
        .find(|parent| parent["controllerName"] == CONTROLLER_NAME);
    let times: Vec<_> = ours.expect("ours")["conditions"]
        .as_array()
        .expect("conditions")
        .iter()
        .map(|condition| condition["lastTransitionTime"].clone())
        .collect();
    assert_eq!(
        times,
        [json!("2025-06-01T00:00:00Z"), json!("2024-01-01T00:00:00Z")]
    );

    // A route that leaves us loses our entries only.
    written["spec"]["parentRefs"] =
        json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}]);
    world.apply(&written);
    let status = patch_of(&world, "HTTPRoute", "r").expect("differs");
    assert_eq!(status["parents"].as_array().map(Vec::len), Some(1));
}

#[test]
fn routes_of_others_get_no_status() {
    let world = World::new([route(
        "HTTPRoute",
        "r",
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}),
        json!([{}]),
    )]);
    assert_eq!(world.index.status_patches(now()), []);
}
