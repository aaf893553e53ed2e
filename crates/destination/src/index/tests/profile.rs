//! The index with objects and no cluster: profiles of Services (spec 3.2 and 3.3).

use std::net::IpAddr;

use linkerd_api::proto::{destination as pb, http_types, meta};
use prost::Message;
use serde_json::{Value, json};

use super::{IDENTITY, World, simple};
use crate::{
    ObjectId,
    config::Config,
    fixture::*,
    grpc::frame::PREFIX,
    index::NoService,
    stream::{AtAddress, Next, ProfileStream},
};

mod address;

/// A client of a profile stream.
struct Subscriber {
    stream: ProfileStream,
    seen: pb::DestinationProfile,
    ended: bool,
}

impl Subscriber {
    fn new(stream: ProfileStream, world: &World) -> Self {
        let mut subscriber = Self {
            stream,
            seen: pb::DestinationProfile::default(),
            ended: false,
        };
        assert!(subscriber.catch_up(world), "something is said at once");
        subscriber
    }

    fn catch_up(&mut self, world: &World) -> bool {
        match self.stream.next(|profile| world.wire.profile(profile)) {
            Next::Send(messages) => {
                let [bytes] = messages.as_slice() else {
                    panic!("one message at a time")
                };
                self.seen =
                    pb::DestinationProfile::decode(bytes.slice(PREFIX..)).expect("a message");
                true
            }
            Next::Wait => false,
            Next::End => {
                self.ended = true;
                false
            }
        }
    }

    fn endpoint(&self) -> String {
        self.seen.endpoint.as_ref().map(line).unwrap_or_default()
    }
}

fn service_profile(world: &World, port: u16, client: Option<&str>) -> Subscriber {
    let id = ObjectId::new("ns", "web");
    let stream = world
        .discovery
        .service_profile(&id, port, None, client)
        .expect("a Service");
    Subscriber::new(stream, world)
}

fn at(world: &World, ip: &str, port: u16) -> Result<Subscriber, String> {
    let ip = ip.parse::<IpAddr>().expect("an address");
    match world.discovery.address(ip, port) {
        AtAddress::Profile(stream) => Ok(Subscriber::new(stream, world)),
        AtAddress::Service(id) => Err(format!("service {id}")),
        AtAddress::Conflict(message) => Err(message),
    }
}

fn profile(namespace: &str, route: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": "web.ns.svc.cluster.local"},
        "spec": {"routes": [{"name": route, "condition": {"method": "GET"}}]},
    })
}

fn resource(metadata: Option<&meta::Metadata>) -> String {
    match metadata.and_then(|it| it.kind.as_ref()) {
        Some(meta::metadata::Kind::Resource(it)) => {
            format!(
                "{}/{}/{}/{}:{}",
                it.group, it.kind, it.namespace, it.name, it.port
            )
        }
        _ => String::new(),
    }
}

#[test]
fn a_service_without_profile() {
    let world = simple();
    let seen = service_profile(&world, 80, None).seen;
    assert_eq!(seen.fully_qualified_name, "web.ns.svc.cluster.local");
    assert_eq!(resource(seen.parent_ref.as_ref()), "core/Service/ns/web:80");
    assert_eq!(seen.profile_ref, None);
    assert!(seen.routes.is_empty() && seen.endpoint.is_none() && !seen.opaque_protocol);
    let budget = seen.retry_budget.expect("a budget");
    assert_eq!(
        (budget.retry_ratio, budget.min_retries_per_second),
        (0.2, 10)
    );
    assert_eq!(budget.ttl.map(|ttl| ttl.seconds), Some(10));
}

#[test]
fn the_requested_name_comes_back() {
    let world = simple();
    let id = ObjectId::new("ns", "web");
    let stream = world
        .discovery
        .service_profile(&id, 80, Some("Web.ns.svc.cluster.local"), None);
    let seen = Subscriber::new(stream.expect("a Service"), &world).seen;
    assert_eq!(seen.fully_qualified_name, "Web.ns.svc.cluster.local");
}

#[test]
fn an_undefined_port_is_an_empty_profile_until_it_is_defined() {
    let world = simple();
    let mut client = service_profile(&world, 81, None);
    assert_eq!(client.seen, pb::DestinationProfile::default());
    world.apply(
        "Service",
        with(
            service("10.0.0.1"),
            json!({"spec": {"ports": [{"port": 81}]}}),
        ),
    );
    assert!(client.catch_up(&world));
    assert_eq!(
        resource(client.seen.parent_ref.as_ref()),
        "core/Service/ns/web:81"
    );
    world.apply("Service", service("10.0.0.1"));
    assert!(client.catch_up(&world), "the port is taken away again");
    assert_eq!(client.seen, pb::DestinationProfile::default());
}

#[test]
fn services_that_cannot_be_asked() {
    let world = World::new();
    let id = ObjectId::new("ns", "web");
    let ask = || {
        world
            .discovery
            .service_profile(&id, 80, None, None)
            .expect_err("no profile")
    };
    assert_eq!(ask(), NoService::Unknown);
    world.apply(
        "Service",
        json!({"metadata": {"namespace": "ns", "name": "web"},
        "spec": {"type": "ExternalName", "externalName": "example.com", "ports": [{"port": 80}]}}),
    );
    assert_eq!(ask(), NoService::ExternalName);
    assert_eq!(world.discovery.dispatch(&id), Err(NoService::ExternalName));
}

#[test]
fn a_deleted_service_ends_the_stream() {
    let world = simple();
    let mut client = service_profile(&world, 80, None);
    world.delete("Service", "web");
    client.catch_up(&world);
    assert!(client.ended);
}

/// Spec 3.3: the client's namespace comes first.
#[test]
fn which_profile() {
    for (name, profiles, client, expected) in [
        ("none", [].as_slice(), Some("shop"), None),
        ("the Service's", &["ns"], Some("shop"), Some("ns")),
        ("the client's", &["shop"], Some("shop"), Some("shop")),
        (
            "the client's first",
            &["ns", "shop"],
            Some("shop"),
            Some("shop"),
        ),
        ("no client", &["ns", "shop"], None, Some("ns")),
        ("no client, only the client's", &["shop"], None, None),
        ("a third namespace", &["other"], Some("shop"), None),
    ] {
        let world = simple();
        let mut early = service_profile(&world, 80, client);
        for namespace in profiles {
            world.apply("ServiceProfile", profile(namespace, namespace));
        }
        early.catch_up(&world);
        let late = service_profile(&world, 80, client);
        for seen in [&early.seen, &late.seen] {
            let route = seen
                .routes
                .first()
                .map(|route| route.metrics_labels["route"].as_str());
            assert_eq!(route, expected, "{name}");
            let reference = expected.map(|namespace| {
                format!("linkerd.io/ServiceProfile/{namespace}/web.ns.svc.cluster.local:0")
            });
            assert_eq!(
                resource(seen.profile_ref.as_ref()),
                reference.unwrap_or_default(),
                "{name}"
            );
        }
    }
}

#[test]
fn profiles_are_followed_and_equal_ones_are_not_sent_again() {
    let world = simple();
    let mut client = service_profile(&world, 80, Some("ns"));
    world.apply("ServiceProfile", profile("ns", "one"));
    assert!(client.catch_up(&world));
    world.apply("ServiceProfile", profile("ns", "one"));
    assert!(!client.catch_up(&world));
    let invalid = json!({"spec": {"routes": [{"name": "two", "condition": {}}]}});
    world.apply("ServiceProfile", with(profile("ns", "two"), invalid));
    assert!(!client.catch_up(&world), "an invalid one changes nothing");
    world.delete("ServiceProfile", "web.ns.svc.cluster.local");
    assert!(client.catch_up(&world));
    assert!(client.seen.routes.is_empty());
}

/// No time is sent as no limit: a proxy takes a zero for one.
#[test]
fn no_time_is_not_sent() {
    let world = simple();
    world.apply(
        "ServiceProfile",
        json!({
            "metadata": {"namespace": "ns", "name": "web.ns.svc.cluster.local"},
            "spec": {
                "retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": 3, "ttl": "0s"},
                "routes": [
                    {"name": "zero", "condition": {"method": "GET"}, "timeout": "0s"},
                    {"name": "one", "condition": {"method": "PUT"}, "timeout": "1s"},
                ],
            },
        }),
    );
    let seen = service_profile(&world, 80, None).seen;
    let budget = seen.retry_budget.expect("a budget");
    assert_eq!(budget.ttl, None);
    let timeouts = seen.routes.iter().map(|it| it.timeout.map(|it| it.seconds));
    assert_eq!(timeouts.collect::<Vec<_>>(), [None, Some(1)]);
}

/// Spec 3.2: routes as they travel.
#[test]
fn routes_on_the_wire() {
    use pb::{request_match::Match as Request, response_match::Match as Response};
    fn request(it: &pb::RequestMatch) -> String {
        let seq = |seq: &pb::request_match::Seq| {
            let all: Vec<_> = seq.matches.iter().map(request).collect();
            all.join(", ")
        };
        match it.r#match.as_ref().expect("a match") {
            Request::All(all) => format!("all({})", seq(all)),
            Request::Any(any) => format!("any({})", seq(any)),
            Request::Not(not) => format!("not({})", request(not)),
            Request::Path(path) => format!("path {}", path.regex),
            Request::Method(method) => match method.r#type.as_ref().expect("a type") {
                http_types::http_method::Type::Registered(number) => {
                    let known = http_types::http_method::Registered::try_from(*number);
                    format!("registered {}", known.expect("known").as_str_name())
                }
                http_types::http_method::Type::Unregistered(name) => format!("unregistered {name}"),
            },
        }
    }
    fn response(it: &pb::ResponseMatch) -> String {
        let seq = |seq: &pb::response_match::Seq| {
            let all: Vec<_> = seq.matches.iter().map(response).collect();
            all.join(", ")
        };
        match it.r#match.as_ref().expect("a match") {
            Response::All(all) => format!("all({})", seq(all)),
            Response::Any(any) => format!("any({})", seq(any)),
            Response::Not(not) => format!("not({})", response(not)),
            Response::Status(range) => format!("{}-{}", range.min, range.max),
        }
    }
    let conditions = [
        ("GET", "registered GET"),
        ("POST", "registered POST"),
        ("PUT", "registered PUT"),
        ("DELETE", "registered DELETE"),
        ("PATCH", "registered PATCH"),
        ("OPTIONS", "registered OPTIONS"),
        ("CONNECT", "registered CONNECT"),
        ("HEAD", "registered HEAD"),
        ("TRACE", "registered TRACE"),
        ("get", "registered GET"),
        ("PURGE", "unregistered PURGE"),
    ];
    let conditions = conditions.map(|(method, expected)| (json!({"method": method}), expected));
    let nested = [
        (json!({"pathRegex": "/a.*"}), "path /a.*"),
        (
            json!({"all": [{"pathRegex": "/a"}, {"not": {"method": "GET"}}]}),
            "all(path /a, not(registered GET))",
        ),
        (
            json!({"any": [{"pathRegex": "/a"}, {"all": [{"pathRegex": "/b"}, {"any": [{"method": "PUT"}]}]}]}),
            "any(path /a, all(path /b, any(registered PUT)))",
        ),
        (
            json!({"pathRegex": "/a", "method": "GET", "not": {"pathRegex": "/b"}, "any": [{"pathRegex": "/c"}], "all": [{"pathRegex": "/d"}]}),
            "all(all(path /d), any(path /c), registered GET, not(path /b), path /a)",
        ),
    ];
    for (condition, expected) in conditions.into_iter().chain(nested) {
        let world = simple();
        let spec = json!({"routes": [{"name": "r", "condition": condition}]});
        world.apply(
            "ServiceProfile",
            with(profile("ns", "r"), json!({"spec": spec})),
        );
        let seen = service_profile(&world, 80, None).seen;
        let found = seen.routes[0].condition.as_ref().expect("a condition");
        assert_eq!(request(found), expected, "{condition}");
    }

    let world = simple();
    let classes = json!([
        {"condition": {"status": {"min": 500, "max": 599}}, "isFailure": true},
        {"condition": {"any": [{"status": {"min": 200}}, {"not": {"status": {"min": 1, "max": 2}}}]}},
        {"condition": {"all": [{"status": {"max": 3}}], "status": {"min": 4, "max": 5}}, "isFailure": false},
    ]);
    let routes = json!({"spec": {"routes": [
        {"name": "one", "condition": {"method": "GET"}, "isRetryable": true, "timeout": "250ms", "responseClasses": classes},
        {"name": "two", "condition": {"method": "PUT"}, "timeout": "soon"},
    ]}});
    world.apply("ServiceProfile", with(profile("ns", "r"), routes));
    let seen = service_profile(&world, 80, None).seen;
    let [one, two] = seen.routes.as_slice() else {
        panic!("two routes, in order: {seen:?}")
    };
    let found: Vec<_> = one
        .response_classes
        .iter()
        .map(|class| {
            (
                response(class.condition.as_ref().expect("a condition")),
                class.is_failure,
            )
        })
        .collect();
    let expected = [
        ("500-599", true),
        ("any(200-0, not(1-2))", false),
        ("all(all(0-3), 4-5)", false),
    ];
    assert_eq!(
        found,
        expected.map(|(shown, failure)| (shown.to_owned(), failure))
    );
    let shown = |route: &pb::Route| {
        let timeout = route.timeout.map(|it| it.nanos);
        (
            route.metrics_labels["route"].clone(),
            route.is_retryable,
            timeout,
        )
    };
    assert_eq!(shown(one), ("one".to_owned(), true, Some(250_000_000)));
    assert_eq!(
        shown(two),
        ("two".to_owned(), false, None),
        "no readable timeout, no limit"
    );
}

#[test]
fn budgets_and_overrides() {
    let world = simple();
    world.apply(
        "ServiceProfile",
        json!({
            "metadata": {"namespace": "ns", "name": "web.ns.svc.cluster.local"},
            "spec": {
                "opaquePorts": ["80"],
                "retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": 3, "ttl": "1m"},
                "dstOverrides": [
                    {"authority": "a.ns.svc.cluster.local", "weight": "500m"},
                    {"authority": "b.ns.svc.cluster.local:8080", "weight": 1},
                    {"authority": "without-weight"},
                    {"authority": "weight-zero", "weight": "0"},
                ],
            },
        }),
    );
    let seen = service_profile(&world, 80, None).seen;
    let budget = seen.retry_budget.expect("a budget");
    assert_eq!(
        (budget.retry_ratio, budget.min_retries_per_second),
        (0.5, 3)
    );
    assert_eq!(budget.ttl.map(|ttl| ttl.seconds), Some(60));
    let overrides: Vec<_> = seen
        .dst_overrides
        .iter()
        .map(|it| (it.authority.as_str(), it.weight))
        .collect();
    assert_eq!(
        overrides,
        [
            ("a.ns.svc.cluster.local:80", 5000),
            ("b.ns.svc.cluster.local:8080", 10000),
            ("without-weight:80", 0),
            ("weight-zero:80", 0),
        ]
    );
    assert!(
        !seen.opaque_protocol,
        "the profile's opaque ports have no effect"
    );
}

/// Spec 2.11, the row of GetProfile for a Service.
#[test]
fn opaque_ports_of_a_service() {
    let annotated =
        |list: &str| json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": list}}});
    for (name, port, extra, expected) in [
        ("default list", 3306, json!({}), true),
        ("not in the default list", 80, json!({}), false),
        ("annotated", 80, annotated("80"), true),
        ("annotated by name", 80, annotated("http"), true),
        ("annotated range", 80, annotated("70-90"), true),
        (
            "the annotation replaces the defaults",
            3306,
            annotated("80"),
            false,
        ),
        ("none at all", 3306, annotated(""), false),
        (
            "a name like a range is a name first",
            80,
            with(
                annotated("1-2"),
                json!({"spec": {"ports": [
            {"name": "1-2", "port": 80}]}}),
            ),
            true,
        ),
        ("noise is left out", 80, annotated("nonsense,80"), true),
    ] {
        let world = World::with(Config {
            default_opaque_ports: "3306".parse().expect("ports"),
            ..Config::default()
        });
        let ports = json!({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "sql", "port": 3306}]}});
        world.apply("Server", opaque_server("s", json!(80)));
        world.apply("Service", with(with(service("10.0.0.1"), ports), extra));
        assert_eq!(
            service_profile(&world, port, None).seen.opaque_protocol,
            expected,
            "{name}"
        );
    }
}

#[test]
fn a_changed_annotation_reaches_the_stream() {
    let world = simple();
    let mut client = service_profile(&world, 80, None);
    let annotated = json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "80"}}});
    world.apply("Service", with(service("10.0.0.1"), annotated));
    assert!(client.catch_up(&world));
    assert!(client.seen.opaque_protocol);
}
