//! Steady load: a request every so often, whether or not the last one was answered, and a report
//! of what came of them. A request that starts late is counted from when it should have started.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use linkerd_runtime::drain;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tower::Service;

use crate::http as server;

const PATIENCE: Duration = Duration::from_secs(10);
/// More than any answer of the sample.
const BODY_LIMIT: usize = 1 << 20;
/// Requests that may wait for their answer at once; one more counts as failed.
const IN_FLIGHT: usize = 2_000;
/// Latencies kept between two reports.
const SAMPLES: usize = 1_000_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to ask for
    url: Uri,
    /// Requests a second
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// How long; 0 is until stopped
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Where to tell, on GET /report, what came since the last report
    #[arg(long, default_value = "0.0.0.0:8090")]
    listen: SocketAddr,
}

/// Loads, and prints a last report.
pub(crate) async fn run(args: Args, drain: drain::Watch) -> anyhow::Result<()> {
    let tally = Tally::default();
    let reports = server::serve(args.listen, tally.clone(), drain.clone());
    let load = load(&args, tally.clone(), drain);
    tokio::select! {
        ended = reports => ended?,
        () = load => {}
    }
    #[expect(clippy::print_stdout, reason = "the report is what it prints")]
    {
        println!("{}", tally.take());
    }
    Ok(())
}

async fn load(args: &Args, tally: Tally, mut drain: drain::Watch) {
    let client = Client::new();
    let start = Instant::now();
    let end = (args.seconds > 0).then(|| start + Duration::from_secs(args.seconds));
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut ticks = interval_at(start, Duration::from_secs(1) / args.rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        let due = tokio::select! {
            due = ticks.tick() => due,
            () = drain.signaled() => break,
        };
        if end.is_some_and(|end| due >= end) {
            break;
        }
        let Ok(permit) = Arc::clone(&in_flight).try_acquire_owned() else {
            tally.add(due, Err("too many in flight".to_owned()));
            continue;
        };
        tally.begin(due);
        let (client, url, tally) = (client.clone(), args.url.clone(), tally.clone());
        linkerd_runtime::spawn("request", async move {
            let outcome = match client.get(&url).await {
                Ok(answer) if answer.status < 400 => Ok(()),
                Ok(answer) => Err(answer.failure()),
                Err(error) => Err(format!("{error:#}")),
            };
            tally.add(due, outcome);
            drop(permit);
        });
    }
    // Those under way end, or fail, within their patience.
    let all = u32::try_from(IN_FLIGHT).unwrap_or(u32::MAX);
    let _ = in_flight.acquire_many(all).await;
}

// === the client ===

/// Keeps connections and what a name resolved to, as most clients do.
#[derive(Clone, Debug)]
pub(crate) struct Client(legacy::Client<HttpConnector<Remembering>, Empty<Bytes>>);

/// Asks for the addresses of a name until it has them, and then no more: a service keeps its own.
#[derive(Clone, Debug)]
struct Remembering {
    resolver: GaiResolver,
    known: Arc<Mutex<BTreeMap<String, Vec<SocketAddr>>>>,
}

impl Service<Name> for Remembering {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let Self {
            mut resolver,
            known,
        } = self.clone();
        Box::pin(async move {
            let remembered = known.lock().get(name.as_str()).cloned();
            if let Some(addresses) = remembered {
                return Ok(addresses.into_iter());
            }
            let addresses: Vec<_> = resolver.call(name.clone()).await?.collect();
            known
                .lock()
                .insert(name.as_str().to_owned(), addresses.clone());
            Ok(addresses.into_iter())
        })
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    /// Why a proxy refused, where one did.
    proxy_error: Option<String>,
}

impl Client {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new_with_resolver(Remembering {
            resolver: GaiResolver::new(),
            known: Arc::default(),
        });
        connector.set_nodelay(true);
        Self(
            legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .build(connector),
        )
    }

    pub(crate) async fn get(&self, url: &Uri) -> anyhow::Result<Answer> {
        let answer = async {
            let response = self.0.get(url.clone()).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, BODY_LIMIT).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))?;
            let proxy_error = head.headers.get("l5d-proxy-error");
            anyhow::Ok(Answer {
                status: head.status.as_u16(),
                body: body.to_bytes(),
                proxy_error: proxy_error
                    .map(|text| String::from_utf8_lossy(text.as_bytes()).into()),
            })
        };
        timeout(PATIENCE, answer)
            .await
            .context("no answer in time")?
    }
}

impl Answer {
    fn failure(&self) -> String {
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(200)]);
        let why = self.proxy_error.as_deref().unwrap_or(&text);
        format!("{}: {why}", self.status)
    }
}

// === the report ===

#[derive(Clone, Debug, Default)]
struct Tally(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    failed: BTreeMap<String, u64>,
    micros: Vec<u32>,
    /// When those that wait for an answer were due.
    waiting: BTreeSet<Instant>,
}

/// Kinds of failure that are told apart.
const KINDS: usize = 50;

impl Tally {
    fn begin(&self, due: Instant) {
        self.0.lock().waiting.insert(due);
    }

    fn add(&self, due: Instant, outcome: Result<(), String>) {
        let micros = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
        let mut counts = self.0.lock();
        counts.waiting.remove(&due);
        counts.sent += 1;
        match outcome {
            Ok(()) if counts.micros.len() < SAMPLES => counts.micros.push(micros),
            Ok(()) => {}
            Err(why) => {
                tracing::warn!(why, micros, "Failed");
                let known = counts.failed.len() < KINDS || counts.failed.contains_key(&why);
                let why = if known { why } else { "other".to_owned() };
                *counts.failed.entry(why).or_default() += 1;
            }
        }
    }

    /// What came since the last time.
    fn take(&self) -> Value {
        let mut counts = {
            let mut counts = self.0.lock();
            let waiting = counts.waiting.clone();
            std::mem::replace(
                &mut *counts,
                Counts {
                    waiting,
                    ..Counts::default()
                },
            )
        };
        counts.micros.sort_unstable();
        let at = |share: f64| -> Option<u32> {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "an index below the length"
            )]
            let index = (counts.micros.len() as f64 * share) as usize;
            let last = counts.micros.len().checked_sub(1)?;
            counts.micros.get(index.min(last)).copied()
        };
        json!({
            "sent": counts.sent,
            "failed": counts.failed.values().sum::<u64>(),
            "failures": counts.failed,
            "p50_us": at(0.5),
            "p99_us": at(0.99),
            "max_us": counts.micros.last(),
            "oldest_waiting_ms": counts.waiting.first().map(|due| due.elapsed().as_millis()),
        })
    }
}

impl server::Handler for Tally {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match request.uri().path() {
            "/report" => server::json(StatusCode::OK, &self.take()),
            _ => server::json(StatusCode::NOT_FOUND, &json!({"error": "GET /report"})),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_starts_the_next_one() {
        let tally = Tally::default();
        let now = Instant::now();
        for _ in 0..3 {
            tally.add(now, Ok(()));
        }
        tally.add(now, Err("503: failfast".to_owned()));
        let first = tally.take();
        assert_eq!((&first["sent"], &first["failed"]), (&json!(4), &json!(1)));
        assert_eq!(first["failures"], json!({"503: failfast": 1}));
        assert!(first["p99_us"].is_number());
        let second = tally.take();
        assert_eq!(
            (&second["sent"], &second["p50_us"]),
            (&json!(0), &json!(null))
        );
    }
}
