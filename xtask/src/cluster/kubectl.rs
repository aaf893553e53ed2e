//! Calls of kubectl, against a local cluster or the one that KUBECONFIG names.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::spec;
use crate::{machine, program, tools, ui};

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

/// What to do about a KUBECONFIG that does not help.
const UNSET: &str = "point KUBECONFIG at a working cluster, or unset it to use a local one";

/// Fails with the next step when there is no kubeconfig to read: kubectl would go on without one
/// and complain about a server nobody named.
pub(crate) fn require_readable(kubeconfig: &Path) -> Result<()> {
    let first = std::env::split_paths(kubeconfig.as_os_str())
        .next()
        .unwrap_or_default();
    let Err(error) = std::fs::File::open(&first) else {
        return Ok(());
    };
    if spec::is_ours(&first) && error.kind() == std::io::ErrorKind::PermissionDenied {
        return machine::require_root("the kubeconfig of a local cluster");
    }
    let why = match error.kind() {
        std::io::ErrorKind::NotFound => "which does not exist".to_owned(),
        _ => format!("which cannot be read: {error}"),
    };
    Err(ui::hint(
        format!("KUBECONFIG names {}, {why}", first.display()),
        UNSET,
    ))
}

/// Fails with the next step unless the foreign cluster answers.
pub(crate) fn require_working(kubeconfig: &Path) -> Result<()> {
    require_readable(kubeconfig)?;
    Kubectl::new(kubeconfig)?
        .output(&["get", "--raw", "/readyz", "--request-timeout=10s"])
        .map(drop)
        .map_err(|error| {
            ui::hint(
                format!("the cluster of KUBECONFIG does not answer: {error:#}"),
                UNSET,
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_that_is_not_there_is_named() {
        let error = require_readable(Path::new("/no/such/kubeconfig:/another"))
            .expect_err("it does not exist");
        assert_eq!(
            error.to_string(),
            "KUBECONFIG names /no/such/kubeconfig, which does not exist"
        );
        require_readable(Path::new("/proc/self/exe")).expect("it can be read");
    }
}
