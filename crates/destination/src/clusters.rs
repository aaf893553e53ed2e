//! Linked clusters: each has an index of its own, fed by watches of its own API server. Secrets
//! of the control plane's namespace say which clusters are linked and how to reach them.

use std::{collections::HashMap, sync::Arc};

use ahash::AHashMap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use linkerd_k8s::{Index, Key, Secret, Watches, labels, watch};
use linkerd_runtime::ready::Block;
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

#[derive(Debug)]
struct Linked {
    credentials: Credentials,
    task: JoinHandle<()>,
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
        // Nothing is answered from it before it has been listed.
        let connecting = discovery.listed().block("connection");
        let follow = follow(credentials.clone(), discovery.clone(), metrics, connecting);
        let follow = follow.instrument(span);
        let task = linkerd_runtime::spawn("cluster", follow);
        self.clusters.insert(&name, discovery);
        self.linked.insert(key, Linked { credentials, task });
        self.metrics.clusters(self.linked.len());
        info!(cluster = name, "Linked");
    }

    fn unlink(&mut self, key: &Key) {
        if let Some(linked) = self.linked.remove(key) {
            linked.task.abort();
            self.clusters.remove(&linked.credentials.cluster);
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
    credentials: Credentials,
    discovery: Discovery,
    metrics: watch::Metrics,
    connecting: Block,
) {
    let client = match client(&credentials.kubeconfig).await {
        Ok(client) => client,
        Err(error) => {
            warn!(%error, "Cannot reach the cluster");
            return std::future::pending().await;
        }
    };
    let mut watches = Watches::new();
    discovery.subscribe_remote(&mut watches);
    let _running = watches.start(&client, &metrics, discovery.listed());
    drop(connecting);
    std::future::pending::<()>().await;
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
            "data": {"kubeconfig": "Zm9v"},
        });
        object(with(json, extra))
    }

    #[tokio::test]
    async fn clusters_follow_their_secrets() {
        let clusters = Clusters::default();
        let mut store = ClusterStore::new(
            clusters.clone(),
            Arc::new(Config::default()),
            Metrics::default(),
            watch::Metrics::unregistered(),
        );
        store.apply(secret(json!({})));
        let first = clusters.get("east").expect("linked");
        assert!(!first.listed().is_ready(), "nothing is known of it yet");
        assert_eq!(first.config().trust_domain, "east.td");
        assert_eq!(first.config().cluster_domain, "east.local");

        store.apply(secret(json!({})));
        let same = clusters.get("east").expect("linked");
        assert!(
            Arc::ptr_eq(same.index(), first.index()),
            "an equal Secret changes nothing"
        );

        store.apply(secret(json!({"data": {"kubeconfig": "YmFy"}})));
        let other = clusters.get("east").expect("linked");
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
            assert!(clusters.get("east").is_none(), "{name}");
        }
        store.reset(vec![secret(json!({}))]);
        assert!(clusters.get("east").is_some());
        store.reset(Vec::new());
        assert!(clusters.get("east").is_none());
    }
}
