//! `linkerd version`: what runs here, in the control plane and beside the applications.

use crate::{cluster::Cluster, context::Context};
use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use linkerd_k8s::labels::CONTROL_PLANE_NS;
use linkerd_runtime::version::VERSION;
use std::{collections::BTreeMap, time::Duration};

const TIMEOUT: Duration = Duration::from_secs(5);
const UNAVAILABLE: &str = "unavailable";

/// Print the versions of the CLI, the control plane and the proxies
///
/// Examples:
///   linkerd version
///   linkerd version --client --short
///   linkerd version --proxy -n emojivoto
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Print only version numbers, one per line
    #[arg(long)]
    short: bool,
    /// Print only the version of this CLI; no cluster is asked
    #[arg(long)]
    client: bool,
    /// Print the versions of the proxies too
    #[arg(long)]
    proxy: bool,
    /// Namespace of the proxies [default: all]
    #[arg(short, long)]
    namespace: Option<String>,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    if args.short {
        context.printer.out(VERSION)?;
    } else {
        context
            .printer
            .out(format_args!("Client version: {VERSION}"))?;
    }
    if args.client {
        return Ok(());
    }
    let cluster = context.cluster(Some(TIMEOUT)).await?;
    let asked = tokio::time::timeout(TIMEOUT, server(&cluster, context.namespace())).await;
    let server = asked.ok().flatten();
    let server = server.as_deref().unwrap_or(UNAVAILABLE);
    if args.short {
        context.printer.out(server)?;
    } else {
        context
            .printer
            .out(format_args!("Server version: {server}"))?;
    }
    if !args.proxy {
        return Ok(());
    }
    let asked = proxies(&cluster, context.namespace(), args.namespace.as_deref());
    let versions = tokio::time::timeout(TIMEOUT, asked).await;
    let versions = versions.ok().and_then(Result::ok).unwrap_or_default();
    if versions.is_empty() {
        context.printer.out(if args.short {
            UNAVAILABLE
        } else {
            "Proxy versions: unavailable"
        })?;
        return Ok(());
    }
    if !args.short {
        context.printer.out("Proxy versions:")?;
    }
    for (version, pods) in versions {
        if args.short {
            context.printer.out(version)?;
        } else {
            context
                .printer
                .out(format_args!("\t{version} ({pods} pods)"))?;
        }
    }
    Ok(())
}

async fn server(cluster: &Cluster, namespace: &str) -> Option<String> {
    let values = cluster.values(namespace).await.ok()??;
    Some(values.get("linkerdVersion")?.as_str()?.to_owned())
}

/// How many pods run which version of the proxy.
async fn proxies(
    cluster: &Cluster,
    control_plane: &str,
    namespace: Option<&str>,
) -> Result<BTreeMap<String, usize>> {
    let api: Api<Pod> = match namespace {
        Some(namespace) => Api::namespaced(cluster.client(), namespace),
        None => Api::all(cluster.client()),
    };
    let selector = format!("{CONTROL_PLANE_NS}={control_plane}");
    let pods = api.list(&ListParams::default().labels(&selector)).await?;
    let mut versions = BTreeMap::new();
    for pod in pods {
        if let Some(version) = proxy_version(&pod) {
            *versions.entry(version).or_default() += 1;
        }
    }
    Ok(versions)
}

/// The tag of the proxy's image, wherever the container stands.
fn proxy_version(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let image = containers
        .into_iter()
        .find(|container| container.name == "linkerd-proxy")?
        .image
        .as_deref()?;
    let name = image.rsplit('/').next()?;
    if name.contains('@') {
        return Some(String::new());
    }
    Some(name.split_once(':').map_or("", |(_, tag)| tag).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions_are_image_tags() {
        for (name, spec, expected) in [
            (
                "sidecar",
                json!({"containers": [{"name": "app"}, {"name": "linkerd-proxy", "image": "r:5000/proxy:edge-1"}]}),
                Some("edge-1"),
            ),
            (
                "native",
                json!({"containers": [], "initContainers": [{"name": "linkerd-proxy", "image": "proxy:2"}]}),
                Some("2"),
            ),
            (
                "digest",
                json!({"containers": [{"name": "linkerd-proxy", "image": "r/proxy@sha256:00"}]}),
                Some(""),
            ),
            ("none", json!({"containers": [{"name": "app"}]}), None),
        ] {
            let pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("pod");
            assert_eq!(proxy_version(&pod).as_deref(), expected, "{name}");
        }
    }
}
