//! The multicluster gateway: a direct connection whose transport header names a service goes on to
//! that service, under the policy of the inbound port itself and with our own identity.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use http::{HeaderName, HeaderValue, header::FORWARDED};
use linkerd_core::identity::Id;

use super::{Client, decision, policy::PortPolicy};
use crate::{
    control::Target,
    errors::{Class, HttpError},
    h1::Conn,
    http::{Direction, Lines, Routed, server1, server2},
    metrics::{Counter, Family, Labels, inbound::InboundErrors},
    observe::{self, Observed, Source},
    outbound::{self, OutboundHttp, Version},
    policy::{
        Meta, matching,
        server::{ServerPolicy, authorize},
    },
    transport_header::{Header, Session},
    worker::{Drain, Gate, Worker},
};

/// Carries a connection on to the service its header names.
pub(super) async fn serve(
    worker: &Rc<Worker>,
    peer: Client,
    header: &Header,
    name: &str,
    conn: Conn,
) {
    let policy = worker.inbound.port(worker, peer.target.port());
    let conn = super::metered(worker, &policy, &peer, conn);
    let target = Target::Name(name.to_ascii_lowercase(), header.port);
    let http = |version| GatewayHttp {
        worker: worker.clone(),
        policy: policy.clone(),
        peer: peer.clone(),
        target: target.clone(),
        version,
        errors: InboundErrors::default(),
        allowed: RefCell::default(),
    };
    match header.session {
        Some(Session::Http1) => server1::serve(&http(Version::Http1), conn).await,
        Some(Session::Http2) => {
            let config = &worker.config.inbound.http2;
            server2::serve(&http(Version::Http2), conn, config).await;
        }
        None => {
            if let Err(error) = opaque(worker, &policy, &peer, target, conn).await {
                super::failed(worker, peer.target, error);
            }
        }
    }
}

/// Opaque bytes, if the client may; a refusal counts as such, an error is named.
async fn opaque(
    worker: &Rc<Worker>,
    policy: &PortPolicy,
    peer: &Client,
    target: Target,
    conn: Conn,
) -> Result<(), &'static str> {
    let snapshot = policy.current();
    let labels = Labels::default()
        .target(peer.target)
        .client_tls(&peer.tls)
        .server(&snapshot.meta, peer.target.port());
    let count = |family, labels: Labels| worker.registry.counter(family, &labels.finish()).inc();
    let Some(authorization) = snapshot.allows_bytes(peer.addr.ip(), &peer.tls) else {
        decision::connection("Connection denied", &snapshot, None, peer);
        count(Family::InboundTcpAuthzDenyTotal, labels);
        return Ok(());
    };
    let authz = &authorization.meta;
    if authorization.is_audit() {
        decision::connection("Request allowed", &snapshot, Some(authz), peer);
    }
    let labels = labels.resource("authz", authz);
    count(Family::InboundTcpAuthzAllowTotal, labels);
    if is_ours(worker, peer.tls.id()) {
        tracing::info!(%target, "gateway loop detected");
        return Err("gateway loop");
    }
    if !matches!(&target, Target::Name(name, _) if known(worker, name)) {
        tracing::info!(%target, "bad gateway domain");
        return Err("gateway domain invalid");
    }
    outbound::carry_named(worker, target, peer.target, conn).await
}

/// Whether the gateway serves a name.
fn known(worker: &Worker, name: &str) -> bool {
    worker.config.inbound.gateway_suffixes.matches(name)
}

fn is_ours(worker: &Worker, id: Option<&Id>) -> bool {
    id.is_some_and(|id| *id == worker.store.local().id)
}

/// HTTP requests of one gateway connection.
#[derive(Debug)]
struct GatewayHttp {
    worker: Rc<Worker>,
    policy: Rc<PortPolicy>,
    peer: Client,
    target: Target,
    version: Version,
    errors: InboundErrors,
    /// Allowed requests, by the policy they were allowed under.
    allowed: RefCell<Option<(Arc<ServerPolicy>, Arc<Counter>)>>,
}

impl GatewayHttp {
    fn name(&self) -> &str {
        match &self.target {
            Target::Name(name, _) => name,
            Target::Addr(_) => "",
        }
    }

    fn labels(&self, policy: &ServerPolicy) -> Labels {
        let addr = self.peer.target;
        Labels::default()
            .target(addr)
            .client_tls(&self.peer.tls)
            .server(&policy.meta, addr.port())
            .resource("route", &self.route())
    }

    /// A gateway's requests have one route: to whatever they name.
    fn route(&self) -> Meta {
        Meta::Default("default".into())
    }

    /// Under one policy, one client is always let in by the same authorization.
    fn count_allowed(&self, policy: &Arc<ServerPolicy>, authz: &Meta) {
        let mut allowed = self.allowed.borrow_mut();
        let known = allowed.as_ref().filter(|(p, _)| Arc::ptr_eq(p, policy));
        if let Some((_, counter)) = known {
            counter.inc();
            return;
        }
        let labels = self.labels(policy).resource("authz", authz).finish();
        let family = Family::InboundHttpAuthzAllowTotal;
        let counter = self.worker.registry.counter(family, &labels);
        counter.inc();
        *allowed = Some((policy.clone(), counter));
    }
}

static BY: HeaderName = FORWARDED;

impl Direction for GatewayHttp {
    async fn route(&self, request: &impl matching::Request) -> Result<Routed, HttpError> {
        let policy = self.policy.current();
        let client = self.peer.addr.ip();
        let allowed = authorize(policy.authorizations.iter(), client, &self.peer.tls);
        let Some(authorization) = allowed else {
            decision::request("Request denied", &policy, &self.route(), None, &self.peer);
            let labels = self.labels(&policy).finish();
            let registry = &self.worker.registry;
            registry
                .counter(Family::InboundHttpAuthzDenyTotal, &labels)
                .inc();
            return Err(HttpError::unauthorized());
        };
        if authorization.is_audit() {
            let authz = Some(&*authorization.meta);
            decision::request("Request allowed", &policy, &self.route(), authz, &self.peer);
        }
        self.count_allowed(&policy, &authorization.meta);
        let ours = &self.worker.store.local().id;
        let seen = request.any_header(&BY, &mut |value| passed_by(value, ours.as_str()));
        if seen || is_ours(&self.worker, self.peer.tls.id()) {
            return Err(HttpError::gateway_loop());
        }
        if !known(&self.worker, self.name()) {
            return Err(HttpError::bad_gateway_domain());
        }
        let target = self
            .worker
            .outbound
            .target(&self.worker, self.target.clone());
        let policy = target.ready(&self.worker).await.map_err(|error| {
            tracing::debug!(%error, target = %self.target, "Gateway discovery failed");
            HttpError::bad_gateway_domain()
        })?;
        let http = OutboundHttp::new(&self.worker, &target, &policy, self.version, self.peer.addr);
        let mut routed = http.route(request).await?;
        let authority = match request.authority() {
            Some(authority) => authority.to_owned(),
            None => self.target.to_string(),
        };
        let by = self.peer.tls.id().map(Id::as_str).unwrap_or_default();
        let line = format!("by={ours};for={by};host={authority};proto=https");
        if let Ok(line) = HeaderValue::from_str(&line) {
            routed.edits.request.push(Lines::one(FORWARDED, line));
        }
        if self.version == Version::Http1 && routed.edits.authority.is_none() {
            routed.edits.authority = Some(self.target.to_string());
        }
        Ok(routed)
    }

    fn observe(&self, request: &impl observe::Head) -> Observed {
        self.worker.observers.inbound(request, || Source {
            addr: self.peer.addr,
            tls: Some(&self.peer.tls),
        })
    }

    fn head_timeout(&self) -> Duration {
        self.worker.config.head_timeout
    }

    fn informational(&self) -> bool {
        self.peer.tls.id().is_some()
    }

    fn failed(&self, error: &HttpError) {
        tracing::debug!(%error, target = %self.target, "Gateway request failed");
        // Denials have series of their own.
        if error.class == Class::PermissionDenied {
            return;
        }
        let server = &self.policy.current().meta;
        let (registry, target) = (&self.worker.registry, self.peer.target);
        self.errors.count(registry, error.label, target, server);
    }

    fn downgrades(&self) -> bool {
        true
    }

    fn drain(&self) -> &Rc<Drain> {
        &self.worker.inbound_drain
    }

    fn in_flight(&self) -> (&Gate, usize) {
        let max = self.worker.config.inbound.max_in_flight;
        (&self.worker.in_flight.inbound, max)
    }

    fn overloaded(&self) -> &Cell<bool> {
        &self.worker.overloaded
    }
}

/// Whether an element of a `Forwarded` value says that the request came by `id`.
fn passed_by(value: &[u8], id: &str) -> bool {
    let Ok(value) = std::str::from_utf8(value) else {
        return false;
    };
    value
        .split([',', ';'])
        .filter_map(|pair| pair.trim().split_once('='))
        .any(|(name, value)| {
            name.trim().eq_ignore_ascii_case("by") && value.trim().trim_matches('"') == id
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_elements() {
        let us = "gw.ns.serviceaccount.identity.linkerd.cluster.local";
        for (name, value, want) in [
            ("nothing", "", false),
            ("somebody else", "by=other;for=a", false),
            ("us", &format!("by={us};for=a;host=b;proto=https")[..], true),
            ("us, quoted", &format!("for=a; By=\"{us}\""), true),
            (
                "us, second hop",
                &format!("by=other;for=a, by={us};for=other"),
                true,
            ),
            ("for us is not by us", &format!("for={us}"), false),
        ] {
            assert_eq!(passed_by(value.as_bytes(), us), want, "{name}");
        }
    }
}
