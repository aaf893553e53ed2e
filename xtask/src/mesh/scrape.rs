//! Reads proxies' metrics through the API server: who speaks to whom, and how that goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Mesh;

/// One line of an exposition.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    family: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Every sample of a deployment's proxies at one moment.
#[derive(Debug)]
pub(crate) struct Scrape {
    at: Instant,
    by_deployment: BTreeMap<String, Vec<Sample>>,
    pods: BTreeMap<String, usize>,
    /// Who a deployment's pods are: `ACCOUNT.NAMESPACE.`, how their identity begins.
    names: BTreeMap<String, String>,
}

/// What a deployment's proxies saw of the requests to it between two scrapes.
#[derive(Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) deployment: String,
    pub(crate) pods: usize,
    /// None where nothing came in.
    pub(crate) traffic: Option<Traffic>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) success: f64,
    pub(crate) rps: f64,
    /// Upper bounds of the buckets that hold the 50th, 95th and 99th of a hundred.
    pub(crate) latency_ms: [f64; 3],
}

/// One deployment calling another, as both sides saw it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Who the caller found at the other end.
    pub(crate) server_id: String,
    /// Who the called one saw.
    pub(crate) client_id: Option<String>,
}

impl Scrape {
    /// Asks every meshed pod of a namespace.
    pub(crate) fn take(mesh: &Mesh, namespace: &str) -> Result<Self> {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods?labelSelector=linkerd.io%2Fproxy-deployment&fieldSelector=status.phase%3DRunning"
        );
        let pods: Value = serde_json::from_str(&mesh.raw(&path)?).context("the list of pods")?;
        let mut scrape = Self {
            at: Instant::now(),
            by_deployment: BTreeMap::new(),
            pods: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        for pod in pods["items"].as_array().into_iter().flatten() {
            let meta = &pod["metadata"];
            if meta["deletionTimestamp"].is_string() {
                continue;
            }
            let name = meta["name"].as_str().unwrap_or_default();
            let deployment = meta["labels"]["linkerd.io/proxy-deployment"].as_str();
            let deployment = deployment.unwrap_or_default().to_owned();
            let text = mesh.raw(&format!(
                "/api/v1/namespaces/{namespace}/pods/{name}:4191/proxy/metrics"
            ))?;
            let account = pod["spec"]["serviceAccountName"].as_str();
            let account = account.unwrap_or("default");
            scrape
                .names
                .insert(deployment.clone(), format!("{account}.{namespace}."));
            *scrape.pods.entry(deployment.clone()).or_default() += 1;
            let samples = scrape.by_deployment.entry(deployment).or_default();
            samples.extend(text.lines().filter_map(parse));
        }
        Ok(scrape)
    }

    /// How requests went since an earlier scrape.
    pub(crate) fn since(&self, earlier: &Self) -> Vec<Figures> {
        let time = self.at.duration_since(earlier.at);
        let rows = self.by_deployment.iter().map(|(deployment, now)| {
            let before = earlier
                .by_deployment
                .get(deployment)
                .map_or(&[][..], Vec::as_slice);
            Figures {
                deployment: deployment.clone(),
                pods: self.pods.get(deployment).copied().unwrap_or_default(),
                traffic: traffic(now, before, time),
            }
        });
        rows.collect()
    }

    /// Who speaks to whom over mTLS.
    pub(crate) fn edges(&self) -> BTreeSet<Edge> {
        let mut edges = BTreeSet::new();
        for (from, samples) in &self.by_deployment {
            let secured = samples.iter().filter(|sample| {
                sample.family == "request_total"
                    && sample.is("direction", "outbound")
                    && sample.is("tls", "true")
            });
            for sample in secured {
                let (Some(to), Some(server_id)) = (
                    sample.labels.get("dst_deployment"),
                    sample.labels.get("server_id"),
                ) else {
                    continue;
                };
                edges.insert(Edge {
                    from: from.clone(),
                    to: to.clone(),
                    server_id: server_id.clone(),
                    client_id: self.client_seen_by(to, from),
                });
            }
        }
        edges
    }

    /// The identity under which `to` knows the pods of `from`.
    fn client_seen_by(&self, to: &str, from: &str) -> Option<String> {
        let name = self.names.get(from)?;
        let inbound = self.by_deployment.get(to)?.iter().filter(|sample| {
            sample.family == "request_total"
                && sample.is("direction", "inbound")
                && sample.is("tls", "true")
        });
        let mut clients = inbound.filter_map(|sample| sample.labels.get("client_id"));
        clients.find(|id| id.starts_with(name)).cloned()
    }
}

fn traffic(now: &[Sample], before: &[Sample], time: Duration) -> Option<Traffic> {
    let count = |classification: Option<&str>| {
        let of = |samples: &[Sample]| -> f64 {
            let inbound = samples.iter().filter(|sample| {
                sample.family == "response_total"
                    && sample.is_for_application()
                    && classification.is_none_or(|class| sample.is("classification", class))
            });
            inbound.map(|sample| sample.value).sum()
        };
        (of(now) - of(before)).max(0.0)
    };
    let all = count(None);
    if all <= 0.0 {
        return None;
    }
    let buckets = buckets(now, before);
    Some(Traffic {
        success: count(Some("success")) / all,
        rps: all / time.as_secs_f64(),
        latency_ms: [0.5, 0.95, 0.99].map(|share| quantile(&buckets, share)),
    })
}

/// Cumulative counts by upper bound.
fn buckets(now: &[Sample], before: &[Sample]) -> Vec<(f64, f64)> {
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    for (samples, sign) in [(now, 1.0), (before, -1.0)] {
        let inbound = samples.iter().filter(|sample| {
            sample.family == "response_latency_ms_bucket" && sample.is_for_application()
        });
        for sample in inbound {
            let bound = sample.labels.get("le").cloned().unwrap_or_default();
            *counts.entry(bound).or_default() += sign * sample.value;
        }
    }
    let bound = |text: &str| match text {
        "+Inf" => Some(f64::INFINITY),
        number => number.parse().ok(),
    };
    let mut buckets: Vec<(f64, f64)> = counts
        .iter()
        .filter_map(|(text, count)| Some((bound(text)?, *count)))
        .collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    buckets
}

fn quantile(buckets: &[(f64, f64)], share: f64) -> f64 {
    let all = buckets.last().map_or(0.0, |(_, count)| *count);
    let found = buckets.iter().find(|(_, count)| *count >= all * share);
    found.map_or(f64::NAN, |(bound, _)| *bound)
}

impl Sample {
    /// Whether it is about requests to the application: probes of the proxy are counted, too.
    fn is_for_application(&self) -> bool {
        self.is("direction", "inbound") && !self.is("target_port", "4191")
    }

    fn is(&self, label: &str, value: &str) -> bool {
        self.labels.get(label).is_some_and(|is| is == value)
    }
}

/// `family{name="value",…} number`; anything else is None.
fn parse(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((family, rest)) = series.split_once('{') else {
        return (!series.starts_with('#')).then(|| Sample {
            family: series.to_owned(),
            labels: BTreeMap::new(),
            value,
        });
    };
    let mut rest = rest.strip_suffix('}')?;
    let mut labels = BTreeMap::new();
    while let Some((name, tail)) = rest.split_once("=\"") {
        let end = closing_quote(tail)?;
        let text = tail[..end].replace("\\\"", "\"").replace("\\\\", "\\");
        labels.insert(name.to_owned(), text);
        rest = tail[end + 1..].trim_start_matches(',');
    }
    Some(Sample {
        family: family.to_owned(),
        labels,
        value,
    })
}

/// Where a quoted text ends: at the first quote that is not escaped.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_exposition() {
        let labels = |sample: Option<Sample>| {
            sample.map(|sample| {
                (
                    sample.family,
                    sample.labels.into_iter().collect::<Vec<_>>(),
                    sample.value,
                )
            })
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for (line, expected) in [
            ("# HELP a b", None),
            ("a 1", Some(("a".to_owned(), vec![], 1.0))),
            (
                r#"a{b="c",d=""} 2"#,
                Some(("a".to_owned(), vec![pair("b", "c"), pair("d", "")], 2.0)),
            ),
            (
                r#"a{b="say \"x, y\"",d="e"} 3"#,
                Some((
                    "a".to_owned(),
                    vec![pair("b", r#"say "x, y""#), pair("d", "e")],
                    3.0,
                )),
            ),
            ("a{b=\"unclosed 4", None),
        ] {
            assert_eq!(labels(parse(line)), expected, "{line}");
        }
    }

    #[test]
    fn traffic_is_the_difference_of_two_scrapes() {
        let sample = |text: &str| parse(text).expect("a sample");
        let scrape = |good: u32, bad: u32, fast: u32, all: u32| {
            vec![
                sample(&format!(
                    r#"response_total{{direction="inbound",classification="success"}} {good}"#
                )),
                sample(&format!(
                    r#"response_total{{direction="inbound",classification="failure"}} {bad}"#
                )),
                sample(r#"response_total{direction="outbound",classification="success"} 9"#),
                sample(&format!(
                    r#"response_latency_ms_bucket{{direction="inbound",le="2"}} {fast}"#
                )),
                sample(&format!(
                    r#"response_latency_ms_bucket{{direction="inbound",le="10"}} {all}"#
                )),
                sample(&format!(
                    r#"response_latency_ms_bucket{{direction="inbound",le="+Inf"}} {all}"#
                )),
            ]
        };
        let ten = Duration::from_secs(10);
        let seen = traffic(&scrape(95, 25, 80, 120), &scrape(10, 10, 10, 20), ten);
        let expected = Traffic {
            success: 0.85,
            rps: 10.0,
            latency_ms: [2.0, 10.0, 10.0],
        };
        assert_eq!(seen, Some(expected));
        assert_eq!(traffic(&scrape(1, 0, 1, 1), &scrape(1, 0, 1, 1), ten), None);
    }
}
