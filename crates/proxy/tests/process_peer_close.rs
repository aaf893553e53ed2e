//! A peer's proxy that wants its client's connection to end: obeyed where there is no other endpoint.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use harness::{CLUSTER_IP, Client, DEADLINE, Pair, block_on, forward, get, http_echo};
use linkerd_testkit::{control_plane::objects, wait_for};

/// The peer refuses everything, which ends connections.
const REFUSES: &[(&str, &str)] = &[("INBOUND_MAX_IN_FLIGHT", "0")];
/// All requests travel as HTTP/2.
const UPGRADES: &[(&str, &str)] = &[("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")];

/// A client's proxy in front of a peer that refuses, which is one of several or the only one.
fn pair(client: &[(&str, &str)], balanced: bool) -> Pair {
    let app = http_echo();
    let pair = Pair::with(app.addr(), client, REFUSES);
    if !balanced {
        let peer = objects::meshed(
            app.addr(),
            &pair.server.identity,
            pair.server.inbound.port(),
        );
        pair.control.set_outbound(CLUSTER_IP, forward(peer));
        wait_for(DEADLINE, "the policy", || {
            let answer = get(pair.client.outbound, "/", "web");
            answer.header("connection") == Some("close")
        });
    }
    pair
}

#[test]
fn http1_connections_end_where_there_is_no_other_endpoint() {
    for (name, settings, balanced) in [
        ("forward", &[][..], false),
        ("forward, upgraded", UPGRADES, false),
        ("balanced", &[], true),
        ("balanced, upgraded", UPGRADES, true),
    ] {
        let pair = pair(settings, balanced);
        let mut client = Client::connect(pair.client.outbound);
        let answer = client.get("/", "web");
        assert_eq!(answer.status(), 503, "{name}");
        assert_eq!(answer.header("l5d-proxy-connection"), None, "{name}");
        if balanced {
            assert_eq!(answer.header("connection"), None, "{name}");
            assert_eq!(client.get("/", "web").status(), 503, "{name}");
        } else {
            assert_eq!(answer.header("connection"), Some("close"), "{name}");
            assert!(client.rest().is_empty(), "{name}: the connection ends");
        }
    }
}

#[test]
fn http2_connections_end_where_there_is_no_other_endpoint() {
    for balanced in [false, true] {
        let pair = pair(&[], balanced);
        block_on(async {
            let here = [127, 0, 0, 1].into();
            let (mut send, ended) = http2::connect_from(here, pair.client.outbound).await;
            let get = || http::Request::get("http://web/").body(()).expect("valid");
            let got = http2::call(&mut send, get(), &[]).await.expect("answered");
            assert_eq!(got.head.status(), 503);
            assert!(!got.head.headers().contains_key("l5d-proxy-connection"));
            if balanced {
                let got = http2::call(&mut send, get(), &[]).await.expect("answered");
                assert_eq!(got.head.status(), 503);
            } else {
                // The client holds on to it: it is the proxy that ends it.
                ended.await.expect("the connection ends");
            }
        });
    }
}
