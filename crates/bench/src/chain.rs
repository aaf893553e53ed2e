//! The pairs: how each proxy is configured and started on both sides of the stage.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use linkerd_testkit::ca::{Ca, Leaf};
use linkerd_testkit::netns::Process;

use crate::plan::{Load, Programs, Proxy};
use crate::stage::{INBOUND_PORT, OUTBOUND_PORT, Stage};

mod envoy;
mod haproxy;
mod linkerd;

/// The name in both certificates.
const SERVER_NAME: &str = "default.bench.serviceaccount.identity.linkerd.cluster.local";

/// A running pair; ended when dropped.
#[derive(Debug)]
pub(crate) struct Chain {
    processes: Vec<Process>,
    _control: Option<linkerd::Control>,
}

/// What pairs need that is made once.
#[derive(Debug)]
pub(crate) struct Props {
    ca: PathBuf,
    /// Certificate, chain and key in one file; the key alone beside it.
    leaf: PathBuf,
    key: PathBuf,
    pub(crate) programs: Programs,
}

impl Props {
    pub(crate) fn new(dir: &Path, programs: Programs) -> Result<Self> {
        let root = Ca::root("root.linkerd.cluster.local");
        let leaf = root.leaf(SERVER_NAME);
        let props = Self {
            ca: dir.join("ca.pem"),
            leaf: dir.join("leaf.pem"),
            key: dir.join("leaf.key"),
            programs,
        };
        let key = pem("PRIVATE KEY", leaf.key.secret_der());
        write(&props.ca, root.pem())?;
        write(&props.leaf, &(certificates(&leaf) + &key))?;
        write(&props.key, &key)?;
        Ok(props)
    }
}

impl Chain {
    /// Starts a pair for a load and waits until both sides listen.
    pub(crate) fn start(stage: &Stage, props: &Props, proxy: Proxy, load: Load) -> Result<Self> {
        let (outbound, inbound, control) = match proxy {
            Proxy::None => {
                return Ok(Self {
                    processes: Vec::new(),
                    _control: None,
                });
            }
            Proxy::Haproxy => {
                let (outbound, inbound) = haproxy::commands(stage, props, load)?;
                (outbound, inbound, None)
            }
            Proxy::Envoy => {
                let (outbound, inbound) = envoy::commands(stage, props, load)?;
                (outbound, inbound, None)
            }
            Proxy::Linkerd | Proxy::Before => {
                let programs = &props.programs;
                let program = match proxy {
                    Proxy::Before => &programs.before,
                    _ => &programs.linkerd,
                };
                let program = program
                    .as_deref()
                    .context("where the proxy is was not told")?;
                let (outbound, inbound, control) = linkerd::commands(stage, program, load)?;
                (outbound, inbound, Some(control))
            }
        };
        let mut processes = Vec::new();
        for (side, namespace, port, mut command) in [
            ("out", &stage.client, OUTBOUND_PORT, outbound),
            ("in", &stage.server, INBOUND_PORT, inbound),
        ] {
            let name = format!("{}-{side}", proxy.name());
            let mut process = stage.spawn(namespace, &name, &mut command)?;
            stage.wait_listening(namespace, port, &mut process, &name)?;
            processes.push(process);
        }
        Ok(Self {
            processes,
            _control: control,
        })
    }

    /// The outbound and the inbound process; none without proxies.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::id).collect()
    }

    /// The last lines of both logs, for a failure.
    pub(crate) fn logs(stage: &Stage, proxy: Proxy) -> String {
        ["out", "in"]
            .into_iter()
            .map(|side| {
                let text = std::fs::read_to_string(stage.log(&format!("{}-{side}", proxy.name())))
                    .unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                format!(
                    "--- {side}\n{}\n",
                    lines[lines.len().saturating_sub(8)..].join("\n")
                )
            })
            .collect()
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn certificates(leaf: &Leaf) -> String {
    leaf.chain
        .iter()
        .map(|certificate| pem("CERTIFICATE", certificate))
        .collect()
}

fn pem(kind: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!(
        "-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n",
        lines.join("\n")
    )
}
