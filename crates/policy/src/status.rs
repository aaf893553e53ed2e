//! What is written back to routes, rate limits and egress networks: computed from the index as a
//! pure function, written by whoever holds the lease.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use linkerd_core::policy::{CORE_GROUP, POLICY_GROUP};
use linkerd_k8s::{
    Key,
    policy::{
        self as k8s,
        route::{Kind, ParentRef, ParentStatus},
    },
};
use serde_json::{Value, json};

use crate::{
    index::{
        Index, Store,
        egress::EgressNetwork,
        rate_limit::RateLimit,
        route::{BackendTarget, Parent, ParentKind, RouteHead, RouteKind},
    },
    outbound::{Rejection, accepts},
};

mod writer;

pub use writer::{Metrics, Writer};

/// The name this controller has in statuses.
pub const CONTROLLER_NAME: &str = "linkerd.io/policy-controller";

/// A status that has to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// API group of the object.
    pub group: &'static str,
    /// API version of the object.
    pub version: &'static str,
    /// Kind of the object.
    pub kind: &'static str,
    /// Plural of the kind.
    pub plural: &'static str,
    /// Which object.
    pub key: Key,
    /// The whole status.
    pub status: Value,
}

/// What is true or false, before anybody knows since when.
struct Finding {
    type_: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

impl Finding {
    fn holds(type_: &'static str, reason: &'static str) -> Self {
        Self {
            type_,
            status: true,
            reason,
            message: String::new(),
        }
    }

    fn fails(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            type_,
            status: false,
            reason,
            message: message.into(),
        }
    }

    /// As a condition that keeps its time while it stays true or false.
    fn since(self, before: &[Condition], generation: Option<i64>, now: Timestamp) -> Condition {
        let status = if self.status { "True" } else { "False" };
        let unchanged = before
            .iter()
            .find(|old| old.type_ == self.type_ && old.status == status);
        Condition {
            type_: self.type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message,
            observed_generation: generation,
            last_transition_time: unchanged
                .map_or(Time(now), |old| old.last_transition_time.clone()),
        }
    }
}

impl Index {
    /// Every status that differs from what the API server has.
    pub fn status_patches(&self, now: Timestamp) -> Vec<Patch> {
        let store = &self.store;
        let routes = store
            .route_heads()
            .filter_map(|head| route_patch(store, head, now));
        let limits = store
            .rate_limits
            .iter()
            .filter_map(|(namespace, name, limit)| {
                rate_limit_patch(store, namespace, name, limit, now)
            });
        let networks = store
            .egress_networks
            .iter()
            .filter_map(|(namespace, name, network)| egress_patch(namespace, name, network, now));
        routes.chain(limits).chain(networks).collect()
    }
}

fn route_patch(store: &Store, head: &RouteHead, now: Timestamp) -> Option<Patch> {
    let current = head
        .status
        .as_ref()
        .map(|status| status.parents.as_slice())
        .unwrap_or_default();
    let foreign = current
        .iter()
        .filter(|status| status.controller_name != CONTROLLER_NAME)
        .cloned();
    let mut desired: Vec<ParentStatus> = foreign.collect();
    let mut seen: Vec<&Parent> = Vec::new();
    for parent in &head.parents {
        if seen
            .iter()
            .any(|other| other.id == parent.id && other.port == parent.port)
        {
            continue;
        }
        seen.push(parent);
        desired.push(parent_status(store, head, parent, current, now));
    }
    if same_parents(current, &desired) {
        return None;
    }
    let (group, version, kind, plural) = names(head.id.kind);
    let key = Key::new(head.id.namespace.as_str(), head.id.name.as_str());
    Some(Patch {
        group,
        version,
        kind,
        plural,
        key,
        status: json!({"parents": desired}),
    })
}

fn names(kind: RouteKind) -> (&'static str, &'static str, &'static str, &'static str) {
    fn of<K: Kind>() -> (&'static str, &'static str, &'static str, &'static str) {
        (K::GROUP, K::VERSION, K::KIND, K::PLURAL)
    }
    match kind {
        RouteKind::Grpc => of::<k8s::route::GatewayGrpc>(),
        RouteKind::GatewayHttp => of::<k8s::route::GatewayHttp>(),
        RouteKind::PolicyHttp => of::<k8s::route::PolicyHttp>(),
        RouteKind::Tls => of::<k8s::route::GatewayTls>(),
        RouteKind::Tcp => of::<k8s::route::GatewayTcp>(),
    }
}

fn parent_status(
    store: &Store,
    head: &RouteHead,
    parent: &Parent,
    current: &[ParentStatus],
    now: Timestamp,
) -> ParentStatus {
    let (group, kind) = match parent.id.kind {
        ParentKind::Server => (POLICY_GROUP, "Server"),
        ParentKind::EgressNetwork => (POLICY_GROUP, "EgressNetwork"),
        ParentKind::Service => (CORE_GROUP, "Service"),
    };
    let parent_ref = ParentRef {
        group: Some(group.to_owned()),
        kind: Some(kind.to_owned()),
        name: parent.id.name.clone(),
        namespace: Some(parent.id.namespace.clone()),
        port: parent.port,
        section_name: None,
    };
    let ours = |status: &&ParentStatus| {
        status.controller_name == CONTROLLER_NAME && status.parent_ref == parent_ref
    };
    let before = current
        .iter()
        .find(ours)
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();

    let verdict = accepts(store, head, parent);
    let partly = verdict.is_ok() && !head.rule_problems.is_empty();
    let mut findings = vec![accepted(verdict)];
    if parent.id.kind != ParentKind::Server {
        findings.push(resolved(store, head, parent));
    }
    if partly {
        let mut finding = Finding::holds("PartiallyInvalid", "UnsupportedValue");
        finding.message = format!("Dropped Rule(s): {}", head.rule_problems.join("; "));
        findings.push(finding);
    }
    let conditions = findings
        .into_iter()
        .map(|finding| finding.since(before, head.generation, now))
        .collect();
    ParentStatus {
        parent_ref,
        controller_name: CONTROLLER_NAME.to_owned(),
        conditions,
    }
}

fn accepted(verdict: Result<(), Rejection>) -> Finding {
    let type_ = "Accepted";
    match verdict {
        Ok(()) => Finding::holds(type_, "Accepted"),
        Err(Rejection::NoParent) => Finding::fails(type_, "NoMatchingParent", ""),
        Err(Rejection::NoClusterIp) => Finding::fails(
            type_,
            "NoMatchingParent",
            "parent service must have a ClusterIP",
        ),
        Err(Rejection::EgressNotAccepted) => Finding::fails(
            type_,
            "NoMatchingParent",
            "EgressNetwork parent has not been accepted",
        ),
        Err(Rejection::Conflicted) => Finding::fails(type_, "RouteReasonConflicted", ""),
        Err(Rejection::Unsupported(problem)) => Finding::fails(type_, "UnsupportedValue", problem),
    }
}

/// Whether every backend is there. The first that is not decides.
fn resolved(store: &Store, head: &RouteHead, parent: &Parent) -> Finding {
    let type_ = "ResolvedRefs";
    let problem = head.backends.iter().find_map(|backend| match backend {
        BackendTarget::Service(key) => {
            let found = store.services.contains(&key.namespace, &key.name);
            (!found).then(|| Finding::fails(type_, "BackendNotFound", ""))
        }
        BackendTarget::EgressNetwork(key) => {
            if !store.egress_networks.contains(&key.namespace, &key.name) {
                return Some(Finding::fails(type_, "BackendNotFound", ""));
            }
            let id = &parent.id;
            let same = id.kind == ParentKind::EgressNetwork
                && id.namespace == key.namespace
                && id.name == key.name;
            let message =
                "EgressNetwork backend needs to be on a route that has an EgressNetwork parent";
            (!same).then(|| Finding::fails(type_, "InvalidKind", message))
        }
        BackendTarget::Other { .. } => Some(Finding::fails(type_, "InvalidKind", "")),
        BackendTarget::Unnamed => {
            let message = "backend reference without a name";
            Some(Finding::fails(type_, "BackendNotFound", message))
        }
    });
    problem.unwrap_or_else(|| Finding::holds(type_, "ResolvedRefs"))
}

fn rate_limit_patch(
    store: &Store,
    namespace: &str,
    name: &str,
    limit: &RateLimit,
    now: Timestamp,
) -> Option<Patch> {
    let type_ = "Accepted";
    let server = limit
        .server
        .as_deref()
        .filter(|server| store.servers.contains(namespace, server));
    let finding = match server {
        None => Finding::fails(type_, "NoMatchingTarget", ""),
        Some(server) => match store.rate_limit_of(namespace, server) {
            Some((first, _)) if first != name => {
                Finding::fails(type_, "RateLimitReasonAlreadyExists", "")
            }
            _ => Finding::holds(type_, "Accepted"),
        },
    };
    let current = limit.status.as_ref();
    let before = current
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let mut conditions: Vec<_> = before
        .iter()
        .filter(|old| old.type_ != type_)
        .cloned()
        .collect();
    conditions.push(finding.since(before, limit.generation, now));
    if same_conditions(before, &conditions)
        && current.is_some_and(|status| status.target_ref == limit.target)
    {
        return None;
    }
    Some(Patch {
        group: POLICY_GROUP,
        version: "v1alpha1",
        kind: "HTTPLocalRateLimitPolicy",
        plural: "httplocalratelimitpolicies",
        key: Key::new(namespace, name),
        status: json!({"conditions": conditions, "targetRef": limit.target}),
    })
}

fn egress_patch(
    namespace: &str,
    name: &str,
    network: &EgressNetwork,
    now: Timestamp,
) -> Option<Patch> {
    let type_ = "Accepted";
    let finding = match network.accepted {
        true => Finding::holds(type_, "Accepted"),
        false => Finding::fails(
            type_,
            "EgressReasonNetworkOverlap",
            "networks overlap with clusterNetworks",
        ),
    };
    let current = network.status.as_ref();
    let before = current
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let mut conditions: Vec<_> = before
        .iter()
        .filter(|old| old.type_ != type_)
        .cloned()
        .collect();
    conditions.push(finding.since(before, network.generation, now));
    if current.is_some() && same_conditions(before, &conditions) {
        return None;
    }
    Some(Patch {
        group: POLICY_GROUP,
        version: "v1alpha1",
        kind: "EgressNetwork",
        plural: "egressnetworks",
        key: Key::new(namespace, name),
        status: json!({"conditions": conditions}),
    })
}

/// Whether two lists say the same, whatever the order and the times.
fn same_conditions(a: &[Condition], b: &[Condition]) -> bool {
    let key = |condition: &Condition| {
        let Condition {
            type_,
            status,
            reason,
            message,
            observed_generation,
            ..
        } = condition.clone();
        (type_, status, reason, message, observed_generation)
    };
    same(a, b, key)
}

fn same_parents(a: &[ParentStatus], b: &[ParentStatus]) -> bool {
    let named = |status: &ParentStatus| (status.controller_name.clone(), status.parent_ref.clone());
    same(a, b, named)
        && a.iter().all(|status| {
            let mut others = b.iter().filter(|other| named(other) == named(status));
            others.all(|other| same_conditions(&status.conditions, &other.conditions))
        })
}

fn same<T, K: Ord>(a: &[T], b: &[T], key: impl Fn(&T) -> K) -> bool {
    let sorted = |list: &[T]| {
        let mut keys: Vec<K> = list.iter().map(&key).collect();
        keys.sort();
        keys
    };
    sorted(a) == sorted(b)
}

#[cfg(test)]
mod tests;
