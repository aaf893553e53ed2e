//! Helm with the public documentation's own commands, on a real cluster.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use linkerd_e2e::{Kubectl, cli, helm, sweep};
use linkerd_testkit::ca::Ca;

/// Both releases, removed when the test ends.
struct Releases(Kubectl);

impl Releases {
    fn start(kubectl: &Kubectl) -> Self {
        let releases = Self(kubectl.clone());
        releases.remove();
        releases
    }

    fn remove(&self) {
        for release in ["linkerd-control-plane", "linkerd-crds"] {
            let arguments = [
                "uninstall",
                release,
                "-n",
                "linkerd",
                "--wait",
                "--ignore-not-found",
            ];
            let _ = self.helm(&arguments).output();
        }
        sweep(&self.0, true);
    }

    fn helm(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(helm());
        command
            .args(arguments)
            .env("KUBECONFIG", self.0.kubeconfig())
            .stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.helm(arguments).output().expect("helm starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Releases {
    fn drop(&mut self) {
        self.remove();
    }
}

fn chart(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../charts")
        .join(name);
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn helm_installs_with_the_documented_commands() {
    let kubectl = Kubectl::from_env();
    let releases = Releases::start(&kubectl);
    let dir = tempfile::tempdir().expect("a directory");
    let root = Ca::root("root.linkerd.cluster.local");
    let issuer = root.intermediate("identity.linkerd.cluster.local");
    let file = |name: &str, content: &str| -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, content).expect("written");
        path
    };
    let set = |key: &str, path: &Path| format!("{key}={}", path.display());
    let anchors = set("identityTrustAnchorsPEM", &file("ca.crt", root.pem()));
    let certificate = set(
        "identity.issuer.tls.crtPEM",
        &file("issuer.crt", issuer.pem()),
    );
    let key = set(
        "identity.issuer.tls.keyPEM",
        &file("issuer.key", &issuer.key_pem()),
    );

    releases.run(&[
        "install",
        "linkerd-crds",
        &chart("linkerd-crds"),
        "-n",
        "linkerd",
        "--create-namespace",
        "--set",
        "installGatewayAPI=true",
    ]);
    let install = [
        "upgrade",
        "--install",
        "linkerd-control-plane",
        "-n",
        "linkerd",
        "--set-file",
        &anchors,
        "--set-file",
        &certificate,
        "--set-file",
        &key,
        "--set",
        "controllerLogLevel=debug",
        "--set",
        "policyController.logLevel=debug",
        &chart("linkerd-control-plane"),
    ];
    releases.run(&install);
    let ready = || {
        let wait = [
            "-n",
            "linkerd",
            "rollout",
            "status",
            "deploy",
            "--timeout=240s",
        ];
        kubectl.run(&wait);
    };
    ready();
    let check = Command::new(cli())
        .args(["check", "--offline", "--wait=120s"])
        .env("KUBECONFIG", kubectl.kubeconfig())
        .env("PATH", "/nowhere")
        .output()
        .expect("linkerd starts");
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{said}");
    assert!(said.ends_with("Status check results are √\n"), "{said}");

    // The same command again upgrades; high availability only renders, one node is not enough for it.
    releases.run(&install);
    ready();
    let values = Path::new(&chart("linkerd-control-plane")).join("values-ha.yaml");
    let values = values.to_str().expect("UTF-8").to_owned();
    let mut template = vec!["template", "linkerd-control-plane"];
    template.extend(&install[3..]);
    // A Helm built from its module takes the cluster for a very old one when it only renders.
    template.extend(["-f", &values, "--kube-version", "1.30.0"]);
    let rendered = releases.run(&template);
    assert_eq!(rendered.matches("kind: PodDisruptionBudget").count(), 3);
    assert!(rendered.contains("replicas: 3"));

    releases.run(&[
        "uninstall",
        "linkerd-control-plane",
        "-n",
        "linkerd",
        "--wait",
    ]);
    releases.run(&["uninstall", "linkerd-crds", "-n", "linkerd", "--wait"]);
    let kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,deployments,cronjobs,services";
    let label = "linkerd.io/control-plane-ns=linkerd";
    let left = kubectl.run(&["get", kinds, "-A", "-l", label, "-o", "name"]);
    assert_eq!(left, "", "Helm leaves nothing");
}
