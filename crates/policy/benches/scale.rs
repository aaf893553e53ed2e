//! How much policy costs at scale: synthetic objects straight into the index, real gRPC streams
//! from another process (half of them inbound ports, half outbound targets), a change every so
//! often.
//!
//! `cargo bench -p linkerd-policy --bench scale -- --json` prints one object: `rss_mb` and `cpu_s`
//! of the serving process, `event_p50_ms` and `event_p99_ms` from the change of an object to its
//! arrival at a client, `bytes_per_subscriber` for streams beyond the first ones.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use anyhow::{Context, Result, ensure};
use clap::Parser;
use linkerd_api::proto::{
    inbound::{PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
    net::TcpAddress,
    outbound::{
        TrafficSpec, outbound_policies_client::OutboundPoliciesClient, traffic_spec::Target,
    },
};
use linkerd_k8s::{Index as _, Pod, Service, policy as k8s};
use linkerd_policy::{
    Cluster, Index,
    grpc::{Metrics, Policies},
    inbound::DefaultPolicy,
};
use linkerd_runtime::drain;
use parking_lot::Mutex;
use serde_json::json;
use std::{
    net::SocketAddr,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{mpsc, oneshot},
    time::timeout,
};
use tonic::{Streaming, transport::Channel};

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
    let index = Arc::new(Mutex::new(Index::new(cluster())));
    fill(args, &mut index.lock());
    let filled_mb = rss_bytes()? / 1e6;

    let (_signal, watch) = drain::channel();
    let policies = Policies::new(index.clone(), watch, Metrics::unregistered());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let router = tonic::transport::Server::builder()
        .add_service(policies.inbound())
        .add_service(policies.outbound());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    linkerd_runtime::spawn("server", async move {
        router.serve_with_incoming(incoming).await
    });

    let mut peer = Peer::start(args, &addr.to_string())?;
    peer.open(args.streams).await?;
    let cpu_before = cpu_seconds()?;
    let mut latencies = Vec::new();
    for event in 0..args.events {
        let at = Instant::now();
        latencies.extend(one_event(args, &index, &mut peer, event).await?);
        tokio::time::sleep(Duration::from_millis(args.every_ms).saturating_sub(at.elapsed())).await;
    }
    let cpu_s = cpu_seconds()? - cpu_before;
    let rss = rss_bytes()?;
    peer.open(args.more).await?;
    let more = rss_bytes()?;
    latencies.sort_by(f64::total_cmp);
    ensure!(!latencies.is_empty(), "no event arrived");
    let quantile = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    let added = u32::try_from(args.more).context("fewer streams")?;
    let result = json!({
        "rss_mb": round(rss / 1e6),
        "cpu_s": round(cpu_s),
        "event_p50_ms": round(quantile(50)),
        "event_p99_ms": round(quantile(99)),
        "bytes_per_subscriber": ((more - rss) / f64::from(added)).round(),
        "rss_index_mb": round(filled_mb),
        "services": args.services, "pods": args.pods, "streams": args.streams,
        "connections": args.connections, "events": args.events,
    });
    if args.json {
        println!("{result}");
    } else {
        println!("{result:#}");
    }
    peer.stop().await
}

fn cluster() -> Cluster {
    Cluster {
        networks: vec!["10.0.0.0/8".parse().expect("a network")],
        control_plane_namespace: "linkerd".to_owned(),
        identity_domain: "cluster.local".to_owned(),
        dns_domain: "cluster.local".to_owned(),
        default_policy: DefaultPolicy::AllUnauthenticated,
        default_opaque_ports: "25,3306".parse().expect("ports"),
        probe_networks: Vec::new(),
        global_egress_namespace: "linkerd-egress".to_owned(),
        allow_l5d_request_headers: false,
    }
}

/// Puts a cluster's worth of objects into the index: each Service has pods, a Server, an
/// authorization and a route.
fn fill(args: &Args, index: &mut Index) {
    for service in 0..args.services {
        index.apply(service_object(service, 0));
        index.apply(server_object(service, 0));
        let meta = |name: &str| json!({"namespace": namespace(service), "name": name});
        index.apply(object::<k8s::AuthorizationPolicy>(json!({
            "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy",
            "metadata": meta(&format!("web-{service}")),
            "spec": {
                "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": format!("web-{service}")},
                "requiredAuthenticationRefs": [{"kind": "ServiceAccount", "name": format!("web-{service}")}],
            },
        })));
        index.apply(object::<k8s::HttpRoute>(json!({
            "metadata": meta(&format!("web-{service}")),
            "spec": {
                "parentRefs": [{"group": "", "kind": "Service", "name": format!("web-{service}"), "port": 80}],
                "rules": [{"backendRefs": [{"name": format!("web-{service}"), "port": 80}]}],
            },
        })));
        for pod in 0..args.pods / args.services {
            index.apply(object::<Pod>(json!({
                "metadata": {
                    "namespace": namespace(service), "name": format!("web-{service}-{pod}"),
                    "labels": {"app": format!("web-{service}"), "linkerd.io/control-plane-ns": "linkerd"},
                },
                "spec": {"containers": [
                    {"name": "app", "ports": [{"containerPort": 8080, "name": "http"}]},
                    {"name": "linkerd-proxy", "ports": [{"containerPort": 4143, "name": "linkerd-proxy"}]},
                ]},
            })));
        }
    }
}

fn namespace(service: usize) -> String {
    format!("team-{}", service % 50)
}

fn service_ip(service: usize) -> String {
    format!("10.96.{}.{}", service / 250, service % 250 + 1)
}

/// A Service whose time limit differs with each event.
fn service_object(service: usize, event: usize) -> Arc<Service> {
    object(json!({
        "metadata": {
            "namespace": namespace(service), "name": format!("web-{service}"),
            "annotations": {"timeout.linkerd.io/request": format!("{}s", event + 1)},
        },
        "spec": {"clusterIP": service_ip(service), "ports": [{"port": 80}]},
    }))
}

/// A Server whose protocol differs with each event.
fn server_object(service: usize, event: usize) -> Arc<k8s::Server> {
    object(json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"namespace": namespace(service), "name": format!("web-{service}")},
        "spec": {
            "podSelector": {"matchLabels": {"app": format!("web-{service}")}}, "port": "http",
            "proxyProtocol": if event == 0 { "HTTP/1" } else { "HTTP/2" },
        },
    }))
}

/// Streams take turns: one round of inbound ports, one of outbound targets.
fn is_inbound(args: &Args, stream: usize) -> bool {
    (stream / args.services).is_multiple_of(2)
}

/// Changes an object and waits for all whose policy it changes to hear of it.
async fn one_event(
    args: &Args,
    index: &Mutex<Index>,
    peer: &mut Peer,
    event: usize,
) -> Result<Vec<f64>> {
    let service = (event * 37) % args.services;
    let inbound = event.is_multiple_of(2);
    let concerned =
        |stream: &usize| stream % args.services == service && is_inbound(args, *stream) == inbound;
    let mut waiting: Vec<usize> = (0..args.streams).filter(concerned).collect();
    let (server, target) = (
        server_object(service, event + 1),
        service_object(service, event + 1),
    );
    let sent = now();
    match inbound {
        true => index.lock().apply(server),
        false => index.lock().apply(target),
    }
    let mut latencies = Vec::new();
    while !waiting.is_empty() {
        let line = peer.line().await?;
        let mut words = line.split(' ');
        let (Some("update"), Some(stream), Some(at)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let stream: usize = stream.parse()?;
        if let Some(place) = waiting.iter().position(|waiting| *waiting == stream) {
            waiting.swap_remove(place);
            latencies.push((at.parse::<f64>()? - sent) * 1e3);
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

    /// Opens that many streams and waits until each has its first policy.
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
    let mut channels = Vec::new();
    for _ in 0..args.connections {
        channels.push(
            Channel::from_shared(format!("http://{addr}"))?
                .connect()
                .await?,
        );
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
                    let (ready, is_ready) = oneshot::channel();
                    first.push(is_ready);
                    let channel = channels[stream % channels.len()].clone();
                    let inbound = is_inbound(args, stream);
                    let watch = watch(channel, stream % args.services, inbound, stream, report.clone(), ready);
                    linkerd_runtime::spawn("stream", watch);
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

async fn watch(
    channel: Channel,
    service: usize,
    inbound: bool,
    stream: usize,
    report: mpsc::Sender<String>,
    ready: oneshot::Sender<()>,
) -> Result<()> {
    if inbound {
        let workload = format!(
            r#"{{"ns":"{}","pod":"web-{service}-0"}}"#,
            namespace(service)
        );
        let mut client = InboundServerPoliciesClient::new(channel);
        let updates = client
            .watch_port(PortSpec {
                workload,
                port: 8080,
            })
            .await?
            .into_inner();
        return read(updates, stream, report, ready).await;
    }
    let addr: SocketAddr = format!("{}:80", service_ip(service)).parse()?;
    let spec = TrafficSpec {
        source_workload: format!(r#"{{"ns":"{}","pod":"client"}}"#, namespace(stream)),
        target: Some(Target::Addr(TcpAddress::from(addr))),
    };
    let mut client = OutboundPoliciesClient::new(channel);
    let updates = client.watch(spec).await?.into_inner();
    read(updates, stream, report, ready).await
}

async fn read<T>(
    mut updates: Streaming<T>,
    stream: usize,
    report: mpsc::Sender<String>,
    ready: oneshot::Sender<()>,
) -> Result<()> {
    let mut ready = Some(ready);
    while updates.message().await?.is_some() {
        let at = now();
        match ready.take() {
            Some(ready) => drop(ready.send(())),
            None => report.send(format!("update {stream} {at:.9}")).await?,
        }
    }
    Ok(())
}

// === Measuring ===

/// Seconds of the wall clock, which both processes share.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

fn rss_bytes() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("VmRSS")?;
    let kb = line.split_whitespace().next().context("a number")?;
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
