//! Outbound routes through running proxies: which rule takes a request, what its filters change, and
//! which of its backends it goes to. A rule that injects a status shows that it was taken.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::net::SocketAddr;

use bytes::Bytes;
use harness::{CLUSTER_IP, Client, DEADLINE, Pair, SERVICE, block_on, get, http_echo, rule};
use linkerd_api::proto::{
    grpc_route::{GrpcFailureInjector, GrpcRouteMatch, GrpcRpcMatch},
    http_route::{
        HeaderMatch, HostMatch, HttpFailureInjector, HttpRouteMatch, PathMatch, QueryParamMatch,
        Ratio, RequestHeaderModifier, ResponseHeaderModifier, header_match, host_match, path_match,
        query_param_match,
    },
    http_types::{Headers, HttpMethod, headers::Header, http_method},
    outbound::{
        self, GrpcRoute, HttpRoute, OutboundPolicy, grpc_route,
        http_route::{
            Distribution, Filter, RouteBackend, WeightedRouteBackend, distribution, filter,
        },
        proxy_protocol,
    },
};
use linkerd_testkit::{
    control_plane::objects,
    echo::{Answer, Echo, End},
    wait_for,
};

fn filters(kinds: impl IntoIterator<Item = filter::Kind>) -> Vec<Filter> {
    let filter = |kind| Filter { kind: Some(kind) };
    kinds.into_iter().map(filter).collect()
}

fn injector(status: u32, ratio: Option<Ratio>) -> filter::Kind {
    filter::Kind::FailureInjector(HttpFailureInjector {
        status,
        message: "taken".into(),
        ratio,
    })
}

/// A route whose only rule matches as told and answers with a status.
fn taken(status: u32, hosts: &[host_match::Match], r#match: HttpRouteMatch) -> HttpRoute {
    let mut route = objects::http_route(objects::balancer(SERVICE));
    let host = |host: &host_match::Match| HostMatch {
        r#match: Some(host.clone()),
    };
    route.hosts = hosts.iter().map(host).collect();
    route.rules[0].matches = vec![r#match];
    route.rules[0].filters = filters([injector(status, None)]);
    route
}

fn path(kind: path_match::Kind) -> HttpRouteMatch {
    HttpRouteMatch {
        path: Some(PathMatch { kind: Some(kind) }),
        ..HttpRouteMatch::default()
    }
}

fn prefix(prefix: &str) -> HttpRouteMatch {
    path(path_match::Kind::Prefix(prefix.into()))
}

fn with_header(name: &str, value: header_match::Value, base: HttpRouteMatch) -> HttpRouteMatch {
    let mut with = base;
    with.headers.push(HeaderMatch {
        name: name.into(),
        value: Some(value),
    });
    with
}

fn with_query(name: &str, value: query_param_match::Value, base: HttpRouteMatch) -> HttpRouteMatch {
    let mut with = base;
    with.query_params.push(QueryParamMatch {
        name: name.into(),
        value: Some(value),
    });
    with
}

fn with_method(method: http_method::Type, base: HttpRouteMatch) -> HttpRouteMatch {
    HttpRouteMatch {
        method: Some(HttpMethod {
            r#type: Some(method),
        }),
        ..base
    }
}

/// Routes by what they match; every one answers with a status of its own.
fn routes() -> Vec<HttpRoute> {
    use header_match::Value::{Exact as Is, Regex as Like};
    use query_param_match::Value::{Exact as QueryIs, Regex as QueryLike};
    let any = || prefix("/");
    let registered = |m| http_method::Type::Registered(m as i32);
    let suffix = |labels: &[&str]| {
        let reverse_labels = labels.iter().map(ToString::to_string).collect();
        host_match::Match::Suffix(host_match::Suffix { reverse_labels })
    };
    let named = host_match::Match::Exact("exact.example.com".into());
    vec![
        taken(500, &[], any()),
        taken(501, &[], path(path_match::Kind::Exact("/exact".into()))),
        taken(502, &[], prefix("/exact")),
        taken(503, &[], prefix("/a")),
        taken(504, &[], prefix("/a/longer")),
        taken(505, &[], path(path_match::Kind::Regex("/re/[0-9]+".into()))),
        taken(510, &[], with_header("x-kind", Is(b"one".to_vec()), any())),
        taken(511, &[], with_header("x-kind", Like("t.*".into()), any())),
        // More headers beat one.
        taken(
            512,
            &[],
            with_header(
                "x-more",
                Is(b"yes".to_vec()),
                with_header("x-kind", Is(b"one".to_vec()), any()),
            ),
        ),
        taken(520, &[], with_query("q", QueryIs("one".into()), any())),
        taken(
            521,
            &[],
            with_query("q", QueryLike("t[a-z]+".into()), any()),
        ),
        taken(
            530,
            &[],
            with_method(registered(http_method::Registered::Delete), any()),
        ),
        taken(
            531,
            &[],
            with_method(http_method::Type::Unregistered("PURGE".into()), any()),
        ),
        taken(540, &[suffix(&["com", "example"])], any()),
        taken(541, &[suffix(&["com", "example", "deep"])], any()),
        taken(542, &[named], any()),
        // As good as the first, and after it.
        taken(550, &[], prefix("/a")),
    ]
}

/// What a request says, and the rule that takes it.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    u16,
);

const CASES: &[Case] = &[
    ("GET", "web", "/", &[], 500),
    ("GET", "web", "/exact", &[], 501),
    ("GET", "web", "/exact/", &[], 502),
    ("GET", "web", "/exact/below", &[], 502),
    ("GET", "web", "/exactly", &[], 500),
    ("GET", "web", "/a", &[], 503),
    ("GET", "web", "/a/other", &[], 503),
    ("GET", "web", "/a/longer/still", &[], 504),
    ("GET", "web", "/re/42", &[], 505),
    ("GET", "web", "/re/42/more", &[], 500),
    ("GET", "web", "/", &[("x-kind", "one")], 510),
    ("GET", "web", "/", &[("X-Kind", "one")], 510),
    ("GET", "web", "/", &[("x-kind", "ones")], 500),
    ("GET", "web", "/", &[("x-kind", "two")], 511),
    ("GET", "web", "/", &[("x-kind", "other")], 500),
    (
        "GET",
        "web",
        "/",
        &[("x-kind", "one"), ("x-more", "yes")],
        512,
    ),
    // The longer path is looked at before headers, queries and methods.
    ("GET", "web", "/a", &[("x-kind", "one")], 503),
    ("GET", "web", "/?q=one", &[], 520),
    ("GET", "web", "/?p=1&q=two", &[], 521),
    ("GET", "web", "/?q=2", &[], 500),
    ("DELETE", "web", "/", &[], 530),
    ("PURGE", "web", "/", &[], 531),
    // Headers before queries, queries before methods.
    ("DELETE", "web", "/?q=one", &[("x-kind", "one")], 510),
    ("DELETE", "web", "/?q=one", &[], 520),
    // Hosts before everything.
    ("GET", "api.example.com", "/a", &[("x-kind", "one")], 540),
    ("GET", "API.EXAMPLE.COM", "/", &[], 540),
    ("GET", "api.example.com:8080", "/", &[], 540),
    ("GET", "one.deep.example.com", "/", &[], 541),
    ("GET", "exact.example.com", "/", &[], 542),
    ("GET", "exact.example.com.", "/", &[], 542),
    ("GET", "example.com", "/", &[], 500),
];

/// A request over HTTP/1 or HTTP/2.
fn status(at: SocketAddr, http2: bool, case: &Case) -> u16 {
    let (method, host, target, headers, _) = case;
    if !http2 {
        let lines: String = headers
            .iter()
            .map(|(n, v)| format!("{n}: {v}\r\n"))
            .collect();
        let head = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n");
        return Client::connect(at).send(head).answer().status();
    }
    block_on(async {
        let mut send = http2::connect(at).await;
        let mut request = http::Request::builder()
            .method(*method)
            .uri(format!("http://{host}{target}"));
        for (name, value) in *headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("valid");
        let got = http2::call(&mut send, request, &[]).await;
        got.expect("an answer").head.status().as_u16()
    })
}

#[test]
fn the_best_match_takes_a_request() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let policy = objects::detect(routes(), None);
    pair.control.set_outbound(CLUSTER_IP, policy);
    for http2 in [false, true] {
        for case in CASES {
            let got = status(pair.client.outbound, http2, case);
            assert_eq!(got, case.4, "HTTP/2 {http2}: {case:?}");
        }
    }
    assert!(app.requests().is_empty());
}

/// A gRPC route that answers with a code.
fn grpc_taken(code: u32, service: &str, method: &str, header: Option<&str>) -> GrpcRoute {
    let failure = GrpcFailureInjector {
        code,
        message: "taken".into(),
        ratio: None,
    };
    let header = header.map(|value| HeaderMatch {
        name: "x-kind".into(),
        value: Some(header_match::Value::Exact(value.into())),
    });
    GrpcRoute {
        metadata: Some(objects::default_meta("grpc")),
        hosts: Vec::new(),
        rules: vec![grpc_route::Rule {
            matches: vec![GrpcRouteMatch {
                rpc: Some(GrpcRpcMatch {
                    service: service.into(),
                    method: method.into(),
                }),
                headers: header.into_iter().collect(),
            }],
            filters: vec![grpc_route::Filter {
                kind: Some(grpc_route::filter::Kind::FailureInjector(failure)),
            }],
            backends: Some(grpc_route::Distribution {
                kind: Some(grpc_route::distribution::Kind::Empty(
                    grpc_route::distribution::Empty {},
                )),
            }),
            ..grpc_route::Rule::default()
        }],
    }
}

#[test]
fn the_best_match_takes_a_grpc_call() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let grpc = proxy_protocol::Grpc {
        routes: vec![
            grpc_taken(1, "", "Get", None),
            grpc_taken(2, "shop.Cart", "", None),
            grpc_taken(3, "shop.Cart", "Get", None),
            grpc_taken(4, "shop.Cart", "Get", Some("one")),
            grpc_taken(6, "shop.Cart", "", Some("one")),
        ],
        failure_accrual: None,
    };
    let policy = OutboundPolicy {
        metadata: Some(objects::resource("Service", "ns", "web")),
        protocol: Some(outbound::ProxyProtocol {
            kind: Some(proxy_protocol::Kind::Grpc(grpc)),
        }),
    };
    pair.control.set_outbound(CLUSTER_IP, policy);
    block_on(async {
        let mut send = http2::connect(pair.client.outbound).await;
        for (method, path, kind, want) in [
            ("POST", "/any.Service/Get", "", "1"),
            ("POST", "/shop.Cart/Put", "", "2"),
            ("POST", "/shop.Cart/Get", "", "3"),
            ("POST", "/shop.Cart/Get", "one", "4"),
            ("POST", "/shop.Cart/Put", "one", "6"),
            // Nobody takes it: no route.
            ("POST", "/any.Service/Put", "", "5"),
            ("GET", "/shop.Cart/Get", "", "5"),
        ] {
            let request = http::Request::builder()
                .method(method)
                .uri(format!("http://web{path}"))
                .header("content-type", "application/grpc")
                .header("x-kind", kind)
                .body(())
                .expect("valid");
            let got = http2::call(&mut send, request, &[]).await;
            let got = got.expect("an answer");
            let code = got.head.headers()["grpc-status"].to_str().expect("text");
            assert_eq!(code, want, "{method} {path} {kind:?}");
        }
    });
}

fn headers(lines: &[(&str, &str)]) -> Option<Headers> {
    let line = |(name, value): &(&str, &str)| Header {
        name: (*name).into(),
        value: value.as_bytes().to_vec(),
    };
    Some(Headers {
        headers: lines.iter().map(line).collect(),
    })
}

#[test]
fn answers_are_changed_over_every_version() {
    let app = Echo::http_with(([127, 0, 0, 1], 0), |_| Answer::Pieces {
        headers: vec![
            ("x-added", "app".to_owned()),
            ("x-set", "app".to_owned()),
            ("x-removed", "app".to_owned()),
            ("x-own", "app".to_owned()),
        ],
        pieces: vec![Bytes::from_static(b"body")],
        pause: std::time::Duration::ZERO,
        end: End::Trailers(Vec::new()),
    });
    let modifier = ResponseHeaderModifier {
        add: headers(&[("x-added", "proxy"), ("x-new", "proxy")]),
        set: headers(&[("x-set", "proxy"), ("x-fresh", "proxy")]),
        remove: vec!["x-removed".into(), "x-absent".into()],
    };
    let policy = rule(|rule| {
        rule.filters = filters([filter::Kind::ResponseHeaderModifier(modifier)]);
    });
    let want = [
        ("x-added", "app, proxy"),
        ("x-new", "proxy"),
        ("x-set", "proxy"),
        ("x-fresh", "proxy"),
        ("x-removed", ""),
        ("x-own", "app"),
    ];
    let upgraded = [("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")];
    for (name, settings, http2) in [
        ("HTTP/1", &[][..], false),
        ("upgraded", &upgraded, false),
        ("HTTP/2", &[], true),
    ] {
        let pair = Pair::with(app.addr(), settings, &[]);
        pair.control.set_outbound(CLUSTER_IP, policy.clone());
        let at = pair.client.outbound;
        let got: Vec<(String, String)> = if http2 {
            block_on(async {
                let mut send = http2::connect(at).await;
                let request = http::Request::get("http://web/").body(()).expect("valid");
                let got = http2::call(&mut send, request, &[])
                    .await
                    .expect("answered");
                let fields = got.head.headers().iter();
                let text = |v: &http::HeaderValue| v.to_str().expect("text").to_owned();
                fields.map(|(n, v)| (n.to_string(), text(v))).collect()
            })
        } else {
            let answer = get(at, "/", "web");
            let lines = answer.head.lines().filter_map(|l| l.split_once(": "));
            lines.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
        };
        for (header, value) in want {
            let values = got.iter().filter(|(n, _)| n.eq_ignore_ascii_case(header));
            let values: Vec<_> = values.map(|(_, v)| v.as_str()).collect();
            assert_eq!(values.join(", "), value, "{name}: {header}");
        }
    }
}

#[test]
fn failures_are_injected_as_often_as_told() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut before = app.requests().len();
    for (numerator, denominator, expected) in [(0, 10, 0..=0), (1, 4, 20..=90), (1, 1, 200..=200)] {
        let ratio = Ratio {
            numerator,
            denominator,
        };
        let policy = rule(|rule| rule.filters = filters([injector(418, Some(ratio))]));
        pair.control.set_outbound(CLUSTER_IP, policy);
        // A connection that begins now may still see the policy before.
        let mut client = Client::connect(pair.client.outbound);
        wait_for(DEADLINE, "the policy", || {
            let status = client.get("/", "web").status();
            numerator == 0 || status == 418
        });
        before = app.requests().len().max(before);
        let asked: Vec<u16> = (0..200).map(|_| client.get("/", "web").status()).collect();
        let injected = asked.iter().filter(|status| **status == 418).count();
        assert!(expected.contains(&injected), "{ratio:?}: {injected}");
        assert_eq!(app.requests().len() - before, 200 - injected, "{ratio:?}");
    }
}

/// Applications that say who they are.
fn named(status: u16) -> Echo {
    Echo::http_with(([127, 0, 0, 1], 0), move |_| Answer::status(status, "me"))
}

fn backend(service: &str) -> RouteBackend {
    RouteBackend {
        backend: Some(objects::balancer(service)),
        ..RouteBackend::default()
    }
}

fn weighted(service: &str, weight: u32) -> WeightedRouteBackend {
    WeightedRouteBackend {
        backend: Some(backend(service)),
        weight,
    }
}

fn distributed(kind: distribution::Kind) -> OutboundPolicy {
    rule(|rule| rule.backends = Some(Distribution { kind: Some(kind) }))
}

fn random(backends: Vec<WeightedRouteBackend>) -> OutboundPolicy {
    distributed(distribution::Kind::RandomAvailable(
        distribution::RandomAvailable { backends },
    ))
}

fn first(backends: Vec<RouteBackend>) -> OutboundPolicy {
    distributed(distribution::Kind::FirstAvailable(
        distribution::FirstAvailable { backends },
    ))
}

#[test]
fn requests_go_to_backends_that_are_ready_by_their_weight() {
    const ONE: &str = "one.ns.svc.cluster.local:80";
    const TWO: &str = "two.ns.svc.cluster.local:80";
    const NOWHERE: &str = "nowhere.ns.svc.cluster.local:80";
    let (one, two) = (named(201), named(202));
    let pair = Pair::prepared(one.addr(), |control| {
        control.set_endpoints(ONE, [objects::endpoint(one.addr())]);
        control.set_endpoints(TWO, [objects::endpoint(two.addr())]);
        control.set_endpoints(NOWHERE, []);
    });
    let ask = |times: usize| -> Vec<u16> {
        let mut client = Client::connect(pair.client.outbound);
        (0..times)
            .map(|_| client.get("/", "web").status())
            .collect()
    };
    let shares = |asked: &[u16]| {
        let of = |status| asked.iter().filter(|s| **s == status).count();
        (of(201), of(202))
    };
    // Until the policy is there and every backend is known to be ready or not.
    let settled = |what: &str, policy: OutboundPolicy, like: fn(&[u16]) -> bool| {
        pair.control.set_outbound(CLUSTER_IP, policy);
        wait_for(DEADLINE, what, || like(&ask(20)));
    };
    settled(
        "both backends",
        random(vec![weighted(ONE, 1), weighted(TWO, 3)]),
        |asked| asked.contains(&201) && asked.contains(&202),
    );
    let (ones, twos) = shares(&ask(400));
    assert_eq!(ones + twos, 400);
    assert!((60..=140).contains(&ones), "one of four: {ones} of 400");
    settled(
        "only what is ready and has a weight",
        random(vec![
            weighted(ONE, 0),
            weighted(TWO, 1),
            weighted(NOWHERE, 1_000),
        ]),
        |asked| asked.iter().all(|status| *status == 202),
    );
    assert_eq!(shares(&ask(100)), (0, 100));
    settled(
        "the second, while the first has no endpoint",
        first(vec![backend(NOWHERE), backend(TWO), backend(ONE)]),
        |asked| asked.iter().all(|status| *status == 202),
    );
    assert_eq!(shares(&ask(100)), (0, 100));
    pair.control
        .set_endpoints(NOWHERE, [objects::endpoint(one.addr())]);
    wait_for(DEADLINE, "the first, as soon as it has one", || {
        shares(&ask(20)) == (20, 0)
    });
}

#[test]
fn a_backend_has_filters_of_its_own() {
    const OTHER: &str = "other.ns.svc.cluster.local:80";
    let (app, other) = (http_echo(), http_echo());
    let pair = Pair::prepared(app.addr(), |control| {
        control.set_endpoints(OTHER, [objects::endpoint(other.addr())]);
    });
    let marked = |service: &str, mark: &str| RouteBackend {
        filters: filters([
            filter::Kind::RequestHeaderModifier(RequestHeaderModifier {
                set: headers(&[("x-backend", mark)]),
                ..RequestHeaderModifier::default()
            }),
            filter::Kind::ResponseHeaderModifier(ResponseHeaderModifier {
                add: headers(&[("x-by", mark)]),
                ..ResponseHeaderModifier::default()
            }),
        ]),
        ..backend(service)
    };
    let both = [marked(SERVICE, "web"), marked(OTHER, "other")];
    let both = both.map(|backend| WeightedRouteBackend {
        backend: Some(backend),
        weight: 1,
    });
    pair.control.set_outbound(CLUSTER_IP, random(both.to_vec()));
    let mut client = Client::connect(pair.client.outbound);
    wait_for(DEADLINE, "a request to each", || {
        let answer = client.get("/", "web");
        assert!(answer.header("x-by").is_some(), "{}", answer.head);
        !app.requests().is_empty() && !other.requests().is_empty()
    });
    for (name, app) in [("web", &app), ("other", &other)] {
        for request in app.requests() {
            assert_eq!(request.header("x-backend"), Some(name));
        }
    }
}
