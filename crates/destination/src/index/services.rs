//! Services: ports, addresses, and what their labels and annotations say about discovery.

use std::{net::IpAddr, sync::Arc};

use ahash::AHashMap;
use linkerd_k8s::{PortSet, Service, labels};
use smallvec::SmallVec;

use super::{Dirty, Index, Records};
use crate::intern::{Name, ObjectId};

#[derive(Debug, Default)]
pub(crate) struct Services {
    pub(super) by_id: AHashMap<ObjectId, Arc<ServiceRecord>>,
    by_ip: AHashMap<IpAddr, SmallVec<[ObjectId; 1]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceRecord {
    pub(super) ports: Box<[(u16, Name)]>,
    pub(super) ips: SmallVec<[IpAddr; 2]>,
    pub(super) external_name: bool,
    /// Traffic must stay on the client's node.
    pub(super) local: bool,
    /// What the annotation says, which replaces the default list.
    pub(super) opaque: Option<PortSet>,
    pub(super) mirror: Option<Mirror>,
    pub(super) dispatch: Dispatch,
}

/// A Service that stands for one of another cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    pub(super) cluster: Name,
    /// Name of the Service over there, with its domain.
    pub(super) remote: Option<Name>,
}

/// Where the endpoints of a Service are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    #[default]
    Local,
    /// The Service of that name in another cluster.
    Remote {
        cluster: Name,
        service: Option<Name>,
    },
    /// The union of a local Service and of Services of other clusters, as annotated.
    Federated {
        local: Option<Name>,
        remote: Option<Name>,
    },
}

impl Services {
    pub(super) fn with_ip(&self, ip: IpAddr) -> &[ObjectId] {
        self.by_ip.get(&ip).map_or(&[], |ids| ids.as_slice())
    }

    pub(super) fn get(&self, id: &ObjectId) -> Option<&Arc<ServiceRecord>> {
        self.by_id.get(id)
    }
}

impl ServiceRecord {
    /// Name of the port with that number.
    pub(super) fn port_name(&self, number: u16) -> Option<&Name> {
        self.ports
            .iter()
            .find(|(port, _)| *port == number)
            .map(|(_, name)| name)
    }

    pub(super) fn is_opaque(&self, port: u16, default: &PortSet) -> bool {
        self.opaque.as_ref().unwrap_or(default).contains(port)
    }
}

impl Index {
    fn read_service(&mut self, id: &ObjectId, service: &Service) -> ServiceRecord {
        let names = &mut self.names;
        let meta = &service.metadata;
        let label = |key: &str| meta.labels.as_ref()?.get(key).map(String::as_str);
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key).map(String::as_str);
        let mut named = |text: Option<&str>| text.map(|text| names.get(text));

        let local = annotation(labels::LOCAL_DISCOVERY);
        let remote = annotation(labels::REMOTE_DISCOVERY);
        let dispatch = if local.is_some() || remote.is_some() {
            Dispatch::Federated {
                local: named(local),
                remote: named(remote),
            }
        } else if let Some(cluster) = named(label(labels::REMOTE_DISCOVERY)) {
            Dispatch::Remote {
                cluster,
                service: named(label(labels::REMOTE_SERVICE)),
            }
        } else {
            Dispatch::Local
        };
        let mirror = named(label(labels::MIRROR_CLUSTER_NAME)).map(|cluster| Mirror {
            cluster,
            remote: named(annotation(labels::REMOTE_SVC_FQ_NAME)),
        });
        let opaque = annotation(labels::OPAQUE_PORTS).map(|list| {
            let named = |name: &str| {
                let ports = service.spec.ports.iter();
                let same = ports.filter(|port| port.name.as_deref() == Some(name));
                same.map(|port| port.port).collect::<SmallVec<[u16; 1]>>()
            };
            PortSet::parse_named(list, named, |entry| {
                tracing::warn!(service = %id, entry, "Opaque ports name a port the Service has not");
            })
        });
        let ports = service.spec.ports.iter();
        ServiceRecord {
            ports: ports
                .map(|it| (it.port, names.get(it.name.as_deref().unwrap_or_default())))
                .collect(),
            ips: service.cluster_ips().map(|ip| ip.to_canonical()).collect(),
            external_name: service.is_external_name(),
            local: service.spec.internal_traffic_policy.as_deref() == Some("Local"),
            opaque,
            mirror,
            dispatch,
        }
    }
}

impl Records<Service> for Index {
    fn put(&mut self, service: &Service, dirty: &mut Dirty) {
        let meta = &service.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let id = self
            .names
            .id(namespace, meta.name.as_deref().unwrap_or_default());
        let record = self.read_service(&id, service);
        if self
            .services
            .by_id
            .get(&id)
            .is_some_and(|known| **known == record)
        {
            return;
        }
        Records::<Service>::remove(self, &id, dirty);
        dirty.addresses.extend(&record.ips);
        dirty.service(&id);
        for ip in &record.ips {
            self.services.by_ip.entry(*ip).or_default().push(id.clone());
        }
        self.services.by_id.insert(id, Arc::new(record));
    }

    fn remove(&mut self, id: &ObjectId, dirty: &mut Dirty) {
        let Some(record) = self.services.by_id.remove(id) else {
            return;
        };
        dirty.service(id);
        dirty.addresses.extend(&record.ips);
        for ip in &record.ips {
            super::pods::unlist(&mut self.services.by_ip, ip, id);
        }
    }

    fn known(&self) -> Vec<ObjectId> {
        self.services.by_id.keys().cloned().collect()
    }
}
