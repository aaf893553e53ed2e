//! What is measured and in which order: every load for one proxy after the other, so that a slow spell of the machine
//! meets them all, and all of it again each round.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::chain::{Chain, Props};
use crate::load::{self, Work};
use crate::measure;
use crate::origin;
use crate::report::Sample;
use crate::stage::{Service, Stage};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    Linkerd,
    /// An earlier program of ours.
    Before,
    Haproxy,
    Envoy,
    None,
}

impl Proxy {
    pub(crate) const ALL: [Self; 5] = [
        Self::Linkerd,
        Self::Before,
        Self::Haproxy,
        Self::Envoy,
        Self::None,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Linkerd => "linkerd-rs",
            Self::Before => "before",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::None => "none",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Idle,
    Http1One,
    Http1Some,
    Http1Many,
    Http2,
    Tcp,
    Connect,
    /// As `Connect`, with resumption switched off where a proxy can.
    ConnectFull,
}

impl Load {
    pub(crate) const ALL: [Self; 8] = [
        Self::Idle,
        Self::Http1One,
        Self::Http1Some,
        Self::Http1Many,
        Self::Http2,
        Self::Tcp,
        Self::Connect,
        Self::ConnectFull,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Http1One => "h1-c1",
            Self::Http1Some => "h1-c32",
            Self::Http1Many => "h1-c256",
            Self::Http2 => "h2-4x16",
            Self::Tcp => "tcp",
            Self::Connect => "connect",
            Self::ConnectFull => "connect-full",
        }
    }

    pub(crate) fn service(self) -> Service {
        match self {
            Self::Tcp => Service::Sink,
            Self::Connect | Self::ConnectFull => Service::Ping,
            _ => Service::Http,
        }
    }

    /// Whether the proxies carry bytes without looking at them.
    pub(crate) fn opaque(self) -> bool {
        self.service() != Service::Http
    }

    /// Idle proxies have no work; full handshakes are only ours to compare.
    fn applies(self, proxy: Proxy) -> bool {
        match self {
            Self::Idle => proxy != Proxy::None,
            Self::ConnectFull => matches!(proxy, Proxy::Linkerd | Proxy::Before),
            _ => true,
        }
    }

    fn work(self) -> Option<Work> {
        match self {
            Self::Idle => None,
            Self::Http1One => Some(Work::Http1 { connections: 1 }),
            Self::Http1Some => Some(Work::Http1 { connections: 32 }),
            Self::Http1Many => Some(Work::Http1 { connections: 256 }),
            Self::Http2 => Some(Work::Http2 {
                connections: 4,
                streams: 16,
            }),
            Self::Tcp => Some(Work::Stream),
            Self::Connect | Self::ConnectFull => Some(Work::Connect { at_a_time: 4 }),
        }
    }
}

/// Everything asked for on the command line.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) loads: Vec<Load>,
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) programs: Programs,
}

/// Programs that are not the machine's own; those that are not given are not measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Programs {
    /// The proxy under test
    #[arg(long)]
    pub(crate) linkerd: Option<PathBuf>,
    /// An earlier build of it, to compare with
    #[arg(long)]
    pub(crate) before: Option<PathBuf>,
    /// The Envoy to compare with
    #[arg(long)]
    pub(crate) envoy: Option<PathBuf>,
}

impl Programs {
    pub(crate) fn has(&self, proxy: Proxy) -> bool {
        match proxy {
            Proxy::Linkerd => self.linkerd.is_some(),
            Proxy::Before => self.before.is_some(),
            Proxy::Envoy => self.envoy.is_some(),
            Proxy::Haproxy | Proxy::None => true,
        }
    }
}

pub(crate) fn run(order: &Order) -> Result<Vec<Sample>> {
    let stage = Stage::new()?;
    origin::start(&stage.server)?;
    let props = Props::new(stage.dir(), order.programs.clone())?;
    let mut samples = Vec::new();
    for round in 1..=order.rounds {
        for load in &order.loads {
            for proxy in order.proxies.iter().filter(|proxy| load.applies(**proxy)) {
                let began = Instant::now();
                let sample =
                    measure(&stage, &props, *proxy, *load, order.seconds).with_context(|| {
                        format!(
                            "{} under {}\n{}",
                            proxy.name(),
                            load.name(),
                            Chain::logs(&stage, *proxy)
                        )
                    })?;
                note(&format!(
                    "round {round}/{}: {} ({:.0} s)",
                    order.rounds,
                    sample.line(),
                    began.elapsed().as_secs_f64()
                ));
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

fn measure(stage: &Stage, props: &Props, proxy: Proxy, load: Load, seconds: f64) -> Result<Sample> {
    let chain = Chain::start(stage, props, proxy, load)?;
    let pids = chain.pids();
    let target = origin::address(load.service(), proxy == Proxy::None);
    let mut sample = Sample::new(proxy, load);
    let Some(work) = load.work() else {
        return idle(stage, &pids, sample);
    };
    stage.client.block_on(async || {
        if !load.opaque() {
            ready(target).await?;
        }
        let measured = load::saturate(work, target, seconds, &pids).await?;
        sample.take(&measured, work);
        if !load.opaque() {
            let patience = Duration::from_secs_f64(seconds + 30.0);
            let timed = load::latencies(work, target, seconds);
            let (p50, p99) = tokio::time::timeout(patience, timed)
                .await
                .context("at a constant rate")??;
            (sample.p50_us, sample.p99_us) = (Some(p50), Some(p99));
        }
        anyhow::Ok(())
    })?;
    Ok(sample)
}

/// Memory of a pair that has nothing to do, and what each connection adds that has nothing to do.
fn idle(stage: &Stage, pids: &[u32], mut sample: Sample) -> Result<Sample> {
    const CONNECTIONS: usize = 256;
    let target = origin::address(Service::Http, false);
    stage.client.block_on(async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before: Vec<u64> = pids.iter().map(|pid| measure::rss_kb(*pid)).collect();
        sample.rss_kb = before.iter().copied().max();
        ready(target).await?;
        let open = load::hold_idle(target, CONNECTIONS).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let grown = pids
            .iter()
            .zip(&before)
            .map(|(pid, before)| measure::rss_kb(*pid).saturating_sub(*before));
        sample.conn_kb = grown
            .max()
            .map(|kilobytes| kilobytes as f64 / CONNECTIONS as f64);
        drop(open);
        anyhow::Ok(())
    })?;
    Ok(sample)
}

/// Waits until a request comes through.
async fn ready(target: std::net::SocketAddr) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let tried = tokio::time::timeout(Duration::from_secs(2), load::probe(target)).await;
        match tried {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if Instant::now() >= deadline => {
                return Err(error.context("the chain never served"));
            }
            Err(_) if Instant::now() >= deadline => anyhow::bail!("the chain never answered"),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "progress for a person; results go to standard output"
)]
pub(crate) fn note(line: &str) {
    eprintln!("{line}");
}
