//! Which EndpointSlices a Service needs for the ExternalWorkloads it selects, given those it has.
//! Pure: objects in, writes out.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use linkerd_k8s::{
    EndpointSlice, ExternalWorkload, IntOrString, Selector, Service,
    endpoint_slice::{Conditions, Endpoint, EndpointPort, TargetRef},
    labels,
    service::ServicePort,
};
use tracing::error;

/// As many endpoints as one slice may have.
const MAX_ENDPOINTS: usize = 100;

/// What to write.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    /// Names.
    pub(super) delete: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
}

type Ports = Vec<EndpointPort>;

/// Whether the Service has slices of ours at all.
pub(super) fn is_managed(service: &Service) -> bool {
    let meta = &service.metadata;
    !service.spec.selector.is_empty()
        && !service.is_external_name()
        && meta.namespace.as_deref() != Some("kube-system")
}

/// The writes that bring `existing` in line with the Service and the workloads of its namespace.
pub(super) fn plan(
    service: &Service,
    workloads: &[Arc<ExternalWorkload>],
    existing: &[Arc<EndpointSlice>],
) -> Plan {
    let mut plan = Plan::default();
    let families = families(service);
    for slice in existing {
        if !families
            .iter()
            .any(|family| family.name() == slice.address_type)
        {
            plan.delete.extend(slice.metadata.name.clone());
        }
    }
    for family in families {
        let existing: Vec<_> = existing
            .iter()
            .filter(|slice| slice.address_type == family.name())
            .cloned()
            .collect();
        plan_family(
            service,
            family,
            &desired(service, workloads, family),
            &existing,
            &mut plan,
        );
    }
    plan
}

fn families(service: &Service) -> Vec<Family> {
    let named = service
        .spec
        .ip_families
        .iter()
        .filter_map(|family| match family.as_str() {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        });
    let named: BTreeSet<_> = named.collect();
    if named.is_empty() {
        vec![Family::V4, Family::V6]
    } else {
        named.into_iter().collect()
    }
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    fn has(self, ip: &str) -> bool {
        match ip.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => self == Self::V4,
            Ok(IpAddr::V6(_)) => self == Self::V6,
            Err(_) => false,
        }
    }
}

/// Endpoints by the ports they serve, each under the name of its workload.
fn desired(
    service: &Service,
    workloads: &[Arc<ExternalWorkload>],
    family: Family,
) -> BTreeMap<Ports, BTreeMap<String, Endpoint>> {
    let selector = Selector::from_labels(&service.spec.selector);
    let mut groups: BTreeMap<Ports, BTreeMap<String, Endpoint>> = BTreeMap::new();
    for workload in workloads {
        let none = BTreeMap::new();
        if !selector.matches(workload.metadata.labels.as_ref().unwrap_or(&none)) {
            continue;
        }
        let ips = workload
            .spec
            .workload_ips
            .iter()
            .flatten()
            .map(|it| it.ip.clone());
        let addresses: Vec<_> = ips.filter(|ip| family.has(ip)).collect();
        if addresses.is_empty() {
            continue;
        }
        let name = workload.metadata.name.clone().unwrap_or_default();
        let ports = endpoint_ports(service, workload);
        groups
            .entry(ports)
            .or_default()
            .insert(name, endpoint(service, workload, addresses));
    }
    groups
}

fn endpoint(service: &Service, workload: &ExternalWorkload, addresses: Vec<String>) -> Endpoint {
    let meta = &workload.metadata;
    let ready = workload.is_ready();
    Endpoint {
        addresses,
        conditions: Conditions {
            ready: Some(ready),
            serving: Some(ready),
            terminating: Some(false),
        },
        hostname: meta.name.clone().filter(|_| service.is_headless()),
        zone: meta
            .labels
            .as_ref()
            .and_then(|all| all.get(labels::TOPOLOGY_ZONE))
            .cloned(),
        target_ref: Some(TargetRef {
            kind: Some("ExternalWorkload".to_owned()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
        }),
        ..Endpoint::default()
    }
}

/// The ports of the Service that the workload serves, in order.
fn endpoint_ports(service: &Service, workload: &ExternalWorkload) -> Ports {
    let ports = service.spec.ports.iter().filter_map(|port| {
        let Some(number) = target_port(port, workload) else {
            let (service, workload) = (
                service.metadata.name.as_deref(),
                workload.metadata.name.as_deref(),
            );
            error!(
                service,
                workload,
                port = port.port,
                "The workload does not declare the port"
            );
            return None;
        };
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(number),
            protocol: Some(protocol(port.protocol.as_deref()).to_owned()),
            app_protocol: port.app_protocol.clone(),
        })
    });
    let mut ports: Ports = ports.collect();
    ports.sort();
    ports
}

fn target_port(port: &ServicePort, workload: &ExternalWorkload) -> Option<u16> {
    let mut declared = workload.spec.ports.iter().flatten().filter(|declared| {
        protocol(declared.protocol.as_deref()) == protocol(port.protocol.as_deref())
    });
    let found = match &port.target_port {
        None => declared.find(|declared| declared.port == port.port),
        Some(IntOrString::Int(number)) if *number == 0 => {
            declared.find(|declared| declared.port == port.port)
        }
        Some(IntOrString::Int(number)) => {
            declared.find(|declared| i32::from(declared.port) == *number)
        }
        Some(IntOrString::String(name)) => {
            declared.find(|declared| declared.name.as_ref() == Some(name))
        }
    };
    found.map(|declared| declared.port)
}

fn protocol(name: Option<&str>) -> &str {
    name.filter(|name| !name.is_empty()).unwrap_or("TCP")
}

/// One family: keeps what is right in place, then finds room for the rest.
fn plan_family(
    service: &Service,
    family: Family,
    desired: &BTreeMap<Ports, BTreeMap<String, Endpoint>>,
    existing: &[Arc<EndpointSlice>],
    plan: &mut Plan,
) {
    let mut freed: Vec<Arc<EndpointSlice>> = Vec::new();
    let mut new: Vec<EndpointSlice> = Vec::new();
    let mut touched: Vec<(Arc<EndpointSlice>, EndpointSlice)> = Vec::new();
    let mut known: BTreeMap<Ports, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing {
        let mut ports = slice.ports.clone().unwrap_or_default();
        ports.sort();
        known.entry(ports).or_default().push(slice.clone());
    }
    for (ports, slices) in &known {
        if !desired.contains_key(ports) {
            freed.extend(slices.iter().cloned());
        }
    }
    for (ports, endpoints) in desired {
        let mut left = endpoints.clone();
        let mut changed: Vec<(Arc<EndpointSlice>, EndpointSlice)> = Vec::new();
        let mut unchanged: Vec<(Arc<EndpointSlice>, EndpointSlice)> = Vec::new();
        for slice in known.get(ports).into_iter().flatten() {
            let mut wanted = blank(service, family, ports);
            wanted.metadata.name.clone_from(&slice.metadata.name);
            wanted.metadata.generate_name = None;
            wanted
                .metadata
                .resource_version
                .clone_from(&slice.metadata.resource_version);
            for endpoint in &slice.endpoints {
                let name = endpoint
                    .target_ref
                    .as_ref()
                    .and_then(|target| target.name.clone());
                wanted
                    .endpoints
                    .extend(name.and_then(|name| left.remove(&name)));
            }
            if wanted.endpoints.is_empty() {
                freed.push(slice.clone());
            } else if is_same(slice, &wanted) {
                unchanged.push((slice.clone(), wanted));
            } else {
                changed.push((slice.clone(), wanted));
            }
        }
        place(left, &mut changed, &mut unchanged, &mut new, || {
            blank(service, family, ports)
        });
        touched.extend(changed);
    }
    // A slice that is not needed any more becomes one that is.
    for mut slice in new {
        match freed.pop() {
            Some(old) => {
                slice.metadata.name.clone_from(&old.metadata.name);
                slice.metadata.generate_name = None;
                slice
                    .metadata
                    .resource_version
                    .clone_from(&old.metadata.resource_version);
                plan.update.push(slice);
            }
            None => plan.create.push(slice),
        }
    }
    plan.update
        .extend(touched.into_iter().map(|(_, slice)| slice));
    plan.delete
        .extend(freed.iter().filter_map(|slice| slice.metadata.name.clone()));
}

/// Puts the endpoints that have no slice yet where they cost the fewest writes.
fn place(
    left: BTreeMap<String, Endpoint>,
    changed: &mut Vec<(Arc<EndpointSlice>, EndpointSlice)>,
    unchanged: &mut Vec<(Arc<EndpointSlice>, EndpointSlice)>,
    new: &mut Vec<EndpointSlice>,
    blank: impl Fn() -> EndpointSlice,
) {
    let mut left: Vec<Endpoint> = left.into_values().collect();
    // Slices that are written anyway, fullest first.
    changed.sort_by_key(|(_, slice)| std::cmp::Reverse(slice.endpoints.len()));
    for (_, slice) in changed.iter_mut() {
        let room = MAX_ENDPOINTS
            .saturating_sub(slice.endpoints.len())
            .min(left.len());
        slice.endpoints.extend(left.drain(..room));
    }
    // The slice in which the rest fits most tightly.
    if !left.is_empty() && left.len() < MAX_ENDPOINTS {
        let fits = unchanged
            .iter()
            .enumerate()
            .filter(|(_, (_, slice))| slice.endpoints.len() + left.len() <= MAX_ENDPOINTS);
        if let Some(at) = fits
            .max_by_key(|(_, (_, slice))| slice.endpoints.len())
            .map(|(at, _)| at)
        {
            let (old, mut slice) = unchanged.remove(at);
            slice.endpoints.append(&mut left);
            changed.push((old, slice));
        }
    }
    while !left.is_empty() {
        let mut slice = blank();
        let room = MAX_ENDPOINTS.min(left.len());
        slice.endpoints.extend(left.drain(..room));
        new.push(slice);
    }
}

/// Whether writing `wanted` would change nothing.
fn is_same(slice: &EndpointSlice, wanted: &EndpointSlice) -> bool {
    slice.endpoints == wanted.endpoints
        && slice.metadata.labels == wanted.metadata.labels
        && slice.metadata.owner_references == wanted.metadata.owner_references
}

/// A slice of the Service without endpoints.
fn blank(service: &Service, family: Family, ports: &Ports) -> EndpointSlice {
    let meta = &service.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let mut marks = meta.labels.clone().unwrap_or_default();
    marks.insert(labels::SERVICE_NAME.to_owned(), name.clone());
    marks.insert(
        labels::SLICE_MANAGED_BY.to_owned(),
        labels::SLICE_MANAGER.to_owned(),
    );
    if service.is_headless() {
        marks.insert(labels::SERVICE_HEADLESS.to_owned(), String::new());
    } else {
        marks.remove(labels::SERVICE_HEADLESS);
    }
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("linkerd-external-{name}-")),
            namespace: meta.namespace.clone(),
            labels: Some(marks),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Service".to_owned(),
                name,
                uid: meta.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        address_type: family.name().to_owned(),
        endpoints: Vec::new(),
        ports: Some(ports.clone()),
    }
}

#[cfg(test)]
mod tests;
