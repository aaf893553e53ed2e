//! `cargo xtask`: the doors of the workshop. This file is the command tree; each
//! subcommand has a module of its own.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod archive;
mod ui;

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
enum Task {}

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
    match task {}
}
