//! `linkerd upgrade`: prints the manifests of this version with the values the install was made
//! with.

use super::{Format, Output, install::crd_objects};
use crate::{
    chart::Chart,
    cluster::{Cluster, plain},
    context::Context,
    failure::{ExitStatus, line, stop},
    install::{
        CONTROL_PLANE, Objects, defaults, ensure_issuer,
        flags::{ControlPlaneFlags, ProxyFlags},
        preflight, stored, stored_in, validate, warn_unknown,
    },
    manifest,
    printer::Mark,
    trust,
    values::{Overrides, get, lay_over, text},
};
use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use linkerd_k8s::labels::CONTROL_PLANE_NS;
use linkerd_tls::{Issuer, TrustAnchors};
use serde_json::Value;
use std::time::SystemTime;

/// Print the manifests that upgrade an installed control plane
///
/// Starts from the values stored by the last `linkerd install` or `upgrade`; flags given now are
/// stored too. Proxies keep running until their pods are restarted.
///
/// Examples:
///   linkerd upgrade --crds | kubectl apply -f -
///   linkerd upgrade | kubectl apply -f -
///   linkerd prune | kubectl delete -f -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Print the custom resource definitions instead of the control plane
    #[arg(long)]
    crds: bool,
    /// Read the stored values from manifests (file, folder, https URL or -) instead of the cluster
    #[arg(long, value_name = "PLACE")]
    from_manifests: Option<String>,
    /// Do not check that running proxies trust the issuer
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    control_plane: ControlPlaneFlags,
    #[command(flatten)]
    proxy: ProxyFlags,
    #[command(flatten)]
    overrides: Overrides,
}

pub async fn run(context: &mut Context<'_>, args: Args) -> Result<()> {
    let format = args.output.parse()?;
    for notice in args.proxy.deprecations() {
        context.printer.err(notice);
    }
    let cluster = match &args.from_manifests {
        Some(_) => None,
        None => Some(context.cluster(None).await?),
    };
    if args.crds {
        let objects = crd_objects(context, &args.overrides, cluster.as_ref()).await?;
        return objects.print(context.printer, format);
    }
    let rendered = control_plane(context, &args, cluster.as_ref(), format).await;
    if args.control_plane.identity_trust_anchors_file.is_some() && rendered.is_ok() {
        let mark = context.printer.mark(Mark::Warning);
        context.printer.err(format_args!(
            "\n{mark} The trust anchors change: proxies follow within a minute, those of other builds once restarted.\n  \
             See https://linkerd.io/2/tasks/manually-rotating-control-plane-tls-credentials/ for the steps\n"
        ));
    }
    match rendered {
        Err(error) if error.downcast_ref::<crate::failure::Stop>().is_none() => {
            let mark = context.printer.mark(Mark::Failure);
            context.printer.err(format_args!(
                "{mark} Could not render upgrade configuration: {}",
                line(&error)
            ));
            context.printer.err(
                "For troubleshooting help, visit: https://linkerd.io/upgrade/#troubleshooting\n",
            );
            Err(ExitStatus(1).into())
        }
        other => other,
    }
}

async fn control_plane(
    context: &mut Context<'_>,
    args: &Args,
    cluster: Option<&Cluster>,
    format: Format,
) -> Result<()> {
    let namespace = context.namespace().to_owned();
    if let Some(cluster) = cluster {
        let missing = preflight::missing_crds(cluster, &namespace).await?;
        if !missing.is_empty() {
            return Err(stop(format!(
                "Linkerd CRDs must be installed first. Run linkerd upgrade with the --crds flag:\n{}",
                missing.join("\n")
            )));
        }
    }
    let chart = Chart::named(CONTROL_PLANE)?;
    let mut values = defaults(&chart)?;
    let old = match (&args.from_manifests, cluster) {
        (Some(place), _) => stored_in(&manifest::read(place).await?, &namespace)?,
        (None, Some(cluster)) => stored(cluster, &namespace).await?,
        (None, None) => bail!("neither manifests nor a cluster to read the stored values from"),
    };
    lay_over(&mut values, old);
    let files = &args.control_plane;
    if text(&values, "identity.issuer.scheme") == "kubernetes.io/tls"
        && (files.identity_issuer_certificate_file.is_some()
            || files.identity_issuer_key_file.is_some())
    {
        bail!(
            "cannot update issuer certificates if you are using external cert management solution"
        );
    }
    args.control_plane.apply(&chart, &mut values)?;
    args.proxy.apply(&mut values);
    let given = args.overrides.read().await?;
    warn_unknown(context.printer, &defaults(&chart)?, &given);
    if let Some(cluster) = cluster
        && given.get("identityTrustAnchorsPEM").is_none()
        && files.identity_trust_anchors_file.is_none()
        && let Some(warning) = anchors_moved(cluster, &values, &namespace).await?
    {
        let mark = context.printer.mark(Mark::Warning);
        context.printer.err(format_args!("{mark} {warning}\n"));
    }
    lay_over(&mut values, given);
    validate::values(&values)?;
    ensure_issuer(&mut values, &namespace)?;
    validate::issuer(&values, &namespace)?;
    if let Some(cluster) = cluster {
        if !args.force {
            trusted_by_proxies(cluster, &values, &namespace).await?;
        }
        preflight::docker_runtime(cluster, &values).await?;
    }
    Objects::control_plane(&values, &namespace)?.print(context.printer, format)
}

/// Says when an external issuer has other anchors by now than those the control plane was installed
/// with. They stay, for they may be a bundle of both that someone made for a rotation.
async fn anchors_moved(
    cluster: &Cluster,
    values: &Value,
    namespace: &str,
) -> Result<Option<String>> {
    let external_ca = get(values, "identity.externalCA") == &Value::Bool(true);
    if text(values, "identity.issuer.scheme") != "kubernetes.io/tls" || external_ca {
        return Ok(None);
    }
    let name = "linkerd-identity-issuer";
    let secret = cluster.secret(namespace, name).await.map_err(plain)?;
    let anchors = secret.and_then(|secret| secret.data?.remove("ca.crt"));
    let stored = text(values, "identityTrustAnchorsPEM");
    let differs = |anchors: &[u8]| anchors.trim_ascii() != stored.trim().as_bytes();
    let moved = anchors.is_some_and(|anchors| differs(&anchors.0));
    Ok(moved.then(|| format!(
        "ca.crt of Secret {namespace}/{name} is not what the control plane was installed with; the old trust anchors stay.\n  \
         Give the new bundle with --identity-trust-anchors-file to change them"
    )))
}

/// Every running proxy must believe the issuer, or it loses its peers.
async fn trusted_by_proxies(cluster: &Cluster, values: &Value, namespace: &str) -> Result<()> {
    if text(values, "identity.issuer.scheme") != "linkerd.io/tls" {
        return Ok(());
    }
    let issuer = Issuer::from_pem(
        (
            "identity.issuer.tls.crtPEM",
            text(values, "identity.issuer.tls.crtPEM").as_bytes(),
        ),
        (
            "identity.issuer.tls.keyPEM",
            text(values, "identity.issuer.tls.keyPEM").as_bytes(),
        ),
    )?;
    let pods: Api<Pod> = Api::all(cluster.client());
    let selector = format!("{CONTROL_PLANE_NS}={namespace}");
    let pods = pods
        .list(&ListParams::default().labels(&selector))
        .await
        .map_err(plain)?;
    let now = SystemTime::now();
    let believes = |anchors: &TrustAnchors| issuer.verify(anchors, "probe", now).is_ok();
    let doubters = trust::doubters(&cluster.client(), pods.items, namespace, believes).await;
    let doubters: Vec<String> = doubters
        .into_iter()
        .map(|pod| {
            format!(
                "* {}/{}",
                pod.namespace().unwrap_or_default(),
                pod.name_any()
            )
        })
        .collect();
    if !doubters.is_empty() {
        bail!(
            "You are attempting to use an issuer certificate which does not validate against the trust anchors of the following pods:\n\t{}\n\
             These pods do not have the current trust bundle and must be restarted. Use the --force flag to proceed anyway (this will likely prevent those pods from sending or receiving traffic).",
            doubters.join("\n\t")
        );
    }
    Ok(())
}
