//! Other people's tests against our proxies: h2spec on both sides, and gRPC's interoperability suite
//! through a pair. `cargo xtask tool` builds the programs.

#[path = "support/harness.rs"]
mod harness;

use std::{
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use harness::{CLUSTER_IP, DEADLINE, Pair, Proxy, SERVICE, http_echo};
use linkerd_api::proto::{inbound, outbound};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    port, tool, wait_for,
};

/// Runs every case of h2spec, the strict ones too.
fn h2spec(addr: SocketAddr) {
    let output = Command::new(tool("h2spec"))
        .args(["--strict", "--timeout", "10", "--host"])
        .arg(addr.ip().to_string())
        .args(["--port", &addr.port().to_string()])
        .output()
        .expect("h2spec runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let summary = text
        .lines()
        .find(|line| line.contains(" tests, ") && line.contains(" passed, "))
        .unwrap_or_else(|| panic!("no summary: {text}"));
    assert!(summary.ends_with("0 skipped, 0 failed"), "{text}");
}

#[test]
fn the_outbound_side_conforms_to_http2() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    // The service says what it speaks: otherwise a bad preface is somebody else's protocol.
    let mut policy = objects::service(SERVICE);
    if let Some(protocol) = &mut policy.protocol
        && let Some(outbound::proxy_protocol::Kind::Detect(detect)) = &protocol.kind
    {
        let http2 = detect.http2.clone().expect("routes");
        protocol.kind = Some(outbound::proxy_protocol::Kind::Http2(http2));
    }
    pair.control.set_outbound(CLUSTER_IP, policy);
    h2spec(pair.client.outbound);
}

#[test]
fn the_inbound_side_conforms_to_http2() {
    let app = http_echo();
    let control = ControlPlane::start();
    let to_app = OrigDst::fixed(app.addr());
    let local = OrigDst::Given(std::sync::Arc::new(|io| io.local_addr()));
    let mut server = objects::inbound_detect(vec![objects::allow("everybody", None)]);
    if let Some(protocol) = &mut server.protocol
        && let Some(inbound::proxy_protocol::Kind::Detect(detect)) = &protocol.kind
    {
        let http2 = inbound::proxy_protocol::Http2 {
            routes: detect.http_routes.clone(),
            ..inbound::proxy_protocol::Http2::default()
        };
        protocol.kind = Some(inbound::proxy_protocol::Kind::Http2(http2));
    }
    control.set_inbound(app.addr().port(), server);
    let port = app.addr().port().to_string();
    let eager = [("INBOUND_PORTS", port.as_str())];
    let proxy = Proxy::start(&control, "web", local, to_app, &eager);
    wait_for(DEADLINE, "the port's policy", || {
        harness::http2_get(proxy.inbound, "http://web/");
        let allowed = ["authz_name=\"everybody\""];
        proxy.metric("inbound_http_authz_allow_total", &allowed) > 0.5
    });
    h2spec(proxy.inbound);
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn grpc_interoperates_through_a_pair() {
    let port = port::free();
    let server = Command::new(tool("grpc-interop-server"))
        .args(["--port", &port.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("the server starts");
    let _server = Server(server);
    let app: SocketAddr = ([127, 0, 0, 1], port).into();
    wait_for(DEADLINE, "the interop server", || {
        std::net::TcpStream::connect(app).is_ok()
    });
    let pair = Pair::new(app);
    let client = tool("grpc-interop-client");
    let outbound = pair.client.outbound;
    let failed: Vec<String> = [
        "empty_unary",
        "large_unary",
        "client_streaming",
        "server_streaming",
        "ping_pong",
        "empty_stream",
        "timeout_on_sleeping_server",
        "cancel_after_begin",
        "cancel_after_first_response",
        "status_code_and_message",
        "special_status_message",
        "custom_metadata",
        "unimplemented_method",
        "unimplemented_service",
    ]
    .into_iter()
    .filter_map(|case| {
        let output = Command::new(&client)
            .args(["--server_host", &outbound.ip().to_string()])
            .args(["--server_port", &outbound.port().to_string()])
            .args(["--test_case", case])
            .output()
            .expect("the client runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then(|| format!("{case}: {told}"))
    })
    .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let seen = pair
        .server
        .metric("request_total", &["direction=\"inbound\"", "tls=\"true\""]);
    assert!(seen > 13.0, "the calls went through the mesh: {seen}");
}
