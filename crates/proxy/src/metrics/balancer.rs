//! Series of one balancer: how many endpoints there are, how long requests wait for one, and when it
//! gave up waiting.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Counter, Family, Histogram, Registry};

/// Whose balancer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Outbound HTTP.
    Http,
    /// Outbound opaque connections.
    Tcp,
    /// Outbound TLS connections.
    Tls,
    /// The identity service.
    Identity,
    /// The destination service.
    Destination,
    /// The policy service.
    Policy,
    /// The trace collector.
    Trace,
}

impl Kind {
    /// The first of its families; the others follow it in [`Family::ALL`].
    fn first(self) -> Family {
        match self {
            Self::Http => Family::OutboundHttpBalancerP2cEndpoints,
            Self::Tcp => Family::OutboundTcpBalancerP2cEndpoints,
            Self::Tls => Family::OutboundTlsBalancerP2cEndpoints,
            Self::Identity => Family::ControlIdentityBalancerP2cEndpoints,
            Self::Destination => Family::ControlDestinationBalancerP2cEndpoints,
            Self::Policy => Family::ControlPolicyBalancerP2cEndpoints,
            Self::Trace => Family::OpentelemetryBalancerP2cEndpoints,
        }
    }

    /// The family of this kind whose name ends so.
    fn family(self, suffix: &str) -> Family {
        let first = self.first();
        let at = Family::ALL.iter().position(|f| *f == first).unwrap_or(0);
        let prefix = first.name().trim_end_matches("_p2c_endpoints");
        Family::ALL[at..]
            .iter()
            .copied()
            .find(|f| f.name().strip_prefix(prefix) == Some(suffix))
            .unwrap_or(first)
    }
}

/// Series of one balancer, for one worker.
#[derive(Debug)]
pub struct BalancerMetrics {
    /// Endpoints in the balancer.
    pub endpoints: Arc<Counter>,
    /// Endpoints that are ready.
    pub ready: Arc<Counter>,
    /// Endpoints that are not.
    pub pending: Arc<Counter>,
    /// Updates that added endpoints.
    pub added: Arc<Counter>,
    /// Updates that removed endpoints.
    pub removed: Arc<Counter>,
    /// Updates that replaced all.
    pub reset: Arc<Counter>,
    /// Requests waiting.
    pub waiting: Arc<Counter>,
    /// Requests so far.
    pub requests: Arc<Counter>,
    /// How long they waited.
    pub latency: Arc<Histogram>,
    opened: Arc<Counter>,
    shut: Arc<Counter>,
    opened_at: Arc<Counter>,
    shut_at: Arc<Counter>,
    _timeout: Arc<Counter>,
}

impl BalancerMetrics {
    /// Resolves the series.
    pub fn new(registry: &Registry, kind: Kind, labels: &Arc<str>, failfast: Duration) -> Self {
        let counter = |suffix| registry.counter(kind.family(suffix), labels);
        let labelled = |suffix, label: &str| {
            let comma = if labels.is_empty() { "" } else { "," };
            let labels = format!("{labels}{comma}{label}").into();
            registry.counter(kind.family(suffix), &labels)
        };
        let timeout = counter("_queue_gate_timeout_seconds");
        timeout.set(u64::try_from(failfast.as_millis()).unwrap_or(u64::MAX));
        Self {
            endpoints: counter("_p2c_endpoints"),
            ready: labelled("_endpoints", "endpoint_state=\"ready\""),
            pending: labelled("_endpoints", "endpoint_state=\"pending\""),
            added: labelled("_p2c_updates_total", "op=\"Add\""),
            removed: labelled("_p2c_updates_total", "op=\"Remove\""),
            reset: labelled("_p2c_updates_total", "op=\"Reset\""),
            waiting: counter("_queue_length"),
            requests: counter("_queue_requests_total"),
            latency: registry.histogram(kind.family("_queue_latency_seconds"), labels),
            opened: counter("_queue_gate_open_total"),
            shut: counter("_queue_gate_shut_total"),
            opened_at: counter("_queue_gate_open_time_seconds"),
            shut_at: counter("_queue_gate_shut_time_seconds"),
            _timeout: timeout,
        }
    }

    /// The set of endpoints has changed from `old` to `new` of them, `kept` of which were there.
    pub fn updated(&self, old: usize, new: usize, kept: usize) {
        self.endpoints.set(new as u64);
        if old > 0 && kept == 0 && new > 0 {
            self.reset.inc();
            return;
        }
        if new > kept {
            self.added.inc();
        }
        if old > kept {
            self.removed.inc();
        }
    }

    /// So many of the endpoints are ready.
    pub fn states(&self, ready: usize, all: usize) {
        self.ready.set(ready as u64);
        self.pending.set(all.saturating_sub(ready) as u64);
    }

    /// Nothing was ready for too long.
    pub fn gate_shut(&self) {
        self.shut.inc();
        self.shut_at.set(unix_millis());
    }

    /// Something is ready again.
    pub fn gate_opened(&self) {
        self.opened.inc();
        self.opened_at.set(unix_millis());
    }
}

fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_kind_has_every_family() {
        let suffixes = [
            "_p2c_endpoints",
            "_p2c_updates_total",
            "_endpoints",
            "_queue_length",
            "_queue_requests_total",
            "_queue_latency_seconds",
            "_queue_gate_open_total",
            "_queue_gate_shut_total",
            "_queue_gate_open_time_seconds",
            "_queue_gate_shut_time_seconds",
            "_queue_gate_timeout_seconds",
        ];
        for (kind, prefix) in [
            (Kind::Http, "outbound_http_balancer"),
            (Kind::Tcp, "outbound_tcp_balancer"),
            (Kind::Tls, "outbound_tls_balancer"),
            (Kind::Identity, "control_identity_balancer"),
            (Kind::Destination, "control_destination_balancer"),
            (Kind::Policy, "control_policy_balancer"),
        ] {
            for suffix in suffixes {
                let name = format!("{prefix}{suffix}");
                assert_eq!(kind.family(suffix).name(), name);
            }
        }
    }

    #[test]
    fn two_workers_see_the_same_endpoints() {
        let registry = Registry::new(Duration::from_secs(1));
        let labels: Arc<str> = "a=\"b\"".into();
        let workers = [(); 2].map(|()| {
            BalancerMetrics::new(&registry, Kind::Http, &labels, Duration::from_millis(3500))
        });
        for worker in &workers {
            worker.updated(0, 3, 0);
            worker.states(2, 3);
            worker.requests.inc();
            worker.waiting.inc();
        }
        let mut text = String::new();
        registry.write(&mut text, Instant::now()).expect("writes");
        for line in [
            "outbound_http_balancer_p2c_endpoints{a=\"b\"} 3",
            "outbound_http_balancer_endpoints{a=\"b\",endpoint_state=\"pending\"} 1",
            "outbound_http_balancer_endpoints{a=\"b\",endpoint_state=\"ready\"} 2",
            "outbound_http_balancer_p2c_updates_total{a=\"b\",op=\"Add\"} 2",
            "outbound_http_balancer_queue_length{a=\"b\"} 2",
            "outbound_http_balancer_queue_requests_total{a=\"b\"} 2",
            "outbound_http_balancer_queue_gate_timeout_seconds{a=\"b\"} 3.500",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
