//! Facts about this machine: where things are kept, who runs us, how much disk is left,
//! and the file locks that keep two runs apart.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock, statvfs};

use crate::ui;

/// Build products, keyed by version: `$XDG_CACHE_HOME/linkerd-rs`. It is there when this returns.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(
            std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?,
        )
        .join(".cache"),
    };
    let dir = base.join("linkerd-rs");
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    Ok(dir)
}

/// State of local clusters, one directory per name.
pub(crate) fn state_dir() -> PathBuf {
    std::env::var_os("LINKERD_RS_STATE")
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| PathBuf::from("/var/lib/linkerd-rs"), PathBuf::from)
}

/// CPU time so far, of all cores: all of it, and what the host of a virtual machine took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    all: u64,
    stolen: u64,
}

impl CpuTime {
    /// Now.
    pub(crate) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal, then guests, which are in user already.
        let times: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|time| time.parse().ok())
            .collect();
        Ok(Self {
            all: times.iter().sum(),
            stolen: times.get(7).copied().unwrap_or(0),
        })
    }

    /// What was stolen of the time until `end`, in percent.
    pub(crate) fn stolen_until(self, end: Self) -> f64 {
        let all = u32::try_from(end.all - self.all).unwrap_or(u32::MAX).max(1);
        let stolen = u32::try_from(end.stolen - self.stolen).unwrap_or(u32::MAX);
        f64::from(stolen) * 100.0 / f64::from(all)
    }
}

/// Processors and kernel, for the head of a table of measurements.
pub(crate) fn description() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("an unnamed processor", |name| {
            name.trim_start_matches([' ', '\t', ':'])
        });
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    format!("{count} cores of {model}, Linux {kernel}")
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fails with the exact command to run when we are not root.
pub(crate) fn require_root(why: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    Err(ui::hint(
        format!("{why} needs root"),
        format!("run {}", sudo_command()),
    ))
}

fn sudo_command() -> String {
    let exe = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("xtask"));
    let mut line = format!(
        "sudo -E env \"PATH=$PATH\" \"HOME=$HOME\" {}",
        exe.display()
    );
    for argument in std::env::args().skip(1) {
        line.push(' ');
        line.push_str(&argument);
    }
    line
}

/// Fails when less than `megabytes` are free where `path` is or will be.
pub(crate) fn require_disk(path: &Path, megabytes: u64, what: &str) -> Result<()> {
    let existing = path
        .ancestors()
        .find(|dir| dir.exists())
        .unwrap_or_else(|| Path::new("/"));
    let stat = statvfs(existing).with_context(|| format!("asking {}", existing.display()))?;
    let free = stat.f_bavail * stat.f_frsize / (1024 * 1024);
    if free >= megabytes {
        return Ok(());
    }
    Err(ui::hint(
        format!(
            "{what} needs {megabytes} MB in {}, and {free} MB are free",
            path.display()
        ),
        format!(
            "free some space on the file system of {} and run this again",
            existing.display()
        ),
    ))
}

/// A lock on a file, held until dropped; the kernel lets go of it when we die.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or says `busy` when another run holds it.
    pub(crate) fn take(path: &Path, busy: &str) -> Result<Self> {
        let file = open(path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ui::hint(
                busy,
                format!(
                    "wait for the other run to end (it holds {})",
                    path.display()
                ),
            ));
        }
        Ok(Self { _file: file })
    }

    /// Takes the lock, waiting for whoever holds it.
    pub(crate) fn wait(path: &Path, what: &str) -> Result<Self> {
        let file = open(path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            ui::note(format_args!("  waiting for another run that is {what}"));
            flock(&file, FlockOperation::LockExclusive)
                .with_context(|| format!("locking {}", path.display()))?;
        }
        Ok(Self { _file: file })
    }
}

fn open(path: &Path) -> Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    }
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

/// Writes a file in one move, so that nobody ever reads half of it.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    write_as(path, content.as_ref(), 0o644)
}

/// Like [`write`], for what only its owner may read.
pub(crate) fn write_secret(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    write_as(path, content.as_ref(), 0o600)
}

fn write_as(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(mode)
        .open(&partial)
        .with_context(|| format!("creating {}", partial.display()))?;
    file.write_all(content)
        .with_context(|| format!("writing {}", partial.display()))?;
    fs::rename(&partial, path).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_a_second_run_out() {
        let path = std::env::temp_dir().join(format!("xtask-lock-{}", std::process::id()));
        let first = Lock::take(&path, "busy").expect("free");
        let error = Lock::take(&path, "busy").expect_err("held");
        assert_eq!(error.to_string(), "busy");
        drop(first);
        Lock::take(&path, "busy").expect("free again");
        fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn no_disk_is_as_large_as_asked() {
        let error = require_disk(Path::new("/no/such/place"), u64::MAX, "a test")
            .expect_err("no disk is that large");
        assert!(error.to_string().starts_with("a test needs"), "{error}");
    }
}
