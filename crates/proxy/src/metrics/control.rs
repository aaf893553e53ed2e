//! Series of one control-plane service: calls, their latency, name lookups, and the addresses behind
//! its name. Written on the admin thread only.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{
    Family, Histogram, Labels, Registry,
    balancer::{BalancerMetrics, Kind},
};

/// Series of one service.
#[derive(Debug)]
pub struct ControlMetrics {
    registry: Arc<Registry>,
    labels: Arc<str>,
    client: &'static str,
    latency: Arc<Histogram>,
    known: Mutex<Vec<SocketAddr>>,
    /// The addresses of the service.
    pub balancer: BalancerMetrics,
}

/// Time without an address before calls fail; what Linkerd's proxies use.
const FAILFAST: Duration = Duration::from_secs(30);

impl ControlMetrics {
    /// Resolves the series of a service at `addr` with this identity.
    pub fn new(
        registry: &Arc<Registry>,
        kind: Kind,
        addr: &str,
        identity: Option<&str>,
    ) -> Arc<Self> {
        let labels = Labels::default().with("addr", addr);
        let balancer = labels.clone().finish();
        let labels = match identity {
            Some(id) => labels.with("tls", "true").with("server_id", id),
            None => labels
                .with("tls", "no_identity")
                .with("no_tls_reason", "loopback"),
        };
        let labels = labels.finish();
        // Calls to the collector are not calls to the control plane: counted apart, not shown.
        let calls = match kind {
            Kind::Trace => Arc::new(Registry::new(Duration::ZERO)),
            _ => registry.clone(),
        };
        Arc::new(Self {
            latency: calls.histogram(
                Family::ControlResponseLatencyMs,
                &format!("{labels},status_code=\"200\"").into(),
            ),
            balancer: BalancerMetrics::new(registry, kind, &balancer, FAILFAST),
            client: match kind {
                Kind::Identity => "control_identity",
                Kind::Policy => "control_policy",
                _ => "control_destination",
            },
            known: Mutex::default(),
            registry: calls,
            labels,
        })
    }

    /// A call is made.
    pub fn request(&self) {
        self.balancer.requests.inc();
        self.registry
            .counter(Family::ControlRequestTotal, &self.labels)
            .inc();
    }

    /// Its answer began, so long after it was made.
    pub fn answered(&self, elapsed: Duration) {
        self.latency.observe(elapsed.as_secs_f64() * 1000.0);
    }

    /// Its answer ended with a gRPC status, or broke, maybe before there was any status.
    pub fn ended(&self, status: Option<u16>, grpc: Option<u16>, error: &str) {
        let status = status.map(|s| s.to_string()).unwrap_or_default();
        let failed = !error.is_empty() || grpc.is_some_and(|code| matches!(code, 2 | 4 | 13..=15));
        let class = if failed { "failure" } else { "success" };
        let grpc = grpc.map(|c| c.to_string()).unwrap_or_default();
        let labels = format!(
            "{},status_code=\"{status}\",classification=\"{class}\",grpc_status=\"{grpc}\",error=\"{error}\"",
            self.labels
        );
        self.registry
            .counter(Family::ControlResponseTotal, &labels.into())
            .inc();
    }

    /// The service is at these addresses.
    pub fn found(&self, addrs: &[SocketAddr]) {
        let mut known = self.known.lock();
        let kept = addrs.iter().filter(|addr| known.contains(addr)).count();
        self.balancer.updated(known.len(), addrs.len(), kept);
        known.clear();
        known.extend(addrs);
    }

    /// Its name was looked up.
    pub fn resolved(&self, record_type: &str, found: bool) {
        let labels = Labels::default()
            .with("client", self.client)
            .with("record_type", record_type)
            .with("result", if found { "ok" } else { "not_found" })
            .finish();
        self.registry
            .counter(Family::ControlDnsResolutions, &labels)
            .inc();
    }
}
