//! Calls of kubectl, against a local cluster or the one that KUBECONFIG names.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::spec;
use crate::{program, tools, ui};

/// kubectl bound to one kubeconfig.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(kubeconfig: &Path) -> Result<Self> {
        Ok(Self {
            program: tools::kubectl()?,
            kubeconfig: kubeconfig.to_owned(),
        })
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program::command(&self.program, arguments);
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Result<String> {
        program::output(&mut self.command(arguments))
    }

    /// Whether the API server says it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        let mut command = self.command(&["get", "--raw", "/readyz", "--request-timeout=2s"]);
        program::succeeds(&mut command)
    }

    /// Gives a manifest to `kubectl VERB -f -`.
    pub(crate) fn feed(&self, verb: &str, manifest: &str) -> Result<()> {
        let mut child = self
            // Our own manifests need no second reading against the schema, which takes seconds.
            .command(&[verb, "--validate=false", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        let mut stdin = child.stdin.take().context("stdin is piped")?;
        // kubectl that ends early says why itself.
        let _ = stdin.write_all(manifest.as_bytes());
        drop(stdin);
        let done = child.wait_with_output().context("waiting for kubectl")?;
        if !done.status.success() {
            bail!(
                "`kubectl {verb}` failed: {}",
                String::from_utf8_lossy(&done.stderr).trim()
            );
        }
        Ok(())
    }
}

/// The kubeconfig named by KUBECONFIG, unless it is one of a local cluster of ours.
pub(crate) fn foreign() -> Option<PathBuf> {
    let path = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty())?;
    let path = PathBuf::from(path);
    (!spec::is_ours(&path)).then_some(path)
}

/// Fails with the next step unless the foreign cluster answers.
pub(crate) fn require_working(kubeconfig: &Path) -> Result<()> {
    let unset = "point KUBECONFIG at a working cluster, or unset it to use a local one";
    let first = std::env::split_paths(kubeconfig.as_os_str())
        .next()
        .unwrap_or_default();
    if !first.exists() {
        return Err(ui::hint(
            format!("KUBECONFIG names {}, which does not exist", first.display()),
            unset,
        ));
    }
    Kubectl::new(kubeconfig)?
        .output(&["get", "--raw", "/readyz", "--request-timeout=10s"])
        .map(drop)
        .map_err(|error| {
            ui::hint(
                format!("the cluster of KUBECONFIG does not answer: {error:#}"),
                unset,
            )
        })
}
