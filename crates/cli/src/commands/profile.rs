//! `linkerd profile`: prints a ServiceProfile, from an example, an OpenAPI document or a protobuf
//! file.

use super::{Format, Output};
use crate::{context::Context, fetch, install::validate::dns_label, profile, values::text, yaml};
use anyhow::{Context as _, Result, bail};

/// Print a ServiceProfile for a service
///
/// Examples:
///   linkerd profile --template -n emojivoto web-svc
///   linkerd profile --open-api web.swagger -n emojivoto web-svc | kubectl apply -f -
///   linkerd profile --proto Voting.proto -n emojivoto voting-svc | kubectl apply -f -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The service the profile is for
    service: String,
    /// Print an example to edit
    #[arg(long)]
    template: bool,
    /// OpenAPI document, version 2 or 3, YAML or JSON; - for stdin
    #[arg(long, value_name = "FILE")]
    open_api: Option<String>,
    /// Protobuf file; - for stdin
    #[arg(long, value_name = "FILE")]
    proto: Option<String>,
    /// Namespace of the service [default: the kubeconfig's]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Ask no cluster for its domain
    #[arg(long)]
    ignore_cluster: bool,
    #[command(flatten)]
    output: Output,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let format = match args.output.format.as_str() {
        "yaml" => Format::Yaml,
        "json" => Format::Json,
        other => bail!("unknown output format: {other}"),
    };
    let sources = [args.template, args.open_api.is_some(), args.proto.is_some()];
    if sources.iter().filter(|given| **given).count() != 1 {
        bail!("You must specify exactly one of --template or --open-api or --proto");
    }
    let (namespace, domain) = surroundings(context, args).await?;
    let service = &args.service;
    if let Err(reason) = dns_label(service) {
        bail!("invalid service \"{service}\": {reason}");
    }
    if service.starts_with(|c: char| c.is_ascii_digit()) {
        bail!(
            "invalid service \"{service}\": a DNS-1035 label must start with an alphabetic character"
        );
    }
    if let Err(reason) = dns_label(&namespace) {
        bail!("invalid namespace \"{namespace}\": {reason}");
    }
    let name = format!("{service}.{namespace}.svc.{domain}");
    if args.template && format == Format::Yaml {
        return Ok(context
            .printer
            .text(&template(&name, &namespace, service))?);
    }
    let routes = if let Some(file) = &args.open_api {
        let document = yaml::parse(&fetch::text(file).await?)
            .with_context(|| format!("{file} is neither YAML nor JSON"))?;
        profile::openapi(&document)
    } else if let Some(file) = &args.proto {
        profile::proto(&fetch::text(file).await?)
            .map_err(|error| anyhow::anyhow!("{file} is not a protobuf file: {error}"))?
    } else {
        let example = yaml::parse(&template(&name, &namespace, service))?;
        context.printer.out(example)?;
        return Ok(());
    };
    let object = profile::object(&name, &namespace, routes);
    match format {
        Format::Yaml => context.printer.out(yaml::write(&object))?,
        Format::Json => context.printer.out(object)?,
    }
    Ok(())
}

/// Namespace of the service and domain of the cluster.
async fn surroundings(context: &Context<'_>, args: &Args) -> Result<(String, String)> {
    const DOMAIN: &str = "cluster.local";
    let cluster = context.cluster(None).await;
    let namespace = match (&args.namespace, &cluster) {
        (Some(namespace), _) => namespace.clone(),
        (None, Ok(cluster)) => cluster.default_namespace().to_owned(),
        (None, Err(_)) => "default".to_owned(),
    };
    if args.ignore_cluster {
        return Ok((namespace, DOMAIN.to_owned()));
    }
    let values = cluster?.values(context.namespace()).await?;
    let domain = values
        .as_ref()
        .map_or("", |values| text(values, "clusterDomain"));
    let domain = if domain.is_empty() { DOMAIN } else { domain };
    Ok((namespace, domain.to_owned()))
}

fn template(name: &str, namespace: &str, service: &str) -> String {
    format!(
        r#"apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  name: {name}
  namespace: {namespace}
spec:
  # What clients ask {service} for. The first route that matches a request names it in metrics
  # and decides about retries and timeouts.
  routes:
  - name: '/authors/{{id}}'
    # A condition may also be made of others with `all`, `any` and `not`.
    condition:
      pathRegex: '/authors/\d+'
      method: POST
    # Which answers count as failures. Without classes these are the statuses 500 to 599.
    responseClasses:
    - condition:
        status:
          min: 500
          max: 599
      isFailure: true
    # Whether a failed request may be sent again.
    # isRetryable: true
    # How long a request may take, all attempts together.
    # timeout: 300ms
  # How many retries there may be: a share of the requests, and some each second in any case.
  # retryBudget:
  #   retryRatio: 0.2
  #   minRetriesPerSecond: 10
  #   ttl: 10s
"#
    )
}
