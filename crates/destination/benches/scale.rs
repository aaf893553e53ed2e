//! How much discovery costs at scale: synthetic objects straight into the index, real gRPC streams
//! from another process, a change every so often.
//!
//! `cargo bench -p linkerd-destination --bench scale -- --json` prints one object: `rss_mb` and
//! `cpu_s` of the serving process, `event_p50_ms` and `event_p99_ms` from the change of an object
//! to its arrival at a client, `bytes_per_subscriber` for streams beyond the first ones.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::{
    collections::HashMap,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use linkerd_api::proto::destination::{
    GetDestination, destination_client::DestinationClient, update::Update as Kind,
};
use linkerd_destination::{CallMetrics, Clusters, Config, Discovery, Metrics, Server, serve};
use linkerd_k8s::{EndpointSlice, Index as _, Node, Pod, ReplicaSet, Service};
use linkerd_runtime::{drain, ready::Readiness};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
    time::timeout,
};

#[derive(Clone, Debug, Parser)]
struct Args {
    #[arg(long, default_value_t = 1000)]
    services: usize,
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    #[arg(long, default_value_t = 2000)]
    streams: usize,
    /// Streams that come on top, to see what one costs
    #[arg(long, default_value_t = 1000)]
    more: usize,
    /// Connections the streams share, as those of a proxy do
    #[arg(long, default_value_t = 100)]
    connections: usize,
    #[arg(long, default_value_t = 30)]
    events: usize,
    #[arg(long, default_value_t = 1000)]
    every_ms: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Act as the client of a server at this address
    #[arg(long, hide = true)]
    client: Option<String>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> Result<()> {
    let args = Args::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    match &args.client {
        Some(addr) => runtime.block_on(client(&args, addr)),
        None => runtime.block_on(server(&args)),
    }
}

// === The serving side ===

async fn server(args: &Args) -> Result<()> {
    let config = Config {
        transport_header: true,
        ..Config::default()
    };
    let discovery = Discovery::new(config, Metrics::default());
    let empty_mb = rss_bytes()? / 1e6;
    fill(args, &discovery);
    let filled_mb = rss_bytes()? / 1e6;

    let (signal, watch) = drain::channel();
    let server = Server::new(
        discovery.clone(),
        Clusters::default(),
        Readiness::new(),
        watch.clone(),
        CallMetrics::unregistered(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let serving = linkerd_runtime::spawn("server", serve(server, listener, watch));

    let mut peer = Peer::start(args, &addr.to_string())?;
    peer.open(args.streams).await?;
    let cpu_before = cpu_seconds()?;
    let mut latencies = Vec::new();
    for event in 0..args.events {
        let at = Instant::now();
        latencies.extend(one_event(args, &discovery, &mut peer, event).await?);
        tokio::time::sleep(Duration::from_millis(args.every_ms).saturating_sub(at.elapsed())).await;
    }
    let cpu_s = cpu_seconds()? - cpu_before;
    let rss = rss_bytes()?;
    peer.open(args.more).await?;
    let more = rss_bytes()?;
    latencies.sort_by(f64::total_cmp);
    ensure!(!latencies.is_empty(), "no event arrived");
    let quantile = |q: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        let at = (q * (latencies.len() - 1) as f64).round() as usize;
        latencies[at]
    };
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let bytes_per_subscriber = ((more - rss) / args.more as f64).round();
    let result = json!({
        "rss_mb": round(rss / 1e6),
        "cpu_s": round(cpu_s),
        "event_p50_ms": round(quantile(0.5)),
        "event_p99_ms": round(quantile(0.99)),
        "bytes_per_subscriber": bytes_per_subscriber,
        "rss_empty_mb": round(empty_mb),
        "rss_index_mb": round(filled_mb),
        "services": args.services, "pods": args.pods, "streams": args.streams,
        "connections": args.connections, "events": args.events,
    });
    if args.json {
        println!("{result}");
    } else {
        println!("{result:#}");
    }
    peer.stop().await?;
    signal.drain().await;
    serving.await??;
    Ok(())
}

/// Puts a cluster's worth of objects into the index.
fn fill(args: &Args, discovery: &Discovery) {
    let mut index = discovery.index().lock();
    for node in 0..50 {
        index.apply(object::<Node>(
            json!({"metadata": {"name": format!("node-{node}"),
            "labels": {"topology.kubernetes.io/zone": format!("zone-{}", node % 3)}}}),
        ));
    }
    let per_service = args.pods / args.services;
    for service in 0..args.services {
        index.apply(object::<ReplicaSet>(json!({"metadata": {
            "namespace": namespace(service), "name": format!("web-{service}-5d4f8c7b9"),
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("web-{service}"), "uid": "x"}],
        }})));
        index.apply(object::<Service>(json!({
            "metadata": {"namespace": namespace(service), "name": format!("web-{service}")},
            "spec": {
                "clusterIP": format!("10.96.{}.{}", service / 250, service % 250 + 1),
                "selector": {"app": format!("web-{service}")},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            },
        })));
        for pod in 0..per_service {
            index.apply(object::<Pod>(pod_json(service, pod, 0)));
        }
        index.apply(object::<EndpointSlice>(slice_json(service, per_service, 0)));
    }
}

fn namespace(service: usize) -> String {
    format!("team-{}", service % 50)
}

/// Address of a pod; the first pod of a Service has another one with each event.
fn ip(service: usize, pod: usize, event: usize) -> String {
    if pod == 0 && event > 0 {
        return format!("10.200.{}.{}", event / 250, event % 250 + 1);
    }
    let n = service * 40 + pod;
    format!("10.{}.{}.{}", 1 + n / 62_500, n / 250 % 250, n % 250 + 1)
}

fn pod_json(service: usize, pod: usize, event: usize) -> serde_json::Value {
    let node = (service + pod) % 50;
    json!({
        "metadata": {
            "namespace": namespace(service), "name": format!("web-{service}-5d4f8c7b9-{pod:05}"),
            "labels": {
                "app": format!("web-{service}"), "pod-template-hash": "5d4f8c7b9",
                "linkerd.io/control-plane-ns": "linkerd", "linkerd.io/workload-ns": namespace(service),
                "linkerd.io/proxy-deployment": format!("web-{service}"),
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("web-{service}-5d4f8c7b9"), "uid": "x"}],
        },
        "spec": {
            "nodeName": format!("node-{node}"), "serviceAccountName": format!("web-{service}"),
            "containers": [
                {"name": "app", "ports": [{"containerPort": 8080, "name": "http"}]},
                {"name": "linkerd-proxy",
                 "ports": [{"containerPort": 4143, "name": "linkerd-proxy"}, {"containerPort": 4191, "name": "linkerd-admin"}],
                 "env": [{"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
                         {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
                         {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "127.0.0.1:4190"}]},
            ],
        },
        "status": {"phase": "Running", "podIP": ip(service, pod, event), "hostIP": format!("192.168.0.{node}")},
    })
}

fn slice_json(service: usize, pods: usize, event: usize) -> serde_json::Value {
    let endpoints: Vec<_> = (0..pods)
        .map(|pod| {
            json!({
                "addresses": [ip(service, pod, event)], "conditions": {"ready": true},
                "zone": format!("zone-{}", (service + pod) % 50 % 3),
                "targetRef": {"kind": "Pod", "namespace": namespace(service), "name": format!("web-{service}-5d4f8c7b9-{pod:05}")},
            })
        })
        .collect();
    json!({
        "metadata": {"namespace": namespace(service), "name": format!("web-{service}-abcde"),
            "labels": {"kubernetes.io/service-name": format!("web-{service}")}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints,
    })
}

/// Replaces a pod and waits for all who watch its Service to hear of it.
async fn one_event(
    args: &Args,
    discovery: &Discovery,
    peer: &mut Peer,
    event: usize,
) -> Result<Vec<f64>> {
    let service = (event * 37) % args.services;
    let pods = args.pods / args.services;
    let pod = object::<Pod>(pod_json(service, 0, event + 1));
    let slice = object::<EndpointSlice>(slice_json(service, pods, event + 1));
    let expected = (0..args.streams)
        .filter(|stream| stream % args.services == service)
        .count();
    let sent = now();
    {
        let mut index = discovery.index().lock();
        index.apply(pod);
        index.apply(slice);
    }
    let addr = ip(service, 0, event + 1);
    let mut latencies = Vec::new();
    while latencies.len() < expected {
        let line = peer.line().await?;
        let mut words = line.split(' ');
        if words.next() == Some("add") && words.next() == Some(&addr) {
            let at: f64 = words.next().context("a time")?.parse()?;
            latencies.push((at - sent) * 1e3);
        }
    }
    Ok(latencies)
}

// === The client side, in a process of its own ===

struct Peer {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(args: &Args, addr: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--client", addr])
            .args(["--services", &args.services.to_string()])
            .args(["--connections", &args.connections.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take().context("a pipe")?;
        let lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        Ok(Self {
            child,
            stdin,
            lines,
        })
    }

    async fn line(&mut self) -> Result<String> {
        let line = timeout(PATIENCE, self.lines.next_line())
            .await
            .context("the client is silent")?;
        line?.context("the client ended")
    }

    /// Opens that many streams and waits until each has its first set.
    async fn open(&mut self, streams: usize) -> Result<()> {
        self.stdin
            .write_all(format!("{streams}\n").as_bytes())
            .await?;
        while self.line().await? != "open" {}
        Ok(())
    }

    async fn stop(mut self) -> Result<()> {
        drop(self.stdin);
        timeout(PATIENCE, self.child.wait()).await??;
        Ok(())
    }
}

async fn client(args: &Args, addr: &str) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push(DestinationClient::connect(format!("http://{addr}")).await?);
    }
    let (report, mut reports) = mpsc::channel::<String>(100_000);
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    let mut opened = 0;
    loop {
        tokio::select! {
            line = commands.next_line() => {
                let Some(line) = line? else { return Ok(()) };
                let count: usize = line.trim().parse()?;
                let mut first = Vec::new();
                for stream in opened..opened + count {
                    let mut client = clients[stream % clients.len()].clone();
                    let service = stream % args.services;
                    let request = GetDestination {
                        path: format!("web-{service}.{}.svc.cluster.local:80", namespace(service)),
                        context_token: format!(r#"{{"ns":"{}","nodeName":"node-{}"}}"#, namespace(stream), stream % 50),
                        ..GetDestination::default()
                    };
                    let report = report.clone();
                    let (ready, is_ready) = tokio::sync::oneshot::channel();
                    first.push(is_ready);
                    linkerd_runtime::spawn("stream", async move {
                        let mut ready = Some(ready);
                        let Ok(stream) = client.get(request).await else { return };
                        let mut stream = stream.into_inner();
                        while let Ok(Some(update)) = stream.message().await {
                            let at = now();
                            if let Some(ready) = ready.take() {
                                let _ = ready.send(());
                                continue;
                            }
                            if let Some(Kind::Add(set)) = update.update {
                                for addr in set.addrs.into_iter().filter_map(|addr| addr.addr) {
                                    if let Ok(addr) = std::net::SocketAddr::try_from(addr) {
                                        let _ = report.send(format!("add {} {at:.9}", addr.ip())).await;
                                    }
                                }
                            }
                        }
                    });
                }
                opened += count;
                for ready in first {
                    timeout(PATIENCE, ready).await??;
                }
                println!("open");
            }
            Some(line) = reports.recv() => println!("{line}"),
        }
    }
}

// === Measuring ===

/// Seconds of the wall clock, which both processes share.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

fn rss_bytes() -> Result<f64> {
    let status: HashMap<String, String> = std::fs::read_to_string("/proc/self/status")?
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect();
    let kb = status
        .get("VmRSS")
        .and_then(|value| value.split(' ').next())
        .context("VmRSS")?;
    Ok(kb.parse::<f64>()? * 1024.0)
}

fn cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .context("stat")?
        .1
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn object<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> Arc<T> {
    Arc::new(serde_json::from_value(json).expect("shape of the kind"))
}
