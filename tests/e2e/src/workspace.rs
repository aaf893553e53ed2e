//! Where this workspace is and how its cargo is called from within a test.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn root() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    dir.ancestors()
        .nth(2)
        .expect("this package lies two directories deep")
        .to_owned()
}

pub(crate) fn target_dir() -> PathBuf {
    // This test program lies in TARGET/PROFILE/deps.
    let own = std::env::current_exe().expect("a program knows where it is");
    own.ancestors()
        .nth(3)
        .expect("a test lies below the target directory")
        .to_owned()
}

pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target_dir());
    command
}

/// `cargo xtask`.
pub(crate) fn xtask(arguments: &[&str]) -> Command {
    let mut command = cargo(&["run", "--quiet", "--package", "xtask", "--"]);
    command.args(arguments);
    command
}

/// Runs a command that must end well; gives what it printed.
pub(crate) fn output(command: &mut Command) -> String {
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    assert!(
        done.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8_lossy(&done.stdout).into_owned()
}
