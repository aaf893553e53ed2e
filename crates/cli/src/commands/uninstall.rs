//! `linkerd uninstall`: prints the objects whose deletion removes the control plane.

use super::{Output, prune::print};
use crate::{
    cluster::plain,
    context::Context,
    failure::stop,
    inventory::{self, CLUSTER_SCOPED},
};
use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use linkerd_k8s::labels::{CONTROL_PLANE_NS, EXTENSION};
use std::collections::BTreeSet;

/// Print the objects to delete to remove the control plane
///
/// Stops when extensions are installed or pods are still meshed.
///
/// Examples:
///   linkerd uninstall | kubectl delete -f -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Print them although extensions or meshed pods exist
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let format = args.output.parse()?;
    let cluster = context.cluster(None).await?;
    let control_plane = context.namespace().to_owned();
    if !args.force {
        let namespaces: Api<Namespace> = Api::all(cluster.client());
        let extensions = namespaces
            .list(&ListParams::default().labels(EXTENSION))
            .await
            .map_err(plain)?;
        let names: BTreeSet<&str> = extensions
            .iter()
            .filter_map(|namespace| namespace.labels().get(EXTENSION).map(String::as_str))
            .collect();
        if !names.is_empty() {
            return Err(stop(format!(
                "Please uninstall the following extensions before uninstalling the control-plane:\n\t* {}\n\
                 or use --force to uninstall the control-plane anyway",
                names.into_iter().collect::<Vec<_>>().join("\n\t* ")
            )));
        }
        let selector = format!("{CONTROL_PLANE_NS}={control_plane}");
        let pods: Api<Pod> = Api::all(cluster.client());
        let pods = pods
            .list_metadata(&ListParams::default().labels(&selector))
            .await
            .map_err(plain)?;
        let mut meshed: Vec<String> = pods
            .iter()
            .filter(|pod| pod.namespace().as_deref() != Some(control_plane.as_str()))
            .map(|pod| pod.name_any())
            .collect();
        meshed.sort();
        if !meshed.is_empty() {
            return Err(stop(format!(
                "Please uninject the following resources before uninstalling the control-plane:\n\t* {}\n\
                 or use --force to uninstall the control-plane anyway",
                meshed.join("\n\t* ")
            )));
        }
    }
    let found = inventory::list(&cluster, &CLUSTER_SCOPED, &control_plane).await;
    if found.is_empty() {
        context.printer.err("No resources found to uninstall");
        return Ok(());
    }
    print(context.printer, &found, format)
}
