//! The real Helm client, built by xtask when it is not there yet.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{kubectl, workspace};

/// The path of Helm.
///
/// # Panics
/// When it cannot be built.
pub fn helm() -> &'static Path {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    HELM.get_or_init(|| {
        kubectl::built("helm", "helm").unwrap_or_else(|| {
            let path = workspace::output(&mut workspace::xtask(&["tool", "helm"]));
            PathBuf::from(path.trim())
        })
    })
}
