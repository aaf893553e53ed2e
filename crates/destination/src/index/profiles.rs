//! ServiceProfiles: settings of a Service, from the Service's namespace or the client's.

use std::sync::Arc;

use ahash::AHashMap;
use linkerd_k8s::ServiceProfile;

use super::{Dirty, Index, Records};
use crate::{
    intern::{Name, ObjectId},
    name::ServiceName,
    profile::Spec,
    view::{self, Profile, ProfileKey},
};

#[derive(Debug, Default)]
pub(crate) struct Profiles {
    by_id: AHashMap<ObjectId, Arc<Spec>>,
}

impl Index {
    /// The profile of a Service's port as one client sees it; none once the Service is gone.
    pub(crate) fn service_profile(&self, id: &ObjectId, key: &ProfileKey) -> Option<Profile> {
        let service = self
            .services
            .get(id)
            .filter(|service| !service.external_name)?;
        if service.port_name(key.port).is_none() {
            return Some(Profile::Undefined);
        }
        let name = self.profile_name(id);
        let of = |namespace: &Name| {
            self.profiles.by_id.get(&ObjectId {
                namespace: namespace.clone(),
                name: name.clone(),
            })
        };
        let spec = key
            .client
            .as_ref()
            .and_then(of)
            .or_else(|| of(&id.namespace));
        Some(Profile::Service(view::ServiceProfile {
            name: key.name.clone(),
            service: id.clone(),
            port: key.port,
            opaque: service.is_opaque(key.port, &self.config.default_opaque_ports),
            spec: spec.cloned(),
        }))
    }

    /// What the profiles of a Service are called.
    pub(crate) fn profile_name(&self, id: &ObjectId) -> Name {
        format!(
            "{}.{}.svc.{}",
            id.name, id.namespace, self.config.cluster_domain
        )
        .into()
    }

    fn profile_changed(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        if let Some(name) = ServiceName::parse(&id.name, &self.config.cluster_domain)
            && name.hostname.is_none()
        {
            let service = self.names.id(&name.namespace, &name.service);
            dirty.service(&service);
        }
    }
}

impl Records<ServiceProfile> for Index {
    fn put(&mut self, profile: &ServiceProfile, dirty: &mut Dirty) {
        let meta = &profile.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let id = self
            .names
            .id(namespace, meta.name.as_deref().unwrap_or_default());
        match Spec::read(id.clone(), &profile.spec) {
            Ok(spec)
                if self
                    .profiles
                    .by_id
                    .get(&id)
                    .is_some_and(|known| **known == spec) => {}
            Ok(spec) => {
                self.profiles.by_id.insert(id.clone(), Arc::new(spec));
                self.profile_changed(&id, dirty);
            }
            // What was valid before stays in force.
            Err(error) => tracing::warn!(profile = %id, %error, "Invalid ServiceProfile"),
        }
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        if self.profiles.by_id.remove(id).is_some() {
            self.profile_changed(id, dirty);
        }
    }

    fn known(&self) -> Vec<ObjectId> {
        self.profiles.by_id.keys().cloned().collect()
    }
}
