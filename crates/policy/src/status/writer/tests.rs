//! The writer against an API server that refuses, hangs or is slow: what is written, how often, and
//! under whose lease.

use super::*;
use crate::{
    cluster::tests::cluster,
    testing::{read, route, service, to_service},
};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body as RequestBody;
use linkerd_k8s::{Index as _, Service, policy as k8s};
use std::convert::Infallible;
use tokio::sync::watch;

const TIMEOUT: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(120);

/// What the server does with a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// Takes it after a while.
    Takes(Duration),
    Refuses,
    Hangs,
}

/// Notes the patches that begin and those that are done, by name of the object.
#[derive(Clone)]
struct Server(Arc<Mutex<State>>);

struct State {
    mood: Mood,
    begun: Vec<String>,
    done: Vec<String>,
    /// The newest request as it came: method, target, kind of content, body.
    newest: Option<[String; 4]>,
}

impl Server {
    fn new(mood: Mood) -> Self {
        Self(Arc::new(Mutex::new(State {
            mood,
            begun: Vec::new(),
            done: Vec::new(),
            newest: None,
        })))
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<RequestBody>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<RequestBody>) -> Response<Full<bytes::Bytes>> {
        let path = request.uri().path().to_owned();
        let name = path.rsplit('/').nth(1).unwrap_or_default().to_owned();
        assert!(path.ends_with("/status"), "{path}");
        let (head, body) = request.into_parts();
        let content = head.headers.get(http::header::CONTENT_TYPE);
        let content = content.and_then(|it| it.to_str().ok()).unwrap_or_default();
        let body = body.collect().await.expect("a body").to_bytes();
        let newest = [
            head.method.to_string(),
            head.uri.to_string(),
            content.to_owned(),
            String::from_utf8_lossy(&body).into_owned(),
        ];
        let mood = {
            let mut state = self.0.lock();
            state.newest = Some(newest);
            state.begun.push(name.clone());
            state.mood
        };
        let (status, body) = match mood {
            Mood::Takes(after) => {
                tokio::time::sleep(after).await;
                self.0.lock().done.push(name.clone());
                let object = json!({"apiVersion": "x/v1", "kind": "X", "metadata": {"name": name}});
                (200, object)
            }
            Mood::Refuses => {
                let refusal = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "no", "reason": "InternalError", "code": 500,
                });
                (500, refusal)
            }
            Mood::Hangs => std::future::pending().await,
        };
        let body = Full::new(bytes::Bytes::from(body.to_string()));
        let response = Response::builder().status(status).body(body);
        response.expect("a response")
    }

    fn counts(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.begun.len(), state.done.len())
    }
}

/// A writer that runs, and what it depends on.
struct Running {
    index: Arc<Mutex<Index>>,
    server: Server,
    metrics: Metrics,
    lease: watch::Sender<Option<Instant>>,
    drain: drain::Signal,
    writer: tokio::task::JoinHandle<()>,
}

fn in_a_year() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(365 * 24 * 3600))
}

impl Running {
    fn start(mood: Mood, routes: usize) -> Self {
        Self::when_listed(mood, routes, Readiness::new())
    }

    fn when_listed(mood: Mood, routes: usize, listed: Readiness) -> Self {
        let mut index = Index::new(cluster());
        index.apply(read::<Service>(&service("web", "10.1.0.1")));
        for n in 0..routes {
            let route = route("policy", &format!("r{n}"), to_service("web"), json!([{}]));
            index.apply(read::<k8s::PolicyHttpRoute>(&route));
        }
        let index = Arc::new(Mutex::new(index));
        let server = Server::new(mood);
        let (lease, until) = watch::channel(in_a_year());
        let (drain, draining) = drain::channel();
        let metrics = Metrics::unregistered();
        let writer = Writer::new(
            index.clone(),
            server.client(),
            Leadership::held_until(until),
            draining,
            TIMEOUT,
            metrics.clone(),
        );
        let writer = linkerd_runtime::spawn("writer", writer.when_listed(listed).run());
        Self {
            index,
            server,
            metrics,
            lease,
            drain,
            writer,
        }
    }

    /// Something changes that has nothing to do with any status.
    fn stir(&self) {
        let mut index = self.index.lock();
        index.apply(read::<Service>(&service("other", "10.1.0.9")));
        linkerd_k8s::Index::<Service>::delete(&mut *index, &Key::new("shop", "other"));
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            let counts = self.server.counts();
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}: {counts:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

const AT_ONCE: Mood = Mood::Takes(Duration::ZERO);

#[tokio::test(start_paused = true)]
async fn a_status_is_not_written_twice_while_nobody_has_seen_it() {
    let running = Running::start(AT_ONCE, 1);
    running
        .until("a patch", |it| it.server.counts().1 == 1)
        .await;
    let written = Instant::now();
    // The watch has not brought the status back yet: the index still finds it missing.
    while written.elapsed() < TICK - Duration::from_secs(1) {
        running.stir();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(running.server.counts(), (1, 1));
    // By now it should have been seen: maybe somebody took it back.
    running
        .until("another", |it| it.server.counts().1 == 2)
        .await;
    assert!(written.elapsed() >= TICK, "{:?}", written.elapsed());
    assert_eq!(running.metrics.patches.get(), 2);
}

/// Spec 1.8 and 5.12: what a patch says, and in whose name.
#[tokio::test(start_paused = true)]
async fn a_patch_names_its_object_and_its_writer() {
    let running = Running::start(AT_ONCE, 1);
    running
        .until("a patch", |it| it.server.counts().1 == 1)
        .await;
    let newest = running.server.0.lock().newest.take();
    let [method, target, content, body] = newest.expect("a request");
    assert_eq!(method, "PATCH");
    let (path, query) = target.split_once('?').expect("a query");
    let object = "/apis/policy.linkerd.io/v1beta3/namespaces/shop/httproutes/r0/status";
    assert_eq!(path, object);
    let manager = "fieldManager=linkerd.io%2Fpolicy-controller";
    assert!(query.split('&').any(|pair| pair == manager), "{query}");
    assert_eq!(content, "application/merge-patch+json");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let fields: Vec<_> = body.as_object().expect("an object").keys().collect();
    assert_eq!(fields, ["apiVersion", "kind", "name", "status"]);
    assert_eq!(body["apiVersion"], "policy.linkerd.io/v1beta3");
    assert_eq!(body["kind"], "HTTPRoute");
    assert_eq!(body["name"], "r0");
    let entry = &body["status"]["parents"][0];
    assert_eq!(entry["controllerName"], CONTROLLER_NAME);
    assert_eq!(entry["conditions"][0]["type"], "Accepted");
}

#[tokio::test(start_paused = true)]
async fn a_status_that_changes_is_written_at_once() {
    let running = Running::start(AT_ONCE, 1);
    running
        .until("a patch", |it| it.server.counts().1 == 1)
        .await;
    let started = Instant::now();
    let gone = Key::new("shop", "web");
    linkerd_k8s::Index::<Service>::delete(&mut *running.index.lock(), &gone);
    running
        .until("another", |it| it.server.counts().1 == 2)
        .await;
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_status_that_was_refused_is_tried_again() {
    let running = Running::start(Mood::Refuses, 1);
    running
        .until("a refusal", |it| it.metrics.errors.get() == 1)
        .await;
    running.server.0.lock().mood = AT_ONCE;
    running
        .until("a patch", |it| it.metrics.patches.get() == 1)
        .await;
    assert_eq!(running.server.counts(), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_gets_no_answer_is_given_up_and_tried_again() {
    let running = Running::start(Mood::Hangs, 1);
    let started = Instant::now();
    running
        .until("a timeout", |it| it.metrics.timeouts.get() == 1)
        .await;
    assert!(started.elapsed() >= TIMEOUT);
    running.server.0.lock().mood = AT_ONCE;
    running
        .until("a patch", |it| it.metrics.patches.get() == 1)
        .await;
    assert_eq!(running.metrics.errors.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_lost_in_the_middle_stops_the_rest() {
    let all = CONCURRENCY + 12;
    let running = Running::start(Mood::Takes(Duration::from_secs(1)), all);
    running
        .until("the first patches", |it| {
            it.server.counts().0 == CONCURRENCY
        })
        .await;
    running.lease.send_replace(None);
    running
        .until("the others to be dropped", |it| {
            it.metrics.drops.get() == 12
        })
        .await;
    tokio::time::sleep(3 * TICK).await;
    assert_eq!(running.server.counts(), (CONCURRENCY, CONCURRENCY));

    // Whoever leads again finds what is left, and only that once the rest has been seen.
    running.lease.send_replace(in_a_year());
    running
        .until("the rest", |it| {
            let state = it.server.0.lock();
            (0..all).all(|n| state.done.contains(&format!("r{n}")))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_without_the_lease() {
    let running = Running::start(AT_ONCE, 1);
    running.lease.send_replace(None);
    tokio::time::sleep(5 * TICK).await;
    assert_eq!(running.server.counts(), (0, 0));
    running.lease.send_replace(in_a_year());
    running
        .until("a patch", |it| it.server.counts().1 == 1)
        .await;
}

/// A route whose Service has not been listed yet would be told that there is none.
#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_everything_is_listed() {
    let listed = Readiness::new();
    let services = listed.block("services");
    let running = Running::when_listed(AT_ONCE, 1, listed);
    tokio::time::sleep(5 * TICK).await;
    assert_eq!(running.server.counts(), (0, 0));
    services.release();
    running
        .until("a patch", |it| it.server.counts().1 == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_what_is_under_way_finish_and_begins_nothing() {
    let running = Running::start(Mood::Takes(Duration::from_secs(1)), CONCURRENCY + 4);
    running
        .until("the first patches", |it| {
            it.server.counts().0 == CONCURRENCY
        })
        .await;
    let Running {
        drain,
        writer,
        server,
        ..
    } = running;
    drain.drain().await;
    writer.await.expect("ends");
    assert_eq!(server.counts(), (CONCURRENCY, CONCURRENCY));
}

#[test]
fn times_do_not_count_when_statuses_are_compared() {
    let status = |at: &str| json!({"parents": [{"conditions": [{"type": "A", "lastTransitionTime": at}]}], "lastTransitionTime": at});
    assert_eq!(without_times(status("1")), without_times(status("2")));
    assert_eq!(
        without_times(status("1")),
        json!({"parents": [{"conditions": [{"type": "A"}]}]})
    );
}
