//! The state of a mesh at a glance: a pure look at what runs, and the text and JSON of it.

use crate::{certificate_text::left, printer::Mark};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Pod},
};
use kube::ResourceExt as _;
use linkerd_k8s::labels::{
    ADMISSION_WEBHOOKS, CONTROL_PLANE_NS, INJECT, INJECT_DISABLED, INJECT_ENABLED, INJECT_INGRESS,
};
use linkerd_tls::Certificate;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write as _, time::SystemTime};

const PROXY: &str = "linkerd-proxy";
/// Less is worth a warning.
const SOON: i64 = 60 * 86_400;

/// What was read from the cluster.
#[derive(Debug, Default)]
pub struct Seen {
    pub cli_version: String,
    pub control_plane: String,
    pub control_plane_version: Option<String>,
    pub deployments: Vec<Deployment>,
    /// What each certificate is for, and the certificate.
    pub certificates: Vec<(String, Certificate)>,
    pub namespaces: Vec<Namespace>,
    pub pods: Vec<Pod>,
}

/// Pods that are alike: those of one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub namespace: String,
    pub workload: String,
    pub pods: usize,
    pub version: String,
}

impl Group {
    /// What replaces these pods by new ones; nothing does for bare pods.
    fn remedy(&self) -> Option<String> {
        let restartable = ["deploy/", "ds/", "sts/"];
        let known = restartable
            .iter()
            .any(|kind| self.workload.starts_with(kind));
        known.then(|| {
            format!(
                "kubectl -n {} rollout restart {}",
                self.namespace, self.workload
            )
        })
    }
}

/// What there is to say.
#[derive(Debug, Default)]
pub struct Report {
    lines: Vec<(Option<Mark>, String)>,
    pub json: Value,
}

impl Report {
    pub fn lines(&self) -> &[(Option<Mark>, String)] {
        &self.lines
    }

    fn say(&mut self, text: impl Into<String>) {
        self.lines.push((None, text.into()));
    }

    fn mark(&mut self, mark: Mark, text: impl Into<String>) {
        self.lines.push((Some(mark), text.into()));
    }
}

pub fn report(seen: &Seen, now: SystemTime) -> Report {
    let mut report = Report::default();
    let version = seen.control_plane_version.as_deref();
    let versions = versions(&seen.pods, &seen.control_plane);
    report.say("versions");
    report.say("--------");
    report.say(format!("cli            {}", seen.cli_version));
    report.say(format!(
        "control plane  {}",
        version.unwrap_or("not installed")
    ));
    for (version, pods) in &versions {
        report.say(format!(
            "proxies        {version} ({})",
            count(*pods, "pod")
        ));
    }
    report.say("");
    let components = components(seen, &mut report);
    let certificates = certificates(seen, now, &mut report);
    let unmeshed = unmeshed(seen);
    let outdated = outdated(seen);
    report.say("data plane");
    report.say("----------");
    let meshed: usize = versions.values().sum();
    if unmeshed.is_empty() {
        report.mark(Mark::Ok, "every pod that asks for a proxy has one");
    } else {
        let pods = count(unmeshed.iter().map(|group| group.pods).sum(), "pod");
        report.mark(
            Mark::Warning,
            format!("{pods} ask for a proxy and have none"),
        );
        explain(&unmeshed, &mut report);
    }
    if outdated.is_empty() {
        let text = format!(
            "no proxy is older than the control plane ({})",
            count(meshed, "pod")
        );
        report.mark(Mark::Ok, text);
    } else {
        let pods = count(outdated.iter().map(|group| group.pods).sum(), "pod");
        report.mark(
            Mark::Warning,
            format!("{pods} run another version than the control plane"),
        );
        explain(&outdated, &mut report);
    }
    let groups = |groups: &[Group]| -> Vec<Value> {
        let of = |group: &Group| {
            json!({"namespace": group.namespace, "workload": group.workload, "pods": group.pods,
                "version": group.version, "remedy": group.remedy()})
        };
        groups.iter().map(of).collect()
    };
    report.json = json!({
        "cliVersion": seen.cli_version,
        "controlPlaneVersion": version,
        "proxyVersions": versions,
        "components": components,
        "certificates": certificates,
        "unmeshed": groups(&unmeshed),
        "outdated": groups(&outdated),
    });
    report
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

fn explain(groups: &[Group], report: &mut Report) {
    for group in groups {
        let Group {
            namespace,
            workload,
            pods,
            version,
        } = group;
        let mut text = format!("    {namespace} {workload} ({}", count(*pods, "pod"));
        if !version.is_empty() {
            let _ = write!(text, ", {version}");
        }
        report.say(text + ")");
        if let Some(remedy) = group.remedy() {
            report.say(format!("        {remedy}"));
        }
    }
}

fn components(seen: &Seen, report: &mut Report) -> Vec<Value> {
    report.say("control plane");
    report.say("-------------");
    if seen.deployments.is_empty() {
        let namespace = &seen.control_plane;
        report.mark(
            Mark::Failure,
            format!("nothing runs in namespace {namespace}"),
        );
        report.say("    linkerd install | kubectl apply -f -");
    }
    let mut found = Vec::new();
    for deployment in &seen.deployments {
        let name = deployment.name_any();
        let wanted = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1);
        let ready = deployment
            .status
            .as_ref()
            .and_then(|status| status.ready_replicas);
        let ready = ready.unwrap_or_default();
        let mark = if ready >= wanted {
            Mark::Ok
        } else {
            Mark::Failure
        };
        report.mark(mark, format!("{name} {ready}/{wanted} ready"));
        found.push(json!({"name": name, "ready": ready, "wanted": wanted}));
    }
    report.say("");
    found
}

fn certificates(seen: &Seen, now: SystemTime, report: &mut Report) -> Vec<Value> {
    if seen.certificates.is_empty() {
        return Vec::new();
    }
    report.say("certificates");
    report.say("------------");
    let seconds = |at| i64::try_from(linkerd_tls::unix_seconds(at)).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    for (role, certificate) in &seen.certificates {
        let after = seconds(certificate.not_after);
        let rest = after - seconds(now);
        let until = jiff::Timestamp::from_second(after).unwrap_or_default();
        let name = certificate
            .common_name
            .as_deref()
            .unwrap_or(&certificate.subject);
        let mark = match rest {
            ..=0 => Mark::Failure,
            1..SOON => Mark::Warning,
            _ => Mark::Ok,
        };
        report.mark(
            mark,
            format!("{role} {name}: {} left, until {until}", left(rest)),
        );
        if mark != Mark::Ok {
            report.say("    see https://linkerd.io/2/tasks/replacing_expired_certificates/");
        }
        found.push(
            json!({"role": role, "name": name, "notAfter": until.to_string(),
            "secondsLeft": rest.max(0)}),
        );
    }
    report.say("");
    found
}

/// How many pods run which version of the proxy, outside the control plane too.
fn versions(pods: &[Pod], control_plane: &str) -> BTreeMap<String, usize> {
    let mut versions = BTreeMap::new();
    for pod in pods {
        if let Some(version) = proxy_version(pod, control_plane) {
            *versions.entry(version).or_default() += 1;
        }
    }
    versions
}

/// The tag of the proxy's image in a pod of this mesh.
fn proxy_version(pod: &Pod, control_plane: &str) -> Option<String> {
    if pod.labels().get(CONTROL_PLANE_NS).map(String::as_str) != Some(control_plane) || is_over(pod)
    {
        return None;
    }
    let image = proxy(pod)?.image.as_deref()?;
    let file = image.rsplit('/').next()?;
    let tag = file.split_once(':').filter(|_| !file.contains('@'));
    Some(tag.map_or("unknown", |(_, tag)| tag).to_owned())
}

fn proxy(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::Container> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    containers.find(|container| container.name == PROXY)
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some()
}

/// Pods that were made while the injector did not answer.
fn unmeshed(seen: &Seen) -> Vec<Group> {
    let namespaces: BTreeMap<String, &Namespace> = seen
        .namespaces
        .iter()
        .map(|namespace| (namespace.name_any(), namespace))
        .collect();
    let asks = |pod: &&Pod| {
        let spec = pod.spec.as_ref();
        let on_host = spec.and_then(|spec| spec.host_network).unwrap_or_default();
        if on_host || is_over(pod) || proxy(pod).is_some() {
            return false;
        }
        let namespace = namespaces.get(&pod.namespace().unwrap_or_default());
        let label = namespace.and_then(|namespace| namespace.labels().get(ADMISSION_WEBHOOKS));
        if label.is_some_and(|value| value == INJECT_DISABLED) {
            return false;
        }
        let own = pod.annotations().get(INJECT);
        let inherited = namespace.and_then(|namespace| namespace.annotations().get(INJECT));
        let value = own.or(inherited).map(String::as_str);
        matches!(value, Some(INJECT_ENABLED | INJECT_INGRESS))
    };
    group(
        seen.pods
            .iter()
            .filter(asks)
            .map(|pod| (pod, String::new())),
    )
}

fn outdated(seen: &Seen) -> Vec<Group> {
    let Some(current) = &seen.control_plane_version else {
        return Vec::new();
    };
    let old = seen.pods.iter().filter_map(|pod| {
        let version = proxy_version(pod, &seen.control_plane)?;
        (version != *current && version != "unknown").then_some((pod, version))
    });
    group(old)
}

fn group<'a>(pods: impl Iterator<Item = (&'a Pod, String)>) -> Vec<Group> {
    let mut groups: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    for (pod, version) in pods {
        let key = (pod.namespace().unwrap_or_default(), workload(pod), version);
        *groups.entry(key).or_default() += 1;
    }
    let groups = groups.into_iter();
    groups
        .map(|((namespace, workload, version), pods)| Group {
            namespace,
            workload,
            pods,
            version,
        })
        .collect()
}

/// `deploy/web`, as kubectl takes it.
fn workload(pod: &Pod) -> String {
    let Some(owner) = pod.owner_references().first() else {
        return format!("po/{}", pod.name_any());
    };
    let hash = pod.labels().get("pod-template-hash");
    match owner.kind.as_str() {
        "ReplicaSet" => match hash.and_then(|hash| owner.name.strip_suffix(&format!("-{hash}"))) {
            Some(deployment) => format!("deploy/{deployment}"),
            None => format!("rs/{}", owner.name),
        },
        "DaemonSet" => format!("ds/{}", owner.name),
        "StatefulSet" => format!("sts/{}", owner.name),
        kind => format!("{}/{}", kind.to_lowercase(), owner.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linkerd_tls::certificates_from_pem;

    fn pod(namespace: &str, name: &str, version: Option<&str>) -> Pod {
        let mut containers = vec![json!({"name": "app", "image": "app:1"})];
        let mut labels = json!({"pod-template-hash": "abc"});
        if let Some(version) = version {
            containers.push(json!({"name": PROXY, "image": format!("r:5000/proxy:{version}")}));
            labels[CONTROL_PLANE_NS] = json!("linkerd");
        }
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "u",
            "name": format!("{name}-abc")}]);
        serde_json::from_value(json!({
            "metadata": {"name": format!("{name}-abc-1"), "namespace": namespace, "labels": labels,
                "ownerReferences": owner},
            "spec": {"containers": containers},
            "status": {"phase": "Running"},
        }))
        .expect("a pod")
    }

    fn namespace(name: &str, inject: &str) -> Namespace {
        let object = json!({"metadata": {"name": name, "annotations": {INJECT: inject}}});
        serde_json::from_value(object).expect("a namespace")
    }

    #[test]
    fn problems_come_with_their_remedies() {
        let pem = include_str!("certificate_text/leaf.pem");
        let certificate = certificates_from_pem(pem.as_bytes())
            .expect("one")
            .remove(0);
        let now = certificate.not_before;
        let deployment = json!({"metadata": {"name": "linkerd-identity"}, "spec": {"replicas": 1,
            "selector": {}, "template": {}}, "status": {"readyReplicas": 1}});
        let seen = Seen {
            cli_version: "edge-2".to_owned(),
            control_plane: "linkerd".to_owned(),
            control_plane_version: Some("edge-2".to_owned()),
            deployments: vec![serde_json::from_value(deployment).expect("a deployment")],
            certificates: vec![("issuer".to_owned(), certificate)],
            namespaces: vec![namespace("app", "enabled"), namespace("off", "disabled")],
            pods: vec![
                pod("app", "old", Some("edge-1")),
                pod("app", "new", Some("edge-2")),
                pod("app", "bare", None),
                pod("off", "bare", None),
            ],
        };
        let report = report(&seen, now);
        let text: String = report
            .lines()
            .iter()
            .map(|(mark, text)| match mark {
                Some(mark) => format!("{} {text}\n", mark.symbol()),
                None => format!("{text}\n"),
            })
            .collect();
        let until = "2026-11-17T03:13:58Z";
        let expected = format!(
            "versions\n--------\n\
             cli            edge-2\n\
             control plane  edge-2\n\
             proxies        edge-1 (1 pod)\n\
             proxies        edge-2 (1 pod)\n\n\
             control plane\n-------------\n\
             √ linkerd-identity 1/1 ready\n\n\
             certificates\n------------\n\
             ‼ issuer web.emojivoto.serviceaccount.identity.linkerd.cluster.local: 24h0m left, until {until}\n    \
                 see https://linkerd.io/2/tasks/replacing_expired_certificates/\n\n\
             data plane\n----------\n\
             ‼ 1 pod ask for a proxy and have none\n    \
                 app deploy/bare (1 pod)\n        \
                     kubectl -n app rollout restart deploy/bare\n\
             ‼ 1 pod run another version than the control plane\n    \
                 app deploy/old (1 pod, edge-1)\n        \
                     kubectl -n app rollout restart deploy/old\n"
        );
        assert_eq!(text, expected);
        assert_eq!(report.json["unmeshed"][0]["workload"], "deploy/bare");
    }

    #[test]
    fn an_empty_cluster_says_how_to_begin() {
        let seen = Seen {
            control_plane: "linkerd".to_owned(),
            ..Seen::default()
        };
        let report = report(&seen, SystemTime::UNIX_EPOCH);
        let says = |text: &str| report.lines().iter().any(|(_, line)| line.contains(text));
        assert!(says("not installed"));
        assert!(says("nothing runs in namespace linkerd"));
    }
}
