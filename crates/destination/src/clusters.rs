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
        self.unlink(&key);
        let name = credentials.cluster.clone();
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
        let cluster = name.clone();
        // A cluster nobody can connect to is not known; one that is away is, as it may come back.
        let known = move |discovery| clusters.insert_if(&insert_if, &cluster, discovery);
        let follow = follow(credentials.kubeconfig.clone(), discovery, metrics, known);
        let task = linkerd_runtime::spawn("cluster", follow.instrument(span));
        let linked = Linked {
            credentials,
            task,
            wanted,
        };
        self.linked.insert(key, linked);
        self.metrics.clusters(self.linked.len());
        info!(cluster = name, "Linked");
    }

    fn unlink(&mut self, key: &Key) {
        if let Some(linked) = self.linked.remove(key) {
            linked.task.abort();
            let name = &linked.credentials.cluster;
            self.clusters.remove_for_good(&linked.wanted, name);
            self.metrics.clusters(self.linked.len());
            info!(cluster = linked.credentials.cluster, "Unlinked");
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

impl Drop for ClusterStore {
    fn drop(&mut self) {
        for linked in self.linked.values() {
            linked.task.abort();
        }
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

/// Watches another cluster until aborted. What is known stays when its API server goes away.
async fn follow(
    kubeconfig: Vec<u8>,
    discovery: Discovery,
    metrics: watch::Metrics,
    known: impl FnOnce(Discovery),
) {
    let client = connect(&kubeconfig).await;
    let mut watches = Watches::new();
    discovery.subscribe_remote(&mut watches);
    // Nothing is answered from it before it has been listed.
    let _running = watches.start(&client, &metrics, discovery.listed());
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
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde_json::json;

    use super::*;
    use crate::fixture::{object, with};

    fn secret(extra: serde_json::Value) -> Arc<Secret> {
        let json = json!({
            "metadata": {
                "namespace": "linkerd", "name": "cluster-credentials-east",
                "labels": {"multicluster.linkerd.io/cluster-name": "east"},
                "annotations": {
                    "multicluster.linkerd.io/trust-domain": "east.td",
                    "multicluster.linkerd.io/cluster-domain": "east.local",
                },
            },
            "type": "mirror.linkerd.io/remote-kubeconfig",
            "data": {"kubeconfig": kubeconfig(1)},
        });
        object(with(json, extra))
    }

    /// Leads to a port where nobody listens.
    fn kubeconfig(port: u16) -> String {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        STANDARD.encode(config.to_string())
    }

    fn store() -> (Clusters, ClusterStore) {
        let clusters = Clusters::default();
        let store = ClusterStore::new(
            clusters.clone(),
            Arc::new(Config::default()),
            Metrics::default(),
            watch::Metrics::unregistered(),
        );
        (clusters, store)
    }

    /// The cluster, as soon as it is known.
    async fn linked(clusters: &Clusters) -> Discovery {
        let mut follow = clusters.follow();
        let known = follow.wait_for(|clusters| clusters.contains_key("east"));
        let known = tokio::time::timeout(Duration::from_secs(60), known).await;
        known.expect("in time").expect("open")["east"].clone()
    }

    /// Lets everything happen that is going to.
    async fn settle() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_that_cannot_be_used_link_nothing() {
        let (clusters, mut store) = store();
        for (name, kubeconfig) in [
            ("not text", "/w==".to_owned()),
            ("not a kubeconfig", STANDARD.encode("foo")),
            ("nothing in it", STANDARD.encode("{}")),
        ] {
            store.apply(secret(json!({"data": {"kubeconfig": kubeconfig}})));
            settle().await;
            assert!(clusters.get("east").is_none(), "{name}");
        }
        store.apply(secret(json!({})));
        linked(&clusters).await;
        store.apply(secret(json!({"data": {"kubeconfig": "Zm9v"}})));
        assert!(clusters.get("east").is_none(), "the old ones are void");
        settle().await;
        assert!(clusters.get("east").is_none());
    }

    /// Credentials may name files that are not there yet.
    #[tokio::test]
    async fn credentials_are_tried_again() {
        let files = tempfile::tempdir().expect("a directory");
        let token = files.path().join("token");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "test", "user": {"tokenFile": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        let (clusters, mut store) = store();
        let config = STANDARD.encode(config.to_string());
        store.apply(secret(json!({"data": {"kubeconfig": config}})));
        settle().await;
        assert!(clusters.get("east").is_none(), "there is no token");
        std::fs::write(&token, "secret").expect("writes");
        linked(&clusters).await;
    }

    #[tokio::test]
    async fn clusters_follow_their_secrets() {
        let (clusters, mut store) = store();
        store.apply(secret(json!({})));
        let first = linked(&clusters).await;
        assert!(!first.listed().is_ready(), "nothing is known of it yet");
        assert_eq!(first.config().trust_domain, "east.td");
        assert_eq!(first.config().cluster_domain, "east.local");

        store.apply(secret(json!({})));
        let same = linked(&clusters).await;
        assert!(
            Arc::ptr_eq(same.index(), first.index()),
            "an equal Secret changes nothing"
        );

        store.apply(secret(json!({"data": {"kubeconfig": kubeconfig(2)}})));
        let other = linked(&clusters).await;
        assert!(
            !Arc::ptr_eq(other.index(), first.index()),
            "new credentials replace the cluster"
        );

        store.delete(&Key::new("linkerd", "cluster-credentials-east"));
        assert!(clusters.get("east").is_none());
        for (name, extra) in [
            ("another type", json!({"type": "Opaque"})),
            ("no name", json!({"metadata": {"labels": null}})),
            (
                "no trust domain",
                json!({"metadata": {"annotations": {"multicluster.linkerd.io/trust-domain": null}}}),
            ),
            ("no kubeconfig", json!({"data": null})),
        ] {
            store.apply(secret(extra));
            settle().await;
            assert!(clusters.get("east").is_none(), "{name}");
        }
        store.reset(vec![secret(json!({}))]);
        linked(&clusters).await;
        store.reset(Vec::new());
        assert!(clusters.get("east").is_none());
    }
}
