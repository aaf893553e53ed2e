//! The cluster that the cluster floor runs in: the one of KUBECONFIG, or a local one of its
//! own that goes away afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{cluster, machine, ui};

const NAME: &str = "test";

#[derive(Debug)]
pub(super) struct Cluster {
    kubeconfig: PathBuf,
    /// Whether it is ours to load images into.
    local: bool,
    /// Whether it is ours to remove: made by a run of the tests, and not to be kept.
    remove: bool,
}

impl Cluster {
    pub(super) fn up(keep: bool) -> Result<Self> {
        let existed = cluster::is_up(NAME)?;
        // Before the cluster: a run that is interrupted leaves both, and the next one removes both.
        let mark = mark();
        if !existed && !keep && !cluster::is_foreign() && machine::is_root() {
            if let Some(parent) = mark.parent() {
                fs::create_dir_all(parent)
                    .with_context(|| format!("creating {}", parent.display()))?;
            }
            machine::write(&mark, "")?;
        }
        let kubeconfig = cluster::up(NAME, None)?;
        let local = kubeconfig == cluster::kubeconfig(NAME)? && cluster::is_up(NAME)?;
        if keep && local {
            let _ = fs::remove_file(&mark);
        }
        Ok(Self {
            kubeconfig,
            local,
            remove: local && mark.exists(),
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
            remove()
        } else {
            Ok(())
        }
    }
}

/// Says that the cluster was made by a run of the tests which was not asked to keep it.
fn mark() -> PathBuf {
    machine::state_dir().join(format!("{NAME}.passing"))
}

fn remove() -> Result<()> {
    cluster::down(NAME)?;
    let mark = mark();
    fs::remove_file(&mark).with_context(|| format!("removing {}", mark.display()))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.remove
            && let Err(error) = remove()
        {
            ui::failure(&error);
        }
    }
}
