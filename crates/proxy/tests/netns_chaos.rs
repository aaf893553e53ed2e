//! Mixed traffic through proxies in pods while endpoints come, go, slow down and break, the control
//! plane restarts and is away, and certificates are renewed. What happens is drawn from a seed.
//!
//! `LINKERD_CHAOS_SECONDS` (default 20) says for how long, `LINKERD_CHAOS_SEED` repeats a run.

#[path = "support/mesh.rs"]
mod mesh;

use std::{
    collections::{HashMap, HashSet},
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use linkerd_testkit::{
    ca::Validity,
    echo::{Answer, Behavior, Echo, End},
    netns::Namespace,
    wait_for,
};
use mesh::{Mesh, Meshed};
use rand::{Rng, SeedableRng, rngs::StdRng};

const VIP: &str = "10.96.0.10:80";
const SERVICE: &str = "web.ns.svc.cluster.local:80";
const TCP_VIP: &str = "10.96.0.11:5432";
const TCP_SERVICE: &str = "db.ns.svc.cluster.local:5432";
const HTTP_PORT: u16 = 8080;
const TCP_PORT: u16 = 5432;
/// Of a stream.
const MESSAGES: usize = 8;
const MESSAGE_PAUSE: Duration = Duration::from_millis(15);
/// No request may take longer, whatever happens to it.
const LIMIT: Duration = Duration::from_secs(20);

/// One backend: a pod with applications that say who they are.
struct Backend {
    name: String,
    meshed: Meshed,
    http: Echo,
    _tcp: Echo,
    slow: Arc<AtomicU64>,
    /// Answers that will break in the middle.
    torn: Arc<AtomicU64>,
    in_service: bool,
}

/// What clients saw.
#[derive(Default)]
struct Tally {
    sent: AtomicU64,
    good: AtomicU64,
    failed: AtomicU64,
    wrong: Mutex<Vec<String>>,
    slowest: AtomicU64,
}

impl Tally {
    fn done(&self, started: Instant, outcome: Result<(), Wrong>) {
        let took = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.slowest.fetch_max(took, Ordering::Relaxed);
        match outcome {
            Ok(()) => self.good.fetch_add(1, Ordering::Relaxed),
            Err(Wrong::Failed) => self.failed.fetch_add(1, Ordering::Relaxed),
            Err(Wrong::Answer(what)) => {
                let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
                wrong.push(what);
                self.failed.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}

/// How a request can go wrong: not answered well, which may happen, or answered falsely.
enum Wrong {
    Failed,
    Answer(String),
}

impl From<std::io::Error> for Wrong {
    fn from(_: std::io::Error) -> Self {
        Self::Failed
    }
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|t| t.parse().ok()).unwrap_or(default)
}

fn backend(mesh: &mut Mesh, name: &str) -> Backend {
    let meshed = mesh.meshed(name, &[("IDENTITY_MIN_REFRESH", "2s")]);
    let (slow, torn) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (wait, tear, own) = (slow.clone(), torn.clone(), name.to_owned());
    let http = meshed.pod.netns.run(|| {
        Echo::http_with(
            (std::net::Ipv4Addr::UNSPECIFIED, HTTP_PORT),
            move |request| {
                let pause = Duration::from_millis(wait.load(Ordering::Relaxed));
                let id = request.header("x-id").unwrap_or_default();
                let less = |n: u64| n.checked_sub(1);
                let torn = tear.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                answer(&own, id, pause, torn.is_ok())
            },
        )
    });
    let greeting = format!("{name}\n");
    let behavior = Behavior {
        greeting: greeting.into(),
        ..Behavior::default()
    };
    let tcp = meshed
        .pod
        .netns
        .run(|| Echo::tcp((std::net::Ipv4Addr::UNSPECIFIED, TCP_PORT), behavior));
    Backend {
        name: name.to_owned(),
        meshed,
        http,
        _tcp: tcp,
        slow,
        torn,
        in_service: true,
    }
}

/// What a backend answers: to a call, a stream of messages; else a body long enough to be cut in the
/// middle.
fn answer(own: &str, id: &str, pause: Duration, torn: bool) -> Answer {
    if id.starts_with("grpc") {
        let message = |n: usize| {
            let text = format!("{own} {id} {n}");
            let length = u32::try_from(text.len()).expect("short").to_be_bytes();
            [&[0], &length[..], text.as_bytes()].concat().into()
        };
        let all = if torn { MESSAGES / 2 } else { MESSAGES };
        return Answer::Pieces {
            headers: vec![("content-type", "application/grpc".to_owned())],
            pieces: (0..all).map(message).collect(),
            pause: MESSAGE_PAUSE,
            end: match torn {
                true => End::Torn,
                false => End::Trailers(vec![("grpc-status", "0".to_owned())]),
            },
        };
    }
    let body = format!("{own} {id} {}\n", "x".repeat(20_000));
    if torn {
        let length = body.len().to_string();
        return Answer::Pieces {
            headers: vec![("content-length", length)],
            pieces: vec![body[..10_000].to_owned().into()],
            pause,
            end: End::Torn,
        };
    }
    Answer::Respond {
        status: 200,
        delay: pause,
        body: body.into(),
    }
}

fn publish(mesh: &Mesh, backends: &[Backend]) {
    let of = |port| {
        let live = backends.iter().filter(|b| b.in_service);
        live.map(move |b| b.meshed.endpoint(b.meshed.pod.ip4, port))
            .collect::<Vec<_>>()
    };
    mesh.control.set_endpoints(SERVICE, of(HTTP_PORT));
    mesh.control.set_endpoints(TCP_SERVICE, of(TCP_PORT));
}

/// One client's load until it is told to stop.
fn load(
    netns: Arc<Namespace>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    kind: &'static str,
    client: u64,
    names: Arc<HashSet<String>>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        netns.run(|| {
            if matches!(kind, "http2" | "grpc") {
                return http2_load(&stop, &tally, kind, client, &names);
            }
            let mut kept = None;
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let id = format!("{kind}-{client}-{n}");
                let started = Instant::now();
                tally.sent.fetch_add(1, Ordering::Relaxed);
                let outcome = match kind {
                    "tcp" => tcp_once(&names, &id),
                    "post" => http_once(&mut kept, &names, "POST", &id),
                    _ => http_once(&mut kept, &names, "GET", &id),
                };
                if outcome.is_err() {
                    kept = None;
                }
                tally.done(started, outcome);
            }
        });
    })
}

fn connect(to: &str) -> std::io::Result<TcpStream> {
    let addr: SocketAddr = to.parse().expect("an address");
    let io = TcpStream::connect_timeout(&addr, LIMIT)?;
    io.set_read_timeout(Some(LIMIT))?;
    io.set_write_timeout(Some(LIMIT))?;
    io.set_nodelay(true)?;
    Ok(io)
}

/// One request on a kept connection; the answer must be whole, ours, and of a backend of the service.
fn http_once(
    kept: &mut Option<BufReader<TcpStream>>,
    names: &HashSet<String>,
    method: &str,
    id: &str,
) -> Result<(), Wrong> {
    let io = match kept {
        Some(io) => io,
        None => kept.insert(BufReader::new(connect(VIP)?)),
    };
    let body = if method == "POST" { "hello" } else { "" };
    let ask = format!(
        "{method} /{id} HTTP/1.1\r\nhost: web\r\nx-id: {id}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    io.get_mut().write_all(ask.as_bytes())?;
    let mut line = String::new();
    io.read_line(&mut line)?;
    let status = line.get(9..12).map(str::to_owned).ok_or(Wrong::Failed)?;
    let mut length = 0;
    let mut closes = false;
    loop {
        line.clear();
        if io.read_line(&mut line)? == 0 {
            return Err(Wrong::Failed);
        }
        if line == "\r\n" {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(n) = lower.strip_prefix("content-length:") {
            length = n.trim().parse().map_err(|_| Wrong::Failed)?;
        }
        closes |= lower.starts_with("connection: close");
    }
    let mut answer = vec![0; length];
    io.read_exact(&mut answer)?;
    if closes {
        *kept = None;
    }
    if status != "200" {
        return Err(Wrong::Failed);
    }
    check(names, id, &answer)
}

/// Whether an answer is of a backend of the service, ours, and whole.
fn check(names: &HashSet<String>, id: &str, answer: &[u8]) -> Result<(), Wrong> {
    let text = String::from_utf8_lossy(answer);
    let mut words = text.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(name), Some(own), Some(rest)) if names.contains(name) && own == id => {
            if rest.len() == 20_000 {
                Ok(())
            } else {
                Err(Wrong::Answer(format!("{id}: {} bytes", rest.len())))
            }
        }
        found => Err(Wrong::Answer(format!("{id}: {found:?}"))),
    }
}

/// HTTP/2 requests or gRPC streams, four at a time on one connection for as long as it lives.
fn http2_load(stop: &AtomicBool, tally: &Tally, kind: &str, client: u64, names: &HashSet<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut n = 0;
        while !stop.load(Ordering::Relaxed) {
            let Ok(io) = tokio::net::TcpStream::connect(VIP).await else {
                continue;
            };
            let Ok((send, connection)) = h2::client::handshake(io).await else {
                continue;
            };
            let driver = linkerd_runtime::spawn("client", async move {
                let _ = connection.await;
            });
            let mut alive = true;
            while alive && !stop.load(Ordering::Relaxed) {
                let calls = (0..4).map(|_| {
                    n += 1;
                    let id = format!("{kind}-{client}-{n}");
                    let send = send.clone();
                    async move {
                        let started = Instant::now();
                        tally.sent.fetch_add(1, Ordering::Relaxed);
                        let call = tokio::time::timeout(LIMIT, http2_once(send, names, &id));
                        let outcome = call.await.unwrap_or(Err(Wrong::Failed));
                        let well = outcome.is_ok();
                        tally.done(started, outcome);
                        well
                    }
                });
                let done = futures::future::join_all(calls).await;
                alive = done.into_iter().all(|well| well);
            }
            driver.abort();
        }
    });
}

async fn http2_once(
    send: h2::client::SendRequest<bytes::Bytes>,
    names: &HashSet<String>,
    id: &str,
) -> Result<(), Wrong> {
    let failed = |_: h2::Error| Wrong::Failed;
    let mut send = send.ready().await.map_err(failed)?;
    let streams = id.starts_with("grpc");
    let request = match streams {
        true => http::Request::post("http://web/chaos.Chaos/Watch")
            .header("content-type", "application/grpc")
            .header("te", "trailers"),
        false => http::Request::get(format!("http://web/{id}")),
    };
    let request = request.header("x-id", id).body(()).expect("valid");
    let (response, _) = send.send_request(request, true).map_err(failed)?;
    let (head, mut body) = response.await.map_err(failed)?.into_parts();
    let mut answer = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(failed)?;
        let _ = body.flow_control().release_capacity(data.len());
        answer.extend(&data);
    }
    if head.status != 200 {
        return Err(Wrong::Failed);
    }
    if !streams {
        return check(names, id, &answer);
    }
    let trailers = body.trailers().await.map_err(failed)?;
    let of = |headers: &http::HeaderMap| headers.get("grpc-status").cloned();
    let status = trailers.as_ref().and_then(of).or_else(|| of(&head.headers));
    match status {
        Some(status) if status == "0" => check_stream(names, id, &answer),
        Some(_) => Err(Wrong::Failed),
        None => Err(Wrong::Answer(format!("{id}: ended without a status"))),
    }
}

/// Whether a stream has every message in order, all of one backend.
fn check_stream(names: &HashSet<String>, id: &str, mut bytes: &[u8]) -> Result<(), Wrong> {
    let mut messages = Vec::new();
    while let [0, a, b, c, d, rest @ ..] = bytes {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let Some((message, rest)) = rest.split_at_checked(length) else {
            break;
        };
        messages.push(String::from_utf8_lossy(message).into_owned());
        bytes = rest;
    }
    let name = messages.first().and_then(|m| m.split(' ').next());
    let known = name.filter(|name| names.contains(*name));
    let whole = known.is_some_and(|name| {
        let expected = (0..MESSAGES).map(|n| format!("{name} {id} {n}"));
        bytes.is_empty() && expected.eq(messages.iter().cloned())
    });
    match whole {
        true => Ok(()),
        false => Err(Wrong::Answer(format!("{id}: {messages:?}"))),
    }
}

/// One opaque connection: the greeting names its backend, then bytes come back as they went.
fn tcp_once(names: &HashSet<String>, id: &str) -> Result<(), Wrong> {
    let mut io = BufReader::new(connect(TCP_VIP)?);
    let mut greeting = String::new();
    io.read_line(&mut greeting)?;
    if greeting.is_empty() {
        return Err(Wrong::Failed);
    }
    if !names.contains(greeting.trim()) {
        return Err(Wrong::Answer(format!("{id}: greeted by {greeting:?}")));
    }
    io.get_mut().write_all(id.as_bytes())?;
    let mut back = vec![0; id.len()];
    io.read_exact(&mut back)?;
    if back == id.as_bytes() {
        Ok(())
    } else {
        let back = String::from_utf8_lossy(&back).into_owned();
        Err(Wrong::Answer(format!("{id}: got {back}")))
    }
}

fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "times are drawn")]
    std::thread::sleep(time);
}

/// Something that happens to the mesh.
fn happen(mesh: &mut Mesh, backends: &mut [Backend], random: &mut StdRng) -> String {
    let at = random.random_range(0..backends.len());
    let others = backends.iter().filter(|b| b.in_service).count();
    match random.random_range(0..10) {
        0 | 1 if backends[at].in_service && others > 1 => {
            backends[at].in_service = false;
            publish(mesh, backends);
            format!("{} leaves the service", backends[at].name)
        }
        2 if !backends[at].in_service => {
            backends[at].in_service = true;
            publish(mesh, backends);
            format!("{} joins the service", backends[at].name)
        }
        3 if others > 1 => {
            // Killed without a word: clients find out before the control plane does.
            backends[at]
                .meshed
                .proxy
                .signal(rustix::process::Signal::KILL);
            backends[at].in_service = false;
            publish(mesh, backends);
            backends[at].meshed.restart();
            backends[at].in_service = true;
            publish(mesh, backends);
            format!("{} is killed and comes back", backends[at].name)
        }
        4 => {
            let ms = random.random_range(0..200);
            backends[at].slow.store(ms, Ordering::Relaxed);
            format!("{} takes {ms} ms", backends[at].name)
        }
        5 => {
            mesh.control.cut_streams();
            "the control plane ends its streams".to_owned()
        }
        6 => {
            mesh.control.restart();
            "the control plane restarts".to_owned()
        }
        7 => {
            let ms = random.random_range(1000..4000);
            mesh.control.stop();
            pause(Duration::from_millis(ms));
            mesh.control.restart();
            format!("the control plane is away for {ms} ms")
        }
        8 => {
            backends[at].torn.store(3, Ordering::Relaxed);
            format!("three answers of {} break", backends[at].name)
        }
        _ => {
            let seconds = random.random_range(20..60);
            let validity = Validity::For(time::Duration::seconds(seconds));
            mesh.control.set_validity(validity);
            format!("certificates last {seconds} s from now on")
        }
    }
}

#[test]
fn nothing_goes_astray_while_everything_changes() {
    let seconds = number("LINKERD_CHAOS_SECONDS", 20);
    let seed = number("LINKERD_CHAOS_SEED", 7);
    let mut random = StdRng::seed_from_u64(seed);
    let mut mesh = Mesh::new();
    let mut backends: Vec<Backend> = ["one", "two", "three"]
        .into_iter()
        .map(|name| backend(&mut mesh, name))
        .collect();
    let client = mesh.meshed("client", &[("IDENTITY_MIN_REFRESH", "2s")]);
    mesh.service(VIP.parse().expect("one"), SERVICE, []);
    mesh.service(TCP_VIP.parse().expect("one"), TCP_SERVICE, []);
    publish(&mesh, &backends);
    let names: Arc<HashSet<String>> = Arc::new(backends.iter().map(|b| b.name.clone()).collect());

    // A warm proxy is the measure, not one that has just started.
    let netns = client.pod.netns.clone();
    let warm = Arc::<Tally>::default();
    run_load(&netns, &warm, &names, Duration::from_secs(3), 0, || {});
    let idle = settled(&client);

    let tally = Arc::<Tally>::default();
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut events = Vec::new();
    run_load(&netns, &tally, &names, Duration::ZERO, 100, || {
        while Instant::now() < until {
            events.push(happen(&mut mesh, &mut backends, &mut random));
            let time = Duration::from_millis(random.random_range(200..1500));
            pause(time.min(until.saturating_duration_since(Instant::now())));
        }
    });
    let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (sent, good, failed) = (get(&tally.sent), get(&tally.good), get(&tally.failed));
    let story = format!("seed {seed}: {sent} sent, {good} good, {failed} failed\n{events:#?}");

    let wrong = tally.wrong.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(wrong.is_empty(), "wrong answers: {wrong:?}\n{story}");
    assert_eq!(sent, good + failed, "{story}");
    assert!(good > 100, "traffic flowed: {story}");
    assert!(
        failed * 20 < sent,
        "more than one of twenty failed: {story}"
    );
    let slowest = Duration::from_millis(get(&tally.slowest));
    assert!(slowest < LIMIT, "{slowest:?} for one request: {story}");

    // A request that must not be repeated reached an application once.
    let mut seen: HashMap<String, u32> = HashMap::new();
    for request in backends.iter().flat_map(|b| b.http.requests()) {
        if request.method == "POST" {
            let id = request.header("x-id").unwrap_or_default();
            *seen.entry(id.to_owned()).or_default() += 1;
        }
    }
    let twice: Vec<_> = seen.iter().filter(|(_, n)| **n > 1).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}\n{story}");

    // Everything is given back.
    let after = settled(&client);
    let allowed = idle + idle / 10 + (4 << 20);
    assert!(
        after <= allowed,
        "memory went from {} to {} KB: {story}",
        idle >> 10,
        after >> 10
    );
}

/// Traffic of every kind while `meanwhile` runs, and for `least` at least. Clients are numbered from
/// `first`, so that no request has the name of another.
fn run_load(
    netns: &Arc<Namespace>,
    tally: &Arc<Tally>,
    names: &Arc<HashSet<String>>,
    least: Duration,
    first: u64,
    meanwhile: impl FnOnce(),
) {
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = ["get", "get", "http2", "grpc", "post", "tcp"]
        .into_iter()
        .zip(first..)
        .map(|(kind, n)| {
            load(
                netns.clone(),
                stop.clone(),
                tally.clone(),
                kind,
                n,
                names.clone(),
            )
        })
        .collect();
    let started = Instant::now();
    meanwhile();
    while started.elapsed() < least {
        #[expect(clippy::disallowed_methods, reason = "traffic is to flow for a while")]
        std::thread::sleep(Duration::from_millis(50));
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("a client runs to its end");
    }
}

/// Waits until no connection is left open; gives the memory in use then.
fn settled(client: &Meshed) -> u64 {
    wait_for(mesh::DEADLINE, "every connection is closed", || {
        let open = client.metric("tcp_open_connections", &["direction=\"outbound\""]);
        open < 0.5
    });
    client.resident()
}
