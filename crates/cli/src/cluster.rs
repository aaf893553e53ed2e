//! The cluster a command works on: `--kubeconfig`, `--context` and `--as` made into a client, and
//! the few reads that several commands share.

use crate::{context::Global, yaml};
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde_json::Value;
use std::{path::Path, time::Duration};

pub const CONFIG_MAP: &str = "linkerd-config";
pub const OVERRIDES: &str = "linkerd-config-overrides";

#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    pub async fn new(global: &Global, timeout: Option<Duration>) -> Result<Self> {
        let mut config = config(global).await?;
        if let Some(timeout) = timeout {
            config.connect_timeout = Some(timeout);
            config.read_timeout = Some(timeout);
            config.write_timeout = Some(timeout);
        }
        if let Some(user) = &global.as_user {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups = Some(global.as_group.clone());
        }
        // A dead API server is reported at once; commands that wait do it themselves.
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).context("cannot configure the Kubernetes client")?;
        Ok(Self { client, namespace })
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace of the kubeconfig's context.
    pub fn default_namespace(&self) -> &str {
        &self.namespace
    }

    /// `v1.34.1`, which also proves that the API answers.
    pub async fn version(&self) -> Result<String, kube::Error> {
        Ok(self.client.apiserver_version().await?.git_version)
    }

    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ConfigMap>, kube::Error> {
        Api::namespaced(self.client(), namespace)
            .get_opt(name)
            .await
    }

    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, kube::Error> {
        Api::namespaced(self.client(), namespace)
            .get_opt(name)
            .await
    }

    /// The control plane's values, from the ConfigMap `linkerd-config`; none when there is no such map.
    pub async fn values(&self, namespace: &str) -> Result<Option<Value>> {
        let Some(map) = self
            .config_map(namespace, CONFIG_MAP)
            .await
            .map_err(plain)?
        else {
            return Ok(None);
        };
        let text = map
            .data
            .and_then(|mut data| data.remove("values"))
            .with_context(|| format!("ConfigMap {namespace}/{CONFIG_MAP} has no key \"values\""))?;
        let mut values = yaml::parse(&text).with_context(|| {
            format!("ConfigMap {namespace}/{CONFIG_MAP} holds values that are not YAML")
        })?;
        lift_global(&mut values);
        Ok(Some(values))
    }
}

/// Very old installs nest everything under `global`.
pub fn lift_global(values: &mut Value) {
    let Some(map) = values.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(global)) = map.shift_remove("global") {
        for (key, value) in global {
            map.entry(key).or_insert(value);
        }
    }
}

/// Names of the contexts that `--context` may choose.
pub fn contexts(global: &Global) -> Result<Vec<String>> {
    let file = global.kubeconfig.as_deref().filter(|file| !file.is_empty());
    let kubeconfig = match file {
        Some(file) => Kubeconfig::read_from(Path::new(file))?,
        None => Kubeconfig::read()?,
    };
    Ok(kubeconfig
        .contexts
        .into_iter()
        .map(|named| named.name)
        .collect())
}

async fn config(global: &Global) -> Result<Config> {
    let options = KubeConfigOptions {
        context: global.context.clone().filter(|name| !name.is_empty()),
        ..KubeConfigOptions::default()
    };
    if let Some(file) = global.kubeconfig.as_deref().filter(|file| !file.is_empty()) {
        let kubeconfig = Kubeconfig::read_from(Path::new(file))
            .with_context(|| format!("cannot read kubeconfig {file}"))?;
        return Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .with_context(|| format!("kubeconfig {file} does not describe a cluster"));
    }
    match Config::from_kubeconfig(&options).await {
        Ok(config) => Ok(config),
        Err(error) => {
            let missing = matches!(
                error,
                KubeconfigError::FindPath | KubeconfigError::ReadConfig(..)
            );
            if missing
                && options.context.is_none()
                && let Ok(config) = Config::incluster()
            {
                return Ok(config);
            }
            Err(error).context("cannot load the kubeconfig (set KUBECONFIG or --kubeconfig)")
        }
    }
}

/// What the API server said, without the client's own words around it.
pub fn plain(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        kube::Error::Service(cause) => anyhow::anyhow!("{}", chain(&*cause)),
        kube::Error::HyperError(cause) => anyhow::anyhow!("{}", chain(&cause)),
        error => error.into(),
    }
}

/// An error and its causes in one line, each said once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}

/// Whether the API server refused for want of rights.
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Whether the API server does not know the object or its kind.
pub fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
