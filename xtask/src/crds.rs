//! `cargo xtask crds`: writes the custom resource definitions into the chart. They are made by a
//! program of `crates/k8s`, so that xtask itself builds without a Kubernetes client.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

/// Rewrites `charts/linkerd-crds/templates/<group>/<plural>.yaml`.
pub(crate) fn run(root: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root)
        .args(["run", "--quiet", "--package", "linkerd-k8s", "--bin", "linkerd-crds", "--"])
        .args(["--write", "charts/linkerd-crds/templates"])
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "linkerd-crds failed: {status}");
    Ok(())
}
