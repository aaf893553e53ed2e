//! The wires of a cluster: a network namespace for each node and one for the hub, whose
//! bridge joins the nodes and the machine. Everything can be asked for again: what is
//! there stays, what is missing is made.
//!
//! A node's default route ends in a veth pair that leads nowhere. Without such a route a
//! connect() to a service address fails before it can be redirected; with it, nothing
//! meant for the cluster can leave the machine. The machine's firewall is not involved.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::spec::{self, Spec};
use crate::program;

/// What `statfs` says of a namespace file that holds a namespace.
const NSFS_MAGIC: i64 = 0x6e73_6673;

pub(crate) fn netns_path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// Makes or mends hub, nodes and routes.
pub(crate) fn up(spec: &Spec) -> Result<()> {
    let hub = spec.hub_netns();
    ensure_netns(&hub)?;
    let host_link = spec.host_link();
    ip(&["-n", &hub, "link", "add", "br0", "type", "bridge"])?;
    ip(&["-n", &hub, "link", "set", "br0", "up"])?;
    ip(&[
        "link", "add", &host_link, "type", "veth", "peer", "name", "machine", "netns", &hub,
    ])?;
    ip(&["link", "set", &host_link, "alias", &alias(&spec.name)])?;
    ip(&["-n", &hub, "link", "set", "machine", "master", "br0", "up"])?;
    let host_address = format!("{}/{}", spec.host_ip(), spec.node_net().bits);
    ip(&["addr", "replace", &host_address, "dev", &host_link])?;
    ip(&["link", "set", &host_link, "up"])?;

    for node in spec.node_numbers() {
        node_up(spec, node, &hub)?;
    }
    for node in spec.node_numbers() {
        let pods = spec.node_pods(node).to_string();
        let via = spec.node_ip(node).to_string();
        // The machine reaches pods through their nodes, and never anything else by accident.
        ip(&["route", "replace", &pods, "via", &via, "dev", &host_link])?;
        for other in spec.node_numbers().filter(|other| *other != node) {
            let netns = spec.node_netns(other);
            ip(&["-n", &netns, "route", "replace", &pods, "via", &via])?;
        }
    }
    let services = spec.service_net().to_string();
    let api = spec.node_ip(1).to_string();
    ip(&[
        "route", "replace", &services, "via", &api, "dev", &host_link,
    ])?;
    // Pods that no node has: their packets go to a node too, and end in its sink.
    let pods = spec.pod_net().to_string();
    ip(&["route", "replace", &pods, "via", &api, "dev", &host_link])
}

fn node_up(spec: &Spec, node: u8, hub: &str) -> Result<()> {
    let netns = spec.node_netns(node);
    let port = format!("node{node}");
    ensure_netns(&netns)?;
    ip(&["-n", &netns, "link", "set", "lo", "up"])?;
    // Always the same address: neighbours that remember it need not forget it when a node is
    // made anew.
    let hardware = hardware_address(spec, node);
    ip(&[
        "-n", &netns, "link", "add", "eth0", "address", &hardware, "type", "veth", "peer", "name",
        &port, "netns", hub,
    ])?;
    ip(&["-n", hub, "link", "set", &port, "master", "br0", "up"])?;
    let address = format!("{}/{}", spec.node_ip(node), spec.node_net().bits);
    ip(&["-n", &netns, "addr", "replace", &address, "dev", "eth0"])?;
    ip(&["-n", &netns, "link", "set", "eth0", "up"])?;
    ip(&[
        "-n", &netns, "link", "add", "sink0", "type", "veth", "peer", "name", "sink1",
    ])?;
    ip(&["-n", &netns, "link", "set", "sink0", "up"])?;
    ip(&["-n", &netns, "link", "set", "sink1", "up"])?;
    // With an address of the node's own, a connection that ends in the sink has a source.
    ip(&[
        "-n",
        &netns,
        "route",
        "replace",
        "default",
        "dev",
        "sink0",
        "src",
        &spec.node_ip(node).to_string(),
    ])?;
    let netns = format!("--net={}", netns_path(&netns).display());
    program::output(&mut program::command(
        "nsenter",
        [&netns, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
    ))?;
    Ok(())
}

/// Locally administered, and told apart by the node's IPv4 address.
fn hardware_address(spec: &Spec, node: u8) -> String {
    let [a, b, c, d] = spec.node_ip(node).octets();
    format!("02:6c:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Takes away every link and namespace of the cluster; gives what it found.
pub(crate) fn down(name: &str) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for link in links_of(name)? {
        ip(&["link", "delete", &link])?;
        removed.push(format!("link {link}"));
    }
    for netns in namespaces_of(name)? {
        remove_netns(&netns)?;
        removed.push(format!("network namespace {netns}"));
    }
    unmount_shelf();
    Ok(removed)
}

/// `ip netns` makes its directory a mount of its own; the last to leave takes that away.
/// While any namespace is there this fails, and that is well.
fn unmount_shelf() {
    let empty = fs::read_dir("/run/netns").is_ok_and(|mut entries| entries.next().is_none());
    if empty {
        let _ = rustix::mount::unmount("/run/netns", rustix::mount::UnmountFlags::empty());
    }
}

/// The cluster's network namespaces that exist, whole or not.
pub(crate) fn namespaces_of(name: &str) -> Result<Vec<String>> {
    let prefix = spec::netns_prefix(name);
    let Ok(entries) = fs::read_dir("/run/netns") else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        let file = entry?.file_name().to_string_lossy().into_owned();
        let rest = file.strip_prefix(&prefix);
        if rest.is_some_and(|rest| rest == "hub" || rest.starts_with("node")) {
            found.push(file);
        }
    }
    found.sort();
    Ok(found)
}

/// The machine's links that carry the cluster's mark.
fn links_of(name: &str) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Link {
        ifname: String,
        #[serde(default)]
        ifalias: String,
    }
    let text = program::output(&mut program::command("ip", ["-json", "link", "show"]))?;
    let links: Vec<Link> = serde_json::from_str(&text).context("reading `ip -json link`")?;
    let mark = alias(name);
    Ok(links
        .into_iter()
        .filter(|link| link.ifalias == mark)
        .map(|link| link.ifname)
        .collect())
}

fn alias(name: &str) -> String {
    format!("linkerd-rs cluster {name}")
}

fn ensure_netns(name: &str) -> Result<()> {
    let path = netns_path(name);
    if path.exists() {
        if is_namespace(&path) {
            return Ok(());
        }
        // A run killed between making the file and mounting the namespace on it.
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    program::output(&mut program::command("ip", ["netns", "add", name]))?;
    Ok(())
}

pub(crate) fn remove_netns(name: &str) -> Result<()> {
    let path = netns_path(name);
    if is_namespace(&path) {
        program::output(&mut program::command("ip", ["netns", "delete", name]))?;
    } else if path.exists() {
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

fn is_namespace(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == NSFS_MAGIC)
}

/// Runs `ip`; what exists already is as good as made.
fn ip(arguments: &[&str]) -> Result<()> {
    let done = program::command("ip", arguments)
        .output()
        .context("starting `ip`")?;
    let said = String::from_utf8_lossy(&done.stderr);
    if done.status.success() || said.contains("File exists") {
        return Ok(());
    }
    bail!("`ip {}` failed: {}", arguments.join(" "), said.trim())
}
