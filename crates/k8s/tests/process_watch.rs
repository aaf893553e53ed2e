//! Watches against an API server that misbehaves: objects nobody can read, broken streams, an
//! expired version, a server that is away, a kind that is not there yet.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use linkerd_k8s::{
    Index, Key, Pod, Watched, Watches,
    watch::{Metrics, Running},
};
use linkerd_runtime::ready::Readiness;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(60);

/// Lists and watches pods as the test says.
#[derive(Clone, Default)]
struct Server(Arc<State>);

#[derive(Default)]
struct State {
    pods: Mutex<Vec<Value>>,
    away: AtomicBool,
    unknown_kind: AtomicBool,
    watch: Mutex<Option<mpsc::UnboundedSender<Bytes>>>,
    /// The next watch is told that its version is too old.
    expired: AtomicBool,
    lists: Mutex<usize>,
}

type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

fn full(status: u16, body: &Value) -> http::Response<ResponseBody> {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    http::Response::builder()
        .status(status)
        .body(body)
        .expect("a response")
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let answer = server.answer(request.uri());
            async move { answer }
        });
        Client::new(service, "default")
    }

    fn answer(&self, uri: &http::Uri) -> Result<http::Response<ResponseBody>, std::io::Error> {
        let state = &self.0;
        if state.away.load(Ordering::SeqCst) {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        if state.unknown_kind.load(Ordering::SeqCst) {
            return Ok(full(
                404,
                &json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "the server could not find the requested resource", "reason": "NotFound", "code": 404,
                }),
            ));
        }
        if uri.query().unwrap_or_default().contains("watch=true") {
            let (sender, receiver) = mpsc::unbounded_channel();
            if state.expired.swap(false, Ordering::SeqCst) {
                let gone = json!({"type": "ERROR", "object": {
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "too old resource version", "reason": "Expired", "code": 410,
                }});
                sender.send(line(&gone)).expect("open");
            }
            *state.watch.lock() = Some(sender);
            let frames = futures::stream::unfold(receiver, |mut receiver| async move {
                let bytes: Bytes = receiver.recv().await?;
                Some((Ok::<_, Infallible>(Frame::data(bytes)), receiver))
            });
            let body = StreamBody::new(frames).boxed_unsync();
            return Ok(http::Response::new(body));
        }
        *state.lists.lock() += 1;
        Ok(full(
            200,
            &json!({
                "kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "10"},
                "items": *state.pods.lock(),
            }),
        ))
    }

    /// Sends an event on the open watch; waits for one to be open.
    async fn event(&self, kind: &str, object: Value) {
        let event = line(&json!({"type": kind, "object": object}));
        wait("an open watch", || {
            let watch = self.0.watch.lock();
            watch
                .as_ref()
                .is_some_and(|watch| watch.send(event.clone()).is_ok())
        })
        .await;
    }

    fn break_watch(&self) {
        self.0.watch.lock().take();
    }
}

fn line(event: &Value) -> Bytes {
    format!("{event}\n").into()
}

async fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain for {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[derive(Default)]
struct Names {
    known: BTreeSet<String>,
    resets: usize,
}

impl<T: Watched> Index<T> for Names {
    fn apply(&mut self, object: Arc<T>) {
        self.known.insert(Key::of(object.meta()).name);
    }

    fn delete(&mut self, key: &Key) {
        self.known.remove(&key.name);
    }

    fn reset(&mut self, objects: Vec<Arc<T>>) {
        self.resets += 1;
        self.known = objects
            .iter()
            .map(|object| Key::of(object.meta()).name)
            .collect();
    }
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name, "resourceVersion": "11"}})
}

fn unreadable(name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"] = json!({"containers": 7});
    pod
}

fn start<T: Watched>(server: &Server) -> (Arc<Mutex<Names>>, Readiness, Running) {
    let names = Arc::new(Mutex::new(Names::default()));
    let readiness = Readiness::new();
    let mut watches = Watches::new();
    watches.subscribe::<T, _>(&names);
    let running = watches.start(&server.client(), &Metrics::unregistered(), &readiness);
    (names, readiness, running)
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[tokio::test]
async fn a_watch_survives_what_servers_do() {
    let server = Server::default();
    *server.0.pods.lock() = vec![pod("a"), unreadable("x"), pod("b")];
    let (names, readiness, _running) = start::<Pod>(&server);
    tokio::time::timeout(PATIENCE, readiness.ready())
        .await
        .expect("listed");
    assert_eq!(
        names.lock().known,
        set(&["a", "b"]),
        "one bad object spoils nothing"
    );

    server.event("ADDED", pod("c")).await;
    server.event("ADDED", pod("y")).await;
    wait("the events", || {
        names.lock().known == set(&["a", "b", "c", "y"])
    })
    .await;
    // What cannot be read any more is not served any more, and comes back when it can.
    server.event("MODIFIED", unreadable("c")).await;
    server.event("MODIFIED", unreadable("y")).await;
    server.event("DELETED", pod("a")).await;
    wait("the events", || names.lock().known == set(&["b"])).await;
    server.event("MODIFIED", pod("c")).await;
    wait("the event", || names.lock().known == set(&["b", "c"])).await;

    // A broken stream is taken up again without a new list.
    server.break_watch();
    server.event("ADDED", pod("d")).await;
    wait("the event", || names.lock().known == set(&["b", "c", "d"])).await;
    assert_eq!((names.lock().resets, *server.0.lists.lock()), (1, 1));

    // While the server is away the last state stays; then the watch goes on.
    server.0.away.store(true, Ordering::SeqCst);
    server.break_watch();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(names.lock().known, set(&["b", "c", "d"]));
    *server.0.pods.lock() = vec![pod("e")];
    server.0.expired.store(true, Ordering::SeqCst);
    server.0.away.store(false, Ordering::SeqCst);
    // Its version is too old by now: everything is listed anew.
    wait("a new list", || names.lock().known == set(&["e"])).await;
    assert_eq!(names.lock().resets, 2);
}

/// A kind the cluster may lack.
#[derive(Clone, Debug, serde::Deserialize)]
struct Maybe {
    metadata: linkerd_k8s::ObjectMeta,
}

impl kube::Resource for Maybe {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        "Maybe".into()
    }

    fn group((): &()) -> std::borrow::Cow<'_, str> {
        "example.com".into()
    }

    fn version((): &()) -> std::borrow::Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        "maybes".into()
    }

    fn meta(&self) -> &linkerd_k8s::ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut linkerd_k8s::ObjectMeta {
        &mut self.metadata
    }
}

impl Watched for Maybe {
    const OPTIONAL: bool = true;
}

#[tokio::test]
async fn a_kind_that_is_not_there_counts_as_empty_until_it_appears() {
    let server = Server::default();
    server.0.unknown_kind.store(true, Ordering::SeqCst);
    let (names, readiness, _running) = start::<Maybe>(&server);
    tokio::time::timeout(PATIENCE, readiness.ready())
        .await
        .expect("absent is as good as empty");
    assert!(names.lock().known.is_empty());
    *server.0.pods.lock() = vec![pod("a")];
    server.0.unknown_kind.store(false, Ordering::SeqCst);
    wait("the kind", || names.lock().known == set(&["a"])).await;
}

#[tokio::test]
async fn a_required_kind_that_is_not_there_holds_readiness_back() {
    let server = Server::default();
    server.0.unknown_kind.store(true, Ordering::SeqCst);
    let (_names, readiness, _running) = start::<Pod>(&server);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(readiness.waiting_for(), ["pods"]);
    server.0.unknown_kind.store(false, Ordering::SeqCst);
    tokio::time::timeout(PATIENCE, readiness.ready())
        .await
        .expect("ready when it is there");
}
