//! EndpointSlices (and Endpoints, where slices are off): which addresses a Service has. A slice
//! remembers its members, so what it once contributed can always be taken back.

use std::{net::IpAddr, sync::Arc};

use ahash::AHashMap;
use linkerd_k8s::{EndpointSlice, Endpoints, ObjectMeta, endpoint_slice as kind, labels};
use smallvec::SmallVec;

use super::{Dirty, Index, Records, services::Mirror};
use crate::{
    endpoint::Target,
    intern::{Name, Names, ObjectId},
};

#[derive(Debug, Default)]
pub(crate) struct Slices {
    by_id: AHashMap<ObjectId, SliceRecord>,
    /// Names of the slices of a Service, sorted.
    of_service: AHashMap<ObjectId, Vec<Name>>,
    with_pod: AHashMap<ObjectId, SmallVec<[ObjectId; 2]>>,
    with_external: AHashMap<ObjectId, SmallVec<[ObjectId; 2]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SliceRecord {
    service: ObjectId,
    pub(super) groups: Box<[Group]>,
    pub(super) mirror: Option<Mirror>,
    /// What an address without a workload is called and must prove.
    pub(super) gateway: Option<Gateway>,
}

/// Members that serve the same ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(super) ports: Box<[(Name, u16)]>,
    pub(super) members: Box<[Member]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(super) ip: IpAddr,
    /// Only ready members are endpoints; the others can still be asked for by hostname.
    pub(super) ready: bool,
    pub(super) target: Target,
    pub(super) hostname: Option<Name>,
    pub(super) zone: Option<Name>,
    pub(super) hints: Option<Arc<[Name]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gateway {
    pub(super) authority: Option<Name>,
    pub(super) identity: Option<Name>,
}

impl Slices {
    /// The slices of a Service, in the order of their names.
    pub(super) fn of(&self, service: &ObjectId) -> impl Iterator<Item = &SliceRecord> {
        let names = self.of_service.get(service).into_iter().flatten();
        names.filter_map(|name| {
            self.by_id.get(&ObjectId {
                namespace: service.namespace.clone(),
                name: name.clone(),
            })
        })
    }

    /// Notes the Services that have the workload among their endpoints.
    pub(super) fn services_with(&self, target: &Target, dirty: &mut Dirty) {
        let slices = match target {
            Target::Pod(id) => self.with_pod.get(id),
            Target::ExternalWorkload(id) => self.with_external.get(id),
            Target::Address => None,
        };
        for slice in slices.into_iter().flatten() {
            if let Some(slice) = self.by_id.get(slice) {
                dirty.service(&slice.service);
            }
        }
    }

    fn insert(&mut self, id: ObjectId, slice: SliceRecord, dirty: &mut Dirty) {
        if self.by_id.get(&id) == Some(&slice) {
            return;
        }
        self.remove(&id, dirty);
        dirty.service(&slice.service);
        let names = self.of_service.entry(slice.service.clone()).or_default();
        if let Err(at) = names.binary_search(&id.name) {
            names.insert(at, id.name.clone());
        }
        for member in slice.groups.iter().flat_map(|group| &group.members) {
            let (table, workload) = match &member.target {
                Target::Pod(workload) => (&mut self.with_pod, workload),
                Target::ExternalWorkload(workload) => (&mut self.with_external, workload),
                Target::Address => continue,
            };
            let slices = table.entry(workload.clone()).or_default();
            if !slices.contains(&id) {
                slices.push(id.clone());
            }
        }
        self.by_id.insert(id, slice);
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        let Some(slice) = self.by_id.remove(id) else {
            return;
        };
        dirty.service(&slice.service);
        if let Some(names) = self.of_service.get_mut(&slice.service) {
            names.retain(|name| *name != id.name);
            if names.is_empty() {
                self.of_service.remove(&slice.service);
            }
        }
        for member in slice.groups.iter().flat_map(|group| &group.members) {
            match &member.target {
                Target::Pod(pod) => super::pods::unlist(&mut self.with_pod, pod, id),
                Target::ExternalWorkload(it) => {
                    super::pods::unlist(&mut self.with_external, it, id)
                }
                Target::Address => {}
            }
        }
    }
}

impl SliceRecord {
    fn new(names: &mut Names, meta: &ObjectMeta, service: ObjectId, groups: Box<[Group]>) -> Self {
        let label = |key: &str| meta.labels.as_ref()?.get(key);
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key);
        let remote = annotation(labels::REMOTE_SVC_FQ_NAME).map(|name| names.get(name));
        let identity = annotation(labels::REMOTE_GATEWAY_IDENTITY).filter(|it| !it.is_empty());
        let identity = identity.map(|identity| names.get(identity));
        let named = remote.is_some() || identity.is_some();
        let gateway = named.then(|| Gateway {
            authority: remote.clone(),
            identity,
        });
        let mirror = label(labels::MIRROR_CLUSTER_NAME).map(|cluster| Mirror {
            cluster: names.get(cluster),
            remote,
        });
        Self {
            service,
            groups,
            mirror,
            gateway,
        }
    }
}

/// What the reference of an endpoint means; other kinds than ours are no endpoints.
fn target(
    names: &mut Names,
    namespace: &Name,
    reference: Option<&kind::TargetRef>,
) -> Option<Target> {
    let Some(reference) = reference else {
        return Some(Target::Address);
    };
    let name = names.get(reference.name.as_deref().unwrap_or_default());
    match reference.kind.as_deref() {
        Some("Pod") => {
            let of_pod = reference.namespace.as_deref().filter(|it| !it.is_empty());
            let namespace = of_pod.map_or_else(|| namespace.clone(), |it| names.get(it));
            Some(Target::Pod(ObjectId { namespace, name }))
        }
        // A slice may only speak for workloads of its own namespace.
        Some("ExternalWorkload") => Some(Target::ExternalWorkload(ObjectId {
            namespace: namespace.clone(),
            name,
        })),
        _ => None,
    }
}

fn parse(ip: &str) -> Option<IpAddr> {
    ip.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

impl Index {
    fn read_slice(&mut self, namespace: &Name, slice: &EndpointSlice) -> Option<SliceRecord> {
        let meta = &slice.metadata;
        let labelled = meta
            .labels
            .as_ref()
            .and_then(|all| all.get(labels::SERVICE_NAME));
        let mut owners = meta.owner_references.iter().flatten();
        let owner = owners
            .find(|owner| owner.kind == "Service")
            .map(|owner| &owner.name);
        let service = labelled.or(owner)?;
        let names = &mut self.names;
        let service = ObjectId {
            namespace: namespace.clone(),
            name: names.get(service),
        };
        // No list of ports, no endpoints.
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            Some((
                names.get(port.name.as_deref().unwrap_or_default()),
                port.port?,
            ))
        });
        let ports: Box<[_]> = ports.collect();
        let mut members = Vec::new();
        if slice.ports.is_some() {
            for endpoint in &slice.endpoints {
                let Some(target) = target(names, namespace, endpoint.target_ref.as_ref()) else {
                    continue;
                };
                let hostname = endpoint
                    .hostname
                    .as_ref()
                    .map(|hostname| names.get(hostname));
                let zone = endpoint.zone.as_ref().map(|zone| names.get(zone));
                let zones = endpoint
                    .hints
                    .as_ref()
                    .and_then(|hints| hints.for_zones.as_ref());
                let zones = zones.filter(|zones| !zones.is_empty());
                let hints: Option<Arc<[Name]>> =
                    zones.map(|zones| zones.iter().map(|zone| names.get(&zone.name)).collect());
                for ip in endpoint.addresses.iter().filter_map(|ip| parse(ip)) {
                    members.push(Member {
                        ip,
                        ready: endpoint.conditions.ready != Some(false),
                        target: target.clone(),
                        hostname: hostname.clone(),
                        zone: zone.clone(),
                        hints: hints.clone(),
                    });
                }
            }
        }
        let groups = Box::new([Group {
            ports,
            members: members.into(),
        }]);
        Some(SliceRecord::new(names, meta, service, groups))
    }

    fn read_endpoints(&mut self, id: &ObjectId, endpoints: &Endpoints) -> SliceRecord {
        let names = &mut self.names;
        let groups = endpoints.subsets.iter().map(|subset| {
            let ports = subset.ports.iter().filter_map(|port| {
                Some((
                    names.get(port.name.as_deref().unwrap_or_default()),
                    port.port?,
                ))
            });
            let ports = ports.collect();
            let members = subset.addresses.iter().filter_map(|address| {
                let target = target(names, &id.namespace, address.target_ref.as_ref())?;
                if matches!(target, Target::ExternalWorkload(_)) {
                    return None;
                }
                let hostname = address
                    .hostname
                    .as_ref()
                    .map(|hostname| names.get(hostname));
                Some(Member {
                    ip: parse(&address.ip)?,
                    ready: true,
                    target,
                    hostname,
                    zone: None,
                    hints: None,
                })
            });
            Group {
                ports,
                members: members.collect(),
            }
        });
        let groups = groups.collect();
        SliceRecord::new(names, &endpoints.metadata, id.clone(), groups)
    }
}

impl Records<EndpointSlice> for Index {
    fn put(&mut self, slice: &EndpointSlice, dirty: &mut Dirty) {
        let meta = &slice.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let id = self
            .names
            .id(namespace, meta.name.as_deref().unwrap_or_default());
        match self.read_slice(&id.namespace, slice) {
            Some(record) => self.slices.insert(id, record, dirty),
            None => self.slices.remove(&id, dirty),
        }
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        self.slices.remove(id, dirty);
    }

    fn known(&self) -> Vec<ObjectId> {
        self.slices.by_id.keys().cloned().collect()
    }
}

impl Records<Endpoints> for Index {
    fn put(&mut self, endpoints: &Endpoints, dirty: &mut Dirty) {
        let meta = &endpoints.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let id = self
            .names
            .id(namespace, meta.name.as_deref().unwrap_or_default());
        let record = self.read_endpoints(&id, endpoints);
        self.slices.insert(id, record, dirty);
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        self.slices.remove(id, dirty);
    }

    fn known(&self) -> Vec<ObjectId> {
        self.slices.by_id.keys().cloned().collect()
    }
}
