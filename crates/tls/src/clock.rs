//! Wall-clock time as an argument: the same trait serves rustls, session stores and tests.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;

/// Where the store and its configurations take the time from.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    fn now(&self) -> SystemTime;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// Seconds since 1970, zero for earlier times.
pub fn unix_seconds(t: SystemTime) -> u64 {
    t.duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}

pub(crate) fn unix_time(t: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(t.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
}

/// Shows a [`Clock`] to rustls.
#[derive(Debug)]
pub(crate) struct RustlsTime(pub(crate) std::sync::Arc<dyn Clock>);

impl TimeProvider for RustlsTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.now()))
    }
}

/// A date as messages show it: `2026-01-31T12:00:00Z`.
pub(crate) fn date(t: SystemTime) -> String {
    match jiff::Timestamp::try_from(t) {
        Ok(ts) => ts.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        Err(_) => format!("{} seconds after 1970", unix_seconds(t)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (secs, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_800_000_000, "2027-01-15T08:00:00Z"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(secs)), want);
        }
    }
}
