//! Whether HTTP/1 requests to an endpoint travel as streams of its HTTP/2 connection.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// When requests share one connection: while more than a threshold are in flight, and for a while
/// after that, because a busy worker sees them come and go in batches.
#[derive(Debug)]
pub(super) struct Multiplex {
    threshold: u32,
    until: Cell<Option<Instant>>,
}

impl Multiplex {
    const LINGER: Duration = Duration::from_secs(1);

    pub(super) fn new(threshold: u32) -> Self {
        Self {
            threshold,
            until: Cell::new(None),
        }
    }

    pub(super) fn wants(&self, in_flight: u32, now: Instant) -> bool {
        if in_flight > self.threshold {
            self.until.set(Some(now + Self::LINGER));
            return true;
        }
        self.until.get().is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_a_connection_while_there_are_many_and_a_little_longer() {
        let start = Instant::now();
        let multiplex = Multiplex::new(16);
        for (name, after, in_flight, want) in [
            ("few at first", 0, 16, false),
            ("many", 10, 17, true),
            ("a lull", 20, 1, true),
            ("many again", 900, 20, true),
            ("still within a second of that", 1_899, 1, true),
            ("few for a second", 1_900, 16, false),
            ("few for long", 5_000, 1, false),
        ] {
            let now = start + Duration::from_millis(after);
            assert_eq!(multiplex.wants(in_flight, now), want, "{name}");
        }
    }
}
