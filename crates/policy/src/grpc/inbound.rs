//! `InboundServerPolicies`: who may connect to a port.

use linkerd_api::proto::inbound::{
    self as wire, PortSpec, inbound_server_policies_server::InboundServerPolicies,
    proxy_protocol::Kind,
};
use linkerd_core::policy::{
    GrpcFilter, HttpFilter, Origin,
    inbound::{
        Authentication, Authorization, GrpcRoute, Http, HttpRoute, IdentityMatch, Network,
        Protocol, RateLimit, Server,
    },
};
use linkerd_runtime::metrics::grpc::Method;
use std::collections::HashMap;
use tonic::{Code, Request, Response, Status};

use super::{Policies, Reply, convert, note, token};
use crate::index::workload::WorkloadId;

const SERVICE: &str = "io.linkerd.proxy.inbound.InboundServerPolicies";
static GET_PORT: Method = Method::unary(SERVICE, "GetPort");
static WATCH_PORT: Method = Method::server_stream(SERVICE, "WatchPort");

/// The service.
#[derive(Clone, Debug)]
pub struct InboundPolicies(pub(super) Policies);

fn read(request: &Request<PortSpec>) -> Result<(WorkloadId, u16), Status> {
    let PortSpec { workload, port } = request.get_ref();
    Ok((token::workload(workload)?, token::port(*port)?))
}

fn unknown() -> Status {
    Status::not_found("unknown server")
}

#[tonic::async_trait]
impl InboundServerPolicies for InboundPolicies {
    async fn get_port(&self, request: Request<PortSpec>) -> Result<Response<wire::Server>, Status> {
        let mut call = self.0.calls.start(&GET_PORT);
        let (workload, port) = note(&mut call, read(&request))?;
        note(&mut call, self.0.listed().await)?;
        let server = self.0.index.lock().inbound_policy(&workload, port);
        let server = note(&mut call, server.ok_or_else(unknown))?;
        call.sent();
        call.end(Code::Ok.into());
        Ok(Response::new(encode(&server)))
    }

    type WatchPortStream = Reply<wire::Server>;

    async fn watch_port(
        &self,
        request: Request<PortSpec>,
    ) -> Result<Response<Self::WatchPortStream>, Status> {
        let mut call = self.0.calls.start(&WATCH_PORT);
        note(&mut call, self.0.enter(&request.get_ref().workload))?;
        let (workload, port) = note(&mut call, read(&request))?;
        note(&mut call, self.0.listed().await)?;
        let server = self.0.index.lock().watch_inbound(workload, port);
        let server = note(&mut call, server.ok_or_else(unknown))?;
        Ok(Response::new(self.0.stream(server, encode, call)))
    }
}

/// A policy as it travels.
pub(crate) fn encode(server: &Server) -> wire::Server {
    wire::Server {
        protocol: Some(wire::ProxyProtocol {
            kind: Some(protocol(&server.protocol)),
        }),
        server_ips: Vec::new(),
        authorizations: server.authorizations.iter().map(authorization).collect(),
        labels: labels(&server.origin),
    }
}

fn protocol(protocol: &Protocol) -> Kind {
    use wire::proxy_protocol as proto;
    match protocol {
        Protocol::Detect { timeout, http } => {
            let (http_routes, http_local_rate_limit) = http_parts(http);
            Kind::Detect(proto::Detect {
                timeout: Some(convert::duration(*timeout)),
                http_routes,
                http_local_rate_limit,
            })
        }
        Protocol::Http1(http) => {
            let (routes, local_rate_limit) = http_parts(http);
            Kind::Http1(proto::Http1 {
                routes,
                local_rate_limit,
            })
        }
        Protocol::Http2(http) => {
            let (routes, local_rate_limit) = http_parts(http);
            Kind::Http2(proto::Http2 {
                routes,
                local_rate_limit,
            })
        }
        Protocol::Grpc { routes } => Kind::Grpc(proto::Grpc {
            routes: routes.iter().map(grpc_route).collect(),
        }),
        Protocol::Opaque => Kind::Opaque(proto::Opaque {}),
        Protocol::Tls => Kind::Tls(proto::Tls {}),
    }
}

fn http_parts(http: &Http) -> (Vec<wire::HttpRoute>, Option<wire::HttpLocalRateLimit>) {
    (
        http.routes.iter().map(http_route).collect(),
        http.rate_limit.as_ref().map(rate_limit),
    )
}

/// Names as labels of metrics have them.
fn labels(origin: &Origin) -> HashMap<String, String> {
    let (group, kind, name) = match origin {
        Origin::Default(name) => ("", "default", *name),
        Origin::Resource(resource) => (
            resource.group.as_str(),
            resource.kind.as_str(),
            resource.name.as_str(),
        ),
    };
    [("group", group), ("kind", kind), ("name", name)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn authorization(authz: &Authorization) -> wire::Authz {
    wire::Authz {
        networks: authz.networks.iter().map(network).collect(),
        authentication: Some(authentication(&authz.authentication)),
        labels: labels(&authz.origin),
        metadata: Some(convert::metadata(&authz.origin)),
    }
}

fn network(network: &Network) -> wire::Network {
    wire::Network {
        net: Some(network.net.into()),
        except: network.except.iter().copied().map(Into::into).collect(),
    }
}

fn authentication(authentication: &Authentication) -> wire::Authn {
    use wire::authn::{
        Permit, PermitMeshTls, PermitUnauthenticated,
        permit_mesh_tls::{Clients, PermitClientIdentities},
    };
    let clients = match authentication {
        Authentication::Unauthenticated => {
            return wire::Authn {
                permit: Some(Permit::Unauthenticated(PermitUnauthenticated {})),
            };
        }
        Authentication::TlsUnauthenticated => Clients::Unauthenticated(PermitUnauthenticated {}),
        Authentication::TlsAuthenticated(matches) => {
            let mut permitted = PermitClientIdentities::default();
            for matched in matches {
                match matched {
                    IdentityMatch::Exact(name) => permitted
                        .identities
                        .push(wire::Identity { name: name.clone() }),
                    IdentityMatch::Suffix(parts) => {
                        permitted.suffixes.push(wire::IdentitySuffix {
                            parts: parts.clone(),
                        });
                    }
                }
            }
            Clients::Identities(permitted)
        }
    };
    wire::Authn {
        permit: Some(Permit::MeshTls(PermitMeshTls {
            clients: Some(clients),
        })),
    }
}

fn http_route(route: &HttpRoute) -> wire::HttpRoute {
    use wire::http_route::{Filter, Rule, filter::Kind};
    let filter = |filter: &HttpFilter| {
        let kind = match filter {
            HttpFilter::Fail { status, message } => {
                Kind::FailureInjector(convert::http_failure(*status, message))
            }
            HttpFilter::RequestHeaders(headers) => {
                Kind::RequestHeaderModifier(convert::request_headers(headers))
            }
            HttpFilter::Redirect(redirect) => Kind::Redirect(convert::redirect(redirect)),
            HttpFilter::ResponseHeaders(_) => return None,
        };
        Some(Filter { kind: Some(kind) })
    };
    let rules = route.rules.iter().map(|rule| Rule {
        matches: rule.matches.iter().map(convert::http_match).collect(),
        filters: rule.filters.iter().filter_map(filter).collect(),
    });
    wire::HttpRoute {
        metadata: Some(convert::metadata(&route.origin)),
        hosts: route.hosts.iter().map(convert::host).collect(),
        authorizations: route.authorizations.iter().map(authorization).collect(),
        rules: rules.collect(),
    }
}

fn grpc_route(route: &GrpcRoute) -> wire::GrpcRoute {
    use wire::grpc_route::{Filter, Rule, filter::Kind};
    let filter = |filter: &GrpcFilter| Filter {
        kind: Some(match filter {
            GrpcFilter::Fail { code, message } => {
                Kind::FailureInjector(convert::grpc_failure(*code, message))
            }
            GrpcFilter::RequestHeaders(headers) => {
                Kind::RequestHeaderModifier(convert::request_headers(headers))
            }
        }),
    };
    let rules = route.rules.iter().map(|rule| Rule {
        matches: rule.matches.iter().map(convert::grpc_match).collect(),
        filters: rule.filters.iter().map(filter).collect(),
    });
    wire::GrpcRoute {
        metadata: Some(convert::metadata(&route.origin)),
        hosts: route.hosts.iter().map(convert::host).collect(),
        authorizations: route.authorizations.iter().map(authorization).collect(),
        rules: rules.collect(),
    }
}

fn rate_limit(limit: &RateLimit) -> wire::HttpLocalRateLimit {
    use wire::http_local_rate_limit::{Limit, Override, r#override::ClientIdentities};
    let rate = |requests_per_second| Limit {
        requests_per_second,
    };
    let overrides = limit.overrides.iter().map(|limit| Override {
        limit: Some(rate(limit.requests_per_second)),
        clients: Some(ClientIdentities {
            identities: limit
                .clients
                .iter()
                .map(|name| wire::Identity { name: name.clone() })
                .collect(),
        }),
    });
    wire::HttpLocalRateLimit {
        metadata: Some(convert::metadata(&limit.origin)),
        total: limit.total.map(rate),
        identity: limit.identity.map(rate),
        overrides: overrides.collect(),
    }
}
