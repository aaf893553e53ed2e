//! Writes container images without a container engine: a docker-archive tar with one
//! layer, its config and `manifest.json`, as `ctr images import` and `docker load` read it.
//! The same input gives the same bytes: entries are sorted, times are zero, owners are root.
//! Files may carry capabilities, as the PAX record `SCHILY.xattr.security.capability`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// Linux capability numbers that the project's images use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Capability {
    NetAdmin = 12,
    NetRaw = 13,
}

/// One image: what it is called, how it starts and what is in it.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    reference: String,
    entrypoint: Vec<String>,
    environment: Vec<String>,
    labels: BTreeMap<String, String>,
    user: String,
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    mode: u32,
    node: Node,
}

#[derive(Clone, Debug)]
enum Node {
    Directory,
    File { content: Vec<u8>, capabilities: u32 },
    Symlink(String),
}

impl Image {
    /// An empty image named `reference` (`name:tag`), for this machine's architecture,
    /// run by root in `/` with the usual PATH.
    pub(crate) fn new(reference: impl Into<String>) -> Self {
        Self {
            reference: reference.into(),
            entrypoint: Vec::new(),
            environment: vec![
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            ],
            labels: BTreeMap::new(),
            user: String::new(),
            entries: BTreeMap::new(),
        }
    }

    pub(crate) fn entrypoint<S: Into<String>>(mut self, argv: impl IntoIterator<Item = S>) -> Self {
        self.entrypoint = argv.into_iter().map(Into::into).collect();
        self
    }

    /// User, or `user:group`, by number: a scratch image has no passwd file.
    pub(crate) fn user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    pub(crate) fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A directory with a mode other than the 0755 that parents get by themselves.
    pub(crate) fn dir(mut self, path: &str, mode: u32) -> Self {
        self.put(path, mode, Node::Directory);
        self
    }

    pub(crate) fn symlink(mut self, path: &str, target: &str) -> Self {
        self.put(path, 0o777, Node::Symlink(target.to_owned()));
        self
    }

    pub(crate) fn file(mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        let node = Node::File {
            content: content.into(),
            capabilities: 0,
        };
        self.put(path, mode, node);
        self
    }

    /// A file with capabilities that are permitted, effective and inheritable when it is
    /// executed (`+eip`).
    pub(crate) fn file_with_capabilities(
        mut self,
        path: &str,
        mode: u32,
        content: impl Into<Vec<u8>>,
        capabilities: &[Capability],
    ) -> Self {
        let node = Node::File {
            content: content.into(),
            capabilities: capabilities.iter().fold(0, |set, &c| set | 1 << (c as u8)),
        };
        self.put(path, mode, node);
        self
    }

    /// Copies a file of this machine, following symlinks.
    pub(crate) fn copy(self, path: &str, mode: u32, source: &Path) -> Result<Self> {
        let content = fs::read(source).with_context(|| format!("reading {}", source.display()))?;
        Ok(self.file(path, mode, content))
    }

    fn put(&mut self, path: &str, mode: u32, node: Node) {
        let path = path.trim_matches('/').to_owned();
        let mut parent = Path::new(&path).parent();
        while let Some(dir) = parent.filter(|dir| !dir.as_os_str().is_empty()) {
            self.entries
                .entry(dir.to_string_lossy().into_owned())
                .or_insert(Entry {
                    mode: 0o755,
                    node: Node::Directory,
                });
            parent = dir.parent();
        }
        self.entries.insert(path, Entry { mode, node });
    }

    /// Writes the archive, replacing `target` in one move; gives the image's config digest.
    pub(crate) fn write_to(&self, target: &Path) -> Result<String> {
        let (bytes, digest) = self.to_bytes()?;
        let parent = target.parent().context("an archive needs a directory")?;
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        let partial = target.with_extension(format!("partial-{}", std::process::id()));
        let mut file = fs::File::create(&partial)
            .with_context(|| format!("creating {}", partial.display()))?;
        file.write_all(&bytes)
            .with_context(|| format!("writing {}", partial.display()))?;
        fs::rename(&partial, target).with_context(|| format!("writing {}", target.display()))?;
        Ok(digest)
    }

    /// The archive as bytes, and the digest of its config (`sha256:…`).
    pub(crate) fn to_bytes(&self) -> Result<(Vec<u8>, String)> {
        if !self
            .reference
            .rsplit('/')
            .next()
            .is_some_and(|name| name.contains(':'))
        {
            bail!("image name {} has no tag", self.reference);
        }
        let layer = self.layer()?;
        let layer_digest = hex_digest(&layer);
        let config = serde_json::to_vec(&json!({
            "architecture": architecture(),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "Entrypoint": optional(&self.entrypoint),
                "Env": self.environment,
                "Labels": self.labels,
                "User": self.user,
                "WorkingDir": "/",
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
            "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask" }],
        }))?;
        let config_digest = hex_digest(&config);
        let config_name = format!("{config_digest}.json");
        let layer_name = format!("{layer_digest}/layer.tar");
        let manifest = serde_json::to_vec(&json!([{
            "Config": config_name,
            "RepoTags": [self.reference],
            "Layers": [layer_name],
        }]))?;

        let mut archive = Builder::new(Vec::with_capacity(layer.len() + 8192));

        let parts = [
            (config_name.as_str(), &config),
            (layer_name.as_str(), &layer),
            ("manifest.json", &manifest),
        ];
        for (name, content) in parts {
            let mut header = header(EntryType::Regular, 0o644);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, content.as_slice())?;
        }
        Ok((archive.into_inner()?, format!("sha256:{config_digest}")))
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            match &entry.node {
                Node::Directory => {
                    let mut header = header(EntryType::Directory, entry.mode);
                    layer.append_data(&mut header, format!("{path}/"), std::io::empty())?;
                }
                Node::Symlink(target) => {
                    let mut header = header(EntryType::Symlink, entry.mode);
                    layer.append_link(&mut header, path, target)?;
                }
                Node::File {
                    content,
                    capabilities,
                } => {
                    if *capabilities != 0 {
                        let value = file_capability(*capabilities);
                        let record = ("SCHILY.xattr.security.capability", value.as_slice());
                        layer.append_pax_extensions([record])?;
                    }
                    let mut header = header(EntryType::Regular, entry.mode);
                    header.set_size(content.len() as u64);
                    layer.append_data(&mut header, path, content.as_slice())?;
                }
            }
        }
        Ok(layer.into_inner()?)
    }
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}

/// `struct vfs_cap_data`, revision 2: permitted and inheritable words, all of them effective.
fn file_capability(set: u32) -> [u8; 20] {
    const REVISION_2_EFFECTIVE: u32 = 0x0200_0001;
    let words = [REVISION_2_EFFECTIVE, set, set, 0, 0];
    let mut bytes = [0; 20];
    for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn optional(argv: &[String]) -> Option<&[String]> {
    (!argv.is_empty()).then_some(argv)
}

/// The architecture in the words of container images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// SHA-256 in lower-case hexadecimal.
pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn sample() -> Image {
        Image::new("localhost/sample:1")
            .entrypoint(["/bin/b"])
            .user("65534")
            .file("/bin/b", 0o755, *b"second")
            .file_with_capabilities("/bin/a", 0o755, *b"first", &[Capability::NetAdmin])
            .symlink("/bin/c", "b")
            .dir("/tmp", 0o1777)
    }

    fn names(layer: &[u8]) -> Vec<String> {
        tar::Archive::new(layer)
            .entries()
            .expect("a tar")
            .map(|e| {
                e.expect("an entry")
                    .path()
                    .expect("a path")
                    .display()
                    .to_string()
            })
            .collect()
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        let (one, digest_one) = sample().to_bytes().expect("written");
        let (two, digest_two) = sample().to_bytes().expect("written");
        assert_eq!(one, two);
        assert_eq!(digest_one, digest_two);
    }

    #[test]
    fn entries_are_sorted_and_parents_exist() {
        let layer = sample().layer().expect("written");
        assert_eq!(names(&layer), ["bin/", "bin/a", "bin/b", "bin/c", "tmp/"]);
    }

    #[test]
    fn capabilities_travel_as_a_pax_record() {
        let layer = sample().layer().expect("written");
        let mut archive = tar::Archive::new(layer.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().expect("a tar") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").display().to_string();
            let records = entry.pax_extensions().expect("readable records");
            for record in records.into_iter().flatten() {
                let record = record.expect("a record");
                found.push((
                    path.clone(),
                    record.key_bytes().to_vec(),
                    record.value_bytes().to_vec(),
                ));
            }
            let mut content = String::new();
            entry.read_to_string(&mut content).expect("readable");
        }
        let value = [
            1, 0, 0, 2, 0, 0x10, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let key = b"SCHILY.xattr.security.capability".to_vec();
        assert_eq!(found, [("bin/a".to_owned(), key, value.to_vec())]);
    }

    #[test]
    fn the_manifest_names_config_and_layer() {
        let (bytes, digest) = sample().to_bytes().expect("written");
        let names = names(&bytes);
        assert_eq!(names.len(), 3);
        assert_eq!(
            format!("sha256:{}", names[0].trim_end_matches(".json")),
            digest
        );
        assert!(names[1].ends_with("/layer.tar"));
        assert_eq!(names[2], "manifest.json");
    }

    #[test]
    fn a_name_without_a_tag_is_refused() {
        assert!(Image::new("localhost:5000/x").to_bytes().is_err());
    }
}
