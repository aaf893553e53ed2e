//! Namespace and name of an object, cheap to copy.

use std::fmt;

use linkerd_k8s::intern;
pub use linkerd_k8s::intern::Name;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub namespace: Name,
    pub name: Name,
}

/// The names of one index.
#[derive(Debug, Default)]
pub(crate) struct Names(intern::Names);

impl Names {
    pub(crate) fn get(&mut self, text: &str) -> Name {
        self.0.get(text)
    }

    pub(crate) fn id(&mut self, namespace: &str, name: &str) -> ObjectId {
        ObjectId {
            namespace: self.get(namespace),
            name: self.get(name),
        }
    }
}

impl ObjectId {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
