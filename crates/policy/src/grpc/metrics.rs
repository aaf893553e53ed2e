//! What the gRPC services count, under the names of Linkerd's.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::time::Instant;
use tonic::Code;

/// Counters of all methods.
#[derive(Clone, Debug)]
pub struct Metrics {
    started: Family<Method, Counter>,
    handled: Family<Handled, Counter>,
    received: Family<Method, Counter>,
    sent: Family<Method, Counter>,
    handling: Family<Method, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Handled {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_type: &'static str,
    grpc_code: String,
}

/// A call in progress. Dropping it counts its end.
#[derive(Debug)]
pub(super) struct Call {
    handled: Family<Handled, Counter>,
    method: Method,
    sent: Counter,
    handling: Histogram,
    since: Instant,
    code: Code,
}

impl Metrics {
    /// Registers the counters.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::unregistered();
        let grpc = registry.sub_registry_with_prefix("grpc_server");
        grpc.register("started", "Calls started", metrics.started.clone());
        grpc.register("handled", "Calls that ended", metrics.handled.clone());
        grpc.register(
            "msg_received",
            "Messages received",
            metrics.received.clone(),
        );
        grpc.register("msg_sent", "Messages sent", metrics.sent.clone());
        grpc.register(
            "handling_seconds",
            "How long calls took",
            metrics.handling.clone(),
        );
        metrics
    }

    /// Counters nobody reads.
    pub fn unregistered() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new([0.1, 1.0, 300.0, 3600.0]);
        Self {
            started: Family::default(),
            handled: Family::default(),
            received: Family::default(),
            sent: Family::default(),
            handling: Family::new_with_constructor(histogram),
        }
    }

    /// Counts the start of a call.
    pub(super) fn call(&self, service: &'static str, method: &'static str, stream: bool) -> Call {
        let grpc_type = if stream { "server_stream" } else { "unary" };
        let method = Method {
            grpc_service: service,
            grpc_method: method,
            grpc_type,
        };
        self.started.get_or_create(&method).inc();
        self.received.get_or_create(&method).inc();
        Call {
            handled: self.handled.clone(),
            sent: self.sent.get_or_create(&method).clone(),
            handling: self.handling.get_or_create(&method).clone(),
            method,
            since: Instant::now(),
            code: Code::Ok,
        }
    }
}

impl Call {
    pub(super) fn sent(&self) {
        self.sent.inc();
    }

    /// Passes a result on, remembering how the call ends.
    pub(super) fn note<T>(&mut self, result: Result<T, tonic::Status>) -> Result<T, tonic::Status> {
        result.inspect_err(|status| self.code = status.code())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Method {
            grpc_service,
            grpc_method,
            grpc_type,
        } = self.method.clone();
        let grpc_code = format!("{:?}", self.code);
        self.handled
            .get_or_create(&Handled {
                grpc_service,
                grpc_method,
                grpc_type,
                grpc_code,
            })
            .inc();
        self.handling.observe(self.since.elapsed().as_secs_f64());
    }
}
