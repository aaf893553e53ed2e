//! `linkerd install`: prints the manifests of the CRDs or of the control plane.

use super::{Format, Output};
use crate::{
    chart::Chart,
    cluster::{CONFIG_MAP, Cluster, plain},
    context::Context,
    failure::{line, stop},
    install::{
        CONTROL_PLANE, CRDS, Objects, defaults, ensure_issuer,
        flags::{ControlPlaneFlags, InstallFlags, ProxyFlags},
        gateway, preflight, validate, warn_unknown,
    },
    values::{Overrides, get, lay_over, put, text},
};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::time::Duration;

pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// Print the manifests that install the mesh
///
/// The definitions of custom resources come first, then the control plane. Certificates are made
/// when none are given; they are valid for a year.
///
/// Examples:
///   linkerd install --crds --set installGatewayAPI=true | kubectl apply -f -
///   linkerd install | kubectl apply -f -
///   linkerd install --ha --set proxy.logLevel=debug | kubectl apply -f -
///   linkerd install --ignore-cluster -f values.yaml > linkerd.yaml
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Print the custom resource definitions instead of the control plane
    #[arg(long)]
    crds: bool,
    /// Ask no cluster: neither whether this install fits it nor for its ports
    #[arg(long)]
    ignore_cluster: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    install: InstallFlags,
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
    let cluster = if args.ignore_cluster {
        None
    } else {
        Some(connect(context).await?)
    };
    if args.crds {
        return crds(context, &args.overrides, cluster.as_ref(), format).await;
    }
    let namespace = context.namespace().to_owned();
    if let Some(cluster) = &cluster {
        if !preflight::missing_crds(cluster, &namespace)
            .await?
            .is_empty()
        {
            return Err(stop(
                "Linkerd CRDs must be installed first. Run linkerd install with the --crds flag.",
            ));
        }
        not_installed(cluster, &namespace).await?;
    }
    let values = values(context, &args, cluster.as_ref()).await?;
    Objects::control_plane(&values, &namespace)?.print(context.printer, format)
}

/// A cluster whose API answers.
async fn connect(context: &Context<'_>) -> Result<Cluster> {
    let connected = async {
        let cluster = context.cluster(Some(TIMEOUT)).await?;
        cluster.version().await.map_err(plain)?;
        Ok::<_, anyhow::Error>(cluster)
    };
    connected.await.map_err(|error| {
        stop(format!(
            "Unable to connect to the Kubernetes cluster:\n\n  {}\n\n\
             To print the manifests without a cluster, use --ignore-cluster",
            line(&error)
        ))
    })
}

async fn not_installed(cluster: &Cluster, namespace: &str) -> Result<()> {
    if cluster
        .config_map(namespace, CONFIG_MAP)
        .await
        .map_err(plain)?
        .is_some()
    {
        return Err(stop(format!(
            "Can't install the Linkerd control plane in the '{namespace}' namespace. Reason: ConfigMap/{CONFIG_MAP} already exists.\n\
             If this is expected, use `linkerd upgrade` to change the installed control plane."
        )));
    }
    Ok(())
}

async fn crds(
    context: &mut Context<'_>,
    overrides: &Overrides,
    cluster: Option<&Cluster>,
    format: Format,
) -> Result<()> {
    let namespace = context.namespace().to_owned();
    if let Some(cluster) = cluster {
        not_installed(cluster, &namespace).await?;
    }
    let objects = crd_objects(context, overrides, cluster).await?;
    context.printer.err("Rendering Linkerd CRDs...");
    context
        .printer
        .err("Next, run `linkerd install | kubectl apply -f -` to install the control plane.\n");
    objects.print(context.printer, format)
}

/// The definitions, when they fit what the cluster has of the Gateway API.
pub(super) async fn crd_objects(
    context: &mut Context<'_>,
    overrides: &Overrides,
    cluster: Option<&Cluster>,
) -> Result<Objects> {
    let chart = Chart::named(CRDS)?;
    let mut values = defaults(&chart)?;
    let found = match cluster {
        Some(cluster) => Some(gateway::find(cluster).await?),
        None => None,
    };
    if let Some(found) = &found {
        put(&mut values, "installGatewayAPI", found.default_install());
    }
    let given = overrides.read().await?;
    // Values of both charts may come from one file.
    lay_over(&mut values, given);
    let install = match get(&values, "enableHttpRoutes") {
        Value::Bool(install) => *install,
        _ => get(&values, "installGatewayAPI") == &Value::Bool(true),
    };
    if let Some(found) = found {
        found
            .check(install)
            .map_err(|error| stop(error.to_string()))?;
    }
    if install
        && !chart
            .templates()
            .iter()
            .any(|file| file.starts_with("gateway.networking.k8s.io"))
    {
        bail!(
            "this build of linkerd carries no Gateway API CRDs; install them with\n  \
             kubectl apply --server-side -f https://github.com/kubernetes-sigs/gateway-api/releases/download/{}/standard-install.yaml\n\
             and leave installGatewayAPI at false",
            gateway::VERSION
        );
    }
    Objects::crds(&values, context.namespace())
}

async fn values(
    context: &mut Context<'_>,
    args: &Args,
    cluster: Option<&Cluster>,
) -> Result<Value> {
    if args.install.identity_external_issuer {
        for (flag, file) in [
            (
                "--identity-issuer-certificate-file",
                &args.control_plane.identity_issuer_certificate_file,
            ),
            (
                "--identity-issuer-key-file",
                &args.control_plane.identity_issuer_key_file,
            ),
        ] {
            if file.is_some() {
                bail!("{flag} must not be specified if --identity-external-issuer=true");
            }
        }
        if cluster.is_none() {
            bail!("--ignore-cluster is not supported when --identity-external-issuer=true");
        }
    }
    let chart = Chart::named(CONTROL_PLANE)?;
    let mut values = defaults(&chart)?;
    if let Some(cluster) = cluster {
        preflight::api_server_ports(cluster, &mut values).await;
    }
    args.install.apply(&mut values);
    args.control_plane.apply(&chart, &mut values)?;
    args.proxy.apply(&mut values);
    let given = args.overrides.read().await?;
    warn_unknown(context.printer, &defaults(&chart)?, &given);
    lay_over(&mut values, given);
    if let Some(cluster) = cluster {
        preflight::docker_runtime(cluster, &values).await?;
        external_anchors(cluster, context.namespace(), &mut values).await?;
    }
    validate::values(&values)?;
    ensure_issuer(&mut values, context.namespace())?;
    validate::issuer(&values, context.namespace())?;
    if let Some(cluster) = cluster {
        preflight::endpoint_slices(cluster, &values).await?;
    }
    Ok(values)
}

/// Anchors that something else keeps: in the issuer's Secret or in the trust roots' ConfigMap.
pub(super) async fn external_anchors(
    cluster: &Cluster,
    namespace: &str,
    values: &mut Value,
) -> Result<()> {
    if !text(values, "identityTrustAnchorsPEM").is_empty() {
        return Ok(());
    }
    if get(values, "identity.externalCA") == &Value::Bool(true) {
        let name = "linkerd-identity-trust-roots";
        let map = cluster.config_map(namespace, name).await.map_err(plain)?;
        let anchors = map.and_then(|map| map.data?.remove("ca-bundle.crt"));
        if let Some(anchors) = anchors {
            put(values, "identityTrustAnchorsPEM", anchors);
        }
        return Ok(());
    }
    if text(values, "identity.issuer.scheme") == "kubernetes.io/tls" {
        let name = "linkerd-identity-issuer";
        let secret = cluster.secret(namespace, name).await.map_err(plain)?;
        let secret = secret.with_context(|| {
            format!("Secret {namespace}/{name} must exist when the issuer is external: make it with cert-manager or kubectl first")
        })?;
        let anchors = secret.data.and_then(|mut data| data.remove("ca.crt"));
        let anchors =
            anchors.with_context(|| format!("Secret {namespace}/{name} has no key ca.crt"))?;
        let anchors = String::from_utf8(anchors.0)
            .with_context(|| format!("ca.crt of Secret {namespace}/{name} is not PEM"))?;
        put(values, "identityTrustAnchorsPEM", anchors);
    }
    Ok(())
}
