//! The checks of `linkerd-existence` that compare `clusterNetworks` with the addresses in use.

use super::{
    engine::{Problem, Verdict},
    facts::{Facts, place},
};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use std::{collections::BTreeSet, net::IpAddr};

fn networks(facts: &Facts) -> Result<Vec<IpNet>, Problem> {
    facts.values()?;
    let list = facts.value_text("clusterNetworks");
    let parsed = list
        .split(',')
        .map(str::trim)
        .filter(|network| !network.is_empty())
        .map(|network| {
            let network: Result<IpNet, _> = network.parse();
            network.map_err(|error| {
                Problem::failed(format!("cannot parse destination get networks: {error}"))
            })
        });
    parsed.collect()
}

/// Every range that nodes give to their pods lies within.
pub(super) async fn nodes(facts: &mut Facts) -> Verdict {
    let networks = networks(facts)?;
    let nodes: Vec<Node> = facts.all("").await?;
    let mut ranges = BTreeSet::new();
    for spec in nodes.iter().filter_map(|node| node.spec.as_ref()) {
        ranges.extend(spec.pod_cidr.iter().chain(spec.pod_cidrs.iter().flatten()));
    }
    ranges.retain(|range| !range.is_empty());
    if ranges.is_empty() {
        return Err(Problem::skip("no node has a podCIDR"));
    }
    let outside: Vec<&str> = ranges
        .into_iter()
        .filter(|range| {
            let range: Option<IpNet> = range.parse().ok();
            range.is_none_or(|range| !networks.iter().any(|network| network.contains(&range)))
        })
        .map(String::as_str)
        .collect();
    if outside.is_empty() {
        return Ok(());
    }
    let mut wanted: Vec<String> = networks.iter().map(ToString::to_string).collect();
    wanted.extend(outside.iter().map(ToString::to_string));
    Err(Problem::failed(format!(
        "node has podCIDR(s) [{}] which are not contained in the Linkerd clusterNetworks.\n\tTry installing linkerd via --set clusterNetworks=\"{}\"",
        outside.join(" "),
        wanted.join("\\,")
    )))
}

pub(super) async fn pods(facts: &mut Facts) -> Verdict {
    let networks = networks(facts)?;
    let pods: Vec<Pod> = facts.all("").await?;
    let addresses = pods.iter().filter_map(|pod| {
        let host = pod.spec.as_ref().and_then(|spec| spec.host_network);
        let ip = pod.status.as_ref()?.pod_ip.as_deref()?;
        (host != Some(true)).then(|| (format!("pod {}", place(pod)), ip))
    });
    contain(facts, &networks, addresses)
}

pub(super) async fn services(facts: &mut Facts) -> Verdict {
    let networks = networks(facts)?;
    let services: Vec<Service> = facts.all("").await?;
    let addresses = services.iter().filter_map(|service| {
        let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
        (ip != "None").then(|| (format!("svc {}", place(service)), ip))
    });
    contain(facts, &networks, addresses)
}

/// Fails with the first address outside.
fn contain<'a>(
    facts: &Facts,
    networks: &[IpNet],
    mut addresses: impl Iterator<Item = (String, &'a str)>,
) -> Verdict {
    let outside = addresses.find(|(_, ip)| {
        let ip: Option<IpAddr> = ip.parse().ok();
        ip.is_some_and(|ip| !networks.iter().any(|network| network.contains(&ip)))
    });
    match outside {
        Some((what, ip)) => Err(Problem::failed(format!(
            "the Linkerd clusterNetworks [\"{}\"] do not include {what} ({ip})",
            facts.value_text("clusterNetworks")
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::check::{
        engine::Problem,
        existence::category,
        fake::{Fake, assert_says, verdict},
    };
    use serde_json::{Value, json};

    async fn says(description: &str, object: Value, error: &str) {
        let mut facts = Fake::of(vec![object]).facts();
        facts.values = Some(json!({"clusterNetworks": "10.0.0.0/8,fd00::/8"}));
        assert_says(&category(), description, &mut facts, error).await;
    }

    fn node(cidr: &str) -> Value {
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr, "fd00:1::/64"]}})
    }

    #[tokio::test]
    async fn ranges_of_nodes() {
        let description = "cluster networks contains all node podCIDRs";
        says(description, node("10.1.0.0/16"), "").await;
        let error = "node has podCIDR(s) [100.64.0.0/24] which are not contained in the Linkerd clusterNetworks.\n\tTry installing linkerd via --set clusterNetworks=\"10.0.0.0/8\\,fd00::/8\\,100.64.0.0/24\"";
        says(description, node("100.64.0.0/24"), error).await;
        let mut facts = Fake::of(vec![]).facts();
        facts.values = Some(json!({"clusterNetworks": "10.0.0.0/8"}));
        let skipped = verdict(&category(), description, &mut facts).await;
        assert!(matches!(skipped, Err(Problem::Skip(_))));
        facts.values = Some(json!({"clusterNetworks": "10.0.0.0/99"}));
        let broken = verdict(&category(), description, &mut facts).await;
        assert!(
            matches!(broken, Err(Problem::Failed(error)) if error.starts_with("cannot parse destination get networks"))
        );
    }

    #[tokio::test]
    async fn addresses_of_pods() {
        let pod = |ip: &str, host: bool| {
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "ns"},
                "spec": {"containers": [], "hostNetwork": host}, "status": {"podIP": ip}})
        };
        let description = "cluster networks contains all pods";
        says(description, pod("10.1.2.3", false), "").await;
        says(description, pod("192.0.2.1", true), "").await;
        let error = "the Linkerd clusterNetworks [\"10.0.0.0/8,fd00::/8\"] do not include pod ns/p (192.0.2.1)";
        says(description, pod("192.0.2.1", false), error).await;
    }

    #[tokio::test]
    async fn addresses_of_services() {
        let service = |ip: &str| json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "ns"}, "spec": {"clusterIP": ip}});
        let description = "cluster networks contains all services";
        says(description, service("None"), "").await;
        says(description, service("fd00::5"), "").await;
        let error = "the Linkerd clusterNetworks [\"10.0.0.0/8,fd00::/8\"] do not include svc ns/s (192.0.2.9)";
        says(description, service("192.0.2.9"), error).await;
    }
}
