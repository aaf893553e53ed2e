//! What cargo knows about this workspace: where it is, where builds go, which programs and
//! test targets there are.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::program;

#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self> {
        let text = program::output(cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
        serde_json::from_str(&text).context("reading what cargo metadata printed")
    }

    /// Whether a package of the workspace makes a program of this name.
    pub(crate) fn has_program(&self, package: &str, bin: &str) -> bool {
        self.targets("bin")
            .any(|(p, target)| p == package && target == bin)
    }

    /// The integration tests whose name starts with `prefix`.
    pub(crate) fn test_targets(&self, prefix: &str) -> Vec<&str> {
        self.targets("test")
            .map(|(_, name)| name)
            .filter(|name| name.starts_with(prefix))
            .collect()
    }

    /// The benchmarks, as (package, name).
    pub(crate) fn benches(&self) -> Vec<(&str, &str)> {
        self.targets("bench").collect()
    }

    fn targets(&self, kind: &str) -> impl Iterator<Item = (&str, &str)> {
        self.packages.iter().flat_map(move |package| {
            let targets = package.targets.iter();
            targets
                .filter(move |target| target.kind.iter().any(|k| k == kind))
                .map(|target| (package.name.as_str(), target.name.as_str()))
        })
    }
}

/// The cargo that runs us. What it told us about our own package is not for its children.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = program::command(program, [] as [&str; 0]);
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_MANIFEST_")
                || name == "CARGO_BIN_NAME"
        });
        if ours {
            command.env_remove(name);
        }
    }
    command
}
