//! Outbound HTTP: a request's rule, its filters and its backend.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use linkerd_http1::{Name, NameSet};

use super::{
    Version,
    discover::{LocalPolicy, LocalTarget},
    overrides,
};
use crate::{
    control::Target,
    errors::{Class, HttpError},
    http::{Backend, Direction, Edits, Lines, Routed, Tally, filters},
    metrics::{Counter, Family, Labels},
    observe::{self, Observed},
    policy::{
        client::{HttpRoutes, Protocol},
        matching,
    },
    worker::{Drain, Gate, Worker},
};

/// HTTP requests of one outbound connection.
#[derive(Debug)]
pub(crate) struct OutboundHttp {
    worker: Rc<Worker>,
    target: Rc<LocalTarget>,
    /// The policy the connection began with: a later one of another kind does not apply.
    first: Rc<LocalPolicy>,
    version: Version,
    /// The application.
    client: SocketAddr,
    errors: RefCell<HashMap<&'static str, Arc<Counter>>>,
}

/// Mesh headers applications must not send on.
const CONSUMED: NameSet = NameSet::EMPTY.with(Name::L5dRequireId);
/// What a peer's proxy says to us and not to the application.
const FROM_PEER: NameSet = NameSet::EMPTY
    .with(Name::L5dProxyError)
    .with(Name::L5dProxyConnection)
    .with(Name::L5dOrigProto);

impl OutboundHttp {
    pub(crate) fn new(
        worker: &Rc<Worker>,
        target: &Rc<LocalTarget>,
        policy: &Rc<LocalPolicy>,
        version: Version,
        client: SocketAddr,
    ) -> Self {
        Self {
            worker: worker.clone(),
            target: target.clone(),
            first: policy.clone(),
            version,
            client,
            errors: RefCell::default(),
        }
    }

    /// In ingress mode, where the request itself says it goes.
    async fn named(
        &self,
        request: &impl matching::Request,
    ) -> Result<Option<(Rc<LocalTarget>, Rc<LocalPolicy>)>, HttpError> {
        if !self.worker.config.outbound.ingress {
            return Ok(None);
        }
        let mut name = None;
        request.any_header(&DST_OVERRIDE, &mut |value| {
            name = std::str::from_utf8(value).ok().map(str::to_owned);
            true
        });
        let Some(name) = name else {
            return Ok(None);
        };
        let bad = || HttpError::new(Class::Internal, "unexpected", "invalid l5d-dst-override");
        let (host, port) = match name.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| bad())?),
            None => (name.as_str(), 80),
        };
        if !crate::config::value::is_dns_name(host.trim_end_matches('.')) {
            return Err(bad());
        }
        let target = Target::Name(host.to_ascii_lowercase(), port);
        let target = self.worker.outbound.target(&self.worker, target);
        let policy = target.ready(&self.worker).await.map_err(|error| {
            tracing::debug!(%error, name, "Discovery by name failed");
            HttpError::unexpected()
        })?;
        Ok(Some((target, policy)))
    }

    fn routes<'a>(&self, policy: &'a LocalPolicy) -> Result<&'a HttpRoutes, Option<&'a str>> {
        match (&policy.policy.protocol, self.version) {
            (Protocol::Detect { http1, .. }, Version::Http1) => Ok(http1),
            (Protocol::Detect { http2, .. }, Version::Http2) => Ok(http2),
            (Protocol::Http1(routes) | Protocol::Http2(routes) | Protocol::Grpc(routes), _) => {
                Ok(routes)
            }
            (Protocol::Invalid(message), _) => Err(Some(message)),
            (Protocol::Opaque(_) | Protocol::Tls(_), _) => Err(None),
        }
    }
}

impl Direction for OutboundHttp {
    async fn route(&self, request: &impl matching::Request) -> Result<Routed, HttpError> {
        let named = self.named(request).await?;
        let (target, first) = match &named {
            Some((target, policy)) => (target, policy),
            None => (&self.target, &self.first),
        };
        let current = target.current(&self.worker).ok().flatten();
        let mut policy = current.as_ref().unwrap_or(first);
        let routes = match self.routes(policy) {
            Ok(routes) => routes,
            Err(Some(message)) => {
                tracing::debug!(message, "Invalid client policy");
                return Err(HttpError::invalid_client_policy());
            }
            Err(None) => {
                policy = first;
                self.routes(policy).map_err(|_| HttpError::unexpected())?
            }
        };
        let (route, rule) = routes.find(request).ok_or_else(HttpError::no_route)?;
        let mut edits = Edits {
            drop: CONSUMED,
            ..Edits::default()
        };
        filters::apply(&rule.filters, request, &rule.matches, &mut edits)?;
        let chosen = policy
            .choose(&rule.backends, Instant::now())
            .ok_or_else(HttpError::load_shed)?;
        filters::apply(&chosen.filters, request, &rule.matches, &mut edits)?;
        let backend = policy.backends[chosen.backend].clone();
        let meshed = match &backend {
            Backend::Forward(endpoint) => endpoint.is_meshed(),
            Backend::Balance(_) => true,
            Backend::None(_) => false,
        };
        if meshed {
            edits.drop_response = FROM_PEER;
        }
        let mut require_id = None;
        request.any_header(&REQUIRE_ID, &mut |value| {
            require_id = std::str::from_utf8(value).ok().map(str::to_owned);
            true
        });
        let metrics = {
            let named = self.worker.config.outbound.hostname_labels;
            let hostname = request.authority().filter(|_| named);
            let hostname = hostname.map(matching::host_of);
            policy.route_metrics(&self.worker, route, rule, chosen.backend, hostname)
        };
        let now = Instant::now();
        let mut retry_budget = None;
        if let Some(profile) = &rule.profile {
            edits.request.push(Lines {
                remove: smallvec::smallvec![DST_CANONICAL.clone()],
                add: smallvec::smallvec![(DST_CANONICAL.clone(), profile.canonical.clone())],
            });
            if let Some(series) = metrics.profile() {
                series.request();
            }
            if profile.retryable {
                retry_budget = policy.retry_budget(now);
            }
        }
        if self.worker.config.outbound.ingress {
            edits.drop = edits.drop.with(Name::L5dDstOverride);
        }
        let mut timeouts = rule.timeouts;
        let mut retry = rule.retry.clone();
        if rule.allow_headers {
            overrides::apply(request, &mut timeouts, &mut retry, &mut edits);
        }
        let queue = self.worker.config.outbound.http_queue;
        Ok(Routed {
            backend,
            edits,
            failfast: queue.failfast,
            capacity: queue.capacity,
            metrics: None,
            require_id,
            timeouts,
            retry,
            routed: now,
            route: Some(metrics),
            head_timeout: self.head_timeout(),
            observed: Observed::default(),
            resend: self.worker.config.outbound.resend,
            budget: Some(target.budget(now)),
            profile: rule.profile.clone(),
            profile_series: None,
            inbound: None,
            retry_budget,
            ended: Cell::new(None),
            retried: Cell::new(false),
            tally: Tally::default(),
        })
    }

    fn observe(&self, request: &impl observe::Head) -> Observed {
        self.worker.observers.outbound(request, self.client)
    }

    fn informational(&self) -> bool {
        self.worker.config.outbound.informational_headers
    }

    fn failed(&self, error: &HttpError) {
        tracing::debug!(%error, target = %self.target.target(), "Request failed");
        let mut errors = self.errors.borrow_mut();
        let counter = errors.entry(error.label).or_insert_with(|| {
            let labels = Labels::default().with("error", error.label).finish();
            self.worker
                .registry
                .counter(Family::OutboundHttpErrorsTotal, &labels)
        });
        counter.inc();
    }

    fn downgrades(&self) -> bool {
        false
    }

    fn head_timeout(&self) -> Duration {
        self.worker.config.head_timeout
    }

    fn drain(&self) -> &Rc<Drain> {
        &self.worker.outbound_drain
    }

    fn in_flight(&self) -> (&Gate, usize) {
        let max = self.worker.config.outbound.max_in_flight;
        (&self.worker.in_flight.outbound, max)
    }

    fn overloaded(&self) -> &Cell<bool> {
        &self.worker.overloaded
    }
}

static DST_OVERRIDE: http::HeaderName =
    http::HeaderName::from_static(linkerd_api::headers::DST_OVERRIDE);
static DST_CANONICAL: http::HeaderName =
    http::HeaderName::from_static(linkerd_api::headers::DST_CANONICAL);
static REQUIRE_ID: http::HeaderName =
    http::HeaderName::from_static(linkerd_api::headers::REQUIRE_ID);
