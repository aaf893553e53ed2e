//! `OutboundPolicies`: where traffic goes.

use linkerd_api::proto::{
    destination,
    outbound::{
        self as wire, TrafficSpec, outbound_policies_server, proxy_protocol::Kind, traffic_spec,
    },
};
use linkerd_core::policy::outbound::{
    Backend, Backoff, Dispatch, FailureAccrual, Http, Load, Policy, Protocol,
};
use linkerd_runtime::metrics::grpc::Method;
use std::{net::SocketAddr, time::Duration};
use tonic::{Code, Request, Response, Status};

use super::{Policies, Reply, convert, note, token};
use crate::{cluster::Cluster, outbound::Lookup};

mod route;

const SERVICE: &str = "io.linkerd.proxy.outbound.OutboundPolicies";
static GET: Method = Method::unary(SERVICE, "Get");
static WATCH: Method = Method::server_stream(SERVICE, "Watch");

/// Port of an authority that has none.
const DEFAULT_PORT: u16 = 80;
/// Weight of an address that is the only one.
const ONLY: u32 = 1;

/// The service.
#[derive(Clone, Debug)]
pub struct OutboundPolicies(pub(super) Policies);

/// Reads the client's namespace and what it asks about.
fn read(request: &Request<TrafficSpec>, cluster: &Cluster) -> Result<(String, Lookup), Status> {
    let TrafficSpec {
        source_workload,
        target,
    } = request.get_ref();
    let target = target
        .as_ref()
        .ok_or_else(|| Status::invalid_argument("target is required"))?;
    let client = token::workload(source_workload)?.namespace;
    let lookup = match target {
        traffic_spec::Target::Addr(addr) => {
            let port = token::port(addr.port)?;
            let ip = addr
                .ip
                .ok_or_else(|| Status::invalid_argument("missing target IP"))?;
            let ip: std::net::IpAddr = ip
                .try_into()
                .map_err(|_| Status::invalid_argument("failed to parse target addr"))?;
            Lookup::Addr(SocketAddr::new(ip.to_canonical(), port))
        }
        traffic_spec::Target::Authority(authority) => service(authority, cluster)?,
    };
    Ok((client, lookup))
}

/// Reads `<name>.<namespace>.svc[.<domain>][:port]`.
fn service(text: &str, cluster: &Cluster) -> Result<Lookup, Status> {
    let authority: http::uri::Authority = text.parse().map_err(|_| {
        Status::invalid_argument(format!("failed to parse target authority: {text}"))
    })?;
    let port = match text.rsplit_once(':') {
        // A colon inside brackets belongs to an address.
        Some((_, port)) if !port.ends_with(']') => port
            .parse::<u16>()
            .map_err(|_| Status::invalid_argument(format!("Invalid port: {port}")))?,
        _ => DEFAULT_PORT,
    };
    let port = if port == 0 { DEFAULT_PORT } else { port };
    let unknown = || {
        let domain = &cluster.dns_domain;
        Status::not_found(format!(
            "authority must be of the form <name>.<namespace>.svc.{domain}"
        ))
    };
    let host = authority.host().trim_end_matches('.');
    let domain = format!(".{}", cluster.dns_domain.trim_matches('.'));
    let host = host.strip_suffix(&domain).unwrap_or(host);
    let (name, rest) = host.split_once('.').ok_or_else(unknown)?;
    let (namespace, svc) = rest.split_once('.').ok_or_else(unknown)?;
    if svc != "svc" || name.is_empty() || namespace.is_empty() {
        return Err(unknown());
    }
    Ok(Lookup::Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        port,
    })
}

fn unknown() -> Status {
    Status::not_found("No such service")
}

#[tonic::async_trait]
impl outbound_policies_server::OutboundPolicies for OutboundPolicies {
    async fn get(
        &self,
        request: Request<TrafficSpec>,
    ) -> Result<Response<wire::OutboundPolicy>, Status> {
        let mut call = self.0.calls.start(&GET);
        let cluster = self.0.index.lock().cluster.clone();
        let (client, lookup) = note(&mut call, read(&request, &cluster))?;
        note(&mut call, self.0.listed().await)?;
        let policy = self.0.index.lock().outbound_policy(&client, &lookup);
        let policy = note(&mut call, policy.ok_or_else(unknown))?;
        call.sent();
        call.end(Code::Ok.into());
        Ok(Response::new(encode(&policy)))
    }

    type WatchStream = Reply<wire::OutboundPolicy>;

    async fn watch(
        &self,
        request: Request<TrafficSpec>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut call = self.0.calls.start(&WATCH);
        note(&mut call, self.0.enter(&request.get_ref().source_workload))?;
        let cluster = self.0.index.lock().cluster.clone();
        let (client, lookup) = note(&mut call, read(&request, &cluster))?;
        note(&mut call, self.0.listed().await)?;
        let policy = self.0.index.lock().watch_outbound(&client, lookup);
        let policy = note(&mut call, policy.ok_or_else(unknown))?;
        Ok(Response::new(self.0.stream(policy, encode, call)))
    }
}

/// A policy as it travels.
pub(crate) fn encode(policy: &Policy) -> wire::OutboundPolicy {
    wire::OutboundPolicy {
        protocol: Some(wire::ProxyProtocol {
            kind: Some(protocol(&policy.protocol)),
        }),
        metadata: Some(convert::metadata(&policy.origin)),
    }
}

fn protocol(protocol: &Protocol) -> Kind {
    use wire::proxy_protocol as proto;
    match protocol {
        Protocol::Detect {
            timeout,
            opaque,
            http,
        } => Kind::Detect(proto::Detect {
            timeout: Some(convert::duration(*timeout)),
            opaque: Some(proto::Opaque {
                routes: opaque.iter().map(route::opaque).collect(),
            }),
            http1: Some(http1(http)),
            http2: Some(http2(http)),
        }),
        Protocol::Http1(http) => Kind::Http1(http1(http)),
        Protocol::Http2(http) => Kind::Http2(http2(http)),
        Protocol::Grpc { routes, accrual } => Kind::Grpc(proto::Grpc {
            routes: routes.iter().map(route::grpc).collect(),
            failure_accrual: accrual.as_ref().map(failure_accrual),
        }),
        Protocol::Tls(routes) => Kind::Tls(proto::Tls {
            routes: routes.iter().map(route::tls).collect(),
        }),
        Protocol::Opaque(routes) => Kind::Opaque(proto::Opaque {
            routes: routes.iter().map(route::opaque).collect(),
        }),
    }
}

fn http1(http: &Http) -> wire::proxy_protocol::Http1 {
    wire::proxy_protocol::Http1 {
        routes: http.routes.iter().map(route::http).collect(),
        failure_accrual: http.accrual.as_ref().map(failure_accrual),
    }
}

fn http2(http: &Http) -> wire::proxy_protocol::Http2 {
    wire::proxy_protocol::Http2 {
        routes: http.routes.iter().map(route::http).collect(),
        failure_accrual: http.accrual.as_ref().map(failure_accrual),
    }
}

/// A backend as it travels; `weight` is that of an address, among the backends it is one of.
fn backend(backend: &Backend, weight: u32) -> wire::Backend {
    use wire::backend::{Kind, endpoint_discovery};
    let kind = match &backend.dispatch {
        Dispatch::None => None,
        Dispatch::Forward(addr) => Some(Kind::Forward(destination::WeightedAddr {
            addr: Some((*addr).into()),
            weight,
            ..Default::default()
        })),
        Dispatch::Balance { authority, load } => Some(Kind::Balancer(wire::backend::BalanceP2c {
            discovery: Some(wire::backend::EndpointDiscovery {
                kind: Some(endpoint_discovery::Kind::Dst(
                    endpoint_discovery::DestinationGet {
                        path: authority.clone(),
                    },
                )),
            }),
            load: Some(balancer_load(load)),
        })),
    };
    wire::Backend {
        metadata: Some(convert::metadata(&backend.origin)),
        kind,
        queue: Some(wire::Queue {
            capacity: 100,
            failfast_timeout: Some(convert::duration(Duration::from_secs(3))),
        }),
    }
}

fn balancer_load(load: &Load) -> wire::backend::balance_p2c::Load {
    use wire::backend::balance_p2c::{Load as Wire, PeakEwma, PenaltyPeakEwma};
    let default_rtt = Some(convert::duration(Duration::from_millis(30)));
    let decay = Some(convert::duration(Duration::from_secs(10)));
    match load {
        Load::PeakEwma => Wire::PeakEwma(PeakEwma { default_rtt, decay }),
        Load::PenaltyPeakEwma {
            penalty,
            max_retry_after,
        } => Wire::PenaltyPeakEwma(PenaltyPeakEwma {
            default_rtt,
            decay,
            penalty: Some(convert::duration(*penalty)),
            max_retry_after: Some(convert::duration(*max_retry_after)),
            penalty_decay: decay,
        }),
    }
}

fn failure_accrual(accrual: &FailureAccrual) -> wire::FailureAccrual {
    use wire::failure_accrual::{ConsecutiveFailures, Kind, Unified};
    let kind = match accrual {
        FailureAccrual::Consecutive {
            max_failures,
            backoff,
        } => Kind::ConsecutiveFailures(ConsecutiveFailures {
            max_failures: *max_failures,
            backoff: Some(exponential(backoff)),
        }),
        FailureAccrual::Unified {
            success_rate_threshold,
            window,
            min_requests,
            max_failures,
            backoff,
        } => Kind::Unified(Unified {
            success_rate_threshold: *success_rate_threshold,
            decay: Some(convert::duration(*window)),
            min_requests: *min_requests,
            max_consecutive_failures: *max_failures,
            backoff: Some(exponential(backoff)),
        }),
    };
    wire::FailureAccrual {
        kind: Some(kind),
        ejection: None,
    }
}

fn exponential(backoff: &Backoff) -> wire::ExponentialBackoff {
    wire::ExponentialBackoff {
        min_backoff: Some(convert::duration(backoff.min)),
        max_backoff: Some(convert::duration(backoff.max)),
        jitter_ratio: backoff.jitter,
        respect_retry_after_hint: backoff.respect_retry_after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::cluster;
    use tonic::Code;

    #[test]
    fn authorities() {
        let found = |name: &str, port| {
            Ok(Lookup::Service {
                namespace: "ns".into(),
                name: name.into(),
                port,
            })
        };
        for (name, text, expected) in [
            ("whole", "web.ns.svc.cluster.local:8080", found("web", 8080)),
            (
                "trailing dot",
                "web.ns.svc.cluster.local.:8080",
                found("web", 8080),
            ),
            ("without domain", "web.ns.svc:8080", found("web", 8080)),
            ("default port", "web.ns.svc.cluster.local", found("web", 80)),
            ("external name", "example.com:80", Err(Code::NotFound)),
            (
                "pod name",
                "pod.web.ns.svc.cluster.local:80",
                Err(Code::NotFound),
            ),
            (
                "other domain",
                "web.ns.svc.example.org:80",
                Err(Code::NotFound),
            ),
            ("one label", "web:80", Err(Code::NotFound)),
            ("port zero", "web.ns.svc:0", found("web", 80)),
            ("bad port", "web.ns.svc:99999", Err(Code::InvalidArgument)),
            ("not an authority", "a b", Err(Code::InvalidArgument)),
            ("empty", "", Err(Code::InvalidArgument)),
        ] {
            assert_eq!(
                service(text, &cluster()).map_err(|status| status.code()),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn requests() {
        use linkerd_api::proto::net;
        use traffic_spec::Target::{Addr, Authority};
        let addr = |ip: Option<net::IpAddress>, port| Some(Addr(net::TcpAddress { ip, port }));
        let v4 = || Some(net::IpAddress::from(std::net::IpAddr::from([10, 0, 0, 1])));
        for (name, workload, target, expected) in [
            ("v4", "a:b", addr(v4(), 80), Ok(())),
            (
                "v6",
                "a:b",
                addr(
                    Some(std::net::IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]).into()),
                    80,
                ),
                Ok(()),
            ),
            (
                "authority",
                "a:b",
                Some(Authority("a.b.svc".into())),
                Ok(()),
            ),
            ("no target", "a:b", None, Err("target is required")),
            (
                "no target, bad workload",
                "ab",
                None,
                Err("target is required"),
            ),
            ("port zero", "a:b", addr(v4(), 0), Err("Invalid port: 0")),
            (
                "large port",
                "a:b",
                addr(v4(), 65536),
                Err("Invalid port: 65536"),
            ),
            ("no ip", "a:b", addr(None, 80), Err("missing target IP")),
            (
                "empty ip",
                "a:b",
                addr(Some(net::IpAddress { ip: None }), 80),
                Err("failed to parse target addr"),
            ),
            (
                "bad workload",
                "ab",
                addr(v4(), 80),
                Err("Invalid workload: ab"),
            ),
        ] {
            let spec = TrafficSpec {
                source_workload: workload.to_owned(),
                target,
            };
            let found = read(&Request::new(spec), &cluster());
            match (found, expected) {
                (Ok((client, _)), Ok(())) => assert_eq!(client, "a", "{name}"),
                (Err(status), Err(message)) => {
                    assert_eq!(
                        (status.code(), status.message()),
                        (Code::InvalidArgument, message),
                        "{name}"
                    );
                }
                (found, expected) => panic!("{name}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
