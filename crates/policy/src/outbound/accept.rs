//! Whether a parent accepts a route. Computed here at once and served at once; the status that is
//! written back says the same.

use crate::index::{
    Store,
    route::{Parent, ParentKind, RouteHead},
};

/// Why a parent does not accept a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// There is no such parent.
    NoParent,
    /// The Service has no address that traffic could be sent to.
    NoClusterIp,
    /// The EgressNetwork is not accepted itself.
    EgressNotAccepted,
    /// A route of a higher kind wants the same parent and port.
    Conflicted,
    /// None of the route can be honoured.
    Unsupported(String),
}

/// Whether the parent accepts the route.
pub(crate) fn accepts(store: &Store, head: &RouteHead, parent: &Parent) -> Result<(), Rejection> {
    let (namespace, name) = (parent.id.namespace.as_str(), parent.id.name.as_str());
    match parent.id.kind {
        // One of another namespace is there, though it makes no use of the route.
        ParentKind::Server => {
            if !store.servers.contains(namespace, name) {
                return Err(Rejection::NoParent);
            }
        }
        ParentKind::Service => {
            let service = store
                .services
                .get(namespace, name)
                .ok_or(Rejection::NoParent)?;
            if !service.can_have_routes() {
                return Err(Rejection::NoClusterIp);
            }
        }
        ParentKind::EgressNetwork => {
            let network = store
                .egress_networks
                .get(namespace, name)
                .ok_or(Rejection::NoParent)?;
            if !network.accepted {
                return Err(Rejection::EgressNotAccepted);
            }
        }
    }
    if conflicted(store, head, parent) {
        return Err(Rejection::Conflicted);
    }
    if parent.id.kind != ParentKind::Server
        && let Some(problem) = &head.bad_annotation
    {
        return Err(Rejection::Unsupported(problem.clone()));
    }
    head.unusable().map_or(Ok(()), |problem| {
        Err(Rejection::Unsupported(problem.to_owned()))
    })
}

/// Whether a route of a higher kind wants the very same parent reference, accepted there or not.
fn conflicted(store: &Store, head: &RouteHead, parent: &Parent) -> bool {
    // A route of another namespace has no say on a Server, so that it takes nothing from others.
    let has_say = |rival: &RouteHead| {
        parent.id.kind != ParentKind::Server || rival.id.namespace == parent.id.namespace
    };
    let rivals = store
        .routes_of(&parent.id)
        .filter(|id| id.kind.rank() < head.id.kind.rank());
    let mut rivals = rivals
        .filter_map(|id| store.route_head(id))
        .filter(|rival| has_say(rival));
    rivals.any(|rival| {
        rival
            .parents
            .iter()
            .any(|other| other.id == parent.id && other.port == parent.port)
    })
}
