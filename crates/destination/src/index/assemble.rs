//! From a Service and a port to the set of its endpoints: which port of each slice is meant, who
//! stands behind each address, and what is said of the whole set.

use std::{net::SocketAddr, sync::Arc};

use super::{
    Index,
    services::{Dispatch, Mirror, ServiceRecord},
    slices::{Gateway, Group, Member, SliceRecord},
};
use crate::{
    endpoint::{Endpoint, Endpoints, Hint, Identity, Labels, Target},
    intern::{Name, ObjectId},
    view::Base,
};

impl Index {
    /// How the endpoints of a Service are found, or why there is none to ask for.
    pub(crate) fn dispatch(&self, id: &ObjectId) -> Result<Dispatch, NoService> {
        match self.services.get(id) {
            None => Err(NoService::Unknown),
            Some(service) if service.external_name => Err(NoService::ExternalName),
            Some(service) => Ok(service.dispatch.clone()),
        }
    }

    /// The whole set of endpoints of a Service's port, reusing what did not change since `last`.
    pub(crate) fn assemble(&mut self, id: &ObjectId, port: u16, last: Option<Arc<Base>>) -> Base {
        let service = self.services.get(id).cloned();
        let service = service.filter(|service| !service.external_name);
        let mut found: Vec<Arc<Endpoint>> = Vec::new();
        if let Some(service) = &service {
            let name = service.port_name(port);
            for slice in self.slices.of(id) {
                for group in &slice.groups {
                    let Some(number) = endpoint_port(group, name, port) else {
                        continue;
                    };
                    for member in group.members.iter().filter(|member| member.ready) {
                        let addr = SocketAddr::new(member.ip, number);
                        if let Some(endpoint) = self.member(slice, member, addr, port) {
                            found.push(Arc::new(endpoint));
                        }
                    }
                }
            }
        }
        // An address moving from one slice to another is in both for a while.
        found.sort_by_key(|endpoint| endpoint.addr);
        found.dedup_by_key(|endpoint| endpoint.addr);
        let endpoints = reuse(found, last.as_deref());
        Base {
            revision: last.as_ref().map_or(1, |last| last.revision + 1),
            exists: service.is_some(),
            local: service.as_ref().is_some_and(|service| service.local),
            dispatch: service.as_ref().map(|service| service.dispatch.clone()),
            labels: self.set_labels(id, service.as_deref()),
            endpoints,
        }
    }

    fn member(
        &self,
        slice: &SliceRecord,
        member: &Member,
        addr: SocketAddr,
        port: u16,
    ) -> Option<Endpoint> {
        let endpoint = match &member.target {
            // A pod we do not know yet: the address joins the set when the pod arrives.
            Target::Pod(id) => self.pod_endpoint(id, self.pods.get(id)?, addr).0,
            Target::ExternalWorkload(id) => {
                self.external_endpoint(id, self.externals.get(id)?, addr).0
            }
            Target::Address => self.gateway_endpoint(slice.gateway.as_ref(), addr, port),
        };
        Some(Endpoint {
            hostname: member.hostname.clone(),
            zone: member.zone.clone(),
            hints: member.hints.clone(),
            ..endpoint
        })
    }

    /// An address without a workload: another cluster's gateway, or one written by hand.
    fn gateway_endpoint(&self, gateway: Option<&Gateway>, addr: SocketAddr, port: u16) -> Endpoint {
        let bare = Endpoint::bare(addr);
        let Some(gateway) = gateway else { return bare };
        let identity = gateway.identity.clone();
        let meshed = identity.is_some();
        Endpoint {
            authority: gateway
                .authority
                .as_ref()
                .map(|name| format!("{name}:{port}").into()),
            identity: identity.map(Identity::Gateway),
            hint: if meshed && self.config.enable_h2_upgrade {
                Hint::H2
            } else {
                Hint::None
            },
            http2: meshed,
            ..bare
        }
    }

    /// Labels of metrics that all endpoints of the set share.
    fn set_labels(&mut self, id: &ObjectId, service: Option<&ServiceRecord>) -> Labels {
        let mirror: Option<Mirror> = self
            .slices
            .of(id)
            .find_map(|slice| slice.mirror.clone())
            .or_else(|| service.and_then(|service| service.mirror.clone()));
        let names = &mut self.names;
        let mut labels = vec![
            (names.get("service"), id.name.clone()),
            (names.get("namespace"), id.namespace.clone()),
        ];
        if let Some(mirror) = mirror {
            labels.push((names.get("target_cluster"), mirror.cluster));
            let mut remote = mirror.remote.iter().flat_map(|name| name.split('.'));
            if let (Some(service), Some(namespace)) = (remote.next(), remote.next()) {
                labels.push((names.get("target_service"), names.get(service)));
                labels.push((names.get("target_service_namespace"), names.get(namespace)));
            }
        }
        labels.into()
    }
}

/// Why a Service cannot be asked for endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoService {
    Unknown,
    ExternalName,
}

/// Service ports are tied to slice ports by name. A port the Service has not is taken literally.
fn endpoint_port(group: &Group, name: Option<&Name>, port: u16) -> Option<u16> {
    match name {
        None => Some(port),
        Some(name) => group
            .ports
            .iter()
            .find(|(named, _)| named == name)
            .map(|(_, number)| *number),
    }
}

/// Keeps the old value of whatever is equal, so that differences are found by comparing pointers.
fn reuse(found: Vec<Arc<Endpoint>>, last: Option<&Base>) -> Endpoints {
    let Some(last) = last else {
        return found.into();
    };
    if found.len() == last.endpoints.len()
        && found.iter().zip(last.endpoints.iter()).all(|(a, b)| a == b)
    {
        return last.endpoints.clone();
    }
    let mut found = found;
    for endpoint in &mut found {
        if let Ok(at) = last
            .endpoints
            .binary_search_by_key(&endpoint.addr, |it| it.addr)
            && last.endpoints[at] == *endpoint
        {
            *endpoint = last.endpoints[at].clone();
        }
    }
    found.into()
}
