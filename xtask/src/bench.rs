//! `cargo xtask bench`: the benchmarks of one part, or of all. Each is a bench target of the
//! crate it measures and prints its own results, but for the proxy, which has a program of its own.

use std::process::ExitCode;

use anyhow::Result;

use crate::workspace::{self, Workspace};
use crate::{images, program, ui};

mod mesh;
mod proxy;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure: init, tls, identity, http1, proxy, control-plane, mesh [default: all there
    /// is]
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
