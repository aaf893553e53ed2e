//! `linkerd inject`: reads manifests, prints them meshed, and reports on stderr.

use super::Output;
use crate::{
    chart::Chart,
    cluster::plain,
    context::Context,
    failure::{line, stop},
    install::{CONTROL_PLANE, created_by, defaults, flags::ProxyFlags, validate},
    manifest,
    transform::{self, annotations, inject, report, uninject},
    values::{lay_over, text},
};
use anyhow::{Context as _, Result, bail};
use linkerd_injector::Values;
use linkerd_k8s::labels::{
    CLOSE_WAIT_TIMEOUT, ENABLE_DEBUG_SIDECAR, NATIVE_SIDECAR_BETA, OPAQUE_PORTS,
    PROXY_WAIT_BEFORE_EXIT, REQUIRE_IDENTITY_ON_INBOUND_PORTS,
};
use serde_json::Value;
use std::time::Duration;

/// Add the proxy to Kubernetes manifests
///
/// Without --manual only annotations are added: the injector in the cluster does the rest when pods
/// are created. Injecting twice gives the same result.
///
/// Examples:
///   kubectl get deploy -o yaml | linkerd inject - | kubectl apply -f -
///   linkerd inject app.yaml | kubectl apply -f -
///   linkerd inject https://example.org/app.yaml --ingress
///   linkerd inject --manual folder/
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// A file, a folder, an https URL, or - for stdin
    #[arg(value_name = "CONFIG-FILE")]
    place: Option<String>,
    /// Write the proxy itself into the manifests instead of asking the injector for it
    #[arg(long)]
    manual: bool,
    /// Use this CLI's own defaults instead of the cluster's configuration
    #[arg(long)]
    ignore_cluster: bool,
    /// Add a container with network tools
    #[arg(long)]
    enable_debug_sidecar: bool,
    /// How long connections stay in CLOSE_WAIT
    #[arg(long, value_name = "DURATION")]
    close_wait_timeout: Option<String>,
    #[command(flatten)]
    output: Output,
    /// Run the proxy as a native sidecar
    #[arg(long)]
    native_sidecar: bool,
    /// How long the proxy waits before it stops
    #[arg(long, value_name = "SECONDS")]
    wait_before_exit_seconds: Option<u64>,
    /// Ports on which only meshed clients are let in
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    require_identity_on_inbound_ports: Vec<String>,
    /// The workload is an ingress: route by the request instead of its address
    #[arg(long)]
    ingress: bool,
    /// Ports, ranges and names of ports that are not to be looked into [default: 25,587,3306,4444,5432,6379,9300,11211]
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    opaque_ports: Option<Vec<String>>,
    #[arg(long, hide = true)]
    disable_identity: bool,
    #[command(flatten)]
    proxy: ProxyFlags,
}

pub async fn run(context: &mut Context<'_>, args: Args) -> Result<()> {
    let Some(place) = &args.place else {
        bail!("please specify a kubernetes resource file");
    };
    if args.disable_identity {
        bail!("--disable-identity is no longer supported: every meshed pod has an identity");
    }
    let format = args.output.parse()?;
    for notice in args.proxy.deprecations() {
        context.printer.err(notice);
    }
    for entry in args.opaque_ports.iter().flatten() {
        // `--opaque-ports=` is a list too: none at all, not even the usual ones.
        if !entry.is_empty() {
            validate::opaque_port(entry)?;
        }
    }
    for entry in &args.require_identity_on_inbound_ports {
        validate::port_range(entry)?;
    }
    let settings = settings(context, &args).await?;
    let mut documents = manifest::read(place).await?;
    let (mut entries, mut errors) = (Vec::new(), Vec::new());
    for document in &mut documents {
        transform::each(document, |object| {
            let cleaned = uninject::object(object);
            match inject::object(&settings, object) {
                Ok((entry, changed)) => {
                    entries.push(entry);
                    cleaned | changed
                }
                Err(error) => {
                    errors.push(error);
                    false
                }
            }
        });
    }
    if !errors.is_empty() {
        return Err(stop(format!(
            "Error transforming resources:\n{}",
            errors.join("\n")
        )));
    }
    manifest::print(context.printer, &documents, format)?;
    report::inject(context.printer, &entries, context.global.verbose);
    Ok(())
}

async fn settings(context: &Context<'_>, args: &Args) -> Result<inject::Settings> {
    let mut base = defaults(&Chart::named(CONTROL_PLANE)?)?;
    let mut anchors = String::new();
    if !args.ignore_cluster {
        let (values, external) = cluster_values(context).await?;
        lay_over(&mut base, values);
        anchors = external;
    }
    let mut flagged = base.clone();
    args.proxy.apply(&mut flagged);
    validate::values(&flagged)?;
    let mut annotations = annotations::of_flags(&base, &flagged);
    let mut add = |key: &str, value: String| annotations.insert(key.to_owned(), value);
    if args.enable_debug_sidecar {
        add(ENABLE_DEBUG_SIDECAR, "true".to_owned());
    }
    if let Some(timeout) = &args.close_wait_timeout {
        linkerd_core::duration::parse(timeout).context("--close-wait-timeout")?;
        add(CLOSE_WAIT_TIMEOUT, timeout.clone());
    }
    if args.native_sidecar {
        add(NATIVE_SIDECAR_BETA, "true".to_owned());
    }
    if let Some(seconds) = args.wait_before_exit_seconds {
        add(PROXY_WAIT_BEFORE_EXIT, seconds.to_string());
    }
    if !args.require_identity_on_inbound_ports.is_empty() {
        let ports = args.require_identity_on_inbound_ports.join(",");
        add(REQUIRE_IDENTITY_ON_INBOUND_PORTS, ports);
    }
    if let Some(ports) = &args.opaque_ports {
        add(OPAQUE_PORTS, ports.join(","));
    }
    if anchors.is_empty() {
        anchors = text(&flagged, "identityTrustAnchorsPEM").to_owned();
    }
    Ok(inject::Settings {
        values: Values::from_value(flagged).context("the control plane's values")?,
        annotations,
        ingress: args.ingress,
        manual: args.manual,
        control_plane_ns: context.namespace().to_owned(),
        created_by: created_by(),
        trust_anchors: anchors,
    })
}

/// The control plane's values, and the trust anchors as pods get them.
async fn cluster_values(context: &Context<'_>) -> Result<(Value, String)> {
    const NEXT: &str = "Validate the install with: 'linkerd check'";
    let namespace = context.namespace();
    let unreachable = |error: anyhow::Error| {
        stop(format!(
            "Cannot connect to Kubernetes: {}\n{NEXT}",
            line(&error)
        ))
    };
    let cluster = context
        .cluster(Some(Duration::from_secs(30)))
        .await
        .map_err(unreachable)?;
    let values = cluster.values(namespace).await.map_err(unreachable)?;
    let Some(values) = values else {
        return Err(stop(format!(
            "Cannot find Linkerd: ConfigMap {namespace}/linkerd-config does not exist\n{NEXT}"
        )));
    };
    let roots = cluster
        .config_map(namespace, "linkerd-identity-trust-roots")
        .await;
    let roots = roots.map_err(plain).map_err(unreachable)?;
    let anchors = roots.and_then(|roots| roots.data?.remove("ca-bundle.crt"));
    Ok((values, anchors.unwrap_or_default()))
}
