//! `cargo xtask demo`: from nothing to a working mesh on this machine, with the quick start's own
//! commands. What each one says is shown; running it again upgrades what is there.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::workspace::{self, Workspace};
use crate::{charts, cluster, images, program, setup, tools, ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Build the programs fast instead of building fast programs
    #[arg(long)]
    quick: bool,

    /// Take the demo's cluster down, with everything in it
    #[arg(long, conflicts_with = "quick")]
    down: bool,
}

/// The programs of the demo and the cluster they work on.
struct Demo<'a> {
    linkerd: &'a Path,
    kubectl: &'a Path,
    kubeconfig: &'a Path,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.down {
        cluster::down(cluster::DEFAULT_NAME)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before the first build: its images are in no registry that another cluster could reach.
    cluster::require_local("the demo can only be installed")?;
    setup::ensure(&[setup::Purpose::Build, setup::Purpose::Cluster])?;
    charts::run()?;
    let kubeconfig = cluster::up(cluster::DEFAULT_NAME, None)?;
    for archive in images::make(&images::quick(args.quick))? {
        let content =
            std::fs::read(&archive).with_context(|| format!("reading {}", archive.display()))?;
        cluster::load(cluster::DEFAULT_NAME, &content)?;
    }
    let workspace = Workspace::find()?;
    ui::long_step("building the linkerd command", || {
        let mut build = workspace::cargo();
        build.current_dir(&workspace.root).args([
            "build",
            "--package",
            "linkerd-cli",
            "--bin",
            "linkerd",
        ]);
        ui::patiently("building", &mut build).map(drop)
    })?;
    let linkerd = workspace.target.join("debug/linkerd");
    Demo {
        linkerd: &linkerd,
        kubectl: &tools::kubectl()?,
        kubeconfig: &kubeconfig,
    }
    .install()?;
    ui::out(format_args!(
        "\nThe mesh is up. To look around:\n  export KUBECONFIG={}\n  export PATH={}:$PATH\n  \
         linkerd check\n  kubectl get deploy -o yaml | linkerd inject - | kubectl apply -f -\n\
         `cargo xtask demo --down` removes it.",
        kubeconfig.display(),
        linkerd.parent().unwrap_or(&linkerd).display(),
    ));
    Ok(ExitCode::SUCCESS)
}

impl Demo<'_> {
    fn install(&self) -> Result<()> {
        let installed = program::succeeds(&mut self.kubectl(&[
            "get",
            "configmap",
            "linkerd-config",
            "--namespace=linkerd",
        ]));
        let render = if installed { "upgrade" } else { "install" };
        if !installed {
            self.check(&["--pre", "--wait=10s"])?;
        }
        self.apply(&[render, "--crds", "--set", "installGatewayAPI=true"])?;
        self.apply(&[render])?;
        self.check(&["--wait=5m"])
    }

    fn check(&self, arguments: &[&str]) -> Result<()> {
        ui::out(format_args!("\n$ linkerd check {}", arguments.join(" ")));
        program::show(self.linkerd(&["check"]).args(arguments))
    }

    /// What `linkerd … | kubectl apply -f -` does.
    fn apply(&self, arguments: &[&str]) -> Result<()> {
        let command = arguments.join(" ");
        ui::step(
            format_args!("linkerd {command} | kubectl apply -f -"),
            || {
                let manifests = program::output(&mut self.linkerd(arguments))?;
                let file = tempfile()?;
                std::fs::write(&file, manifests)
                    .with_context(|| format!("writing {}", file.display()))?;
                let applied = program::output(self.kubectl(&["apply", "-f"]).arg(&file));
                let _ = std::fs::remove_file(&file);
                applied.map(drop)
            },
        )
    }

    fn linkerd(&self, arguments: &[&str]) -> Command {
        let mut command = program::command(self.linkerd, arguments);
        command.env("KUBECONFIG", self.kubeconfig);
        command
    }

    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = program::command(self.kubectl, arguments);
        command.env("KUBECONFIG", self.kubeconfig);
        command
    }
}

fn tempfile() -> Result<std::path::PathBuf> {
    let directory = crate::machine::cache_dir()?;
    Ok(directory.join(format!("demo-{}.yaml", std::process::id())))
}
