//! Small files that change under us: mounted secrets and bundles, swapped by Kubernetes through the
//! `..data` symlink. A change is seen by looking, so it works on every file system.

use std::{
    fs, io,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// No key, certificate bundle or token is larger.
pub const MAX_FILE_LEN: u64 = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than {MAX_FILE_LEN} bytes", .path.display())]
    TooLarge { path: PathBuf },
}

/// Reads a whole small file.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let fail = |source| FileError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(fail)?;
    file.take(MAX_FILE_LEN + 1)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_LEN {
        return Err(FileError::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(bytes)
}

/// What tells one version of a file from the next, symlinks followed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    Some(Stamp {
        device: meta.dev(),
        inode: meta.ino(),
        len: meta.len(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}

/// Remembers how a set of files looked and tells when they look different.
#[derive(Debug)]
pub struct Watch {
    paths: Vec<PathBuf>,
    seen: Vec<Option<Stamp>>,
}

impl Watch {
    /// Takes the first look. Read the files after this call, so that no change slips between.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let seen = paths.iter().map(|p| stamp(p)).collect();
        Self { paths, seen }
    }

    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Whether any file has changed, appeared or gone since the last look.
    pub fn changed(&mut self) -> bool {
        let now: Vec<_> = self.paths.iter().map(|p| stamp(p)).collect();
        let changed = now != self.seen;
        self.seen = now;
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Writes files the way the kubelet does: a new directory, then one rename of the link.
    fn swap(dir: &Path, version: &str, content: &str) {
        let data = dir.join(format!("..{version}"));
        fs::create_dir(&data).expect("creates");
        fs::write(data.join("tls.crt"), content).expect("writes");
        symlink(&data, dir.join("..data_tmp")).expect("links");
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("renames");
    }

    #[test]
    fn sees_symlink_swaps_and_edits() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("tls.crt");
        let mut watch = Watch::new(vec![file.clone()]);
        assert!(!watch.changed(), "absent files do not change");
        swap(dir.path(), "1", "one");
        symlink("..data/tls.crt", &file).expect("links");
        assert!(watch.changed(), "appeared");
        assert!(!watch.changed());
        swap(dir.path(), "2", "two");
        assert!(watch.changed(), "swapped");
        assert_eq!(read(&file).expect("reads"), b"two");
        fs::write(dir.path().join("..2/tls.crt"), "three").expect("writes");
        assert!(watch.changed(), "edited in place");
        fs::remove_file(&file).expect("removes");
        assert!(watch.changed(), "gone");
    }

    #[test]
    fn refuses_large_files() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("big");
        fs::File::create(&file)
            .expect("creates")
            .set_len(MAX_FILE_LEN + 1)
            .expect("grows");
        assert!(matches!(read(&file), Err(FileError::TooLarge { .. })));
    }
}
