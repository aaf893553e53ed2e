//! Names that occur thousands of times are kept once.

use std::{fmt, sync::Arc};

use ahash::AHashSet;

pub type Name = Arc<str>;

/// Namespace and name of an object, cheap to copy.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub namespace: Name,
    pub name: Name,
}

/// Hands out one `Arc` per distinct text and forgets those nobody holds.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: AHashSet<Name>,
    sweep_at: usize,
}

impl Names {
    pub(crate) fn get(&mut self, text: &str) -> Name {
        if let Some(name) = self.known.get(text) {
            return name.clone();
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.sweep_at = (self.known.len() * 2).max(1024);
        }
        let name = Name::from(text);
        self.known.insert(name.clone());
        name
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_and_unheld_names_go() {
        let mut names = Names::default();
        let held = names.get("held");
        assert!(Arc::ptr_eq(&held, &names.get("held")));
        for n in 0..5000 {
            names.get(&n.to_string());
        }
        assert!(names.known.len() <= 1100, "{}", names.known.len());
        assert!(Arc::ptr_eq(&held, &names.get("held")));
    }
}
