//! `linkerd prune`: prints objects of the control plane that the current version no longer has.

use super::{Format, Output};
use crate::{
    chart::Chart,
    context::Context,
    install::{CONTROL_PLANE, CRDS, Objects, defaults, stored},
    inventory::{self, EVERY, identity},
    printer::Printer,
    values::{lay_over, put},
    yaml,
};
use anyhow::Result;
use serde_json::Value;
use std::{collections::HashSet, time::Duration};

/// Print objects of older versions that are no longer needed
///
/// Examples:
///   linkerd prune | kubectl delete -f -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    output: Output,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let format = args.output.parse()?;
    let cluster = context.cluster(Some(Duration::from_secs(30))).await?;
    let namespace = context.namespace().to_owned();
    let mut values = defaults(&Chart::named(CONTROL_PLANE)?)?;
    lay_over(&mut values, stored(&cluster, &namespace).await?);
    let mut crds = defaults(&Chart::named(CRDS)?)?;
    put(&mut crds, "installGatewayAPI", true);
    let mut needed: HashSet<_> = HashSet::new();
    for objects in [
        Objects::control_plane(&values, &namespace)?,
        Objects::crds(&crds, &namespace)?,
    ] {
        needed.extend(objects.parsed()?.iter().map(identity));
    }
    let found = inventory::list(&cluster, &EVERY, &namespace).await;
    let leftover: Vec<Value> = found
        .into_iter()
        .filter(|object| !needed.contains(&identity(object)))
        .collect();
    print(context.printer, &leftover, format)
}

/// Minimal objects for `kubectl delete`.
pub(super) fn print(printer: &mut Printer, objects: &[Value], format: Format) -> Result<()> {
    for object in objects {
        match format {
            Format::Yaml => {
                printer.out(yaml::write(object))?;
                printer.out("---")?;
            }
            Format::Json => printer.out(object)?,
        }
    }
    Ok(())
}
