//! Counts calls the way gRPC servers commonly do.

use std::time::Instant;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tonic::Code;

const SERVICE: &str = "io.linkerd.proxy.destination.Destination";
/// Streams live for minutes to an hour.
const HANDLING_BUCKETS: [f64; 4] = [0.1, 1.0, 300.0, 3600.0];

#[derive(Clone, Debug)]
pub struct CallMetrics {
    started: Family<MethodLabels, Counter>,
    handled: Family<CodeLabels, Counter>,
    received: Family<MethodLabels, Counter>,
    sent: Family<MethodLabels, Counter>,
    handling: Family<MethodLabels, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_type: &'static str,
    grpc_code: String,
}

/// One call. Counts its end when dropped, so that a client that hangs up counts too.
#[derive(Debug)]
pub(crate) struct Call {
    metrics: CallMetrics,
    method: &'static str,
    sent: Counter,
    started: Instant,
    code: Code,
}

impl CallMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::unregistered();
        let grpc = registry.sub_registry_with_prefix("grpc_server");
        grpc.register("started", "Calls started", metrics.started.clone());
        grpc.register("handled", "Calls ended", metrics.handled.clone());
        grpc.register(
            "msg_received",
            "Messages received",
            metrics.received.clone(),
        );
        grpc.register("msg_sent", "Messages sent", metrics.sent.clone());
        grpc.register(
            "handling_seconds",
            "Time until a call ended",
            metrics.handling.clone(),
        );
        metrics
    }

    pub fn unregistered() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(HANDLING_BUCKETS);
        Self {
            started: Family::default(),
            handled: Family::default(),
            received: Family::default(),
            sent: Family::default(),
            handling: Family::new_with_constructor(histogram),
        }
    }

    pub(crate) fn start(&self, method: &'static str) -> Call {
        let labels = labels(method);
        self.started.get_or_create(&labels).inc();
        self.received.get_or_create(&labels).inc();
        Call {
            metrics: self.clone(),
            method,
            sent: self.sent.get_or_create(&labels).clone(),
            started: Instant::now(),
            code: Code::Cancelled,
        }
    }
}

impl Call {
    pub(crate) fn sent(&self) {
        self.sent.inc();
    }

    pub(crate) fn end(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let MethodLabels {
            grpc_service,
            grpc_method,
            grpc_type,
        } = labels(self.method);
        let grpc_code = format!("{:?}", self.code);
        let code = CodeLabels {
            grpc_service,
            grpc_method,
            grpc_type,
            grpc_code,
        };
        self.metrics.handled.get_or_create(&code).inc();
        let handling = self
            .metrics
            .handling
            .get_or_create(&labels(self.method))
            .clone();
        handling.observe(self.started.elapsed().as_secs_f64());
    }
}

fn labels(method: &'static str) -> MethodLabels {
    MethodLabels {
        grpc_service: SERVICE,
        grpc_method: method,
        grpc_type: "server_stream",
    }
}
