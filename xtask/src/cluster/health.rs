//! How a cluster is: its components as processes, its nodes as the API sees them, and
//! whether services and names work.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::kubectl::Kubectl;
use super::node::Node;
use super::spec::Spec;
use super::{components, system};
use crate::{tools, ui};

/// How long a running cluster may take to answer before it counts as ill.
const SETTLING: Duration = Duration::from_secs(5);

/// Whether every node says it is ready, and said so after `since` when that is given.
pub(crate) fn nodes_ready(spec: &Spec, kubectl: &Kubectl, since: Option<&str>) -> Result<bool> {
    let text = kubectl.output(&["get", "nodes", "--output=json"])?;
    let list: Value = serde_json::from_str(&text).context("reading the list of nodes")?;
    Ok(ready_nodes(&list, since) == usize::from(spec.nodes))
}

/// Times are RFC 3339 in UTC, so their order as text is their order in time.
fn ready_nodes(list: &Value, since: Option<&str>) -> usize {
    let nodes = list["items"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    nodes
        .iter()
        .filter_map(|node| node["status"]["conditions"].as_array())
        .filter_map(|conditions| conditions.iter().find(|c| c["type"] == "Ready"))
        .filter(|ready| ready["status"] == "True")
        .filter(|ready| {
            let spoken = ready["lastHeartbeatTime"].as_str().unwrap_or_default();
            since.is_none_or(|since| spoken >= since)
        })
        .count()
}

/// Whether a node's kube-proxy has written its rules.
pub(crate) fn proxy_ready(spec: &Spec, node: u8) -> bool {
    system::http_ok(SocketAddr::from((spec.node_ip(node), 10256)), "/healthz")
}

/// Prints the state of a cluster; gives whether all is well.
pub(crate) fn report(spec: &Spec, kubectl: &Path) -> Result<bool> {
    let mut well = true;
    ui::out(format_args!(
        "cluster {}: Kubernetes v{}, {} node(s), pods {}, services {}",
        spec.name,
        tools::KUBERNETES_VERSION,
        spec.nodes,
        spec.pod_net(),
        spec.service_net()
    ));
    ui::out(format_args!("kubeconfig: {}", spec.kubeconfig().display()));
    ui::out(format_args!(
        "{:26} {:6} {:8} {:>8} {}",
        "COMPONENT", "NODE", "STATE", "PID", "RUNS FOR"
    ));
    for component in components::all(spec, kubectl.parent().unwrap_or_else(|| Path::new("/"))) {
        let process = match Node::find(spec, component.node)? {
            Some(node) => node
                .processes()?
                .into_iter()
                .find(|process| process.is(component.name)),
            None => None,
        };
        let (state, pid, time) = match process {
            Some(process) => ("running", process.pid.to_string(), age(process.pid)),
            None => ("stopped", "-".to_owned(), "-".to_owned()),
        };
        well &= state == "running";
        ui::out(format_args!(
            "{:26} {:6} {state:8} {pid:>8} {time}",
            component.name, component.node
        ));
    }
    let kubectl = Kubectl::new(&spec.kubeconfig())?;
    // Where all components run, one lost datagram or a kubelet that has only just looked at its
    // pods again is no illness; where one is dead, there is nothing to wait for.
    let patience = if well { SETTLING } else { Duration::ZERO };
    let ready = within(patience, || Ok(kubectl.is_ready()));
    well &= ready;
    ui::out(format_args!(
        "API server: {}",
        if ready { "ready" } else { "does not answer" }
    ));
    if ready {
        ui::out(
            kubectl
                .output(&["get", "nodes", "--output=wide"])?
                .trim_end(),
        );
        well &= within(patience, || nodes_ready(spec, &kubectl, None));
        let names = within(patience, || system::dns_answers(spec));
        well &= names;
        ui::out(format_args!(
            "DNS: {}",
            if names { "answers" } else { "does not answer" }
        ));
    }
    if !well {
        ui::note(format_args!(
            " next: `cargo xtask cluster up --name {}` mends it",
            spec.name
        ));
    }
    Ok(well)
}

/// Whether `is_so` becomes true before `patience` ends; asked once at least.
fn within(patience: Duration, mut is_so: impl FnMut() -> Result<bool>) -> bool {
    ui::wait_for("health", patience, || Ok(is_so()?.then_some(()))).is_ok()
}

/// How long a process has been running.
fn age(pid: i32) -> String {
    let started = || -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The 22nd field, counted from 1; the name in field 2 may hold spaces.
        let ticks: u64 = stat
            .rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(19)?
            .parse()
            .ok()?;
        let per_second = rustix::param::clock_ticks_per_second();
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let start = Duration::from_millis(ticks * 1000 / per_second);
        Duration::from_secs_f64(uptime).checked_sub(start)
    };
    started().map_or_else(|| "-".to_owned(), ui::seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn readiness_must_be_fresh() {
        let node = |status: &str, time: &str| {
            json!({ "status": { "conditions": [
                { "type": "MemoryPressure", "status": "False" },
                { "type": "Ready", "status": status, "lastHeartbeatTime": time },
            ]}})
        };
        let list = json!({ "items": [
            node("True", "2025-01-01T00:00:10Z"),
            node("True", "2025-01-01T00:00:01Z"),
            node("Unknown", "2025-01-01T00:00:10Z"),
            json!({ "status": {} }),
        ]});
        let cases = [
            ("any time", None, 2),
            ("after the start", Some("2025-01-01T00:00:05Z"), 1),
        ];
        for (name, since, expected) in cases {
            assert_eq!(ready_nodes(&list, since), expected, "{name}");
        }
    }
}
