//! ReplicaSets and Jobs, of which only their own owner matters: metrics name the Deployment or
//! CronJob, not what it made.

use ahash::AHashMap;
use linkerd_k8s::{Job, ObjectMeta, ReplicaSet};

use super::{Dirty, Index, Records};
use crate::intern::{Name, ObjectId};

#[derive(Debug, Default)]
pub(crate) struct Owners {
    replica_sets: AHashMap<ObjectId, Option<Owner>>,
    jobs: AHashMap<ObjectId, Option<Owner>>,
}

/// Kind in lower case, and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(super) kind: Name,
    pub(super) name: Name,
}

const REPLICA_SET: &str = "replicaset";
const JOB: &str = "job";

impl Owners {
    /// The owner to show for an object of `namespace` whose own single owner is `owner`.
    pub(super) fn top(&self, namespace: &Name, owner: &Owner) -> Owner {
        let made_by = match &*owner.kind {
            REPLICA_SET => &self.replica_sets,
            JOB => &self.jobs,
            _ => return owner.clone(),
        };
        let id = ObjectId {
            namespace: namespace.clone(),
            name: owner.name.clone(),
        };
        made_by
            .get(&id)
            .cloned()
            .flatten()
            .unwrap_or_else(|| owner.clone())
    }
}

impl Index {
    /// The single owner of an object. None and several both count as none.
    pub(super) fn single_owner(&mut self, meta: &ObjectMeta) -> Option<Owner> {
        match meta.owner_references.as_deref() {
            Some([owner]) => Some(Owner {
                kind: self.names.get(&owner.kind.to_lowercase()),
                name: self.names.get(&owner.name),
            }),
            _ => None,
        }
    }

    fn put_owner(&mut self, kind: &str, meta: &ObjectMeta, dirty: &mut Dirty) {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let id = self
            .names
            .id(namespace, meta.name.as_deref().unwrap_or_default());
        let owner = self.single_owner(meta);
        let table = self.owner_table(kind);
        if table.insert(id.clone(), owner.clone()) != Some(owner) {
            self.relabel_pods_of(kind, &id, dirty);
        }
    }

    fn remove_owner(&mut self, kind: &str, id: &ObjectId, dirty: &mut Dirty) {
        if self.owner_table(kind).remove(id).is_some() {
            self.relabel_pods_of(kind, id, dirty);
        }
    }

    fn owner_table(&mut self, kind: &str) -> &mut AHashMap<ObjectId, Option<Owner>> {
        if kind == JOB {
            &mut self.owners.jobs
        } else {
            &mut self.owners.replica_sets
        }
    }
}

impl Records<ReplicaSet> for Index {
    fn put(&mut self, object: &ReplicaSet, dirty: &mut Dirty) {
        self.put_owner(REPLICA_SET, &object.metadata, dirty);
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        self.remove_owner(REPLICA_SET, id, dirty);
    }

    fn known(&self) -> Vec<ObjectId> {
        self.owners.replica_sets.keys().cloned().collect()
    }
}

impl Records<Job> for Index {
    fn put(&mut self, object: &Job, dirty: &mut Dirty) {
        self.put_owner(JOB, &object.metadata, dirty);
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        self.remove_owner(JOB, id, dirty);
    }

    fn known(&self) -> Vec<ObjectId> {
        self.owners.jobs.keys().cloned().collect()
    }
}
