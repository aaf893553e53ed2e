//! The `legacy`, `nft` and `plain` backends: finding the programs, running save and restore.
//! A family changes in one `*-restore --noflush`, which the kernel takes whole or not at all.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::args::Mode;
use crate::echo::Step;
use crate::rules::Family;
use crate::saved::{self, Saved};

/// Used when the environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const LOCK_FILE: &str = "/run/xtables.lock";
/// How long a restore waits for the legacy lock when waiting for ever was not asked for.
const LOCK_WAIT: &str = "--wait=5";

/// A program that could not do its work. The texts are public interface.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("exec: {0:?}: executable file not found in $PATH")]
    Missing(String),
    #[error("exec: {0:?}: {1}")]
    Start(String, #[source] io::Error),
    #[error("exit status {code}")]
    Exit { code: i32, output: String },
    #[error("signal: {0}")]
    Killed(i32),
}

/// Where to look for programs; a value so that tests need not change the environment.
#[derive(Clone, Debug)]
pub struct SearchPath(Vec<PathBuf>);

/// The three programs of one mode and family.
#[derive(Clone, Debug)]
pub struct Programs {
    pub mode: Mode,
    pub family: Family,
    pub command: Program,
    pub save: Program,
    pub restore: Program,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub path: Option<PathBuf>,
}

/// How the programs of a mode were found.
#[derive(Clone, Debug)]
pub enum Found {
    Requested(Programs),
    /// The first complete set of another mode.
    Fallback(Programs),
    /// Nothing on the path: the names as requested.
    Nothing(Programs),
}

// === impl SearchPath ===

impl SearchPath {
    pub fn from_env() -> Self {
        Self::new(&std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH)))
    }

    pub fn new(path: &std::ffi::OsStr) -> Self {
        Self(std::env::split_paths(path).collect())
    }

    /// The first executable file of this name.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.0.iter().map(|dir| dir.join(name)).find(|path| {
            path.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
    }

    fn program(&self, name: String) -> Program {
        Program {
            path: self.find(&name),
            name,
        }
    }
}

// === impl Program ===

impl Program {
    /// The resolved path, or the bare name.
    pub fn shown(&self) -> String {
        self.path
            .as_deref()
            .map_or_else(|| self.name.clone(), |path| path.display().to_string())
    }

    fn run(&self, args: &[&str], input: Option<&str>) -> Result<String, ToolError> {
        let path = self
            .path
            .as_deref()
            .ok_or_else(|| ToolError::Missing(self.name.clone()))?;
        let start = |error| ToolError::Start(self.name.clone(), error);
        let mut command = Command::new(path);
        command
            .args(args)
            .stdin(if input.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Only what changes the table takes the lock.
        if let Some(lock) = input.and_then(|_| spare_lock_file()) {
            command.env("XTABLES_LOCKFILE", lock);
        }
        let mut child = command.spawn().map_err(start)?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // A program that stops reading early says why on stderr: the write error is not the story.
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                scope.spawn(move || stdin.write_all(input.as_bytes()));
            }
            child.wait_with_output()
        })
        .map_err(start)?;
        outcome(output)
    }
}

fn outcome(output: Output) -> Result<String, ToolError> {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) => Ok(text),
        (Some(code), _) => Err(ToolError::Exit { code, output: text }),
        (None, signal) => Err(ToolError::Killed(signal.unwrap_or_default())),
    }
}

/// With a read-only root and nothing mounted on `/run` the lock cannot be created there; any file
/// that can be opened serves, and our own program is one. A pod's namespace has no other writer.
fn spare_lock_file() -> Option<PathBuf> {
    if std::env::var_os("XTABLES_LOCKFILE").is_some() {
        return None;
    }
    let openable = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(LOCK_FILE)
        .is_ok();
    if openable || std::fs::File::open(LOCK_FILE).is_ok() {
        return None;
    }
    std::env::current_exe().ok()
}

// === impl Found ===

impl Found {
    pub fn complete(self) -> Option<Programs> {
        match self {
            Found::Requested(programs) | Found::Fallback(programs) => Some(programs),
            Found::Nothing(_) => None,
        }
    }

    pub fn programs(&self) -> &Programs {
        match self {
            Found::Requested(programs) | Found::Fallback(programs) | Found::Nothing(programs) => {
                programs
            }
        }
    }
}

// === impl Programs ===

impl Programs {
    /// The names of a mode, with the paths they have.
    pub fn of(mode: Mode, family: Family, path: &SearchPath) -> Self {
        let base = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let name = match mode {
            Mode::Legacy => format!("{base}-legacy"),
            Mode::Nft => format!("{base}-nft"),
            Mode::Plain | Mode::Native => base.to_owned(),
        };
        Self {
            mode,
            family,
            save: path.program(format!("{name}-save")),
            restore: path.program(format!("{name}-restore")),
            command: path.program(name),
        }
    }

    /// The requested mode if its programs are there, else the first that is complete.
    pub fn resolve(mode: Mode, family: Family, path: &SearchPath) -> Found {
        let requested = Self::of(mode, family, path);
        if requested.is_complete() {
            return Found::Requested(requested);
        }
        [Mode::Nft, Mode::Plain, Mode::Legacy]
            .into_iter()
            .map(|mode| Self::of(mode, family, path))
            .find(Programs::is_complete)
            .map_or(Found::Nothing(requested), Found::Fallback)
    }

    pub fn is_complete(&self) -> bool {
        [&self.command, &self.save, &self.restore]
            .iter()
            .all(|program| program.path.is_some())
    }

    /// Whether the programs talk to the legacy tables; reading those creates them.
    pub fn is_legacy(&self) -> bool {
        let path = self
            .save
            .path
            .as_deref()
            .and_then(|path| path.canonicalize().ok());
        self.mode == Mode::Legacy
            || path.is_some_and(|path| path.to_string_lossy().contains("legacy"))
    }

    /// The line a step is shown as.
    pub fn shown(&self, step: &Step, netns: Option<(&str, &SearchPath)>) -> String {
        let (program, args) = match step {
            Step::Save => (&self.save, "-t nat"),
            Step::Change(args) => (&self.command, args.as_str()),
        };
        match netns {
            None => format!("{} {args}", program.shown()),
            Some((netns, path)) => {
                let nsenter = path.program("nsenter".to_owned()).shown();
                format!("{nsenter} --net={netns} -- {} {args}", program.name)
            }
        }
    }

    /// The table as it is now, and the text that said so.
    pub fn observe(&self) -> Result<(Saved, String), ToolError> {
        let text = self.save.run(&["-t", "nat"], None)?;
        Ok((saved::parse(&text), text))
    }

    /// Applies a restore text in one transaction; gives what the program printed.
    pub fn restore(&self, text: &str, wait: bool) -> Result<String, ToolError> {
        self.restore.run(&self.restore_args(wait), Some(text))
    }

    pub fn restore_args(&self, wait: bool) -> [&'static str; 2] {
        ["--noflush", if wait { "--wait" } else { LOCK_WAIT }]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A folder with empty programs of these names.
    fn folder(name: &str, programs: &[&str]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("linkerd-init-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        for program in programs {
            for suffix in ["", "-save", "-restore"] {
                let path = dir.join(format!("{program}{suffix}"));
                std::fs::write(&path, "").expect("a file");
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
                    .expect("mode");
            }
        }
        dir
    }

    fn choice(name: &str, present: &[&str], mode: Mode, family: Family) -> String {
        let dir = folder(name, present);
        let found = Programs::resolve(mode, family, &SearchPath::new(dir.as_os_str()));
        std::fs::remove_dir_all(&dir).expect("removed");
        let kind = match &found {
            Found::Requested(_) => "requested",
            Found::Fallback(_) => "fallback",
            Found::Nothing(_) => "nothing",
        };
        format!("{kind} {}", found.programs().command.name)
    }

    #[test]
    fn fallback_order() {
        let all = ["iptables", "iptables-nft", "iptables-legacy"];
        let cases = [
            (
                "kept",
                &all[..],
                Mode::Legacy,
                Family::V4,
                "requested iptables-legacy",
            ),
            (
                "to-nft",
                &all[..2],
                Mode::Legacy,
                Family::V4,
                "fallback iptables-nft",
            ),
            (
                "to-plain",
                &all[..1],
                Mode::Nft,
                Family::V4,
                "fallback iptables",
            ),
            (
                "to-legacy",
                &["ip6tables-legacy"],
                Mode::Nft,
                Family::V6,
                "fallback ip6tables-legacy",
            ),
            (
                "wrong-family",
                &all[..],
                Mode::Nft,
                Family::V6,
                "nothing ip6tables-nft",
            ),
            ("nothing", &[], Mode::Plain, Family::V4, "nothing iptables"),
        ];
        for (name, present, mode, family, expected) in cases {
            assert_eq!(choice(name, present, mode, family), expected, "{name}");
        }
    }

    #[test]
    fn a_missing_program_is_named() {
        let programs = Programs::of(
            Mode::Nft,
            Family::V4,
            &SearchPath::new(Path::new("/nonexistent").as_os_str()),
        );
        let error = programs.observe().expect_err("cannot run");
        assert_eq!(
            error.to_string(),
            "exec: \"iptables-nft-save\": executable file not found in $PATH"
        );
        assert_eq!(
            programs.shown(&Step::Save, None),
            "iptables-nft-save -t nat"
        );
    }
}
