//! The index with objects and no cluster: endpoints, one file per section of what is promised.

use linkerd_api::proto::destination as pb;
use linkerd_k8s::{
    EndpointSlice, Endpoints, ExternalWorkload, Index as _, Job, Key, Node, Pod, ReplicaSet,
    Service, policy::Server,
};
use prost::Message;
use serde_json::{Value, json};

use crate::{
    Discovery, Metrics, ObjectId, Wire,
    config::{Config, Http2Params},
    fixture::*,
    grpc::frame::PREFIX,
    stream::{Client, EndpointsStream, Next},
};

mod external;
mod filters;
mod opacity;
mod pods;
mod profile;
mod random;
mod sources;
mod updates;

/// An index and what its streams are encoded with.
pub(super) struct World {
    pub(super) discovery: Discovery,
    pub(super) wire: Wire,
}

/// A client of a stream of endpoints.
pub(super) struct Subscriber {
    stream: EndpointsStream,
    pub(super) seen: Replay,
    pub(super) ended: bool,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(super) fn with(config: Config) -> Self {
        let wire = Wire::new(&config);
        Self {
            discovery: Discovery::new(config, Metrics::default()),
            wire,
        }
    }

    /// Applies an object; its fields tell its kind.
    pub(super) fn apply(&self, kind: &str, json: Value) {
        let mut index = self.discovery.index().lock();
        match kind {
            "Pod" => index.apply(object::<Pod>(json)),
            "Service" => index.apply(object::<Service>(json)),
            "EndpointSlice" => index.apply(object::<EndpointSlice>(json)),
            "Endpoints" => index.apply(object::<Endpoints>(json)),
            "Server" => index.apply(object::<Server>(json)),
            "ExternalWorkload" => index.apply(object::<ExternalWorkload>(json)),
            "ReplicaSet" => index.apply(object::<ReplicaSet>(json)),
            "Job" => index.apply(object::<Job>(json)),
            "Node" => index.apply(object::<Node>(json)),
            "ServiceProfile" => index.apply(object::<linkerd_k8s::ServiceProfile>(json)),
            other => panic!("unknown kind {other}"),
        }
    }

    pub(super) fn delete(&self, kind: &str, name: &str) {
        let key = Key::new("ns", name);
        let mut index = self.discovery.index().lock();
        let index = &mut *index;
        match kind {
            "Pod" => linkerd_k8s::Index::<Pod>::delete(index, &key),
            "Service" => linkerd_k8s::Index::<Service>::delete(index, &key),
            "EndpointSlice" => linkerd_k8s::Index::<EndpointSlice>::delete(index, &key),
            "Server" => linkerd_k8s::Index::<Server>::delete(index, &key),
            "ExternalWorkload" => linkerd_k8s::Index::<ExternalWorkload>::delete(index, &key),
            "ReplicaSet" => linkerd_k8s::Index::<ReplicaSet>::delete(index, &key),
            "ServiceProfile" => {
                linkerd_k8s::Index::<linkerd_k8s::ServiceProfile>::delete(index, &key)
            }
            "Node" => linkerd_k8s::Index::<Node>::delete(index, &Key::new("", name)),
            other => panic!("unknown kind {other}"),
        }
    }

    pub(super) fn subscribe(
        &self,
        port: u16,
        hostname: Option<&str>,
        node: Option<&str>,
    ) -> Subscriber {
        self.subscribe_as(
            port,
            Client {
                hostname: hostname.map(Into::into),
                node: node.map(Into::into),
                anywhere: false,
            },
        )
    }

    pub(super) fn subscribe_as(&self, port: u16, client: Client) -> Subscriber {
        let zones = self.discovery.zones();
        let stream = self
            .discovery
            .endpoints(&ObjectId::new("ns", "web"), port, client, zones);
        let mut subscriber = Subscriber {
            stream,
            seen: Replay::default(),
            ended: false,
        };
        subscriber.catch_up(&self.wire);
        subscriber
    }

    /// What a new client of port 80 sees.
    pub(super) fn get(&self) -> Replay {
        self.subscribe(80, None, None).seen
    }
}

impl Subscriber {
    /// Reads what there is to read; answers how many messages that were.
    pub(super) fn catch_up(&mut self, wire: &Wire) -> usize {
        self.read(wire).len()
    }

    /// Reads what there is to read.
    fn read(&mut self, wire: &Wire) -> Vec<pb::Update> {
        match self.stream.next(wire) {
            Next::Send(messages) => {
                let messages = messages
                    .iter()
                    .map(|bytes| pb::Update::decode(bytes.slice(PREFIX..)).expect("a message"));
                let messages: Vec<_> = messages.collect();
                for message in messages.clone() {
                    self.seen.update(message);
                }
                messages
            }
            Next::Wait => Vec::new(),
            Next::End => {
                self.ended = true;
                Vec::new()
            }
        }
    }
}

/// Service, one slice and one pod.
pub(super) fn simple() -> World {
    let world = World::new();
    world.apply("Service", service("10.0.0.1"));
    world.apply("EndpointSlice", slice("web-1", &[to_pod("a", "10.1.0.1")]));
    world.apply("Pod", pod("a", "10.1.0.1"));
    world
}

const IDENTITY: &str = "sa.ns.serviceaccount.identity.linkerd.cluster.local";

fn meshed(rest: &str) -> String {
    rest.replace("ID", &format!("dns={IDENTITY} sni={IDENTITY}"))
}
