//! Metrics of the data path. A series is a set of cells, one per worker that uses it; a cell has one
//! writer and is bumped with plain loads and stores. A scrape adds the cells up. Handles are resolved
//! once per connection, route or endpoint, never per request.

pub mod balancer;
pub mod control;
mod family;
pub mod http;
pub mod inbound;
pub mod labels;
pub mod process;
pub mod route;
pub mod stack;
pub mod transport;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

pub use self::{
    family::{Family, Merge},
    labels::Labels,
};

/// A number with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the number.
    #[inline]
    pub fn add(&self, n: u64) {
        // One writer per cell: no read-modify-write is needed.
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Takes one away; for gauges.
    #[inline]
    pub fn dec(&self) {
        self.add(u64::MAX);
    }

    /// Sets the number; for gauges.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts of values by size, with one writer. The bounds come from the family.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound, then +Inf.
    buckets: Box<[Counter]>,
    /// In millionths.
    sum: Counter,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            buckets: (0..=bounds.len()).map(|_| Counter::default()).collect(),
            sum: Counter::default(),
        }
    }

    /// Counts a value in the unit of the bounds.
    #[inline]
    pub fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[at].inc();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates"
        )]
        self.sum.add((value * 1e6) as u64);
    }

    /// Counts a number of bytes.
    #[expect(
        clippy::cast_precision_loss,
        reason = "frames stay far below 2^52 bytes"
    )]
    pub fn observe_size(&self, bytes: usize) {
        self.observe(bytes as f64);
    }

    /// Counts a value of nothing, which is in the first bucket.
    #[inline]
    pub fn observe_zero(&self) {
        self.buckets[0].inc();
    }

    fn add(&self, other: &Self) {
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            mine.add(theirs.get());
        }
        self.sum.add(other.sum.get());
    }
}

/// Every series of the process.
#[derive(Debug)]
pub struct Registry {
    series: Mutex<All>,
    retain_idle: Duration,
}

#[derive(Debug, Default)]
struct All {
    series: BTreeMap<(Family, Arc<str>), Series>,
    /// How many of them are never forgotten.
    lasting: usize,
}

#[derive(Debug)]
struct Series {
    cells: Cells,
    /// Sum at the last scrape, and when it last changed.
    seen: u64,
    changed: Instant,
}

#[derive(Debug)]
enum Cells {
    /// What dead cells left behind, and the live ones.
    Number(u64, Vec<Arc<Counter>>),
    Histogram(Histogram, Vec<Arc<Histogram>>),
}

/// More series than this are not made; what would go there is counted nowhere.
const MAX_SERIES: usize = 100_000;
/// More series than this that are never forgotten are not made: there is room for the others.
const MAX_LASTING: usize = 50_000;

impl Registry {
    /// Unused series of families that expire are forgotten after `retain_idle`.
    pub fn new(retain_idle: Duration) -> Self {
        Self {
            series: Mutex::default(),
            retain_idle,
        }
    }

    /// A new cell of a counter or gauge.
    pub fn counter(&self, family: Family, labels: &Arc<str>) -> Arc<Counter> {
        let cell = Arc::new(Counter::default());
        self.with(
            family,
            labels,
            || Cells::Number(0, Vec::new()),
            |cells| {
                if let Cells::Number(left, live) = cells {
                    fold(live, |dead| *left = left.wrapping_add(dead.get()));
                    live.push(cell.clone());
                }
            },
        );
        cell
    }

    /// A new cell of a histogram.
    pub fn histogram(&self, family: Family, labels: &Arc<str>) -> Arc<Histogram> {
        let bounds = family.bounds();
        let cell = Arc::new(Histogram::new(bounds));
        let empty = || Cells::Histogram(Histogram::new(bounds), Vec::new());
        self.with(family, labels, empty, |cells| {
            if let Cells::Histogram(left, live) = cells {
                fold(live, |dead| left.add(dead));
                live.push(cell.clone());
            }
        });
        cell
    }

    fn with(
        &self,
        family: Family,
        labels: &Arc<str>,
        empty: impl FnOnce() -> Cells,
        f: impl FnOnce(&mut Cells),
    ) {
        let All { series, lasting } = &mut *self.series.lock();
        let full = series.len() >= MAX_SERIES || (!family.expires() && *lasting >= MAX_LASTING);
        match series.entry((family, labels.clone())) {
            Entry::Occupied(mut entry) => f(&mut entry.get_mut().cells),
            Entry::Vacant(_) if full => {}
            Entry::Vacant(entry) => {
                *lasting += usize::from(!family.expires());
                let series = entry.insert(Series {
                    cells: empty(),
                    seen: 0,
                    changed: Instant::now(),
                });
                f(&mut series.cells);
            }
        }
    }

    /// Writes every series and forgets those nobody used for long.
    pub fn write(&self, out: &mut String, now: Instant) -> fmt::Result {
        let All { series, .. } = &mut *self.series.lock();
        let mut last = None;
        let mut expired = Vec::new();
        for ((family, labels), entry) in series.iter_mut() {
            let total = entry.cells.gather();
            if total != entry.seen {
                entry.seen = total;
                entry.changed = now;
            }
            let idle = now.saturating_duration_since(entry.changed);
            if family.expires() && entry.cells.unused() && idle > self.retain_idle {
                expired.push((*family, labels.clone()));
                continue;
            }
            if last != Some(*family) {
                last = Some(*family);
                let name = family.name();
                writeln!(out, "# HELP {name} {}", family.help())?;
                writeln!(out, "# TYPE {name} {}", family.kind())?;
            }
            entry.cells.write(out, *family, labels)?;
        }
        for key in expired {
            series.remove(&key);
        }
        Ok(())
    }
}

/// Hands cells nobody else holds to `keep` and drops them.
fn fold<T>(live: &mut Vec<Arc<T>>, mut keep: impl FnMut(&T)) {
    live.retain(|cell| {
        let used = Arc::strong_count(cell) > 1;
        if !used {
            keep(cell);
        }
        used
    });
}

/// Milliseconds, shown as seconds.
struct Millis(u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0 / 1000, self.0 % 1000);
        match millis {
            0 => write!(f, "{seconds}"),
            millis => write!(f, "{seconds}.{millis:03}"),
        }
    }
}

impl Cells {
    /// Folds dead cells away; gives something that changes with every count.
    fn gather(&mut self) -> u64 {
        match self {
            Self::Number(left, live) => {
                fold(live, |dead| *left = left.wrapping_add(dead.get()));
                live.iter().fold(*left, |sum, c| sum.wrapping_add(c.get()))
            }
            Self::Histogram(left, live) => {
                fold(live, |dead| left.add(dead));
                let count = |h: &Histogram| h.buckets.iter().map(Counter::get).sum::<u64>();
                live.iter().map(|h| count(h)).sum::<u64>() + count(left)
            }
        }
    }

    fn unused(&self) -> bool {
        match self {
            Self::Number(_, live) => live.is_empty(),
            Self::Histogram(_, live) => live.is_empty(),
        }
    }

    fn write(&self, out: &mut String, family: Family, labels: &str) -> fmt::Result {
        let name = family.name();
        match self {
            Self::Number(left, live) => {
                let values = live.iter().map(|c| c.get());
                let sum = match family.merge() {
                    Merge::Sum => values.fold(*left, u64::wrapping_add),
                    Merge::Max => values.max().unwrap_or(0),
                };
                if family.in_millis() {
                    writeln!(out, "{name}{{{labels}}} {}", Millis(sum))
                } else if family.kind() == "gauge" {
                    writeln!(out, "{name}{{{labels}}} {}", sum.cast_signed())
                } else {
                    writeln!(out, "{name}{{{labels}}} {sum}")
                }
            }
            Self::Histogram(left, live) => {
                let comma = if labels.is_empty() { "" } else { "," };
                let total = |at: usize| {
                    live.iter()
                        .map(|h| h.buckets[at].get())
                        .sum::<u64>()
                        .wrapping_add(left.buckets[at].get())
                };
                let mut count = 0;
                for (at, bound) in left.bounds.iter().enumerate() {
                    count += total(at);
                    writeln!(
                        out,
                        "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}"
                    )?;
                }
                count += total(left.bounds.len());
                writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}")?;
                writeln!(out, "{name}_count{{{labels}}} {count}")?;
                let micros = live
                    .iter()
                    .map(|h| h.sum.get())
                    .sum::<u64>()
                    .wrapping_add(left.sum.get());
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a sum is shown, not counted with"
                )]
                let sum = micros as f64 / 1e6;
                writeln!(out, "{name}_sum{{{labels}}} {sum}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry, now: Instant) -> String {
        let mut out = String::new();
        registry.write(&mut out, now).expect("writes");
        out
    }

    #[test]
    fn cells_of_workers_add_up_and_outlive_their_users() {
        let registry = Registry::new(Duration::from_secs(600));
        let labels: Arc<str> = "direction=\"inbound\"".into();
        let a = registry.counter(Family::RequestTotal, &labels);
        let b = registry.counter(Family::RequestTotal, &labels);
        a.add(2);
        b.inc();
        drop(b);
        let now = Instant::now();
        let want = "request_total{direction=\"inbound\"} 3\n";
        assert!(
            text(&registry, now).ends_with(want),
            "{}",
            text(&registry, now)
        );
        drop(a);
        assert!(text(&registry, now).ends_with(want));
        let later = now + Duration::from_secs(601);
        assert_eq!(text(&registry, later), "", "forgotten when idle");
    }

    #[test]
    fn families_that_do_not_expire_are_kept_and_leave_room_for_the_others() {
        let registry = Registry::new(Duration::ZERO);
        for at in 0..MAX_LASTING + 10 {
            let labels = format!("target_ip=\"{at}\"").into();
            registry
                .counter(Family::OutboundTcpRouteOpen, &labels)
                .inc();
        }
        let later = Instant::now() + Duration::from_secs(86_400);
        for _ in 0..2 {
            let lines = text(&registry, later).lines().count();
            assert_eq!(lines, 2 + MAX_LASTING, "help, type and series");
        }
        let used = registry.counter(Family::RequestTotal, &"a=\"b\"".into());
        used.inc();
        assert!(text(&registry, later).contains("request_total{a=\"b\"} 1\n"));
        drop(used);
        // It is seen as idle by the next one.
        text(&registry, later + Duration::from_secs(1));
        let all = text(&registry, later + Duration::from_secs(2));
        assert!(!all.contains("request_total"), "forgotten when idle");
    }

    #[test]
    fn gauges_go_down() {
        let registry = Registry::new(Duration::ZERO);
        let open = registry.counter(Family::TcpOpenConnections, &"a=\"b\"".into());
        open.inc();
        open.inc();
        open.dec();
        assert!(text(&registry, Instant::now()).ends_with("tcp_open_connections{a=\"b\"} 1\n"));
    }

    #[test]
    fn histograms_are_cumulative() {
        let registry = Registry::new(Duration::ZERO);
        let h = registry.histogram(Family::ResponseLatencyMs, &"a=\"b\"".into());
        h.observe(0.5);
        h.observe(1.0);
        h.observe(7.0);
        h.observe(1e9);
        let got = text(&registry, Instant::now());
        for line in [
            "response_latency_ms_bucket{a=\"b\",le=\"1\"} 2",
            "response_latency_ms_bucket{a=\"b\",le=\"5\"} 2",
            "response_latency_ms_bucket{a=\"b\",le=\"10\"} 3",
            "response_latency_ms_bucket{a=\"b\",le=\"50000\"} 3",
            "response_latency_ms_bucket{a=\"b\",le=\"+Inf\"} 4",
            "response_latency_ms_count{a=\"b\"} 4",
            "response_latency_ms_sum{a=\"b\"} 1000000008.5",
        ] {
            assert!(got.lines().any(|l| l == line), "{line} in {got}");
        }
    }
}
