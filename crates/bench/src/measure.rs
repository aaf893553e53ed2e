//! What a process costs, read from /proc: CPU time (user and system) and resident memory.

use std::time::Duration;

/// CPU seconds of a process so far, user and system.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in brackets may hold blanks; fields are counted behind it. User and system time are the 14th and 15th.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Resident kilobytes of a process.
pub(crate) fn rss_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// Latencies in ten-thousandths of a millisecond.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<u32>);

impl Latencies {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0
            .push(u32::try_from(time.as_nanos() / 100).unwrap_or(u32::MAX));
    }

    /// The quantile in microseconds.
    pub(crate) fn quantile(&mut self, q: f64) -> Option<f64> {
        if self.0.is_empty() {
            return None;
        }
        self.0.sort_unstable();
        let last = self.0.len() - 1;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of the length is an index"
        )]
        let at = (last as f64 * q).round() as usize;
        Some(f64::from(self.0[at.min(last)]) / 10.0)
    }
}
