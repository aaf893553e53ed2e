//! `cargo xtask demo`: from nothing to a meshed application on this machine. It goes as far as
//! the programs of the workspace reach, and says so where they end.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::workspace::Workspace;
use crate::{cluster, images, setup, ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Build the programs fast instead of building fast programs
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    setup::ensure(&[setup::Purpose::Build, setup::Purpose::Cluster])?;
    let kubeconfig = cluster::up(cluster::DEFAULT_NAME, None)?;
    for archive in images::make(&images::quick(args.quick))? {
        let content =
            std::fs::read(&archive).with_context(|| format!("reading {}", archive.display()))?;
        cluster::load(cluster::DEFAULT_NAME, &content)?;
    }
    ui::out(format_args!("export KUBECONFIG={}", kubeconfig.display()));
    if !Workspace::find()?.has_program("linkerd-cli", "linkerd") {
        return Err(ui::hint(
            "the cluster is up and has the images, but the workspace has no `linkerd` command yet to install them",
            "look around with `cargo xtask cluster kubectl -- get pods -A`",
        ));
    }
    Ok(ExitCode::SUCCESS)
}
