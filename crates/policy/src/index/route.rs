//! Routes, read: one generic core for all kinds, with what differs in a [`Flavor`].
//!
//! A rule that cannot be honoured is kept with its problem, so that requests it is for fail
//! visibly and everything else of the route works.

use linkerd_core::policy::{
    ConnectionFilter, GrpcFilter, GrpcMatch, HostMatch, HttpFilter, HttpMatch, POLICY_GROUP,
    outbound::{GrpcConditions, Retry, StatusRange, Timeouts},
};
use linkerd_k8s::{
    Key,
    policy::route::{self as k8s, Kind},
};
use std::{fmt::Debug, time::Duration};

use super::Created;
use crate::annotation::{self, AnnotationError, Annotations};

mod read;

/// A route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Route<P: Flavor> {
    pub(crate) head: RouteHead,
    pub(crate) hosts: Vec<HostMatch>,
    pub(crate) rules: Vec<Rule<P>>,
    pub(crate) retry: Option<Retry<P::RetryOn>>,
    pub(crate) timeouts: Timeouts,
}

/// What routes of all kinds have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteHead {
    pub(crate) id: RouteId,
    pub(crate) created: Created,
    pub(crate) generation: Option<i64>,
    /// The parents this controller knows how to serve.
    pub(crate) parents: Vec<Parent>,
    /// Backends of all rules, for the status.
    pub(crate) backends: Vec<BackendTarget>,
    /// Annotations that cannot be read: no outbound parent accepts the route.
    pub(crate) bad_annotation: Option<String>,
    /// Problems of single rules, and how many rules there are.
    pub(crate) rule_problems: Vec<String>,
    pub(crate) rule_count: usize,
    /// What the API server has.
    pub(crate) status: Option<k8s::Status>,
}

/// Names a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RouteId {
    pub(crate) kind: RouteKind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Kinds of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RouteKind {
    Grpc,
    GatewayHttp,
    PolicyHttp,
    Tls,
    Tcp,
}

/// What a route attaches to, as one of its parent references says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(crate) id: ParentId,
    pub(crate) port: Option<u16>,
    pub(crate) section: bool,
}

/// Names a parent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ParentId {
    pub(crate) kind: ParentKind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Kinds of parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ParentKind {
    Server,
    Service,
    EgressNetwork,
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule<P: Flavor> {
    pub(crate) matches: Vec<P::Match>,
    pub(crate) filters: Vec<P::Filter>,
    pub(crate) backends: Vec<Backend<P::Filter>>,
    pub(crate) request_timeout: Option<Duration>,
    /// Why the rule cannot be honoured.
    pub(crate) problem: Option<String>,
}

/// A backend of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Backend<F> {
    pub(crate) target: BackendTarget,
    pub(crate) port: Option<u16>,
    pub(crate) weight: u32,
    /// Or why they cannot be honoured.
    pub(crate) filters: Result<Vec<F>, String>,
}

/// What a backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BackendTarget {
    Service(Key),
    EgressNetwork(Key),
    Other {
        group: String,
        kind: String,
        name: String,
    },
    /// A reference without a name refers to nothing.
    Unnamed,
}

/// What differs between protocols.
pub(crate) trait Flavor: Clone + Debug + PartialEq + Send + Sync + 'static {
    type Match: Clone + Debug + PartialEq + Send + Sync;
    type Filter: Clone + Debug + PartialEq + Send + Sync;
    type RetryOn: Clone + Debug + PartialEq + Send + Sync;

    /// Fails traffic sent to a backend that cannot be used.
    fn invalid_backend(message: String) -> Self::Filter;
    /// Fails traffic of a rule that cannot be honoured.
    fn broken_rule(message: String) -> Self::Filter;
    fn retry(annotations: &Annotations) -> Result<Option<Retry<Self::RetryOn>>, AnnotationError>;
    fn timeouts(annotations: &Annotations) -> Result<Timeouts, AnnotationError> {
        annotation::timeouts(annotations)
    }
}

/// HTTP requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http {}

/// gRPC calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grpc {}

/// TLS or TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {}

impl Flavor for Http {
    type Match = HttpMatch;
    type Filter = HttpFilter;
    type RetryOn = Vec<StatusRange>;

    fn invalid_backend(message: String) -> HttpFilter {
        HttpFilter::Fail {
            status: 500,
            message,
        }
    }

    fn broken_rule(message: String) -> HttpFilter {
        HttpFilter::Fail {
            status: 500,
            message,
        }
    }

    fn retry(
        annotations: &Annotations,
    ) -> Result<Option<Retry<Vec<StatusRange>>>, AnnotationError> {
        annotation::http_retry(annotations)
    }
}

impl Flavor for Grpc {
    type Match = GrpcMatch;
    type Filter = GrpcFilter;
    type RetryOn = GrpcConditions;

    /// Not a gRPC code, but what clients have come to expect.
    fn invalid_backend(message: String) -> GrpcFilter {
        GrpcFilter::Fail { code: 500, message }
    }

    fn broken_rule(message: String) -> GrpcFilter {
        const UNIMPLEMENTED: u32 = 12;
        GrpcFilter::Fail {
            code: UNIMPLEMENTED,
            message,
        }
    }

    fn retry(annotations: &Annotations) -> Result<Option<Retry<GrpcConditions>>, AnnotationError> {
        annotation::grpc_retry(annotations)
    }
}

impl Flavor for Connection {
    type Match = ();
    type Filter = ConnectionFilter;
    type RetryOn = ();

    fn invalid_backend(message: String) -> ConnectionFilter {
        ConnectionFilter::Invalid(message)
    }

    fn broken_rule(message: String) -> ConnectionFilter {
        ConnectionFilter::Invalid(message)
    }

    fn retry(_: &Annotations) -> Result<Option<Retry<()>>, AnnotationError> {
        Ok(None)
    }

    fn timeouts(_: &Annotations) -> Result<Timeouts, AnnotationError> {
        Ok(Timeouts::default())
    }
}

impl Parent {
    /// Reads a parent reference, if it is to something this controller serves.
    pub(crate) fn read(source: &k8s::ParentRef, namespace: &str) -> Option<Self> {
        let kind = source.kind.as_deref()?;
        let group = source.group.as_deref().unwrap_or_default();
        let core = group.is_empty() || group.eq_ignore_ascii_case("core");
        let policy = group.eq_ignore_ascii_case(POLICY_GROUP);
        let kind = if core && kind.eq_ignore_ascii_case("Service") {
            ParentKind::Service
        } else if policy && kind.eq_ignore_ascii_case("EgressNetwork") {
            ParentKind::EgressNetwork
        } else if policy && kind.eq_ignore_ascii_case("Server") {
            ParentKind::Server
        } else {
            return None;
        };
        let namespace = source.namespace.as_deref().unwrap_or(namespace).to_owned();
        let id = ParentId {
            kind,
            namespace,
            name: source.name.clone(),
        };
        Some(Self {
            id,
            port: source.port,
            section: source.section_name.is_some(),
        })
    }
}

impl ParentId {
    pub(crate) fn service(key: &Key) -> Self {
        Self {
            kind: ParentKind::Service,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        }
    }

    pub(crate) fn egress(key: &Key) -> Self {
        Self {
            kind: ParentKind::EgressNetwork,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        }
    }

    pub(crate) fn server(namespace: &str, name: &str) -> Self {
        Self {
            kind: ParentKind::Server,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl RouteKind {
    /// Among kinds that want the same parent and port, the lowest has it.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Grpc => 0,
            Self::GatewayHttp | Self::PolicyHttp => 1,
            Self::Tls => 2,
            Self::Tcp => 3,
        }
    }

    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::PolicyHttp => k8s::PolicyHttp::GROUP,
            _ => k8s::GatewayHttp::GROUP,
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Grpc => k8s::GatewayGrpc::KIND,
            Self::GatewayHttp | Self::PolicyHttp => k8s::GatewayHttp::KIND,
            Self::Tls => k8s::GatewayTls::KIND,
            Self::Tcp => k8s::GatewayTcp::KIND,
        }
    }
}

impl RouteHead {
    /// Routes apply in this order.
    pub(crate) fn precedence(&self) -> impl Ord + use<'_> {
        let id = &self.id;
        (
            self.created,
            &id.name,
            id.kind.group(),
            id.kind.kind(),
            &id.namespace,
        )
    }

    /// Why no rule of the route can be honoured.
    pub(crate) fn unusable(&self) -> Option<&str> {
        let all = self.rule_count > 0 && self.rule_problems.len() == self.rule_count;
        self.rule_problems
            .first()
            .filter(|_| all)
            .map(String::as_str)
    }

    fn is_attached_to(&self, parent: &ParentId) -> bool {
        self.parents.iter().any(|own| own.id == *parent)
    }
}
