//! The admin port: mesh TLS or plain, HTTP/1 or HTTP/2, and the inbound policy of its own port.
//! Clients on this host always pass. Connections and requests are counted like any inbound traffic.

mod metered;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Request;
use linkerd_runtime::admin::{Admin, Verdict};
use linkerd_tls::Store;
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};

use self::metered::Metered;
use crate::{
    errors::{Class, HttpError},
    metrics::{
        Family, Labels, Registry,
        http::{HttpMetrics, Outcome},
    },
    policy::{
        Meta,
        server::{ClientTls, HttpRoutes, Protocol, ServerPolicy, authorize, localhost},
    },
    service_io::ServiceIo,
};

/// Probes, scrapers and a person or two: more than this waits in the kernel's queue.
const CONNECTIONS: usize = 128;
/// After a failed accept (out of descriptors), how long until the next try.
const PAUSE: Duration = Duration::from_millis(100);

/// Who may ask.
#[derive(Debug)]
pub struct Gate {
    /// Our certificates.
    pub store: Arc<Store>,
    /// The policy of the port.
    pub policy: watch::Receiver<Arc<ServerPolicy>>,
    /// Where everything is counted.
    pub registry: Arc<Registry>,
    /// Series by their labels.
    pub series: Mutex<HashMap<Arc<str>, HttpMetrics>>,
}

/// Series that are remembered; there are as many as clients, routes and authorizations differ.
const MAX_SERIES: usize = 256;

/// Who asks, and where.
#[derive(Clone, Debug)]
struct Asker {
    ip: IpAddr,
    tls: ClientTls,
    /// The address it asks at.
    at: SocketAddr,
}

/// Serves until its future is dropped.
pub async fn serve(admin: Arc<Admin>, listener: TcpListener, gate: Gate) {
    let gate = Arc::new(gate);
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let (io, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "Admin listener cannot accept");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (admin, gate) = (admin.clone(), gate.clone());
        linkerd_runtime::spawn_local("admin connection", async move {
            let _slot = slot;
            let Ok(at) = io.local_addr() else {
                return;
            };
            let io = match ServiceIo::accept(io, &gate.store).await {
                Ok(io) => io,
                Err(error) => {
                    tracing::debug!(%peer, %error, "Admin connection failed");
                    return;
                }
            };
            let ip = peer.ip().to_canonical();
            let asker = Asker {
                ip,
                tls: io.client.clone(),
                at: SocketAddr::new(at.ip().to_canonical(), at.port()),
            };
            let meta = gate.policy.borrow().meta.clone();
            let labels = Labels::direction("inbound").with("peer", "src");
            let labels = asker.about(labels, &meta).finish();
            let io = Metered::new(io, &gate.registry, &labels);
            let check = move |request: &Request<Bytes>| Gate::admit(&gate, request, &asker);
            admin.serve_io(io, ip, check).await;
        });
    }
}

impl Asker {
    fn about(&self, labels: Labels, server: &Meta) -> Labels {
        labels
            .target(self.at)
            .client_tls(&self.tls)
            .server(server, self.at.port())
    }
}

impl Gate {
    /// Counts a request that is let in, and has its answer counted; or the answer that refuses it.
    fn admit(this: &Arc<Self>, request: &Request<Bytes>, asker: &Asker) -> Verdict {
        let labels = match this.check(request, asker) {
            Ok(labels) => labels,
            Err(error) => {
                let response = error.response(false, asker.tls.id().is_some());
                return Verdict::Refuse(response.map(|()| Bytes::new()));
            }
        };
        this.count(&labels, HttpMetrics::request);
        let (this, began) = (this.clone(), Instant::now());
        Verdict::Answer(Box::new(move |status| {
            let status = status.as_u16();
            this.count(&labels, |series| {
                series.latency(status, began.elapsed());
                series.response(Outcome::classify(status, None));
            });
        }))
    }

    fn count(&self, labels: &Arc<str>, count: impl FnOnce(&HttpMetrics)) {
        let mut series = self.series.lock();
        if series.len() >= MAX_SERIES && !series.contains_key(labels) {
            series.clear();
        }
        let new = || HttpMetrics::new(&self.registry, labels.clone());
        count(series.entry(labels.clone()).or_insert_with(new));
    }

    /// Whether policy lets a request in; gives the labels of its series.
    fn check(&self, request: &Request<Bytes>, asker: &Asker) -> Result<Arc<str>, HttpError> {
        let policy = self.policy.borrow().clone();
        let all = HttpRoutes::all();
        let local = asker.ip.is_loopback();
        let routes = match &policy.protocol {
            Protocol::Detect { http, .. }
            | Protocol::Http1(http)
            | Protocol::Http2(http)
            | Protocol::Grpc(http) => http,
            Protocol::Opaque | Protocol::Tls => &all,
            Protocol::Invalid(_) if local => &all,
            Protocol::Invalid(_) => {
                let message = "invalid server policy";
                return Err(HttpError::new(Class::Internal, "unexpected", message));
            }
        };
        let labels = || asker.about(Labels::default(), &policy.meta);
        let count = |family, labels: Labels| self.registry.counter(family, &labels.finish()).inc();
        let found = routes.find(request);
        let route = match found.or_else(|| all.find(request).filter(|_| local)) {
            Some((route, _)) => route,
            None => {
                count(Family::InboundHttpRouteNotFoundTotal, labels());
                return Err(HttpError::no_inbound_route());
            }
        };
        // This host is let in whatever the policy says.
        let host = localhost();
        let list = route.authorizations.iter().chain(&policy.authorizations);
        let allowed = authorize(list, asker.ip, &asker.tls).or_else(|| local.then_some(&host));
        let labels = labels().resource("route", &route.meta);
        let Some(authorization) = allowed else {
            tracing::info!(
                server.group = policy.meta.group(),
                server.kind = policy.meta.kind(),
                server.name = policy.meta.name(),
                client.ip = %asker.ip,
                client.tls = ?asker.tls,
                "Request denied"
            );
            count(Family::InboundHttpAuthzDenyTotal, labels);
            return Err(HttpError::unauthorized());
        };
        let labels = labels.resource("authz", &authorization.meta).finish();
        let family = Family::InboundHttpAuthzAllowTotal;
        self.registry.counter(family, &labels).inc();
        Ok(format!("direction=\"inbound\",{labels}").into())
    }
}

#[cfg(test)]
mod tests {
    use linkerd_core::identity::Id;

    use super::*;
    use crate::policy::{
        Meta,
        server::{Authentication, Authorization, NoTls},
    };

    fn gate(authorizations: Vec<Authorization>) -> Arc<Gate> {
        let (root, _) = linkerd_testkit::ca::Ca::linkerd();
        let anchors = linkerd_tls::TrustAnchors::from_pem("test", root.pem().as_bytes());
        let anchors = anchors.expect("a root");
        let id = Id::parse("web.ns").expect("a name");
        let policy = ServerPolicy {
            meta: Meta::default_named("test"),
            protocol: Protocol::Detect {
                timeout: Duration::from_secs(1),
                http: HttpRoutes::all(),
            },
            authorizations,
        };
        let (_, policy) = watch::channel(Arc::new(policy));
        Arc::new(Gate {
            store: Arc::new(Store::new(anchors, linkerd_tls::Local::new(id))),
            policy,
            registry: Arc::new(Registry::new(Duration::from_secs(1))),
            series: Mutex::default(),
        })
    }

    #[test]
    fn policy_decides_for_everybody_but_this_host() {
        let anyone = Authorization {
            meta: Meta::default_named("anyone"),
            networks: vec![("10.0.0.0/8".parse().expect("a network"), Vec::new())],
            authentication: Authentication::Identities {
                ids: Vec::new(),
                suffixes: vec![String::new()],
            },
        };
        let id = Id::parse("prometheus.ns").expect("a name");
        let meshed = ClientTls::Mesh(Some(id));
        let plain = ClientTls::Plain(NoTls::NotFromRemote);
        let request = Request::get("/metrics").body(Bytes::new()).expect("valid");
        let open = gate(vec![anyone]);
        let shut = gate(Vec::new());
        for (name, gate, ip, tls, want) in [
            ("meshed", &open, [10, 0, 0, 1], &meshed, None),
            ("plain", &open, [10, 0, 0, 1], &plain, Some(403)),
            (
                "from elsewhere",
                &open,
                [192, 168, 0, 1],
                &meshed,
                Some(403),
            ),
            ("nobody may", &shut, [10, 0, 0, 1], &meshed, Some(403)),
            ("this host", &shut, [127, 0, 0, 1], &plain, None),
        ] {
            let asker = Asker {
                ip: ip.into(),
                tls: tls.clone(),
                at: ([10, 0, 0, 9], 4191).into(),
            };
            let status = match Gate::admit(gate, &request, &asker) {
                Verdict::Answer(told) => {
                    told(http::StatusCode::OK);
                    None
                }
                Verdict::Refuse(response) => Some(response.status().as_u16()),
            };
            assert_eq!(status, want, "{name}");
        }
        let shown = |gate: &Gate| {
            let mut text = String::new();
            let now = std::time::Instant::now();
            gate.registry.write(&mut text, now).expect("writes");
            text
        };
        let labels = r#"target_addr="10.0.0.9:4191",target_ip="10.0.0.9",target_port="4191",tls="true",client_id="prometheus.ns",srv_group="",srv_kind="default",srv_name="test",srv_port="4191",route_group="",route_kind="default",route_name="default",authz_group="",authz_kind="default",authz_name="anyone""#;
        let want = format!(
            "response_total{{direction=\"inbound\",{labels},status_code=\"200\",classification=\"success\",grpc_status=\"\",error=\"\"}} 1"
        );
        let text = shown(&open);
        assert!(text.lines().any(|line| line == want), "{want}\n{text}");
        assert!(shown(&shut).contains("authz_name=\"localhost\""));
    }
}
