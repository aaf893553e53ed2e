//! `cargo xtask bench operations`: what a client notices of ordinary operations. The page of the
//! sample in three replicas, none with a preStop hook, asked at a steady rate while it is restarted and
//! scaled and while the control plane goes; without the mesh and with it, one after the other.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::load::{Answers, Load};
use super::{on_a_cluster, pass};
use crate::mesh::{Mesh, SAMPLE};
use crate::workspace::Workspace;
use crate::{machine, program, ui};

const RATE: u32 = 200;
/// How long is waited before the first operation, and measured where nothing happens.
const WARM_UP: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(30);
/// What belongs to an operation after everything is ready again: pods that end, connections that move.
const AFTER: Duration = Duration::from_secs(10);

/// Something done to the application or to the mesh.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Nothing,
    Restart,
    Scale,
    ControlPlane,
    DestinationByForce,
}

use Operation::{ControlPlane, DestinationByForce, Nothing, Restart, Scale};

/// The last two only where there is a mesh.
const UNMESHED: [Operation; 3] = [Nothing, Restart, Scale];
const MESHED: [Operation; 5] = [Nothing, Restart, Scale, ControlPlane, DestinationByForce];

#[derive(Debug)]
struct Row {
    operation: Operation,
    meshed: bool,
    answers: Answers,
}

pub(super) fn run(json: bool, workspace: &Workspace) -> Result<ExitCode> {
    let rows = on_a_cluster(measure)?;
    if json {
        for row in &rows {
            ui::out(row.json());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let text = markdown(&rows);
    ui::out(&text);
    let path = workspace.root.join("bench/RESULTS-operations.md");
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn measure(mesh: &Mesh) -> Result<Vec<Row>> {
    mesh.install()?;
    mesh.wait("linkerd")?;
    mesh.sample()?;
    let kubectl = |arguments: &[&str]| program::output(&mut mesh.kubectl(arguments)).map(drop);
    let namespace = format!("--namespace={SAMPLE}");
    let sample = |arguments: &[&str]| kubectl(&[&[namespace.as_str()], arguments].concat());
    sample(&["scale", "deploy/vote-bot", "--replicas=0"])?;
    sample(&["scale", "deploy/web", "--replicas=3"])?;
    mesh.wait(SAMPLE)?;

    let mut rows = Vec::new();
    for (meshed, operations) in [(false, &UNMESHED[..]), (true, &MESHED[..])] {
        if meshed {
            mesh.inject(SAMPLE)?;
        }
        let load = Load {
            path: "/",
            rate: RATE,
            meshed,
        };
        load.start(mesh)?;
        pass(WARM_UP);
        for operation in operations.iter().copied() {
            Answers::since_last(mesh)?;
            match operation {
                Nothing => pass(QUIET),
                Restart => {
                    sample(&["rollout", "restart", "deploy/web"])?;
                    mesh.wait(SAMPLE)?;
                }
                Scale => {
                    for replicas in ["--replicas=6", "--replicas=2", "--replicas=3"] {
                        sample(&["scale", "deploy/web", replicas])?;
                        mesh.wait(SAMPLE)?;
                    }
                }
                ControlPlane => {
                    kubectl(&["--namespace=linkerd", "delete", "pods", "--all"])?;
                    mesh.wait("linkerd")?;
                }
                DestinationByForce => {
                    sample(&["rollout", "restart", "deploy/web"])?;
                    let destination = "-l=linkerd.io/control-plane-component=destination";
                    let now = ["delete", "pods", destination, "--force", "--grace-period=0"];
                    kubectl(&[&["--namespace=linkerd"], &now[..]].concat())?;
                    mesh.wait("linkerd")?;
                    mesh.wait(SAMPLE)?;
                }
            }
            pass(AFTER);
            rows.push(Row {
                operation,
                meshed,
                answers: Answers::since_last(mesh)?,
            });
        }
    }
    Ok(rows)
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Nothing => "nothing",
            Restart => "rolling restart",
            Scale => "scaled 3, 6, 2, 3",
            ControlPlane => "control plane deleted",
            DestinationByForce => "destination removed by force in a rolling restart",
        }
    }
}

impl Row {
    fn json(&self) -> Value {
        let Answers {
            sent,
            failed,
            p50_ms,
            p99_ms,
            max_ms,
            failures,
        } = &self.answers;
        json!({
            "operation": self.operation.name(), "meshed": self.meshed, "sent": sent,
            "failed": failed, "failures": failures, "p50_ms": p50_ms, "p99_ms": p99_ms,
            "max_ms": max_ms,
        })
    }
}

fn markdown(rows: &[Row]) -> String {
    let mut text = format!(
        "# What a client notices of operations\n\nWritten by `cargo xtask bench operations`: a local cluster of its own on {}, which\n\
         makes and ends the pods too. {RATE} requests a second for the sample's page, which has three\n\
         replicas and no preStop hook. What comes within {} s after the operation belongs to it; the\n\
         figures are the client's.\n\n\
         | operation | mesh | requests | failed | p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|---|---|\n",
        machine::description(),
        AFTER.as_secs(),
    );
    for row in rows {
        let answers = &row.answers;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.2} | {:.2} | {:.1} |",
            row.operation.name(),
            if row.meshed { "yes" } else { "no" },
            answers.sent,
            answers.failed,
            answers.p50_ms,
            answers.p99_ms,
            answers.max_ms
        );
    }
    text
}
