//! Messages of the control plane, made short.

use std::collections::HashMap;
use std::net::SocketAddr;

use linkerd_api::proto::destination::{
    ProtocolHint, TlsIdentity, WeightedAddr, protocol_hint, tls_identity,
};
use linkerd_api::proto::inbound::{self, Authn, Authz, Network, Server, authn};
use linkerd_api::proto::meta::{Metadata, Resource, metadata};
use linkerd_api::proto::net::IpNetwork;
use linkerd_api::proto::outbound::{self, Backend, OutboundPolicy, backend, proxy_protocol};

/// A plain endpoint.
pub fn endpoint(addr: SocketAddr) -> WeightedAddr {
    WeightedAddr {
        addr: Some(addr.into()),
        weight: 10_000,
        ..WeightedAddr::default()
    }
}

/// A meshed endpoint: its identity, its proxy's inbound port, and whether it takes HTTP/2.
pub fn meshed(addr: SocketAddr, identity: &str, inbound_port: u16) -> WeightedAddr {
    WeightedAddr {
        tls_identity: Some(TlsIdentity {
            strategy: Some(tls_identity::Strategy::DnsLikeIdentity(
                tls_identity::DnsLikeIdentity {
                    name: identity.to_owned(),
                },
            )),
            server_name: Some(tls_identity::DnsLikeIdentity {
                name: identity.to_owned(),
            }),
        }),
        protocol_hint: Some(ProtocolHint {
            protocol: Some(protocol_hint::Protocol::H2(protocol_hint::H2 {})),
            opaque_transport: Some(protocol_hint::OpaqueTransport {
                inbound_port: inbound_port.into(),
            }),
        }),
        metric_labels: HashMap::from([("deployment".to_owned(), "web".to_owned())]),
        ..endpoint(addr)
    }
}

/// A Kubernetes object.
pub fn resource(kind: &str, namespace: &str, name: &str) -> Metadata {
    Metadata {
        kind: Some(metadata::Kind::Resource(Resource {
            group: "core".into(),
            kind: kind.into(),
            name: name.into(),
            namespace: namespace.into(),
            section: String::new(),
            port: 80,
        })),
    }
}

/// A built-in default.
pub fn default_meta(name: &str) -> Metadata {
    Metadata {
        kind: Some(metadata::Kind::Default(name.into())),
    }
}

/// A balanced backend.
pub fn balancer(path: &str) -> Backend {
    Backend {
        metadata: Some(resource(
            "Service",
            "ns",
            path.split('.').next().unwrap_or(path),
        )),
        queue: None,
        kind: Some(backend::Kind::Balancer(backend::BalanceP2c {
            discovery: Some(backend::EndpointDiscovery {
                kind: Some(backend::endpoint_discovery::Kind::Dst(
                    backend::endpoint_discovery::DestinationGet { path: path.into() },
                )),
            }),
            load: Some(backend::balance_p2c::Load::PeakEwma(
                backend::balance_p2c::PeakEwma {
                    default_rtt: Some(prost_types::Duration {
                        seconds: 0,
                        nanos: 30_000_000,
                    }),
                    decay: Some(prost_types::Duration {
                        seconds: 10,
                        nanos: 0,
                    }),
                },
            )),
        })),
    }
}

/// A route that takes every request to one backend.
pub fn http_route(backend: Backend) -> outbound::HttpRoute {
    use outbound::http_route::{Distribution, RouteBackend, Rule, distribution};
    outbound::HttpRoute {
        metadata: Some(default_meta("http")),
        hosts: Vec::new(),
        rules: vec![Rule {
            backends: Some(Distribution {
                kind: Some(distribution::Kind::FirstAvailable(
                    distribution::FirstAvailable {
                        backends: vec![RouteBackend {
                            backend: Some(backend),
                            ..RouteBackend::default()
                        }],
                    },
                )),
            }),
            ..Rule::default()
        }],
    }
}

/// A route that takes every connection to one backend.
pub fn opaque_route(backend: Backend) -> outbound::OpaqueRoute {
    use outbound::opaque_route::{Distribution, RouteBackend, Rule, distribution};
    outbound::OpaqueRoute {
        metadata: Some(default_meta("opaque")),
        rules: vec![Rule {
            backends: Some(Distribution {
                kind: Some(distribution::Kind::FirstAvailable(
                    distribution::FirstAvailable {
                        backends: vec![RouteBackend {
                            backend: Some(backend),
                            ..RouteBackend::default()
                        }],
                    },
                )),
            }),
            filters: Vec::new(),
        }],
    }
}

/// What the controller sends for a service: detection, and everything to its endpoints.
pub fn service(path: &str) -> OutboundPolicy {
    detect(
        vec![http_route(balancer(path))],
        Some(opaque_route(balancer(path))),
    )
}

/// A policy with detection and the given routes for both HTTP versions.
pub fn detect(
    routes: Vec<outbound::HttpRoute>,
    opaque: Option<outbound::OpaqueRoute>,
) -> OutboundPolicy {
    OutboundPolicy {
        metadata: Some(resource("Service", "ns", "web")),
        protocol: Some(outbound::ProxyProtocol {
            kind: Some(proxy_protocol::Kind::Detect(proxy_protocol::Detect {
                timeout: Some(prost_types::Duration {
                    seconds: 10,
                    nanos: 0,
                }),
                opaque: Some(proxy_protocol::Opaque {
                    routes: opaque.into_iter().collect(),
                }),
                http1: Some(proxy_protocol::Http1 {
                    routes: routes.clone(),
                    failure_accrual: None,
                }),
                http2: Some(proxy_protocol::Http2 {
                    routes,
                    failure_accrual: None,
                }),
            })),
        }),
    }
}

/// An inbound port with detection that lets `authorizations` in.
pub fn inbound_detect(authorizations: Vec<Authz>) -> Server {
    use inbound::proxy_protocol::{Detect, Kind};
    Server {
        protocol: Some(inbound::ProxyProtocol {
            kind: Some(Kind::Detect(Detect {
                timeout: Some(prost_types::Duration {
                    seconds: 10,
                    nanos: 0,
                }),
                ..Detect::default()
            })),
        }),
        authorizations,
        labels: HashMap::from([
            ("group".to_owned(), "policy.linkerd.io".to_owned()),
            ("kind".to_owned(), "server".to_owned()),
            ("name".to_owned(), "web".to_owned()),
        ]),
        ..Server::default()
    }
}

/// Lets everybody in, or everybody with an identity below `suffix`.
pub fn allow(name: &str, suffix: Option<&str>) -> Authz {
    let permit = match suffix {
        None => authn::Permit::Unauthenticated(authn::PermitUnauthenticated {}),
        Some(suffix) => authn::Permit::MeshTls(authn::PermitMeshTls {
            clients: Some(authn::permit_mesh_tls::Clients::Identities(
                authn::permit_mesh_tls::PermitClientIdentities {
                    identities: Vec::new(),
                    suffixes: vec![inbound::IdentitySuffix {
                        parts: suffix
                            .split('.')
                            .filter(|p| !p.is_empty())
                            .map(str::to_owned)
                            .collect(),
                    }],
                },
            )),
        }),
    };
    let everywhere = |ip: std::net::IpAddr| Network {
        net: Some(IpNetwork {
            ip: Some(ip.into()),
            prefix_len: 0,
        }),
        except: Vec::new(),
    };
    Authz {
        networks: vec![
            everywhere(std::net::Ipv4Addr::UNSPECIFIED.into()),
            everywhere(std::net::Ipv6Addr::UNSPECIFIED.into()),
        ],
        authentication: Some(Authn {
            permit: Some(permit),
        }),
        labels: HashMap::from([
            ("group".to_owned(), "policy.linkerd.io".to_owned()),
            ("kind".to_owned(), "authorizationpolicy".to_owned()),
            ("name".to_owned(), name.to_owned()),
        ]),
        ..Authz::default()
    }
}
