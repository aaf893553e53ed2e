//! A Kubernetes API server in a test: keeps objects of any kind, lists them in pages, watches,
//! creates, replaces, merges and deletes, and can be away for a while. No types, no admission.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;

mod store;

use store::{Change, Path, Store};

/// The server. It ends when this is dropped.
pub struct ApiServer {
    addr: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    serving: Option<tokio::task::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    store: Store,
    watches: Vec<Watch>,
    /// Kinds (`plural.group`) this cluster does not have.
    absent: BTreeSet<String>,
}

struct Watch {
    collection: String,
    namespace: Option<String>,
    events: mpsc::UnboundedSender<Bytes>,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

// === impl ApiServer ===

impl ApiServer {
    pub async fn start() -> Self {
        let mut server = Self {
            addr: (Ipv4Addr::LOCALHOST, 0).into(),
            shared: Arc::default(),
            serving: None,
        };
        server.come_back().await;
        server
    }

    /// The text of a kubeconfig that leads here.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.addr)}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        })
        .to_string()
    }

    /// Closes every connection and refuses new ones. Objects may change meanwhile.
    pub async fn go_away(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
        self.lock().watches.clear();
    }

    /// Serves again, at the same address.
    pub async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.addr).await.expect("a free port");
        self.addr = listener.local_addr().expect("bound");
        let shared = self.shared.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "a test server has no span to carry"
        )]
        let serving = tokio::spawn(serve(listener, shared));
        self.serving = Some(serving);
    }

    /// The cluster does not have the kind `plural.group`.
    pub fn lacks(&self, collection: &str) {
        self.lock().absent.insert(collection.to_owned());
    }

    /// Puts an object where `plural.group` (or `plural`, of the core group) keeps it.
    pub fn apply(&self, collection: &str, object: Value) {
        let mut shared = self.lock();
        let change = shared.store.put(collection, object);
        shared.tell(&change);
    }

    pub fn delete(&self, collection: &str, namespace: &str, name: &str) {
        let mut shared = self.lock();
        if let Some(change) = shared.store.take(collection, namespace, name) {
            shared.tell(&change);
        }
    }

    /// An object as it is now.
    pub fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<Value> {
        self.lock().store.get(collection, namespace, name).cloned()
    }

    /// Forgets what happened: watches that come back must list anew.
    pub fn forget_history(&self) {
        self.lock().store.forget_history();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connections end with the task this runs in.
async fn serve(listener: TcpListener, shared: Arc<Mutex<Shared>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let _ = stream.set_nodelay(true);
                let shared = shared.clone();
                connections.spawn(async move {
                    let answer = service_fn(|request| answer(request, shared.clone()));
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Mutex<Shared>>,
) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let query: BTreeMap<&str, &str> = head
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let Some(path) = Path::parse(head.uri.path()) else {
        return Ok(full(store::failure(404)));
    };
    let mut shared = lock(&shared);
    if shared.absent.contains(&path.collection) {
        return Ok(full(store::failure(404)));
    }
    if head.method == Method::GET && query.get("watch") == Some(&"true") {
        return Ok(shared.watch(path, &query));
    }
    let (status, answer, change) = match (&head.method, &path.name) {
        (&Method::GET, None) => shared.store.list(&path, &query),
        (method, _) => shared.store.handle(method, &path, body),
    };
    if let Some(change) = change {
        shared.tell(&change);
    }
    Ok(full((status, answer)))
}

fn full((status, body): (u16, Value)) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    let json = http::HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, json);
    response
}

// === impl Shared ===

impl Shared {
    fn watch(&mut self, path: Path, query: &BTreeMap<&str, &str>) -> Response<Body> {
        let (events, receiver) = mpsc::unbounded_channel();
        let since = query.get("resourceVersion").and_then(|it| it.parse().ok());
        let watch = Watch {
            collection: path.collection,
            namespace: path.namespace,
            events,
        };
        match self.store.since(since.unwrap_or(0)) {
            Some(missed) => {
                for change in missed {
                    watch.tell(change);
                }
                self.watches.push(watch);
            }
            None => {
                let (_, status) = store::failure(410);
                let gone = json!({"type": "ERROR", "object": status});
                let _ = watch.events.send(format!("{gone}\n").into());
            }
        }
        let frames = UnboundedReceiverStream::new(receiver)
            .map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }

    fn tell(&mut self, change: &Change) {
        self.watches.retain(|watch| watch.tell(change));
    }
}

impl Watch {
    /// Whether somebody still listens.
    fn tell(&self, change: &Change) -> bool {
        let other = self
            .namespace
            .as_ref()
            .is_some_and(|it| *it != change.namespace);
        if other || self.collection != change.collection {
            return !self.events.is_closed();
        }
        self.events.send(change.line.clone()).is_ok()
    }
}

#[cfg(test)]
mod tests;
