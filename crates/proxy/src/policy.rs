//! Policy in the form the data path uses: compiled once per update on the control thread, then shared
//! by all workers as `Arc` snapshots. `control/` makes these from wire types.

pub mod client;
pub mod endpoint;
pub mod filter;
pub mod matching;
pub mod profile;
pub mod server;

use std::{fmt, sync::Arc};

/// The resource (or built-in default) a policy, route or backend comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Meta {
    /// Made up by the control plane or by us.
    Default(Arc<str>),
    /// A Kubernetes object.
    Resource {
        /// API group.
        group: String,
        /// Kind.
        kind: String,
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// Section, such as a listener or a rule.
        section: String,
        /// Port, if the reference has one.
        port: Option<u16>,
    },
}

impl Meta {
    /// A built-in default.
    pub fn default_named(name: &str) -> Arc<Self> {
        Arc::new(Self::Default(name.into()))
    }

    /// API group; empty for defaults.
    pub fn group(&self) -> &str {
        match self {
            Self::Default(_) => "",
            Self::Resource { group, .. } => group,
        }
    }

    /// Kind; `default` for defaults.
    pub fn kind(&self) -> &str {
        match self {
            Self::Default(_) => "default",
            Self::Resource { kind, .. } => kind,
        }
    }

    /// Namespace; empty for defaults.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Default(_) => "",
            Self::Resource { namespace, .. } => namespace,
        }
    }

    /// Name.
    pub fn name(&self) -> &str {
        match self {
            Self::Default(name) => name,
            Self::Resource { name, .. } => name,
        }
    }

    /// Section; empty for defaults.
    pub fn section(&self) -> &str {
        match self {
            Self::Default(_) => "",
            Self::Resource { section, .. } => section,
        }
    }

    /// Port, if the reference has one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Default(_) => None,
            Self::Resource { port, .. } => *port,
        }
    }
}

impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(name) => write!(f, "default {name}"),
            Self::Resource {
                kind,
                namespace,
                name,
                ..
            } => write!(f, "{kind} {namespace}/{name}"),
        }
    }
}
