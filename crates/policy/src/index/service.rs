//! Services, read: addresses, ports and what their annotations say about traffic to them.

use linkerd_core::policy::outbound::{
    FailureAccrual, GrpcConditions, Load, Retry, StatusRange, Timeouts,
};
use linkerd_k8s::{Key, PortSet, Service as Object, intern::Names, labels};
use std::{collections::BTreeMap, fmt::Display, net::IpAddr, sync::Arc};

use super::{Dirty, Store, Stored, Table, route::ParentId};
use crate::{annotation, cluster::Cluster};

/// A Service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Service {
    pub(crate) cluster_ips: Vec<IpAddr>,
    external_name: bool,
    /// Port to appProtocol.
    pub(crate) ports: BTreeMap<u16, Option<AppProtocol>>,
    pub(crate) traffic: Traffic,
    pub(crate) load: Load,
}

/// What annotations of a Service or an EgressNetwork say about traffic to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) opaque_ports: PortSet,
    pub(crate) accrual: Option<FailureAccrual>,
    pub(crate) http_retry: Option<Retry<Vec<StatusRange>>>,
    pub(crate) grpc_retry: Option<Retry<GrpcConditions>>,
    pub(crate) timeouts: Timeouts,
}

/// What a Service port says it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppProtocol {
    Http1,
    Http2,
    Opaque,
}

impl Service {
    /// Whether routes may attach to it.
    pub(crate) fn can_have_routes(&self) -> bool {
        !self.external_name && !self.cluster_ips.is_empty()
    }
}

impl AppProtocol {
    fn parse(name: &str) -> Self {
        if name.eq_ignore_ascii_case("http") {
            Self::Http1
        } else if name.eq_ignore_ascii_case("kubernetes.io/h2c") {
            Self::Http2
        } else {
            Self::Opaque
        }
    }
}

impl Traffic {
    /// What an object without annotations has.
    pub(crate) fn default_of(cluster: &Cluster) -> Self {
        Self {
            opaque_ports: cluster.default_opaque_ports.clone(),
            accrual: None,
            http_retry: None,
            grpc_retry: None,
            timeouts: Timeouts::default(),
        }
    }

    /// Reads annotations. One that makes no sense turns off the feature it is for.
    pub(crate) fn read(annotations: &annotation::Annotations, cluster: &Cluster) -> Self {
        let opaque_ports = match annotations.get(labels::OPAQUE_PORTS) {
            None => cluster.default_opaque_ports.clone(),
            // Numbers and ranges only: with anything else in it the list counts as empty.
            Some(list) => lenient(list.parse()).unwrap_or_default(),
        };
        Self {
            opaque_ports,
            accrual: lenient(annotation::failure_accrual(annotations)).flatten(),
            http_retry: lenient(annotation::http_retry(annotations)).flatten(),
            grpc_retry: lenient(annotation::grpc_retry(annotations)).flatten(),
            timeouts: lenient(annotation::timeouts(annotations)).unwrap_or_default(),
        }
    }
}

fn lenient<T, E: Display>(read: Result<T, E>) -> Option<T> {
    read.inspect_err(|error| tracing::warn!(%error, "Ignoring an annotation"))
        .ok()
}

impl Stored for Object {
    type Model = Service;

    fn read(
        object: &Arc<Self>,
        cluster: &Cluster,
        _: &mut Names,
    ) -> Result<Option<Service>, String> {
        let none = annotation::Annotations::new();
        let annotations = object.metadata.annotations.as_ref().unwrap_or(&none);
        let ports = object.spec.ports.iter().map(|port| {
            (
                port.port,
                port.app_protocol.as_deref().map(AppProtocol::parse),
            )
        });
        Ok(Some(Service {
            cluster_ips: object.cluster_ips().collect(),
            external_name: object.is_external_name(),
            ports: ports.collect(),
            traffic: Traffic::read(annotations, cluster),
            load: lenient(annotation::load(annotations)).unwrap_or(Load::PeakEwma),
        }))
    }

    fn table(store: &mut Store) -> &mut Table<Service> {
        &mut store.services
    }

    fn changed(
        store: &mut Store,
        key: &Key,
        old: Option<&Service>,
        new: Option<&Service>,
        dirty: &mut Dirty,
    ) {
        for ip in old.iter().flat_map(|service| &service.cluster_ips) {
            if let Some(keys) = store.cluster_ips.get_mut(ip) {
                keys.remove(key);
                if keys.is_empty() {
                    store.cluster_ips.remove(ip);
                }
            }
            dirty.addresses.insert(*ip);
        }
        for ip in new.iter().flat_map(|service| &service.cluster_ips) {
            store
                .cluster_ips
                .entry(*ip)
                .or_default()
                .insert(key.clone());
            dirty.addresses.insert(*ip);
        }
        dirty.parents.insert(ParentId::service(key));
        if old.is_some() != new.is_some() {
            dirty.backends.insert(key.clone());
        }
        dirty.status = true;
    }
}
