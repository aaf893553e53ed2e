//! A cluster in a test: objects as JSON go into an index, policies come out.

use linkerd_core::policy::{inbound::Server, outbound::Policy};
use linkerd_k8s::{ExternalWorkload, Index as _, Key, Pod, Service, policy as k8s};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::{
    cluster::{Cluster, tests::cluster},
    index::{Index, Stored, workload::WorkloadId},
    outbound::Lookup,
};

/// An index that takes objects as JSON.
pub(crate) struct World {
    pub(crate) index: Index,
}

/// Calls `$body` with `$kind` as the type of an object.
macro_rules! of_kind {
    ($object:expr, $kind:ident => $body:expr) => {{
        let group = $object["apiVersion"]
            .as_str()
            .expect("apiVersion")
            .split_once('/')
            .map_or("", |(group, _)| group);
        match (group, $object["kind"].as_str().expect("kind")) {
            ("", "Pod") => {
                type $kind = Pod;
                $body
            }
            ("", "Service") => {
                type $kind = Service;
                $body
            }
            ("workload.linkerd.io", "ExternalWorkload") => {
                type $kind = ExternalWorkload;
                $body
            }
            ("policy.linkerd.io", "Server") => {
                type $kind = k8s::Server;
                $body
            }
            ("policy.linkerd.io", "ServerAuthorization") => {
                type $kind = k8s::ServerAuthorization;
                $body
            }
            ("policy.linkerd.io", "AuthorizationPolicy") => {
                type $kind = k8s::AuthorizationPolicy;
                $body
            }
            ("policy.linkerd.io", "MeshTLSAuthentication") => {
                type $kind = k8s::MeshTLSAuthentication;
                $body
            }
            ("policy.linkerd.io", "NetworkAuthentication") => {
                type $kind = k8s::NetworkAuthentication;
                $body
            }
            ("policy.linkerd.io", "HTTPLocalRateLimitPolicy") => {
                type $kind = k8s::HTTPLocalRateLimitPolicy;
                $body
            }
            ("policy.linkerd.io", "EgressNetwork") => {
                type $kind = k8s::EgressNetwork;
                $body
            }
            ("policy.linkerd.io", "HTTPRoute") => {
                type $kind = k8s::PolicyHttpRoute;
                $body
            }
            ("gateway.networking.k8s.io", "HTTPRoute") => {
                type $kind = k8s::HttpRoute;
                $body
            }
            ("gateway.networking.k8s.io", "GRPCRoute") => {
                type $kind = k8s::GrpcRoute;
                $body
            }
            ("gateway.networking.k8s.io", "TLSRoute") => {
                type $kind = k8s::TlsRoute;
                $body
            }
            ("gateway.networking.k8s.io", "TCPRoute") => {
                type $kind = k8s::TcpRoute;
                $body
            }
            other => panic!("no such kind: {other:?}"),
        }
    }};
}

pub(crate) fn read<T: DeserializeOwned>(object: &Value) -> Arc<T> {
    Arc::new(serde_json::from_value(object.clone()).expect("an object of its kind"))
}

fn key(object: &Value) -> Key {
    let field = |name: &str| object["metadata"][name].as_str().expect("named").to_owned();
    Key::new(field("namespace"), field("name"))
}

impl World {
    pub(crate) fn new(objects: impl IntoIterator<Item = Value>) -> Self {
        Self::in_cluster(cluster(), objects)
    }

    pub(crate) fn in_cluster(cluster: Cluster, objects: impl IntoIterator<Item = Value>) -> Self {
        let mut world = Self {
            index: Index::new(cluster),
        };
        for object in objects {
            world.apply(&object);
        }
        world
    }

    pub(crate) fn apply(&mut self, object: &Value) {
        of_kind!(object, T => self.index.apply(read::<T>(object)));
    }

    pub(crate) fn delete(&mut self, object: &Value) {
        fn delete<T: Stored>(index: &mut Index, key: &Key) {
            linkerd_k8s::Index::<T>::delete(index, key);
        }
        of_kind!(object, T => delete::<T>(&mut self.index, &key(object)));
    }

    /// Lists a kind anew; `example` says which.
    pub(crate) fn reset(&mut self, example: &Value, objects: &[Value]) {
        of_kind!(example, T => self.index.reset(objects.iter().map(read::<T>).collect()));
    }

    pub(crate) fn inbound(&self, pod: &str, port: u16) -> Server {
        self.index
            .inbound_policy(&WorkloadId::pod("shop", pod), port)
            .expect("a known pod")
    }

    pub(crate) fn outbound(&self, client: &str, addr: &str) -> Option<Policy> {
        self.index
            .outbound_policy(client, &Lookup::Addr(addr.parse().expect("address")))
    }
}

/// An object with a spec.
pub(crate) fn object(api_version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"namespace": "shop", "name": name, "creationTimestamp": "2025-01-01T00:00:00Z", "generation": 1},
        "spec": spec,
    })
}

/// Changes fields of an object, by JSON pointer.
pub(crate) fn with(mut object: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        let mut at = &mut object;
        for step in parent.split('/').filter(|step| !step.is_empty()) {
            let step = step.replace("~1", "/");
            at = match step.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[step],
            };
        }
        at[field.replace("~1", "/")] = value.clone();
    }
    object
}

pub(crate) fn created(object: Value, at: &str) -> Value {
    with(object, &[("/metadata/creationTimestamp", json!(at))])
}

pub(crate) fn pod(name: &str) -> Value {
    let mut pod = object(
        "v1",
        "Pod",
        name,
        json!({"containers": [{"name": "app", "ports": [
            {"containerPort": 80, "name": "http"},
            {"containerPort": 81, "name": "other"},
            {"containerPort": 53, "name": "http", "protocol": "UDP"},
        ]}]}),
    );
    pod["metadata"]["labels"] = json!({"app": name, "linkerd.io/control-plane-ns": "linkerd"});
    pod
}

pub(crate) fn server(name: &str, spec: Value) -> Value {
    let mut server = object(
        "policy.linkerd.io/v1beta3",
        "Server",
        name,
        json!({"podSelector": {}, "port": 80}),
    );
    for (field, value) in spec.as_object().expect("fields") {
        server["spec"][field] = value.clone();
    }
    server
}

pub(crate) fn service(name: &str, ip: &str) -> Value {
    object(
        "v1",
        "Service",
        name,
        json!({
            "clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}, {"port": 8080}, {"port": 3306}],
        }),
    )
}

pub(crate) fn egress(name: &str, spec: Value) -> Value {
    let mut network = object(
        "policy.linkerd.io/v1alpha1",
        "EgressNetwork",
        name,
        json!({"trafficPolicy": "Allow"}),
    );
    for (field, value) in spec.as_object().expect("fields") {
        network["spec"][field] = value.clone();
    }
    network
}

/// A route of a kind to a parent.
pub(crate) fn route(kind: &str, name: &str, parent: Value, rules: Value) -> Value {
    let version = match kind {
        "HTTPRoute" | "GRPCRoute" => "gateway.networking.k8s.io/v1",
        "TLSRoute" | "TCPRoute" => "gateway.networking.k8s.io/v1alpha2",
        _ => "policy.linkerd.io/v1beta3",
    };
    let kind = if kind == "policy" { "HTTPRoute" } else { kind };
    object(
        version,
        kind,
        name,
        json!({"parentRefs": [parent], "rules": rules}),
    )
}

pub(crate) fn to_service(name: &str) -> Value {
    json!({"group": "core", "kind": "Service", "name": name, "port": 80})
}

pub(crate) fn to_server(name: &str) -> Value {
    json!({"group": "policy.linkerd.io", "kind": "Server", "name": name})
}
