//! Whatever happens to the objects, in whatever order, and however often a client reads: what a
//! client has put together equals what a new client is told.

use std::sync::Arc;

use linkerd_api::proto::destination as pb;
use linkerd_k8s::{
    EndpointSlice, ExternalWorkload, Index as _, Node, Pod, ReplicaSet, Service, policy::Server,
};
use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};

use super::{Subscriber, World};
use crate::{
    ObjectId,
    config::Config,
    fixture::*,
    grpc::frame::PREFIX,
    stream::{AtAddress, Next, ProfileStream},
};

const KINDS: [&str; 8] = [
    "Pod",
    "Service",
    "EndpointSlice",
    "Server",
    "ReplicaSet",
    "Node",
    "ServiceProfile",
    "ExternalWorkload",
];

/// One thing that happens. Numbers choose among a few names and shapes, so that histories collide.
#[derive(Clone, Debug)]
enum Step {
    Apply {
        kind: usize,
        name: u8,
        shape: u8,
    },
    Delete {
        kind: usize,
        name: u8,
    },
    /// A watch starts over; `kept` says which names are still there.
    Reset {
        kind: usize,
        kept: u8,
        shape: u8,
    },
    /// The client reads.
    Read {
        client: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let kind = 0..KINDS.len();
    prop_oneof![
        6 => (kind.clone(), 0..4u8, any::<u8>()).prop_map(|(kind, name, shape)| Step::Apply { kind, name, shape }),
        2 => (kind.clone(), 0..4u8).prop_map(|(kind, name)| Step::Delete { kind, name }),
        1 => (kind, any::<u8>(), any::<u8>()).prop_map(|(kind, kept, shape)| Step::Reset { kind, kept, shape }),
        2 => (0..4u8).prop_map(|client| Step::Read { client }),
    ]
}

fn make(kind: &str, name: u8, shape: u8) -> Value {
    let bit = |n: u8| shape >> n & 1 == 1;
    match kind {
        "Pod" => {
            let ip = format!("10.1.0.{}", if bit(0) { name } else { name + 10 });
            let mut object = if bit(1) {
                pod(&format!("p{name}"), &ip)
            } else {
                plain_pod(&format!("p{name}"), &ip)
            };
            if bit(2) {
                object = with(
                    object,
                    json!({"metadata": {"ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("r{}", shape % 4), "uid": "1"}]}}),
                );
            }
            if bit(3) {
                object = with(object, json!({"metadata": {"labels": {"app": "other"}}}));
            }
            if bit(4) {
                object = with(
                    object,
                    json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Failed"}}),
                );
            }
            object
        }
        "Service" => {
            // Name 0 is the one that is watched.
            let id = if name == 0 {
                "web".to_owned()
            } else {
                format!("s{name}")
            };
            let mut object = with(
                service(&format!("10.0.0.{}", shape % 3)),
                json!({"metadata": {"name": id}}),
            );
            if bit(3) {
                object = with(object, json!({"spec": {"internalTrafficPolicy": "Local"}}));
            }
            if bit(4) {
                object = with(
                    object,
                    json!({"spec": {"ports": [{"name": "admin", "port": 80}]}}),
                );
            }
            object
        }
        "EndpointSlice" => {
            let mut endpoints = Vec::new();
            for n in 0..4u8 {
                if bit(n) {
                    let ip = format!("10.1.0.{}", if bit(4) { n } else { n + 10 });
                    let mut endpoint = if n == 3 {
                        to_external("x3", "10.2.0.3")
                    } else {
                        to_pod(&format!("p{n}"), &ip)
                    };
                    endpoint = with(endpoint, json!({"hostname": format!("h{}", n % 2)}));
                    if bit(5) {
                        let zone = if n % 2 == 0 { "east" } else { "west" };
                        endpoint = with(
                            endpoint,
                            json!({"zone": zone, "hints": {"forZones": [{"name": zone}]}}),
                        );
                    }
                    if bit(6) && n == 1 {
                        endpoint = with(endpoint, json!({"conditions": {"ready": false}}));
                    }
                    endpoints.push(endpoint);
                }
            }
            let object = slice(&format!("e{name}"), &endpoints);
            if bit(7) {
                return with(
                    object,
                    json!({"ports": [{"name": "http", "port": 9090}, {"name": "admin", "port": 9000}]}),
                );
            }
            object
        }
        "Server" => {
            let port = if bit(0) { json!(8080) } else { json!("http") };
            let object = opaque_server(&format!("v{name}"), port);
            if bit(1) {
                with(object, json!({"spec": {"proxyProtocol": "HTTP/1"}}))
            } else {
                object
            }
        }
        "ReplicaSet" => {
            json!({"metadata": {"namespace": "ns", "name": format!("r{name}"), "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("d{}", shape % 2), "uid": "1"}]}})
        }
        "Node" => node(&format!("n{name}"), if bit(0) { "east" } else { "west" }),
        "ServiceProfile" => {
            let id = if name == 0 {
                "web.ns.svc.cluster.local".to_owned()
            } else {
                format!("x{name}.ns.svc.cluster.local")
            };
            let condition = if bit(0) {
                json!({"method": "GET"})
            } else {
                json!({"pathRegex": "/"})
            };
            json!({"metadata": {"namespace": "ns", "name": id},
                "spec": {"routes": [{"name": "r", "condition": condition}]}})
        }
        "ExternalWorkload" => {
            let ip = format!("10.2.0.{}", if bit(0) { name } else { name + 10 });
            let mut object = external_workload(&format!("x{name}"), &ip);
            if bit(1) {
                object = with(
                    object,
                    json!({"spec": {"meshTLS": {"identity": "spiffe://td/other", "serverName": "other.td"}}}),
                );
            }
            if bit(2) {
                object = with(
                    object,
                    json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "8080"}}}),
                );
            }
            object
        }
        other => panic!("{other}"),
    }
}

fn name_of(kind: &str, name: u8) -> String {
    let object = make(kind, name, 0);
    object["metadata"]["name"]
        .as_str()
        .expect("a name")
        .to_owned()
}

fn run(world: &World, clients: &mut [Subscriber], step: &Step) {
    match step {
        Step::Apply { kind, name, shape } => {
            world.apply(KINDS[*kind], make(KINDS[*kind], *name, *shape))
        }
        Step::Delete { kind, name } => world.delete(KINDS[*kind], &name_of(KINDS[*kind], *name)),
        Step::Reset { kind, kept, shape } => {
            let kind = KINDS[*kind];
            let names = (0..4u8).filter(|name| kept >> name & 1 == 1);
            let objects: Vec<Value> = names
                .map(|name| make(kind, name, shape.wrapping_mul(name + 1)))
                .collect();
            reset(world, kind, objects);
        }
        Step::Read { client } => {
            let at = usize::from(*client) % clients.len();
            clients[at].catch_up(&world.wire);
        }
    }
}

fn reset(world: &World, kind: &str, objects: Vec<Value>) {
    fn all<T: serde::de::DeserializeOwned>(objects: Vec<Value>) -> Vec<Arc<T>> {
        objects.into_iter().map(object).collect()
    }
    let mut index = world.discovery.index().lock();
    match kind {
        "Pod" => index.reset(all::<Pod>(objects)),
        "Service" => index.reset(all::<Service>(objects)),
        "EndpointSlice" => index.reset(all::<EndpointSlice>(objects)),
        "Server" => index.reset(all::<Server>(objects)),
        "ReplicaSet" => index.reset(all::<ReplicaSet>(objects)),
        "Node" => index.reset(all::<Node>(objects)),
        "ServiceProfile" => index.reset(all::<linkerd_k8s::ServiceProfile>(objects)),
        "ExternalWorkload" => index.reset(all::<ExternalWorkload>(objects)),
        other => panic!("{other}"),
    }
}

/// How the clients of a test ask: port, node.
const ASKED: [(u16, Option<&str>); 4] =
    [(80, None), (80, Some("n0")), (80, Some("n1")), (8080, None)];

/// What clients of profiles ask for.
#[derive(Clone, Copy)]
enum Asked {
    Service,
    Instance(&'static str),
    Address(&'static str),
}

/// A client of a profile. When its stream ends it asks again, as a proxy does.
struct ProfileClient {
    asked: Asked,
    stream: Option<ProfileStream>,
    seen: Option<pb::DestinationProfile>,
}

impl ProfileClient {
    fn new(asked: Asked) -> Self {
        Self {
            asked,
            stream: None,
            seen: None,
        }
    }

    fn ask(&self, world: &World) -> Option<ProfileStream> {
        let web = ObjectId::new("ns", "web");
        match self.asked {
            Asked::Instance(hostname) => world.discovery.instance(&web, hostname, 8080),
            Asked::Address(ip) => match world
                .discovery
                .address(ip.parse().expect("an address"), 8080)
            {
                AtAddress::Profile(stream) => Some(stream),
                AtAddress::Service(_) | AtAddress::Conflict(_) => None,
            },
            Asked::Service => world
                .discovery
                .service_profile(&web, 80, None, Some("ns"))
                .ok(),
        }
    }

    fn catch_up(&mut self, world: &World) {
        for _ in 0..3 {
            let Some(stream) = &mut self.stream else {
                self.stream = self.ask(world);
                self.seen = None;
                continue;
            };
            match stream.next(|profile| world.wire.profile(profile)) {
                Next::Send(messages) => {
                    let [bytes] = messages.as_slice() else {
                        panic!("one message")
                    };
                    self.seen = Some(
                        pb::DestinationProfile::decode(bytes.slice(PREFIX..)).expect("a message"),
                    );
                }
                Next::Wait => return,
                Next::End => self.stream = None,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_replayed_stream_equals_a_fresh_one(steps in prop::collection::vec(step(), 1..60)) {
        let world = World::with(Config { zone_weights: true, ..Config::default() });
        let mut clients: Vec<_> = ASKED.iter().map(|(port, node)| world.subscribe(*port, None, *node)).collect();
        for step in &steps {
            run(&world, &mut clients, step);
        }
        for (client, (port, node)) in clients.iter_mut().zip(ASKED) {
            client.catch_up(&world.wire);
            let fresh = world.subscribe(port, None, node).seen;
            prop_assert_eq!(&client.seen.endpoints, &fresh.endpoints);
            prop_assert_eq!(client.seen.exists.unwrap_or(true), fresh.exists.unwrap_or(true));
            if !fresh.endpoints.is_empty() {
                prop_assert_eq!(&client.seen.set_labels, &fresh.set_labels);
            }
        }
    }

    #[test]
    fn a_followed_profile_equals_a_fresh_one(steps in prop::collection::vec(step(), 1..60)) {
        let world = World::new();
        let addresses = ["10.1.0.1", "10.2.0.13", "10.0.0.1", "10.1.0.12", "10.2.0.3"];
        let others = [Asked::Service, Asked::Instance("h0"), Asked::Instance("h1")];
        let asked: Vec<_> = others.into_iter().chain(addresses.map(Asked::Address)).collect();
        let mut clients: Vec<_> = asked.iter().copied().map(ProfileClient::new).collect();
        for step in &steps {
            match step {
                Step::Read { client } => clients[usize::from(*client)].catch_up(&world),
                other => run(&world, &mut [], other),
            }
        }
        for (client, asked) in clients.iter_mut().zip(asked) {
            client.catch_up(&world);
            let mut fresh = ProfileClient::new(asked);
            fresh.catch_up(&world);
            // Whoever had an instance that is gone keeps its address; whoever asks now is refused.
            if fresh.seen.is_some() || !matches!(asked, Asked::Instance(_)) {
                prop_assert_eq!(&client.seen, &fresh.seen);
            }
        }
    }

    /// The order in which objects of different kinds arrive does not matter.
    #[test]
    fn the_end_of_the_story_is_all_that_counts(
        steps in prop::collection::vec(step(), 1..60),
        order in Just((0..KINDS.len()).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let world = World::new();
        let mut last: std::collections::BTreeMap<(usize, String), Value> = Default::default();
        for step in &steps {
            run(&world, &mut [world.subscribe(80, None, None)], step);
            match step {
                Step::Apply { kind, name, shape } => {
                    let name_text = name_of(KINDS[*kind], *name);
                    last.insert((*kind, name_text), make(KINDS[*kind], *name, *shape));
                }
                Step::Delete { kind, name } => {
                    last.remove(&(*kind, name_of(KINDS[*kind], *name)));
                }
                Step::Reset { kind, kept, shape } => {
                    last.retain(|(of, _), _| of != kind);
                    for name in (0..4u8).filter(|name| kept >> name & 1 == 1) {
                        let object = make(KINDS[*kind], name, shape.wrapping_mul(name + 1));
                        last.insert((*kind, name_of(KINDS[*kind], name)), object);
                    }
                }
                Step::Read { .. } => {}
            }
        }
        let retold = World::new();
        for kind in order {
            for ((of, _), object) in &last {
                if *of == kind {
                    retold.apply(KINDS[kind], object.clone());
                }
            }
        }
        for (port, node) in ASKED {
            let (seen, retold) = (world.subscribe(port, None, node).seen, retold.subscribe(port, None, node).seen);
            prop_assert_eq!(seen.endpoints, retold.endpoints);
        }
    }
}
