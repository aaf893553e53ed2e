//! `cargo xtask bench mesh`: what the whole mesh costs. A cluster of its own, from install to ready;
//! then the sample application without and with the mesh, at two rates, as its client and the
//! kubelet see it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::load::{Answers, Load};
use super::{on_a_cluster, pass};
use crate::mesh::{Mesh, SAMPLE};
use crate::workspace::Workspace;
use crate::{machine, ui};

const RATES: [u32; 2] = [50, 500];
/// How long each rate is kept before and while it is measured.
const WARM_UP: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(30);
/// The goal for everything in the control plane's namespace.
const GOAL_MB: f64 = 80.0;

/// One rate, with or without the mesh.
#[derive(Debug)]
struct Row {
    meshed: bool,
    rate: u32,
    p50_ms: f64,
    p99_ms: f64,
    failed: u64,
    /// Cores used by the applications' containers and by the proxies beside them.
    app_cores: f64,
    proxy_cores: f64,
    proxies: usize,
    proxy_mb: f64,
}

pub(super) fn run(json: bool, workspace: &Workspace) -> Result<ExitCode> {
    let report = on_a_cluster(measure)?;
    if json {
        ui::out(report.json());
        return Ok(ExitCode::SUCCESS);
    }
    let text = report.markdown();
    ui::out(&text);
    let path = workspace.root.join("bench/RESULTS-mesh.md");
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug)]
struct Report {
    ready: Duration,
    /// Memory by container of the control plane, in MB.
    control_plane: BTreeMap<String, f64>,
    rows: Vec<Row>,
}

fn measure(mesh: &Mesh) -> Result<Report> {
    let start = Instant::now();
    mesh.install()?;
    mesh.wait("linkerd")?;
    let ready = start.elapsed();

    mesh.sample()?;
    let mut rows = Vec::new();
    for meshed in [false, true] {
        if meshed {
            mesh.inject(SAMPLE)?;
        }
        for rate in RATES {
            let what = if meshed { "meshed" } else { "not meshed" };
            rows.push(ui::step(format_args!("{rate} requests/s, {what}"), || {
                one(mesh, meshed, rate)
            })?);
        }
    }
    let control_plane = usage(mesh, "linkerd")?
        .into_iter()
        .map(|(name, used)| (name, used.bytes / 1e6))
        .collect();
    Ok(Report {
        ready,
        control_plane,
        rows,
    })
}

/// Loads the page at one rate.
fn one(mesh: &Mesh, meshed: bool, rate: u32) -> Result<Row> {
    let load = Load {
        path: "/api/vote?choice=:joy:",
        rate,
        meshed,
    };
    load.start(mesh)?;
    pass(WARM_UP);
    Answers::since_last(mesh)?;
    let before = usage(mesh, SAMPLE)?;
    pass(MEASURED);
    let answers = Answers::since_last(mesh)?;
    let after = usage(mesh, SAMPLE)?;
    let mut row = Row {
        meshed,
        rate,
        p50_ms: answers.p50_ms,
        p99_ms: answers.p99_ms,
        failed: answers.failed,
        app_cores: 0.0,
        proxy_cores: 0.0,
        proxies: 0,
        proxy_mb: 0.0,
    };
    for (name, now) in &after {
        let Some(then) = before.get(name) else {
            continue;
        };
        let cores = now.cores_since(then);
        if name.ends_with("/linkerd-proxy") {
            row.proxies += 1;
            row.proxy_cores += cores;
            row.proxy_mb += now.bytes / 1e6;
        } else if !name.starts_with("load-") {
            row.app_cores += cores;
        }
    }
    ensure!(
        meshed == (row.proxies > 0),
        "the pods are not as they should be: {after:?}"
    );
    Ok(row)
}

/// What a container has used, as the kubelet counts.
#[derive(Debug)]
struct Usage {
    /// When it was counted, in seconds of the day.
    at: f64,
    core_seconds: f64,
    /// Memory that cannot be taken away.
    bytes: f64,
}

impl Usage {
    fn cores_since(&self, then: &Self) -> f64 {
        let time = (self.at - then.at).rem_euclid(86_400.0);
        if time == 0.0 {
            return f64::NAN;
        }
        (self.core_seconds - then.core_seconds) / time
    }
}

/// Every container of a namespace, as `POD/CONTAINER`.
fn usage(mesh: &Mesh, namespace: &str) -> Result<BTreeMap<String, Usage>> {
    let nodes: Value = serde_json::from_str(&mesh.raw("/api/v1/nodes")?)?;
    let mut used = BTreeMap::new();
    for node in nodes["items"].as_array().into_iter().flatten() {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let summary = mesh.raw(&format!("/api/v1/nodes/{name}/proxy/stats/summary"))?;
        let summary: Value = serde_json::from_str(&summary).context("the kubelet's statistics")?;
        for pod in summary["pods"].as_array().into_iter().flatten() {
            if pod["podRef"]["namespace"] != namespace {
                continue;
            }
            let pod_name = pod["podRef"]["name"].as_str().unwrap_or_default();
            for container in pod["containers"].as_array().into_iter().flatten() {
                let (cpu, memory) = (&container["cpu"], &container["memory"]);
                let Some(at) = cpu["time"].as_str().and_then(seconds_of_day) else {
                    continue;
                };
                let name = container["name"].as_str().unwrap_or_default();
                used.insert(
                    format!("{pod_name}/{name}"),
                    Usage {
                        at,
                        core_seconds: cpu["usageCoreNanoSeconds"].as_f64().unwrap_or_default()
                            / 1e9,
                        bytes: memory["workingSetBytes"].as_f64().unwrap_or_default(),
                    },
                );
            }
        }
    }
    Ok(used)
}

/// `2026-01-01T00:01:02.5Z`, as the kubelet writes times.
fn seconds_of_day(text: &str) -> Option<f64> {
    let (_, time) = text.trim_end_matches('Z').split_once('T')?;
    let mut parts = time.splitn(3, ':').map(str::parse::<f64>);
    let mut next = || parts.next()?.ok();
    Some((next()? * 60.0 + next()?) * 60.0 + next()?)
}

impl Report {
    fn control_plane_mb(&self) -> f64 {
        self.control_plane.values().sum()
    }

    fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "meshed": row.meshed, "rate": row.rate, "p50_ms": row.p50_ms, "p99_ms": row.p99_ms,
                "failed": row.failed, "app_cores": row.app_cores, "proxy_cores": row.proxy_cores,
                "proxies": row.proxies, "proxy_mb": row.proxy_mb,
            })
        });
        json!({
            "ready_s": self.ready.as_secs_f64(),
            "control_plane_mb": self.control_plane_mb(),
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    fn markdown(&self) -> String {
        let mut text = format!(
            "# What the whole mesh costs\n\nWritten by `cargo xtask bench mesh`: a local cluster of its own on {}, the sample\n\
             application with one replica of everything, each request of the client making two more behind\n\
             it (web asks emoji and voting). CPU and memory are the kubelet's; latency is the client's.\n\n\
             From `linkerd install` to everything ready: {:.1} s.\n\n\
             ## Control plane\n\n| container | MB |\n|---|---|\n",
            machine::description(),
            self.ready.as_secs_f64(),
        );
        for (name, mb) in &self.control_plane {
            let _ = writeln!(text, "| {} | {mb:.1} |", without_hash(name));
        }
        let sum = self.control_plane_mb();
        let met = if sum <= GOAL_MB { "met" } else { "missed" };
        let _ = writeln!(text, "| everything (goal {GOAL_MB} MB: {met}) | {sum:.1} |");
        text.push_str(
            "\n## Data plane\n\n| requests/s | mesh | p50 ms | p99 ms | failed | applications, cores | proxies, cores | MB a proxy |\n|---|---|---|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let proxies = f64::from(u32::try_from(row.proxies).unwrap_or(u32::MAX));
            let (mesh, each) = match row.meshed {
                true => ("yes", format!("{:.1}", row.proxy_mb / proxies)),
                false => ("no", "-".to_owned()),
            };
            let _ = writeln!(
                text,
                "| {} | {mesh} | {:.2} | {:.2} | {} | {:.3} | {:.3} | {each} |",
                row.rate, row.p50_ms, row.p99_ms, row.failed, row.app_cores, row.proxy_cores
            );
        }
        text
    }
}

/// `linkerd-identity-59dc7985cb-7lvmv/identity` without what changes each time.
fn without_hash(name: &str) -> String {
    let (pod, container) = name.split_once('/').unwrap_or((name, ""));
    let deployment = pod.rsplitn(3, '-').last().unwrap_or(pod);
    format!("{deployment}/{container}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_named_by_their_deployment() {
        let name = "linkerd-identity-59dc7985cb-7lvmv/identity";
        assert_eq!(without_hash(name), "linkerd-identity/identity");
    }

    #[test]
    fn cores_are_seconds_of_work_in_a_time() {
        let usage = |at: &str, core_seconds| Usage {
            at: seconds_of_day(at).expect("a time"),
            core_seconds,
            bytes: 0.0,
        };
        let then = usage("2026-01-01T00:00:00Z", 5.0);
        assert!((usage("2026-01-01T00:00:10Z", 7.5).cores_since(&then) - 0.25).abs() < 1e-9);
        assert!(
            usage("2026-01-01T00:00:00Z", 7.5)
                .cores_since(&then)
                .is_nan()
        );
        let late = usage("2026-01-01T23:59:59.5Z", 0.0);
        assert!((usage("2026-01-02T00:00:00.5Z", 0.5).cores_since(&late) - 0.5).abs() < 1e-9);
    }
}
