//! Random histories: whatever happened, a stream replayed says what a fresh lookup says.

use crate::{
    index::{Index, workload::WorkloadId},
    outbound::Lookup,
    testing::{World, egress, object, pod, route, server, service, to_server, to_service, with},
};
use linkerd_core::policy::{inbound::Server, outbound::Policy};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::watch;

/// Objects that can be applied, several versions of each.
fn objects() -> Vec<Value> {
    let authz = |name: &str, target: Value, refs: Value| {
        object(
            "policy.linkerd.io/v1alpha1",
            "AuthorizationPolicy",
            name,
            json!({"targetRef": target, "requiredAuthenticationRefs": refs}),
        )
    };
    let mesh = |identity: &str| {
        object(
            "policy.linkerd.io/v1alpha1",
            "MeshTLSAuthentication",
            "m",
            json!({"identities": [identity]}),
        )
    };
    let mesh_ref =
        json!([{"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "m"}]);
    let to_egress =
        json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 443});
    let backend = |name: &str| json!([{"backendRefs": [{"name": name, "port": 80}]}]);
    let to_network = |name: &str| json!([{"backendRefs": [{"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": name}]}]);
    let in_client = |object: Value| with(object, &[("/metadata/namespace", json!("client"))]);
    let limit = |rate: u32| {
        object(
            "policy.linkerd.io/v1alpha1",
            "HTTPLocalRateLimitPolicy",
            "l",
            json!({"targetRef": to_server("s"), "total": {"requestsPerSecond": rate}}),
        )
    };
    vec![
        pod("web"),
        with(
            pod("web"),
            &[(
                "/metadata/annotations",
                json!({"config.linkerd.io/default-inbound-policy": "deny"}),
            )],
        ),
        with(pod("web"), &[("/metadata/labels", json!({}))]),
        pod("db"),
        server("s", json!({})),
        server(
            "s",
            json!({"proxyProtocol": "HTTP/2", "podSelector": {"matchLabels": {"app": "web"}}}),
        ),
        server("t", json!({"port": "http", "accessPolicy": "audit"})),
        authz("a", to_server("s"), mesh_ref.clone()),
        authz("a", json!({"kind": "Namespace", "name": "shop"}), json!([])),
        authz(
            "b",
            json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "in"}),
            mesh_ref,
        ),
        mesh("x"),
        mesh("*"),
        limit(1),
        limit(2),
        route("HTTPRoute", "in", to_server("s"), json!([{}])),
        route(
            "HTTPRoute",
            "in",
            to_server("t"),
            json!([{"matches": [{"path": {"value": "/x"}}]}]),
        ),
        service("web", "10.1.0.1"),
        service("web", "10.1.0.2"),
        with(
            service("web", "10.1.0.1"),
            &[("/spec/ports", json!([{"port": 443}]))],
        ),
        with(
            service("web", "10.1.0.1"),
            &[(
                "/metadata/annotations",
                json!({"timeout.linkerd.io/request": "1s"}),
            )],
        ),
        service("db", "10.1.0.2"),
        service("db", "10.1.0.1"),
        route("HTTPRoute", "out", to_service("web"), backend("db")),
        route("HTTPRoute", "out", to_service("db"), backend("web")),
        route("policy", "out", to_service("web"), json!([{}])),
        route("GRPCRoute", "g", to_service("web"), backend("db")),
        route(
            "GRPCRoute",
            "g",
            with(to_service("web"), &[("/port", Value::Null)]),
            json!([{}]),
        ),
        route("TCPRoute", "c", to_service("web"), json!([{}])),
        route("TLSRoute", "c", to_egress.clone(), json!([{}])),
        in_client(route(
            "HTTPRoute",
            "consumer",
            with(to_service("web"), &[("/namespace", json!("shop"))]),
            json!([{}]),
        )),
        egress("out", json!({})),
        egress(
            "out",
            json!({"trafficPolicy": "Deny", "networks": [{"cidr": "1.1.1.1"}]}),
        ),
        in_client(egress("mine", json!({"networks": [{"cidr": "1.0.0.0/8"}]}))),
        with(
            egress("all", json!({})),
            &[("/metadata/namespace", json!("linkerd-egress"))],
        ),
        route("HTTPRoute", "eg", to_egress.clone(), json!([{}])),
        // Backends that may be there or not, and of a kind the parent may not want.
        route("HTTPRoute", "out", to_service("web"), to_network("out")),
        route("HTTPRoute", "eg", to_egress, to_network("other")),
        egress("other", json!({"networks": [{"cidr": "2.0.0.0/8"}]})),
        object(
            "policy.linkerd.io/v1beta1",
            "ServerAuthorization",
            "z",
            json!({"server": {"name": "s"}, "client": {"unauthenticated": true}}),
        ),
        object(
            "policy.linkerd.io/v1alpha1",
            "NetworkAuthentication",
            "n",
            json!({"networks": [{"cidr": "10.0.0.0/8"}]}),
        ),
        authz(
            "b",
            to_server("t"),
            json!([{"group": "policy.linkerd.io", "kind": "NetworkAuthentication", "name": "n"}]),
        ),
        object(
            "workload.linkerd.io/v1beta1",
            "ExternalWorkload",
            "vm",
            json!({
                "meshTLS": {"identity": "spiffe://td/vm", "serverName": "vm.td"},
                "ports": [{"name": "http", "port": 80}], "workloadIPs": [{"ip": "192.0.2.1"}],
            }),
        ),
        server(
            "t",
            json!({"podSelector": null, "externalWorkloadSelector": {}}),
        ),
        // Versions that make no sense.
        server("s", json!({"proxyProtocol": "quic"})),
        authz("a", json!({"kind": "Deployment", "name": "web"}), json!([])),
        with(mesh("x"), &[("/spec/identities", json!([]))]),
        egress("out", json!({"networks": [{"cidr": "nowhere"}]})),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Apply(usize),
    Delete(usize),
    /// The watch of the object's kind starts over and lists what is left of these.
    Relist(usize, Vec<usize>),
    Subscribe,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let count = objects().len();
    let step = prop_oneof![
        8 => (0..count).prop_map(Step::Apply),
        4 => (0..count).prop_map(Step::Delete),
        1 => (0..count, prop::collection::vec(0..count, 0..12)).prop_map(|(kind, list)| Step::Relist(kind, list)),
        2 => Just(Step::Subscribe),
    ];
    prop::collection::vec(step, 1..60)
}

/// What a client has seen of one stream.
struct Seen<T> {
    receiver: watch::Receiver<Arc<T>>,
    last: Arc<T>,
}

impl<T> Seen<T> {
    fn new(mut receiver: watch::Receiver<Arc<T>>) -> Self {
        let last = receiver.borrow_and_update().clone();
        Self { receiver, last }
    }

    /// Reads on; `false` when the stream ended.
    fn read(&mut self) -> bool {
        match self.receiver.has_changed() {
            Ok(true) => {
                self.last = self.receiver.borrow_and_update().clone();
                true
            }
            Ok(false) => true,
            Err(_) => false,
        }
    }
}

/// What a client asks about, and its stream while it has one.
type Client<K, T> = (K, Option<Seen<T>>);

/// Clients that look up again when their stream ends, as proxies do.
#[derive(Default)]
struct Clients {
    inbound: Vec<Client<(WorkloadId, u16), Server>>,
    outbound: Vec<Client<(&'static str, Lookup), Policy>>,
}

impl Clients {
    fn subscribe(&mut self, index: &mut Index) {
        if self.inbound.is_empty() {
            for (name, port) in [("web", 80), ("web", 81), ("db", 80)] {
                self.inbound
                    .push(((WorkloadId::pod("shop", name), port), None));
            }
            self.inbound
                .push(((WorkloadId::external("shop", "vm"), 80), None));
            for client in ["client", "shop"] {
                for addr in [
                    "10.1.0.1:80",
                    "10.1.0.2:80",
                    "10.1.0.1:443",
                    "1.1.1.1:443",
                    "9.9.9.9:443",
                ] {
                    self.outbound
                        .push(((client, Lookup::Addr(addr.parse().expect("addr"))), None));
                }
                self.outbound.push((
                    (
                        client,
                        Lookup::Service {
                            namespace: "shop".into(),
                            name: "web".into(),
                            port: 80,
                        },
                    ),
                    None,
                ));
            }
        }
        for ((workload, port), seen) in &mut self.inbound {
            if seen.is_none() {
                *seen = index.watch_inbound(workload.clone(), *port).map(Seen::new);
            }
        }
        for ((client, lookup), seen) in &mut self.outbound {
            if seen.is_none() {
                *seen = index.watch_outbound(client, lookup.clone()).map(Seen::new);
            }
        }
    }

    fn check(&mut self, index: &Index) {
        for ((workload, port), seen) in &mut self.inbound {
            let fresh = index.inbound_policy(workload, *port);
            match seen.as_mut().map(|seen| (seen.read(), seen.last.clone())) {
                Some((true, last)) => {
                    assert_eq!(Some(&*last), fresh.as_ref(), "{workload:?}:{port}")
                }
                Some((false, _)) => *seen = None,
                None => {}
            }
        }
        for ((client, lookup), seen) in &mut self.outbound {
            let fresh = index.outbound_policy(client, lookup);
            match seen.as_mut().map(|seen| (seen.read(), seen.last.clone())) {
                Some((true, last)) => {
                    assert_eq!(Some(&*last), fresh.as_ref(), "{client} {lookup:?}")
                }
                Some((false, _)) => *seen = None,
                None => {}
            }
        }
    }
}

fn same_kind(a: &Value, b: &Value) -> bool {
    a["kind"] == b["kind"] && a["apiVersion"] == b["apiVersion"]
}

/// What tells objects apart.
fn identity(object: &Value) -> [String; 4] {
    let text = |pointer: &str| {
        let text = object.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    [
        text("/apiVersion"),
        text("/kind"),
        text("/metadata/namespace"),
        text("/metadata/name"),
    ]
}

fn run(history: &[Step]) {
    let objects = objects();
    let mut world = World::new([]);
    let mut clients = Clients::default();
    let mut last: BTreeMap<[String; 4], Value> = BTreeMap::new();
    for step in history {
        match step {
            Step::Apply(which) => {
                world.apply(&objects[*which]);
                last.insert(identity(&objects[*which]), objects[*which].clone());
            }
            Step::Delete(which) => {
                world.delete(&objects[*which]);
                last.remove(&identity(&objects[*which]));
            }
            Step::Relist(kind, list) => {
                let kind = &objects[*kind];
                let listed: Vec<_> = list
                    .iter()
                    .map(|which| objects[*which].clone())
                    .filter(|object| same_kind(kind, object))
                    .collect();
                world.reset(kind, &listed);
                last.retain(|_, object| !same_kind(kind, object));
                last.extend(listed.into_iter().map(|object| (identity(&object), object)));
            }
            Step::Subscribe => clients.subscribe(&mut world.index),
        }
        clients.check(&world.index);
    }
    // Whatever happened, only what is there in the end counts: a process that starts now says
    // the same.
    let fresh = World::new(last.into_values());
    clients.subscribe(&mut world.index);
    for ((workload, port), _) in &clients.inbound {
        assert_eq!(
            world.index.inbound_policy(workload, *port),
            fresh.index.inbound_policy(workload, *port),
            "{workload:?}:{port}"
        );
    }
    for ((client, lookup), _) in &clients.outbound {
        assert_eq!(
            world.index.outbound_policy(client, lookup),
            fresh.index.outbound_policy(client, lookup),
            "{client} {lookup:?}"
        );
    }
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(
        world.index.status_patches(now),
        fresh.index.status_patches(now)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streams_are_never_stale(history in steps()) {
        run(&history);
    }

    /// The order in which kinds and objects arrive makes no difference in the end.
    #[test]
    fn the_order_of_arrival_does_not_matter(order in Just((0..objects().len()).collect::<Vec<_>>()).prop_shuffle()) {
        let objects = objects();
        // One version of each object.
        let mut chosen: Vec<usize> = Vec::new();
        for which in 0..objects.len() {
            let same = |other: &usize| {
                let (a, b) = (&objects[*other], &objects[which]);
                same_kind(a, b) && a["metadata"]["name"] == b["metadata"]["name"] && a["metadata"]["namespace"] == b["metadata"]["namespace"]
            };
            if !chosen.iter().any(same) {
                chosen.push(which);
            }
        }
        let in_order = World::new(chosen.iter().map(|which| objects[*which].clone()));
        let shuffled = World::new(order.iter().filter(|which| chosen.contains(which)).map(|which| objects[*which].clone()));
        for port in [80, 81] {
            prop_assert_eq!(in_order.inbound("web", port), shuffled.inbound("web", port));
        }
        for addr in ["10.1.0.1:80", "10.1.0.2:80", "1.1.1.1:443"] {
            prop_assert_eq!(in_order.outbound("client", addr), shuffled.outbound("client", addr));
        }
    }
}
