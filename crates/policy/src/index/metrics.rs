//! How much the index holds, read when somebody scrapes.

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};
use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{Index, Store};

/// Sizes of the index.
#[derive(Debug)]
pub struct Sizes(Arc<Mutex<Index>>);

impl Sizes {
    /// Registers the sizes.
    pub fn register(index: &Arc<Mutex<Index>>, registry: &mut Registry) {
        registry.register_collector(Box::new(Self(index.clone())));
    }
}

type ByNamespace = BTreeMap<String, usize>;

fn inbound(store: &Store) -> [(&'static str, ByNamespace); 8] {
    fn sizes<'t>(tables: impl Iterator<Item = (&'t str, usize)>) -> ByNamespace {
        let mut sizes = ByNamespace::new();
        for (namespace, size) in tables {
            *sizes.entry(namespace.to_owned()).or_default() += size;
        }
        sizes
    }
    [
        ("meshtls_authentication", sizes(store.mesh_tls.sizes())),
        ("network_authentication", sizes(store.networks.sizes())),
        ("pod", sizes(store.pods.sizes())),
        ("external_workload", sizes(store.external_workloads.sizes())),
        ("server", sizes(store.servers.sizes())),
        (
            "server_authorization",
            sizes(store.server_authorizations.sizes()),
        ),
        (
            "authorization_policy",
            sizes(store.authorization_policies.sizes()),
        ),
        (
            "http_route",
            sizes(store.gateway_http.sizes().chain(store.policy_http.sizes())),
        ),
    ]
}

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (inbound, outbound) = {
            let index = self.0.lock();
            let store = &index.store;
            let routes: usize = store
                .attached
                .values()
                .map(std::collections::BTreeSet::len)
                .sum();
            let outbound = [
                ("service", store.cluster_ips.len()),
                ("service_info", store.services.len()),
                ("service_route", routes),
                ("service_port_route", index.outbound.len()),
            ];
            (inbound(store), outbound)
        };
        for (name, sizes) in inbound {
            let name = format!("inbound_index_{name}_index_size");
            let mut metric =
                encoder.encode_descriptor(&name, "Objects known", None, MetricType::Gauge)?;
            for (namespace, size) in sizes {
                let labels = [("namespace", namespace)];
                ConstGauge::new(size as i64).encode(metric.encode_family(&labels)?)?;
            }
        }
        for (name, size) in outbound {
            let name = format!("outbound_index_{name}_index_size");
            let metric =
                encoder.encode_descriptor(&name, "Objects known", None, MetricType::Gauge)?;
            ConstGauge::new(size as i64).encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, pod, route, server, service, to_service};
    use serde_json::json;

    #[test]
    fn sizes_have_their_names() {
        let world = World::new([
            pod("web"),
            pod("db"),
            server("s", json!({})),
            service("web", "10.1.0.1"),
            route("HTTPRoute", "r", to_service("web"), json!([{}])),
        ]);
        let mut registry = Registry::default();
        Sizes::register(&Arc::new(Mutex::new(world.index)), &mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        for line in [
            "inbound_index_pod_index_size{namespace=\"shop\"} 2",
            "inbound_index_server_index_size{namespace=\"shop\"} 1",
            "inbound_index_http_route_index_size{namespace=\"shop\"} 1",
            "outbound_index_service_index_size 1",
            "outbound_index_service_info_index_size 1",
            "outbound_index_service_route_index_size 1",
            "outbound_index_service_port_route_index_size 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} not in\n{text}"
            );
        }
    }
}
