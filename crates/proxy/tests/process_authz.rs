//! Who may come in, through a running proxy: networks, mesh TLS, identities, routes and what they are
//! counted by; rate limits of clients; and TLS that is not ours.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/hello.rs"]
mod hello;
#[path = "support/tunnel.rs"]
mod tunnel;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use harness::{Answer, Client, DEADLINE, Proxy, counts, http_echo};
use linkerd_api::proto::{
    http_route::{HttpRouteMatch, PathMatch, path_match},
    inbound::{
        Authn, Authz, HttpLocalRateLimit, HttpRoute, Identity, Network, Server,
        authn::{self, permit_mesh_tls},
        http_local_rate_limit::{Limit, Override, r#override::ClientIdentities},
        http_route::Rule,
        proxy_protocol,
    },
    net::IpNetwork,
};
use linkerd_core::identity::Id;
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    ca::{Leaf, identity},
    control_plane::{ControlPlane, objects},
    echo::{Behavior, Echo},
    wait_for,
};
use linkerd_tls::{Key, Local, Store, TrustAnchors};
use tunnel::{First, Tunnel};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    /// Without TLS.
    Plain,
    /// With mesh TLS and no certificate.
    Anonymous,
    /// With the identity of a service account in `ns`.
    Account(&'static str),
    /// With that of one elsewhere.
    Stranger,
    /// With a URI for an identity.
    Workload,
}

use Who::{Account, Anonymous, Plain, Stranger, Workload};

const WORKLOAD: &str = "spiffe://cluster.local/workload";
const ALICE: Who = Account("alice");
const BOB: Who = Account("bob");

/// Credentials a control plane vouches for.
fn store(control: &ControlPlane, who: Who) -> Arc<Store> {
    let anchors = TrustAnchors::from_pem("test", control.anchors_pem().as_bytes());
    let anchors = anchors.expect("a root");
    let issuer = control.issuer();
    let named = |name: String| (issuer.leaf(&name), name);
    let (leaf, name): (Option<Leaf>, String) = match who {
        Plain | Anonymous => (None, "nobody.ns".to_owned()),
        Account(name) => {
            let (leaf, name) = named(identity(name, "ns"));
            (Some(leaf), name)
        }
        Stranger => {
            let (leaf, name) = named(identity("alice", "elsewhere"));
            (Some(leaf), name)
        }
        Workload => (Some(issuer.leaf_spiffe(WORKLOAD)), WORKLOAD.to_owned()),
    };
    let store = Store::new(anchors, Local::new(Id::parse(&name).expect("a name")));
    if let Some(leaf) = leaf {
        let key = Key::from_der(leaf.key.secret_der()).expect("a key");
        store.publish(leaf.chain, &key).expect("a certificate");
    }
    Arc::new(store)
}

/// A proxy in front of applications with a policy each: who comes from `127.1.n.x` is meant for the
/// `n`th of them.
struct Port {
    app: Echo,
    server: Server,
}

struct Stage {
    control: ControlPlane,
    proxy: Proxy,
    ports: Vec<Port>,
    tunnels: HashMap<Who, Tunnel>,
}

impl Stage {
    fn new(mut servers: Vec<Server>) -> Self {
        for (n, server) in servers.iter_mut().enumerate() {
            server.labels.insert("name".into(), format!("port-{n}"));
        }
        let port = |server| Port {
            app: http_echo(),
            server,
        };
        let ports: Vec<Port> = servers.into_iter().map(port).collect();
        let control = ControlPlane::start();
        for port in &ports {
            control.set_inbound(port.app.addr().port(), port.server.clone());
        }
        let apps: Vec<SocketAddr> = ports.iter().map(|port| port.app.addr()).collect();
        let numbers: Vec<String> = apps.iter().map(|app| app.port().to_string()).collect();
        let by_source = OrigDst::Given(Arc::new(move |io| match io.peer_addr()? {
            SocketAddr::V4(peer) => Ok(apps[usize::from(peer.ip().octets()[2])]),
            SocketAddr::V6(_) => io.local_addr(),
        }));
        let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
        let numbers = numbers.join(",");
        let settings = [
            ("INBOUND_PORTS", numbers.as_str()),
            ("INBOUND_DEFAULT_POLICY", "all-unauthenticated"),
        ];
        let proxy = Proxy::start(&control, "web", local, by_source, &settings);
        let tunnels = [Anonymous, ALICE, BOB, Account("carol"), Stranger, Workload];
        let tunnels = tunnels.into_iter().map(|who| {
            let store = store(&control, who);
            let tunnel = Tunnel::new(proxy.inbound, &proxy.identity, store, First::Nothing);
            (who, tunnel)
        });
        let tunnels = tunnels.collect();
        Self {
            control,
            proxy,
            ports,
            tunnels,
        }
    }

    /// A connection to the `n`th application.
    fn connect(&self, who: Who, n: u8, host: u8) -> Client {
        let from = Ipv4Addr::new(127, 1, n, host);
        let at = match who {
            Plain => self.proxy.inbound,
            who => self.tunnels[&who].addr,
        };
        Client::connect_from(from, at)
    }

    fn ask(&self, who: Who, n: u8, host: u8, path: &str) -> Answer {
        self.connect(who, n, host).get(path, "web")
    }
}

/// Lets some in, from everywhere.
fn permit(name: &str, permit: authn::Permit) -> Authz {
    Authz {
        authentication: Some(Authn {
            permit: Some(permit),
        }),
        ..objects::allow(name, None)
    }
}

fn identities(names: &[&str]) -> authn::Permit {
    let name = |name: &&str| Identity {
        name: (*name).to_owned(),
    };
    authn::Permit::MeshTls(authn::PermitMeshTls {
        clients: Some(permit_mesh_tls::Clients::Identities(
            permit_mesh_tls::PermitClientIdentities {
                identities: names.iter().map(name).collect(),
                suffixes: Vec::new(),
            },
        )),
    })
}

fn any_tls() -> authn::Permit {
    let anybody = authn::PermitUnauthenticated {};
    authn::Permit::MeshTls(authn::PermitMeshTls {
        clients: Some(permit_mesh_tls::Clients::Unauthenticated(anybody)),
    })
}

fn network(ip: [u8; 4], prefix_len: u32) -> IpNetwork {
    IpNetwork {
        ip: Some(IpAddr::from(ip).into()),
        prefix_len,
    }
}

/// Everybody in a network, but for an exception.
fn within(name: &str, net: IpNetwork, except: &[IpNetwork]) -> Authz {
    Authz {
        networks: vec![Network {
            net: Some(net),
            except: except.to_vec(),
        }],
        ..objects::allow(name, None)
    }
}

fn detect(server: &mut Server) -> &mut proxy_protocol::Detect {
    match server.protocol.as_mut().and_then(|p| p.kind.as_mut()) {
        Some(proxy_protocol::Kind::Detect(detect)) => detect,
        other => panic!("not a port with detection: {other:?}"),
    }
}

fn route(path: &str, authorizations: Vec<Authz>) -> HttpRoute {
    HttpRoute {
        metadata: Some(objects::default_meta(path.trim_start_matches('/'))),
        authorizations,
        rules: vec![Rule {
            matches: vec![HttpRouteMatch {
                path: Some(PathMatch {
                    kind: Some(path_match::Kind::Prefix(path.into())),
                }),
                ..HttpRouteMatch::default()
            }],
            filters: Vec::new(),
        }],
        ..HttpRoute::default()
    }
}

/// Who asks for what, from which host, and by what authorization it is let in.
type Asked = (Who, u8, &'static str, Option<&'static str>);

fn table() -> Vec<(&'static str, Server, Vec<Asked>)> {
    let server = |authorizations| objects::inbound_detect(authorizations);
    let alice = identity("alice", "ns");
    let mut routes = server(vec![objects::allow("of-server", Some(""))]);
    detect(&mut routes).http_routes = vec![
        route("/own", vec![permit("of-route", identities(&[&alice]))]),
        route("/none", Vec::new()),
    ];
    let mut only_routes = server(Vec::new());
    detect(&mut only_routes).http_routes = vec![
        route("/own", vec![objects::allow("of-route", None)]),
        route("/none", Vec::new()),
    ];
    vec![
        (
            "an identity",
            server(vec![permit("exact", identities(&[&alice]))]),
            vec![
                (ALICE, 1, "/", Some("exact")),
                (BOB, 1, "/", None),
                (Stranger, 1, "/", None),
                (Workload, 1, "/", None),
                (Anonymous, 1, "/", None),
                (Plain, 1, "/", None),
            ],
        ),
        (
            "a suffix",
            server(vec![objects::allow(
                "suffix",
                Some("ns.serviceaccount.identity.linkerd.cluster.local"),
            )]),
            vec![
                (ALICE, 1, "/", Some("suffix")),
                (BOB, 1, "/", Some("suffix")),
                (Stranger, 1, "/", None),
                (Workload, 1, "/", None),
                (Plain, 1, "/", None),
            ],
        ),
        (
            "a URI",
            server(vec![permit("uri", identities(&[WORKLOAD]))]),
            vec![(Workload, 1, "/", Some("uri")), (ALICE, 1, "/", None)],
        ),
        (
            "any identity",
            server(vec![objects::allow("any", Some(""))]),
            vec![
                (ALICE, 1, "/", Some("any")),
                (Workload, 1, "/", Some("any")),
                (Anonymous, 1, "/", None),
                (Plain, 1, "/", None),
            ],
        ),
        (
            "mesh TLS without an identity",
            server(vec![permit("encrypted", any_tls())]),
            vec![
                (Anonymous, 1, "/", Some("encrypted")),
                (ALICE, 1, "/", Some("encrypted")),
                (Plain, 1, "/", None),
            ],
        ),
        (
            "networks and their exceptions",
            server(vec![
                within(
                    "near",
                    network([127, 1, 0, 0], 16),
                    &[network([127, 1, 5, 128], 25)],
                ),
                within("one", network([127, 1, 5, 200], 32), &[]),
            ]),
            vec![
                (Plain, 1, "/", Some("near")),
                (ALICE, 1, "/", Some("near")),
                (Plain, 129, "/", None),
                (ALICE, 129, "/", None),
                (Plain, 200, "/", Some("one")),
            ],
        ),
        (
            "a network that is not here",
            server(vec![within("far", network([10, 0, 0, 0], 8), &[])]),
            vec![(Plain, 1, "/", None), (ALICE, 1, "/", None)],
        ),
        (
            "a route's authorizations before the server's",
            routes,
            vec![
                (ALICE, 1, "/own", Some("of-route")),
                (BOB, 1, "/own", Some("of-server")),
                (ALICE, 1, "/none", Some("of-server")),
                (Plain, 1, "/own", None),
            ],
        ),
        (
            "routes of a server without authorizations",
            only_routes,
            vec![
                (Plain, 1, "/own", Some("of-route")),
                (ALICE, 1, "/own", Some("of-route")),
                (ALICE, 1, "/none", None),
                (Plain, 1, "/none", None),
            ],
        ),
    ]
}

/// The labels of a client's TLS.
fn tls_labels(who: Who) -> Vec<String> {
    let client_id = match who {
        Plain => {
            return vec![
                "tls=\"no_identity\"".to_owned(),
                "no_tls_reason=\"no_tls_from_remote\"".to_owned(),
            ];
        }
        Anonymous => String::new(),
        Account(name) => identity(name, "ns"),
        Stranger => identity("alice", "elsewhere"),
        Workload => WORKLOAD.to_owned(),
    };
    vec![
        "tls=\"true\"".to_owned(),
        format!("client_id=\"{client_id}\""),
    ]
}

#[test]
fn the_whole_table_of_authorizations() {
    let table = table();
    let stage = Stage::new(table.iter().map(|(_, server, _)| server.clone()).collect());
    for (n, (name, _, asked)) in table.iter().enumerate() {
        let port = u8::try_from(n).expect("few");
        let srv = format!("srv_name=\"port-{n}\"");
        // The default, which holds until the policy is there, has another name.
        wait_for(DEADLINE, name, || {
            let (who, host, path, _) = asked[0];
            stage.ask(who, port, host, path);
            let seen = |family| stage.proxy.metric(family, &[&srv]) > 0.5;
            seen("inbound_http_authz_allow_total") || seen("inbound_http_authz_deny_total")
        });
        for (who, host, path, by) in asked {
            let case = format!("{name}: {who:?} {path} from .{host}");
            let mut labels = tls_labels(*who);
            labels.push(srv.clone());
            let family = match by {
                Some(by) => {
                    labels.push(format!("authz_name=\"{by}\""));
                    "inbound_http_authz_allow_total"
                }
                None => "inbound_http_authz_deny_total",
            };
            if path.len() > 1 {
                labels.push(format!("route_name=\"{}\"", path.trim_start_matches('/')));
            }
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            let before = stage.proxy.metric(family, &labels);
            let reached = stage.ports[n].app.requests().len();
            let answer = stage.ask(*who, port, *host, path);
            let want = if by.is_some() { 200 } else { 403 };
            assert_eq!(answer.status(), want, "{case}");
            let told = answer.header("l5d-proxy-error");
            let want = match (by, who) {
                (None, Account(_) | Stranger | Workload) => Some("unauthorized request on route"),
                _ => None,
            };
            assert_eq!(told, want, "{case}");
            counts(&stage.proxy, family, &labels, before + 1.0);
            let came = stage.ports[n].app.requests().len() - reached;
            assert_eq!(came, usize::from(by.is_some()), "{case}");
        }
    }
    assert!(stage.control.calls().len() > table.len());
}

/// A port with a limit.
fn limited(limit: HttpLocalRateLimit) -> Server {
    let mut server = objects::inbound_detect(vec![objects::allow("all", None)]);
    detect(&mut server).http_local_rate_limit = Some(HttpLocalRateLimit {
        metadata: Some(objects::resource("HTTPLocalRateLimitPolicy", "ns", "limit")),
        ..limit
    });
    server
}

#[test]
fn rate_limits_of_clients() {
    let rps = |requests_per_second| {
        Some(Limit {
            requests_per_second,
        })
    };
    let names = ["alice", "bob", "carol"].map(|name| Identity {
        name: identity(name, "ns"),
    });
    let shared = Override {
        limit: rps(1),
        clients: Some(ClientIdentities {
            identities: names.to_vec(),
        }),
    };
    let stage = Stage::new(vec![
        limited(HttpLocalRateLimit {
            identity: rps(1),
            ..HttpLocalRateLimit::default()
        }),
        limited(HttpLocalRateLimit {
            identity: rps(1_000),
            overrides: vec![shared],
            ..HttpLocalRateLimit::default()
        }),
        limited(HttpLocalRateLimit {
            total: rps(1),
            identity: rps(1_000),
            ..HttpLocalRateLimit::default()
        }),
    ]);
    // Until there is nothing left for it; gives what it was told.
    let exhaust = |client: &mut Client| {
        let mut told = None;
        wait_for(DEADLINE, "a refusal", || {
            let answer = client.get("/", "web");
            told = answer.header("l5d-proxy-error").map(str::to_owned);
            answer.status() == 429
        });
        told.unwrap_or_default()
    };
    let fresh = |who, n, host| stage.ask(who, n, host, "/").status();

    let text = exhaust(&mut stage.connect(ALICE, 0, 1));
    assert_eq!(text, "per-identity rate limit exceeded: 1rps");
    assert_eq!(fresh(BOB, 0, 1), 200, "every client has its own");
    assert_eq!(fresh(Plain, 0, 1), 200, "who has no name has one, too");
    let mut plain = stage.connect(Plain, 0, 2);
    let shared = (3..20).any(|host| {
        assert_eq!(exhaust(&mut plain), "", "a plain client is told nothing");
        fresh(Plain, 0, host) == 429
    });
    assert!(shared, "all who have no name share it");

    let mut alice = stage.connect(ALICE, 1, 1);
    let text = exhaust(&mut alice);
    assert_eq!(text, "override rate limit exceeded: 1rps");
    let shared = [BOB, Account("carol")].into_iter().any(|who| {
        exhaust(&mut alice);
        fresh(who, 1, 1) == 429
    });
    assert!(shared, "those an override names share it");
    assert_eq!(fresh(Stranger, 1, 1), 200, "who is not named does not");

    let text = exhaust(&mut stage.connect(ALICE, 2, 1));
    assert_eq!(text, "total rate limit exceeded: 1rps");

    for (n, scope) in [(0, "identity"), (1, "identity"), (2, "total")] {
        let srv = format!("srv_name=\"port-{n}\"");
        let scope = format!("ratelimit_scope=\"{scope}\"");
        let labels = [srv.as_str(), &scope, "ratelimit_name=\"limit\""];
        let refused = "inbound_http_local_ratelimit_total";
        assert!(stage.proxy.metric(refused, &labels) > 0.5, "{n}");
        let any = stage.proxy.metric(refused, &[&srv]);
        let these = stage.proxy.metric(refused, &labels);
        assert!((any - these).abs() < 0.1, "{n}: in no other scope");
    }
}

/// A proxy in front of a TCP application, with the policy of its port or the default.
fn in_front_of(control: &ControlPlane, app: &Echo, default: &str) -> Proxy {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let port = app.addr().port().to_string();
    let settings = [
        ("INBOUND_PORTS", port.as_str()),
        ("INBOUND_DEFAULT_POLICY", default),
        ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8"),
    ];
    let target = OrigDst::fixed(app.addr());
    Proxy::start(control, "web", local, target, &settings)
}

#[test]
fn tls_for_somebody_else_is_carried_where_its_client_may() {
    let hello = hello::named("db.example.com");
    for (default, served) in [
        ("all-unauthenticated", true),
        ("all-authenticated", false),
        ("deny", false),
    ] {
        let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
        let control = ControlPlane::start();
        let proxy = in_front_of(&control, &app, default);
        let mut client = Client::connect_from_afar(proxy.inbound);
        client.send(&hello);
        let srv = format!("srv_name=\"{default}\"");
        let opaque = ["tls=\"opaque\"", "sni=\"db.example.com\"", srv.as_str()];
        let untold = [
            "tls=\"no_identity\"",
            "no_tls_reason=\"port_skipped\"",
            &srv,
        ];
        match served {
            true => {
                assert_eq!(client.exactly(hello.len()), hello, "{default}");
                counts(&proxy, "inbound_tcp_authz_allow_total", &opaque, 1.0);
            }
            false => {
                assert!(client.closed(), "{default}");
                // A port that lets nobody in is not looked into.
                let labels = if default == "deny" { untold } else { opaque };
                counts(&proxy, "inbound_tcp_authz_deny_total", &labels, 1.0);
                assert!(app.connections().is_empty(), "{default}");
            }
        }
    }
}

#[test]
fn audited_connections_pass_and_are_counted() {
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let control = ControlPlane::start();
    let proxy = in_front_of(&control, &app, "audit");
    let mut client = Client::connect_from_afar(proxy.inbound);
    let bytes = [1, 2, 3, 4, b'\n'];
    assert_eq!(client.send(bytes).exactly(5), bytes);
    let audit = ["authz_name=\"audit\"", "srv_name=\"audit\""];
    counts(&proxy, "inbound_tcp_authz_allow_total", &audit, 1.0);
}
