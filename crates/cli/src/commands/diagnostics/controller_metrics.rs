//! `linkerd diagnostics controller-metrics`: what the control plane measures.

use crate::{cluster::plain, context::Context, failure::line, forward};
use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use std::time::Duration;
use tokio::time::timeout;

/// Print the metrics of the control plane
///
/// Examples:
///   linkerd diagnostics controller-metrics
///   linkerd diagnostics controller-metrics --wait 5s
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// How long to wait for all metrics
    #[arg(short, long, default_value = "30s", value_name = "DURATION", value_parser = linkerd_core::duration::parse)]
    wait: Duration,
}

/// A place to scrape.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    pod: String,
    container: String,
    port: u16,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let cluster = context.cluster(None).await?;
    let namespace = context.namespace();
    let client = cluster.client();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default()).await.map_err(plain)?;
    let sources = sources(&pods.items);
    if sources.is_empty() {
        bail!(
            "no pods with an admin port found in namespace {namespace}; is the control plane \
             installed? Try: linkerd check"
        );
    }
    let scrapes = sources.iter().map(|source| {
        let asked = forward::get(&client, namespace, &source.pod, source.port, "/metrics");
        async {
            let scraped = timeout(args.wait, asked).await;
            scraped.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {:?}", args.wait)))
        }
    });
    let scrapes = futures::future::join_all(scrapes).await;
    let count = sources.len();
    for (at, (source, scraped)) in sources.iter().zip(scrapes).enumerate() {
        let Source { pod, container, .. } = source;
        let head = format!(
            "#\n# POD {pod} ({} of {count})\n# CONTAINER {container} \n#\n",
            at + 1
        );
        context.printer.text(&head)?;
        match scraped {
            Ok(metrics) => context.printer.text(&metrics)?,
            Err(error) => context
                .printer
                .out(format_args!("# ERROR {}", line(&error)))?,
        }
    }
    Ok(())
}

/// Every port whose name ends in `-admin`, by pod and container.
fn sources(pods: &[Pod]) -> Vec<Source> {
    let mut found = Vec::new();
    for pod in pods {
        let Some(spec) = &pod.spec else { continue };
        let containers = spec.containers.iter();
        for container in containers.chain(spec.init_containers.iter().flatten()) {
            for port in container.ports.iter().flatten() {
                let is_admin = port
                    .name
                    .as_deref()
                    .is_some_and(|name| name.ends_with("-admin"));
                if let Ok(number) = u16::try_from(port.container_port)
                    && is_admin
                {
                    found.push(Source {
                        pod: pod.name_any(),
                        container: container.name.clone(),
                        port: number,
                    });
                }
            }
        }
    }
    found.sort_by(|a, b| (&a.pod, &a.container, a.port).cmp(&(&b.pod, &b.container, b.port)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn admin_ports_are_found() {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {
                "containers": [
                    {"name": "identity", "ports": [
                        {"name": "ident-grpc", "containerPort": 8080},
                        {"name": "ident-admin", "containerPort": 9990},
                    ]},
                ],
                "initContainers": [
                    {"name": "linkerd-proxy", "ports": [{"name": "linkerd-admin", "containerPort": 4191}]},
                ],
            },
        }));
        let pod = [pod.expect("a pod")];
        let names: Vec<_> = sources(&pod)
            .into_iter()
            .map(|s| (s.container, s.port))
            .collect();
        assert_eq!(
            names,
            [
                ("identity".to_owned(), 9990),
                ("linkerd-proxy".to_owned(), 4191)
            ]
        );
    }
}
