//! Debian's iptables, legacy and nft, as files of an image: the two programs with their names,
//! the extensions they load, and the libraries all of these need.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::archive::{Capability, Image};
use crate::{program, ui};

const VARIANTS: [&str; 2] = ["legacy", "nft"];

/// Adds both variants. `iptables` without a variant is the nft one, as on Debian.
pub(super) fn add(mut image: Image, capabilities: &[Capability]) -> Result<Image> {
    let mut dynamic = Vec::new();
    for variant in VARIANTS {
        let path = PathBuf::from(format!("/usr/sbin/xtables-{variant}-multi"));
        let content = fs::read(&path).map_err(|error| {
            ui::hint(
                format!("{} cannot be read: {error}", path.display()),
                "install Debian's iptables: cargo xtask setup",
            )
        })?;
        image = image.file_with_capabilities(&text(&path), 0o755, content, capabilities);
        for family in ["iptables", "ip6tables"] {
            for action in ["", "-save", "-restore"] {
                let name = format!("/usr/sbin/{family}-{variant}{action}");
                image = image.symlink(&name, &format!("xtables-{variant}-multi"));
                if variant == "nft" {
                    let plain = format!("/usr/sbin/{family}{action}");
                    image = image.symlink(&plain, "xtables-nft-multi");
                }
            }
        }
        dynamic.push(path);
    }
    for extension in extensions()? {
        image = image.copy(&text(&extension), 0o644, &extension)?;
        dynamic.push(extension);
    }
    for library in libraries(&dynamic)? {
        image = image.copy(&text(&library), 0o755, &library)?;
    }
    // The legacy variant locks this file, whoever runs it.
    Ok(image.file("/run/xtables.lock", 0o666, *b""))
}

/// What `-m` and `-j` load, without those for bridges and ARP. Where they lie is compiled into
/// libxtables.
fn extensions() -> Result<Vec<PathBuf>> {
    let dir = PathBuf::from(format!(
        "/usr/lib/{}-linux-gnu/xtables",
        std::env::consts::ARCH
    ));
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry
            .with_context(|| format!("reading {}", dir.display()))?
            .path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if ["libxt_", "libipt_", "libip6t_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The libraries and the loader that these files need, as the loader of this machine finds them.
pub(super) fn libraries(dynamic: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let listing = program::output(&mut program::command("ldd", dynamic))?;
    Ok(listing.lines().filter_map(library).collect())
}

/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)` or `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn library(line: &str) -> Option<PathBuf> {
    let path = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
    let (path, _address) = path.split_once(" (")?;
    path.starts_with('/').then(|| PathBuf::from(path))
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ldd_prints_is_understood() {
        for (name, line, expected) in [
            (
                "a library",
                "\tlibmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007f)",
                Some("/lib/x86_64-linux-gnu/libmnl.so.0"),
            ),
            (
                "the loader",
                "\t/lib64/ld-linux-x86-64.so.2 (0x00007f)",
                Some("/lib64/ld-linux-x86-64.so.2"),
            ),
            ("the kernel's own", "\tlinux-vdso.so.1 (0x00007f)", None),
            ("a heading", "/usr/sbin/xtables-nft-multi:", None),
            ("static", "\tstatically linked", None),
        ] {
            assert_eq!(library(line), expected.map(PathBuf::from), "{name}");
        }
    }
}
