//! Running other programs: what they print is caught, and a failure says which command
//! it was and what it said.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// A command with its arguments.
pub(crate) fn command<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command to its end and gives what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command
        .output()
        .with_context(|| format!("starting `{}`", words(command)))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let said = said.trim();
        let said = if said.is_empty() {
            "it said nothing"
        } else {
            said
        };
        bail!("`{}` failed ({}): {said}", words(command), done.status);
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs a command to its end, with its output going to the terminal.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting `{}`", words(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", words(command));
    }
    Ok(())
}

/// Whether a command ends well; what it prints is thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Where a program is, looking at PATH and then at the directories of system programs,
/// which are not on the PATH of everybody.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The command as a person would type it, shortened to fit a line.
fn words(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_its_words() {
        let error = output(&mut command("sh", ["-c", "echo broken >&2; exit 3"]))
            .expect_err("it exits with 3");
        let text = error.to_string();
        assert!(text.contains("sh -c"), "{text}");
        assert!(text.contains("broken"), "{text}");
    }

    #[test]
    fn programs_are_found() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program").is_none());
    }
}
