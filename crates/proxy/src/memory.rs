//! A ceiling for the memory of the process: above it new work is refused, so that what is under way
//! can end and the kernel has no reason to kill us. And its ebb: what a burst has left free in the
//! heap goes back to the kernel, which the allocator does not do by itself.

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

/// Looks in a row, one each second, that must find little to do before free memory is given back. By
/// then idle connections to endpoints are closed and unused destinations forgotten.
const CALM: u32 = 6;
/// Looks after which every thread has emptied its cache.
const EMPTIED: u32 = CALM + 2;

/// Sees the load of the process, that is, connections and requests, come and go.
#[derive(Debug, Default)]
pub struct Tide {
    /// The most there was since memory was given back.
    high: u64,
    /// Looks in a row at no more than half of it.
    calm: u32,
}

/// What is to be done when the load has gone down for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ebb {
    /// Every thread empties its cache.
    Cache,
    /// One gives back the heap.
    Heap,
}

impl Tide {
    /// Takes a look.
    pub fn look(&mut self, load: u64) -> Option<Ebb> {
        if load * 2 > self.high || self.high == 0 {
            self.high = self.high.max(load);
            self.calm = 0;
            return None;
        }
        self.calm += 1;
        match self.calm {
            CALM => Some(Ebb::Cache),
            EMPTIED => {
                (self.high, self.calm) = (load, 0);
                Some(Ebb::Heap)
            }
            _ => None,
        }
    }
}

/// What glibc keeps for each thread: so many free pieces of each of so many sizes.
const CACHED: usize = 7;
const CACHED_SIZES: std::ops::Range<usize> = 0..64;

/// Empties this thread's cache of free memory. Its pieces lie anywhere, and none of their pages can be
/// given back. There is no call for it: all pieces are taken, and freed by a thread that ends, because
/// a thread gives up its cache then.
pub fn empty_cache() {
    let sizes = CACHED_SIZES.map(|n| 24 + 16 * n);
    let pieces: Vec<Vec<u8>> = sizes
        .flat_map(|size| (0..CACHED).map(move |_| Vec::with_capacity(size)))
        .collect();
    let ends = std::thread::Builder::new().name("memory".into());
    if let Err(error) = ends.spawn(move || drop(pieces)) {
        tracing::debug!(%error, "No thread to free memory");
    }
}

/// Gives what is free in the heap back to the kernel.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "a call into the allocator")]
    // SAFETY: it takes the locks of the allocator itself and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_when_the_load_has_gone_down() {
        for (name, loads, want) in [
            ("nothing ever happens", &[(0, 20)][..], &[][..]),
            ("load stays", &[(10, 9), (12, 1), (7, 9)], &[]),
            ("dips", &[(10, 1), (2, 5), (10, 1), (2, 5), (10, 1)], &[]),
            (
                "an end",
                &[(10, 1), (0, 20)],
                &[(6, Ebb::Cache), (8, Ebb::Heap)],
            ),
            (
                "one connection",
                &[(0, 4), (1, 1), (0, 20)],
                &[(10, Ebb::Cache), (12, Ebb::Heap)],
            ),
            (
                "down by steps",
                &[(100, 1), (50, 8), (25, 8)],
                &[
                    (6, Ebb::Cache),
                    (8, Ebb::Heap),
                    (14, Ebb::Cache),
                    (16, Ebb::Heap),
                ],
            ),
            (
                "half is little",
                &[(4, 1), (3, 9), (2, 9)],
                &[(15, Ebb::Cache), (17, Ebb::Heap)],
            ),
            (
                "back too soon",
                &[(9, 1), (0, 7), (9, 1), (0, 5)],
                &[(6, Ebb::Cache)],
            ),
        ] {
            let mut tide = Tide::default();
            let looks = loads.iter().flat_map(|(load, n)| vec![*load; *n]);
            let looks = looks.enumerate();
            let given: Vec<(usize, Ebb)> = looks
                .filter_map(|(n, load)| Some((n, tide.look(load)?)))
                .collect();
            assert_eq!(given, want, "{name}");
        }
    }

    #[test]
    fn free_memory_goes_back_to_the_kernel() {
        // Small pieces with one in use above them: the allocator keeps all of that by itself.
        let pieces: Vec<Box<[u8]>> = (0..8192).map(|_| vec![1; 4096].into()).collect();
        let above: Box<[u8]> = vec![1; 4096].into();
        drop(pieces);
        let before = resident();
        give_back();
        let after = resident();
        assert!(
            above[0] == 1 && after + (16 << 20) < before,
            "{before} {after}"
        );
    }

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
