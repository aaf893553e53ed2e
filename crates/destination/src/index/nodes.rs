//! Nodes, of which only the zone matters. Streams follow it for the node their client runs on.

use std::sync::Arc;

use linkerd_k8s::{Node, labels};

use super::{Dirty, Index, Records};
use crate::intern::ObjectId;

impl Records<Node> for Index {
    fn put(&mut self, node: &Node, _: &mut Dirty) {
        let name = self
            .names
            .get(node.metadata.name.as_deref().unwrap_or_default());
        let zone = node
            .metadata
            .labels
            .as_ref()
            .and_then(|all| all.get(labels::TOPOLOGY_ZONE));
        let zone = zone.map(|zone| self.names.get(zone));
        self.zones.send_if_modified(|zones| {
            if zones.get(&name) == zone.as_ref() {
                return false;
            }
            let zones = Arc::make_mut(zones);
            match zone {
                Some(zone) => drop(zones.insert(name, zone)),
                None => drop(zones.remove(&name)),
            }
            true
        });
    }

    fn remove(&mut self, id: &ObjectId, _: &mut Dirty) {
        self.zones.send_if_modified(|zones| {
            zones.contains_key(&id.name) && Arc::make_mut(zones).remove(&id.name).is_some()
        });
    }

    fn known(&self) -> Vec<ObjectId> {
        let zones = self.zones.borrow();
        zones
            .keys()
            .map(|name| ObjectId {
                namespace: "".into(),
                name: name.clone(),
            })
            .collect()
    }
}
