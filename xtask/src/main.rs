//! `cargo xtask`: the doors of the workshop. This file is the command tree; each
//! subcommand has a module of its own.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod archive;
mod bench;
mod charts;
mod cluster;
mod crds;
mod demo;
mod fuzz;
#[cfg(test)]
mod house;
mod images;
mod machine;
mod mesh;
mod program;
mod setup;
mod test;
mod tools;
mod ui;
mod workspace;

/// Set-up, local cluster, images, tests, demo and benchmarks.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    propagate_version = true
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what this machine lacks
    Setup(setup::Args),
    /// A real Kubernetes on this machine
    #[command(subcommand)]
    Cluster(cluster::Task),
    /// Print where a tool is that tests use, building it when needed
    Tool(tools::Args),
    /// Static programs as container images
    Images(images::Args),
    /// Every floor of tests
    Test(test::Args),
    /// From nothing to a working mesh in a local cluster
    Demo(demo::Args),
    /// Measurements
    Bench(bench::Args),
    /// Foreign bytes at random, for everything that reads them
    Fuzz(fuzz::Args),
    /// Write the custom resource definitions into the chart
    Crds,
    /// Complete the CRDs chart with the Gateway API's definitions
    Charts,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.task) {
        Ok(code) => code,
        Err(error) => {
            ui::failure(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Setup(args) => setup::run(&args),
        Task::Cluster(task) => cluster::run(task),
        Task::Tool(args) => tools::run(&args),
        Task::Images(args) => images::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Crds => crds::run(),
        Task::Charts => charts::run(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    /// The parser looks at a subcommand only when somebody types it.
    #[test]
    fn every_command_can_be_typed() {
        Cli::command().debug_assert();
    }
}
