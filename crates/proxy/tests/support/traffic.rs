//! Clients of the chaos and the soak test: HTTP/1, HTTP/2, gRPC streams and plain TCP, each of which
//! checks every answer and counts what it sent and saw.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use linkerd_testkit::netns::Namespace;

use crate::fleet::{BANK, BANK_LIMIT, BODY, DB, MESSAGES, RETRIES, SHOP, SHOP_LIMIT, Service, WEB};

/// No request may take longer, whatever happens to it.
const LIMIT: Duration = Duration::from_secs(20);
/// What a busy machine may add to a limit of the policy.
const SLACK: Duration = Duration::from_secs(3);
/// Requests at a time on one HTTP/2 connection.
const STREAMS: usize = 4;
/// In place of a status: a gRPC client was told of a failure.
pub const TOLD: u16 = 0;
/// Bytes of a large transfer.
const BULK: usize = 1 << 20;
/// After a failure, so that one that comes at once does not come a thousand times.
const BREATH: Duration = Duration::from_millis(20);

/// How a client talks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1(&'static str),
    Http2(&'static str),
    Grpc,
    Tcp(usize),
}

/// One kind of traffic.
#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    pub service: &'static Service,
    protocol: Protocol,
    /// How often applications may receive one request.
    pub receptions: u32,
    /// How long a request may take.
    limit: Duration,
}

/// A GET may be repeated once by either proxy when its connection dies: four receptions where each
/// side does so. What a policy asks for comes on top, and only that is done to a POST.
pub static KINDS: [Kind; 9] = [
    kind("get", &WEB, Protocol::Http1("GET"), 4, LIMIT),
    kind("post", &WEB, Protocol::Http1("POST"), 1, LIMIT),
    kind("http2", &WEB, Protocol::Http2("GET"), 4, LIMIT),
    kind("grpc", &WEB, Protocol::Grpc, 1, LIMIT),
    kind("tcp", &DB, Protocol::Tcp(64), 0, LIMIT),
    kind("bulk", &DB, Protocol::Tcp(BULK), 0, LIMIT),
    kind(
        "buy",
        &SHOP,
        Protocol::Http1("POST"),
        1 + RETRIES,
        SHOP_LIMIT,
    ),
    kind(
        "look",
        &SHOP,
        Protocol::Http2("GET"),
        4 + 2 * RETRIES,
        SHOP_LIMIT,
    ),
    kind("pay", &BANK, Protocol::Http2("POST"), 1, BANK_LIMIT),
];

const fn kind(
    name: &'static str,
    service: &'static Service,
    protocol: Protocol,
    receptions: u32,
    limit: Duration,
) -> Kind {
    Kind {
        name,
        service,
        protocol,
        receptions,
        limit,
    }
}

impl Kind {
    pub fn is_http(&self) -> bool {
        !matches!(self.protocol, Protocol::Tcp(_))
    }
}

/// How often applications may receive the request of a name.
pub fn receptions(id: &str) -> u32 {
    let kind = KINDS.iter().find(|k| k.name == crate::fleet::kind_of(id));
    kind.map_or(0, |k| k.receptions)
}

/// What clients of one kind saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub sent: u64,
    pub good: u64,
    pub failed: u64,
    /// Answers that came to their end, by status.
    pub statuses: BTreeMap<u16, u64>,
    pub slowest: Duration,
}

/// What all clients saw.
#[derive(Debug, Default)]
pub struct Tally {
    kinds: Mutex<BTreeMap<&'static str, Seen>>,
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    fn done(&self, kind: &'static Kind, started: Instant, outcome: Result<(), Wrong>) {
        let took = started.elapsed();
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = kinds.entry(kind.name).or_default();
        seen.sent += 1;
        seen.slowest = seen.slowest.max(took);
        let status = match outcome {
            Ok(()) => {
                seen.good += 1;
                Some(200)
            }
            Err(Wrong::Failed(status)) => {
                seen.failed += 1;
                status
            }
            Err(Wrong::Answer(what)) => {
                seen.failed += 1;
                self.wrong(what);
                None
            }
        };
        if let Some(status) = status {
            *seen.statuses.entry(status).or_default() += 1;
        }
        if took > kind.limit + SLACK {
            self.wrong(format!("a {} took {took:?}", kind.name));
        }
    }

    fn wrong(&self, what: String) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.push(what);
    }

    /// Answers that were not what was asked for, and requests that hung.
    pub fn wrongs(&self) -> Vec<String> {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.clone()
    }

    /// The sum of something over the kinds that are wanted.
    pub fn sum(&self, wanted: impl Fn(&Kind) -> bool, of: impl Fn(&Seen) -> u64) -> u64 {
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = KINDS.iter().filter(|kind| wanted(kind));
        wanted.filter_map(|kind| kinds.get(kind.name)).map(of).sum()
    }

    /// One line for each kind.
    pub fn report(&self) -> String {
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = kinds.iter().map(|(name, seen)| {
            let Seen {
                sent,
                good,
                failed,
                statuses,
                slowest,
            } = seen;
            format!(
                "{name}: {sent} sent, {good} good, {failed} failed, slowest {slowest:.2?}, {statuses:?}\n"
            )
        });
        lines.collect()
    }
}

/// How a request can go wrong: not answered well, which may happen, or answered falsely.
enum Wrong {
    /// With this status, if the answer came to its end.
    Failed(Option<u16>),
    Answer(String),
}

impl From<std::io::Error> for Wrong {
    fn from(_: std::io::Error) -> Self {
        Self::Failed(None)
    }
}

impl From<h2::Error> for Wrong {
    fn from(_: h2::Error) -> Self {
        Self::Failed(None)
    }
}

/// Clients of every kind, `each` of them, while `meanwhile` runs. They are numbered from `first`, so
/// that no request has the name of another.
pub fn during(
    netns: &Arc<Namespace>,
    tally: &Arc<Tally>,
    each: u64,
    first: u64,
    meanwhile: impl FnOnce(),
) {
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = KINDS
        .iter()
        .flat_map(|kind| (first..first + each).map(move |n| (kind, n)))
        .map(|(kind, n)| load(netns.clone(), stop.clone(), tally.clone(), kind, n))
        .collect();
    meanwhile();
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("a client runs to its end");
    }
}

/// Numbers bursts, whose requests are named like those of clients.
static BURSTS: AtomicU64 = AtomicU64::new(1_000_000);

/// Many connections at once, with one request each.
pub fn burst(netns: &Namespace, tally: &Tally, connections: usize) {
    let kind = &KINDS[0];
    let burst = BURSTS.fetch_add(1, Ordering::Relaxed);
    netns.run(|| {
        let mut open: Vec<_> = (0..connections)
            .map(|_| connect(kind.service).ok().map(BufReader::new))
            .collect();
        let started = Instant::now();
        let asked: Vec<_> = open
            .iter_mut()
            .enumerate()
            .map(|(n, io)| {
                let id = format!("{}-{burst}-{n}", kind.name);
                let io = io.as_mut()?;
                let sent = io.get_mut().write_all(ask(kind, "GET", &id).as_bytes());
                sent.is_ok().then_some(id)
            })
            .collect();
        for (io, id) in open.iter_mut().zip(asked) {
            if let (Some(io), Some(id)) = (io, id) {
                let outcome = http1_answer(io, kind, &id).map(|_closes| ());
                tally.done(kind, started, outcome);
            }
        }
    });
}

/// One client's load until it is told to stop.
fn load(
    netns: Arc<Namespace>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    kind: &'static Kind,
    client: u64,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        netns.run(|| {
            if matches!(kind.protocol, Protocol::Http2(_) | Protocol::Grpc) {
                return http2_load(&stop, &tally, kind, client);
            }
            let mut kept = None;
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let id = format!("{}-{client}-{n}", kind.name);
                let started = Instant::now();
                let outcome = match kind.protocol {
                    Protocol::Tcp(size) => tcp_once(kind, &id, size),
                    Protocol::Http1(method) => http1_once(&mut kept, kind, method, &id),
                    Protocol::Http2(_) | Protocol::Grpc => unreachable!("above"),
                };
                let failed = outcome.is_err();
                tally.done(kind, started, outcome);
                if failed {
                    kept = None;
                    pause(BREATH);
                }
            }
        });
    })
}

pub fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "times are drawn")]
    std::thread::sleep(time);
}

fn connect(service: &Service) -> std::io::Result<TcpStream> {
    let addr: SocketAddr = service.vip.parse().expect("an address");
    let io = TcpStream::connect_timeout(&addr, LIMIT)?;
    io.set_read_timeout(Some(LIMIT))?;
    io.set_write_timeout(Some(LIMIT))?;
    io.set_nodelay(true)?;
    Ok(io)
}

fn ask(kind: &Kind, method: &str, id: &str) -> String {
    let host = kind.service.name;
    let body = if method == "POST" { "hello" } else { "" };
    let length = body.len();
    format!(
        "{method} /{id} HTTP/1.1\r\nhost: {host}\r\nx-id: {id}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// One request on a kept connection.
fn http1_once(
    kept: &mut Option<BufReader<TcpStream>>,
    kind: &Kind,
    method: &str,
    id: &str,
) -> Result<(), Wrong> {
    let io = match kept {
        Some(io) => io,
        None => kept.insert(BufReader::new(connect(kind.service)?)),
    };
    io.get_mut().write_all(ask(kind, method, id).as_bytes())?;
    if http1_answer(io, kind, id)? {
        *kept = None;
    }
    Ok(())
}

/// The answer must be whole, ours, and of a backend of the service. Gives whether the connection ends.
fn http1_answer(io: &mut BufReader<TcpStream>, kind: &Kind, id: &str) -> Result<bool, Wrong> {
    let mut line = String::new();
    io.read_line(&mut line)?;
    let status: Option<u16> = line.get(9..12).and_then(|s| s.parse().ok());
    let status = status.ok_or(Wrong::Failed(None))?;
    let mut length = 0;
    let mut closes = false;
    loop {
        line.clear();
        if io.read_line(&mut line)? == 0 {
            return Err(Wrong::Failed(None));
        }
        if line == "\r\n" {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(n) = lower.strip_prefix("content-length:") {
            length = n.trim().parse().map_err(|_| Wrong::Failed(None))?;
        }
        closes |= lower.starts_with("connection: close");
    }
    let mut answer = vec![0; length];
    io.read_exact(&mut answer)?;
    if status != 200 {
        return Err(Wrong::Failed(Some(status)));
    }
    check(kind, id, &answer).map(|()| closes)
}

/// Whether an application of the service has this name.
fn is_of(kind: &Kind, name: &str) -> bool {
    let pods = ["one", "two", "three"];
    pods.iter().any(|pod| kind.service.greeting(pod) == name)
}

/// Whether an answer is of a backend of the service, ours, and whole.
fn check(kind: &Kind, id: &str, answer: &[u8]) -> Result<(), Wrong> {
    let text = String::from_utf8_lossy(answer);
    let mut words = text.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(name), Some(own), Some(rest)) if is_of(kind, name) && own == id => {
            if rest.len() == BODY {
                Ok(())
            } else {
                Err(Wrong::Answer(format!("{id}: {} bytes", rest.len())))
            }
        }
        found => Err(Wrong::Answer(format!("{id}: {found:?}"))),
    }
}

/// HTTP/2 requests or gRPC streams, some at a time on one connection for as long as it lives.
fn http2_load(stop: &AtomicBool, tally: &Tally, kind: &'static Kind, client: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut n = 0;
        while !stop.load(Ordering::Relaxed) {
            let Ok(io) = tokio::net::TcpStream::connect(kind.service.vip).await else {
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
                let calls = (0..STREAMS).map(|_| {
                    n += 1;
                    let id = format!("{}-{client}-{n}", kind.name);
                    let send = send.clone();
                    async move {
                        let started = Instant::now();
                        let call = tokio::time::timeout(LIMIT, http2_once(send, kind, &id));
                        let outcome = call.await.unwrap_or(Err(Wrong::Failed(None)));
                        let well = outcome.is_ok();
                        tally.done(kind, started, outcome);
                        well
                    }
                });
                let done = futures::future::join_all(calls).await;
                alive = done.into_iter().all(|well| well);
            }
            driver.abort();
            tokio::time::sleep(BREATH).await;
        }
    });
}

async fn http2_once(
    send: h2::client::SendRequest<bytes::Bytes>,
    kind: &Kind,
    id: &str,
) -> Result<(), Wrong> {
    let mut send = send.ready().await?;
    let host = kind.service.name;
    let (request, body) = match kind.protocol {
        Protocol::Http2("POST") => (
            http::Request::post(format!("http://{host}/{id}")),
            Some(bytes::Bytes::from_static(b"hello")),
        ),
        Protocol::Http2(_) => (http::Request::get(format!("http://{host}/{id}")), None),
        _ => {
            let call = http::Request::post(format!("http://{host}/chaos.Chaos/Watch"))
                .header("content-type", "application/grpc")
                .header("te", "trailers");
            (call, None)
        }
    };
    let request = request.header("x-id", id).body(()).expect("valid");
    let (response, mut upload) = send.send_request(request, body.is_none())?;
    if let Some(body) = body {
        upload.send_data(body, true)?;
    }
    let (head, mut body) = response.await?.into_parts();
    let mut answer = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        let _ = body.flow_control().release_capacity(data.len());
        answer.extend(&data);
    }
    let trailers = body.trailers().await?;
    if head.status != 200 {
        return Err(Wrong::Failed(Some(head.status.as_u16())));
    }
    if kind.protocol != Protocol::Grpc {
        return check(kind, id, &answer);
    }
    let of = |headers: &http::HeaderMap| headers.get("grpc-status").cloned();
    let status = trailers.as_ref().and_then(of).or_else(|| of(&head.headers));
    match status {
        Some(status) if status == "0" => check_stream(kind, id, &answer),
        // A proxy tells of a failure, alone or behind what came of an answer.
        Some(_) => Err(Wrong::Failed(Some(TOLD))),
        None => Err(Wrong::Answer(format!("{id}: ended without a status"))),
    }
}

/// Whether a stream has every message in order, all of one backend.
fn check_stream(kind: &Kind, id: &str, mut bytes: &[u8]) -> Result<(), Wrong> {
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
    let known = name.filter(|name| is_of(kind, name));
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
fn tcp_once(kind: &Kind, id: &str, size: usize) -> Result<(), Wrong> {
    let mut io = BufReader::new(connect(kind.service)?);
    let mut greeting = String::new();
    io.read_line(&mut greeting)?;
    if greeting.is_empty() {
        return Err(Wrong::Failed(None));
    }
    if !is_of(kind, greeting.trim()) {
        return Err(Wrong::Answer(format!("{id}: greeted by {greeting:?}")));
    }
    let word = format!("{id} ");
    let words: Vec<u8> = word.bytes().cycle().take(size).collect();
    let mut writer = io.get_ref().try_clone()?;
    let back = std::thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&words));
        let mut back = vec![0; words.len()];
        io.read_exact(&mut back).map(|()| back)
    })?;
    if back == words {
        Ok(())
    } else {
        let at = back.iter().zip(&words).position(|(a, b)| a != b);
        Err(Wrong::Answer(format!("{id}: other bytes at {at:?}")))
    }
}
