//! Linked clusters: each has an index of its own, fed by watches of its own API server. Secrets
//! of the control plane's namespace say which clusters are linked and how to reach them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ahash::AHashMap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use linkerd_k8s::{Index, Key, Secret, Watches, labels, watch};
use parking_lot::Mutex;
use tokio::{sync::watch as channel, task::JoinHandle};
use tracing::{Instrument, info, info_span, warn};

use crate::{config::Config, intern::Name, metrics::Metrics, stream::Discovery};

/// The linked clusters by name. Streams follow it, because a cluster may be linked later.
#[derive(Clone, Debug)]
pub struct Clusters(channel::Sender<Arc<AHashMap<Name, Discovery>>>);

/// Links clusters as their Secrets come and go.
#[derive(Debug)]
pub struct ClusterStore {
    clusters: Clusters,
    config: Arc<Config>,
    metrics: Metrics,
    watch_metrics: watch::Metrics,
    linked: HashMap<Key, Linked>,
}

/// Pauses between tries to use credentials that cannot be used.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Linked {
    credentials: Credentials,
    link: Link,
    /// The link that older credentials gave, which is served until this one has been listed.
    before: Arc<Mutex<Option<Link>>>,
}

/// Follows a cluster until it is dropped.
#[derive(Debug)]
struct Link {
    task: JoinHandle<()>,
    /// Whether the task may still make the cluster known.
    wanted: Arc<AtomicBool>,
}

/// What a Secret says about a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Credentials {
    cluster: String,
    trust_domain: String,
    cluster_domain: String,
    kubeconfig: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Malformed {
    #[error("label {} is missing", labels::CLUSTER_NAME)]
    Name,
    #[error("annotation {0} is missing")]
    Annotation(&'static str),
    #[error("key kubeconfig is missing")]
    Kubeconfig,
}

// === impl Clusters ===

impl Clusters {
    pub fn get(&self, name: &str) -> Option<Discovery> {
        self.0.borrow().get(name).cloned()
    }

    pub fn insert(&self, name: &str, cluster: Discovery) {
        self.0.send_modify(|clusters| {
            Arc::make_mut(clusters).insert(name.into(), cluster);
        });
    }

    pub fn remove(&self, name: &str) {
        self.0.send_if_modified(|clusters| {
            clusters.contains_key(name) && Arc::make_mut(clusters).remove(name).is_some()
        });
    }

    /// Inserts unless the cluster was unlinked meanwhile.
    fn insert_if(&self, wanted: &AtomicBool, name: &str, cluster: Discovery) {
        self.0.send_if_modified(|clusters| {
            let wanted = wanted.load(Ordering::Acquire);
            if wanted {
                Arc::make_mut(clusters).insert(name.into(), cluster);
            }
            wanted
        });
    }

    /// Removes it and keeps it from being inserted: both happen under the same lock.
    fn remove_for_good(&self, wanted: &AtomicBool, name: &str) {
        self.0.send_if_modified(|clusters| {
            wanted.store(false, Ordering::Release);
            clusters.contains_key(name) && Arc::make_mut(clusters).remove(name).is_some()
        });
    }

    pub fn follow(&self) -> channel::Receiver<Arc<AHashMap<Name, Discovery>>> {
        self.0.subscribe()
    }
}

impl Default for Clusters {
    fn default() -> Self {
        Self(channel::Sender::new(Arc::default()))
    }
}

// === impl ClusterStore ===

impl ClusterStore {
    pub fn new(
        clusters: Clusters,
        config: Arc<Config>,
        metrics: Metrics,
        watch_metrics: watch::Metrics,
    ) -> Self {
        Self {
            clusters,
            config,
            metrics,
            watch_metrics,
            linked: HashMap::new(),
        }
    }

    fn link(&mut self, key: Key, credentials: Credentials) {
        if self
            .linked
            .get(&key)
            .is_some_and(|linked| linked.credentials == credentials)
        {
            return;
        }
        let name = credentials.cluster.clone();
        let before = self.superseded(&key, &name);
        let replaces = before.is_some();
        let before = Arc::new(Mutex::new(before));
        let config = Config {
            trust_domain: credentials.trust_domain.clone(),
            cluster_domain: credentials.cluster_domain.clone(),
            ..(*self.config).clone()
        };
        let discovery = Discovery::new(config, self.metrics.for_cluster(&name));
        let metrics = self.watch_metrics.for_cluster(&name);
        let span = info_span!("cluster", %name);
        let wanted = Arc::new(AtomicBool::new(true));
        let (clusters, insert_if) = (self.clusters.clone(), wanted.clone());
        let (cluster, superseded) = (name.clone(), before.clone());
        // A cluster nobody can connect to is not known; one that is away is, as it may come back.
        let known = move |discovery| {
            let mut superseded = superseded.lock();
            clusters.insert_if(&insert_if, &cluster, discovery);
            superseded.take();
        };
        let kubeconfig = credentials.kubeconfig.clone();
        let follow = follow(kubeconfig, discovery, metrics, replaces, known);
        let task = linkerd_runtime::spawn("cluster", follow.instrument(span));
        let linked = Linked {
            credentials,
            link: Link { task, wanted },
            before,
        };
        self.linked.insert(key, linked);
        self.metrics.clusters(self.linked.len());
        info!(cluster = name, "Linked");
    }

    /// Takes the link of a Secret that has other credentials now: the one that is served goes on
    /// being served until the new one has been listed, so that clients lose nothing meanwhile.
    /// There are never more than these two.
    fn superseded(&mut self, key: &Key, cluster: &str) -> Option<Link> {
        let same = |linked: &Linked| linked.credentials.cluster == cluster;
        let served = self
            .clusters
            .get(cluster)
            .is_some_and(|it| it.listed().is_ready());
        if !served || !self.linked.get(key).is_some_and(same) {
            self.unlink(key);
            return None;
        }
        let Linked { link, before, .. } = self.linked.remove(key)?;
        let mut before = before.lock();
        let older = before.take();
        if older.is_some() {
            // It is not known yet, and under this lock it cannot become so.
            link.wanted.store(false, Ordering::Release);
        }
        older.or(Some(link))
    }

    fn unlink(&mut self, key: &Key) {
        if let Some(linked) = self.linked.remove(key) {
            let older = linked.before.lock().take();
            let name = &linked.credentials.cluster;
            for link in older.iter().chain([&linked.link]) {
                self.clusters.remove_for_good(&link.wanted, name);
            }
            self.metrics.clusters(self.linked.len());
            info!(cluster = name, "Unlinked");
        }
    }
}

impl Index<Secret> for ClusterStore {
    fn apply(&mut self, secret: Arc<Secret>) {
        let key = Key::of(&secret.metadata);
        if secret.type_.as_deref() != Some(labels::REMOTE_KUBECONFIG_TYPE) {
            return self.unlink(&key);
        }
        match Credentials::read(&secret) {
            Ok(credentials) => self.link(key, credentials),
            Err(error) => {
                warn!(secret = %key, %error, "Cannot link a cluster");
                self.unlink(&key);
            }
        }
    }

    fn delete(&mut self, key: &Key) {
        self.unlink(key);
    }

    fn reset(&mut self, secrets: Vec<Arc<Secret>>) {
        let mut gone: Vec<Key> = self.linked.keys().cloned().collect();
        for secret in secrets {
            let key = Key::of(&secret.metadata);
            gone.retain(|it| *it != key);
            self.apply(secret);
        }
        for key in gone {
            self.unlink(&key);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Credentials {
    fn read(secret: &Secret) -> Result<Self, Malformed> {
        let meta = &secret.metadata;
        let annotation = |name: &'static str| {
            let value = meta
                .annotations
                .as_ref()
                .and_then(|all| all.get(name))
                .cloned();
            value.ok_or(Malformed::Annotation(name))
        };
        let name = meta
            .labels
            .as_ref()
            .and_then(|all| all.get(labels::CLUSTER_NAME));
        let kubeconfig = secret.data.as_ref().and_then(|data| data.get("kubeconfig"));
        Ok(Self {
            cluster: name
                .filter(|name| !name.is_empty())
                .ok_or(Malformed::Name)?
                .clone(),
            trust_domain: annotation(labels::CLUSTER_TRUST_DOMAIN)?,
            cluster_domain: annotation(labels::CLUSTER_DOMAIN)?,
            kubeconfig: kubeconfig.ok_or(Malformed::Kubeconfig)?.0.clone(),
        })
    }
}

/// Watches another cluster until aborted. What is known stays when its API server goes away. A
/// cluster that replaces another is made known only once it has been listed.
async fn follow(
    kubeconfig: Vec<u8>,
    discovery: Discovery,
    metrics: watch::Metrics,
    replaces: bool,
    known: impl FnOnce(Discovery),
) {
    let client = connect(&kubeconfig).await;
    let mut watches = Watches::new();
    discovery.subscribe_remote(&mut watches);
    // Nothing is answered from it before it has been listed.
    let _running = watches.start(&client, &metrics, discovery.listed());
    if replaces {
        discovery.listed().ready().await;
    }
    known(discovery);
    std::future::pending::<()>().await;
}

/// A client, as soon as the credentials give one: files they name may come later.
async fn connect(kubeconfig: &[u8]) -> kube::Client {
    let mut pause = FIRST_PAUSE;
    loop {
        match client(kubeconfig).await {
            Ok(client) => return client,
            Err(error) => warn!(%error, ?pause, "The credentials of the cluster cannot be used"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn client(kubeconfig: &[u8]) -> anyhow::Result<kube::Client> {
    let text = std::str::from_utf8(kubeconfig)?;
    let kubeconfig = Kubeconfig::from_yaml(text)?;
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

#[cfg(test)]
mod tests;
