//! The admin port: mesh TLS or plain, HTTP/1 or HTTP/2, and the inbound policy of its own port.
//! Clients on this host always pass.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use linkerd_runtime::admin::Admin;
use linkerd_tls::Store;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};

use crate::{
    errors::{Class, HttpError},
    metrics::{Family, Labels, Registry},
    policy::server::{ClientTls, HttpRoutes, Protocol, ServerPolicy, authorize},
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
    /// Where decisions are counted.
    pub registry: Arc<Registry>,
    /// The port.
    pub addr: SocketAddr,
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
            let io = match ServiceIo::accept(io, &gate.store).await {
                Ok(io) => io,
                Err(error) => {
                    tracing::debug!(%peer, %error, "Admin connection failed");
                    return;
                }
            };
            let client = io.client.clone();
            let ip = peer.ip().to_canonical();
            let check = move |request: &Request<Bytes>| gate.refusal(request, ip, &client);
            admin.serve_io(io, ip, check).await;
        });
    }
}

impl Gate {
    /// The answer to a request that policy does not allow.
    fn refusal(
        &self,
        request: &Request<Bytes>,
        client: IpAddr,
        tls: &ClientTls,
    ) -> Option<Response<Bytes>> {
        if client.is_loopback() {
            return None;
        }
        let error = self.check(request, client, tls).err()?;
        let response = error.response(false, tls.id().is_some());
        Some(response.map(|()| Bytes::new()))
    }

    fn check(
        &self,
        request: &Request<Bytes>,
        client: IpAddr,
        tls: &ClientTls,
    ) -> Result<(), HttpError> {
        let policy = self.policy.borrow().clone();
        let all = HttpRoutes::all();
        let routes = match &policy.protocol {
            Protocol::Detect { http, .. }
            | Protocol::Http1(http)
            | Protocol::Http2(http)
            | Protocol::Grpc(http) => http,
            Protocol::Opaque | Protocol::Tls => &all,
            Protocol::Invalid(_) => {
                let message = "invalid server policy";
                return Err(HttpError::new(Class::Internal, "unexpected", message));
            }
        };
        let labels = || {
            Labels::default()
                .target(self.addr)
                .client_tls(tls)
                .server(&policy.meta, self.addr.port())
        };
        let count = |family, labels: Labels| self.registry.counter(family, &labels.finish()).inc();
        let Some((route, _)) = routes.find(request) else {
            count(Family::InboundHttpRouteNotFoundTotal, labels());
            return Err(HttpError::no_inbound_route());
        };
        let list = route.authorizations.iter().chain(&policy.authorizations);
        let labels = labels().resource("route", &route.meta);
        let Some(authorization) = authorize(list, client, tls) else {
            tracing::info!(
                server.group = policy.meta.group(),
                server.kind = policy.meta.kind(),
                server.name = policy.meta.name(),
                client.ip = %client,
                client.tls = ?tls,
                "Request denied"
            );
            count(Family::InboundHttpAuthzDenyTotal, labels);
            return Err(HttpError::unauthorized());
        };
        let labels = labels.resource("authz", &authorization.meta);
        count(Family::InboundHttpAuthzAllowTotal, labels);
        Ok(())
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

    fn gate(authorizations: Vec<Authorization>) -> Gate {
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
        Gate {
            store: Arc::new(Store::new(anchors, linkerd_tls::Local::new(id))),
            policy,
            registry: Arc::new(Registry::new(Duration::from_secs(1))),
            addr: ([10, 0, 0, 9], 4191).into(),
        }
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
            let refused = gate.refusal(&request, ip.into(), tls);
            let status = refused.map(|r| r.status().as_u16());
            assert_eq!(status, want, "{name}");
        }
    }
}
