//! Rows: the median of each figure over the rounds, as JSON, as a table, and as a page with the machine's description and
//! the ratios that matter.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::load::{Measured, RATE, Work};
use crate::plan::{Load, Proxy};

mod bars;
mod machine;

/// What one measurement gave, and, as medians, a row of the result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    #[serde(skip)]
    kind: Proxy,
    #[serde(skip)]
    what: Load,
    proxy: &'static str,
    load: &'static str,
    /// CPU microseconds per request (or connection) of the outbound and the inbound proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    out_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_us: Option<f64>,
    /// Requests (or connections) per second, flat out.
    #[serde(skip_serializing_if = "Option::is_none")]
    rps: Option<f64>,
    /// Latencies at a constant rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    /// The larger of the two proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_kb: Option<u64>,
    /// What an idle connection adds to the larger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) conn_kb: Option<f64>,
    /// CPU seconds per gigabyte, mean of both proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_s_per_gb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gbit_s: Option<f64>,
}

impl Sample {
    pub(crate) fn new(proxy: Proxy, load: Load) -> Self {
        Self {
            kind: proxy,
            what: load,
            proxy: proxy.name(),
            load: load.name(),
            out_us: None,
            in_us: None,
            rps: None,
            p50_us: None,
            p99_us: None,
            rss_kb: None,
            conn_kb: None,
            cpu_s_per_gb: None,
            gbit_s: None,
        }
    }

    pub(crate) fn take(&mut self, measured: &Measured, work: Work) {
        self.rss_kb = measured.rss_kb.iter().copied().max();
        if work == Work::Stream {
            let gigabytes = measured.amount / 1e9;
            self.gbit_s = Some(gigabytes * 8.0 / measured.seconds);
            if !measured.cpu.is_empty() {
                self.cpu_s_per_gb =
                    Some(measured.cpu.iter().sum::<f64>() / measured.cpu.len() as f64 / gigabytes);
            }
            return;
        }
        self.rps = Some(measured.amount / measured.seconds);
        let each = |cpu: &f64| cpu * 1e6 / measured.amount;
        self.out_us = measured.cpu.first().map(each);
        self.in_us = measured.cpu.get(1).map(each);
    }

    /// CPU microseconds per request, mean of both proxies.
    fn cpu_us(&self) -> Option<f64> {
        Some((self.out_us? + self.in_us?) / 2.0)
    }

    /// One line for the progress display.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{} {}", self.proxy, self.load);
        let figures = [
            ("out", self.out_us, "us"),
            ("in", self.in_us, "us"),
            ("", self.rps, "/s"),
            ("p50", self.p50_us, "us"),
            ("p99", self.p99_us, "us"),
            ("rss", self.rss_kb.map(|kilobytes| kilobytes as f64), "KB"),
            ("each", self.conn_kb, "KB"),
            ("cpu", self.cpu_s_per_gb, "s/GB"),
            ("", self.gbit_s, "Gb/s"),
        ];
        for (name, value, unit) in figures {
            if let Some(value) = value {
                let digits = if value < 10.0 { 2 } else { 0 };
                let _ = write!(line, "  {name} {value:.digits$} {unit}");
            }
        }
        line
    }
}

/// One row per proxy and load, in the order they were first measured.
pub(crate) fn medians(samples: &[Sample]) -> Vec<Sample> {
    let mut rows: Vec<Sample> = Vec::new();
    for sample in samples {
        if rows
            .iter()
            .any(|row| row.kind == sample.kind && row.what == sample.what)
        {
            continue;
        }
        let all: Vec<&Sample> = samples
            .iter()
            .filter(|other| other.kind == sample.kind && other.what == sample.what)
            .collect();
        let of = |figure: fn(&Sample) -> Option<f64>| {
            median(all.iter().filter_map(|sample| figure(sample)).collect())
        };
        let mut row = Sample::new(sample.kind, sample.what);
        row.out_us = of(|sample| sample.out_us);
        row.in_us = of(|sample| sample.in_us);
        row.rps = of(|sample| sample.rps);
        row.p50_us = of(|sample| sample.p50_us);
        row.p99_us = of(|sample| sample.p99_us);
        row.conn_kb = of(|sample| sample.conn_kb);
        row.cpu_s_per_gb = of(|sample| sample.cpu_s_per_gb);
        row.gbit_s = of(|sample| sample.gbit_s);
        let mut sizes: Vec<u64> = all.iter().filter_map(|sample| sample.rss_kb).collect();
        sizes.sort_unstable();
        row.rss_kb = sizes.get(sizes.len() / 2).copied();
        rows.push(row);
    }
    rows
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let value = *values.get(middle)?;
    let value = if values.len().is_multiple_of(2) {
        f64::midpoint(value, values[middle - 1])
    } else {
        value
    };
    Some((value * 100.0).round() / 100.0)
}

#[expect(clippy::print_stdout, reason = "the result of the program")]
pub(crate) fn print_json(rows: &[Sample]) -> Result<()> {
    for row in rows {
        println!("{}", serde_json::to_string(row)?);
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result of the program")]
pub(crate) fn print_table(rows: &[Sample], binary: Option<&Path>) {
    println!(
        "{}\n\n{}\n{}",
        machine::description(),
        table(rows),
        bars::table(rows, binary)
    );
}

/// The rows as a table people can read in a terminal and on a page.
fn table(rows: &[Sample]) -> String {
    let mut text = String::from(
        "| load | proxy | out µs | in µs | per s | p50 µs | p99 µs | RSS KB | KB/conn | CPU s/GB | Gb/s |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let show = |value: Option<f64>, digits: usize| {
        value.map_or(String::new(), |value| format!("{value:.digits$}"))
    };
    for load in Load::ALL {
        for row in rows.iter().filter(|row| row.what == load) {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                row.load,
                row.proxy,
                show(row.out_us, 1),
                show(row.in_us, 1),
                show(row.rps, 0),
                show(row.p50_us, 0),
                show(row.p99_us, 0),
                row.rss_kb
                    .map_or(String::new(), |kilobytes| kilobytes.to_string()),
                show(row.conn_kb, 1),
                show(row.cpu_s_per_gb, 2),
                show(row.gbit_s, 2),
            );
        }
    }
    text
}

/// The heading of what people write about the figures.
const NOTES: &str = "## What was tried";

/// The bars alone, for a person who reads along while something else reads the rows.
pub(crate) fn bars(rows: &[Sample], binary: Option<&Path>) -> String {
    bars::table(rows, binary)
}

pub(crate) fn write_markdown(
    rows: &[Sample],
    path: &Path,
    seconds: f64,
    rounds: usize,
    binary: Option<&Path>,
) -> Result<()> {
    let page = format!(
        "# The proxy pair against its peers\n\nWritten by `cargo xtask bench proxy`: medians of {rounds} rounds of {seconds} s each, interleaved.\n\
         Client, outbound proxy, mTLS, inbound proxy, origin (1 KB) in two network namespaces behind the same redirection for every proxy;\n\
         `none` goes straight. CPU is user and system time from /proc; latencies are at {RATE} requests/s, constant rate.\n\
         Load generator and origin share the machine, so ratios count and absolute numbers do not.\n\n{}\n\n{}\n## Bars\n\n{}",
        machine::description(),
        table(rows),
        bars::table(rows, binary)
    );
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("creating {}", parent.display()))?;
    }
    // What people wrote below the figures stays.
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let kept = old.find(NOTES).map_or("", |at| &old[at..]);
    std::fs::write(path, format!("{page}\n{kept}"))
        .with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn rows_have_one_line_per_proxy_and_load() {
        let sample = |rps: f64| Sample {
            rps: Some(rps),
            ..Sample::new(Proxy::Envoy, Load::Http1One)
        };
        let rows = medians(&[sample(1.0), sample(5.0), sample(2.0)]);
        assert_eq!(rows.len(), 1);
        assert_eq!(
            serde_json::to_string(&rows[0]).expect("plain values"),
            r#"{"proxy":"envoy","load":"h1-c1","rps":2.0}"#
        );
    }
}
