//! The cluster that the cluster floor runs in: the one of KUBECONFIG, or a local one of its
//! own that goes away afterwards.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{cluster, ui};

const NAME: &str = "test";

#[derive(Debug)]
pub(super) struct Cluster {
    kubeconfig: PathBuf,
    /// Whether it is ours to load images into.
    local: bool,
    /// Whether it is ours to remove: made by this run, and not to be kept.
    remove: bool,
}

impl Cluster {
    pub(super) fn up(keep: bool) -> Result<Self> {
        let existed = cluster::is_up(NAME)?;
        let kubeconfig = cluster::up(NAME, None)?;
        let local = kubeconfig == cluster::kubeconfig(NAME)? && cluster::is_up(NAME)?;
        Ok(Self {
            kubeconfig,
            local,
            remove: local && !existed && !keep,
        })
    }

    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Makes an image known to the cluster. A cluster that is not ours must be able to pull it.
    pub(super) fn load(&self, archive: &Path) -> Result<()> {
        if !self.local {
            ui::note(format_args!(
                "  not ours to load into: push {} yourself",
                archive.display()
            ));
            return Ok(());
        }
        let content =
            std::fs::read(archive).with_context(|| format!("reading {}", archive.display()))?;
        cluster::load(NAME, &content)
    }

    pub(super) fn down(mut self) -> Result<()> {
        if std::mem::take(&mut self.remove) {
            cluster::down(NAME)
        } else {
            Ok(())
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.remove
            && let Err(error) = cluster::down(NAME)
        {
            ui::failure(&error);
        }
    }
}
