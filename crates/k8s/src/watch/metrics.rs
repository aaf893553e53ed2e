//! What the watches count: events, failures, unreadable objects, sizes and how old the news are.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use serde_json::{Value, json};

use crate::object::Key;

const LAG_BUCKETS: [f64; 11] = [
    0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0,
];

/// Plural of a kind, then the names under which operators know its lag and its size.
const NAMED: [(&str, &str, &str); 7] = [
    ("endpoints", "endpoints", "endpoints"),
    ("endpointslices", "endpointslices", "endpoint_slice"),
    ("services", "services", "service"),
    ("servers", "servers", "server"),
    ("pods", "pods", "pod"),
    ("externalworkloads", "externalworkload", "external_workload"),
    ("serviceprofiles", "serviceprofiles", "service_profile"),
];

/// Families for all kinds of all clusters of the process.
#[derive(Clone, Debug)]
pub struct Metrics {
    cluster: String,
    events: Family<EventLabels, Counter>,
    errors: Family<KindLabels, Counter>,
    invalid: Family<KindLabels, Counter>,
    sizes: BTreeMap<&'static str, Family<ClusterLabels, Gauge>>,
    lags: BTreeMap<&'static str, Family<ClusterLabels, Histogram>>,
    /// The watches that run, for [`Metrics::diagnostics`].
    running: Arc<Mutex<Vec<Weak<KindMetrics>>>>,
}

/// The part one watch holds.
#[derive(Debug)]
pub(super) struct KindMetrics {
    cluster: String,
    api_version: String,
    kind: String,
    /// Names of what the indexes hold.
    known: Mutex<HashSet<Key>>,
    applied: Counter,
    deleted: Counter,
    listed: Counter,
    errors: Counter,
    invalid: Counter,
    size: Gauge,
    lag: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    cluster: String,
    kind: String,
    op: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    cluster: String,
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabels {
    cluster: String,
}

// === impl Metrics ===

impl Metrics {
    /// Registers the families; this value stands for the local cluster.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::unregistered();
        let kube = registry.sub_registry_with_prefix("kube_watch");
        kube.register("events", "Events of watches", metrics.events.clone());
        kube.register("errors", "Interruptions of watches", metrics.errors.clone());
        kube.register(
            "invalid_objects",
            "Objects that could not be read",
            metrics.invalid.clone(),
        );
        for (plural, lag, size) in NAMED {
            let help = format!("Age of the newest change of {plural} when it was seen");
            registry.register(
                format!("{lag}_informer_lag_seconds"),
                help,
                metrics.lags[plural].clone(),
            );
            let help = format!("Number of {plural} known");
            registry.register(
                format!("{size}_cache_size"),
                help,
                metrics.sizes[plural].clone(),
            );
        }
        metrics
    }

    /// Families nobody scrapes, for tests.
    pub fn unregistered() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(LAG_BUCKETS);
        Self {
            cluster: "local".to_owned(),
            events: Family::default(),
            errors: Family::default(),
            invalid: Family::default(),
            sizes: NAMED
                .iter()
                .map(|named| (named.0, Family::default()))
                .collect(),
            lags: NAMED
                .iter()
                .map(|named| (named.0, Family::new_with_constructor(histogram)))
                .collect(),
            running: Arc::default(),
        }
    }

    /// Every watch that runs, with what it saw and, if asked for, what it holds.
    pub fn diagnostics(&self, resources: bool) -> Value {
        let running = self.running.lock();
        let watches = running.iter().filter_map(Weak::upgrade);
        watches.map(|watch| watch.diagnostics(resources)).collect()
    }

    /// The same families for a linked cluster.
    pub fn for_cluster(&self, cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            ..self.clone()
        }
    }

    pub(super) fn kind(
        &self,
        api_version: &str,
        kind: &str,
        plural: &'static str,
    ) -> Arc<KindMetrics> {
        let cluster = || ClusterLabels {
            cluster: self.cluster.clone(),
        };
        let labels = KindLabels {
            cluster: self.cluster.clone(),
            kind: kind.to_owned(),
        };
        let event = |op| {
            let labels = EventLabels {
                cluster: self.cluster.clone(),
                kind: kind.to_owned(),
                op,
            };
            self.events.get_or_create(&labels).clone()
        };
        let watch = Arc::new(KindMetrics {
            cluster: self.cluster.clone(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            known: Mutex::default(),
            applied: event("apply"),
            deleted: event("delete"),
            listed: event("list"),
            errors: self.errors.get_or_create(&labels).clone(),
            invalid: self.invalid.get_or_create(&labels).clone(),
            size: self.sizes.get(plural).map_or_else(Gauge::default, |sizes| {
                sizes.get_or_create(&cluster()).clone()
            }),
            lag: self.lags.get(plural).map_or_else(
                || Histogram::new(LAG_BUCKETS),
                |lags| lags.get_or_create(&cluster()).clone(),
            ),
        });
        let mut running = self.running.lock();
        running.retain(|watch| watch.strong_count() > 0);
        running.push(Arc::downgrade(&watch));
        watch
    }
}

// === impl KindMetrics ===

impl KindMetrics {
    /// An object was applied that was last written at `written` (seconds since the epoch).
    pub(super) fn applied(&self, written: Option<i64>) {
        self.applied.inc();
        let Some(written) = written.and_then(|seconds| u64::try_from(seconds).ok()) else {
            return;
        };
        if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
            self.lag
                .observe((now.as_secs_f64() - Duration::from_secs(written).as_secs_f64()).max(0.0));
        }
    }

    pub(super) fn deleted(&self) {
        self.deleted.inc();
    }

    pub(super) fn listed(&self) {
        self.listed.inc();
    }

    /// The indexes hold the object now, or do not any more.
    pub(super) fn holds(&self, key: Key, holds: bool) {
        let mut known = self.known.lock();
        if holds {
            known.insert(key);
        } else {
            known.remove(&key);
        }
        self.size
            .set(i64::try_from(known.len()).unwrap_or(i64::MAX));
    }

    /// The indexes hold these objects and no others.
    pub(super) fn holds_only(&self, keys: impl Iterator<Item = Key>) {
        let mut known = self.known.lock();
        *known = keys.collect();
        self.size
            .set(i64::try_from(known.len()).unwrap_or(i64::MAX));
    }

    fn diagnostics(&self, resources: bool) -> Value {
        let mut watch = json!({
            "cluster": self.cluster,
            "apiVersion": self.api_version,
            "kind": self.kind,
            "stats": {
                "resets": self.listed.get(), "applies": self.applied.get(),
                "deletes": self.deleted.get(), "errors": self.errors.get(),
                "invalid": self.invalid.get(),
            },
        });
        if resources {
            let known = self.known.lock();
            let mut keys: Vec<&Key> = known.iter().collect();
            keys.sort();
            watch["resources"] = keys
                .into_iter()
                .map(|key| json!({"namespace": key.namespace, "name": key.name}))
                .collect();
        }
        watch
    }

    pub(super) fn failed(&self) {
        self.errors.inc();
    }

    pub(super) fn invalid(&self) {
        self.invalid.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are public: dashboards and alerts are written with them.
    #[test]
    fn metric_names() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        for (plural, _, _) in NAMED {
            let kind = metrics.kind("v1", plural, plural);
            kind.applied(Some(0));
            kind.holds_only(["a", "b", "c"].map(|name| Key::new("ns", name)).into_iter());
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        let mut types: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .collect();
        types.sort_unstable();
        assert_eq!(
            types,
            [
                "endpoint_slice_cache_size gauge",
                "endpoints_cache_size gauge",
                "endpoints_informer_lag_seconds histogram",
                "endpointslices_informer_lag_seconds histogram",
                "external_workload_cache_size gauge",
                "externalworkload_informer_lag_seconds histogram",
                "kube_watch_errors counter",
                "kube_watch_events counter",
                "kube_watch_invalid_objects counter",
                "pod_cache_size gauge",
                "pods_informer_lag_seconds histogram",
                "server_cache_size gauge",
                "servers_informer_lag_seconds histogram",
                "service_cache_size gauge",
                "service_profile_cache_size gauge",
                "serviceprofiles_informer_lag_seconds histogram",
                "services_informer_lag_seconds histogram",
            ]
        );
        assert!(
            text.contains(r#"pod_cache_size{cluster="local"} 3"#),
            "{text}"
        );
        let lag = r#"pods_informer_lag_seconds_bucket{le="0.5",cluster="local"}"#;
        assert!(text.contains(lag), "{text}");
    }
}
