//! Objects for tests, as short as they can be, and a client that replays a stream. Shared by unit
//! tests, process tests and benchmarks.

#![allow(dead_code, unreachable_pub, reason = "each user takes what it needs")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use linkerd_api::proto::destination::{
    self as pb, protocol_hint::Protocol, tls_identity::Strategy,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub fn object<T: DeserializeOwned>(json: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(json).expect("shape of the kind"))
}

/// `value` with the fields of `with` put over it; `null` takes a field away.
pub fn with(mut value: Value, with: Value) -> Value {
    merge(&mut value, with);
    value
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.shift_remove(&key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, from) => *into = from,
    }
}

/// A running, meshed pod of namespace `ns`, serving 8080 as `http`.
pub fn pod(name: &str, ip: &str) -> Value {
    with(
        plain_pod(name, ip),
        json!({
            "metadata": {"labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"containers": [
                {"name": "app", "ports": [{"containerPort": 8080, "name": "http"}]},
                proxy_container(),
            ]},
        }),
    )
}

/// A running pod without a proxy.
pub fn plain_pod(name: &str, ip: &str) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": name, "labels": {"app": "web"}},
        "spec": {
            "nodeName": "node-1",
            "serviceAccountName": "sa",
            "containers": [{"name": "app", "ports": [{"containerPort": 8080, "name": "http"}]}],
        },
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "192.168.0.1"},
    })
}

pub fn proxy_container() -> Value {
    json!({"name": "linkerd-proxy", "env": [
        {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
        {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
        {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "0.0.0.0:4190"},
        {"name": "OTHER", "value": "x"},
    ]})
}

/// Service `web` with port 80 named `http`.
pub fn service(ip: &str) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "web"},
        "spec": {
            "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    })
}

/// A slice of Service `web` whose port `http` is 8080, with these endpoints.
pub fn slice(name: &str, endpoints: &[Value]) -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    })
}

/// An endpoint that refers to a pod of `ns`.
pub fn to_pod(name: &str, ip: &str) -> Value {
    json!({
        "addresses": [ip],
        "conditions": {"ready": true},
        "targetRef": {"kind": "Pod", "namespace": "ns", "name": name},
    })
}

pub fn to_external(name: &str, ip: &str) -> Value {
    json!({
        "addresses": [ip],
        "conditions": {"ready": true},
        "targetRef": {"kind": "ExternalWorkload", "namespace": "ns", "name": name},
    })
}

pub fn external_workload(name: &str, ip: &str) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": name, "labels": {"app": "vm"}},
        "spec": {
            "meshTLS": {"identity": "spiffe://td/vm", "serverName": "vm.td"},
            "ports": [{"name": "http", "port": 8080}],
            "workloadIPs": [{"ip": ip}],
        },
    })
}

/// A Server that makes a port of the pods with `app: web` opaque.
pub fn opaque_server(name: &str, port: Value) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": port, "proxyProtocol": "opaque"},
    })
}

pub fn node(name: &str, zone: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}})
}

/// What a proxy makes of a stream of updates.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    pub endpoints: BTreeMap<SocketAddr, pb::WeightedAddr>,
    pub set_labels: BTreeMap<String, String>,
    pub exists: Option<bool>,
    pub started: bool,
}

impl Replay {
    pub fn update(&mut self, update: pb::Update) {
        let addr = |addr: pb::WeightedAddr| {
            let socket = addr
                .addr
                .expect("an address")
                .try_into()
                .expect("a socket address");
            (socket, addr)
        };
        match update.update.expect("a kind of update") {
            pb::update::Update::Add(set) => {
                self.set_labels = set.metric_labels.into_iter().collect();
                // The first set of a stream replaces what was known before.
                if !std::mem::replace(&mut self.started, true) {
                    self.endpoints.clear();
                }
                assert!(!set.addrs.is_empty(), "an empty addition says nothing");
                self.endpoints.extend(set.addrs.into_iter().map(addr));
                self.exists = Some(true);
            }
            pb::update::Update::Remove(set) => {
                assert!(self.started, "nothing to remove before the first set");
                for addr in set.addrs {
                    let addr: SocketAddr = addr.try_into().expect("a socket address");
                    assert!(
                        self.endpoints.remove(&addr).is_some(),
                        "{addr} was never added"
                    );
                }
            }
            pb::update::Update::NoEndpoints(none) => {
                self.started = true;
                self.endpoints.clear();
                self.exists = Some(none.exists);
            }
        }
    }

    /// One line per endpoint.
    pub fn lines(&self) -> Vec<String> {
        self.endpoints.values().map(line).collect()
    }

    pub fn addresses(&self) -> BTreeSet<String> {
        self.endpoints.keys().map(ToString::to_string).collect()
    }
}

/// An endpoint in one line: address, weight if unusual, hint, transport, identity, override,
/// HTTP/2 settings.
pub fn line(endpoint: &pb::WeightedAddr) -> String {
    let addr: SocketAddr = endpoint
        .addr
        .expect("an address")
        .try_into()
        .expect("a socket address");
    let mut line = addr.to_string();
    if endpoint.weight != 10_000 {
        line += &format!(" weight={}", endpoint.weight);
    }
    if let Some(hint) = &endpoint.protocol_hint {
        line += match hint.protocol {
            None => " hint=none",
            Some(Protocol::H2(_)) => " hint=h2",
            Some(Protocol::Opaque(_)) => " hint=opaque",
        };
        if let Some(transport) = hint.opaque_transport {
            line += &format!(" transport={}", transport.inbound_port);
        }
    }
    if let Some(identity) = &endpoint.tls_identity {
        match identity.strategy.as_ref().expect("a strategy") {
            Strategy::DnsLikeIdentity(dns) => line += &format!(" dns={}", dns.name),
            Strategy::UriLikeIdentity(uri) => line += &format!(" uri={}", uri.uri),
        }
        if let Some(name) = &identity.server_name {
            line += &format!(" sni={}", name.name);
        }
    }
    if let Some(authority) = &endpoint.authority_override {
        line += &format!(" authority={}", authority.authority_override);
    }
    if endpoint.http2.is_some() {
        line += " http2";
    }
    line
}

/// The labels of an endpoint in one line, sorted.
pub fn labels(endpoint: &pb::WeightedAddr) -> String {
    let sorted: BTreeMap<_, _> = endpoint.metric_labels.iter().collect();
    sorted
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(" ")
}
