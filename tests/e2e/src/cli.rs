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
        // Asked for like this, it shares all dependencies with the tests being run: building the
        // package alone would choose other features and compile most of them again.
        let tests = [
            "test",
            "--quiet",
            "--no-run",
            "--workspace",
            "--test",
            "process_command",
        ];
        workspace::output(&mut workspace::cargo(&tests));
        workspace::target_dir().join("debug/linkerd")
    });
    path.clone()
}
