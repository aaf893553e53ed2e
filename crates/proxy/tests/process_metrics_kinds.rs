//! The series of gRPC, opaque, TLS and plain traffic, and of retries: names, types and labels.

#[path = "support/exposition.rs"]
mod exposition;
#[path = "support/harness.rs"]
mod harness;
#[path = "support/hello.rs"]
mod hello;
#[path = "support/http2.rs"]
mod http2;

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use exposition::{BACKEND, IN, PARENT, ROUTE, Row, SRV, Seen, TARGET, balancer_rows, join};
use harness::{CLUSTER_IP, Client, DEADLINE, Pair, Proxy, SERVICE, block_on, get, http_echo, rule};
use linkerd_api::proto::{
    inbound::{self, Server},
    outbound::{
        GrpcRoute, OutboundPolicy, ProxyProtocol, TlsRoute, grpc_route, http_route, proxy_protocol,
        tls_route,
    },
    tls_route::{SniMatch, sni_match},
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Behavior, Echo},
    wait_for,
};

/// Waits until these proxies show all of the rows together.
#[track_caller]
fn show(proxies: &[&Proxy], rows: &[Row]) {
    let mut missing = Vec::new();
    let shown = || {
        let mut seen = Seen::default();
        for proxy in proxies {
            seen.read(&proxy.metrics());
        }
        missing = seen.missing(rows);
        missing.is_empty()
    };
    let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for(DEADLINE, "the series", shown);
    }));
    assert!(shown.is_ok(), "{}", missing.join("\n"));
}

/// Answers calls with a piece of data and the status `unavailable`.
fn grpc_app() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let addr = listener.local_addr().expect("bound");
    listener.set_nonblocking(true).expect("an option");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((io, _)) = listener.accept().await {
                linkerd_runtime::spawn("grpc", async move {
                    let mut connection = h2::server::handshake(io).await.expect("handshakes");
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        let head = http::Response::builder()
                            .header("content-type", "application/grpc")
                            .body(())
                            .expect("valid");
                        let mut stream = respond.send_response(head, false).expect("sends");
                        let data = Bytes::from_static(b"\0\0\0\0\0");
                        stream.send_data(data, false).expect("sends");
                        let mut trailers = http::HeaderMap::new();
                        trailers.insert("grpc-status", "14".parse().expect("valid"));
                        stream.send_trailers(trailers).expect("sends");
                    }
                });
            }
        });
    });
    addr
}

fn protocol(kind: proxy_protocol::Kind) -> OutboundPolicy {
    OutboundPolicy {
        metadata: Some(objects::resource("Service", "ns", "web")),
        protocol: Some(ProxyProtocol { kind: Some(kind) }),
    }
}

/// Calls to the service, tried again once when it is not available.
fn grpc_policy() -> OutboundPolicy {
    let backend = grpc_route::RouteBackend {
        backend: Some(objects::balancer(SERVICE)),
        ..grpc_route::RouteBackend::default()
    };
    let first = grpc_route::distribution::FirstAvailable {
        backends: vec![backend],
    };
    let rule = grpc_route::Rule {
        backends: Some(grpc_route::Distribution {
            kind: Some(grpc_route::distribution::Kind::FirstAvailable(first)),
        }),
        retry: Some(grpc_route::Retry {
            max_retries: 1,
            conditions: Some(grpc_route::retry::Conditions {
                unavailable: true,
                ..grpc_route::retry::Conditions::default()
            }),
            ..grpc_route::Retry::default()
        }),
        ..grpc_route::Rule::default()
    };
    protocol(proxy_protocol::Kind::Grpc(proxy_protocol::Grpc {
        routes: vec![GrpcRoute {
            metadata: Some(objects::default_meta("grpc")),
            hosts: Vec::new(),
            rules: vec![rule],
        }],
        failure_accrual: None,
    }))
}

/// An inbound port that takes calls.
fn grpc_server() -> Server {
    let everybody = objects::allow("everybody", None);
    let grpc = inbound::proxy_protocol::Grpc {
        routes: vec![inbound::GrpcRoute {
            metadata: Some(objects::default_meta("grpc")),
            rules: vec![inbound::grpc_route::Rule::default()],
            authorizations: vec![everybody.clone()],
            ..inbound::GrpcRoute::default()
        }],
    };
    Server {
        protocol: Some(inbound::ProxyProtocol {
            kind: Some(inbound::proxy_protocol::Kind::Grpc(grpc)),
        }),
        ..objects::inbound_detect(vec![everybody])
    }
}

fn retry_rows(rows: &mut Vec<Row>, kind: &str) {
    for count in ["limit_exceeded", "overflow", "requests", "successes"] {
        let name: &'static str = format!("outbound_{kind}_route_retry_{count}_total").leak();
        rows.push((name, "counter", join(&[PARENT, ROUTE])));
    }
}

#[test]
fn grpc_calls() {
    let app = grpc_app();
    let pair = Pair::prepared(app, |control| {
        control.set_inbound(app.port(), grpc_server());
    });
    pair.control.set_outbound(CLUSTER_IP, grpc_policy());
    let mut rows: Vec<Row> = Vec::new();
    for (name, kind, labels) in [
        (
            "outbound_grpc_route_request_duration_seconds",
            "histogram",
            join(&[PARENT, ROUTE, "hostname"]),
        ),
        (
            "outbound_grpc_route_request_statuses_total",
            "counter",
            join(&[PARENT, ROUTE, "hostname grpc_status error"]),
        ),
        (
            "outbound_grpc_route_request_frame_size_bytes",
            "histogram",
            join(&[PARENT, ROUTE, "hostname"]),
        ),
        (
            "outbound_grpc_route_backend_requests_total",
            "counter",
            join(&[PARENT, ROUTE, BACKEND]),
        ),
        (
            "outbound_grpc_route_backend_response_duration_seconds",
            "histogram",
            join(&[PARENT, ROUTE, BACKEND]),
        ),
        (
            "outbound_grpc_route_backend_response_statuses_total",
            "counter",
            join(&[PARENT, ROUTE, BACKEND, "grpc_status error"]),
        ),
        (
            "outbound_grpc_route_backend_response_frame_size_bytes",
            "histogram",
            join(&[PARENT, ROUTE, BACKEND]),
        ),
        ("inbound_grpc_requests_total", "counter", join(&[IN])),
        (
            "inbound_grpc_statuses_total",
            "counter",
            join(&[IN, "status"]),
        ),
        (
            "inbound_grpc_request_duration_seconds",
            "histogram",
            join(&[IN]),
        ),
        (
            "inbound_grpc_response_duration_seconds",
            "histogram",
            join(&[IN]),
        ),
        (
            "inbound_grpc_request_frame_size_bytes",
            "histogram",
            join(&[IN]),
        ),
        (
            "inbound_grpc_response_frame_size_bytes",
            "histogram",
            join(&[IN]),
        ),
    ] {
        rows.push((name, kind, labels));
    }
    retry_rows(&mut rows, "grpc");
    // Until the policy is there, calls are requests like others.
    wait_for(DEADLINE, "the policy", || {
        block_on(async {
            let mut send = http2::connect(pair.client.outbound).await;
            let call = http::Request::post("http://web.ns/svc/Call")
                .header("content-type", "application/grpc")
                .body(())
                .expect("valid");
            let body = [Bytes::from_static(b"\0\0\0\0\0")];
            let got = http2::call(&mut send, call, &body).await.expect("answered");
            assert_eq!(got.trailers.expect("trailers")["grpc-status"], "14");
        });
        let family = "outbound_grpc_route_request_statuses_total";
        pair.client.metric(family, &["grpc_status=\"14\""]) > 0.5
    });
    show(&[&pair.client, &pair.server], &rows);
    let family = "inbound_grpc_statuses_total";
    assert!(pair.server.metric(family, &["status=\"14\""]) > 0.5);
}

#[test]
fn retries_of_requests() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let policy = rule(|rule| {
        rule.retry = Some(http_route::Retry {
            max_retries: 1,
            conditions: Some(http_route::retry::Conditions {
                status_ranges: vec![http_route::retry::conditions::StatusRange {
                    start: 500,
                    end: 599,
                }],
            }),
            ..http_route::Retry::default()
        });
    });
    pair.control.set_outbound(CLUSTER_IP, policy);
    let mut rows = Vec::new();
    retry_rows(&mut rows, "http");
    wait_for(DEADLINE, "the policy", || {
        let mut client = Client::connect(pair.client.outbound);
        client.send("GET / HTTP/1.1\r\nhost: web\r\nx-echo-status: 503\r\n\r\n");
        assert_eq!(client.answer().status(), 503);
        pair.client
            .metric("outbound_http_route_retry_requests_total", &[])
            > 0.5
    });
    show(&[&pair.client], &rows);
}

#[test]
fn opaque_connections() {
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    assert_eq!(client.send("\x01ping\n").exactly(6), b"\x01ping\n");
    drop(client);
    let mut rows: Vec<Row> = vec![
        (
            "outbound_tcp_route_open_total",
            "counter",
            join(&[PARENT, ROUTE, "target_ip target_port"]),
        ),
        (
            "outbound_tcp_route_close_total",
            "counter",
            join(&[PARENT, ROUTE, "target_ip target_port error"]),
        ),
        (
            "tcp_close_total",
            "counter",
            join(&["direction peer tls client_id errno", TARGET, SRV]),
        ),
        (
            "tcp_close_total",
            "counter",
            join(&["direction peer tls no_tls_reason errno", TARGET]),
        ),
    ];
    let labels = join(&[PARENT, BACKEND, "logical concrete"]);
    balancer_rows(&mut rows, "outbound_tcp_balancer", &labels);
    show(&[&pair.client, &pair.server], &rows);
}

#[test]
fn tls_connections() {
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let backend = tls_route::RouteBackend {
        backend: Some(objects::balancer(SERVICE)),
        ..tls_route::RouteBackend::default()
    };
    let first = tls_route::distribution::FirstAvailable {
        backends: vec![backend],
    };
    let route = TlsRoute {
        metadata: Some(objects::default_meta("tls")),
        snis: vec![SniMatch {
            r#match: Some(sni_match::Match::Exact("www.example.com".into())),
        }],
        rules: vec![tls_route::Rule {
            backends: Some(tls_route::Distribution {
                kind: Some(tls_route::distribution::Kind::FirstAvailable(first)),
            }),
            filters: Vec::new(),
        }],
    };
    let control = ControlPlane::start();
    let routes = vec![route];
    let policy = protocol(proxy_protocol::Kind::Tls(proxy_protocol::Tls { routes }));
    control.set_outbound(CLUSTER_IP, policy);
    control.set_endpoints(SERVICE, [objects::endpoint(app.addr())]);
    let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let proxy = Proxy::start(&control, "curl", vip, local, &[]);
    let hello = hello::named("www.example.com");
    let mut client = Client::connect(proxy.outbound);
    assert_eq!(client.send(&hello).exactly(hello.len()), hello);
    drop(client);
    let open = join(&[PARENT, ROUTE, "target_ip target_port hostname"]);
    let mut rows: Vec<Row> = vec![
        ("outbound_tls_route_open_total", "counter", open.clone()),
        (
            "outbound_tls_route_close_total",
            "counter",
            join(&[&open, "error"]),
        ),
    ];
    let labels = join(&[PARENT, BACKEND, "concrete"]);
    balancer_rows(&mut rows, "outbound_tls_balancer", &labels);
    show(&[&proxy], &rows);
}

#[test]
fn plain_connections_that_are_looked_at() {
    let app = http_echo();
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let proxy = Proxy::start(&control, "web", local, OrigDst::fixed(app.addr()), &[]);
    assert_eq!(get(proxy.inbound, "/", "web").status(), 200);
    let rows: Vec<Row> = vec![
        (
            "inbound_tcp_detect_http_results_total",
            "counter",
            join(&[SRV, "result"]),
        ),
        (
            "inbound_tcp_detect_http_duration_seconds",
            "histogram",
            join(&[SRV]),
        ),
    ];
    show(&[&proxy], &rows);
}
