//! What the chaos and the soak test have their traffic go to: three pods with an application for each
//! of four services. Applications say who they are, count what they receive and misbehave when told to.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use linkerd_api::proto::http_route::Timeouts;
use linkerd_api::proto::outbound::{
    ExponentialBackoff, FailureAccrual, OutboundPolicy, failure_accrual,
    http_route::{Retry, retry},
    proxy_protocol,
};
use linkerd_testkit::{
    control_plane::objects,
    echo::{Answer, Behavior, Echo, End},
};

use crate::mesh::{Mesh, Meshed};

/// A virtual address, and the port its applications have in every pod.
#[derive(Debug)]
pub struct Service {
    pub name: &'static str,
    pub vip: &'static str,
    port: u16,
}

/// HTTP without any policy.
pub static WEB: Service = Service {
    name: "web",
    vip: "10.96.0.10:80",
    port: 8080,
};
/// Opaque; the server speaks first.
pub static DB: Service = Service {
    name: "db",
    vip: "10.96.0.11:5432",
    port: 5432,
};
/// HTTP that is tried again, and has a time limit.
pub static SHOP: Service = Service {
    name: "shop",
    vip: "10.96.0.12:80",
    port: 8081,
};
/// HTTP with a circuit breaker and a time limit.
pub static BANK: Service = Service {
    name: "bank",
    vip: "10.96.0.13:80",
    port: 8082,
};

/// How often the policy of the shop sends a request once more.
pub const RETRIES: u32 = 2;
/// What one try has, and a request with all its tries.
const TRY_LIMIT: Duration = Duration::from_millis(500);
pub const SHOP_LIMIT: Duration = Duration::from_secs(2);
pub const BANK_LIMIT: Duration = Duration::from_secs(1);
/// Longer than any of them.
const STALL: Duration = Duration::from_secs(4);
/// Failures in a row that take an endpoint of the bank out, and the shortest time it is out.
pub const BREAKS_AFTER: u32 = 5;
pub const BREAK: Duration = Duration::from_millis(500);
/// Threads of every proxy that know nothing of each other's failures.
pub const WORKERS: u32 = 2;

/// Payload of an answer.
pub const BODY: usize = 20_000;
/// Of a stream.
pub const MESSAGES: usize = 8;
const MESSAGE_PAUSE: Duration = Duration::from_millis(15);
/// A backend that is not of the service any more gets nothing new after so long. Clients may have
/// missed it while the control plane was away, and wait before they ask again.
const FAREWELL: Duration = Duration::from_secs(20);

/// What applications have received.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By the name of the request.
    received: Mutex<HashMap<String, u32>>,
    /// Requests that came to a backend long after it had left the service.
    strays: Mutex<Vec<String>>,
}

/// How the applications of one backend behave, and what they did.
#[derive(Debug, Default)]
pub struct Mood {
    /// Milliseconds before every answer.
    pub slow: AtomicU64,
    /// Answers that will break in the middle.
    pub torn: AtomicU64,
    /// Requests that get no answer at all: their connection is cut.
    pub cut: AtomicU64,
    /// Shop and bank answer 503.
    pub failing: AtomicBool,
    /// Shop and bank answer too late.
    pub stalled: AtomicBool,
    /// When the backend left the service, unless it is in it.
    left: Mutex<Option<Instant>>,
    /// HTTP requests.
    pub received: AtomicU64,
    /// 503s and late answers of the bank.
    pub bank_failures: AtomicU64,
}

/// One backend: a pod with an application for every service.
pub struct Backend {
    pub name: &'static str,
    pub meshed: Meshed,
    pub mood: Arc<Mood>,
    in_service: bool,
    _apps: Vec<Echo>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    fn enter(&self, own: &str, id: &str, mood: &Mood) {
        mood.received.fetch_add(1, Ordering::Relaxed);
        *lock(&self.received).entry(id.to_owned()).or_default() += 1;
        let left = *lock(&mood.left);
        if let Some(left) = left
            && left.elapsed() > FAREWELL
        {
            lock(&self.strays).push(format!("{id} at {own}, {:?} late", left.elapsed()));
        }
    }

    /// Requests that were received more often than `allowed` says of their name.
    pub fn beyond(&self, allowed: impl Fn(&str) -> u32) -> Vec<(String, u32)> {
        let received = lock(&self.received);
        let beyond = received.iter().filter(|(id, n)| **n > allowed(id));
        beyond.map(|(id, n)| (id.clone(), *n)).collect()
    }

    /// How many requests of a kind were received, and how often in all.
    pub fn of(&self, kind: &str) -> (u64, u64) {
        let received = lock(&self.received);
        let of_kind = received.iter().filter(|(id, _)| kind_of(id) == kind);
        of_kind.fold((0, 0), |(ids, all), (_, n)| (ids + 1, all + u64::from(*n)))
    }

    pub fn strays(&self) -> Vec<String> {
        lock(&self.strays).clone()
    }
}

/// Names of requests begin with their kind.
pub fn kind_of(id: &str) -> &str {
    id.split('-').next().unwrap_or_default()
}

impl Service {
    fn path(&self) -> String {
        let (_, port) = self.vip.rsplit_once(':').expect("an address");
        format!("{}.ns.svc.cluster.local:{port}", self.name)
    }

    /// Who answers for it in a pod.
    pub fn greeting(&self, pod: &str) -> String {
        format!("{}@{pod}", self.name)
    }
}

/// Some of the next ones: whether this is one of them.
fn one_of(left: &AtomicU64) -> bool {
    let less = |n: u64| n.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

impl Backend {
    pub fn new(
        mesh: &mut Mesh,
        name: &'static str,
        env: &[(&str, &str)],
        ledger: &Arc<Ledger>,
    ) -> Self {
        let meshed = mesh.meshed(name, env);
        let mood = Arc::<Mood>::default();
        let mut apps: Vec<Echo> = [&WEB, &SHOP, &BANK]
            .into_iter()
            .map(|service| {
                let (mood, ledger) = (mood.clone(), ledger.clone());
                let own = service.greeting(name);
                meshed.pod.netns.run(|| {
                    Echo::http_with((Ipv4Addr::UNSPECIFIED, service.port), move |request| {
                        let id = request.header("x-id").unwrap_or_default();
                        ledger.enter(&own, id, &mood);
                        answer(service, &own, id, &mood)
                    })
                })
            })
            .collect();
        let behavior = Behavior {
            greeting: format!("{}\n", DB.greeting(name)).into(),
            ..Behavior::default()
        };
        apps.push(
            meshed
                .pod
                .netns
                .run(|| Echo::tcp((Ipv4Addr::UNSPECIFIED, DB.port), behavior)),
        );
        Self {
            name,
            meshed,
            mood,
            in_service: true,
            _apps: apps,
        }
    }

    pub fn in_service(&self) -> bool {
        self.in_service
    }

    /// Joins or leaves all services; [`publish`] tells.
    pub fn set_in_service(&mut self, is: bool) {
        self.in_service = is;
        *lock(&self.mood.left) = (!is).then(Instant::now);
    }
}

/// What a backend answers: to a call, a stream of messages; else a body long enough to be cut in the
/// middle.
fn answer(service: &Service, own: &str, id: &str, mood: &Mood) -> Answer {
    if one_of(&mood.cut) {
        return Answer::Cut;
    }
    let mut delay = Duration::from_millis(mood.slow.load(Ordering::Relaxed));
    if matches!(service.name, "shop" | "bank") {
        let failing = mood.failing.load(Ordering::Relaxed);
        let stalled = mood.stalled.load(Ordering::Relaxed);
        if service.name == "bank" && (failing || stalled) {
            mood.bank_failures.fetch_add(1, Ordering::Relaxed);
        }
        if failing {
            return Answer::status(503, "no");
        }
        if stalled {
            delay = STALL;
        }
    }
    let torn = one_of(&mood.torn);
    if kind_of(id) == "grpc" {
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
    let body = format!("{own} {id} {}\n", "x".repeat(BODY));
    if torn {
        return Answer::Pieces {
            headers: vec![("content-length", body.len().to_string())],
            pieces: vec![body[..BODY / 2].to_owned().into()],
            pause: delay,
            end: End::Torn,
        };
    }
    Answer::Respond {
        status: 200,
        delay,
        body: body.into(),
    }
}

/// Tells the control plane of every service, its policy and its endpoints.
pub fn serve(mesh: &Mesh, backends: &[Backend]) {
    for (service, mut policy) in [
        (&WEB, objects::service(&WEB.path())),
        (&DB, objects::service(&DB.path())),
        (&SHOP, shop()),
        (&BANK, bank()),
    ] {
        policy.metadata = Some(objects::resource("Service", "ns", service.name));
        mesh.control.set_outbound(service.vip, policy);
    }
    publish(mesh, backends);
}

/// Tells the control plane which backends there are.
pub fn publish(mesh: &Mesh, backends: &[Backend]) {
    for service in [&WEB, &DB, &SHOP, &BANK] {
        let live = backends.iter().filter(|b| b.in_service);
        let endpoints = live.map(|b| b.meshed.endpoint(b.meshed.pod.ip4, service.port));
        mesh.control
            .set_endpoints(service.path(), endpoints.collect::<Vec<_>>());
    }
}

fn duration(time: Duration) -> Option<prost_types::Duration> {
    Some(time.try_into().expect("short"))
}

fn limit(request: Duration) -> Option<Timeouts> {
    Some(Timeouts {
        request: duration(request),
        ..Timeouts::default()
    })
}

/// Failed answers and slow ones are tried again.
fn shop() -> OutboundPolicy {
    let mut route = objects::http_route(objects::balancer(&SHOP.path()));
    let rule = &mut route.rules[0];
    rule.timeouts = limit(SHOP_LIMIT);
    rule.retry = Some(Retry {
        max_retries: RETRIES,
        timeout: duration(TRY_LIMIT),
        conditions: Some(retry::Conditions {
            status_ranges: vec![retry::conditions::StatusRange {
                start: 500,
                end: 599,
            }],
        }),
        backoff: Some(ExponentialBackoff {
            min_backoff: duration(Duration::from_millis(5)),
            max_backoff: duration(Duration::from_millis(50)),
            ..ExponentialBackoff::default()
        }),
        ..Retry::default()
    });
    objects::detect(vec![route], None)
}

/// An endpoint that fails is taken out.
fn bank() -> OutboundPolicy {
    let mut route = objects::http_route(objects::balancer(&BANK.path()));
    route.rules[0].timeouts = limit(BANK_LIMIT);
    let mut policy = objects::detect(vec![route], None);
    let accrual = Some(FailureAccrual {
        kind: Some(failure_accrual::Kind::ConsecutiveFailures(
            failure_accrual::ConsecutiveFailures {
                max_failures: BREAKS_AFTER,
                backoff: Some(ExponentialBackoff {
                    min_backoff: duration(BREAK),
                    max_backoff: duration(4 * BREAK),
                    ..ExponentialBackoff::default()
                }),
            },
        )),
        ejection: None,
    });
    if let Some(proxy_protocol::Kind::Detect(detect)) =
        policy.protocol.as_mut().and_then(|p| p.kind.as_mut())
        && let (Some(http1), Some(http2)) = (detect.http1.as_mut(), detect.http2.as_mut())
    {
        http1.failure_accrual = accrual;
        http2.failure_accrual = accrual;
    }
    policy
}
