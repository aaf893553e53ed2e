//! `linkerd status`: versions, expiry dates, and pods that want a restart.

use crate::{
    check::identity,
    cluster::plain,
    context::Context,
    status::{self, Seen},
};
use anyhow::{Result, bail};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Pod},
    },
};
use kube::{Api, ResourceExt, api::ListParams};
use linkerd_k8s::labels::CONTROL_PLANE_COMPONENT;
use linkerd_runtime::version::VERSION;
use linkerd_tls::certificates_from_pem;
use std::time::{Duration, SystemTime};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Print the state of the mesh at a glance
///
/// Versions, how long certificates last, pods that should have a proxy and have none, proxies of
/// another version, and what to type about it. `linkerd check` looks deeper.
///
/// Examples:
///   linkerd status
///   linkerd status -n emojivoto
///   linkerd status -o json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Namespace of the proxies [default: all]
    #[arg(short, long)]
    namespace: Option<String>,
    /// How to print the state: table or json
    #[arg(short, long, default_value = "table", value_name = "FORMAT")]
    output: String,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    if !["table", "json"].contains(&args.output.as_str()) {
        bail!("--output supports table and json");
    }
    let cluster = context.cluster(Some(TIMEOUT)).await?;
    let control_plane = context.namespace().to_owned();
    let client = cluster.client();
    let values = cluster.values(&control_plane).await?;
    let version = values
        .as_ref()
        .and_then(|values| Some(values.get("linkerdVersion")?.as_str()?.to_owned()));
    let everything = ListParams::default();
    let components = ListParams::default().labels(CONTROL_PLANE_COMPONENT);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &control_plane);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let pods: Api<Pod> = namespaced(&client, args.namespace.as_deref());
    let (deployments, namespaces, pods, issuer, roots) = tokio::try_join!(
        deployments.list(&components),
        namespaces.list(&everything),
        pods.list(&everything),
        cluster.secret(&control_plane, identity::ISSUER),
        cluster.config_map(&control_plane, identity::TRUST_ROOTS),
    )
    .map_err(plain)?;
    let mut certificates = Vec::new();
    let bundle = roots.and_then(|map| map.data?.remove("ca-bundle.crt"));
    for anchor in certificates_from_pem(bundle.unwrap_or_default().as_bytes()).unwrap_or_default() {
        certificates.push(("trust anchor".to_owned(), anchor));
    }
    let issuer = issuer.and_then(|secret| {
        let mut data = secret.data?;
        data.remove("crt.pem").or_else(|| data.remove("tls.crt"))
    });
    if let Some(pem) = issuer
        && let Some(issuer) = certificates_from_pem(&pem.0)
            .unwrap_or_default()
            .into_iter()
            .next()
    {
        certificates.push(("issuer".to_owned(), issuer));
    }
    let mut deployments = deployments.items;
    deployments.sort_by_key(ResourceExt::name_any);
    let seen = Seen {
        cli_version: VERSION.to_owned(),
        control_plane,
        control_plane_version: version,
        deployments,
        certificates,
        namespaces: namespaces.items,
        pods: pods.items,
    };
    let report = status::report(&seen, SystemTime::now());
    if args.output == "json" {
        context
            .printer
            .out(serde_json::to_string_pretty(&report.json)?)?;
        return Ok(());
    }
    for (mark, text) in report.lines() {
        let mark = mark.map(|mark| format!("{} ", context.printer.mark(mark)));
        context
            .printer
            .out(format_args!("{}{text}", mark.unwrap_or_default()))?;
    }
    Ok(())
}

fn namespaced<K>(client: &kube::Client, namespace: Option<&str>) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace.filter(|name| !name.is_empty()) {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
