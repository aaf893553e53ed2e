//! Request, response and latency series of one label set: an endpoint, or an inbound route.

use std::{cell::RefCell, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{Counter, Family, Histogram, Registry};

/// Whether an answer counts as a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// HTTP status; 0 when there was none.
    pub status: u16,
    /// gRPC status, when the answer had one.
    pub grpc: Option<u16>,
    /// Whether it failed.
    pub failure: bool,
    /// Why the stream broke, if it did.
    pub error: &'static str,
}

impl Outcome {
    /// The default classification: 5xx fails; gRPC fails on what points at the server.
    pub fn classify(status: u16, grpc: Option<u16>) -> Self {
        let failure = match grpc {
            Some(code) => matches!(code, 2 | 4 | 7 | 13 | 14 | 15),
            None => status >= 500,
        };
        Self {
            status,
            grpc,
            failure,
            error: "",
        }
    }

    /// Whether a limit of the route ended it.
    pub fn is_timeout(&self) -> bool {
        self.error.ends_with("_TIMEOUT")
    }

    /// The client left before there was an answer: nothing to count a success or a failure by.
    pub const UNANSWERED: Self = Self {
        status: 0,
        grpc: None,
        failure: false,
        error: "CANCEL",
    };

    /// The client left in the middle of the answer, which counts by what came of it.
    pub fn cut_off(self) -> Self {
        Self {
            error: "CANCEL",
            ..self
        }
    }

    /// Whether there was an answer, or the lack of one is the server's fault.
    pub fn is_telling(&self) -> bool {
        self.status != 0 || self.failure
    }

    /// A stream that broke.
    pub fn broken(status: u16, error: &'static str) -> Self {
        Self {
            status,
            grpc: None,
            failure: true,
            error,
        }
    }
}

/// A handful of cells by key; found by looking at each.
type Few<K, C> = SmallVec<[(K, Arc<C>); 2]>;

/// Series of one label set, for one worker.
#[derive(Debug)]
pub struct HttpMetrics {
    registry: Arc<Registry>,
    labels: Arc<str>,
    families: Families,
    requests: Arc<Counter>,
    responses: RefCell<Few<Outcome, Counter>>,
    latencies: RefCell<Few<u16, Histogram>>,
}

/// Which families a set of series belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Families {
    /// Requests.
    pub request: Family,
    /// Responses.
    pub response: Family,
    /// Latencies.
    pub latency: Family,
}

impl Families {
    /// Of endpoints and inbound routes.
    pub const PLAIN: Self = Self {
        request: Family::RequestTotal,
        response: Family::ResponseTotal,
        latency: Family::ResponseLatencyMs,
    };
    /// Of profile routes, each request once.
    pub const ROUTE: Self = Self {
        request: Family::RouteRequestTotal,
        response: Family::RouteResponseTotal,
        latency: Family::RouteResponseLatencyMs,
    };
    /// Of profile routes, each try.
    pub const ACTUAL: Self = Self {
        request: Family::RouteActualRequestTotal,
        response: Family::RouteActualResponseTotal,
        latency: Family::RouteResponseLatencyMs,
    };
}

impl HttpMetrics {
    /// Resolves the series of an endpoint or an inbound route.
    pub fn new(registry: &Arc<Registry>, labels: Arc<str>) -> Self {
        Self::of(Families::PLAIN, registry, labels)
    }

    /// Resolves the series of other families.
    pub fn of(families: Families, registry: &Arc<Registry>, labels: Arc<str>) -> Self {
        Self {
            requests: registry.counter(families.request, &labels),
            families,
            registry: registry.clone(),
            labels,
            responses: RefCell::default(),
            latencies: RefCell::default(),
        }
    }

    /// A request was sent.
    pub fn request(&self) {
        self.requests.inc();
    }

    /// A request is sent once more.
    pub fn resent(&self, why: &str) {
        let labels = format!("{},reason=\"{why}\"", self.labels).into();
        self.registry
            .counter(Family::InboundHttpResends, &labels)
            .inc();
    }

    /// The first body frame, or the end of a response without one, came after `elapsed`.
    pub fn latency(&self, status: u16, elapsed: Duration) {
        let mut latencies = self.latencies.borrow_mut();
        let histogram = match latencies.iter().position(|(s, _)| *s == status) {
            Some(at) => &latencies[at].1,
            None => {
                let labels = format!("{},status_code=\"{status}\"", self.labels).into();
                let cell = self.registry.histogram(self.families.latency, &labels);
                latencies.push((status, cell));
                &latencies[latencies.len() - 1].1
            }
        };
        histogram.observe(elapsed.as_secs_f64() * 1000.0);
    }

    /// The response ended.
    pub fn response(&self, outcome: Outcome) {
        if !outcome.is_telling() {
            return;
        }
        let mut responses = self.responses.borrow_mut();
        let counter = match responses.iter().position(|(o, _)| *o == outcome) {
            Some(at) => &responses[at].1,
            None => {
                let class = if outcome.failure {
                    "failure"
                } else {
                    "success"
                };
                let grpc = outcome.grpc.map(|c| c.to_string()).unwrap_or_default();
                let status = match outcome.status {
                    0 => String::new(),
                    status => status.to_string(),
                };
                let labels = format!(
                    "{},status_code=\"{status}\",classification=\"{class}\",grpc_status=\"{grpc}\",error=\"{}\"",
                    self.labels, outcome.error
                )
                .into();
                let cell = self.registry.counter(self.families.response, &labels);
                responses.push((outcome, cell));
                &responses[responses.len() - 1].1
            }
        };
        counter.inc();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn classification() {
        for (status, grpc, failure) in [
            (200, None, false),
            (404, None, false),
            (500, None, true),
            (503, None, true),
            (200, Some(0), false),
            (200, Some(5), false),
            (200, Some(14), true),
            (200, Some(2), true),
        ] {
            assert_eq!(
                Outcome::classify(status, grpc).failure,
                failure,
                "{status} {grpc:?}"
            );
        }
    }

    #[test]
    fn exposition() {
        let registry = Arc::new(Registry::new(Duration::from_secs(1)));
        let metrics = HttpMetrics::new(&registry, "direction=\"inbound\"".into());
        metrics.request();
        metrics.latency(200, Duration::from_millis(3));
        metrics.response(Outcome::classify(200, None));
        metrics.response(Outcome::classify(200, None));
        let mut text = String::new();
        registry.write(&mut text, Instant::now()).expect("writes");
        let want = r#"response_total{direction="inbound",status_code="200",classification="success",grpc_status="",error=""} 2"#;
        assert!(text.lines().any(|l| l == want), "{text}");
        let want = r#"response_latency_ms_bucket{direction="inbound",status_code="200",le="3"} 1"#;
        assert!(text.lines().any(|l| l == want), "{text}");
    }
}
