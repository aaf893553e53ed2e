//! What the plugin asks the API server: the pod, its namespace, and the server's own ports.

use anyhow::{Context as _, Result};
use k8s_openapi::{
    api::core::v1::{Namespace, Pod, Service},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{collections::BTreeMap, future::Future, time::Duration};

/// The context the installer writes.
pub const CONTEXT: &str = "linkerd-cni-context";
const PATIENCE: Duration = Duration::from_secs(5);
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

pub struct Cluster {
    client: Client,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    pub async fn of(kubeconfig: &str) -> Result<Self> {
        let mut file = Kubeconfig::read_from(kubeconfig)
            .with_context(|| format!("linkerd-cni: cannot read kubeconfig {kubeconfig}"))?;
        // The node's proxy (HTTPS_PROXY) is not for the way to the API server. The variables are read,
        // and may be refused, only where the file names no proxy.
        let clusters = file.clusters.iter_mut();
        for cluster in clusters.filter_map(|named| named.cluster.as_mut()) {
            cluster.proxy_url = Some("http://unused".to_owned());
        }
        let options = KubeConfigOptions {
            context: Some(CONTEXT.to_owned()),
            ..KubeConfigOptions::default()
        };
        let mut config = Config::from_custom_kubeconfig(file, &options)
            .await
            .with_context(|| format!("linkerd-cni: kubeconfig {kubeconfig} is not usable"))?;
        config.proxy_url = None;
        config.connect_timeout = Some(PATIENCE);
        config.read_timeout = Some(PATIENCE);
        let client = Client::try_from(config).context("linkerd-cni: no Kubernetes client")?;
        Ok(Self { client })
    }

    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Pod> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        patiently(|| api.get(name))
            .await
            .with_context(|| format!("linkerd-cni: cannot read pod {namespace}/{name}"))
    }

    pub async fn annotations(&self, namespace: &str) -> Result<BTreeMap<String, String>> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = patiently(|| api.get_metadata(namespace))
            .await
            .with_context(|| format!("linkerd-cni: cannot read namespace {namespace}"))?;
        Ok(found.metadata.annotations.unwrap_or_default())
    }

    /// Ports of the API server; the usual ones where they cannot be learned.
    pub async fn api_ports(&self) -> Vec<String> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), "default");
        let service = api
            .get("kubernetes")
            .await
            .ok()
            .and_then(|service| service.spec);
        let ports: Vec<String> = service
            .and_then(|spec| spec.ports)
            .into_iter()
            .flatten()
            .flat_map(|port| {
                let target = match port.target_port {
                    Some(IntOrString::Int(target)) => Some(target.to_string()),
                    _ => None,
                };
                std::iter::once(port.port.to_string()).chain(target)
            })
            .collect();
        if ports.is_empty() {
            return vec!["443".to_owned(), "6443".to_owned()];
        }
        ports
    }
}

/// A few tries: the sandbox waits, and the runtime starts over after an error anyway.
async fn patiently<T, F>(ask: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    let mut tried = 1;
    loop {
        let answer = tokio::time::timeout(PATIENCE, ask()).await;
        match answer {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) if tried >= TRIES || is_final(&error) => return Err(error.into()),
            Err(_) if tried >= TRIES => anyhow::bail!("no answer within {PATIENCE:?}"),
            _ => {}
        }
        tried += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

/// An answer of the API server, which will not change by asking again.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code < 500)
}
