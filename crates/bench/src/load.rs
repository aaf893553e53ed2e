//! Load generators: closed loops that go as fast as the chain lets them, and a constant rate for latencies. Each runs on
//! one thread inside the client's namespace and checks every answer.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::sync::Barrier;
use tokio::task::{LocalSet, spawn_local};

mod connect;
mod http1;
mod http2;
mod stream;

pub(crate) use http1::{hold_idle, probe};

use crate::measure::{self, Latencies};

/// Requests per second of the latency part.
pub(crate) const RATE: f64 = 1000.0;

/// What kind of work to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Http1 {
        connections: usize,
    },
    Http2 {
        connections: usize,
        streams: usize,
    },
    /// New connections, this many at a time.
    Connect {
        at_a_time: usize,
    },
    Stream,
}

/// Counters of the workers, read while they run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    done: Cell<u64>,
    stop: Cell<bool>,
    latencies: RefCell<Latencies>,
    failure: RefCell<Option<anyhow::Error>>,
}

impl Tally {
    fn count(&self, amount: u64) {
        self.done.set(self.done.get() + amount);
    }

    fn stopped(&self) -> bool {
        self.stop.get()
    }

    fn fail(&self, error: anyhow::Error) {
        self.stop.set(true);
        self.failure.borrow_mut().get_or_insert(error);
    }
}

/// What a measured stretch gave.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    /// Requests, connections or bytes.
    pub(crate) amount: f64,
    /// CPU seconds of each process asked about.
    pub(crate) cpu: Vec<f64>,
    pub(crate) rss_kb: Vec<u64>,
}

/// Runs `work` flat out: a warm-up, then `seconds` during which amount and CPU are taken.
pub(crate) async fn saturate(
    work: Work,
    target: SocketAddr,
    seconds: f64,
    pids: &[u32],
) -> Result<Measured> {
    let tally = Rc::new(Tally::default());
    LocalSet::new()
        .run_until(async {
            let workers = start(work, target, &tally);
            warm_up(work, &tally, seconds).await;
            let (from, began) = (tally.done.get(), Instant::now());
            let cpu_before: Vec<f64> = pids.iter().map(|pid| measure::cpu_seconds(*pid)).collect();
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            let cpu = pids
                .iter()
                .zip(&cpu_before)
                .map(|(pid, before)| measure::cpu_seconds(*pid) - before)
                .collect();
            let (to, took) = (tally.done.get(), began.elapsed());
            let rss_kb = pids.iter().map(|pid| measure::rss_kb(*pid)).collect();
            tally.stop.set(true);
            for worker in workers {
                let _ended = tokio::time::timeout(Duration::from_secs(5), worker).await;
            }
            if let Some(error) = tally.failure.borrow_mut().take() {
                return Err(error.context(format!("{work:?}")));
            }
            if to == from {
                bail!("{work:?}: nothing came back in {seconds} s");
            }
            Ok(Measured {
                seconds: took.as_secs_f64(),
                amount: (to - from) as f64,
                cpu,
                rss_kb,
            })
        })
        .await
}

/// Waits for a moment, and until every connection has been made and used a few times: a proxy that opens connections
/// slowly is not charged for it here.
async fn warm_up(work: Work, tally: &Tally, seconds: f64) {
    const USES: u64 = 10;
    const LONGEST: Duration = Duration::from_secs(10);
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs_f64((seconds / 4.0).clamp(0.3, 1.0))).await;
    let Work::Http1 { connections } = work else {
        return;
    };
    while tally.done.get() < USES * connections as u64 && began.elapsed() < LONGEST {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn start(work: Work, target: SocketAddr, tally: &Rc<Tally>) -> Vec<tokio::task::JoinHandle<()>> {
    let watch = |outcome: Result<()>, tally: &Tally| {
        if let Err(error) = outcome
            && !tally.stopped()
        {
            tally.fail(error);
        }
    };
    match work {
        Work::Http1 { connections } => (0..connections)
            .map(|_| {
                let tally = Rc::clone(tally);
                spawn_local(async move { watch(http1::closed_loop(target, &tally).await, &tally) })
            })
            .collect(),
        Work::Http2 {
            connections,
            streams,
        } => (0..connections)
            .map(|_| {
                let tally = Rc::clone(tally);
                spawn_local(async move {
                    watch(http2::closed_loop(target, streams, &tally).await, &tally)
                })
            })
            .collect(),
        Work::Connect { at_a_time } => (0..at_a_time)
            .map(|_| {
                let tally = Rc::clone(tally);
                spawn_local(
                    async move { watch(connect::closed_loop(target, &tally).await, &tally) },
                )
            })
            .collect(),
        Work::Stream => {
            let tally = Rc::clone(tally);
            vec![spawn_local(async move {
                watch(stream::pour(target, &tally).await, &tally)
            })]
        }
    }
}

/// Median and 99th percentile, in microseconds, of requests at [`RATE`] over the given connections.
pub(crate) async fn latencies(work: Work, target: SocketAddr, seconds: f64) -> Result<(f64, f64)> {
    let tally = Rc::new(Tally::default());
    LocalSet::new()
        .run_until(async {
            let lanes = match work {
                Work::Http1 { connections } => connections,
                Work::Http2 {
                    connections,
                    streams,
                } => connections * streams,
                Work::Connect { .. } | Work::Stream => bail!("{work:?} has no rate"),
            };
            // Everyone is connected and warm before the clock starts.
            let gate = Rc::new(Barrier::new(lanes));
            let schedule = |lane: usize| Schedule {
                gate: Rc::clone(&gate),
                next: Instant::now(),
                offset: Duration::from_secs_f64(lane as f64 / RATE),
                step: Duration::from_secs_f64(lanes as f64 / RATE),
                length: Duration::from_secs_f64(seconds),
                end: Instant::now(),
            };
            let workers: Vec<_> = match work {
                Work::Http1 { connections } => (0..connections)
                    .map(|lane| {
                        let (tally, schedule) = (Rc::clone(&tally), schedule(lane));
                        spawn_local(async move { http1::at_rate(target, schedule, &tally).await })
                    })
                    .collect(),
                Work::Http2 {
                    connections,
                    streams,
                } => (0..connections)
                    .map(|lane| {
                        let tally = Rc::clone(&tally);
                        let schedules = (0..streams)
                            .map(|stream| schedule(lane * streams + stream))
                            .collect();
                        spawn_local(async move { http2::at_rate(target, schedules, &tally).await })
                    })
                    .collect(),
                Work::Connect { .. } | Work::Stream => Vec::new(),
            };
            for worker in workers {
                worker.await.context("a load worker")??;
            }
            let mut latencies = tally.latencies.borrow_mut();
            let p50 = latencies.quantile(0.5).context("no request was timed")?;
            let p99 = latencies.quantile(0.99).context("no request was timed")?;
            Ok((p50, p99))
        })
        .await
}

/// When one lane sends: `offset` after everybody is ready, and every `step` after that.
#[derive(Debug)]
pub(crate) struct Schedule {
    gate: Rc<Barrier>,
    next: Instant,
    offset: Duration,
    step: Duration,
    length: Duration,
    end: Instant,
}

impl Schedule {
    /// Waits until all lanes are connected, then starts the clock.
    async fn begin(&mut self) {
        self.gate.wait().await;
        let now = Instant::now();
        self.next = now + self.offset;
        self.end = now + self.length;
    }

    /// Waits for the next turn and says since when the request counts as begun: since its turn when the lane was still
    /// busy then, so that a stall is not hidden; otherwise since now, so that the timer's grain is not held against the proxy.
    async fn turn(&mut self) -> Option<Instant> {
        let due = self.next;
        if due >= self.end {
            return None;
        }
        self.next += self.step;
        if Instant::now() >= due {
            return Some(due);
        }
        tokio::time::sleep_until(due.into()).await;
        Some(Instant::now())
    }
}

/// Notes how long a request took.
fn record(since: Instant, tally: &Tally) {
    tally.latencies.borrow_mut().add(since.elapsed());
    tally.count(1);
}
