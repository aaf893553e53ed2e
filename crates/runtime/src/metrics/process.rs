//! What the kernel knows about this process, read from /proc at each scrape. A file that
//! cannot be read leaves its families out of that scrape.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug)]
struct Process {
    started: SystemTime,
    since: Instant,
}

/// The fields of `/proc/self/stat` that are shown.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

/// Bytes through all links but loopback.
#[derive(Debug, Default, PartialEq, Eq)]
struct Network {
    received: u64,
    sent: u64,
}

pub(super) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(Process {
        started: SystemTime::now(),
        since: Instant::now(),
    }));
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut family =
            |name, help, unit, metric: &dyn Metric| metric.write(&mut encoder, name, help, unit);

        let start = since_epoch(self.started).as_secs_f64();
        let clock = since_epoch(SystemTime::now()).as_secs_f64();
        let uptime = self.since.elapsed().as_secs_f64();
        family(
            "start_time",
            "When the process started, since the epoch",
            Some(Unit::Seconds),
            &ConstGauge::new(start),
        )?;
        family(
            "clock_time",
            "The time now, since the epoch",
            Some(Unit::Seconds),
            &ConstGauge::new(clock),
        )?;
        family(
            "uptime",
            "How long the process runs",
            Some(Unit::Seconds),
            &ConstCounter::new(uptime),
        )?;

        if let Some(stat) = read("/proc/self/stat").as_deref().and_then(parse_stat) {
            let cpu = stat.cpu_ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
            let resident = stat
                .resident_pages
                .saturating_mul(rustix::param::page_size() as u64);
            family(
                "cpu",
                "Time spent in user and system mode",
                Some(Unit::Seconds),
                &ConstCounter::new(cpu),
            )?;
            family(
                "virtual_memory",
                "Size of the address space",
                Some(Unit::Bytes),
                &ConstGauge::new(stat.virtual_bytes),
            )?;
            family(
                "resident_memory",
                "Memory in use",
                Some(Unit::Bytes),
                &ConstGauge::new(resident),
            )?;
            family(
                "threads",
                "Threads of the process",
                None,
                &ConstGauge::new(stat.threads),
            )?;
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            // Reading the directory holds one descriptor itself.
            let count = open.count().saturating_sub(1) as u64;
            family(
                "open_fds",
                "Open file descriptors",
                None,
                &ConstGauge::new(count),
            )?;
        }
        if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            family(
                "max_fds",
                "How many file descriptors may be open",
                None,
                &ConstGauge::new(limit),
            )?;
        }
        if let Some(network) = read("/proc/self/net/dev").as_deref().map(parse_network) {
            family(
                "network_receive",
                "Bytes received on all links but loopback",
                Some(Unit::Bytes),
                &ConstCounter::new(network.received),
            )?;
            family(
                "network_transmit",
                "Bytes sent on all links but loopback",
                Some(Unit::Bytes),
                &ConstCounter::new(network.sent),
            )?;
        }
        Ok(())
    }
}

/// The counters and gauges above have different types; this writes any of them.
trait Metric {
    fn write(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<Unit>,
    ) -> fmt::Result;
}

impl<M: EncodeMetric> Metric for M {
    fn write(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<Unit>,
    ) -> fmt::Result {
        let lines = encoder.encode_descriptor(name, help, unit.as_ref(), self.metric_type())?;
        self.encode(lines)
    }
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path)
        .inspect_err(|error| tracing::debug!(path, %error, "Cannot read process statistics"))
        .ok()
}

/// The second field is the program's name in parentheses and may hold anything, so fields are
/// counted from the last parenthesis; numbers are those of proc(5).
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, after) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: field(14)?.saturating_add(field(15)?),
        threads: field(20)?,
        virtual_bytes: field(23)?,
        resident_pages: field(24)?,
    })
}

/// Two heading lines, then `name: received-bytes …(7)… sent-bytes …`.
fn parse_network(text: &str) -> Network {
    let mut total = Network::default();
    for line in text.lines().skip(2) {
        let Some((name, counts)) = line.split_once(':') else {
            continue;
        };
        if name.trim() == "lo" {
            continue;
        }
        let count = |at: usize| {
            counts
                .split_ascii_whitespace()
                .nth(at)
                .and_then(|n| n.parse::<u64>().ok())
                .unwrap_or(0)
        };
        total.received = total.received.saturating_add(count(0));
        total.sent = total.sent.saturating_add(count(8));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Exposition, register_process};

    #[test]
    fn every_family_is_there() {
        let mut registry = Registry::default();
        register_process(&mut registry);
        let text = Exposition::new(registry).encode().expect("encodes");
        for name in [
            "process_start_time_seconds",
            "process_clock_time_seconds",
            "process_uptime_seconds_total",
            "process_cpu_seconds_total",
            "process_network_receive_bytes_total",
            "process_network_transmit_bytes_total",
            "process_virtual_memory_bytes",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_threads",
        ] {
            let line = text
                .lines()
                .find(|line| line.split(' ').next() == Some(name));
            let value = line.and_then(|line| line.split(' ').nth(1)?.parse::<f64>().ok());
            assert!(value.is_some(), "{name} missing in:\n{text}");
        }
    }

    #[test]
    fn a_program_name_cannot_shift_the_fields() {
        let text =
            "7 (a) b 1 2) S 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 5 0 9 4096000 250 99";
        let stat = Stat {
            cpu_ticks: 42,
            threads: 5,
            virtual_bytes: 4_096_000,
            resident_pages: 250,
        };
        assert_eq!(parse_stat(text), Some(stat));
        assert_eq!(parse_stat("7 (cut off) S 1"), None);
    }

    #[test]
    fn loopback_is_left_out() {
        let text = "Inter-| Receive | Transmit\n face |bytes ...\n    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n  eth0: 7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth1:1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n";
        assert_eq!(
            parse_network(text),
            Network {
                received: 8,
                sent: 11
            }
        );
    }
}
