//! `cargo xtask bench operations`: what a client notices of ordinary operations. The page of the
//! sample in three replicas, none with a preStop hook, asked at a steady rate while it is restarted and
//! scaled and while the control plane goes; without the mesh and with it, one after the other, in rounds.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::load::{Answers, Load};
use super::{on_a_cluster, pass};
use crate::machine::{self, CpuTime};
use crate::mesh::{Mesh, SAMPLE};
use crate::workspace::Workspace;
use crate::{program, ui};

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

/// One operation, as often as there were rounds.
#[derive(Debug)]
struct Row {
    operation: Operation,
    meshed: bool,
    rounds: Vec<Round>,
}

#[derive(Debug)]
struct Round {
    answers: Answers,
    /// The part of the machine's time that its host had taken away, in percent.
    stolen: f64,
}

pub(super) fn run(json: bool, rounds: usize, workspace: &Workspace) -> Result<ExitCode> {
    let rows = on_a_cluster(|mesh| measure(mesh, rounds))?;
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

fn measure(mesh: &Mesh, rounds: usize) -> Result<Vec<Row>> {
    mesh.install()?;
    mesh.wait("linkerd")?;
    mesh.sample()?;
    kubectl(mesh, SAMPLE, &["scale", "deploy/vote-bot", "--replicas=0"])?;
    kubectl(mesh, SAMPLE, &["scale", "deploy/web", "--replicas=3"])?;
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
        let first = rows.len();
        rows.extend(operations.iter().map(|operation| Row {
            operation: *operation,
            meshed,
            rounds: Vec::new(),
        }));
        for round in 1..=rounds {
            for row in &mut rows[first..] {
                Answers::since_last(mesh)?;
                let before = CpuTime::now()?;
                operate(mesh, row.operation)?;
                pass(AFTER);
                let done = Round {
                    answers: Answers::since_last(mesh)?,
                    stolen: before.stolen_until(CpuTime::now()?),
                };
                ui::note(format_args!(
                    "round {round}/{rounds}: {}, {}: {} requests, {} failed, p99 {:.1} ms",
                    row.operation.name(),
                    if meshed { "meshed" } else { "not meshed" },
                    done.answers.sent,
                    done.answers.failed,
                    done.answers.p99_ms
                ));
                row.rounds.push(done);
            }
        }
    }
    Ok(rows)
}

fn kubectl(mesh: &Mesh, namespace: &str, arguments: &[&str]) -> Result<()> {
    let namespace = format!("--namespace={namespace}");
    let arguments = [&[namespace.as_str()], arguments].concat();
    program::output(&mut mesh.kubectl(&arguments)).map(drop)
}

/// Does it and waits until everything is ready again.
fn operate(mesh: &Mesh, operation: Operation) -> Result<()> {
    match operation {
        Nothing => pass(QUIET),
        Restart => {
            kubectl(mesh, SAMPLE, &["rollout", "restart", "deploy/web"])?;
            mesh.wait(SAMPLE)?;
        }
        Scale => {
            for replicas in ["--replicas=6", "--replicas=2", "--replicas=3"] {
                kubectl(mesh, SAMPLE, &["scale", "deploy/web", replicas])?;
                mesh.wait(SAMPLE)?;
            }
        }
        ControlPlane => {
            kubectl(mesh, "linkerd", &["delete", "pods", "--all"])?;
            mesh.wait("linkerd")?;
        }
        DestinationByForce => {
            kubectl(mesh, SAMPLE, &["rollout", "restart", "deploy/web"])?;
            let destination = "-l=linkerd.io/control-plane-component=destination";
            let now = ["delete", "pods", destination, "--force", "--grace-period=0"];
            kubectl(mesh, "linkerd", &now)?;
            mesh.wait("linkerd")?;
            mesh.wait(SAMPLE)?;
        }
    }
    Ok(())
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
    fn sum(&self, count: impl Fn(&Answers) -> u64) -> u64 {
        self.rounds.iter().map(|round| count(&round.answers)).sum()
    }

    /// The middle one of all rounds.
    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn json(&self) -> Value {
        let failures: Vec<_> = self.rounds.iter().map(|r| &r.answers.failures).collect();
        json!({
            "operation": self.operation.name(), "meshed": self.meshed,
            "sent": self.sum(|a| a.sent), "failed": self.sum(|a| a.failed), "failures": failures,
            "p50_ms": self.median(|r| r.answers.p50_ms),
            "p99_ms": self.median(|r| r.answers.p99_ms),
            "max_ms": self.median(|r| r.answers.max_ms),
            "stolen_percent": self.median(|r| r.stolen),
        })
    }
}

fn markdown(rows: &[Row]) -> String {
    let mut text = format!(
        "# What a client notices of operations\n\nWritten by `cargo xtask bench operations`: a local cluster of its own on {}, which\n\
         makes and ends the pods too. {RATE} requests a second for the sample's page, which has three\n\
         replicas and no preStop hook. What comes within {} s after the operation belongs to it; the\n\
         figures are the client's, medians of {} rounds, and beside them the p99 of each. `stolen` is what the\n\
         machine's host took of its CPU.\n\n\
         | operation | mesh | requests | failed | p50 ms | p99 ms | longest ms | stolen % | p99 of each round |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        machine::description(),
        AFTER.as_secs(),
        rows.first().map_or(0, |row| row.rounds.len()),
    );
    for row in rows {
        let each: Vec<String> = row
            .rounds
            .iter()
            .map(|round| format!("{:.1}", round.answers.p99_ms))
            .collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.2} | {:.2} | {:.1} | {:.1} | {} |",
            row.operation.name(),
            if row.meshed { "yes" } else { "no" },
            row.sum(|a| a.sent),
            row.sum(|a| a.failed),
            row.median(|r| r.answers.p50_ms),
            row.median(|r| r.answers.p99_ms),
            row.median(|r| r.answers.max_ms),
            row.median(|r| r.stolen),
            each.join(", ")
        );
    }
    text
}
