//! Reads route objects into the index: one implementation for all kinds, given how each kind's
//! rules are read.

use linkerd_core::{
    duration,
    policy::{HostMatch, POLICY_GROUP},
};
use linkerd_k8s::{
    Key,
    intern::Names,
    policy::route::{self as k8s, Kind},
};
use std::sync::Arc;

use super::{
    Backend, BackendTarget, Connection, Flavor, Grpc, Http, Parent, ParentKind, Route, RouteHead,
    RouteId, RouteKind, Rule,
};
use crate::{
    annotation::{AnnotationError, Annotations},
    cluster::Cluster,
    index::{Created, Dirty, Store, Stored, Table},
    rule::{self, RuleError},
};

/// A kind of resource, its flavor, and how its rules are read.
pub(crate) trait ReadRoute: Kind {
    type Flavor: Flavor;
    const ID: RouteKind;
    fn table(store: &mut Store) -> &mut Table<Route<Self::Flavor>>;
    fn rule(rule: &Self::Rule, namespace: &str) -> Rule<Self::Flavor>;
}

impl ReadRoute for k8s::GatewayHttp {
    type Flavor = Http;
    const ID: RouteKind = RouteKind::GatewayHttp;

    fn table(store: &mut Store) -> &mut Table<Route<Http>> {
        &mut store.gateway_http
    }

    fn rule(rule: &k8s::HttpRule, namespace: &str) -> Rule<Http> {
        http_rule(rule, namespace)
    }
}

impl ReadRoute for k8s::PolicyHttp {
    type Flavor = Http;
    const ID: RouteKind = RouteKind::PolicyHttp;

    fn table(store: &mut Store) -> &mut Table<Route<Http>> {
        &mut store.policy_http
    }

    fn rule(rule: &k8s::HttpRule, namespace: &str) -> Rule<Http> {
        http_rule(rule, namespace)
    }
}

impl ReadRoute for k8s::GatewayGrpc {
    type Flavor = Grpc;
    const ID: RouteKind = RouteKind::Grpc;

    fn table(store: &mut Store) -> &mut Table<Route<Grpc>> {
        &mut store.grpc
    }

    fn rule(source: &k8s::GrpcRule, namespace: &str) -> Rule<Grpc> {
        let filters = |filters: &[k8s::Filter]| {
            let kept = filters
                .iter()
                .filter_map(|filter| rule::grpc_filter(filter).transpose());
            kept.collect::<Result<Vec<_>, RuleError>>()
        };
        let mut parts = Parts::new(&source.unknown);
        Rule {
            matches: parts.matches(&source.matches, rule::grpc_match),
            filters: parts.keep(filters(&source.filters)),
            backends: source
                .backend_refs
                .iter()
                .map(|backend| read_backend(backend, namespace, filters))
                .collect(),
            request_timeout: None,
            problem: parts.problem,
        }
    }
}

impl ReadRoute for k8s::GatewayTls {
    type Flavor = Connection;
    const ID: RouteKind = RouteKind::Tls;

    fn table(store: &mut Store) -> &mut Table<Route<Connection>> {
        &mut store.tls
    }

    fn rule(rule: &k8s::ConnectionRule, namespace: &str) -> Rule<Connection> {
        connection_rule(rule, namespace)
    }
}

impl ReadRoute for k8s::GatewayTcp {
    type Flavor = Connection;
    const ID: RouteKind = RouteKind::Tcp;

    fn table(store: &mut Store) -> &mut Table<Route<Connection>> {
        &mut store.tcp
    }

    fn rule(rule: &k8s::ConnectionRule, namespace: &str) -> Rule<Connection> {
        connection_rule(rule, namespace)
    }
}

/// Collects the parts of a rule and the first problem among them.
struct Parts {
    problem: Option<String>,
}

impl Parts {
    fn new<V>(unknown: &std::collections::BTreeMap<String, V>) -> Self {
        Self {
            problem: unknown
                .keys()
                .next()
                .map(|field| format!("unsupported field: {field}")),
        }
    }

    fn keep<T: Default>(&mut self, part: Result<T, RuleError>) -> T {
        part.unwrap_or_else(|error| {
            self.problem.get_or_insert_with(|| error.to_string());
            T::default()
        })
    }

    /// Matches that can be read. Those that cannot would match nothing a proxy knows.
    fn matches<S, M>(
        &mut self,
        sources: &[S],
        read: impl Fn(&S) -> Result<M, RuleError>,
    ) -> Vec<M> {
        sources
            .iter()
            .filter_map(|source| self.keep(read(source).map(Some)))
            .collect()
    }
}

fn http_rule(source: &k8s::HttpRule, namespace: &str) -> Rule<Http> {
    let filters = |filters: &[k8s::Filter]| {
        filters
            .iter()
            .map(rule::http_filter)
            .collect::<Result<Vec<_>, _>>()
    };
    let mut parts = Parts::new(&source.unknown);
    let timeout = source
        .timeouts
        .as_ref()
        .and_then(|timeouts| timeouts.request.as_deref());
    let timeout = timeout.map(|text| {
        duration::parse_gateway(text)
            .or_else(|_| duration::parse_plain(text))
            .map_err(|error| RuleError::Invalid {
                what: "request timeout",
                reason: error.to_string(),
            })
    });
    Rule {
        matches: parts.matches(&source.matches, rule::http_match),
        filters: parts.keep(filters(&source.filters)),
        backends: source
            .backend_refs
            .iter()
            .map(|backend| read_backend(backend, namespace, filters))
            .collect(),
        request_timeout: parts
            .keep(timeout.transpose())
            .filter(|timeout| !timeout.is_zero()),
        problem: parts.problem,
    }
}

fn connection_rule(source: &k8s::ConnectionRule, namespace: &str) -> Rule<Connection> {
    let parts = Parts::new(&source.unknown);
    Rule {
        matches: Vec::new(),
        filters: Vec::new(),
        backends: source
            .backend_refs
            .iter()
            .map(|backend| read_backend(backend, namespace, |_| Ok(Vec::new())))
            .collect(),
        request_timeout: None,
        problem: parts.problem,
    }
}

fn read_backend<S, F>(
    source: &k8s::BackendRef<S>,
    namespace: &str,
    filters: impl Fn(&[S]) -> Result<Vec<F>, RuleError>,
) -> Backend<F> {
    Backend {
        target: BackendTarget::read(source, namespace),
        port: source.port,
        weight: source.weight.unwrap_or(1),
        filters: filters(&source.filters).map_err(|error| match error {
            RuleError::Unsupported { value, .. } => format!("unsupported backend filter: {value}"),
            RuleError::Invalid { .. } => format!("unsupported backend filter: {error}"),
        }),
    }
}

impl BackendTarget {
    pub(crate) fn read<S>(source: &k8s::BackendRef<S>, namespace: &str) -> Self {
        if source.name.is_empty() {
            return Self::Unnamed;
        }
        let key = Key::new(
            source.namespace.as_deref().unwrap_or(namespace),
            source.name.as_str(),
        );
        let group = source.group.as_deref().unwrap_or_default();
        let kind = source.kind.as_deref().unwrap_or("Service");
        let core = group.is_empty() || group.eq_ignore_ascii_case("core");
        if core && kind.eq_ignore_ascii_case("Service") {
            Self::Service(key)
        } else if group.eq_ignore_ascii_case(POLICY_GROUP)
            && kind.eq_ignore_ascii_case("EgressNetwork")
        {
            Self::EgressNetwork(key)
        } else {
            Self::Other {
                group: group.to_owned(),
                kind: kind.to_owned(),
                name: source.name.clone(),
            }
        }
    }
}

impl<K: ReadRoute> Stored for k8s::Route<K> {
    type Model = Route<K::Flavor>;

    fn read(object: &Arc<Self>, _: &Cluster, _: &mut Names) -> Result<Option<Self::Model>, String> {
        let meta = &object.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let none = Annotations::new();
        let annotations = meta.annotations.as_ref().unwrap_or(&none);
        let (retry, timeouts) = (
            K::Flavor::retry(annotations),
            K::Flavor::timeouts(annotations),
        );
        let bad_annotation = retry
            .as_ref()
            .err()
            .or_else(|| timeouts.as_ref().err())
            .map(AnnotationError::to_string);
        let rules: Vec<_> = object
            .spec
            .rules
            .iter()
            .map(|rule| K::rule(rule, namespace))
            .collect();
        let parents = &object.spec.parent_refs;
        Ok(Some(Route {
            head: RouteHead {
                id: RouteId {
                    kind: K::ID,
                    namespace: namespace.to_owned(),
                    name: meta.name.clone().unwrap_or_default(),
                },
                created: Created::of(meta),
                generation: meta.generation,
                parents: parents
                    .iter()
                    .filter_map(|parent| Parent::read(parent, namespace))
                    .collect(),
                backends: rules
                    .iter()
                    .flat_map(|rule| &rule.backends)
                    .map(|backend| backend.target.clone())
                    .collect(),
                bad_annotation,
                rule_problems: rules
                    .iter()
                    .filter_map(|rule| rule.problem.clone())
                    .collect(),
                rule_count: rules.len(),
                status: object.status.clone(),
            },
            hosts: object
                .spec
                .hostnames
                .iter()
                .map(|host| HostMatch::parse(host))
                .collect(),
            rules,
            retry: retry.unwrap_or_default(),
            timeouts: timeouts.unwrap_or_default(),
        }))
    }

    fn table(store: &mut Store) -> &mut Table<Self::Model> {
        K::table(store)
    }

    fn changed(
        store: &mut Store,
        _: &Key,
        old: Option<&Self::Model>,
        new: Option<&Self::Model>,
        dirty: &mut Dirty,
    ) {
        let (old, new) = (old.map(|route| &route.head), new.map(|route| &route.head));
        dirty.status = true;
        for head in old.into_iter().chain(new) {
            for parent in &head.parents {
                dirty.parents.insert(parent.id.clone());
                if parent.id.kind == ParentKind::Server {
                    dirty.namespaces.insert(head.id.namespace.clone());
                }
            }
        }
        let Some(head) = old.or(new) else { return };
        let parents = old.into_iter().chain(new).flat_map(|head| &head.parents);
        for parent in parents {
            let attached = store.attached.entry(parent.id.clone()).or_default();
            if new.is_some_and(|new| new.is_attached_to(&parent.id)) {
                attached.insert(head.id.clone());
            } else {
                attached.remove(&head.id);
                if attached.is_empty() {
                    store.attached.remove(&parent.id);
                }
            }
        }
    }
}
