//! The mesh, installed with our own command as the quick start says, and removed with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Kubectl, cli};

/// The control plane in namespace `linkerd`. There is one in a cluster, so one test of a target
/// holds it at a time.
#[derive(Debug)]
pub struct Mesh {
    kubectl: Kubectl,
    scratch: PathBuf,
}

impl Mesh {
    /// A mesh of which nothing is there yet.
    ///
    /// # Panics
    /// When there is no place for its files.
    pub fn begin(kubectl: &Kubectl) -> Self {
        let scratch = std::env::temp_dir().join(format!("linkerd-e2e-mesh-{}", std::process::id()));
        fs::create_dir_all(&scratch).expect("a directory for manifests");
        Self {
            kubectl: kubectl.clone(),
            scratch,
        }
    }

    /// Definitions and control plane, ready; `arguments` go to `linkerd install`.
    ///
    /// # Panics
    /// When any of it fails.
    #[track_caller]
    pub fn install(kubectl: &Kubectl, arguments: &[&str]) -> Self {
        let mesh = Self::begin(kubectl);
        mesh.add(arguments);
        mesh
    }

    /// [`Self::install`] into a mesh that was begun.
    #[track_caller]
    pub fn add(&self, arguments: &[&str]) {
        self.apply(&[
            "install",
            "--crds",
            "--ignore-cluster",
            "--set",
            "installGatewayAPI=true",
        ]);
        self.wait_definitions();
        let mut install = vec!["install"];
        install.extend(arguments);
        self.apply(&install);
        self.wait();
    }

    /// Until the API server serves every definition. kubectl refuses to wait for one that is so new
    /// that it has no condition yet: it is asked again.
    #[track_caller]
    fn wait_definitions(&self) {
        let wait = [
            "wait",
            "--for=condition=established",
            "crd",
            "--all",
            "--timeout=60s",
        ];
        let served = (0..100).any(|_| self.kubectl.try_run(&wait).status.success());
        assert!(served, "the definitions are not established");
    }

    /// Until every deployment of the control plane is there, in its newest form.
    #[track_caller]
    pub fn wait(&self) {
        let wait = ["rollout", "status", "deploy", "--timeout=180s"];
        self.kubectl
            .run(&[&["--namespace", "linkerd"], &wait[..]].concat());
    }

    /// What `linkerd … | kubectl apply -f -` does.
    #[track_caller]
    pub fn apply(&self, arguments: &[&str]) {
        let manifests = self.linkerd(arguments);
        self.apply_text(&manifests);
    }

    #[track_caller]
    pub fn apply_text(&self, manifests: &str) {
        let path = self.file("manifests.yaml", manifests);
        self.kubectl.run(&["apply", "-f", text(&path)]);
    }

    /// A file to give to a command.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.scratch.join(name);
        fs::write(&path, content).expect("the file is written");
        path
    }

    /// Runs our command, which must end well; gives what it printed.
    #[track_caller]
    pub fn linkerd(&self, arguments: &[&str]) -> String {
        let output = Command::new(cli())
            .args(arguments)
            .env("KUBECONFIG", self.kubectl.kubeconfig())
            .stdin(Stdio::null())
            .output()
            .expect("linkerd starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "linkerd {arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        sweep(&self.kubectl, false);
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Whatever is left of a control plane goes; its definitions, too, where a test is about them.
pub fn sweep(kubectl: &Kubectl, definitions: bool) {
    let mut kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations".to_owned();
    if definitions {
        kinds.push_str(",customresourcedefinitions");
    }
    let label = "linkerd.io/control-plane-ns=linkerd";
    for arguments in [
        &["delete", &kinds, "-l", label, "--ignore-not-found"][..],
        &[
            "delete",
            "namespace",
            "linkerd",
            "--ignore-not-found",
            "--timeout=120s",
        ],
    ] {
        let _ = kubectl.try_run(arguments);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
