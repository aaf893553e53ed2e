//! The check of `linkerd-data-plane` that compares the opaque ports of Services with those of the
//! pods behind them.

use super::{
    engine::{Problem, Verdict},
    facts::{Facts, name},
    proxies::data_plane_pods,
};
use k8s_openapi::{
    api::{
        core::v1::{Container, Pod, Service},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::Resource;
use linkerd_k8s::{
    labels::{OPAQUE_PORTS, SERVICE_NAME},
    ports::PortSet,
};
use std::collections::{BTreeMap, BTreeSet};

type Place<'a> = (&'a str, &'a str);

pub(super) async fn annotated(facts: &mut Facts) -> Verdict {
    let pods = data_plane_pods(facts).await?;
    let services: Vec<Service> = facts.data_plane("").await?;
    let slices: Vec<EndpointSlice> = facts.data_plane(SERVICE_NAME).await?;
    let pods: BTreeMap<Place<'_>, &Pod> = pods.iter().map(|pod| (key(pod), pod)).collect();
    let mut behind: BTreeMap<Place<'_>, BTreeSet<&str>> = BTreeMap::new();
    for slice in &slices {
        let labels = slice.metadata.labels.as_ref();
        let Some(service) = labels.and_then(|labels| labels.get(SERVICE_NAME)) else {
            continue;
        };
        for endpoint in &slice.endpoints {
            let target = endpoint.target_ref.as_ref();
            let target = target.filter(|target| target.kind.as_deref() == Some("Pod"));
            if let Some(pod) = target.and_then(|target| target.name.as_deref()) {
                behind
                    .entry((key(slice).0, service))
                    .or_default()
                    .insert(pod);
            }
        }
    }
    let mut errors = Vec::new();
    for service in &services {
        let spec = service.spec.as_ref();
        if spec.is_none_or(|spec| spec.cluster_ip.as_deref() == Some("None")) {
            continue;
        }
        let at = key(service);
        for pod in behind.get(&at).into_iter().flatten() {
            if let Some(pod) = pods.get(&(at.0, pod)) {
                errors.extend(compare(service, pod));
            }
        }
    }
    errors.dedup();
    if errors.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = errors.iter().map(|error| format!("\t* {error}")).collect();
    // The first line follows four spaces, the others stand for themselves.
    Err(Problem::failed(lines.join("\n")))
}

fn key<K: Resource>(object: &K) -> Place<'_> {
    (
        object.meta().namespace.as_deref().unwrap_or_default(),
        name(object),
    )
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    })
}

/// Ports of the pod under a name.
fn named(pod: &Pod, wanted: &str) -> Option<u16> {
    let mut ports = containers(pod).flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(wanted))?;
    u16::try_from(port.container_port).ok()
}

fn opaque<K: Resource>(object: &K, pod: &Pod, errors: &mut Vec<String>) -> PortSet {
    let annotations = object.meta().annotations.as_ref();
    let list = annotations.and_then(|annotations| annotations.get(OPAQUE_PORTS));
    let list = list.map(String::as_str).unwrap_or_default();
    PortSet::parse_named(
        list,
        |wanted| named(pod, wanted),
        |unknown| {
            errors.push(format!(
                "failed to convert {unknown} to port number for pod {}",
                name(pod)
            ));
        },
    )
}

/// The first disagreement of a Service and a pod behind it.
fn compare(service: &Service, pod: &Pod) -> Option<String> {
    let mut errors = Vec::new();
    let service_ports = opaque(service, pod, &mut errors);
    let pod_ports = opaque(pod, pod, &mut errors);
    if !errors.is_empty() {
        return errors.into_iter().next();
    }
    let ports = service.spec.as_ref()?.ports.iter().flatten();
    let pairs = ports.filter_map(|port| {
        let own = u16::try_from(port.port).ok()?;
        let target = match &port.target_port {
            None => own,
            Some(IntOrString::Int(target)) => u16::try_from(*target).ok()?,
            Some(IntOrString::String(target)) => named(pod, target)?,
        };
        Some((own, target))
    });
    for (own, target) in pairs {
        let service_name = name(service);
        match (service_ports.contains(own), pod_ports.contains(target)) {
            (true, false) => {
                return Some(format!(
                    "service {service_name} expects target port {target} to be opaque; add it to pod {} {OPAQUE_PORTS} annotation",
                    name(pod)
                ));
            }
            (false, true) if own == target => {
                return Some(format!(
                    "service {service_name} targets the opaque port {target}; add it to its {OPAQUE_PORTS} annotation"
                ));
            }
            (false, true) => {
                return Some(format!(
                    "service {service_name} targets the opaque port {target} through {own}; add {own} to its {OPAQUE_PORTS} annotation"
                ));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::check::{
        data_plane::category,
        fake::{Fake, assert_says},
        proxies::tests::pod,
    };
    use linkerd_k8s::labels::{OPAQUE_PORTS, SERVICE_NAME};
    use serde_json::{Value, json};

    async fn says(case: &str, service: (Value, &str), pod_ports: &str, error: &str) {
        let (ports, service_ports) = service;
        let mut db = pod("a", "db-0", "edge-1");
        db["metadata"]["annotations"] = json!({OPAQUE_PORTS: pod_ports});
        db["spec"]["initContainers"] =
            json!([{"name": "side", "ports": [{"name": "sql", "containerPort": 3306}]}]);
        let service = json!({"kind": "Service", "apiVersion": "v1",
            "metadata": {"name": "db", "namespace": "a", "annotations": {OPAQUE_PORTS: service_ports}},
            "spec": {"clusterIP": "10.0.0.1", "ports": [ports]}});
        let slice = json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {"name": "db-x", "namespace": "a", "labels": {SERVICE_NAME: "db"}},
            "endpoints": [{"addresses": ["10.1.1.1"], "targetRef": {"kind": "Pod", "name": "db-0"}}]});
        let mut facts = Fake::of(vec![db, service, slice]).facts();
        eprintln!("{case}");
        assert_says(
            &category(),
            "opaque ports are properly annotated",
            &mut facts,
            error,
        )
        .await;
    }

    #[tokio::test]
    async fn services_and_pods_agree() {
        let same = json!({"port": 3306});
        let mapped = json!({"port": 6000, "targetPort": "sql"});
        says("none", (same.clone(), ""), "", "").await;
        says("both", (same.clone(), "3306"), "3000-4000", "").await;
        says("named", (mapped.clone(), "6000"), "sql", "").await;
        let error = "\t* service db expects target port 3306 to be opaque; add it to pod db-0 config.linkerd.io/opaque-ports annotation";
        says("pod lacks it", (mapped.clone(), "6000"), "", error).await;
        let error = "\t* service db targets the opaque port 3306; add it to its config.linkerd.io/opaque-ports annotation";
        says("service lacks it", (same.clone(), ""), "3306", error).await;
        let error = "\t* service db targets the opaque port 3306 through 6000; add 6000 to its config.linkerd.io/opaque-ports annotation";
        says("service lacks the mapped one", (mapped, ""), "sql", error).await;
        let error = "\t* failed to convert http to port number for pod db-0";
        says("unknown name", (same, ""), "http", error).await;
    }
}
