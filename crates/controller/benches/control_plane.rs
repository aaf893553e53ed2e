//! What the control plane costs as it is deployed: `linkerd-controller destination` as a process
//! of its own, an API server with a cluster's worth of objects, real gRPC streams, and a change
//! every so often.
//!
//! `--json` prints one object: `rss_mb` and `cpu_s` of the process, `event_p50_ms` and
//! `event_p99_ms` from the API server's event to its arrival at a client, `bytes_per_subscriber`
//! for streams beyond the first ones.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use linkerd_api::proto::{
    destination::{GetDestination, destination_client::DestinationClient, update::Update},
    inbound::{PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
    net::TcpAddress,
    outbound::{
        TrafficSpec, outbound_policies_client::OutboundPoliciesClient, traffic_spec::Target,
    },
};
use linkerd_testkit::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};
use tonic::{Streaming, transport::Channel};

#[path = "../tests/process_controller/running.rs"]
mod running;

use running::Running;

#[derive(Clone, Debug, Parser)]
struct Args {
    #[arg(long, default_value_t = 1000)]
    services: usize,
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Streams of endpoints, and as many of policies (half of them inbound, half outbound)
    #[arg(long, default_value_t = 2000)]
    streams: usize,
    /// Streams of each kind that come on top, to see what one costs
    #[arg(long, default_value_t = 1000)]
    more: usize,
    /// Connections the streams of each kind share, as those of a proxy do
    #[arg(long, default_value_t = 100)]
    connections: usize,
    #[arg(long, default_value_t = 60)]
    events: usize,
    #[arg(long, default_value_t = 1000)]
    every_ms: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

const PATIENCE: Duration = Duration::from_secs(120);
/// New streams under way at the same time.
const OPENING: usize = 64;

fn main() -> Result<()> {
    let args = Args::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&args))
}

async fn run(args: &Args) -> Result<()> {
    let api = ApiServer::start().await;
    let empty = Running::start(&api).await;
    let empty_mb = rss_bytes(empty.pid())? / 1e6;
    drop(empty);
    fill(args, &api);
    let started = Instant::now();
    let running = Running::start(&api).await;
    let ready_ms = started.elapsed().as_secs_f64() * 1e3;
    settle(&running).await?;
    let index_mb = rss_bytes(running.pid())? / 1e6;

    let mut clients = Clients::connect(args, &running).await?;
    clients.open(args, args.streams).await?;
    let cpu_before = cpu_seconds(running.pid())?;
    let mut latencies = Vec::new();
    for event in 0..args.events {
        let at = Instant::now();
        latencies.extend(one_event(args, &api, &mut clients, event).await?);
        tokio::time::sleep(Duration::from_millis(args.every_ms).saturating_sub(at.elapsed())).await;
    }
    let cpu_s = cpu_seconds(running.pid())? - cpu_before;
    let rss = rss_bytes(running.pid())?;
    clients.open(args, args.more).await?;
    let more = rss_bytes(running.pid())?;
    latencies.sort_by(f64::total_cmp);
    ensure!(!latencies.is_empty(), "no event arrived");
    let quantile = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    let added = f64::from(u32::try_from(2 * args.more).context("fewer streams")?);
    let result = json!({
        "rss_mb": round(rss / 1e6),
        "cpu_s": round(cpu_s),
        "event_p50_ms": round(quantile(50)),
        "event_p99_ms": round(quantile(99)),
        "bytes_per_subscriber": ((more - rss) / added).round(),
        "rss_empty_mb": round(empty_mb),
        "rss_index_mb": round(index_mb),
        "ready_ms": ready_ms.round(),
        "services": args.services, "pods": args.pods,
        "endpoint_streams": args.streams, "policy_streams": args.streams,
        "connections": 2 * args.connections, "events": args.events,
    });
    if args.json {
        println!("{result}");
    } else {
        println!("{result:#}");
    }
    Ok(())
}

/// Waits until the process has nothing to do any more: statuses are written after the start.
async fn settle(running: &Running) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut before = cpu_seconds(running.pid())?;
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = cpu_seconds(running.pid())?;
        if now - before < 0.05 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the process does not come to rest"
        );
        before = now;
    }
}

// === Objects ===

/// A cluster's worth: each Service has pods, a slice, a ReplicaSet, a Server, an authorization
/// and a route.
fn fill(args: &Args, api: &ApiServer) {
    for node in 0..50 {
        let zone = format!("zone-{}", node % 3);
        api.apply("nodes", json!({"metadata": {"name": format!("node-{node}"), "labels": {"topology.kubernetes.io/zone": zone}}}));
    }
    let per_service = args.pods / args.services;
    for service in 0..args.services {
        let meta = |name: String| json!({"namespace": namespace(service), "name": name, "creationTimestamp": "2026-01-01T00:00:00Z"});
        let name = format!("web-{service}");
        let mut set = json!({"metadata": meta(format!("{name}-5d4f8c7b9"))});
        set["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": "x"}]);
        api.apply("replicasets.apps", set);
        api.apply("services", service_json(service, 0));
        api.apply("servers.policy.linkerd.io", server_json(service, 0));
        api.apply("authorizationpolicies.policy.linkerd.io", json!({
            "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy", "metadata": meta(name.clone()),
            "spec": {
                "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": name},
                "requiredAuthenticationRefs": [{"kind": "ServiceAccount", "name": name}],
            },
        }));
        api.apply("httproutes.gateway.networking.k8s.io", json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": meta(name.clone()),
            "spec": {
                "parentRefs": [{"group": "", "kind": "Service", "name": name, "port": 80}],
                "rules": [{"backendRefs": [{"name": name, "port": 80}]}],
            },
        }));
        for pod in 0..per_service {
            api.apply("pods", pod_json(service, pod, 0));
        }
        api.apply(
            "endpointslices.discovery.k8s.io",
            slice_json(service, per_service, 0),
        );
    }
}

fn namespace(service: usize) -> String {
    format!("team-{}", service % 50)
}

fn service_ip(service: usize) -> String {
    format!("10.96.{}.{}", service / 250, service % 250 + 1)
}

/// Address of a pod; the first pod of a Service has another one with each event.
fn ip(service: usize, pod: usize, event: usize) -> String {
    if pod == 0 && event > 0 {
        return format!("10.200.{}.{}", event / 250, event % 250 + 1);
    }
    let n = service * 40 + pod;
    format!("10.{}.{}.{}", 1 + n / 62_500, n / 250 % 250, n % 250 + 1)
}

/// A Service whose time limit differs with each event.
fn service_json(service: usize, event: usize) -> Value {
    let ip = service_ip(service);
    json!({
        "metadata": {
            "namespace": namespace(service), "name": format!("web-{service}"),
            "annotations": {"timeout.linkerd.io/request": format!("{}s", event + 1)},
        },
        "spec": {
            "clusterIP": ip, "clusterIPs": [ip], "selector": {"app": format!("web-{service}")},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    })
}

/// A Server whose protocol differs with each event.
fn server_json(service: usize, event: usize) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"namespace": namespace(service), "name": format!("web-{service}")},
        "spec": {
            "podSelector": {"matchLabels": {"app": format!("web-{service}")}}, "port": "http",
            "proxyProtocol": if event == 0 { "HTTP/1" } else { "HTTP/2" },
        },
    })
}

/// A pod with as much in it as pods have, most of which nobody reads.
fn pod_json(service: usize, pod: usize, event: usize) -> Value {
    let node = (service + pod) % 50;
    let probe = |path: &str, port: u16| json!({"httpGet": {"path": path, "port": port, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1});
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": namespace(service), "name": format!("web-{service}-5d4f8c7b9-{pod:05}"),
            "uid": format!("00000000-0000-0000-{service:04}-{pod:012}"), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app": format!("web-{service}"), "pod-template-hash": "5d4f8c7b9",
                "linkerd.io/control-plane-ns": "linkerd", "linkerd.io/workload-ns": namespace(service),
                "linkerd.io/proxy-deployment": format!("web-{service}"),
            },
            "annotations": {
                "linkerd.io/created-by": "linkerd/proxy-injector edge-25.10.7", "linkerd.io/proxy-version": "edge-25.10.7",
                "linkerd.io/inject": "enabled", "config.linkerd.io/opaque-ports": "25,587,3306,4444,5432,6379,9300,11211",
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("web-{service}-5d4f8c7b9"), "uid": "x"}],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:status": {"f:phase": {}}}}],
        },
        "spec": {
            "nodeName": format!("node-{node}"), "serviceAccountName": format!("web-{service}"),
            "volumes": [{"name": "kube-api-access", "projected": {"sources": []}}],
            "containers": [
                {"name": "app", "image": "example.com/web:1.2.3", "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
                 "env": [{"name": "A", "value": "b"}], "livenessProbe": probe("/live", 8080), "readinessProbe": probe("/ready", 8080)},
                {"name": "linkerd-proxy", "image": "cr.l5d.io/linkerd/proxy:edge-25.10.7",
                 "ports": [{"containerPort": 4143, "name": "linkerd-proxy", "protocol": "TCP"}, {"containerPort": 4191, "name": "linkerd-admin", "protocol": "TCP"}],
                 "livenessProbe": probe("/live", 4191), "readinessProbe": probe("/ready", 4191),
                 "env": [{"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
                         {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
                         {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "127.0.0.1:4190"},
                         {"name": "LINKERD2_PROXY_LOG", "value": "warn,linkerd=info"}]},
            ],
        },
        "status": {
            "phase": "Running", "podIP": ip(service, pod, event), "podIPs": [{"ip": ip(service, pod, event)}],
            "hostIP": format!("192.168.0.{node}"),
            "conditions": [condition("Ready"), condition("PodScheduled"), condition("Initialized")],
        },
    })
}

fn slice_json(service: usize, pods: usize, event: usize) -> Value {
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

// === Events ===

/// What a stream is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum About {
    Endpoints,
    Inbound,
    Outbound,
}

/// Changes an object and waits for all whose answer it changes to hear of it.
async fn one_event(
    args: &Args,
    api: &ApiServer,
    clients: &mut Clients,
    event: usize,
) -> Result<Vec<f64>> {
    let service = (event * 37) % args.services;
    let pods = args.pods / args.services;
    let about = [About::Endpoints, About::Inbound, About::Outbound][event % 3];
    let mut waiting = clients
        .watching
        .get(&(about, service))
        .copied()
        .unwrap_or(0);
    let changes = match about {
        About::Endpoints => vec![
            ("pods", pod_json(service, 0, event + 1)),
            (
                "endpointslices.discovery.k8s.io",
                slice_json(service, pods, event + 1),
            ),
        ],
        About::Inbound => vec![("servers.policy.linkerd.io", server_json(service, event + 1))],
        About::Outbound => vec![("services", service_json(service, event + 1))],
    };
    let sent = Instant::now();
    for (collection, object) in changes {
        api.apply(collection, object);
    }
    let wanted = ip(service, 0, event + 1);
    let mut latencies = Vec::new();
    while waiting > 0 {
        let heard = timeout(PATIENCE, clients.reports.recv()).await?;
        let heard = heard.context("the streams ended")?;
        let right = match &heard.addr {
            Some(addr) => about == About::Endpoints && addr.ip().to_string() == wanted,
            None => heard.about == about,
        };
        if heard.service == service && right {
            waiting -= 1;
            latencies.push(heard.at.duration_since(sent).as_secs_f64() * 1e3);
        }
    }
    Ok(latencies)
}

// === Clients ===

/// A message that came after the first one of its stream.
struct Heard {
    about: About,
    service: usize,
    /// An endpoint that was added.
    addr: Option<SocketAddr>,
    at: Instant,
}

struct Clients {
    destination: Vec<Channel>,
    policy: Vec<Channel>,
    opened: usize,
    /// How many streams are about what.
    watching: HashMap<(About, usize), usize>,
    report: mpsc::Sender<Heard>,
    reports: mpsc::Receiver<Heard>,
}

impl Clients {
    async fn connect(args: &Args, running: &Running) -> Result<Self> {
        let (mut destination, mut policy) = (Vec::new(), Vec::new());
        for _ in 0..args.connections {
            for (port, channels) in [
                (running.destination, &mut destination),
                (running.policy, &mut policy),
            ] {
                let channel = Channel::from_shared(format!("http://127.0.0.1:{port}"))?;
                channels.push(channel.connect().await?);
            }
        }
        let (report, reports) = mpsc::channel(100_000);
        Ok(Self {
            destination,
            policy,
            opened: 0,
            watching: HashMap::new(),
            report,
            reports,
        })
    }

    /// Opens that many streams of each kind and waits until each has its first message.
    async fn open(&mut self, args: &Args, streams: usize) -> Result<()> {
        let turn = Arc::new(Semaphore::new(OPENING));
        let mut first = Vec::new();
        for stream in self.opened..self.opened + streams {
            // One round of inbound ports, then one of outbound targets.
            let inbound = (stream / args.services).is_multiple_of(2);
            let policy = if inbound {
                About::Inbound
            } else {
                About::Outbound
            };
            for about in [About::Endpoints, policy] {
                let channels = match about {
                    About::Endpoints => &self.destination,
                    About::Inbound | About::Outbound => &self.policy,
                };
                let channel = channels[stream % channels.len()].clone();
                let service = stream % args.services;
                *self.watching.entry((about, service)).or_default() += 1;
                let (ready, is_ready) = oneshot::channel();
                first.push(is_ready);
                let (report, turn) = (self.report.clone(), turn.clone());
                linkerd_runtime::spawn("stream", async move {
                    let turn = turn.acquire_owned().await;
                    watch(channel, about, service, stream, report, (turn, ready)).await
                });
            }
        }
        self.opened += streams;
        for ready in first {
            timeout(PATIENCE, ready).await?.context("a stream failed")?;
        }
        Ok(())
    }
}

/// Held until the first message is there.
type First<T> = (T, oneshot::Sender<()>);

async fn watch<T>(
    channel: Channel,
    about: About,
    service: usize,
    stream: usize,
    report: mpsc::Sender<Heard>,
    first: First<T>,
) -> Result<()> {
    let node = stream % 50;
    let client = format!(
        r#"{{"ns":"{}","nodeName":"node-{node}","pod":"client-{stream}"}}"#,
        namespace(stream)
    );
    let heard = move |addr| Heard {
        about,
        service,
        addr,
        at: Instant::now(),
    };
    match about {
        About::Endpoints => {
            let request = GetDestination {
                path: format!("web-{service}.{}.svc.cluster.local:80", namespace(service)),
                context_token: client,
                ..GetDestination::default()
            };
            let updates = DestinationClient::new(channel).get(request).await?;
            read(updates.into_inner(), first, report, |update| {
                let Some(Update::Add(set)) = update.update else {
                    return Vec::new();
                };
                let addrs = set.addrs.into_iter().filter_map(|it| it.addr);
                let addrs = addrs.filter_map(|it| SocketAddr::try_from(it).ok());
                addrs.map(|addr| heard(Some(addr))).collect()
            })
            .await
        }
        About::Inbound => {
            let request = PortSpec {
                workload: format!(
                    r#"{{"ns":"{}","pod":"web-{service}-5d4f8c7b9-00000"}}"#,
                    namespace(service)
                ),
                port: 8080,
            };
            let updates = InboundServerPoliciesClient::new(channel)
                .watch_port(request)
                .await?;
            read(updates.into_inner(), first, report, |_| vec![heard(None)]).await
        }
        About::Outbound => {
            let addr: SocketAddr = format!("{}:80", service_ip(service)).parse()?;
            let request = TrafficSpec {
                source_workload: client,
                target: Some(Target::Addr(TcpAddress::from(addr))),
            };
            let updates = OutboundPoliciesClient::new(channel).watch(request).await?;
            read(updates.into_inner(), first, report, |_| vec![heard(None)]).await
        }
    }
}

async fn read<M, T>(
    mut updates: Streaming<M>,
    first: First<T>,
    report: mpsc::Sender<Heard>,
    heard: impl Fn(M) -> Vec<Heard>,
) -> Result<()> {
    let mut first = Some(first);
    while let Some(message) = updates.message().await? {
        if let Some((turn, ready)) = first.take() {
            drop(turn);
            let _ = ready.send(());
            continue;
        }
        for heard in heard(message) {
            report.send(heard).await?;
        }
    }
    bail!("the stream ended")
}

// === Measuring ===

fn rss_bytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line
        .and_then(|line| line.split_whitespace().next())
        .context("VmRSS")?;
    Ok(kb.parse::<f64>()? * 1024.0)
}

fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
