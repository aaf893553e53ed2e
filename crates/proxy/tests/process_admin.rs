//! The admin port over mesh TLS and plain, in both HTTP versions.

#[path = "support/harness.rs"]
mod harness;

use std::time::Duration;

use harness::{Client, Pair, block_on, get, http_echo, http2_get};
use linkerd_core::identity::Id;
use linkerd_tls::{Alpn, Peer, handshake};

#[test]
fn admin_answers_plain_clients_in_both_versions() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let admin = pair.server.admin;
    assert_eq!(get(admin, "/ready", "localhost").status(), 200);
    let status = http2_get(admin, &format!("http://{admin}/live"));
    assert_eq!(status, 200);
}

#[test]
fn admin_answers_meshed_clients() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let body = block_on(async {
        let io = tokio::net::TcpStream::connect(pair.server.admin)
            .await
            .expect("connects");
        let id = Id::parse(&pair.server.identity).expect("a name");
        let peer = Peer::new(id, None).expect("a peer");
        let snapshot = pair.client.store.snapshot();
        let limit = Duration::from_secs(10);
        let tls = handshake::connect(io, &peer, &snapshot, Alpn::None, limit)
            .await
            .expect("its certificate is the proxy's");
        let (mut send, connection) = h2::client::handshake(tls).await.expect("handshakes");
        linkerd_runtime::spawn("client", async move {
            let _ = connection.await;
        });
        let request = http::Request::get("http://admin/metrics")
            .body(())
            .expect("valid");
        let (response, _) = send.send_request(request, true).expect("sends");
        let (head, mut body) = response.await.expect("answered").into_parts();
        assert_eq!(head.status, 200);
        let mut text = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            let _ = body.flow_control().release_capacity(data.len());
            text.extend(&data);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    assert!(body.ends_with("# EOF\n"), "all of it");
}

#[test]
fn probes_and_scrapes_are_inbound_traffic() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let admin = pair.server.admin;
    let mut client = Client::connect(admin);
    for path in ["/live", "/ready", "/nothing"] {
        client.get(path, "localhost");
    }
    let text = pair.server.metrics();
    let sum = |family: &str, fragments: &[&str]| -> f64 {
        let lines = text
            .lines()
            .filter(|line| line.starts_with(family) && fragments.iter().all(|f| line.contains(f)));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum()
    };
    let target = format!("target_addr=\"{admin}\"");
    let port = format!("srv_port=\"{}\"", admin.port());
    let about = [
        "direction=\"inbound\"",
        target.as_str(),
        port.as_str(),
        "srv_name=\"all-unauthenticated\"",
        "no_tls_reason=\"no_tls_from_remote\"",
    ];
    let requests = [&about[..], &["route_name=\"default\"", "authz_name="]].concat();
    // The scrape itself is the last of them.
    assert!(
        (sum("request_total", &requests) - 4.0).abs() < 0.1,
        "{text}"
    );
    let answers = |status: &str| {
        let status = format!("status_code=\"{status}\"");
        let labels = [
            &requests[..],
            &[status.as_str(), "classification=\"success\""],
        ]
        .concat();
        sum("response_total", &labels)
    };
    assert!((answers("200") - 2.0).abs() < 0.1, "{text}");
    assert!((answers("404") - 1.0).abs() < 0.1, "{text}");
    let opened = [&about[..], &["peer=\"src\""]].concat();
    assert!((sum("tcp_open_total", &opened) - 2.0).abs() < 0.1, "{text}");
    assert!(sum("tcp_read_bytes_total", &opened) > 10.0, "{text}");
    assert!(sum("tcp_write_bytes_total", &opened) > 10.0, "{text}");
    let rest = &requests[1..];
    assert!(sum("inbound_http_authz_allow_total", rest) > 3.5, "{text}");
}
