//! Failures as dashboards see them: an endpoint that cannot be reached or breaks is a failed answer
//! with the status its client got, and a try that was made again is not.

#[path = "support/harness.rs"]
mod harness;

use std::sync::Arc;

use harness::{
    CLUSTER_IP, Client, Closed, DEADLINE, Pair, Proxy, SERVICE, block_on, counts, get, http_echo,
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Behavior, Echo},
    wait_for,
};

const FAILED_502: [&str; 3] = [
    "status_code=\"502\"",
    "classification=\"failure\"",
    "error=\"\"",
];

/// A client's proxy alone, in front of endpoints that are not in the mesh.
fn outbound(control: &ControlPlane, settings: &[(&str, &str)]) -> Proxy {
    let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    Proxy::start(control, "curl", vip, local, settings)
}

#[test]
fn an_application_that_refuses_connections_fails_requests_on_both_sides() {
    let app = Closed::new();
    let pair = Pair::new(app.addr());
    assert_eq!(get(pair.client.outbound, "/", "web").status(), 502);
    for (proxy, direction) in [(&pair.server, "inbound"), (&pair.client, "outbound")] {
        let direction = format!("direction=\"{direction}\"");
        let target = format!("target_addr=\"{}\"", app.addr());
        let about = [direction.as_str(), target.as_str()];
        counts(proxy, "request_total", &about, 1.0);
        let failed = [&about[..], &FAILED_502[..]].concat();
        counts(proxy, "response_total", &failed, 1.0);
        counts(proxy, "response_total", &about, 1.0);
        let slow = [&about[..], &["status_code=\"502\""]].concat();
        counts(proxy, "response_latency_ms_count", &slow, 1.0);
    }
    counts(&pair.server, "inbound_http_requests_total", &[], 1.0);
    let status = ["status=\"502\""];
    counts(&pair.server, "inbound_http_statuses_total", &status, 1.0);
    let refused = ["error=\"i/o\"", "srv_name=\"all-unauthenticated\""];
    counts(&pair.server, "inbound_http_errors_total", &refused, 1.0);
    let status = ["http_status=\"502\"", "error=\"\""];
    let family = "outbound_http_route_request_statuses_total";
    counts(&pair.client, family, &status, 1.0);
}

#[test]
fn an_address_that_refuses_connections_is_a_failed_answer() {
    let app = Closed::new();
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let to = OrigDst::fixed(app.addr());
    let proxy = Proxy::start(&control, "curl", to, local, &[]);
    assert_eq!(get(proxy.outbound, "/", "web").status(), 502);
    let about = ["direction=\"outbound\""];
    counts(&proxy, "request_total", &about, 1.0);
    let failed = [&about[..], &FAILED_502[..]].concat();
    counts(&proxy, "response_total", &failed, 1.0);
    for family in [
        "outbound_http_route_request_statuses_total",
        "outbound_http_route_backend_response_statuses_total",
    ] {
        let status = ["http_status=\"502\"", "error=\"\""];
        counts(&proxy, family, &status, 1.0);
        counts(&proxy, family, &[], 1.0);
    }
}

#[test]
fn an_application_that_hangs_up_is_a_502() {
    let app = Echo::tcp(
        ([127, 0, 0, 1], 0),
        Behavior {
            reset_after: Some(1),
            ..Behavior::default()
        },
    );
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    let post = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 4\r\n\r\nbody";
    assert_eq!(client.send(post).answer().status(), 502);
    let about = [
        "direction=\"inbound\"",
        "authz_name=\"all-unauthenticated\"",
    ];
    counts(&pair.server, "request_total", &about, 1.0);
    let failed = [&about[..], &FAILED_502[..]].concat();
    counts(&pair.server, "response_total", &failed, 1.0);
    counts(&pair.server, "response_total", &about, 1.0);
}

#[test]
fn a_request_that_found_another_endpoint_has_not_failed() {
    let (app, dead) = (http_echo(), Closed::new());
    let control = ControlPlane::start();
    control.set_outbound(CLUSTER_IP, objects::service(SERVICE));
    control.set_endpoints(SERVICE, [objects::endpoint(dead.addr())]);
    let proxy = outbound(&control, &[]);
    let at = proxy.outbound;
    let first = std::thread::spawn(move || get(at, "/", "web").status());
    let resent = ["reason=\"connect\""];
    wait_for(DEADLINE, "the first to be refused", || {
        proxy.metric("outbound_http_resends_total", &resent) > 0.5
    });
    let endpoints = [app.addr(), dead.addr()].map(objects::endpoint);
    control.set_endpoints(SERVICE, endpoints);
    assert_eq!(first.join().expect("asks"), 200);
    let sent = 20;
    for _ in 1..sent {
        assert_eq!(get(at, "/", "web").status(), 200);
    }
    let about = ["direction=\"outbound\""];
    counts(&proxy, "request_total", &about, sent.into());
    counts(&proxy, "response_total", &about, sent.into());
    let failed = ["direction=\"outbound\"", "classification=\"failure\""];
    counts(&proxy, "response_total", &failed, 0.0);
}

#[test]
fn a_service_without_an_endpoint_that_listens_is_a_504() {
    let dead = Closed::new();
    let control = ControlPlane::start();
    control.set_outbound(CLUSTER_IP, objects::service(SERVICE));
    control.set_endpoints(SERVICE, [objects::endpoint(dead.addr())]);
    let settings = [("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "300ms")];
    let proxy = outbound(&control, &settings);
    assert_eq!(get(proxy.outbound, "/", "web").status(), 504);
    let about = ["direction=\"outbound\""];
    counts(&proxy, "request_total", &about, 1.0);
    let failed = [
        "direction=\"outbound\"",
        "status_code=\"504\"",
        "classification=\"failure\"",
    ];
    counts(&proxy, "response_total", &failed, 1.0);
    let family = "outbound_http_route_request_statuses_total";
    counts(&proxy, family, &["error=\"FAIL_FAST\""], 1.0);
}

/// Status and gRPC status of a call that nobody answers but a proxy.
fn call(addr: std::net::SocketAddr) -> (u16, Option<String>) {
    block_on(async {
        let io = tokio::net::TcpStream::connect(addr)
            .await
            .expect("connects");
        let (mut send, connection) = h2::client::handshake(io).await.expect("handshakes");
        linkerd_runtime::spawn("client", async move {
            let _ = connection.await;
        });
        let request = http::Request::post("http://web/ns.Service/Method")
            .header("content-type", "application/grpc")
            .body(())
            .expect("valid");
        let (response, _) = send.send_request(request, true).expect("sends");
        let response = response.await.expect("answered");
        let grpc = response.headers().get("grpc-status");
        let grpc = grpc.map(|code| code.to_str().expect("text").to_owned());
        (response.status().as_u16(), grpc)
    })
}

#[test]
fn a_call_that_reaches_nobody_fails_with_its_code() {
    let app = Closed::new();
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let to = OrigDst::fixed(app.addr());
    let settings = [("INBOUND_HTTP_FAILFAST_TIMEOUT", "100ms")];
    let server = Proxy::start(&control, "web", local.clone(), to.clone(), &settings);
    let client = Proxy::start(&control, "curl", to, local, &[]);
    for (proxy, addr, direction, code) in [
        (&server, server.inbound, "inbound", "4"),
        (&client, client.outbound, "outbound", "14"),
    ] {
        assert_eq!(call(addr), (200, Some(code.to_owned())), "{direction}");
        let direction = format!("direction=\"{direction}\"");
        let code = format!("grpc_status=\"{code}\"");
        let labels = [
            direction.as_str(),
            code.as_str(),
            "status_code=\"200\"",
            "classification=\"failure\"",
        ];
        counts(proxy, "response_total", &labels, 1.0);
        counts(proxy, "response_total", &labels[..1], 1.0);
    }
}
