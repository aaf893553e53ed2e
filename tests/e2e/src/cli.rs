//! Our own `linkerd` command, built with the tests.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::workspace;

/// The program; it is built when this returns.
///
/// # Panics
/// When it cannot be built.
pub fn cli() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let path = BUILT.get_or_init(|| {
        let package = [
            "build",
            "--quiet",
            "--package",
            "linkerd-cli",
            "--bin",
            "linkerd",
        ];
        workspace::output(&mut workspace::cargo(&package));
        workspace::target_dir().join("debug/linkerd")
    });
    path.clone()
}
