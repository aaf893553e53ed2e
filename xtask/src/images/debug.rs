//! The debug image: Debian's network tools, as this machine has them, with the libraries they need.
//! It starts with a capture on all interfaces, so that its log shows the pod's traffic.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::iptables::{self, libraries, text};
use crate::archive::Image;
use crate::ui;

/// Tools that `cargo xtask setup` brings, a shell, and the little that is needed inside one.
const REQUIRED: [&str; 12] = [
    "tcpdump",
    "ip",
    "ss",
    "conntrack",
    "curl",
    "dash",
    "cat",
    "env",
    "grep",
    "ls",
    "sleep",
    "true",
];
/// Tools that are taken along where they are.
const WELCOME: [&str; 6] = ["dig", "jq", "lsof", "nghttp", "ps", "tshark"];
const PLACES: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];

pub(super) fn fill(image: Image) -> Result<Image> {
    let mut tools = Vec::new();
    for name in REQUIRED {
        let tool = find(name).ok_or_else(|| {
            ui::hint(
                format!("the debug image needs {name}, which is not on this machine"),
                "install it: cargo xtask setup",
            )
        })?;
        tools.push(tool);
    }
    tools.extend(WELCOME.iter().filter_map(|name| find(name)));
    // Root is needed to capture: the container has no capabilities of files to count on.
    let mut image = iptables::add(image, &[])?
        .user("0")
        .symlink("/bin/sh", "/usr/bin/dash")
        // Debian's tcpdump would become another user, which the image does not have.
        .entrypoint(["/usr/bin/tcpdump", "-Z", "root", "-i", "any", "-nn", "-l"]);
    for tool in &tools {
        image = image.copy(&text(tool), 0o755, tool)?;
    }
    for library in libraries(&tools)? {
        image = image.copy(&text(&library), 0o755, &library)?;
    }
    Ok(image)
}

fn find(name: &str) -> Option<PathBuf> {
    let mut places = PLACES.iter().map(|place| Path::new(place).join(name));
    places.find(|path| path.is_file())
}
