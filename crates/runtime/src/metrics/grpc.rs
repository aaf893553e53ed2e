//! Counts calls of a gRPC server, under the names gRPC servers commonly use.

use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Streams live for minutes to an hour.
const HANDLING_BUCKETS: [f64; 4] = [0.1, 1.0, 300.0, 3600.0];

/// Names of the status codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
const CANCELLED: i32 = 1;

/// Calls of all methods of a server.
#[derive(Clone, Debug)]
pub struct Calls {
    started: Family<Method, Counter>,
    handled: Family<Handled, Counter>,
    received: Family<Method, Counter>,
    sent: Family<Method, Counter>,
    handling: Family<Method, Histogram>,
}

/// A method, as labels name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Method {
    grpc_method: &'static str,
    grpc_service: &'static str,
    grpc_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Handled {
    grpc_code: &'static str,
    grpc_method: &'static str,
    grpc_service: &'static str,
    grpc_type: &'static str,
}

/// One call. Counts its end when dropped, so that a client that hangs up counts too.
#[derive(Debug)]
pub struct Call {
    handled: Family<Handled, Counter>,
    handling: Histogram,
    sent: Counter,
    method: &'static Method,
    started: Instant,
    code: i32,
}

// === impl Method ===

impl Method {
    pub const fn unary(grpc_service: &'static str, grpc_method: &'static str) -> Self {
        Self {
            grpc_method,
            grpc_service,
            grpc_type: "unary",
        }
    }

    pub const fn server_stream(grpc_service: &'static str, grpc_method: &'static str) -> Self {
        Self {
            grpc_method,
            grpc_service,
            grpc_type: "server_stream",
        }
    }
}

// === impl Calls ===

impl Calls {
    pub fn register(registry: &mut Registry) -> Self {
        let calls = Self::unregistered();
        let grpc = registry.sub_registry_with_prefix("grpc_server");
        grpc.register("started", "Calls started", calls.started.clone());
        grpc.register("handled", "Calls ended", calls.handled.clone());
        grpc.register("msg_received", "Messages received", calls.received.clone());
        grpc.register("msg_sent", "Messages sent", calls.sent.clone());
        grpc.register(
            "handling_seconds",
            "Time until a call ended",
            calls.handling.clone(),
        );
        calls
    }

    /// Counters nobody scrapes, for tests.
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

    /// Counts the start of a call and its one request.
    pub fn start(&self, method: &'static Method) -> Call {
        self.started.get_or_create(method).inc();
        self.received.get_or_create(method).inc();
        Call {
            handled: self.handled.clone(),
            handling: self.handling.get_or_create(method).clone(),
            sent: self.sent.get_or_create(method).clone(),
            method,
            started: Instant::now(),
            code: CANCELLED,
        }
    }
}

// === impl Call ===

impl Call {
    /// A message was sent.
    pub fn sent(&self) {
        self.sent.inc();
    }

    /// How the call ends. One that never says so was hung up by its client.
    pub fn end(&mut self, code: i32) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Method {
            grpc_method,
            grpc_service,
            grpc_type,
        } = *self.method;
        let code = usize::try_from(self.code).ok();
        let handled = Handled {
            grpc_code: code.and_then(|code| CODES.get(code)).unwrap_or(&"Unknown"),
            grpc_method,
            grpc_service,
            grpc_type,
        };
        self.handled.get_or_create(&handled).inc();
        self.handling.observe(self.started.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GET: Method = Method::server_stream("pkg.Service", "Get");

    #[test]
    fn calls_are_counted_by_how_they_end() {
        let mut registry = Registry::default();
        let calls = Calls::register(&mut registry);
        for code in [Some(0), Some(5), Some(99), None] {
            let mut call = calls.start(&GET);
            call.sent();
            if let Some(code) = code {
                call.end(code);
            }
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        let labels = r#"grpc_method="Get",grpc_service="pkg.Service",grpc_type="server_stream""#;
        for line in [
            format!("grpc_server_started_total{{{labels}}} 4"),
            format!("grpc_server_msg_sent_total{{{labels}}} 4"),
            format!("grpc_server_handled_total{{grpc_code=\"OK\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"NotFound\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"Unknown\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{labels}}} 1"),
            format!("grpc_server_handling_seconds_count{{{labels}}} 4"),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} not in\n{text}");
        }
    }
}
