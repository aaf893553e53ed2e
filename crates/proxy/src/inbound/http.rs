//! Inbound HTTP: a request's route, who may use it, what the application is told about the client.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderName, HeaderValue};
use linkerd_http1::{Name, NameSet};

use super::{
    Client, decision,
    policy::PortPolicy,
    profile::{self, LocalProfile},
    rate::Exceeded,
};
use crate::{
    endpoint::Endpoint,
    errors::{Class, HttpError},
    http::{Backend, Direction, Edits, Lines, Routed, Tally, filters},
    metrics::{
        Counter, Family, Labels,
        http::HttpMetrics,
        inbound::{About, InboundErrors, InboundMetrics},
    },
    observe::{self, Observed, Source},
    policy::{
        Meta,
        client::Timeouts,
        matching,
        server::{HttpRoutes, Protocol, RateLimit, ServerPolicy, authorize},
    },
    worker::{Drain, Gate, Worker},
};

/// HTTP requests of one inbound connection.
#[derive(Debug)]
pub(super) struct InboundHttp {
    worker: Rc<Worker>,
    policy: Rc<PortPolicy>,
    peer: Client,
    application: Rc<Endpoint>,
    client_id: Option<HeaderValue>,
    /// Series by policy, rule and authorization, resolved once each.
    seen: RefCell<Vec<Seen>>,
    errors: InboundErrors,
    all: HttpRoutes,
    /// The name requests went by last, and its profile.
    named: RefCell<(String, Option<Rc<LocalProfile>>)>,
}

#[derive(Debug)]
struct Seen {
    policy: Arc<ServerPolicy>,
    rule: usize,
    authorization: usize,
    /// Where it is a label.
    authority: Option<Rc<str>>,
    metrics: Rc<HttpMetrics>,
    route: Rc<InboundMetrics>,
    allowed: Arc<Counter>,
}

/// Series one connection remembers.
const MAX_SEEN: usize = 64;

/// What let a request in.
struct Allowed<'a> {
    rule: usize,
    authorization: usize,
    /// Where it is a label.
    authority: Option<&'a str>,
    route: &'a Arc<Meta>,
    authz: &'a Arc<Meta>,
}

/// What clients may not tell the application, and what is between proxies only.
const CONSUMED: NameSet = NameSet::EMPTY
    .with(Name::L5dClientId)
    .with(Name::L5dOrigProto)
    .with(Name::L5dProxyError);

/// What only proxies say: an application must not speak in their name.
const OURS: NameSet = NameSet::EMPTY
    .with(Name::L5dProxyError)
    .with(Name::L5dProxyConnection);

static DST_CANONICAL: HeaderName = HeaderName::from_static(linkerd_api::headers::DST_CANONICAL);
static CLIENT_ID: HeaderName = HeaderName::from_static(linkerd_api::headers::CLIENT_ID);

impl InboundHttp {
    pub(super) fn new(worker: &Rc<Worker>, policy: &Rc<PortPolicy>, peer: Client) -> Self {
        Self {
            application: worker.inbound.application(worker, peer.target),
            client_id: peer
                .tls
                .id()
                .and_then(|id| HeaderValue::from_str(id.as_str()).ok()),
            worker: worker.clone(),
            policy: policy.clone(),
            peer,
            seen: RefCell::default(),
            errors: InboundErrors::default(),
            all: HttpRoutes::all(),
            named: RefCell::default(),
        }
    }

    /// The route of the service profile that a request takes. The name is what the client's proxy
    /// says, or else the authority; most requests of a connection go by the same.
    async fn profile(&self, request: &impl matching::Request) -> Option<Rc<profile::Route>> {
        let profile = {
            let mut named = self.named.borrow_mut();
            let mut other = None;
            let canonical = request.any_header(&DST_CANONICAL, &mut |value| {
                if value != named.0.as_bytes() {
                    other = Some(String::from_utf8_lossy(value).into_owned());
                }
                true
            });
            if !canonical {
                let authority = request.authority()?;
                other = (authority != named.0).then(|| authority.to_owned());
            }
            if let Some(name) = other {
                let profile = self.worker.inbound.profile(&self.worker, &name);
                *named = (name, profile);
            }
            named.1.clone()?
        };
        let limit = self.worker.config.inbound.profile_timeout;
        profile.answered(limit).await;
        profile.route(&self.worker.registry, request)
    }

    fn labels(&self, policy: &ServerPolicy) -> Labels {
        Labels::default()
            .target(self.peer.target)
            .client_tls(&self.peer.tls)
            .server(&policy.meta, self.peer.target.port())
    }

    fn count(&self, family: Family, labels: Labels) {
        self.worker.registry.counter(family, &labels.finish()).inc();
    }

    fn limit(&self, policy: &ServerPolicy, limit: &RateLimit) -> Result<(), HttpError> {
        let client = self.peer.tls.id();
        let Err(exceeded) = limit.buckets.check(limit, client, Instant::now()) else {
            return Ok(());
        };
        let (message, scope) = match exceeded {
            Exceeded::Total(rps) => (format!("total rate limit exceeded: {rps}rps"), "total"),
            Exceeded::Identity(rps) => (
                format!("per-identity rate limit exceeded: {rps}rps"),
                "identity",
            ),
            Exceeded::Override(rps) => (
                format!("override rate limit exceeded: {rps}rps"),
                "identity",
            ),
        };
        let labels = self
            .labels(policy)
            .resource("ratelimit", &limit.meta)
            .with("ratelimit_scope", scope);
        self.count(Family::InboundHttpLocalRatelimitTotal, labels);
        Err(HttpError::rate_limited(message))
    }

    /// The series of an allowed request, and its count.
    fn allowed(
        &self,
        policy: &Arc<ServerPolicy>,
        by: &Allowed<'_>,
    ) -> (Rc<HttpMetrics>, Rc<InboundMetrics>) {
        let mut seen = self.seen.borrow_mut();
        let found = seen.iter().find(|s| {
            s.rule == by.rule
                && s.authorization == by.authorization
                && s.authority.as_deref() == by.authority
                && Arc::ptr_eq(&s.policy, policy)
        });
        if let Some(found) = found {
            found.allowed.inc();
            return (found.metrics.clone(), found.route.clone());
        }
        seen.retain(|s| Arc::ptr_eq(&s.policy, policy));
        if seen.len() >= MAX_SEEN {
            seen.clear();
        }
        let rest = self
            .labels(policy)
            .resource("route", by.route)
            .resource("authz", by.authz)
            .finish();
        let mut labels = Labels::direction("inbound");
        if let Some(authority) = by.authority {
            let known = self.worker.inbound.told_apart(authority);
            labels = labels.with("authority", if known { authority } else { "" });
        }
        let labels: Arc<str> = format!("{},{rest}", labels.finish()).into();
        let registry = &self.worker.registry;
        let metrics = self.worker.inbound.http(registry, &labels);
        let allowed = registry.counter(Family::InboundHttpAuthzAllowTotal, &rest);
        allowed.inc();
        let grpc = matches!(policy.protocol, Protocol::Grpc(_));
        let port = self.peer.target.port();
        let about = About {
            server: policy.meta.clone(),
            port,
            route: by.route.clone(),
            authz: by.authz.clone(),
        };
        let inbound = InboundMetrics::new(registry, about, grpc);
        seen.push(Seen {
            policy: policy.clone(),
            rule: by.rule,
            authorization: by.authorization,
            authority: by.authority.map(Rc::from),
            metrics: metrics.clone(),
            route: inbound.clone(),
            allowed,
        });
        (metrics, inbound)
    }
}

/// A request as routes see it: who its client is, we say.
struct Known<'a, R> {
    request: &'a R,
    client: Option<&'a HeaderValue>,
}

impl<R: matching::Request> matching::Request for Known<'_, R> {
    fn method(&self) -> &str {
        self.request.method()
    }

    fn authority(&self) -> Option<&str> {
        self.request.authority()
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn query(&self) -> Option<&str> {
        self.request.query()
    }

    fn any_header(&self, name: &HeaderName, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        if *name == CLIENT_ID {
            return self.client.is_some_and(|id| test(id.as_bytes()));
        }
        self.request.any_header(name, test)
    }
}

impl Direction for InboundHttp {
    async fn route(&self, request: &impl matching::Request) -> Result<Routed, HttpError> {
        let policy = self.policy.current();
        let routes = match &policy.protocol {
            Protocol::Detect { http, .. }
            | Protocol::Http1(http)
            | Protocol::Http2(http)
            | Protocol::Grpc(http) => http,
            // The client's proxy said HTTP; the port's policy still decides who may.
            Protocol::Opaque | Protocol::Tls => &self.all,
            Protocol::Invalid(message) => {
                tracing::debug!(message, "Invalid server policy");
                return Err(HttpError::invalid_server_policy());
            }
        };
        let known = Known {
            request,
            client: self.client_id.as_ref(),
        };
        let Some((route, rule)) = routes.find(&known) else {
            self.count(Family::InboundHttpRouteNotFoundTotal, self.labels(&policy));
            return Err(HttpError::no_inbound_route());
        };
        let list = || route.authorizations.iter().chain(&policy.authorizations);
        let allowed = authorize(list(), self.peer.addr.ip(), &self.peer.tls);
        let Some(authorization) = allowed else {
            decision::request("Request denied", &policy, &route.meta, None, &self.peer);
            let labels = self.labels(&policy).resource("route", &route.meta);
            self.count(Family::InboundHttpAuthzDenyTotal, labels);
            return Err(HttpError::unauthorized());
        };
        if authorization.is_audit() {
            let authz = Some(&*authorization.meta);
            decision::request("Request allowed", &policy, &route.meta, authz, &self.peer);
        }
        let position = list()
            .position(|a| std::ptr::eq(a, authorization))
            .unwrap_or(usize::MAX);
        let mut edits = Edits {
            drop: CONSUMED,
            drop_response: OURS,
            ..Edits::default()
        };
        if let Some(id) = &self.client_id {
            edits
                .request
                .push(Lines::one(CLIENT_ID.clone(), id.clone()));
        }
        let labelled = self.worker.config.inbound.authority_labels;
        let by = Allowed {
            rule: rule.index,
            authorization: position,
            authority: request.authority().filter(|_| labelled),
            route: &route.meta,
            authz: &authorization.meta,
        };
        // Allowed is what policy allows, whatever becomes of it.
        let (metrics, inbound) = self.allowed(&policy, &by);
        filters::apply(&rule.filters, &known, &rule.matches, &mut edits)?;
        if let Some(limit) = &routes.rate_limit {
            self.limit(&policy, limit)?;
        }
        let profile = self.profile(request).await;
        let queue = self.worker.config.inbound.http_queue;
        Ok(Routed {
            backend: Backend::Forward(self.application.clone()),
            edits,
            failfast: queue.failfast,
            capacity: queue.capacity,
            metrics: Some(metrics),
            require_id: None,
            timeouts: Timeouts::default(),
            retry: None,
            routed: Instant::now(),
            route: None,
            resend: self.worker.config.inbound.resend,
            budget: None,
            profile: profile.as_ref().map(|p| p.rule.clone()),
            profile_series: profile.map(|p| p.series.clone()),
            inbound: Some(inbound),
            retry_budget: None,
            ended: Cell::new(None),
            retried: Cell::new(false),
            tally: Tally::default(),
            head_timeout: self.head_timeout(),
            observed: Observed::default(),
        })
    }

    fn observe(&self, request: &impl observe::Head) -> Observed {
        self.worker.observers.inbound(request, || Source {
            addr: self.peer.addr,
            tls: Some(&self.peer.tls),
        })
    }

    fn informational(&self) -> bool {
        self.client_id.is_some()
    }

    fn failed(&self, error: &HttpError) {
        tracing::debug!(%error, client = %self.peer.addr, "Request failed");
        if matches!(
            error.class,
            Class::PermissionDenied | Class::NotFound | Class::Redirect(_) | Class::RateLimited
        ) {
            return;
        }
        let server = &self.policy.current().meta;
        let (registry, target) = (&self.worker.registry, self.peer.target);
        self.errors.count(registry, error.label, target, server);
    }

    fn downgrades(&self) -> bool {
        true
    }

    fn head_timeout(&self) -> Duration {
        self.worker.config.head_timeout
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::matching::Request;

    #[test]
    fn routes_see_the_client_that_was_verified() {
        let claims = http::Request::builder().header("L5d-Client-Id", "somebody");
        let claims = claims.header("x-a", "1").body(()).expect("valid");
        let us = HeaderValue::from_static("us");
        for (name, client, asked, value, want) in [
            ("what it claims", None, &CLIENT_ID, "somebody", false),
            (
                "what it claims besides",
                Some(&us),
                &CLIENT_ID,
                "somebody",
                false,
            ),
            ("who it is", Some(&us), &CLIENT_ID, "us", true),
            (
                "other headers",
                None,
                &HeaderName::from_static("x-a"),
                "1",
                true,
            ),
        ] {
            let known = Known {
                request: &claims,
                client,
            };
            let got = known.any_header(asked, &mut |v| v == value.as_bytes());
            assert_eq!(got, want, "{name}");
        }
    }
}
