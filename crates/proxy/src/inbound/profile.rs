//! Service profiles of inbound requests: which of a service's routes a request takes. That names its
//! `route_*` series and says which answers fail; timeouts and retries are the client's side's business.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use http::HeaderValue;
use tokio::sync::watch;

use crate::{
    config::value::is_dns_name,
    control::{ProfileLookup, Target},
    metrics::{
        Registry,
        http::{Families, HttpMetrics},
    },
    policy::{
        matching::Request,
        profile::{Profile, ProfileRule, RequestMatch, labels},
    },
};

/// The profile of one name, on one worker.
#[derive(Debug)]
pub struct LocalProfile {
    target: Target,
    updates: RefCell<watch::Receiver<ProfileLookup>>,
    /// Since when it is looked up.
    asked: Instant,
    /// Whether requests wait for the first answer.
    pending: Cell<bool>,
    routes: RefCell<Option<Rc<Routes>>>,
}

/// Its routes, in order; the last one takes what the others leave.
#[derive(Debug)]
struct Routes(Vec<(Option<RequestMatch>, Rc<Route>)>);

/// One route and its series.
#[derive(Debug)]
pub struct Route {
    /// What it says about answers, and its labels.
    pub rule: Arc<ProfileRule>,
    /// Its series.
    pub series: Rc<HttpMetrics>,
}

/// The target a request's name stands for; port 80 unless it says otherwise. Addresses have none.
pub(super) fn target(name: &str) -> Option<Target> {
    let (host, port) = match name.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (name, 80),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_address = host.parse::<std::net::Ipv4Addr>().is_ok();
    (is_dns_name(host) && !is_address).then(|| Target::Name(host.to_ascii_lowercase(), port))
}

impl LocalProfile {
    pub(super) fn new(target: Target, updates: watch::Receiver<ProfileLookup>) -> Self {
        let mut updates = updates;
        updates.mark_changed();
        Self {
            target,
            updates: RefCell::new(updates),
            asked: Instant::now(),
            pending: Cell::new(true),
            routes: RefCell::default(),
        }
    }

    /// Waits for the control plane, but no longer than `limit` after it was asked.
    pub(super) async fn answered(&self, limit: Duration) {
        if !self.pending.get() {
            return;
        }
        let left = limit.saturating_sub(self.asked.elapsed());
        let mut updates = self.updates.borrow().clone();
        let known = updates.wait_for(|state| !matches!(state, ProfileLookup::Pending));
        if tokio::time::timeout(left, known).await.is_err() {
            tracing::debug!(target = %self.target, "The service profile does not come");
        }
        self.pending.set(false);
    }

    /// The route a request takes, if there is a profile with routes.
    pub(super) fn route(
        &self,
        registry: &Arc<Registry>,
        request: &impl Request,
    ) -> Option<Rc<Route>> {
        self.refresh(registry);
        let routes = self.routes.borrow();
        let found = routes.as_ref()?.0.iter().find(|(condition, _)| {
            let condition = condition.as_ref();
            condition.is_none_or(|condition| condition.matches(request))
        });
        found.map(|(_, route)| route.clone())
    }

    fn refresh(&self, registry: &Arc<Registry>) {
        let mut updates = self.updates.borrow_mut();
        if !updates.has_changed().unwrap_or(false) {
            return;
        }
        let routes = match &*updates.borrow_and_update() {
            ProfileLookup::Known(profile) => compile(profile, &self.target, registry),
            ProfileLookup::Pending | ProfileLookup::Absent => None,
        };
        *self.routes.borrow_mut() = routes.map(Rc::new);
    }
}

/// A profile without routes has nothing to tell apart.
fn compile(profile: &Profile, target: &Target, registry: &Arc<Registry>) -> Option<Routes> {
    let (Some(name), Target::Name(_, port)) = (&profile.name, target) else {
        return None;
    };
    if profile.routes.is_empty() {
        return None;
    }
    let dst = format!("{name}:{port}");
    let canonical = HeaderValue::from_str(&dst).ok()?;
    let routes = profile.routes.iter().map(Some).chain([None]);
    let compiled = routes.map(|route| {
        let rule = Arc::new(ProfileRule {
            labels: labels("inbound", &dst, route),
            route: route.map(|r| r.labels.clone()).unwrap_or_default(),
            canonical: canonical.clone(),
            classes: route.map(|r| r.classes.clone()).unwrap_or_default(),
            retryable: false,
        });
        let series = HttpMetrics::of(Families::ROUTE, registry, rule.labels.clone());
        let series = Rc::new(series);
        let condition = route.map(|r| r.condition.clone());
        (condition, Rc::new(Route { rule, series }))
    });
    Some(Routes(compiled.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_targets() {
        let named = |host: &str, port| Some(Target::Name(host.to_owned(), port));
        for (name, text, want) in [
            ("with a port", "web.ns.svc:8080", named("web.ns.svc", 8080)),
            ("without", "web.ns.svc", named("web.ns.svc", 80)),
            ("in capitals", "Web.NS.svc:1", named("web.ns.svc", 1)),
            ("with a dot", "web.ns.svc.:1", named("web.ns.svc", 1)),
            ("an address", "10.0.0.1:80", None),
            ("another address", "[::1]:80", None),
            ("a bad port", "web:http", None),
            ("no name", ":80", None),
            ("nothing", "", None),
        ] {
            assert_eq!(target(text), want, "{name}");
        }
    }
}
