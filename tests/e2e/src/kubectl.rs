//! kubectl, bound to the cluster of KUBECONFIG.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// kubectl on the cluster under test.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// # Panics
    /// When KUBECONFIG is not set: a cluster test without a cluster fails, it is never skipped.
    pub fn from_env() -> Self {
        let kubeconfig = std::env::var_os("KUBECONFIG")
            .map(PathBuf::from)
            .filter(|path| !path.as_os_str().is_empty())
            .unwrap_or_else(|| {
                panic!(
                    "KUBECONFIG is not set: run `cargo xtask test --floor cluster`, or \
                     `cargo xtask cluster up` and export what it prints"
                )
            });
        Self {
            program: built("kube", "kubectl").unwrap_or_else(|| PathBuf::from("kubectl")),
            kubeconfig,
        }
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A command not yet run, for what runs beside the test.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null());
        command
    }

    /// Runs kubectl to its end, however it ends.
    pub fn try_run(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .output()
            .unwrap_or_else(|error| panic!("{} cannot be started: {error}", self.program.display()))
    }

    /// Runs kubectl, which must end well; gives what it printed.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let done = self.try_run(arguments);
        assert!(
            done.status.success(),
            "kubectl {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        );
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Gives an object to `kubectl ARGUMENTS -f -`; gives what it printed.
    #[track_caller]
    pub fn feed(&self, arguments: &[&str], object: &Value) -> String {
        let mut child = self
            .command(arguments)
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl can be started");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        // When kubectl ends early its own words tell why.
        let _ = stdin.write_all(object.to_string().as_bytes());
        drop(stdin);
        let done = child.wait_with_output().expect("kubectl can be waited for");
        assert!(
            done.status.success(),
            "kubectl {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        );
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}

/// A program that xtask has built: the newest version in its cache. Its kubectl is of the
/// same version as the local cluster.
pub(crate) fn built(tool: &str, program: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let versions = std::fs::read_dir(cache.join("linkerd-rs/tools").join(tool)).ok()?;
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join(program))
        .filter(|file| file.exists())
        .collect();
    found.sort();
    found.pop()
}
