//! `cargo xtask crds`: writes the custom resource definitions into the chart. They are made by a
//! program of `crates/k8s`, so that xtask itself builds without a Kubernetes client.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    program,
    workspace::{self, Workspace},
};

/// Rewrites `charts/linkerd-crds/templates/<group>/<plural>.yaml`.
pub(crate) fn run() -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(&workspace.root)
        .args(["run", "--quiet", "--package", "linkerd-k8s"])
        .args(["--bin", "linkerd-crds", "--"])
        .args(["--write", "charts/linkerd-crds/templates"]);
    program::show(&mut cargo)?;
    Ok(ExitCode::SUCCESS)
}
