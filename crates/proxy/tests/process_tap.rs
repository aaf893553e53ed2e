//! The tap server of both proxies, asked by real clients over mesh TLS.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::sync::Arc;
use std::time::Duration;

use harness::{CLUSTER_IP, Client, Pair, Proxy, SERVICE, block_on, http_echo};
use linkerd_api::proto::tap::{
    Eos, ObserveRequest, TapEvent, eos,
    observe_request::{self, Extract, Match},
    tap_client::TapClient,
    tap_event,
};
use linkerd_proxy::{
    config::{ControlAddr, SocketOptions},
    control::{
        Channel,
        client::{ConnectOptions, Refresh},
        dns::Resolver,
    },
    metrics::{Registry, balancer::Kind, control::ControlMetrics},
    socket::OrigDst,
};
use linkerd_testkit::{
    ca::identity,
    control_plane::ControlPlane,
    echo::{Answer, Echo, End},
};
use tonic::Code;

/// How a whole answer ends.
const WHOLE: Option<Eos> = Some(Eos { end: None });

fn tap_id() -> String {
    identity("tap", "ns")
}

/// A tap client that shows the certificate of `who`, or no TLS at all.
fn connect(to: &Proxy, who: Option<&Proxy>) -> TapClient<Channel> {
    let addr = to.tap.expect("a tap server");
    let service = ControlAddr {
        addr: addr.to_string().parse().expect("an address"),
        identity: who.map(|_| to.identity.clone()),
    };
    let options = ConnectOptions {
        timeout: Duration::from_secs(10),
        socket: SocketOptions::default(),
        refresh: Refresh::default(),
    };
    let store = who.unwrap_or(to).store.clone();
    let registry = Arc::new(Registry::new(Duration::ZERO));
    let metrics = ControlMetrics::new(&registry, Kind::Destination, "tap", None);
    let channel = Channel::new(&service, store, Resolver::default(), options, metrics);
    TapClient::new(channel.expect("a channel"))
}

fn everything(limit: u32, headers: bool) -> ObserveRequest {
    use observe_request::{extract, r#match};
    ObserveRequest {
        limit,
        r#match: Some(Match {
            r#match: Some(r#match::Match::All(r#match::Seq::default())),
        }),
        extract: headers.then(|| Extract {
            extract: Some(extract::Extract::Http(extract::Http {
                extract: Some(extract::http::Extract::Headers(
                    extract::http::Headers::default(),
                )),
            })),
        }),
    }
}

fn with_tap(app: std::net::SocketAddr) -> Pair {
    let id = tap_id();
    let tap = [("TAP_SVC_NAME", id.as_str())];
    Pair::with(app, &tap, &tap)
}

/// A proxy whose certificate is that of a service account.
fn somebody(control: &ControlPlane, account: &str) -> Proxy {
    let local = OrigDst::Given(std::sync::Arc::new(|io| io.local_addr()));
    Proxy::start(control, account, local.clone(), local, &[])
}

fn http(event: &TapEvent) -> &tap_event::http::Event {
    match &event.event {
        Some(tap_event::Event::Http(http)) => http.event.as_ref().expect("a kind"),
        None => panic!("an event without content"),
    }
}

/// Runs `ask` once the tap has begun, and gives every event until its end.
fn observe(
    client: &mut TapClient<Channel>,
    request: ObserveRequest,
    ask: impl FnOnce() + Send + 'static,
) -> Vec<TapEvent> {
    block_on(async {
        let mut stream = client.observe(request).await.expect("taps").into_inner();
        let asked = tokio::task::spawn_blocking(ask);
        let mut events = Vec::new();
        while let Some(event) = stream.message().await.expect("a whole stream") {
            events.push(event);
        }
        asked.await.expect("asks");
        events
    })
}

#[test]
fn inbound_requests_are_shown_to_the_tap_service() {
    let app = http_echo();
    let pair = with_tap(app.addr());
    let tap = somebody(&pair.control, "tap");
    let outbound = pair.client.outbound;
    let mut client = connect(&pair.server, Some(&tap));
    let events = observe(&mut client, everything(1, true), move || {
        let ask = "GET /a?b HTTP/1.1\r\nhost: web\r\nx-mine: 1\r\nx-echo-body-bytes: 7\r\n\r\n";
        assert_eq!(Client::connect(outbound).send(ask).answer().status(), 200);
    });
    assert_eq!(events.len(), 3, "{events:?}");
    for event in &events {
        let source = &event.source_meta.as_ref().expect("a source").labels;
        assert_eq!(source["tls"], "true");
        assert_eq!(source["client_id"], pair.client.identity);
        let destination = &event.destination_meta.as_ref().expect("one").labels;
        assert_eq!(destination["tls"], "loopback");
        for (label, value) in [
            ("srv_kind", "default"),
            ("srv_name", "all-unauthenticated"),
            ("srv_port", app.addr().port().to_string().as_str()),
            ("route_name", "default"),
            ("authz_name", "all-unauthenticated"),
        ] {
            assert_eq!(destination[label], value, "{label}");
        }
        assert_eq!(event.proxy_direction(), tap_event::ProxyDirection::Inbound);
        assert_eq!(event.destination, Some(app.addr().into()));
    }
    let tap_event::http::Event::RequestInit(init) = http(&events[0]) else {
        panic!("{:?}", events[0]);
    };
    assert_eq!((init.authority.as_str(), init.path.as_str()), ("web", "/a"));
    let names: Vec<&str> = init
        .headers
        .as_ref()
        .expect("headers")
        .headers
        .iter()
        .map(|h| h.name.as_str())
        .collect();
    assert!(names.contains(&"x-mine"), "{names:?}");
    let pseudo = names.iter().any(|name| name.starts_with(':'));
    assert!(!pseudo, "only HTTP/2 has them: {names:?}");
    let tap_event::http::Event::ResponseInit(answer) = http(&events[1]) else {
        panic!("{:?}", events[1]);
    };
    assert_eq!(answer.http_status, 200);
    assert_eq!(answer.id, init.id);
    let tap_event::http::Event::ResponseEnd(end) = http(&events[2]) else {
        panic!("{:?}", events[2]);
    };
    assert_eq!((end.response_bytes, end.eos), (7, WHOLE));
    assert!(end.since_request_init.is_some() && end.since_response_init.is_some());
}

#[test]
fn http2_requests_are_shown_with_their_pseudo_headers() {
    let app = http_echo();
    let pair = with_tap(app.addr());
    let tap = somebody(&pair.control, "tap");
    let outbound = pair.client.outbound;
    for proxy in [&pair.client, &pair.server] {
        let mut client = connect(proxy, Some(&tap));
        let events = observe(&mut client, everything(1, true), move || {
            assert_eq!(harness::http2_get(outbound, "http://web/a?b=c"), 200);
        });
        let tap_event::http::Event::RequestInit(init) = http(&events[0]) else {
            panic!("{:?}", events[0]);
        };
        let headers = &init.headers.as_ref().expect("headers").headers;
        let first: Vec<_> = headers[..4]
            .iter()
            .map(|h| (h.name.as_str(), String::from_utf8_lossy(&h.value)))
            .collect();
        let want = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "web"),
            (":path", "/a?b=c"),
        ];
        assert_eq!(first, want.map(|(name, value)| (name, value.into())));
        let tap_event::http::Event::ResponseInit(answer) = http(&events[1]) else {
            panic!("{:?}", events[1]);
        };
        let headers = &answer.headers.as_ref().expect("headers").headers;
        assert_eq!(
            (&*headers[0].name, &*headers[0].value),
            (":status", &b"200"[..])
        );
    }
}

#[test]
fn outbound_requests_are_shown_with_their_endpoint() {
    let app = http_echo();
    let pair = with_tap(app.addr());
    let tap = somebody(&pair.control, "tap");
    let outbound = pair.client.outbound;
    let mut client = connect(&pair.client, Some(&tap));
    let events = observe(&mut client, everything(2, false), move || {
        let mut client = Client::connect(outbound);
        for _ in 0..3 {
            assert_eq!(client.get("/", "web").status(), 200);
        }
    });
    assert_eq!(events.len(), 6, "two of three were asked for: {events:?}");
    let destination = &events[0].destination_meta.as_ref().expect("one").labels;
    assert_eq!(destination["tls"], "true");
    assert_eq!(destination["server_id"], pair.server.identity);
    let direction = events[0].proxy_direction();
    assert_eq!(direction, tap_event::ProxyDirection::Outbound);
    let tap_event::http::Event::RequestInit(init) = http(&events[0]) else {
        panic!("{:?}", events[0]);
    };
    assert_eq!(init.headers, None, "nobody asked for headers");
}

#[test]
fn http2_answers_are_followed_to_their_status() {
    let app = http_echo();
    let pair = with_tap(app.addr());
    let mut client = connect(&pair.client, None);
    let outbound = pair.client.outbound;
    let events = observe(&mut client, everything(1, false), move || {
        assert_eq!(harness::http2_get(outbound, "http://web.ns/x"), 200);
    });
    let tap_event::http::Event::ResponseEnd(end) = http(events.last().expect("events")) else {
        panic!("{events:?}");
    };
    // The client of this test goes away without reading the body.
    let reset = end.eos.as_ref().and_then(|e: &Eos| e.end.as_ref());
    assert!(
        matches!(reset, None | Some(eos::End::ResetErrorCode(_))),
        "{end:?}"
    );
}

#[test]
fn others_may_not_tap() {
    let app = http_echo();
    let pair = with_tap(app.addr());
    let status = |client: &mut TapClient<Channel>, request| {
        block_on(async { client.observe(request).await.expect_err("refused") })
    };
    let mut stranger = connect(&pair.server, Some(&pair.client));
    let refused = status(&mut stranger, everything(1, false));
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert_eq!(refused.message(), "Unauthorized client");
    let mut local = connect(&pair.server, None);
    let refused = status(&mut local, everything(0, false));
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "limit must be positive");
    let nothing = ObserveRequest {
        limit: 1,
        ..ObserveRequest::default()
    };
    assert_eq!(status(&mut local, nothing).code(), Code::InvalidArgument);
}

#[test]
fn a_match_without_content_is_refused_however_deep() {
    use observe_request::r#match::{self, Match as Kind};
    let app = http_echo();
    let pair = with_tap(app.addr());
    let mut client = connect(&pair.server, None);
    let empty = || Match { r#match: None };
    let of = |kind| Match {
        r#match: Some(kind),
    };
    let seq = |matches| r#match::Seq { matches };
    for (name, asked) in [
        ("empty", empty()),
        ("empty in all", of(Kind::All(seq(vec![empty()])))),
        ("empty in any", of(Kind::Any(seq(vec![empty()])))),
        ("empty in not", of(Kind::Not(Box::new(empty())))),
        (
            "empty in not in all",
            of(Kind::All(seq(vec![of(Kind::Not(Box::new(empty())))]))),
        ),
        (
            "HTTP without a field",
            of(Kind::Http(r#match::Http::default())),
        ),
        (
            "source without a field",
            of(Kind::Source(r#match::Tcp::default())),
        ),
    ] {
        let mut request = everything(1, false);
        request.r#match = Some(asked);
        let refused = block_on(async { client.observe(request).await });
        let refused = refused.err().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(refused.code(), Code::InvalidArgument, "{name}");
    }
}

#[test]
fn an_answer_its_client_gives_up_is_shown_as_cancelled() {
    let app = Echo::http_with(([127, 0, 0, 1], 0), |_| Answer::Pieces {
        headers: Vec::new(),
        pieces: vec![bytes::Bytes::from_static(b"late")],
        pause: Duration::from_secs(20),
        end: End::Trailers(Vec::new()),
    });
    let pair = with_tap(app.addr());
    for proxy in [&pair.server, &pair.client] {
        let mut client = connect(proxy, None);
        let outbound = pair.client.outbound;
        let events = observe(&mut client, everything(1, false), move || {
            block_on(async {
                let mut send = http2::connect(outbound).await;
                let request = http::Request::get("http://web/").body(()).expect("valid");
                let (response, mut stream) = send.send_request(request, true).expect("sends");
                assert_eq!(response.await.expect("a head").status(), 200);
                stream.send_reset(h2::Reason::CANCEL);
                drop(stream);
                // What comes after it on the connection is answered: the reset was read.
                let request = http::Request::get("http://web/").body(()).expect("valid");
                let mut send = send.ready().await.expect("open");
                let (after, _) = send.send_request(request, true).expect("sends");
                assert_eq!(after.await.expect("a head").status(), 200);
            });
        });
        let tap_event::http::Event::ResponseEnd(end) = http(events.last().expect("events")) else {
            panic!("{events:?}");
        };
        let cancelled = eos::End::ResetErrorCode(h2::Reason::CANCEL.into());
        let cancelled = Eos {
            end: Some(cancelled),
        };
        assert_eq!(end.eos, Some(cancelled));
    }
}

#[test]
fn workers_share_the_limit_of_a_tap() {
    let app = http_echo();
    let id = tap_id();
    let settings = [
        ("TAP_SVC_NAME", id.as_str()),
        ("CORES_MIN", "3"),
        ("CORES_MAX", "3"),
    ];
    let pair = Pair::with(app.addr(), &settings, &[]);
    let mut client = connect(&pair.client, None);
    let outbound = pair.client.outbound;
    let events = observe(&mut client, everything(5, false), move || {
        let asked: Vec<_> = (0..40)
            .map(|_| std::thread::spawn(move || harness::get(outbound, "/", "web").status()))
            .collect();
        for asked in asked {
            assert_eq!(asked.join().expect("asks"), 200);
        }
    });
    let begun = events
        .iter()
        .filter(|event| matches!(http(event), tap_event::http::Event::RequestInit(_)));
    assert_eq!(begun.count(), 5, "{events:?}");
    assert_eq!(events.len(), 15, "all of each");
}

#[test]
fn a_slow_reader_misses_events_and_harms_no_request() {
    const REQUESTS: u32 = 500;
    let app = http_echo();
    let pair = with_tap(app.addr());
    let tap = somebody(&pair.control, "tap");
    let mut client = connect(&pair.client, Some(&tap));
    let outbound = pair.client.outbound;
    block_on(async {
        let stream = client.observe(everything(u32::MAX, true)).await;
        let mut stream = stream.expect("taps").into_inner();
        // Nobody reads meanwhile: windows and queues are full long before the end.
        let ask = tokio::task::spawn_blocking(move || {
            let line = "a".repeat(8_000);
            let request = format!("GET / HTTP/1.1\r\nhost: web\r\nx-long: {line}\r\n\r\n");
            let mut client = harness::Client::connect(outbound);
            for _ in 0..REQUESTS {
                assert_eq!(client.send(&request).answer().status(), 200);
            }
        });
        ask.await.expect("all are answered");
        let first = stream.message().await.expect("open").expect("an event");
        assert!(matches!(
            http(&first),
            tap_event::http::Event::RequestInit(_)
        ));
    });
    let dropped = pair.client.metric("tap_events_dropped_total", &[]);
    let all = 3.0 * f64::from(REQUESTS);
    assert!(dropped > 0.0 && dropped < all, "{dropped} of {all}");
    harness::counts(
        &pair.client,
        "response_total",
        &["classification=\"success\""],
        f64::from(REQUESTS),
    );
}

#[test]
fn without_a_tap_service_nothing_listens() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    assert_eq!(pair.server.tap, None);
}

#[test]
fn routes_of_profiles_are_shown_and_asked_for() {
    use linkerd_api::proto::destination::{
        DestinationProfile, PathMatch, RequestMatch, Route, request_match,
    };
    let app = http_echo();
    let route = |name: &str, path: &str| Route {
        condition: Some(RequestMatch {
            r#match: Some(request_match::Match::Path(PathMatch { regex: path.into() })),
        }),
        metrics_labels: [("route".to_owned(), name.to_owned())].into(),
        ..Route::default()
    };
    let profile = DestinationProfile {
        fully_qualified_name: "web.ns.svc.cluster.local".into(),
        routes: vec![route("books", "/books"), route("authors", "/authors")],
        ..DestinationProfile::default()
    };
    let id = tap_id();
    let tap = [("TAP_SVC_NAME", id.as_str())];
    let pair = Pair::with_all(app.addr(), (&tap).into(), (&tap).into(), |control| {
        control.set_profile(CLUSTER_IP, profile.clone());
        control.set_profile(SERVICE, profile.clone());
    });
    for proxy in [&pair.client, &pair.server] {
        let mut client = connect(proxy, None);
        let mut request = everything(1, false);
        let label = observe_request::r#match::Label {
            key: "route".into(),
            value: "authors".into(),
        };
        request.r#match = Some(Match {
            r#match: Some(observe_request::r#match::Match::RouteLabel(label)),
        });
        let outbound = pair.client.outbound;
        let events = observe(&mut client, request, move || {
            let mut client = Client::connect(outbound);
            for path in ["/books", "/authors"] {
                assert_eq!(client.get(path, "web").status(), 200);
            }
        });
        assert_eq!(events.len(), 3, "{events:?}");
        let route = &events[0].route_meta.as_ref().expect("a route").labels;
        assert_eq!(route["route"], "authors");
        let tap_event::http::Event::RequestInit(init) = http(&events[0]) else {
            panic!("{:?}", events[0]);
        };
        assert_eq!(init.path, "/authors");
    }
}

#[test]
fn requests_that_reach_no_application_are_shown() {
    let app = harness::Closed::new();
    let pair = with_tap(app.addr());
    for (proxy, proto) in [(&pair.server, 1), (&pair.client, 1), (&pair.server, 2)] {
        let mut client = connect(proxy, None);
        let outbound = pair.client.outbound;
        let events = observe(&mut client, everything(1, false), move || {
            let status = match proto {
                1 => harness::get(outbound, "/", "web").status(),
                _ => harness::http2_get(outbound, "http://web/"),
            };
            assert!(matches!(status, 502 | 504), "{status}");
        });
        assert_eq!(events.len(), 3, "{events:?}");
        assert_eq!(events[0].destination, Some(app.addr().into()));
        let tap_event::http::Event::ResponseInit(answer) = http(&events[1]) else {
            panic!("{:?}", events[1]);
        };
        assert_eq!(answer.http_status, if proto == 1 { 502 } else { 504 });
        let tap_event::http::Event::ResponseEnd(end) = http(&events[2]) else {
            panic!("{:?}", events[2]);
        };
        assert_eq!(end.eos, WHOLE, "the answer was whole");
    }
}
