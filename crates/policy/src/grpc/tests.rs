//! Whole messages as they travel, against golden files.

use super::{inbound, outbound};
use crate::{
    cluster::tests::cluster,
    index::workload::WorkloadId,
    outbound::Lookup,
    testing::{World, egress, object, pod, route, server, service, to_server, to_service, with},
};
use serde_json::{Value, json};
use std::{fmt::Debug, fs, path::Path};

/// Compares with a golden file, or writes it when UPDATE_GOLDEN is set.
fn golden(name: &str, message: &impl Debug) {
    let text = compact(&sorted_maps(&format!("{message:#?}\n")));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(&path, &text).expect("writable");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{text}",
        path.display()
    );
}

/// Puts the entries of maps, which come in any order, in order.
fn sorted_maps(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        if lines[at].ends_with("labels: {") {
            let end = at
                + lines[at..]
                    .iter()
                    .position(|line| line.trim_start() == "},")
                    .expect("an end");
            lines[at + 1..end].sort_unstable();
            at = end;
        }
        at += 1;
    }
    lines.join("\n") + "\n"
}

/// Leaves out the wrappers that optional fields and oneofs have in Rust, and indents by braces.
fn compact(text: &str) -> String {
    let mut shown = String::new();
    let mut depth = 0usize;
    let mut carried = String::new();
    for line in text.lines().map(str::trim) {
        if line.trim_end_matches(',') == ")" {
            continue;
        }
        let line = format!("{carried}{}", line.replace("Some(", ""));
        // `Name(` and the value inside go on one line.
        if let Some(opened) = line.strip_suffix('(') {
            carried = format!("{opened} ");
            continue;
        }
        if line.ends_with(' ') || line.ends_with(": ") {
            carried = line;
            continue;
        }
        carried.clear();
        if line.starts_with(['}', ']']) {
            depth = depth.saturating_sub(1);
        }
        shown.push_str(&"  ".repeat(depth));
        shown.push_str(line.trim_end_matches(','));
        shown.push('\n');
        if line.ends_with(['{', '[']) {
            depth += 1;
        }
    }
    shown
}

fn inbound_golden(name: &str, objects: Vec<Value>) {
    let mut cluster = cluster();
    cluster.probe_networks = vec![
        "0.0.0.0/0".parse().expect("net"),
        "::/0".parse().expect("net"),
    ];
    let world = World::in_cluster(cluster, objects);
    let server = world
        .index
        .inbound_policy(&WorkloadId::pod("shop", "web"), 80)
        .expect("known");
    golden(name, &inbound::encode(&server));
}

fn outbound_golden(name: &str, addr: &str, objects: Vec<Value>) {
    let world = World::new(objects);
    let lookup = Lookup::Addr(addr.parse().expect("addr"));
    let policy = world.index.outbound_policy("shop", &lookup).expect("found");
    golden(name, &outbound::encode(&policy));
}

fn annotated(object: Value, annotations: Value) -> Value {
    with(object, &[("/metadata/annotations", annotations)])
}

#[test]
fn inbound_messages() {
    for policy in [
        "all-unauthenticated",
        "all-authenticated",
        "cluster-unauthenticated",
        "cluster-authenticated",
        "deny",
        "audit",
    ] {
        let annotation = json!({"config.linkerd.io/default-inbound-policy": policy});
        inbound_golden(
            &format!("inbound-default-{policy}"),
            vec![annotated(pod("web"), annotation)],
        );
    }
    let probed = with(
        pod("web"),
        &[(
            "/spec/containers/0/livenessProbe",
            json!({"httpGet": {"path": "/live", "port": 80}}),
        )],
    );
    inbound_golden("inbound-probes", vec![probed]);
    inbound_golden(
        "inbound-server-authorizations",
        vec![
            pod("web"),
            server(
                "http",
                json!({"proxyProtocol": "HTTP/1", "accessPolicy": "audit"}),
            ),
            object(
                "policy.linkerd.io/v1beta1",
                "ServerAuthorization",
                "saz",
                json!({
                    "server": {"name": "http"},
                    "client": {"meshTLS": {"identities": ["*", "*.x.y"], "serviceAccounts": [{"name": "front"}]}, "networks": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}]},
                }),
            ),
            object(
                "policy.linkerd.io/v1alpha1",
                "AuthorizationPolicy",
                "ap",
                json!({
                    "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "http"},
                    "requiredAuthenticationRefs": [{"group": "policy.linkerd.io", "kind": "NetworkAuthentication", "name": "v6"}],
                }),
            ),
            object(
                "policy.linkerd.io/v1alpha1",
                "NetworkAuthentication",
                "v6",
                json!({"networks": [{"cidr": "fd00::/8"}]}),
            ),
        ],
    );
    inbound_golden(
        "inbound-http-route",
        vec![
            pod("web"),
            server("http", json!({})),
            with(
                route(
                    "HTTPRoute",
                    "r",
                    to_server("http"),
                    json!([{
                        "matches": [{"path": {"type": "RegularExpression", "value": "/a.*"}, "method": "POST", "headers": [{"name": "x", "value": "y"}], "queryParams": [{"name": "q", "type": "RegularExpression", "value": "."}]}],
                        "filters": [
                            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"add": [{"name": "a", "value": "b"}], "remove": ["c"]}},
                            {"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "hostname": "h", "port": 8443, "statusCode": 301, "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/z"}}},
                        ],
                    }]),
                ),
                &[("/spec/hostnames", json!(["*.example.com", "a.b"]))],
            ),
            object(
                "policy.linkerd.io/v1alpha1",
                "AuthorizationPolicy",
                "ap",
                json!({
                    "targetRef": {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"},
                    "requiredAuthenticationRefs": [{"kind": "ServiceAccount", "name": "front"}],
                }),
            ),
            object(
                "policy.linkerd.io/v1alpha1",
                "HTTPLocalRateLimitPolicy",
                "limit",
                json!({
                    "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "http"},
                    "total": {"requestsPerSecond": 100},
                    "identity": {"requestsPerSecond": 10},
                    "overrides": [{"requestsPerSecond": 50, "clientRefs": [{"kind": "ServiceAccount", "name": "front"}]}],
                }),
            ),
        ],
    );
    inbound_golden(
        "inbound-http2",
        vec![
            pod("web"),
            server("http", json!({"proxyProtocol": "HTTP/2"})),
        ],
    );
    inbound_golden(
        "inbound-opaque",
        vec![
            pod("web"),
            server(
                "db",
                json!({"proxyProtocol": "opaque", "accessPolicy": "cluster-authenticated"}),
            ),
        ],
    );
    inbound_golden(
        "inbound-tls",
        vec![
            pod("web"),
            server("tls", json!({"proxyProtocol": "TLS"})),
            object(
                "policy.linkerd.io/v1beta1",
                "ServerAuthorization",
                "any-tls",
                json!({
                    "server": {"name": "tls"},
                    "client": {"meshTLS": {"unauthenticatedTLS": true}},
                }),
            ),
        ],
    );
    inbound_golden(
        "inbound-grpc",
        vec![
            pod("web"),
            server("grpc", json!({"proxyProtocol": "gRPC"})),
            route(
                "GRPCRoute",
                "r",
                to_server("grpc"),
                json!([{"matches": [{"method": {"service": "a.B", "method": "C"}}]}]),
            ),
        ],
    );
}

#[test]
fn outbound_messages() {
    const WEB: &str = "10.1.0.1:80";
    outbound_golden("outbound-default", WEB, vec![service("web", "10.1.0.1")]);
    outbound_golden(
        "outbound-undefined-port",
        "10.1.0.1:1",
        vec![service("web", "10.1.0.1")],
    );
    outbound_golden("outbound-fallback", "[2001:db8::1]:443", vec![]);
    outbound_golden(
        "outbound-http-route",
        WEB,
        vec![
            annotated(
                service("web", "10.1.0.1"),
                json!({"balancer.linkerd.io/failure-accrual": "consecutive"}),
            ),
            service("v2", "10.1.0.2"),
            annotated(
                route(
                    "HTTPRoute",
                    "r",
                    to_service("web"),
                    json!([
                        {
                            "matches": [{"path": {"value": "/a"}, "method": "GET"}],
                            "filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "a", "value": "b"}]}}],
                            "timeouts": {"request": "10s"},
                            "backendRefs": [
                                {"name": "v2", "port": 80, "weight": 9, "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "v", "value": "2"}]}}]},
                                {"name": "gone", "port": 80, "weight": 1},
                            ],
                        },
                        {"matches": [{"path": {"value": "/rewritten"}}], "filters": [{"type": "URLRewrite"}]},
                    ]),
                ),
                json!({"retry.linkerd.io/http": "5xx,429", "retry.linkerd.io/limit": "2", "retry.linkerd.io/timeout": "300ms"}),
            ),
        ],
    );
    outbound_golden(
        "outbound-grpc-route",
        WEB,
        vec![
            annotated(
                service("web", "10.1.0.1"),
                json!({
                    "balancer.linkerd.io/failure-accrual": "unified",
                    "balancer.alpha.linkerd.io/penalize-failures": "true",
                    "balancer.alpha.linkerd.io/failure-accrual-honor-retry-after": "true",
                    "retry.linkerd.io/grpc": "unavailable,internal",
                    "timeout.linkerd.io/idle": "1m",
                }),
            ),
            route(
                "GRPCRoute",
                "r",
                to_service("web"),
                json!([{"matches": [{"method": {"service": "a.B"}}]}]),
            ),
        ],
    );
    outbound_golden(
        "outbound-tcp-route",
        WEB,
        vec![
            service("web", "10.1.0.1"),
            route(
                "TCPRoute",
                "r",
                to_service("web"),
                json!([{"backendRefs": [{"name": "web", "port": 8080}, {"name": "gone", "port": 1}]}]),
            ),
        ],
    );
    let to_egress =
        json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 443});
    outbound_golden(
        "outbound-egress-deny",
        "1.1.1.1:443",
        vec![egress("out", json!({"trafficPolicy": "Deny"}))],
    );
    for (name, protocol) in [
        ("outbound-http1", "http"),
        ("outbound-http2", "kubernetes.io/h2c"),
    ] {
        let spoken = with(
            service("web", "10.1.0.1"),
            &[("/spec/ports/0/appProtocol", json!(protocol))],
        );
        outbound_golden(name, WEB, vec![spoken]);
    }
    outbound_golden(
        "outbound-http-hosts",
        WEB,
        vec![
            service("web", "10.1.0.1"),
            with(
                route("HTTPRoute", "r", to_service("web"), json!([{}])),
                &[("/spec/hostnames", json!(["*.example.com", "a.b"]))],
            ),
        ],
    );
    outbound_golden(
        "outbound-egress-grpc-deny",
        "1.1.1.1:443",
        vec![
            egress("out", json!({"trafficPolicy": "Deny"})),
            route(
                "GRPCRoute",
                "r",
                to_egress.clone(),
                json!([{"matches": [{"method": {"service": "a.B"}}]}]),
            ),
        ],
    );
    outbound_golden(
        "outbound-egress-tls",
        "1.1.1.1:443",
        vec![
            egress("out", json!({"trafficPolicy": "Allow"})),
            with(
                route(
                    "TLSRoute",
                    "r",
                    to_egress,
                    json!([{"backendRefs": [{"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "weight": 5}]}]),
                ),
                &[("/spec/hostnames", json!(["*.example.com"]))],
            ),
        ],
    );
}
