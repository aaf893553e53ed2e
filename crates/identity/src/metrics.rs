//! What the service counts: certificates, gRPC calls, calls to the API server, time left of the
//! issuer and of each anchor.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use linkerd_tls::Certificate;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, LabelSetEncoder},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};
use tonic::Code;

use crate::authority::Authority;

const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    grpc_method: &'static str,
    grpc_service: &'static str,
    grpc_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Handled {
    grpc_code: String,
    grpc_method: &'static str,
    grpc_service: &'static str,
    grpc_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Client {
    client: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClientCall {
    client: &'static str,
    code: String,
    method: &'static str,
}

const CERTIFY: Method = Method {
    grpc_method: "Certify",
    grpc_service: "io.linkerd.proxy.identity.Identity",
    grpc_type: "unary",
};
const KUBERNETES: Client = Client { client: "k8s" };

/// Handles to all counters; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    issued: Counter,
    refused: Family<Reason, Counter>,
    started: Counter,
    received: Counter,
    sent: Counter,
    handled: Family<Handled, Counter>,
    handling: Histogram,
    client_calls: Family<ClientCall, Counter>,
    client_in_flight: Gauge,
    client_latency: Histogram,
}

impl Metrics {
    /// `(qps, burst)` are the limits of the API client, shown as gauges.
    pub fn register(registry: &mut Registry, (qps, burst): (f64, u32)) -> Self {
        let started = Family::<Method, Counter>::default();
        let received = Family::<Method, Counter>::default();
        let sent = Family::<Method, Counter>::default();
        let histogram = || Histogram::new(BUCKETS);
        let handling = Family::<Method, Histogram, _>::new_with_constructor(histogram as fn() -> _);
        let client_in_flight = Family::<Client, Gauge>::default();
        let client_latency =
            Family::<Client, Histogram, _>::new_with_constructor(histogram as fn() -> _);
        let limit = |value: f64| {
            let family = Family::<Client, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
            family.get_or_create(&KUBERNETES).set(value);
            family
        };
        let metrics = Self {
            issued: Counter::default(),
            refused: Family::default(),
            started: started.get_or_create_owned(&CERTIFY),
            received: received.get_or_create_owned(&CERTIFY),
            sent: sent.get_or_create_owned(&CERTIFY),
            handled: Family::default(),
            handling: handling.get_or_create_owned(&CERTIFY),
            client_calls: Family::default(),
            client_in_flight: client_in_flight.get_or_create_owned(&KUBERNETES),
            client_latency: client_latency.get_or_create_owned(&KUBERNETES),
        };
        registry.register(
            "identity_certificates_issued",
            "Certificates issued",
            metrics.issued.clone(),
        );
        registry.register(
            "identity_certificates_refused",
            "Certificate requests refused, by reason",
            metrics.refused.clone(),
        );
        registry.register("grpc_server_started", "RPCs started on the server", started);
        registry.register(
            "grpc_server_msg_received",
            "RPC messages received",
            received,
        );
        registry.register("grpc_server_msg_sent", "RPC messages sent", sent);
        registry.register(
            "grpc_server_handled",
            "RPCs completed on the server, by code",
            metrics.handled.clone(),
        );
        registry.register(
            "grpc_server_handling_seconds",
            "Time until an RPC was answered",
            handling,
        );
        registry.register(
            "http_client_requests",
            "Requests to the Kubernetes API, by status",
            metrics.client_calls.clone(),
        );
        registry.register(
            "http_client_in_flight_requests",
            "Requests to the Kubernetes API in progress",
            client_in_flight,
        );
        registry.register(
            "http_client_request_latency_seconds",
            "Time the Kubernetes API took to answer",
            client_latency,
        );
        registry.register(
            "http_client_qps",
            "Sustained request rate the Kubernetes client allows itself",
            limit(qps),
        );
        registry.register(
            "http_client_burst",
            "Burst the Kubernetes client allows itself",
            limit(f64::from(burst)),
        );
        metrics
    }

    pub(crate) fn issued(&self) {
        self.issued.inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn call_started(&self) {
        self.started.inc();
        self.received.inc();
    }

    pub(crate) fn call_handled(&self, code: Code, took: Duration) {
        let grpc_code = if code == Code::Ok {
            "OK".to_owned()
        } else {
            format!("{code:?}")
        };
        let Method {
            grpc_method,
            grpc_service,
            grpc_type,
        } = CERTIFY;
        let labels = Handled {
            grpc_code,
            grpc_method,
            grpc_service,
            grpc_type,
        };
        self.handled.get_or_create(&labels).inc();
        self.handling.observe(took.as_secs_f64());
        if code == Code::Ok {
            self.sent.inc();
        }
    }

    /// Counts a call to the API server while the returned value lives.
    pub(crate) fn api_call(&self) -> ApiCall<'_> {
        self.client_in_flight.inc();
        ApiCall {
            metrics: self,
            started: std::time::Instant::now(),
        }
    }
}

/// A call to the API server in progress.
#[derive(Debug)]
pub(crate) struct ApiCall<'a> {
    metrics: &'a Metrics,
    started: std::time::Instant,
}

impl ApiCall<'_> {
    pub(crate) fn ended(self, status: u16) {
        let code = if status == 0 {
            "error".to_owned()
        } else {
            status.to_string()
        };
        let labels = ClientCall {
            client: KUBERNETES.client,
            code,
            method: "post",
        };
        self.metrics.client_calls.get_or_create(&labels).inc();
        self.metrics
            .client_latency
            .observe(self.started.elapsed().as_secs_f64());
    }
}

impl Drop for ApiCall<'_> {
    fn drop(&mut self) {
        self.metrics.client_in_flight.dec();
    }
}

/// Shows the time left of issuer and anchors as it is at the scrape.
pub(crate) fn register_ttl(registry: &mut Registry, authority: Arc<Authority>) {
    registry.register_collector(Box::new(Ttl(authority)));
}

#[derive(Debug)]
struct Ttl(Arc<Authority>);

impl Collector for Ttl {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(current) = self.0.current() else {
            return Ok(());
        };
        let now = SystemTime::now();
        let seconds = |c: &Certificate| {
            ConstGauge::new(i64::try_from(c.remaining(now).as_secs()).unwrap_or(i64::MAX))
        };
        let issuer = encoder.encode_descriptor(
            "issuer_cert_ttl_seconds",
            "Seconds until the issuer certificate expires",
            None,
            MetricType::Gauge,
        )?;
        seconds(current.issuer.certificate()).encode(issuer)?;
        let mut anchors = encoder.encode_descriptor(
            "trust_anchor_ttl_seconds",
            "Seconds until a trust anchor expires",
            None,
            MetricType::Gauge,
        )?;
        for anchor in current.anchors.certificates() {
            let labels = Anchor {
                subject: &anchor.subject,
                sha256: &anchor.sha256(),
            };
            seconds(anchor).encode(anchors.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

struct Anchor<'a> {
    subject: &'a str,
    sha256: &'a str,
}

impl EncodeLabelSet for Anchor<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let both = [("subject", self.subject), ("sha256", self.sha256)];
        both.as_slice().encode(encoder)
    }
}
