//! `cargo xtask bench`: the benchmarks of one part, or of all. Each is a bench target of the
//! crate it measures and prints its own results, but for the proxy, which has a program of its own.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::mesh::Mesh;
use crate::workspace::{self, Workspace};
use crate::{charts, cluster, images, program, setup, ui};

mod load;
mod mesh;
mod operations;
mod proxy;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure: init, tls, identity, http1, proxy, control-plane, mesh, operations
    /// [default: all but proxy, mesh and operations, which take long]
    part: Option<String>,
    #[command(flatten)]
    proxy: proxy::Args,
    /// Passed on to the benchmarks
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Measured as it is deployed: a program of its own, built the way it ships.
const CONTROLLER: &str = "linkerd-controller";

/// The parts by the names people use for them, and the packages that measure them.
const PARTS: [(&str, &[&str]); 5] = [
    ("init", &["linkerd-init"]),
    ("tls", &["linkerd-tls"]),
    ("identity", &["linkerd-identity"]),
    ("http1", &["linkerd-http1"]),
    ("control-plane", &[CONTROLLER]),
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    if args.part.as_deref() == Some("proxy") {
        return proxy::run(&args.proxy, &workspace);
    }
    if args.part.as_deref() == Some("mesh") {
        return mesh::run(args.proxy.json, &workspace);
    }
    if args.part.as_deref() == Some("operations") {
        let rounds = usize::from(args.proxy.rounds.unwrap_or(3));
        return operations::run(args.proxy.json, rounds, &workspace);
    }
    let benches = workspace.benches();
    let of = |part: &str| -> Vec<(&str, &str)> {
        let packages = PARTS
            .iter()
            .find(|(name, _)| *name == part)
            .map_or(&[][..], |(_, packages)| packages);
        benches
            .iter()
            .filter(|(package, _)| packages.contains(package))
            .copied()
            .collect()
    };
    let there: Vec<&str> = PARTS
        .iter()
        .map(|(part, _)| *part)
        .filter(|part| !of(part).is_empty())
        .chain(["proxy", "mesh", "operations"])
        .collect();
    let chosen = match &args.part {
        None => benches.clone(),
        Some(part) => of(part),
    };
    if chosen.is_empty() {
        let next = match there.is_empty() {
            true => "a benchmark is a `benches/NAME.rs` of the crate it measures".to_owned(),
            false => format!("there are benchmarks for {}", there.join(", ")),
        };
        let part = args.part.as_deref().unwrap_or("anything");
        return Err(ui::hint(format!("there is no benchmark for {part}"), next));
    }
    for (package, bench) in chosen {
        ui::note(format_args!("{package}: {bench}"));
        let mut cargo = workspace::cargo();
        cargo
            .current_dir(&workspace.root)
            .args(["bench", "--package", package, "--bench", bench]);
        if package == CONTROLLER {
            images::as_shipped(&mut cargo, images::Profile::Control);
        }
        cargo.arg("--");
        if package == CONTROLLER && args.proxy.json {
            cargo.arg("--json");
        }
        cargo.args(&args.arguments);
        program::show(&mut cargo)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The cluster of a measurement of the whole mesh, which nothing else uses.
const CLUSTER: &str = "bench-mesh";

/// Measures the mesh as it ships, on a cluster that has only its images and is taken away again.
fn on_a_cluster<R>(measure: impl FnOnce(&Mesh) -> Result<R>) -> Result<R> {
    cluster::require_local("the mesh can only be measured after loading images")?;
    setup::ensure(&[setup::Purpose::Build, setup::Purpose::Cluster])?;
    charts::run()?;
    let (archives, linkerd) = images::with_command_line(false)?;
    // Nothing of an earlier run may be warm.
    cluster::down(CLUSTER)?;
    let kubeconfig = cluster::up(CLUSTER, None)?;
    let measured = (|| {
        for archive in archives {
            let content = std::fs::read(&archive)
                .with_context(|| format!("reading {}", archive.display()))?;
            cluster::load(CLUSTER, &content)?;
        }
        let mesh = Mesh::new(linkerd, &kubeconfig, images::REGISTRY)?;
        mesh.gateway_api()?;
        measure(&mesh)
    })();
    cluster::down(CLUSTER)?;
    measured
}

fn pass(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "load is measured over a time")]
    std::thread::sleep(time);
}
