//! The admin port over mesh TLS and plain, in both HTTP versions.

#[path = "support/harness.rs"]
mod harness;

use std::time::Duration;

use harness::{Pair, block_on, get, http_echo, http2_get};
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
