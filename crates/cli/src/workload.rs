//! Kinds of workloads by the names people type, and the pods that belong to one.

use crate::cluster::plain;
use anyhow::{Result, anyhow, bail};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use std::collections::HashSet;

/// A kind that has pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    CronJob,
    DaemonSet,
    Deployment,
    Job,
    Namespace,
    Pod,
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
}

/// Singular name, short name, group, version and kind.
const KINDS: [(Kind, &str, &str, &str, &str, &str); 10] = [
    (Kind::CronJob, "cronjob", "cj", "batch", "v1", "CronJob"),
    (
        Kind::DaemonSet,
        "daemonset",
        "ds",
        "apps",
        "v1",
        "DaemonSet",
    ),
    (
        Kind::Deployment,
        "deployment",
        "deploy",
        "apps",
        "v1",
        "Deployment",
    ),
    (Kind::Job, "job", "job", "batch", "v1", "Job"),
    (Kind::Namespace, "namespace", "ns", "", "v1", "Namespace"),
    (Kind::Pod, "pod", "po", "", "v1", "Pod"),
    (
        Kind::ReplicaSet,
        "replicaset",
        "rs",
        "apps",
        "v1",
        "ReplicaSet",
    ),
    (
        Kind::ReplicationController,
        "replicationcontroller",
        "rc",
        "",
        "v1",
        "ReplicationController",
    ),
    (Kind::Service, "service", "svc", "", "v1", "Service"),
    (
        Kind::StatefulSet,
        "statefulset",
        "sts",
        "apps",
        "v1",
        "StatefulSet",
    ),
];

impl Kind {
    /// In the order in which they are offered.
    pub const ALL: [Self; 10] = [
        Self::Namespace,
        Self::DaemonSet,
        Self::StatefulSet,
        Self::Job,
        Self::Deployment,
        Self::ReplicationController,
        Self::Pod,
        Self::Service,
        Self::CronJob,
        Self::ReplicaSet,
    ];

    /// The kind of `deploy`, `Deployments`, `po`, …
    pub fn parse(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        let singular = lower.strip_suffix('s').unwrap_or(&lower);
        let found = KINDS
            .iter()
            .find(|(_, long, short, ..)| [*long, *short].contains(&&*lower) || *long == singular);
        found.map(|(kind, ..)| *kind).ok_or_else(|| {
            anyhow!("cannot find Kubernetes canonical name from friendly name [{name}]")
        })
    }

    pub fn name(self) -> &'static str {
        self.row().1
    }

    fn row(
        self,
    ) -> &'static (
        Self,
        &'static str,
        &'static str,
        &'static str,
        &'static str,
        &'static str,
    ) {
        let row = KINDS.iter().find(|(kind, ..)| *kind == self);
        row.expect("every kind has its row")
    }

    /// Where objects of this kind are listed; namespaces are in none.
    pub fn api(self, client: Client, namespace: &str) -> Api<DynamicObject> {
        match self {
            Self::Namespace => Api::all_with(client, &self.resource()),
            _ => Api::namespaced_with(client, namespace, &self.resource()),
        }
    }

    fn resource(self) -> ApiResource {
        let (_, long, _, group, version, kind) = *self.row();
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: if group.is_empty() {
                version.to_owned()
            } else {
                format!("{group}/{version}")
            },
            kind: kind.to_owned(),
            plural: format!("{long}s"),
        }
    }
}

/// A kind and, when one is meant and not all, a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub kind: Kind,
    pub name: Option<String>,
}

impl Workload {
    /// `TYPE/NAME`, and nothing else.
    pub fn parse_named(text: &str) -> Result<Self> {
        let workload = Self::parse(&[text.to_owned()])?;
        if workload.name.is_none() {
            bail!("no resource name provided");
        }
        Ok(workload)
    }

    /// `TYPE`, `TYPE/NAME` or `TYPE NAME`.
    pub fn parse(words: &[String]) -> Result<Self> {
        let (kind, name) = match words {
            [word] => match word.split('/').collect::<Vec<_>>()[..] {
                [kind] => (kind, None),
                [kind, name] if !name.is_empty() => (kind, Some(name)),
                _ => bail!("invalid resource string: {word}"),
            },
            [kind, name] if !kind.contains('/') && !name.contains('/') => {
                (kind.as_str(), Some(name.as_str()))
            }
            _ => bail!("invalid resource string: {}", words.join(" ")),
        };
        Ok(Self {
            kind: Kind::parse(kind)?,
            name: name.map(str::to_owned),
        })
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind.name())?;
        self.name.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}

/// The pods of a workload, sorted by name.
pub async fn pods(client: &Client, namespace: &str, workload: &Workload) -> Result<Vec<Pod>> {
    let name = workload.name.as_deref();
    let all = ListParams::default();
    let namespace = match (workload.kind, name) {
        (Kind::Namespace, Some(name)) => name,
        _ => namespace,
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut pods = match (workload.kind, name) {
        (Kind::Pod, Some(name)) => vec![api.get(name).await.map_err(plain)?],
        (Kind::Pod | Kind::Namespace, _) => api.list(&all).await.map_err(plain)?.items,
        (Kind::Service, name) => {
            let services: Api<Service> = Api::namespaced(client.clone(), namespace);
            let services = match name {
                Some(name) => vec![services.get(name).await.map_err(plain)?],
                None => services.list(&all).await.map_err(plain)?.items,
            };
            let selectors: Vec<_> = services
                .into_iter()
                .filter_map(|service| service.spec?.selector)
                .filter(|selector| !selector.is_empty())
                .collect();
            let mut pods = api.list(&all).await.map_err(plain)?.items;
            pods.retain(|pod| {
                let labels = pod.labels();
                selectors
                    .iter()
                    .any(|selector| selector.iter().all(|(k, v)| labels.get(k) == Some(v)))
            });
            pods
        }
        (kind, name) => {
            let owners = match name {
                Some(name) => {
                    let api = metadata(client, namespace, kind);
                    vec![api.get_metadata(name).await.map_err(plain)?]
                }
                None => {
                    let api = metadata(client, namespace, kind);
                    api.list_metadata(&all).await.map_err(plain)?.items
                }
            };
            let mut uids = owners.iter().filter_map(ResourceExt::uid).collect();
            let between = match kind {
                Kind::Deployment => Some(Kind::ReplicaSet),
                Kind::CronJob => Some(Kind::Job),
                _ => None,
            };
            if let Some(between) = between {
                let api = metadata(client, namespace, between);
                let between = api.list_metadata(&all).await.map_err(plain)?.items;
                let between = between.iter().filter(|object| is_owned(*object, &uids));
                uids = between.filter_map(ResourceExt::uid).collect();
            }
            let mut pods = api.list(&all).await.map_err(plain)?.items;
            pods.retain(|pod| is_owned(pod, &uids));
            pods
        }
    };
    pods.sort_by_key(ResourceExt::name_any);
    Ok(pods)
}

fn metadata(client: &Client, namespace: &str, kind: Kind) -> Api<DynamicObject> {
    kind.api(client.clone(), namespace)
}

fn is_owned<K: ResourceExt>(object: &K, uids: &HashSet<String>) -> bool {
    let mut owners = object.owner_references().iter();
    owners.any(|owner| uids.contains(&owner.uid))
}

/// The port by that name of a container, wherever the container stands.
pub fn container_port(pod: &Pod, container: &str, port: &str) -> Option<u16> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let container = containers.find(|candidate| candidate.name == container)?;
    let mut ports = container.ports.iter().flatten();
    let found = ports.find(|candidate| candidate.name.as_deref() == Some(port))?;
    u16::try_from(found.container_port).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_type_many_names() {
        for (text, kind) in [
            ("po", Kind::Pod),
            ("pod", Kind::Pod),
            ("Pods", Kind::Pod),
            ("deploy", Kind::Deployment),
            ("deployments", Kind::Deployment),
            ("ds", Kind::DaemonSet),
            ("daemonset", Kind::DaemonSet),
            ("sts", Kind::StatefulSet),
            ("job", Kind::Job),
            ("jobs", Kind::Job),
            ("cj", Kind::CronJob),
            ("rs", Kind::ReplicaSet),
            ("rc", Kind::ReplicationController),
            ("ns", Kind::Namespace),
            ("svc", Kind::Service),
            ("services", Kind::Service),
        ] {
            assert_eq!(Kind::parse(text).ok(), Some(kind), "{text}");
        }
    }

    #[test]
    fn words_that_name_nothing_are_explained() {
        let parse = |text: &str| {
            let error = Workload::parse_named(text).expect_err("refused");
            error.to_string()
        };
        assert_eq!(parse("deploy"), "no resource name provided");
        assert_eq!(parse("deploy/a/b"), "invalid resource string: deploy/a/b");
        assert_eq!(
            parse("foo/a"),
            "cannot find Kubernetes canonical name from friendly name [foo]"
        );
        let two = Workload::parse(&["deploy".to_owned(), "web".to_owned()]).expect("a workload");
        assert_eq!(two.to_string(), "deployment/web");
    }
}
