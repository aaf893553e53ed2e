//! Capabilities for a process that is not root: what the file gave us is made ambient, so that the
//! programs we start have it too.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

use crate::log::Logger;

const NEEDED: [(CapabilitySet, &str); 2] = [
    (CapabilitySet::NET_ADMIN, "NET_ADMIN"),
    (CapabilitySet::NET_RAW, "NET_RAW"),
];

/// Raises what is permitted; says what is missing. Must run on the thread that starts programs.
pub fn raise(log: &Logger) {
    if let Err(errno) = try_raise(log) {
        log.warn(&format!("cannot raise capabilities: {errno}"));
    }
}

fn try_raise(log: &Logger) -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    let held: CapabilitySet = NEEDED
        .into_iter()
        .map(|(cap, _)| cap & sets.permitted)
        .fold(CapabilitySet::empty(), |all, cap| all | cap);
    if !held.contains(CapabilitySet::NET_ADMIN) {
        log.warn("this process does not have NET_ADMIN: add it to the container's capabilities, or run as root");
    }
    if rustix::process::geteuid().is_root() || held.is_empty() {
        return Ok(());
    }
    sets.inheritable |= held;
    sets.effective |= held;
    set_capabilities(None, sets)?;
    for (cap, name) in NEEDED {
        if held.contains(cap) {
            configure_capability_in_ambient_set(cap, true)?;
            log.debug(&format!(
                "{name} is passed on to the programs this process starts"
            ));
        }
    }
    Ok(())
}
