//! Control groups of a cluster: each node's pods live below `/linkerd-rs/NAME/nodeN`, in
//! every hierarchy of a version 1 machine and in the one of a version 2 machine. Its daemons share one
//! group beside them, as on a machine of its own: there, a busy API server does not stop the pods.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::ui;

const ROOT: &str = "linkerd-rs";

/// The path kubelet knows a node's group by.
pub(crate) fn node_path(cluster: &str, node: u8) -> String {
    format!("/{ROOT}/{cluster}/node{node}")
}

/// The group of a node's daemons, inside the node's.
const SYSTEM: &str = "system";

/// How much more a cluster's groups weigh than a process outside.
const WEIGHT: u32 = 8;

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    dir: PathBuf,
    unified: bool,
}

pub(crate) fn is_version_2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Makes a node's group wherever kubelet looks for it.
pub(crate) fn up(cluster: &str, node: u8) -> Result<()> {
    let path = node_path(cluster, node);
    for hierarchy in hierarchies()? {
        let dir = hierarchy.dir.join(path.trim_start_matches('/'));
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        if hierarchy.unified && is_version_2() {
            delegate(&hierarchy.dir, &path);
        } else {
            inherit_cpuset(&hierarchy.dir, &path)?;
        }
        if let Some((file, usual)) = hierarchy.cpu_weight() {
            fs::create_dir_all(dir.join(SYSTEM))?;
            // The cluster's, its node's and all clusters' group. A machine that does not share out CPU has
            // no such files, and its clusters work as well.
            for weight in dir.ancestors().take(3).map(|dir| dir.join(file)) {
                if weight.exists() {
                    fs::write(&weight, (usual * WEIGHT).to_string())
                        .with_context(|| format!("writing {}", weight.display()))?;
                }
            }
        }
    }
    Ok(())
}

/// Where a process writes 0 to become one of the node's daemons; nowhere when CPU is not shared out.
pub(crate) fn system(cluster: &str, node: u8) -> Result<PathBuf> {
    let path = node_path(cluster, node);
    let mut all = hierarchies()?.into_iter();
    let cpu = all.find(|hierarchy| hierarchy.cpu_weight().is_some());
    Ok(cpu.map_or_else(
        || PathBuf::from("/dev/null"),
        |cpu| {
            let node = cpu.dir.join(path.trim_start_matches('/'));
            node.join(SYSTEM).join("cgroup.procs")
        },
    ))
}

impl Hierarchy {
    /// The file that says how much CPU a group gets beside others, and what it says when nobody has
    /// written to it.
    fn cpu_weight(&self) -> Option<(&'static str, u32)> {
        if self.unified {
            return is_version_2().then_some(("cpu.weight", 100));
        }
        let shares = self.dir.join("cpu.shares").exists();
        shares.then_some(("cpu.shares", 1024))
    }
}

/// Version 2: hands the controllers down to the node's group. A controller that cannot be
/// handed down is one kubelet will name itself when it needs it.
fn delegate(root: &Path, path: &str) {
    let mut dir = root.to_owned();
    for part in path.trim_start_matches('/').split('/') {
        for controller in ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"] {
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        dir.push(part);
    }
}

/// Version 1: a new cpuset group is empty, and nothing can run in it until it is filled.
fn inherit_cpuset(root: &Path, path: &str) -> Result<()> {
    if !root.join("cpuset.cpus").exists() {
        return Ok(());
    }
    let mut parent = root.to_owned();
    for part in path.trim_start_matches('/').split('/') {
        let child = parent.join(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if fs::read_to_string(child.join(file))?.trim().is_empty() {
                fs::write(child.join(file), fs::read_to_string(parent.join(file))?)
                    .with_context(|| format!("filling {}/{file}", child.display()))?;
            }
        }
        parent = child;
    }
    Ok(())
}

/// Removes a cluster's groups; their processes have ended. Gives how many there were.
pub(crate) fn down(cluster: &str) -> Result<usize> {
    remove(&format!("{ROOT}/{cluster}"))
}

/// Removes the groups of a node that died: kubelet would look for their containers, long.
pub(crate) fn clear(cluster: &str, node: u8) -> Result<()> {
    remove(node_path(cluster, node).trim_start_matches('/')).map(drop)
}

fn remove(path: &str) -> Result<usize> {
    let mut removed = 0;
    for hierarchy in hierarchies()? {
        let dir = hierarchy.dir.join(path);
        if !dir.exists() {
            continue;
        }
        let what = format!("the end of {}", dir.display());
        ui::wait_for(&what, Duration::from_secs(20), || {
            Ok(remove_tree(&dir)?.then_some(()))
        })?;
        removed += 1;
        // Only succeeds when no other cluster is there.
        let _ = fs::remove_dir(hierarchy.dir.join(ROOT));
    }
    Ok(removed)
}

/// Whether the tree is gone; the last processes may need a moment to leave it.
fn remove_tree(dir: &Path) -> Result<bool> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error).with_context(|| format!("reading {}", dir.display())),
    };
    let mut gone = true;
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            gone &= remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(dir) {
        Ok(()) => Ok(gone),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(gone),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(false),
        Err(error) => Err(error).with_context(|| format!("removing {}", dir.display())),
    }
}

fn hierarchies() -> Result<Vec<Hierarchy>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("reading mounts")?;
    Ok(parse(&text))
}

fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, source)) = line.split_once(" - ") else {
            continue;
        };
        let kind = source.split(' ').next().unwrap_or_default();
        let (Some(dir), "cgroup" | "cgroup2") = (mount.split(' ').nth(4), kind) else {
            continue;
        };
        let hierarchy = Hierarchy {
            dir: PathBuf::from(dir),
            unified: kind == "cgroup2",
        };
        if !found.contains(&hierarchy) {
            found.push(hierarchy);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_among_mounts() {
        let text = "30 23 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
                    31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                    40 30 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let dirs: Vec<_> = parse(text)
            .into_iter()
            .map(|h| (h.dir, h.unified))
            .collect();
        assert_eq!(
            dirs,
            [
                (PathBuf::from("/sys/fs/cgroup/cpu"), false),
                (PathBuf::from("/sys/fs/cgroup/unified"), true),
            ]
        );
    }
}
