//! Bringing a cluster up: wires, nodes, then the components that do not run yet, in the
//! order they need each other, waiting for conditions and never for time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::components::{self, Component};
use super::kubectl::Kubectl;
use super::node::{self, Node};
use super::spec::Spec;
use super::{cgroups, health, network, pki, system};
use crate::{program, tools, ui};

/// Generous: a cold start on a busy two-core machine takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(180);

/// The programs that are built rather than installed.
#[derive(Debug)]
pub(crate) struct Programs {
    kubernetes: PathBuf,
    coredns: PathBuf,
    pause: PathBuf,
}

impl Programs {
    /// From the cache, or built now.
    pub(crate) fn get() -> Result<Self> {
        Ok(Self {
            pause: tools::pause()?,
            kubernetes: tools::kubernetes()?,
            coredns: tools::coredns()?,
        })
    }
}

/// Starts whatever of the cluster does not run and waits until all of it works.
pub(crate) fn up(spec: &Spec) -> Result<()> {
    let programs = ui::step("programs", Programs::get)?;
    ui::step("certificates and configuration", || {
        pki::up(spec)?;
        components::configure(spec)
    })?;
    let nodes = ui::step("network and nodes", || start_nodes(spec, &programs.pause))?;
    let all = components::all(spec, &programs.kubernetes);
    let pick = |names: &[&str]| -> Vec<&Component> {
        all.iter()
            .filter(|component| names.contains(&component.name))
            .collect()
    };
    let kubectl = Kubectl::new(&spec.kubeconfig())?;

    let base = pick(&["etcd", "containerd", "kube-apiserver"]);
    ui::step("API server and containerd", || {
        launch_missing(&spec.name, &nodes, &base)?;
        std::thread::scope(|threads| {
            let loading: Vec<_> = nodes
                .iter()
                .map(|node| threads.spawn(|| load_images(spec, *node, &programs)))
                .collect();
            ui::wait_for("the API server's readiness", PATIENCE, || {
                require_running(&nodes, &base)?;
                Ok(kubectl.is_ready().then_some(()))
            })?;
            loading
                .into_iter()
                .try_for_each(|thread| thread.join().expect("loading does not panic"))
        })
    })?;

    let rest = pick(&[
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kube-proxy",
    ]);
    ui::step("nodes ready", || {
        create_nodes(spec, &kubectl)?;
        let since = program::output(&mut program::command("date", ["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?;
        let launched = launch_missing(&spec.name, &nodes, &rest)?;
        // The namespace appears a moment after the API server does.
        ui::wait_for("the system namespace", PATIENCE, || {
            Ok(kubectl
                .output(&["get", "namespace", "kube-system"])
                .is_ok()
                .then_some(()))
        })?;
        system::ensure_coredns(spec, &kubectl)?;
        // A kubelet started just now must speak for itself: what the API remembers may be old.
        let since = launched.contains(&"kubelet").then(|| since.trim());
        ui::wait_for("the readiness of every node", PATIENCE, || {
            require_running(&nodes, &rest)?;
            Ok(health::nodes_ready(spec, &kubectl, since)?.then_some(()))
        })
    })?;
    ui::step("services and DNS", || {
        ui::wait_for("an answer of the cluster's DNS", PATIENCE, || {
            require_running(&nodes, &rest)?;
            let proxies = spec
                .node_numbers()
                .all(|node| health::proxy_ready(spec, node));
            Ok((proxies && system::dns_answers(spec)?).then_some(()))
        })
    })
}

fn start_nodes(spec: &Spec, pause: &Path) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for number in spec.node_numbers() {
        if Node::find(spec, number)?.is_none() {
            // What a node that died left has rules, routes and groups of its past.
            network::remove_netns(&spec.node_netns(number))?;
            cgroups::clear(&spec.name, number)?;
        }
    }
    network::up(spec)?;
    for number in spec.node_numbers() {
        cgroups::up(&spec.name, number)?;
        let node = match Node::find(spec, number)? {
            Some(node) => node,
            None => Node::start(spec, number, pause)?,
        };
        nodes.push(node);
    }
    Ok(nodes)
}

/// Starts the components that do not run; gives their names.
fn launch_missing(
    cluster: &str,
    nodes: &[Node],
    wanted: &[&Component],
) -> Result<Vec<&'static str>> {
    let mut launched = Vec::new();
    for node in nodes {
        let processes = node.processes()?;
        for component in wanted
            .iter()
            .filter(|component| component.node == node.number)
        {
            let found = processes.iter().find(|process| process.is(component.name));
            match found {
                Some(process) if process.argv[0] == component.argv[0] => continue,
                // The same component of another version gives way.
                Some(process) => node::end(process.pid)?,
                None => {}
            }
            let procs = cgroups::system(cluster, node.number)?;
            node.launch(&component.argv, &procs, &component.log)?;
            launched.push((*node, *component));
        }
    }
    for (node, component) in &launched {
        ui::wait_for("the start of a component", Duration::from_secs(20), || {
            Ok(node
                .processes()?
                .iter()
                .any(|process| process.is(component.name))
                .then_some(()))
        })
        .map_err(|_| stopped(component))?;
    }
    Ok(launched
        .into_iter()
        .map(|(_, component)| component.name)
        .collect())
}

fn require_running(nodes: &[Node], wanted: &[&Component]) -> Result<()> {
    for node in nodes {
        let processes = node.processes()?;
        let absent = wanted
            .iter()
            .filter(|component| component.node == node.number)
            .find(|component| !processes.iter().any(|process| process.is(component.name)));
        if let Some(component) = absent {
            return Err(stopped(component));
        }
    }
    Ok(())
}

/// What a component that ended has to say.
fn stopped(component: &Component) -> anyhow::Error {
    let text = fs::read_to_string(&component.log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(3)..].join("\n    ");
    // The kernel counts these for all nodes of all clusters together.
    let next = if tail.contains("inotify_init: too many open files") {
        "raise the limit with `sysctl fs.inotify.max_user_instances=1024`, then run up again"
            .to_owned()
    } else {
        format!("read {}, then run up again", component.log.display())
    };
    ui::hint(
        format!(
            "{} of node {} stopped; its last words:\n    {tail}",
            component.name, component.node
        ),
        next,
    )
}

/// Loads the pause image and CoreDNS, once per node.
fn load_images(spec: &Spec, node: Node, programs: &Programs) -> Result<()> {
    let listed = ui::wait_for("containerd's readiness", PATIENCE, || {
        if !node
            .processes()?
            .iter()
            .any(|process| process.is("containerd"))
        {
            bail!("containerd of node {} stopped", node.number);
        }
        let mut list = node.command("ctr");
        list.args(["--namespace", "k8s.io", "images", "list", "--quiet"]);
        Ok(program::output(&mut list).ok())
    })?;
    let snapshotter = components::snapshotter(&spec.node_dir(node.number));
    let has = |name: &str| listed.lines().any(|line| line == name);
    if !has(system::PAUSE_IMAGE) {
        node.import(
            &system::pause_image(&programs.pause)?.to_bytes()?.0,
            snapshotter,
        )?;
    }
    if !has(&system::coredns_image_name()) {
        node.import(
            &system::coredns_image(&programs.coredns)?.to_bytes()?.0,
            snapshotter,
        )?;
    }
    Ok(())
}

fn create_nodes(spec: &Spec, kubectl: &Kubectl) -> Result<()> {
    let there = kubectl.output(&["get", "nodes", "--output=name"])?;
    for number in spec.node_numbers() {
        let name = format!("node/{}", spec.node_name(number));
        if !there.lines().any(|line| line == name) {
            kubectl
                .feed("create", &system::node_object(spec, number))
                .with_context(|| format!("creating {name}"))?;
        }
    }
    if there.lines().count() > usize::from(spec.nodes) {
        bail!(
            "the cluster has nodes that are not ours: {}",
            there.trim().replace('\n', ", ")
        );
    }
    Ok(())
}
