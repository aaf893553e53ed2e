//! One node: a process that holds a network, mount, process, host-name and IPC namespace,
//! and everything else of the node inside these. The node sees this machine's files, with
//! `/run`, `/var/log` and the directories of kubelet, containerd and CNI replaced by its
//! own. When the first process ends, the kernel ends the rest and forgets the mounts:
//! nothing has to be found and undone one by one.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::network;
use super::spec::Spec;
use crate::{setup, ui};

/// Kernel settings kubelet insists on and would otherwise change for the whole machine:
/// it finds them as it wants them, in files mounted over the real ones.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// What the first process does before it becomes the pause program. `$1` is the node's
/// directory, `$2` its name, `$3` the pause program.
const BIRTH: &str = r#"
set -eu
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/lock /run/netns /run/containerd
for path in $MOUNT_POINTS /var/log; do
  mount --bind "$1/root$path" "$path"
done
for setting in $KERNEL_SETTINGS; do
  if [ -e "/proc/sys/$setting" ]; then
    mount --bind "$1/sysctl/$setting" "/proc/sys/$setting"
  fi
done
mount --make-rshared /
hostname "$2"
exec "$3" --node "$1"
"#;

/// A node whose first process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) number: u8,
    /// The first process, in the machine's numbering.
    pub(crate) pid: i32,
}

/// A process of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) argv: Vec<String>,
}

impl Process {
    /// Whether this is the program of that name.
    pub(crate) fn is(&self, program: &str) -> bool {
        self.argv[0].rsplit('/').next() == Some(program)
    }
}

impl Node {
    /// The running node, if it runs and still stands in the namespace its name stands for.
    pub(crate) fn find(spec: &Spec, number: u8) -> Result<Option<Self>> {
        let Some(pid) = first_process(&spec.node_dir(number))? else {
            return Ok(None);
        };
        let named = network::netns_path(&spec.node_netns(number));
        if same_file(&named, &ns_path(pid, "net")) {
            return Ok(Some(Self { number, pid }));
        }
        // Its network was taken away: what runs there is cut off for good.
        end(pid)?;
        Ok(None)
    }

    /// Starts the node's first process. Its network must be there.
    pub(crate) fn start(spec: &Spec, number: u8, pause: &Path) -> Result<Self> {
        let dir = spec.node_dir(number);
        for point in setup::MOUNT_POINTS {
            fs::create_dir_all(point).with_context(|| format!("creating {point}"))?;
        }
        for point in setup::MOUNT_POINTS.iter().chain(&["/var/log"]) {
            fs::create_dir_all(inside(&dir, point))?;
        }
        for (setting, value) in KERNEL_SETTINGS {
            let file = dir.join("sysctl").join(setting);
            fs::create_dir_all(file.parent().context("a setting has a directory")?)?;
            fs::write(&file, format!("{value}\n"))?;
        }
        fs::create_dir_all(spec.log_dir())?;
        let log = spec.log_dir().join(format!("node{number}.log"));
        let netns = network::netns_path(&spec.node_netns(number));
        let settings: Vec<&str> = KERNEL_SETTINGS.iter().map(|(name, _)| *name).collect();
        let mut birth = Command::new("setsid")
            .args(["nsenter", &format!("--net={}", netns.display())])
            .args([
                "unshare",
                "--mount",
                "--uts",
                "--ipc",
                "--pid",
                "--fork",
                "--mount-proc",
            ])
            .args(["--propagation", "private", "--", "sh", "-c", BIRTH, "node"])
            .arg(&dir)
            .arg(spec.node_name(number))
            .arg(pause)
            .env_clear()
            .env("PATH", NODE_PATH)
            .env("MOUNT_POINTS", setup::MOUNT_POINTS.join(" "))
            .env("KERNEL_SETTINGS", settings.join(" "))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).with_context(|| format!("creating {}", log.display()))?)
            .spawn()
            .context("starting a node with `setsid nsenter unshare`")?;
        let pid = ui::wait_for("the start of a node", Duration::from_secs(20), || {
            if let Some(status) = birth.try_wait()? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("node {number} did not start ({status}): {}", said.trim());
            }
            first_process(&dir)
        })?;
        Ok(Self { number, pid })
    }

    /// A command that runs inside the node.
    pub(crate) fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args([
                "--target",
                &self.pid.to_string(),
                "--mount",
                "--uts",
                "--ipc",
                "--net",
                "--pid",
            ])
            .arg("--")
            .arg(program)
            .env_clear()
            .env("PATH", NODE_PATH)
            .env("HOME", "/root")
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    /// Starts a daemon, in the group of `procs`; what it says is added to `log`.
    pub(crate) fn launch(self, argv: &[String], procs: &Path, log: &Path) -> Result<()> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        // The shell ends at once and the program becomes a child of the node's first process.
        let mut shell = self.command("sh");
        shell
            .args(["-c", r#"echo 0 > "$0" || exit; setsid "$@" &"#])
            .arg(procs)
            .args(argv)
            .stdout(file.try_clone()?)
            .stderr(file);
        let status = shell.status().context("starting `nsenter`")?;
        if !status.success() {
            bail!("{} could not be started ({status})", argv[0]);
        }
        Ok(())
    }

    /// Loads an image archive into the node's containerd.
    pub(crate) fn import(self, archive: &[u8], snapshotter: &str) -> Result<()> {
        let mut child = self
            .command("ctr")
            .args([
                "--namespace",
                "k8s.io",
                "images",
                "import",
                "--snapshotter",
                snapshotter,
                "-",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting `ctr`")?;
        let mut stdin = child.stdin.take().context("stdin is piped")?;
        // When ctr ends early it says why itself.
        let _ = stdin.write_all(archive);
        drop(stdin);
        let done = child.wait_with_output().context("waiting for `ctr`")?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(ui::hint(
                format!(
                    "the image could not be loaded into node {}: {}",
                    self.number,
                    said.trim()
                ),
                "give it an archive as `docker save` or `cargo xtask images` writes it",
            ));
        }
        Ok(())
    }

    /// Processes that share the node's process namespace: its components and shims, and not
    /// what runs in containers.
    pub(crate) fn processes(self) -> Result<Vec<Process>> {
        let namespace = fs::read_link(ns_path(self.pid, "pid")).context("reading a namespace")?;
        Ok(processes()?
            .into_iter()
            .filter(|process| {
                fs::read_link(ns_path(process.pid, "pid")).is_ok_and(|ns| ns == namespace)
            })
            .collect())
    }
}

const NODE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the node keeps what it sees as `path`.
pub(crate) fn inside(node_dir: &Path, path: &str) -> PathBuf {
    node_dir.join("root").join(path.trim_start_matches('/'))
}

/// Ends every node of the cluster; gives how many ran.
pub(crate) fn end_all(cluster_dir: &Path) -> Result<usize> {
    let mut ended = 0;
    for process in processes()? {
        let ours = node_dir_of(&process).is_some_and(|dir| dir.parent() == Some(cluster_dir));
        if ours {
            end(process.pid)?;
            ended += 1;
        }
    }
    Ok(ended)
}

/// Ends a process and waits until it is gone. With the first process of a node all of the
/// node is gone too.
pub(crate) fn end(pid: i32) -> Result<()> {
    signal(pid, Signal::KILL)?;
    ui::wait_for("the end of a process", Duration::from_secs(30), || {
        Ok((!is_alive(pid)).then_some(()))
    })
}

fn signal(pid: i32, signal: Signal) -> Result<()> {
    let target = Pid::from_raw(pid).context("a process has a positive number")?;
    match kill_process(target, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("ending process {pid}")),
    }
}

/// Whether a process is there and not merely waiting to be collected.
fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| Some(stat.rsplit_once(')')?.1.trim_start().chars().next()? != 'Z'))
        .unwrap_or(false)
}

fn first_process(node_dir: &Path) -> Result<Option<i32>> {
    Ok(processes()?
        .iter()
        .find(|process| node_dir_of(process) == Some(node_dir))
        .map(|process| process.pid))
}

/// The directory of the node whose first process this is.
fn node_dir_of(process: &Process) -> Option<&Path> {
    match process.argv.as_slice() {
        [program, flag, dir] if flag == "--node" && program.ends_with("/pause") => {
            Some(Path::new(dir))
        }
        _ => None,
    }
}

/// Every process of the machine that has a command line.
pub(crate) fn processes() -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("reading /proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // A process may end between the listing and the look.
        let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let argv: Vec<String> = line
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        if !argv.is_empty() {
            found.push(Process { pid, argv });
        }
    }
    Ok(found)
}

fn ns_path(pid: i32, kind: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/{kind}"))
}

fn same_file(one: &Path, other: &Path) -> bool {
    match (rustix::fs::stat(one), rustix::fs::stat(other)) {
        (Ok(one), Ok(other)) => one.st_ino == other.st_ino && one.st_dev == other.st_dev,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_process_of_a_node_is_taken_for_one() {
        let cases = [
            (
                "a node",
                vec!["/cache/pause", "--node", "/state/dev/node1"],
                true,
            ),
            ("a sandbox", vec!["/pause"], false),
            (
                "its birth",
                vec!["sh", "-c", "exec /cache/pause --node"],
                false,
            ),
            (
                "another program",
                vec!["/bin/x", "--node", "/state/dev/node1"],
                false,
            ),
        ];
        for (name, argv, expected) in cases {
            let argv = argv.into_iter().map(str::to_owned).collect();
            let process = Process { pid: 1, argv };
            assert_eq!(node_dir_of(&process).is_some(), expected, "{name}");
        }
    }

    #[test]
    fn this_process_is_among_the_processes() {
        let own = i32::try_from(std::process::id()).expect("a process number");
        assert!(
            processes()
                .expect("readable")
                .iter()
                .any(|process| process.pid == own)
        );
        assert!(is_alive(own));
    }
}
