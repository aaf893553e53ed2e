//! A mesh on a cluster, worked with as a person would: with the `linkerd` command and kubectl. The
//! demo and the measurements of the whole mesh stand on it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::workspace::Workspace;
use crate::{charts, images, machine, program, tools, ui};

pub(crate) mod scrape;

/// The namespace and the manifest of the sample application.
pub(crate) const SAMPLE: &str = "emojivoto";
const MANIFEST: &str = "sample/emojivoto.yml";

/// The programs and the cluster they work on.
#[derive(Debug)]
pub(crate) struct Mesh {
    pub(crate) linkerd: PathBuf,
    pub(crate) kubectl: PathBuf,
    kubeconfig: PathBuf,
    /// Where the cluster finds our images.
    registry: String,
    root: PathBuf,
}

impl Mesh {
    /// For a cluster that has our images, or can pull them.
    pub(crate) fn new(linkerd: PathBuf, kubeconfig: &Path, registry: &str) -> Result<Self> {
        Ok(Self {
            linkerd,
            kubectl: tools::kubectl()?,
            kubeconfig: kubeconfig.to_owned(),
            registry: registry.to_owned(),
            root: Workspace::find()?.root,
        })
    }

    pub(crate) fn is_installed(&self) -> bool {
        let config = ["get", "configmap", "linkerd-config", "--namespace=linkerd"];
        program::succeeds(&mut self.kubectl(&config))
    }

    /// The Gateway API's own definitions, unless the cluster has them from elsewhere.
    pub(crate) fn gateway_api(&self) -> Result<()> {
        let routes = ["get", "crd", "httproutes.gateway.networking.k8s.io"];
        if program::succeeds(&mut self.kubectl(&routes)) {
            return Ok(());
        }
        let files = charts::standard()?;
        ui::step(
            "kubectl apply --server-side -f (the Gateway API's definitions)",
            || {
                let mut apply = self.kubectl(&["apply", "--server-side"]);
                for file in &files {
                    apply.arg("-f").arg(file);
                }
                program::output(&mut apply).map(drop)
            },
        )
    }

    /// Definitions and control plane; an older installation is upgraded.
    pub(crate) fn install(&self) -> Result<()> {
        self.gateway_api()?;
        let render = match self.is_installed() {
            true => "upgrade",
            false => "install",
        };
        self.apply(&[render, "--crds"])?;
        if self.registry == images::REGISTRY {
            self.apply(&[render])
        } else {
            self.apply(&[render, "--registry", &self.registry])
        }
    }

    /// Shows what `linkerd check` says.
    pub(crate) fn check(&self, arguments: &[&str]) -> Result<()> {
        ui::out(format_args!("\n$ linkerd check {}", arguments.join(" ")));
        program::show(self.linkerd(&["check"]).args(arguments))
    }

    /// The sample application, as its manifest is.
    pub(crate) fn sample(&self) -> Result<()> {
        ui::step(format_args!("kubectl apply -f {MANIFEST}"), || {
            let path = self.root.join(MANIFEST);
            let manifest = std::fs::read_to_string(&path)
                .with_context(|| format!("reading {}", path.display()))?;
            self.apply_text(&manifest.replace(images::REGISTRY, &self.registry))
        })?;
        self.wait(SAMPLE)
    }

    /// `kubectl get deploy -o yaml | linkerd inject - | kubectl apply -f -`
    pub(crate) fn inject(&self, namespace: &str) -> Result<()> {
        let told = format!(
            "kubectl get -n {namespace} deploy -o yaml | linkerd inject - | kubectl apply -f -"
        );
        ui::step(told, || {
            let list = ["get", "--namespace", namespace, "deploy", "-o", "yaml"];
            let list = program::output(&mut self.kubectl(&list))?;
            let file = Scratch::new(&list)?;
            let injected = program::output(self.linkerd(&["inject"]).arg(&file.0))?;
            self.apply_text(&injected)
        })?;
        self.wait(namespace)
    }

    /// Takes the sample and the mesh away again; what else the cluster has stays.
    pub(crate) fn remove(&self) -> Result<()> {
        ui::step(format_args!("kubectl delete namespace {SAMPLE}"), || {
            let delete = ["delete", "namespace", SAMPLE, "--ignore-not-found"];
            program::output(&mut self.kubectl(&delete)).map(drop)
        })?;
        ui::step("linkerd uninstall | kubectl delete -f -", || {
            let objects = program::output(&mut self.linkerd(&["uninstall"]))?;
            if objects.trim().is_empty() {
                return Ok(());
            }
            let file = Scratch::new(&objects)?;
            let mut delete = self.kubectl(&["delete", "--ignore-not-found", "-f"]);
            program::output(delete.arg(&file.0)).map(drop)
        })
    }

    /// Until every deployment of a namespace is there, in its newest form.
    pub(crate) fn wait(&self, namespace: &str) -> Result<()> {
        ui::step(format_args!("deployments of {namespace} ready"), || {
            let wait = ["rollout", "status", "deploy", "--timeout=5m", "--namespace"];
            program::output(self.kubectl(&wait).arg(namespace)).map(drop)
        })
    }

    /// What `linkerd … | kubectl apply -f -` does.
    fn apply(&self, arguments: &[&str]) -> Result<()> {
        let command = arguments.join(" ");
        ui::step(
            format_args!("linkerd {command} | kubectl apply -f -"),
            || {
                let manifests = program::output(&mut self.linkerd(arguments))?;
                self.apply_text(&manifests)
            },
        )
    }

    pub(crate) fn apply_text(&self, manifests: &str) -> Result<()> {
        let file = Scratch::new(manifests)?;
        program::output(self.kubectl(&["apply", "-f"]).arg(&file.0)).map(drop)
    }

    /// An answer of the API server.
    pub(crate) fn raw(&self, path: &str) -> Result<String> {
        program::output(&mut self.kubectl(&["get", "--raw", path]))
    }

    pub(crate) fn linkerd(&self, arguments: &[&str]) -> Command {
        let mut command = program::command(&self.linkerd, arguments);
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = program::command(&self.kubectl, arguments);
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }
}

/// A file that is there for one command.
struct Scratch(PathBuf);

impl Scratch {
    fn new(content: &str) -> Result<Self> {
        let path = machine::cache_dir()?.join(format!("apply-{}.yaml", std::process::id()));
        std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
