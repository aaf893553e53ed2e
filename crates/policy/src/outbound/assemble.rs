//! Puts the policy of a Service or an EgressNetwork together: protocol, routes, backends.

use linkerd_core::policy::{
    GrpcMatch, HttpMatch, Origin, POLICY_GROUP, ResourceRef,
    outbound::{
        Backend, Dispatch, Distribution, GrpcConditions, GrpcRoute, Http, HttpRoute, Load, Policy,
        Protocol, Retry, Route, RouteBackend, Rule, StatusRange, TcpRoute, Timeouts,
    },
};
use linkerd_k8s::Key;
use std::{cell::RefCell, collections::BTreeSet, sync::Arc};

use super::{Computed, Target, accepts, defaults};
use crate::{
    cluster::Cluster,
    index::{
        Store,
        egress::EgressNetwork,
        route::{self, BackendTarget, Flavor, ParentId, RouteHead, RouteId, RouteKind},
        service::{AppProtocol, Service, Traffic},
    },
};

/// A backend and how it is reached.
type Resolved = Result<(ResourceRef, Result<Dispatch, String>), String>;

/// What is known while a policy is put together.
struct Scene<'s> {
    store: &'s Store,
    cluster: &'s Cluster,
    client: &'s str,
    target: &'s Target,
    parent: ParentId,
    service: Option<&'s Service>,
    egress: Option<&'s EgressNetwork>,
    traffic: Traffic,
    /// Services and EgressNetworks named as backends so far.
    backends: RefCell<BTreeSet<Key>>,
}

/// Routes of the target by kind, in order of precedence.
struct Routes {
    http: Vec<HttpRoute>,
    grpc: Vec<GrpcRoute>,
    tls: Vec<TcpRoute>,
    tcp: Vec<TcpRoute>,
}

pub(super) fn policy(store: &Store, cluster: &Cluster, client: &str, target: &Target) -> Computed {
    let parent = target
        .parent()
        .expect("only targets that are resources get here");
    let service = store
        .services
        .get(&parent.namespace, &parent.name)
        .filter(|_| !target.is_egress());
    let egress = store
        .egress_networks
        .get(&parent.namespace, &parent.name)
        .filter(|_| target.is_egress());
    let traffic = service
        .map(|service| &service.traffic)
        .or_else(|| egress.map(|egress| &egress.traffic));
    let scene = Scene {
        store,
        cluster,
        client,
        target,
        parent,
        service: service.map(Arc::as_ref),
        egress: egress.map(Arc::as_ref),
        traffic: traffic
            .cloned()
            .unwrap_or_else(|| Traffic::default_of(cluster)),
        backends: RefCell::default(),
    };
    let policy = Policy {
        origin: scene.origin(),
        protocol: scene.protocol(),
    };
    Computed {
        policy,
        backends: scene.backends.into_inner(),
    }
}

impl Scene<'_> {
    fn origin(&self) -> Origin {
        let port = self.target.port();
        Origin::Resource(match self.target.is_egress() {
            false => ResourceRef::service(&self.parent.namespace, &self.parent.name, port),
            true => {
                let key = Key::new(&*self.parent.namespace, &*self.parent.name);
                egress_network(&key, Some(port))
            }
        })
    }

    /// What the port is said to speak.
    fn app_protocol(&self) -> Option<AppProtocol> {
        let port = self.target.port();
        let declared = self
            .service
            .and_then(|service| service.ports.get(&port).copied().flatten());
        let opaque = || {
            let opaque = self.traffic.opaque_ports.contains(port);
            opaque.then_some(AppProtocol::Opaque)
        };
        declared.or_else(opaque)
    }

    fn protocol(&self) -> Protocol {
        let routes = self.routes();
        match self.app_protocol() {
            Some(AppProtocol::Http1) => Protocol::Http1(self.http(routes.http)),
            Some(AppProtocol::Http2) if routes.grpc.is_empty() => {
                Protocol::Http2(self.http(routes.http))
            }
            Some(AppProtocol::Http2) => self.grpc(routes.grpc),
            Some(AppProtocol::Opaque) => Protocol::Opaque(self.tcp(routes.tcp)),
            None if !routes.grpc.is_empty() => self.grpc(routes.grpc),
            None if !routes.http.is_empty() => self.detect(routes.http),
            None if !routes.tls.is_empty() => Protocol::Tls(self.tls(routes.tls)),
            None if !routes.tcp.is_empty() => Protocol::Opaque(self.tcp(routes.tcp)),
            None => self.detect(Vec::new()),
        }
    }

    fn detect(&self, routes: Vec<HttpRoute>) -> Protocol {
        Protocol::Detect {
            timeout: defaults::DETECT_TIMEOUT,
            opaque: self.tcp(Vec::new()),
            http: self.http(routes),
        }
    }

    fn http(&self, mut routes: Vec<HttpRoute>) -> Http {
        let backend = || self.default_backend();
        match self.egress {
            Some(egress) => {
                routes.push(self.with_traffic(defaults::egress_http(egress.policy, backend())))
            }
            None if routes.is_empty() => {
                routes.push(defaults::http(
                    backend(),
                    self.traffic.http_retry.clone(),
                    self.traffic.timeouts,
                ));
            }
            None => {}
        }
        Http {
            routes,
            accrual: self.traffic.accrual.clone(),
        }
    }

    fn with_traffic(&self, mut route: HttpRoute) -> HttpRoute {
        for rule in &mut route.rules {
            rule.retry.clone_from(&self.traffic.http_retry);
            rule.timeouts = self.traffic.timeouts;
        }
        route
    }

    fn grpc(&self, mut routes: Vec<GrpcRoute>) -> Protocol {
        if let Some(egress) = self.egress {
            let mut route = defaults::egress_grpc(egress.policy, self.default_backend());
            for rule in &mut route.rules {
                rule.retry.clone_from(&self.traffic.grpc_retry);
                rule.timeouts = self.traffic.timeouts;
            }
            routes.push(route);
        }
        Protocol::Grpc {
            routes,
            accrual: self.traffic.accrual.clone(),
        }
    }

    fn tls(&self, mut routes: Vec<TcpRoute>) -> Vec<TcpRoute> {
        if let Some(egress) = self.egress {
            let backend = self.default_backend();
            routes.push(defaults::egress_tls(egress.policy, backend));
        }
        routes
    }

    /// Only the first TCPRoute counts; without one there is a default.
    fn tcp(&self, mut routes: Vec<TcpRoute>) -> Vec<TcpRoute> {
        routes.truncate(1);
        if routes.is_empty() {
            let backend = self.default_backend();
            routes.push(match self.egress {
                Some(egress) => defaults::egress_tcp(egress.policy, backend),
                None => defaults::opaque(backend),
            });
        }
        routes
    }

    fn load(&self) -> Load {
        self.service
            .map_or(Load::PeakEwma, |service| service.load.clone())
    }

    /// The target itself. Failures of requests count against its endpoints unless the port is said
    /// to have none; where requests are not seen after all, proxies do without.
    fn default_backend(&self) -> Backend {
        let load = match self.app_protocol() {
            Some(AppProtocol::Opaque) => Load::PeakEwma,
            _ => self.load(),
        };
        let dispatch = match self.target {
            Target::EgressNetwork { addr, .. } => Dispatch::Forward(*addr),
            _ => {
                let authority = self.cluster.authority(
                    &self.parent.namespace,
                    &self.parent.name,
                    self.target.port(),
                );
                Dispatch::Balance { authority, load }
            }
        };
        Backend {
            origin: self.origin(),
            dispatch,
        }
    }

    fn routes(&self) -> Routes {
        let store = self.store;
        let mut ids: Vec<(&RouteId, &RouteHead)> = store
            .routes_of(&self.parent)
            .filter_map(|id| Some((id, store.route_head(id)?)))
            .filter(|(_, head)| self.applies(head))
            .collect();
        ids.sort_by(|(_, a), (_, b)| a.precedence().cmp(&b.precedence()));
        let mut routes = Routes {
            http: Vec::new(),
            grpc: Vec::new(),
            tls: Vec::new(),
            tcp: Vec::new(),
        };
        for (id, _) in ids {
            let (namespace, name) = (&id.namespace, &id.name);
            match id.kind {
                RouteKind::GatewayHttp | RouteKind::PolicyHttp => {
                    routes
                        .http
                        .extend(store.http_route(id).map(|route| self.convert(route)));
                }
                RouteKind::Grpc => {
                    routes.grpc.extend(
                        store
                            .grpc
                            .get(namespace, name)
                            .map(|route| self.convert(route)),
                    );
                }
                RouteKind::Tls => {
                    routes.tls.extend(
                        store
                            .tls
                            .get(namespace, name)
                            .map(|route| self.convert(route)),
                    );
                }
                RouteKind::Tcp => {
                    routes.tcp.extend(
                        store
                            .tcp
                            .get(namespace, name)
                            .map(|route| self.convert(route)),
                    );
                }
            }
        }
        routes
    }

    /// Producer routes are for everyone, consumer routes for clients of their own namespace.
    fn applies(&self, head: &RouteHead) -> bool {
        let visible =
            head.id.namespace == self.parent.namespace || head.id.namespace == self.client;
        let port = self.target.port();
        let mut parents = head.parents.iter().filter(|parent| {
            let on_port = parent
                .port
                .map_or_else(|| !self.target.is_egress(), |wanted| wanted == port);
            parent.id == self.parent && on_port
        });
        visible && parents.any(|parent| accepts(self.store, head, parent).is_ok())
    }

    fn convert<P: Outbound>(
        &self,
        route: &route::Route<P>,
    ) -> Route<P::Match, P::Filter, P::RetryOn> {
        let id = &route.head.id;
        let rules = route.rules.iter().filter_map(|rule| self.rule(route, rule));
        Route {
            origin: Origin::Resource(ResourceRef {
                group: id.kind.group().to_owned(),
                kind: id.kind.kind().to_owned(),
                namespace: id.namespace.clone(),
                name: id.name.clone(),
                ..ResourceRef::default()
            }),
            hosts: route.hosts.clone(),
            rules: rules.collect(),
        }
    }

    fn rule<P: Outbound>(
        &self,
        route: &route::Route<P>,
        rule: &route::Rule<P>,
    ) -> Option<Rule<P::Match, P::Filter, P::RetryOn>> {
        let mut matches = rule.matches.clone();
        if matches.is_empty() {
            // What a broken rule matches may be what is broken about it.
            if rule.problem.is_some() && P::HAS_MATCHES {
                return None;
            }
            matches.extend(P::any());
        }
        let broken = rule
            .problem
            .as_ref()
            .map(|problem| P::broken_rule(problem.clone()));
        let (filters, backends) = match broken {
            Some(filter) => (vec![filter], Distribution::Empty),
            None => (rule.filters.clone(), self.distribution::<P>(&rule.backends)),
        };
        let mut timeouts = route.timeouts;
        timeouts.request = timeouts.request.or(rule.request_timeout);
        if timeouts == Timeouts::default() {
            timeouts = P::parent_timeouts(&self.traffic);
        }
        Some(Rule {
            matches,
            filters,
            backends,
            timeouts,
            retry: route
                .retry
                .clone()
                .or_else(|| P::parent_retry(&self.traffic)),
            allow_l5d_request_headers: self.cluster.allow_l5d_request_headers,
        })
    }

    fn distribution<P: Outbound>(
        &self,
        backends: &[route::Backend<P::Filter>],
    ) -> Distribution<P::Filter> {
        if backends.is_empty() {
            let backend = self.default_backend();
            return Distribution::FirstAvailable(vec![RouteBackend {
                backend,
                filters: Vec::new(),
            }]);
        }
        let load = if P::HAS_MATCHES {
            self.load()
        } else {
            Load::PeakEwma
        };
        let weighted = backends
            .iter()
            .map(|backend| (self.backend::<P>(backend, &load), backend.weight));
        Distribution::RandomAvailable(weighted.collect())
    }

    fn backend<P: Outbound>(
        &self,
        backend: &route::Backend<P::Filter>,
        load: &Load,
    ) -> RouteBackend<P::Filter> {
        let resolved = match &backend.filters {
            Ok(filters) => self.resolve(backend, load).map(|found| (found, filters)),
            Err(message) => Err(message.clone()),
        };
        let (origin, dispatch, filters) = match resolved {
            Ok(((resource, Ok(dispatch)), filters)) => {
                (Origin::Resource(resource), dispatch, filters.clone())
            }
            Ok(((resource, Err(message)), _)) => (
                Origin::Resource(resource),
                Dispatch::None,
                vec![P::invalid_backend(message)],
            ),
            Err(message) => (
                Origin::Default("invalid"),
                Dispatch::None,
                vec![P::invalid_backend(message)],
            ),
        };
        RouteBackend {
            backend: Backend { origin, dispatch },
            filters,
        }
    }

    /// What a backend is and how it is reached, or why it is not now; or why it never can be.
    fn resolve<F>(&self, backend: &route::Backend<F>, load: &Load) -> Resolved {
        match &backend.target {
            BackendTarget::Service(key) => {
                let Some(port) = backend.port else {
                    return Err(format!("missing port for backend Service {}", key.name));
                };
                self.backends.borrow_mut().insert(key.clone());
                let (namespace, name) = (&key.namespace, &key.name);
                let dispatch = if self.store.services.contains(namespace, name) {
                    Ok(Dispatch::Balance {
                        authority: self.cluster.authority(namespace, name, port),
                        load: load.clone(),
                    })
                } else {
                    Err(format!("Service not found {name}"))
                };
                Ok((ResourceRef::service(namespace, name, port), dispatch))
            }
            BackendTarget::EgressNetwork(key) => {
                let asked = || self.target.is_egress().then(|| self.target.port());
                let resource = egress_network(key, backend.port.or_else(asked));
                Ok((resource, self.egress_dispatch(key)))
            }
            BackendTarget::Other { group, kind, .. } => {
                Err(format!("unsupported backend type {group} {kind}"))
            }
            BackendTarget::Unnamed => Err("backend reference without a name".to_owned()),
        }
    }

    fn egress_dispatch(&self, key: &Key) -> Result<Dispatch, String> {
        self.backends.borrow_mut().insert(key.clone());
        if !self
            .store
            .egress_networks
            .contains(&key.namespace, &key.name)
        {
            return Err(format!("EgressNetwork not found {}", key.name));
        }
        match self.target {
            Target::EgressNetwork { key: own, addr } if own == key => Ok(Dispatch::Forward(*addr)),
            Target::EgressNetwork { .. } => Err(
                "Route with EgressNetwork backend needs to have the same EgressNetwork as a parent"
                    .to_owned(),
            ),
            _ => Err("EgressNetwork backends attach to EgressNetwork parents only".to_owned()),
        }
    }
}

fn egress_network(key: &Key, port: Option<u16>) -> ResourceRef {
    ResourceRef {
        group: POLICY_GROUP.to_owned(),
        kind: "EgressNetwork".to_owned(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        section: String::new(),
        port,
    }
}

/// What differs between protocols on the way out.
trait Outbound: Flavor {
    /// Whether rules of the protocol say what they match.
    const HAS_MATCHES: bool;
    /// Matches everything.
    fn any() -> Option<Self::Match>;
    /// What the parent's annotations say about retries.
    fn parent_retry(traffic: &Traffic) -> Option<Retry<Self::RetryOn>>;
    fn parent_timeouts(traffic: &Traffic) -> Timeouts {
        traffic.timeouts
    }
}

impl Outbound for route::Http {
    const HAS_MATCHES: bool = true;

    fn any() -> Option<HttpMatch> {
        Some(HttpMatch::any())
    }

    fn parent_retry(traffic: &Traffic) -> Option<Retry<Vec<StatusRange>>> {
        traffic.http_retry.clone()
    }
}

impl Outbound for route::Grpc {
    const HAS_MATCHES: bool = true;

    fn any() -> Option<GrpcMatch> {
        Some(GrpcMatch::default())
    }

    fn parent_retry(traffic: &Traffic) -> Option<Retry<GrpcConditions>> {
        traffic.grpc_retry.clone()
    }
}

impl Outbound for route::Connection {
    const HAS_MATCHES: bool = false;

    fn any() -> Option<()> {
        None
    }

    fn parent_retry(_: &Traffic) -> Option<Retry<()>> {
        None
    }

    fn parent_timeouts(_: &Traffic) -> Timeouts {
        Timeouts::default()
    }
}
