//! `linkerd diagnostics proxy-metrics`: what the proxies of a workload measure.

use crate::{
    context::Context,
    failure::line,
    forward,
    workload::{self, Workload, container_port},
};
use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use sha2::{Digest as _, Sha256};
use std::{fmt::Write as _, time::Duration};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

/// Labels that tell who talks to whom.
const SECRET: [&str; 6] = [
    "authority",
    "client_id",
    "server_id",
    "target_addr",
    "dst_service",
    "dst_namespace",
];

/// Print the metrics of a workload's proxies
///
/// Examples:
///   linkerd diagnostics proxy-metrics -n emojivoto po/web-5f86686c4d-58p7k
///   linkerd diagnostics proxy-metrics -n emojivoto deploy/web --obfuscate
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// TYPE/NAME, such as deploy/web
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// Namespace of the resource [default: the kubeconfig's]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Print digests instead of names of clients and servers
    #[arg(long)]
    obfuscate: bool,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let workload = Workload::parse_named(&args.resource)?;
    let cluster = context.cluster(None).await?;
    let namespace = args.namespace.as_deref().filter(|name| !name.is_empty());
    let namespace = namespace.unwrap_or_else(|| cluster.default_namespace());
    let client = cluster.client();
    let pods = workload::pods(&client, namespace, &workload).await?;
    if pods.is_empty() {
        bail!("no pods found for {workload} in namespace {namespace}");
    }
    let scrapes = pods.iter().map(|pod| async {
        let scraped = timeout(PATIENCE, scrape(&client, pod)).await;
        scraped.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {PATIENCE:?}")))
    });
    let scrapes = futures::future::join_all(scrapes).await;
    let count = pods.len();
    for (at, (pod, scraped)) in pods.iter().zip(scrapes).enumerate() {
        let name = pod.name_any();
        let head = format!("#\n# POD {name} ({} of {count})\n#\n", at + 1);
        let body = match scraped {
            Ok(metrics) if args.obfuscate => obfuscate(&metrics),
            Ok(metrics) => metrics,
            Err(error) => format!("# ERROR: {}\n", line(&error)),
        };
        context.printer.text(&head)?;
        context.printer.text(&body)?;
    }
    Ok(())
}

async fn scrape(client: &Client, pod: &Pod) -> Result<String> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let Some(port) = container_port(pod, "linkerd-proxy", "linkerd-admin") else {
        bail!("pod {namespace}/{name} has no container linkerd-proxy with a port linkerd-admin");
    };
    forward::get(client, &namespace, &name, port, "/metrics").await
}

/// The metrics with digests in place of names that tell who talks to whom.
fn obfuscate(metrics: &str) -> String {
    let mut out = String::with_capacity(metrics.len());
    for line in metrics.lines() {
        match line.find('{').filter(|_| !line.starts_with('#')) {
            Some(open) => {
                out += &line[..=open];
                labels(&line[open + 1..], &mut out);
            }
            None => out += line,
        }
        out.push('\n');
    }
    out
}

/// Copies `a="b",c="d"} 1`, with digests for the values of secret labels.
fn labels(mut rest: &str, out: &mut String) {
    while let Some(equals) = rest.find("=\"") {
        let (key, value) = (&rest[..equals], &rest[equals + 2..]);
        let Some(end) = closing_quote(value) else {
            break;
        };
        out.push_str(key);
        out.push_str("=\"");
        if SECRET.contains(&key.trim_start_matches([',', ' '])) {
            let digest = Sha256::digest(&value.as_bytes()[..end]);
            for byte in &digest[..4] {
                let _ = write!(out, "{byte:02x}");
            }
        } else {
            out.push_str(&value[..end]);
        }
        out.push('"');
        rest = &value[end + 1..];
        if rest.starts_with('}') {
            break;
        }
    }
    out.push_str(rest);
}

fn closing_quote(value: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in value.char_indices() {
        match c {
            '"' if !escaped => return Some(at),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_digests() {
        // sha256("web") begins with 6fb8d4ae… as any tool prints it.
        let digest = |text: &str| {
            let digest = Sha256::digest(text.as_bytes());
            digest[..4]
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<String>()
        };
        let metrics = "# HELP x {authority=\"web\"}\n\
                       x{direction=\"in\",authority=\"web\",note=\"a\\\"b,c=\\\"d\"} 1\n\
                       y 2\n\
                       z{server_id=\"a.b\"} 3";
        assert_eq!(
            obfuscate(metrics),
            format!(
                "# HELP x {{authority=\"web\"}}\n\
                 x{{direction=\"in\",authority=\"{}\",note=\"a\\\"b,c=\\\"d\"}} 1\n\
                 y 2\n\
                 z{{server_id=\"{}\"}} 3\n",
                digest("web"),
                digest("a.b")
            )
        );
    }
}
