//! What checks look at: the cluster through its client, how the command was called, and what
//! earlier checks of the same run found out.

use super::{engine::Problem, identity::Credentials, version::Channels};
use crate::values::{get, text};
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{fmt::Debug, time::SystemTime};

/// Objects of the control plane, but not of the CNI plugin.
pub const CONTROL_PLANE_SELECTOR: &str = "linkerd.io/control-plane-ns,!linkerd.io/cni-resource";
pub const MESHED: &str = "linkerd.io/control-plane-ns";

/// How the command was called.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub namespace: String,
    pub cni_namespace: String,
    /// `-n`: where proxies are looked at; everywhere when none.
    pub data_plane_namespace: Option<String>,
    pub cli_version: String,
    pub expected_version: Option<String>,
    pub version_url: Option<String>,
    pub offline: bool,
    /// `--pre --linkerd-cni-enabled`.
    pub cni: bool,
}

pub struct Facts {
    pub settings: Settings,
    /// Objects that an install would create; for `--pre`.
    pub install: Vec<Value>,
    /// Definitions this version needs, each with its newest version.
    pub definitions: Vec<(String, String)>,
    pub now: SystemTime,
    client: Result<Client, String>,
    pub(super) server_version: Option<String>,
    pub(super) values: Option<Value>,
    pub(super) config_uid: Option<String>,
    pub(super) credentials: Option<Credentials>,
    pub(super) latest: Option<Channels>,
    pub(super) server: Option<String>,
}

impl Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Facts")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What can be listed and read.
pub trait Object: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug {}
impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug> Object for K {}

impl Facts {
    pub fn new(client: Result<Client, String>, settings: Settings, now: SystemTime) -> Self {
        Self {
            settings,
            install: Vec::new(),
            definitions: Vec::new(),
            now,
            client,
            server_version: None,
            values: None,
            config_uid: None,
            credentials: None,
            latest: None,
            server: None,
        }
    }

    pub fn client(&self) -> Result<Client, Problem> {
        self.client.clone().map_err(Problem::Failed)
    }

    pub fn namespace(&self) -> &str {
        &self.settings.namespace
    }

    /// The values of the installed control plane.
    pub(super) fn values(&self) -> Result<&Value, Problem> {
        self.values
            .as_ref()
            .ok_or_else(|| Problem::skip("the values of the control plane are not known"))
    }

    pub(super) fn is_set(&self, path: &str) -> bool {
        self.values
            .as_ref()
            .is_some_and(|values| get(values, path) == &Value::Bool(true))
    }

    pub(super) fn value_text(&self, path: &str) -> &str {
        self.values.as_ref().map_or("", |values| text(values, path))
    }

    /// Objects of the whole cluster.
    pub(super) async fn all<K: Object>(&self, selector: &str) -> Result<Vec<K>, Problem> {
        listed(Api::<K>::all(self.client()?), selector).await
    }

    /// Objects of a namespace.
    pub(super) async fn within<K>(&self, namespace: &str, selector: &str) -> Result<Vec<K>, Problem>
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        listed(Api::<K>::namespaced(self.client()?, namespace), selector).await
    }

    /// Objects of `-n`, or of the whole cluster.
    pub(super) async fn data_plane<K>(&self, selector: &str) -> Result<Vec<K>, Problem>
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        match &self.settings.data_plane_namespace {
            Some(namespace) => self.within(namespace, selector).await,
            None => self.all(selector).await,
        }
    }

    pub(super) async fn named<K: Object>(&self, name: &str) -> Result<Option<K>, Problem> {
        Ok(Api::<K>::all(self.client()?).get_opt(name).await?)
    }

    pub(super) async fn named_in<K>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<K>, Problem>
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        let api = Api::<K>::namespaced(self.client()?, namespace);
        Ok(api.get_opt(name).await?)
    }
}

async fn listed<K: Object>(api: Api<K>, selector: &str) -> Result<Vec<K>, Problem> {
    let params = if selector.is_empty() {
        ListParams::default()
    } else {
        ListParams::default().labels(selector)
    };
    Ok(api.list(&params).await?.items)
}

/// An object's name, for messages.
pub(super) fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// `namespace/name`, for messages.
pub(super) fn place<K: Resource>(object: &K) -> String {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", name(object))
}

/// Fails with the names that none of `found` has.
pub(super) fn require<K: Resource>(
    kind: &str,
    expected: &[&str],
    found: &[K],
) -> Result<(), Problem> {
    let missing: Vec<&str> = expected
        .iter()
        .copied()
        .filter(|expected| !found.iter().any(|object| name(object) == *expected))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(format!(
        "missing {kind}: {}",
        missing.join(", ")
    )))
}
