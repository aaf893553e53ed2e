//! Linked clusters: each has an index of its own, fed by watches of its own API server.

use std::sync::Arc;

use ahash::AHashMap;
use tokio::sync::watch;

use crate::{intern::Name, stream::Discovery};

/// The linked clusters by name. Streams follow it, because a cluster may be linked later.
#[derive(Clone, Debug)]
pub struct Clusters(watch::Sender<Arc<AHashMap<Name, Discovery>>>);

impl Clusters {
    pub fn get(&self, name: &str) -> Option<Discovery> {
        self.0.borrow().get(name).cloned()
    }

    pub fn insert(&self, name: &str, cluster: Discovery) {
        self.0.send_modify(|clusters| {
            Arc::make_mut(clusters).insert(name.into(), cluster);
        });
    }

    pub fn remove(&self, name: &str) {
        self.0.send_if_modified(|clusters| {
            clusters.contains_key(name) && Arc::make_mut(clusters).remove(name).is_some()
        });
    }

    pub fn follow(&self) -> watch::Receiver<Arc<AHashMap<Name, Discovery>>> {
        self.0.subscribe()
    }
}

impl Default for Clusters {
    fn default() -> Self {
        Self(watch::Sender::new(Arc::default()))
    }
}
