//! The names, types and labels dashboards read, after a little traffic of every kind.

#[path = "support/exposition.rs"]
mod exposition;
#[path = "support/harness.rs"]
mod harness;

use std::sync::Arc;

use exposition::{
    AUTHZ, BACKEND, IN, PARENT, ROUTE, RT_IN, Row, SRV, Seen, TARGET, balancer_rows, join,
};
use harness::{CLUSTER_IP, Client, DEADLINE, Pair, Proxy, counts, get, http_echo};
use linkerd_api::proto::destination::{
    DestinationProfile, PathMatch, RequestMatch, Route, request_match,
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::ControlPlane,
    echo::{Behavior, Echo},
    wait_for,
};

/// Family, type, labels. Whichever proxy shows it.
fn table() -> Vec<Row> {
    let outcome = "classification error grpc_status status_code";
    let profile = "direction dst rt_route";
    let mut rows = vec![
        (
            "request_total",
            "counter",
            join(&["direction authority dst_deployment server_id tls", TARGET]),
        ),
        (
            "response_total",
            "counter",
            join(&[
                "direction authority dst_deployment server_id tls",
                TARGET,
                outcome,
            ]),
        ),
        (
            "request_total",
            "counter",
            join(&["direction client_id tls", TARGET, SRV, RT_IN, AUTHZ]),
        ),
        (
            "response_total",
            "counter",
            join(&[
                "direction client_id tls",
                TARGET,
                SRV,
                RT_IN,
                AUTHZ,
                outcome,
            ]),
        ),
        (
            "response_latency_ms",
            "histogram",
            join(&[
                "direction client_id tls status_code",
                TARGET,
                SRV,
                RT_IN,
                AUTHZ,
            ]),
        ),
        ("route_request_total", "counter", join(&[profile])),
        ("route_response_total", "counter", join(&[profile, outcome])),
        (
            "route_response_latency_ms",
            "histogram",
            join(&[profile, "status_code"]),
        ),
        ("route_actual_request_total", "counter", join(&[profile])),
        (
            "route_actual_response_total",
            "counter",
            join(&[profile, outcome]),
        ),
        (
            "control_request_total",
            "counter",
            join(&["addr tls no_tls_reason"]),
        ),
        (
            "control_response_latency_ms",
            "histogram",
            join(&["addr tls no_tls_reason status_code"]),
        ),
        (
            "tcp_open_total",
            "counter",
            join(&["direction peer tls no_tls_reason", TARGET]),
        ),
        (
            "tcp_open_total",
            "counter",
            join(&["direction peer tls client_id", TARGET, SRV]),
        ),
        (
            "tcp_open_connections",
            "gauge",
            join(&["direction peer tls client_id", TARGET, SRV]),
        ),
        (
            "tcp_read_bytes_total",
            "counter",
            join(&["direction peer tls client_id", TARGET, SRV]),
        ),
        (
            "tcp_write_bytes_total",
            "counter",
            join(&["direction peer tls client_id", TARGET, SRV]),
        ),
        (
            "inbound_http_authz_allow_total",
            "counter",
            join(&["client_id tls", TARGET, SRV, RT_IN, AUTHZ]),
        ),
        (
            "outbound_http_route_request_duration_seconds",
            "histogram",
            join(&[PARENT, ROUTE, "hostname"]),
        ),
        (
            "outbound_http_route_request_statuses_total",
            "counter",
            join(&[PARENT, ROUTE, "hostname http_status error"]),
        ),
        (
            "outbound_http_route_request_frame_size_bytes",
            "histogram",
            join(&[PARENT, ROUTE, "hostname"]),
        ),
        (
            "outbound_http_route_backend_requests_total",
            "counter",
            join(&[PARENT, ROUTE, BACKEND]),
        ),
        (
            "outbound_http_route_backend_response_duration_seconds",
            "histogram",
            join(&[PARENT, ROUTE, BACKEND]),
        ),
        (
            "outbound_http_route_backend_response_statuses_total",
            "counter",
            join(&[PARENT, ROUTE, BACKEND, "http_status error"]),
        ),
        (
            "outbound_http_route_backend_response_frame_size_bytes",
            "histogram",
            join(&[PARENT, ROUTE, BACKEND]),
        ),
        (
            "outbound_tcp_protocol_connections_total",
            "counter",
            join(&[PARENT, "protocol"]),
        ),
        (
            "outbound_tcp_detect_http_duration_seconds",
            "histogram",
            join(&[PARENT]),
        ),
        (
            "outbound_tcp_detect_http_results_total",
            "counter",
            join(&[PARENT, "result"]),
        ),
        (
            "outbound_tcp_transfer_cost_bytes_total",
            "counter",
            join(&["op zone_locality"]),
        ),
        (
            "inbound_tcp_transport_header_connections_total",
            "counter",
            join(&["session_protocol target_port target_name client_id"]),
        ),
        ("inbound_http_requests_total", "counter", join(&[IN])),
        (
            "inbound_http_statuses_total",
            "counter",
            join(&[IN, "status"]),
        ),
        (
            "inbound_http_request_duration_seconds",
            "histogram",
            join(&[IN]),
        ),
        (
            "inbound_http_response_duration_seconds",
            "histogram",
            join(&[IN]),
        ),
        (
            "inbound_http_request_frame_size_bytes",
            "histogram",
            join(&[IN]),
        ),
        (
            "inbound_http_response_frame_size_bytes",
            "histogram",
            join(&[IN]),
        ),
        ("process_start_time_seconds", "gauge", String::new()),
        ("process_cpu_seconds_total", "counter", String::new()),
        ("process_resident_memory_bytes", "gauge", String::new()),
        ("process_open_fds", "gauge", String::new()),
        ("process_threads", "gauge", String::new()),
        (
            "proxy_build_info",
            "gauge",
            join(&["date git_sha profile vendor version"]),
        ),
        (
            "rustls_info",
            "gauge",
            join(&["tls_suites tls_kx_groups tls_rand tls_key_provider tls_fips"]),
        ),
        (
            "stack_create_total",
            "counter",
            join(&["direction protocol name"]),
        ),
        (
            "stack_drop_total",
            "counter",
            join(&["direction protocol name"]),
        ),
        (
            "stack_poll_total",
            "counter",
            join(&["direction protocol name ready"]),
        ),
        (
            "stack_poll_total_ms",
            "counter",
            join(&["direction protocol name"]),
        ),
        ("tokio_rt_injection_queue_depth", "gauge", String::new()),
        ("tokio_rt_local_queue_depth", "gauge", String::new()),
        ("tokio_rt_workers", "gauge", String::new()),
        ("tokio_rt_park_total", "counter", String::new()),
        ("tokio_rt_busy_seconds_total", "counter", String::new()),
        (
            "control_identity_cert_expiration_timestamp_seconds",
            "gauge",
            String::new(),
        ),
        (
            "control_identity_cert_refresh_timestamp_seconds",
            "gauge",
            String::new(),
        ),
        (
            "control_identity_cert_refreshes_total",
            "counter",
            join(&["result"]),
        ),
    ];
    for count in [
        "noop",
        "steal",
        "steal_operations",
        "remote_schedule",
        "local_schedule",
        "overflow",
        "polls",
        "budget_forced_yield",
        "io_driver_ready",
    ] {
        let name: &'static str = format!("tokio_rt_{count}_total").leak();
        rows.push((name, "counter", String::new()));
    }
    for (balancer, labels) in [
        ("outbound_http_balancer", join(&[PARENT, BACKEND])),
        ("control_destination_balancer", "addr".to_owned()),
        ("control_policy_balancer", "addr".to_owned()),
        ("control_identity_balancer", "addr".to_owned()),
    ] {
        balancer_rows(&mut rows, balancer, &labels);
    }
    rows
}

#[test]
fn names_types_and_labels() {
    let app = http_echo();
    let profile = DestinationProfile {
        fully_qualified_name: "web.ns.svc.cluster.local".into(),
        routes: vec![Route {
            condition: Some(RequestMatch {
                r#match: Some(request_match::Match::Path(PathMatch {
                    regex: "/profile".into(),
                })),
            }),
            metrics_labels: [("route".to_owned(), "p".to_owned())].into(),
            ..Route::default()
        }],
        ..DestinationProfile::default()
    };
    let pair = Pair::prepared(app.addr(), |control| {
        control.set_profile(CLUSTER_IP, profile);
    });
    let mut client = Client::connect(pair.client.outbound);
    assert_eq!(client.get("/profile", "web").status(), 200);
    let post = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 4\r\n\r\nbody";
    assert_eq!(client.send(post).answer().status(), 200);

    let mut seen = Seen::default();
    for proxy in [&pair.client, &pair.server] {
        seen.read(&proxy.metrics());
    }
    seen.shows(table());
    for proxy in [&pair.client, &pair.server] {
        let text = proxy.metrics();
        assert!(!text.contains(",,") && !text.contains("{,"), "stray commas");
        assert!(text.ends_with("# EOF\n"));
    }
}

#[test]
fn authorities_are_labels_of_inbound_series_only_when_asked_for() {
    let app = http_echo();
    let setting = [("INBOUND_METRICS_AUTHORITY_LABELS", "unsafe")];
    for (server, named) in [(&setting[..], 1.0), (&[][..], 0.0)] {
        let pair = Pair::with(app.addr(), &[], server);
        let mut client = Client::connect(pair.client.outbound);
        assert_eq!(client.get("/", "a.example").status(), 200);
        assert_eq!(client.get("/", "b.example:80").status(), 200);
        for family in ["request_total", "response_total"] {
            for authority in ["a.example", "b.example:80"] {
                let authority = format!("authority=\"{authority}\"");
                let labels = ["direction=\"inbound\"", authority.as_str()];
                counts(&pair.server, family, &labels, named);
            }
        }
    }
}

#[test]
fn ingress_traffic_without_an_override_says_so() {
    let app = http_echo();
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let to = OrigDst::fixed(app.addr());
    let settings = [("INGRESS_MODE", "true")];
    let proxy = Proxy::start(&control, "ingress", to, local, &settings);
    assert_eq!(get(proxy.outbound, "/", "web").status(), 200);
    let labels = [
        "direction=\"outbound\"",
        "no_tls_reason=\"ingress_without_override\"",
    ];
    counts(&proxy, "request_total", &labels, 1.0);
}

#[test]
fn calls_that_break_have_no_status() {
    let mut control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let proxy = Proxy::start(&control, "web", local.clone(), local, &[]);
    control.stop();
    let broken = ["status_code=\"\"", "classification=\"failure\""];
    wait_for(DEADLINE, "a broken call", || {
        proxy.metric("control_response_total", &broken) > 0.5
    });
    counts(
        &proxy,
        "control_response_total",
        &["status_code=\"0\""],
        0.0,
    );
}

#[test]
fn opaque_connections_of_ports_that_are_looked_at_have_a_balancer_of_their_own() {
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    assert_eq!(client.send("\x01ping\n").exactly(6), b"\x01ping\n");
    let labels = [
        "parent_name=\"web\"",
        "backend_name=\"web\"",
        "concrete=\"web.ns.svc.cluster.local:80\"",
    ];
    let family = "outbound_tcp_balancer_p2c_endpoints";
    counts(&pair.client, family, &labels, 1.0);
    let family = "outbound_tcp_balancer_queue_requests_total";
    counts(&pair.client, family, &labels, 1.0);
}
