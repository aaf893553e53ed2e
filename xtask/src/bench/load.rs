//! The client of the measurements of the whole mesh: a deployment beside the sample application
//! that asks its page at a steady rate and tells what came of it.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::images;
use crate::mesh::{Mesh, SAMPLE};

/// A path of the page, asked for at a rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) path: &'static str,
    pub(super) rate: u32,
    pub(super) meshed: bool,
}

/// What came of the requests since the last time.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) sent: u64,
    pub(super) failed: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// How often by what failed.
    pub(super) failures: Value,
}

impl Load {
    /// Starts it, in place of the one before.
    pub(super) fn start(self, mesh: &Mesh) -> Result<()> {
        let inject = if self.meshed { "enabled" } else { "disabled" };
        let url = format!("http://web-svc.{SAMPLE}{}", self.path);
        let container = json!({
            "name": "load",
            "image": format!("{}/emojivoto:{}", images::REGISTRY, images::version()),
            "args": ["load", url, "--rate", self.rate.to_string()],
            // One that is starved measures that.
            "resources": {"requests": {"cpu": "100m"}},
        });
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "load", "namespace": SAMPLE},
            "spec": {
                "selector": {"matchLabels": {"app": "load"}},
                "template": {
                    "metadata": {
                        "labels": {"app": "load"},
                        "annotations": {"linkerd.io/inject": inject},
                    },
                    "spec": {"containers": [container]},
                },
            },
        });
        mesh.apply_text(&deployment.to_string())?;
        mesh.wait(SAMPLE)
    }
}

impl Answers {
    pub(super) fn since_last(mesh: &Mesh) -> Result<Self> {
        let list = mesh.raw(&format!(
            "/api/v1/namespaces/{SAMPLE}/pods?labelSelector=app%3Dload"
        ))?;
        let list: Value = serde_json::from_str(&list)?;
        let pod = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .and_then(|pod| pod["metadata"]["name"].as_str())
            .context("no pod makes load")?;
        let path = format!("/api/v1/namespaces/{SAMPLE}/pods/{pod}:8090/proxy/report");
        let told: Value = serde_json::from_str(&mesh.raw(&path)?)?;
        let count = |key: &str| told[key].as_u64().unwrap_or_default();
        let millis = |key: &str| told[key].as_f64().unwrap_or(f64::NAN) / 1e3;
        Ok(Self {
            sent: count("sent"),
            failed: count("failed"),
            p50_ms: millis("p50_us"),
            p99_ms: millis("p99_us"),
            max_ms: millis("max_us"),
            failures: told["failures"].clone(),
        })
    }
}
