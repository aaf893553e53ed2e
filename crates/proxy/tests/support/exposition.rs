//! What a proxy shows at `/metrics`: families, their types, and the labels they are seen with.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::collections::BTreeMap;

/// Family, type, labels.
pub type Row = (&'static str, &'static str, String);

pub const TARGET: &str = "target_addr target_ip target_port";
pub const SRV: &str = "srv_group srv_kind srv_name srv_port";
pub const AUTHZ: &str = "authz_group authz_kind authz_name";
pub const RT_IN: &str = "route_group route_kind route_name";
pub const PARENT: &str =
    "parent_group parent_kind parent_name parent_namespace parent_port parent_section_name";
pub const ROUTE: &str = "route_group route_kind route_name route_namespace";
pub const BACKEND: &str =
    "backend_group backend_kind backend_name backend_namespace backend_port backend_section_name";
pub const IN: &str =
    "parent_group parent_kind parent_name parent_port route_group route_kind route_name";

/// All the labels, sorted.
pub fn join(parts: &[&str]) -> String {
    let mut all: Vec<_> = parts.iter().flat_map(|p| p.split(' ')).collect();
    all.retain(|l| !l.is_empty());
    all.sort_unstable();
    all.join(" ")
}

/// The rows of a balancer.
pub fn balancer_rows(rows: &mut Vec<Row>, balancer: &str, labels: &str) {
    for (suffix, kind, more) in [
        ("p2c_endpoints", "gauge", ""),
        ("p2c_updates_total", "counter", "op"),
        ("endpoints", "gauge", "endpoint_state"),
        ("queue_length", "gauge", ""),
        ("queue_requests_total", "counter", ""),
        ("queue_latency_seconds", "histogram", ""),
        ("queue_gate_open_total", "counter", ""),
        ("queue_gate_shut_total", "counter", ""),
        ("queue_gate_open_time_seconds", "gauge", ""),
        ("queue_gate_shut_time_seconds", "gauge", ""),
        ("queue_gate_timeout_seconds", "gauge", ""),
    ] {
        let name: &'static str = format!("{balancer}_{suffix}").leak();
        rows.push((name, kind, join(&[labels, more])));
    }
}

/// Type of each family, and the label sets it is seen with.
#[derive(Default)]
pub struct Seen {
    kinds: BTreeMap<String, String>,
    labels: BTreeMap<String, Vec<String>>,
}

impl Seen {
    /// Takes what one proxy shows.
    pub fn read(&mut self, text: &str) {
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type");
                self.kinds.insert(name.to_owned(), kind.to_owned());
                continue;
            }
            if line.starts_with('#') {
                continue;
            }
            let (series, _) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}');
            let mut names: Vec<_> = labels
                .split("\",")
                .filter_map(|pair| pair.split_once('=').map(|(name, _)| name))
                .filter(|name| *name != "le")
                .collect();
            names.sort_unstable();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| {
                    let family = name.strip_suffix(suffix)?;
                    (self.kinds.get(family).map(String::as_str) == Some("histogram"))
                        .then_some(family)
                })
                .unwrap_or(name);
            let sets = self.labels.entry(family.to_owned()).or_default();
            let names = names.join(" ");
            if !sets.contains(&names) {
                sets.push(names);
            }
        }
    }

    fn kind(&self, family: &str) -> Option<&str> {
        // OpenMetrics names a counter without its ending.
        let short = family.strip_suffix("_total").unwrap_or(family);
        let kind = self.kinds.get(family).or_else(|| self.kinds.get(short));
        kind.map(String::as_str)
    }

    /// What there should be and is not.
    pub fn missing(&self, rows: &[Row]) -> Vec<String> {
        let mut missing = Vec::new();
        for (family, kind, labels) in rows {
            if self.kind(family) != Some(kind) {
                missing.push(format!("{family}: {:?}, not {kind}", self.kind(family)));
            }
            let sets = self.labels.get(*family).cloned().unwrap_or_default();
            if !sets.contains(labels) {
                missing.push(format!("{family}: no {labels:?} among {sets:?}"));
            }
        }
        missing
    }

    /// All of the rows are there.
    #[track_caller]
    pub fn shows(&self, rows: Vec<Row>) {
        let missing = self.missing(&rows);
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }
}
