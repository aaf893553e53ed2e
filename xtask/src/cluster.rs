//! `cargo xtask cluster`: a real Kubernetes on this machine, or the one KUBECONFIG names.
//!
//! `up` looks at what runs and starts what does not, so it makes, mends and leaves alone
//! alike; nothing but the kernel's own tables tells it what runs. The state of cluster
//! NAME is one directory; `down` ends its nodes, takes away its wires and removes it.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};

mod cgroups;
mod components;
mod health;
mod kubectl;
mod network;
mod node;
mod pki;
mod spec;
mod start;
mod system;

use crate::archive::Image;
use crate::{machine, program, setup, tools, ui};
use kubectl::Kubectl;
use node::Node;
use spec::Spec;

pub(crate) const DEFAULT_NAME: &str = "dev";

/// Disk a cluster needs beside the build products, in megabytes.
const STATE_MEGABYTES: u64 = 2000;

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Make the cluster, or mend it, until its nodes are ready
    Up {
        #[command(flatten)]
        which: Which,
        /// How many nodes; an existing cluster can grow
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=i64::from(spec::MOST_NODES)))]
        nodes: Option<u8>,
    },
    /// Remove the cluster and everything it left on the machine
    Down {
        #[command(flatten)]
        which: Which,
    },
    /// Show the components, the nodes and how they are
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// Print the path of the kubeconfig
    Kubeconfig {
        #[command(flatten)]
        which: Which,
    },
    /// Run kubectl against the cluster
    Kubectl {
        #[command(flatten)]
        which: Which,
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Load an image archive into every node
    Load {
        #[command(flatten)]
        which: Which,
        /// An archive as `docker save` writes it
        #[arg(required_unless_present = "program")]
        archive: Option<PathBuf>,
        /// Instead: pack this static program as an image and load that
        #[arg(long, requires = "image", conflicts_with = "archive")]
        program: Option<PathBuf>,
        /// The name of the packed image, with its tag
        #[arg(long)]
        image: Option<String>,
    },
    /// Print what a component has logged
    Logs {
        #[command(flatten)]
        which: Which,
        #[arg(value_parser = components::NAMES)]
        component: String,
        /// Of which node
        #[arg(long, default_value_t = 1)]
        node: u8,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The cluster's name
    #[arg(long, default_value = DEFAULT_NAME, value_parser = spec::check_name)]
    name: String,
}

pub(crate) fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Up { which, nodes } => {
            let kubeconfig = up(&which.name, nodes)?;
            ui::out(format_args!("export KUBECONFIG={}", kubeconfig.display()));
        }
        Task::Down { which } => down(&which.name)?,
        Task::Status { which } => return status(&which.name),
        Task::Kubeconfig { which } => ui::out(kubeconfig(&which.name)?.display()),
        Task::Kubectl { which, arguments } => return run_kubectl(&which.name, &arguments),
        Task::Load {
            which,
            archive,
            program,
            image,
        } => {
            load(
                &which.name,
                &content(archive.as_deref(), program.as_deref(), image.as_deref())?,
            )?;
        }
        Task::Logs {
            which,
            component,
            node,
        } => logs(&which.name, &component, node)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives the kubeconfig of a cluster that works: the one of KUBECONFIG, or a local one that
/// is made or mended.
pub(crate) fn up(name: &str, nodes: Option<u8>) -> Result<PathBuf> {
    if let Some(kubeconfig) = kubectl::foreign() {
        ui::step("asking the cluster of KUBECONFIG", || {
            kubectl::require_working(&kubeconfig)
        })?;
        return Ok(kubeconfig);
    }
    let begin = Instant::now();
    ui::note(format_args!("cluster {name}"));
    machine::require_root("a local cluster")?;
    let _lock = lock(name)?;
    machine::require_disk(&machine::state_dir(), STATE_MEGABYTES, "a local cluster")?;
    setup::ensure(&[setup::Purpose::Build, setup::Purpose::Cluster])?;
    let spec = match Spec::load(name)? {
        Some(spec) => resized(spec, nodes)?,
        None => {
            let nodes = nodes.unwrap_or(1);
            // Everything that takes long or fails easily comes before the first trace, and what would be
            // in vain before what takes long.
            Spec::choose(name, nodes)?;
            start::Programs::get()?;
            Spec::create(name, nodes)?
        }
    };
    spec.require_free_subnets()?;
    start::up(&spec).map_err(|error| {
        let next = format!(
            "look at `cargo xtask cluster logs --name {name} COMPONENT`; up again mends, down removes"
        );
        if error.chain().any(|cause| cause.is::<ui::Hint>()) { error } else { ui::hint(format!("{error:#}"), next) }
    })?;
    ui::note(format_args!(
        "cluster {name} is up ({})",
        ui::seconds(begin.elapsed())
    ));
    Ok(spec.kubeconfig())
}

/// The cluster with as many nodes as asked for; it may only grow.
fn resized(spec: Spec, nodes: Option<u8>) -> Result<Spec> {
    match nodes {
        Some(nodes) if nodes < spec.nodes => Err(ui::hint(
            format!("cluster {} has {} nodes", spec.name, spec.nodes),
            format!(
                "run `cargo xtask cluster down --name {}` first to make it smaller",
                spec.name
            ),
        )),
        Some(nodes) if nodes > spec.nodes => {
            let mut spec = spec;
            spec.nodes = nodes;
            spec.save()?;
            Ok(spec)
        }
        _ => Ok(spec),
    }
}

fn lock(name: &str) -> Result<machine::Lock> {
    let path = machine::state_dir().join(format!("{name}.lock"));
    machine::Lock::take(&path, &format!("another run is working on cluster {name}"))
}

/// Removes a local cluster: its processes, mounts, groups, links, namespaces and files.
pub(crate) fn down(name: &str) -> Result<()> {
    machine::require_root("taking a local cluster down")?;
    let _lock = lock(name)?;
    let begin = Instant::now();
    let dir = machine::state_dir().join(name);
    let nodes = node::end_all(&dir)?;
    let wires = network::down(name)?;
    let groups = cgroups::down(name)?;
    let files = dir.exists();
    if files {
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    if nodes == 0 && wires.is_empty() && groups == 0 && !files {
        ui::note(format_args!("there is no cluster {name}"));
        return Ok(());
    }
    ui::note(format_args!(
        "cluster {name} is gone ({})",
        ui::seconds(begin.elapsed())
    ));
    Ok(())
}

/// The local cluster of this name, which must exist.
fn existing(name: &str) -> Result<Spec> {
    Spec::load(name)?.ok_or_else(|| {
        ui::hint(
            format!("there is no cluster {name}"),
            format!("make it with `cargo xtask cluster up --name {name}`"),
        )
    })
}

/// The kubeconfig to use: the foreign one, or the local cluster's.
pub(crate) fn kubeconfig(name: &str) -> Result<PathBuf> {
    match kubectl::foreign() {
        Some(kubeconfig) => Ok(kubeconfig),
        None => Ok(existing(name)?.kubeconfig()),
    }
}

fn run_kubectl(name: &str, arguments: &[String]) -> Result<ExitCode> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let kubeconfig = kubeconfig(name)?;
    kubectl::require_readable(&kubeconfig)?;
    let error = Kubectl::new(&kubeconfig)?
        .command(&arguments)
        .stdin(std::process::Stdio::inherit())
        .exec();
    Err(error).context("starting kubectl")
}

/// Whether a local cluster of this name has running nodes.
pub(crate) fn is_up(name: &str) -> Result<bool> {
    let Some(spec) = Spec::load(name)? else {
        return Ok(false);
    };
    Ok(machine::is_root() && Node::find(&spec, 1)?.is_some())
}

fn content(archive: Option<&Path>, program: Option<&Path>, image: Option<&str>) -> Result<Vec<u8>> {
    if let Some(archive) = archive {
        return fs::read(archive).map_err(|error| {
            ui::hint(
                format!("{} cannot be read: {error}", archive.display()),
                "name an archive as `docker save` or `cargo xtask images` writes it",
            )
        });
    }
    let (Some(program), Some(image)) = (program, image) else {
        bail!("neither an archive nor a program was named");
    };
    let path = format!(
        "/{}",
        program
            .file_name()
            .context("a program has a name")?
            .to_string_lossy()
    );
    let (bytes, _) = Image::new(image)
        .copy(&path, 0o755, program)?
        .dir("/tmp", 0o1777)
        .entrypoint([path])
        .to_bytes()?;
    Ok(bytes)
}

/// Whether KUBECONFIG names a cluster that is not ours.
pub(crate) fn is_foreign() -> bool {
    kubectl::foreign().is_some()
}

/// Fails when KUBECONFIG names a cluster that images cannot be loaded into.
pub(crate) fn require_local(what: &str) -> Result<()> {
    if !is_foreign() {
        return Ok(());
    }
    Err(ui::hint(
        format!("{what} into a local cluster, and KUBECONFIG names another"),
        "push the archives to a registry that cluster pulls from, or unset KUBECONFIG",
    ))
}

/// Loads an image archive into every node of a local cluster.
pub(crate) fn load(name: &str, archive: &[u8]) -> Result<()> {
    require_local("images can only be loaded")?;
    machine::require_root("loading images")?;
    let spec = existing(name)?;
    let nodes = spec
        .node_numbers()
        .map(|number| {
            Node::find(&spec, number)?.ok_or_else(|| {
                ui::hint(
                    format!("node {number} of cluster {name} does not run"),
                    format!("run `cargo xtask cluster up --name {name}`"),
                )
            })
        })
        .collect::<Result<Vec<Node>>>()?;
    ui::step(format_args!("loading into cluster {name}"), || {
        std::thread::scope(|threads| {
            let running: Vec<_> = nodes
                .into_iter()
                .map(|node| {
                    let snapshotter = components::snapshotter(&spec.node_dir(node.number));
                    threads.spawn(move || node.import(archive, snapshotter))
                })
                .collect();
            running
                .into_iter()
                .try_for_each(|thread| thread.join().expect("loading does not panic"))
        })
    })
}

fn logs(name: &str, component: &str, node: u8) -> Result<()> {
    let path = components::log_path(&existing(name)?, component, node);
    if !path.exists() {
        return Err(ui::hint(
            format!("{component} of node {node} has logged nothing"),
            "only node 1 runs the control plane; `cargo xtask cluster status` shows what runs",
        ));
    }
    program::show(&mut program::command("cat", [path]))
}

fn status(name: &str) -> Result<ExitCode> {
    if let Some(kubeconfig) = kubectl::foreign() {
        kubectl::require_working(&kubeconfig)?;
        ui::out(format_args!("KUBECONFIG={} answers", kubeconfig.display()));
        return Ok(ExitCode::SUCCESS);
    }
    machine::require_root("looking into a local cluster")?;
    let spec = existing(name)?;
    let healthy = health::report(&spec, &tools::kubectl()?)?;
    Ok(if healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
