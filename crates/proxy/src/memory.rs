//! A ceiling for the memory of the process: above it new work is refused, so that what is under way
//! can end and the kernel has no reason to kill us.

/// Of the container's limit, in percent.
const SHARE: u64 = 90;
/// Work is taken again below this share of the ceiling, in percent.
const RELIEF: u64 = 90;

/// Whether new work is refused, given that it `was`.
pub fn overloaded(resident: u64, ceiling: u64, was: bool) -> bool {
    let limit = if was { ceiling / 100 * RELIEF } else { ceiling };
    resident > limit
}

/// Bytes resident now; 0 when that is not known.
pub fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_ascii_whitespace().nth(1);
    let pages: u64 = pages.and_then(|p| p.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// The ceiling a container's limit asks for, if it has one.
pub fn of_container() -> Option<u64> {
    let limit = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .find_map(|path| std::fs::read_to_string(path).ok())?;
    share(&limit)
}

fn share(limit: &str) -> Option<u64> {
    // Without a limit the file says `max`, or a number larger than any machine.
    let bytes: u64 = limit.trim().parse().ok()?;
    (bytes < 1 << 50).then_some(bytes / 100 * SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_refused_above_and_taken_again_well_below() {
        for (resident, was, want) in [
            (100, false, false),
            (1000, false, false),
            (1001, false, true),
            (950, true, true),
            (900, true, false),
        ] {
            assert_eq!(overloaded(resident, 1000, was), want, "{resident} {was}");
        }
    }

    #[test]
    fn limits_of_containers() {
        assert_eq!(share("max\n"), None);
        assert_eq!(share("9223372036854771712\n"), None);
        assert_eq!(share("262144000\n"), Some(235_929_600));
        assert_eq!(share(""), None);
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(resident() > 0);
    }
}
