//! One watch per kind for the process, feeding every index that asked for the kind.
//!
//! Services call [`Watches::subscribe`] with their shared index, once per kind; a kind several of
//! them want is still watched once. [`Watches::start`] runs the watches. Readiness is held back
//! until every kind has been listed once; kinds that may be absent ([`Watched::OPTIONAL`]) count
//! as empty until they appear.

use std::{
    any::Any,
    borrow::Cow,
    collections::BTreeMap,
    fmt::{self, Debug},
    pin::pin,
    sync::Arc,
};

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt, watcher},
};
use linkerd_runtime::ready::{Block, Readiness};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tracing::{Instrument, debug, info, info_span, warn};

use crate::object::{Decoded, Key};

mod metrics;

use metrics::KindMetrics;
pub use metrics::Metrics;

/// What a service keeps of a kind. Calls come from one task per kind, in the order of the watch.
/// An object that cannot be read counts as absent, also when an older version of it could be:
/// what is served is what a process that starts now would serve.
pub trait Index<T>: Send {
    /// The object is new or has changed.
    fn apply(&mut self, object: Arc<T>);

    /// The object is gone. It may never have been applied.
    fn delete(&mut self, key: &Key);

    /// These are all objects there are; whatever else is known is gone.
    fn reset(&mut self, objects: Vec<Arc<T>>);
}

/// A kind that can be watched.
pub trait Watched:
    Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
    /// Whether the cluster may lack the kind. It is looked for again and again.
    const OPTIONAL: bool = false;
}

/// The table of watches: kinds, and who wants to hear of them.
#[derive(Default)]
pub struct Watches {
    kinds: BTreeMap<Target, Box<dyn Kind>>,
}

/// Running watches. They stop when this is dropped.
#[derive(Debug)]
pub struct Running(Vec<JoinHandle<()>>);

/// Plural, group and namespace (all namespaces when absent).
type Target = (&'static str, &'static str, Option<String>);

type Feed<T> = Arc<Mutex<dyn Index<T>>>;

/// A [`Watch`] whose type has been forgotten.
trait Kind: Any + Send {
    fn start(self: Box<Self>, client: Client, metrics: &Metrics, block: Block) -> JoinHandle<()>;
    fn name(&self) -> &'static str;
    fn any(&mut self) -> &mut dyn Any;
}

struct Watch<T> {
    api: Box<dyn FnOnce(Client) -> Api<Decoded<T>> + Send>,
    feeds: Vec<Feed<T>>,
}

/// A watch's events, turned into calls of its indexes. Apart from the stream so that tests can
/// feed it by hand.
struct Feeder<T> {
    feeds: Vec<Feed<T>>,
    metrics: Arc<KindMetrics>,
    block: Option<Block>,
    /// Objects of a list that has not ended yet.
    listing: Vec<Arc<T>>,
    absent: bool,
}

// === impl Watches ===

impl Watches {
    pub fn new() -> Self {
        Self::default()
    }

    /// Feeds `index` with all objects of a kind.
    pub fn subscribe<T: Watched, I: Index<T> + 'static>(&mut self, index: &Arc<Mutex<I>>) {
        self.add::<T>(None, Api::all, index.clone());
    }

    /// Feeds `index` with the objects of one namespace.
    pub fn subscribe_in<T, I>(&mut self, namespace: &str, index: &Arc<Mutex<I>>)
    where
        T: Watched + Resource<Scope = NamespaceResourceScope>,
        I: Index<T> + 'static,
    {
        let name = namespace.to_owned();
        let api = move |client| Api::namespaced(client, &name);
        self.add::<T>(Some(namespace.to_owned()), api, index.clone());
    }

    fn add<T: Watched>(
        &mut self,
        namespace: Option<String>,
        api: impl FnOnce(Client) -> Api<Decoded<T>> + Send + 'static,
        feed: Feed<T>,
    ) {
        let target = (plural::<T>(), group::<T>(), namespace);
        let kind = self.kinds.entry(target).or_insert_with(|| {
            Box::new(Watch::<T> {
                api: Box::new(api),
                feeds: Vec::new(),
            })
        });
        kind.any()
            .downcast_mut::<Watch<T>>()
            .expect("one type stands for one kind")
            .feeds
            .push(feed);
    }

    /// Starts every watch. `readiness` is held back until each has listed its kind.
    pub fn start(self, client: &Client, metrics: &Metrics, readiness: &Readiness) -> Running {
        let tasks = self.kinds.into_values().map(|kind| {
            let block = readiness.block(kind.name());
            kind.start(client.clone(), metrics, block)
        });
        Running(tasks.collect())
    }
}

impl Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kinds.keys()).finish()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

// === impl Watch ===

impl<T: Watched> Kind for Watch<T> {
    fn start(self: Box<Self>, client: Client, metrics: &Metrics, block: Block) -> JoinHandle<()> {
        let api = (self.api)(client);
        let (version, kind) = (T::api_version(&()), T::kind(&()));
        let metrics = metrics.kind(&version, &kind, plural::<T>());
        let feeder = Feeder::new(self.feeds, metrics, block);
        let span = info_span!("watch", kind = plural::<T>());
        linkerd_runtime::spawn("watch", run(api, feeder).instrument(span))
    }

    fn name(&self) -> &'static str {
        plural::<T>()
    }

    fn any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Runs for ever: the watcher picks up again where it stopped, with growing pauses, and lists
/// anew when it fell too far behind.
async fn run<T: Watched>(api: Api<Decoded<T>>, mut feeder: Feeder<T>) {
    let config = watcher::Config::default().page_size(200);
    let mut events = pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => feeder.event(event),
            Err(error) => feeder.failure(&error),
        }
    }
}

// === impl Feeder ===

impl<T: Watched> Feeder<T> {
    fn new(feeds: Vec<Feed<T>>, metrics: Arc<KindMetrics>, block: Block) -> Self {
        Self {
            feeds,
            metrics,
            block: Some(block),
            listing: Vec::new(),
            absent: false,
        }
    }

    fn event(&mut self, event: watcher::Event<Decoded<T>>) {
        match event {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(decoded) => {
                if let Some(object) = self.readable(decoded) {
                    self.listing.push(object);
                }
            }
            watcher::Event::InitDone => {
                let objects = std::mem::take(&mut self.listing);
                self.reset(objects);
            }
            watcher::Event::Apply(decoded) => {
                self.metrics.applied(decoded.written);
                let key = Key::of(&decoded.metadata);
                match self.readable(decoded) {
                    Some(object) => {
                        self.metrics.holds(key, true);
                        for feed in &self.feeds {
                            feed.lock().apply(object.clone());
                        }
                    }
                    None => self.delete(key),
                }
            }
            watcher::Event::Delete(decoded) => {
                self.metrics.deleted();
                self.delete(Key::of(&decoded.metadata));
            }
        }
    }

    fn delete(&mut self, key: Key) {
        for feed in &self.feeds {
            feed.lock().delete(&key);
        }
        self.metrics.holds(key, false);
    }

    fn failure(&mut self, error: &watcher::Error) {
        if T::OPTIONAL && is_unknown_kind(error) {
            if !self.absent {
                warn!(
                    "{}.{} resource kind not found, skipping watches",
                    plural::<T>(),
                    group::<T>()
                );
                self.absent = true;
                self.reset(Vec::new());
            }
            return;
        }
        self.metrics.failed();
        info!(%error, "Watch interrupted; the last state is served meanwhile");
    }

    fn reset(&mut self, objects: Vec<Arc<T>>) {
        debug!(objects = objects.len(), "Listed");
        self.metrics.listed();
        let keys = objects.iter().map(|object| Key::of(object.meta()));
        self.metrics.holds_only(keys);
        for feed in &self.feeds {
            feed.lock().reset(objects.clone());
        }
        self.block = None;
    }

    fn readable(&mut self, decoded: Decoded<T>) -> Option<Arc<T>> {
        self.absent = false;
        match decoded.object {
            Ok(object) => Some(Arc::new(object)),
            Err(error) => {
                let key = Key::of(&decoded.metadata);
                warn!("skipping invalid {} resource {key}: {error}", T::kind(&()));
                self.metrics.invalid();
                None
            }
        }
    }
}

fn is_unknown_kind(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn plural<T: Resource<DynamicType = ()>>() -> &'static str {
    fixed(T::plural(&()))
}

fn group<T: Resource<DynamicType = ()>>() -> &'static str {
    fixed(T::group(&()))
}

/// Names of kinds known at compile time are never allocated.
fn fixed(name: Cow<'static, str>) -> &'static str {
    match name {
        Cow::Borrowed(name) => name,
        Cow::Owned(_) => "unnamed",
    }
}

// === The built-in kinds ===

macro_rules! watched {
    ($($kind:ty),+ $(,)?) => { $(impl Watched for $kind {})+ };
}

watched! {
    crate::Pod,
    crate::Service,
    crate::EndpointSlice,
    crate::Endpoints,
    crate::ReplicaSet,
    crate::Job,
    crate::Node,
    crate::Secret,
    crate::ServiceProfile,
    crate::ExternalWorkload,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Pod;

    #[derive(Default)]
    struct Log(Vec<String>);

    impl Index<Pod> for Log {
        fn apply(&mut self, pod: Arc<Pod>) {
            self.0.push(format!("apply {}", Key::of(&pod.metadata)));
        }

        fn delete(&mut self, key: &Key) {
            self.0.push(format!("delete {key}"));
        }

        fn reset(&mut self, pods: Vec<Arc<Pod>>) {
            let names: Vec<_> = pods
                .iter()
                .map(|pod| Key::of(&pod.metadata).to_string())
                .collect();
            self.0.push(format!("reset {}", names.join(" ")));
        }
    }

    fn pod(name: &str) -> Decoded<Pod> {
        Decoded::from_json(json!({"metadata": {"namespace": "ns", "name": name}}))
    }

    fn unreadable(name: &str) -> Decoded<Pod> {
        Decoded::from_json(json!({"metadata": {"namespace": "ns", "name": name}, "spec": 1}))
    }

    #[test]
    fn events_become_calls_of_every_index() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

        let readiness = Readiness::new();
        let first = Arc::new(Mutex::new(Log::default()));
        let second = Arc::new(Mutex::new(Log::default()));
        let metrics = Metrics::unregistered();
        let mut feeder = Feeder::<Pod>::new(
            vec![first.clone(), second.clone()],
            metrics.kind("v1", "Pod", "pods"),
            readiness.block("pods"),
        );

        feeder.event(Init);
        feeder.event(InitApply(pod("a")));
        feeder.event(InitApply(unreadable("x")));
        assert!(!readiness.is_ready());
        // A list that broke off half-way starts again.
        feeder.event(Init);
        feeder.event(InitApply(pod("b")));
        feeder.event(InitDone);
        assert!(readiness.is_ready());
        feeder.event(Apply(pod("c")));
        feeder.event(Apply(unreadable("b")));
        feeder.event(Delete(unreadable("b")));

        let expected = [
            "reset ns/b",
            "apply ns/c",
            // It cannot be read any more, and then it is gone.
            "delete ns/b",
            "delete ns/b",
        ];
        assert_eq!(first.lock().0, expected);
        assert_eq!(second.lock().0, expected);
    }

    #[test]
    fn a_kind_wanted_twice_is_watched_once() {
        let index = Arc::new(Mutex::new(Log::default()));
        let mut watches = Watches::new();
        watches.subscribe::<Pod, _>(&index);
        watches.subscribe::<Pod, _>(&index);
        watches.subscribe_in::<Pod, _>("linkerd", &index);
        assert_eq!(watches.kinds.len(), 2);
    }
}
