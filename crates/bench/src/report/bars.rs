//! The ratios the proxy must keep, each against what was measured in the same run.

use std::{fmt::Write as _, path::Path};

use super::Sample;
use crate::plan::{Load, Proxy};

/// A figure of ours, over a peer's or alone, and its limit.
struct Bar {
    what: &'static str,
    value: Option<f64>,
    limit: f64,
    /// Whether the value must stay below the limit or reach it.
    at_most: bool,
}

fn bars(rows: &[Sample], binary: Option<&Path>) -> Vec<Bar> {
    let row = |proxy, load| {
        rows.iter()
            .find(|row| row.kind == proxy && row.what == load)
    };
    let ratio = |load, peer, figure: fn(&Sample) -> Option<f64>| {
        Some(figure(row(Proxy::Linkerd, load)?)? / figure(row(peer, load)?)?)
    };
    let ours = |load, figure: fn(&Sample) -> Option<f64>| figure(row(Proxy::Linkerd, load)?);
    let at_most = |what, value, limit| Bar {
        what,
        value,
        limit,
        at_most: true,
    };
    let at_least = |what, value, limit| Bar {
        what,
        value,
        limit,
        at_most: false,
    };
    let cpu: fn(&Sample) -> Option<f64> = Sample::cpu_us;
    let rss: fn(&Sample) -> Option<f64> =
        |row| row.rss_kb.map(|kilobytes| kilobytes as f64 / 1024.0);
    let handshake = match (ours(Load::Connect, cpu), ours(Load::ConnectFull, cpu)) {
        (Some(resumed), Some(full)) => Some(resumed / full),
        _ => None,
    };
    vec![
        at_most(
            "CPU per request, 1 connection, over HAProxy",
            ratio(Load::Http1One, Proxy::Haproxy, cpu),
            0.75,
        ),
        at_most(
            "CPU per request, 32 connections, over HAProxy",
            ratio(Load::Http1Some, Proxy::Haproxy, cpu),
            0.65,
        ),
        at_most(
            "CPU per request, 256 connections, over HAProxy",
            ratio(Load::Http1Many, Proxy::Haproxy, cpu),
            0.55,
        ),
        at_most(
            "CPU per request, HTTP/2 clients, over Envoy",
            ratio(Load::Http2, Proxy::Envoy, cpu),
            0.5,
        ),
        at_least(
            "requests/s, 32 connections, over HAProxy",
            ratio(Load::Http1Some, Proxy::Haproxy, |row| row.rps),
            1.3,
        ),
        at_least(
            "requests/s, 256 connections, over HAProxy",
            ratio(Load::Http1Many, Proxy::Haproxy, |row| row.rps),
            1.3,
        ),
        at_most(
            "TCP stream, CPU per GB, over HAProxy",
            ratio(Load::Tcp, Proxy::Haproxy, |row| row.cpu_s_per_gb),
            0.85,
        ),
        at_least(
            "TCP stream, Gb/s, over HAProxy",
            ratio(Load::Tcp, Proxy::Haproxy, |row| row.gbit_s),
            1.2,
        ),
        at_most(
            "new connection, resumed over full handshake",
            handshake,
            0.75,
        ),
        at_most("idle RSS, MB", ours(Load::Idle, rss), 8.0),
        at_most(
            "RSS per idle connection, KB",
            ours(Load::Idle, |row| row.conn_kb),
            40.0,
        ),
        at_most(
            "RSS at 256 busy connections, MB",
            ours(Load::Http1Many, rss),
            25.0,
        ),
        at_most(
            "size of the program, MB",
            binary
                .and_then(|path| path.metadata().ok())
                .map(|file| file.len() as f64 / 1024.0 / 1024.0),
            15.0,
        ),
        at_most(
            "p99 at a constant rate, 1 connection, over Envoy",
            ratio(Load::Http1One, Proxy::Envoy, |row| row.p99_us),
            1.0,
        ),
        at_most(
            "p99 at a constant rate, 32 connections, over Envoy",
            ratio(Load::Http1Some, Proxy::Envoy, |row| row.p99_us),
            1.0,
        ),
        at_most(
            "CPU per request, 1 connection, over the program before",
            ratio(Load::Http1One, Proxy::Before, cpu),
            1.02,
        ),
        at_most(
            "CPU per request, 32 connections, over the program before",
            ratio(Load::Http1Some, Proxy::Before, cpu),
            1.02,
        ),
        at_most(
            "CPU per request, 256 connections, over the program before",
            ratio(Load::Http1Many, Proxy::Before, cpu),
            1.02,
        ),
        at_most(
            "CPU per request, HTTP/2 clients, over the program before",
            ratio(Load::Http2, Proxy::Before, cpu),
            1.02,
        ),
    ]
}

/// The bars as a table; those that were not measured are left out.
pub(super) fn table(rows: &[Sample], binary: Option<&Path>) -> String {
    let mut text = String::from("| bar | measured | limit | |\n|---|---|---|---|\n");
    for bar in bars(rows, binary) {
        let Some(value) = bar.value else { continue };
        let kept = if bar.at_most {
            value <= bar.limit
        } else {
            value >= bar.limit
        };
        let sign = if bar.at_most { "≤" } else { "≥" };
        let _ = writeln!(
            text,
            "| {} | {value:.2} | {sign} {} | {} |",
            bar.what,
            bar.limit,
            if kept { "kept" } else { "MISSED" }
        );
    }
    text
}
