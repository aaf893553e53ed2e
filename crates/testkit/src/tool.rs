//! Programs of others that tests run: the path from an environment variable, or the one that
//! `cargo xtask tool` builds and names.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program `name` of `cargo xtask tool`, unless the variable `LINKERD_NAME` has a path.
///
/// # Panics
/// When it is neither there nor can be built.
#[track_caller]
pub fn tool(name: &str) -> PathBuf {
    let variable = format!("LINKERD_{}", name.to_ascii_uppercase().replace('-', "_"));
    if let Some(path) = std::env::var_os(&variable) {
        return path.into();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked = Command::new(cargo)
        .args(["run", "--quiet", "--package", "xtask", "--", "tool", name])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output();
    let path = asked
        .ok()
        .filter(|output| output.status.success())
        .map(|o| {
            let text = String::from_utf8_lossy(&o.stdout).into_owned();
            PathBuf::from(text.lines().last().unwrap_or_default().trim())
        });
    path.filter(|path| path.is_file()).unwrap_or_else(|| {
        panic!("this test needs {name}: run `cargo xtask tool {name}` and set {variable} to the path it prints")
    })
}
