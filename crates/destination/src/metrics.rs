//! What discovery counts. Names are those operators know; a view's series go with the view, so
//! their number follows what is watched.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::intern::ObjectId;

/// Known names end without `_total`, so these counters are written as gauges that only grow.
type Count = Gauge;

#[derive(Clone, Debug, Default)]
pub struct Metrics {
    cluster: String,
    endpoints: EndpointFamilies,
    profile_subscribers: Family<ProfileLabels, Gauge>,
    profile_updates: Family<ProfileLabels, Count>,
    service_subscribers: Family<ServiceLabels, Gauge>,
    workload_subscribers: Gauge,
    workload_updates: Count,
    endpoint_overflow: Family<OverflowLabels, Count>,
    profile_overflow: Family<ProfileOverflowLabels, Count>,
    endpoint_profile_overflow: Count,
    clusters: Gauge,
}

#[derive(Clone, Debug, Default)]
struct EndpointFamilies {
    subscribers: Family<EndpointLabels, Gauge>,
    updates: Family<EndpointLabels, Count>,
    pods: Family<EndpointLabels, Gauge>,
    exists: Family<EndpointLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    cluster: String,
    namespace: String,
    service: String,
    port: u16,
    hostname: &'static str,
    nodename: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProfileLabels {
    namespace: String,
    profile: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabels {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OverflowLabels {
    service: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProfileOverflowLabels {
    fqn: String,
    port: u16,
}

/// The series of one view.
#[derive(Debug)]
pub struct ViewMetrics {
    of: Of,
    subscribers: Gauge,
    updates: Count,
    pods: Gauge,
    exists: Gauge,
    /// Watchers last reported, for gauges that several views share.
    reported: std::sync::atomic::AtomicI64,
}

#[derive(Debug)]
enum Of {
    Endpoints(EndpointFamilies, EndpointLabels),
    Profile(Metrics, ProfileLabels, ServiceLabels),
    Workload,
}

// === impl Metrics ===

impl Metrics {
    /// Registers the families; this value stands for the local cluster.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            cluster: "local".to_owned(),
            ..Self::default()
        };
        let endpoints = &metrics.endpoints;
        registry.register(
            "endpoints_subscribers",
            "Streams watching endpoints",
            endpoints.subscribers.clone(),
        );
        registry.register(
            "endpoints_updates",
            "Changes of endpoints",
            endpoints.updates.clone(),
        );
        registry.register(
            "endpoints_pods",
            "Number of endpoints",
            endpoints.pods.clone(),
        );
        registry.register(
            "endpoints_exists",
            "Whether the Service exists",
            endpoints.exists.clone(),
        );
        registry.register(
            "profile_subscribers",
            "Streams watching profiles",
            metrics.profile_subscribers.clone(),
        );
        registry.register(
            "profile_updates",
            "Changes of profiles",
            metrics.profile_updates.clone(),
        );
        registry.register(
            "service_subscribers",
            "Streams watching profiles of a Service",
            metrics.service_subscribers.clone(),
        );
        registry.register(
            "workload_subscribers",
            "Streams watching what is behind an address",
            metrics.workload_subscribers.clone(),
        );
        registry.register(
            "workload_updates",
            "Changes of what is behind an address",
            metrics.workload_updates.clone(),
        );
        registry.register(
            "endpoint_updates_queue_overflow",
            "Slow streams that got a whole set instead of updates",
            metrics.endpoint_overflow.clone(),
        );
        registry.register(
            "profile_updates_queue_overflow",
            "Slow streams that got the newest profile instead of updates",
            metrics.profile_overflow.clone(),
        );
        registry.register(
            "endpoint_profile_updates_queue_overflow",
            "Slow streams that got the newest endpoint profile instead of updates",
            metrics.endpoint_profile_overflow.clone(),
        );
        registry.register(
            "cluster_store_size",
            "Number of linked clusters",
            metrics.clusters.clone(),
        );
        metrics
    }

    /// The same families for a linked cluster.
    pub fn for_cluster(&self, cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            ..self.clone()
        }
    }

    pub fn clusters(&self, linked: usize) {
        set(&self.clusters, linked);
    }

    /// A stream was so slow that it skipped more sets than it may.
    pub fn overflow(&self, id: &ObjectId, port: u16) {
        let service = format!("{}.{}:{port}", id.name, id.namespace);
        self.endpoint_overflow
            .get_or_create(&OverflowLabels { service })
            .inc();
    }

    /// A stream was so slow that it skipped more profiles of a Service than it may.
    pub fn profile_overflow(&self, name: &str, port: u16) {
        let fqn = name.to_owned();
        self.profile_overflow
            .get_or_create(&ProfileOverflowLabels { fqn, port })
            .inc();
    }

    /// A stream was so slow that it skipped more profiles of an address than it may.
    pub fn endpoint_profile_overflow(&self) {
        self.endpoint_profile_overflow.inc();
    }

    pub(crate) fn endpoints(&self, id: &ObjectId, port: u16) -> ViewMetrics {
        let labels = EndpointLabels {
            cluster: self.cluster.clone(),
            namespace: id.namespace.to_string(),
            service: id.name.to_string(),
            port,
            hostname: "",
            nodename: "",
        };
        let families = &self.endpoints;
        ViewMetrics {
            subscribers: families.subscribers.get_or_create(&labels).clone(),
            updates: families.updates.get_or_create(&labels).clone(),
            pods: families.pods.get_or_create(&labels).clone(),
            exists: families.exists.get_or_create(&labels).clone(),
            of: Of::Endpoints(families.clone(), labels),
            reported: 0.into(),
        }
    }

    pub(crate) fn profile(&self, id: &ObjectId, profile: &str) -> ViewMetrics {
        let labels = ProfileLabels {
            namespace: id.namespace.to_string(),
            profile: profile.to_owned(),
        };
        let service = ServiceLabels {
            namespace: id.namespace.to_string(),
            name: id.name.to_string(),
        };
        ViewMetrics {
            subscribers: self.profile_subscribers.get_or_create(&labels).clone(),
            updates: self.profile_updates.get_or_create(&labels).clone(),
            pods: Gauge::default(),
            exists: Gauge::default(),
            of: Of::Profile(self.clone(), labels, service),
            reported: 0.into(),
        }
    }

    pub(crate) fn workload(&self) -> ViewMetrics {
        ViewMetrics {
            of: Of::Workload,
            subscribers: self.workload_subscribers.clone(),
            updates: self.workload_updates.clone(),
            pods: Gauge::default(),
            exists: Gauge::default(),
            reported: 0.into(),
        }
    }
}

// === impl ViewMetrics ===

impl ViewMetrics {
    pub(crate) fn updated(&self) {
        self.updates.inc();
    }

    pub(crate) fn endpoints(&self, count: usize, exists: bool) {
        set(&self.pods, count);
        self.exists.set(i64::from(exists));
    }

    /// The view has that many watchers now. Several views may share the series.
    pub(crate) fn watchers(&self, watchers: usize) {
        let watchers = i64::try_from(watchers).unwrap_or(i64::MAX);
        let before = self
            .reported
            .swap(watchers, std::sync::atomic::Ordering::Relaxed);
        self.subscribers.inc_by(watchers - before);
        if let Of::Profile(metrics, _, service) = &self.of {
            metrics
                .service_subscribers
                .get_or_create(service)
                .inc_by(watchers - before);
        }
    }
}

impl Drop for ViewMetrics {
    fn drop(&mut self) {
        self.watchers(0);
        match &self.of {
            // A cluster that was linked anew has the same series; the last one takes it along.
            Of::Endpoints(families, labels) if self.subscribers.get() == 0 => {
                families.subscribers.remove(labels);
                families.updates.remove(labels);
                families.pods.remove(labels);
                families.exists.remove(labels);
            }
            // Other ports or clients may share the series; the last one takes it along.
            Of::Profile(metrics, labels, service) if self.subscribers.get() == 0 => {
                metrics.profile_subscribers.remove(labels);
                metrics.profile_updates.remove(labels);
                let left = metrics.service_subscribers.get_or_create(service).get();
                if left == 0 {
                    metrics.service_subscribers.remove(service);
                }
            }
            Of::Endpoints(..) | Of::Profile(..) | Of::Workload => {}
        }
    }
}

fn set(gauge: &Gauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
