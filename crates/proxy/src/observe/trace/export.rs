//! Sends finished spans to the collector in batches. What it does not take is tried again with
//! backoff; meanwhile new spans wait, and then are dropped.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::mpsc, time::Instant};
use tonic::codegen::http::uri::PathAndQuery;

use super::otlp::{
    ExportRequest, ExportResponse, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span,
};
use crate::{
    config::Backoff,
    control::Channel,
    metrics::{Counter, Family, Registry},
};

/// Spans sent at once.
const BATCH: usize = 1000;
/// How long a span waits for others.
const WAIT: Duration = Duration::from_secs(10);
/// Tries of one batch.
const TRIES: u32 = 5;
/// How long a collector may take.
const ANSWER: Duration = Duration::from_secs(10);

static EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// What tells this process from others: the settings, and what the process knows itself.
pub fn resource(settings: &[(String, String)]) -> Resource {
    let mut attributes = vec![
        KeyValue::number("process.pid", i64::from(std::process::id())),
        KeyValue::number(
            "process.start_timestamp",
            i64::try_from(super::nanos(SystemTime::now())).unwrap_or(i64::MAX),
        ),
    ];
    for (name, value) in settings {
        attributes.retain(|a| a.key != *name);
        attributes.push(KeyValue::text(name, value));
    }
    Resource { attributes }
}

/// What was exported.
#[derive(Debug)]
pub struct Exported {
    streams: Arc<Counter>,
    requests: Arc<Counter>,
    spans: Arc<Counter>,
}

impl Exported {
    /// Resolves the series.
    pub fn new(registry: &Registry) -> Self {
        let counter = |family| registry.counter(family, &"".into());
        Self {
            streams: counter(Family::SpanExportStreams),
            requests: counter(Family::SpanExportRequests),
            spans: counter(Family::SpanExports),
        }
    }
}

/// Exports until every tracer is gone.
pub async fn run(
    mut spans: mpsc::Receiver<Span>,
    channel: Channel,
    resource: Resource,
    backoff: Backoff,
    exported: Exported,
) {
    loop {
        let batch = batch(&mut spans).await;
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let request = ExportRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(Scope {
                        name: "linkerd-proxy".to_owned(),
                        version: linkerd_runtime::version::VERSION.to_owned(),
                    }),
                    spans: batch,
                }],
            }],
        };
        for attempt in 0..TRIES {
            // A call carries one message.
            exported.streams.inc();
            exported.requests.inc();
            let sent = tokio::time::timeout(ANSWER, export(&channel, request.clone())).await;
            match sent {
                Ok(Ok(())) => {
                    exported.spans.add(count);
                    break;
                }
                Ok(Err(error)) => tracing::debug!(%error, "Spans could not be exported"),
                Err(_) => tracing::debug!("The trace collector does not answer"),
            }
            tokio::time::sleep(backoff.random_delay(attempt)).await;
        }
    }
}

/// Waits for a first span, then for others until the batch is full or the first has waited enough.
async fn batch(spans: &mut mpsc::Receiver<Span>) -> Vec<Span> {
    let mut batch = Vec::new();
    batch.extend(spans.recv().await);
    let until = Instant::now() + WAIT;
    while !batch.is_empty() && batch.len() < BATCH {
        let room = BATCH - batch.len();
        match tokio::time::timeout_at(until, spans.recv_many(&mut batch, room)).await {
            Ok(n) if n > 0 => {}
            _ => break,
        }
    }
    batch
}

async fn export(channel: &Channel, request: ExportRequest) -> Result<(), tonic::Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    let codec = tonic_prost::ProstCodec::<ExportRequest, ExportResponse>::default();
    let path = PathAndQuery::from_static(EXPORT);
    client
        .unary(tonic::Request::new(request), path, codec)
        .await
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn batches_fill_or_wait() {
        let (sender, mut spans) = mpsc::channel(2 * BATCH);
        let start = Instant::now();
        for _ in 0..=BATCH {
            sender.try_send(Span::default()).expect("room");
        }
        assert_eq!(batch(&mut spans).await.len(), BATCH);
        assert_eq!(
            start.elapsed(),
            Duration::ZERO,
            "a full batch does not wait"
        );
        assert_eq!(batch(&mut spans).await.len(), 1);
        assert_eq!(start.elapsed(), WAIT);
        drop(sender);
        assert!(batch(&mut spans).await.is_empty(), "the end");
    }

    #[test]
    fn settings_win() {
        let settings = [
            ("service.name".to_owned(), "web".to_owned()),
            ("process.pid".to_owned(), "7".to_owned()),
        ];
        let resource = resource(&settings);
        let found = resource.by_name();
        assert_eq!(found["service.name"], "web");
        assert_eq!(found["process.pid"], "7");
        assert!(found.contains_key("process.start_timestamp"));
    }
}
