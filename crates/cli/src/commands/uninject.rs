//! `linkerd uninject`: reads manifests and prints them as they were before `inject`.

use super::Output;
use crate::{
    context::Context,
    manifest,
    transform::{
        self,
        report::{self, Entry, Outcome},
        uninject,
    },
};
use anyhow::{Result, bail};

/// Remove the proxy from Kubernetes manifests
///
/// Examples:
///   kubectl get deploy -o yaml | linkerd uninject - | kubectl apply -f -
///   linkerd uninject app.yaml > plain.yaml
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// A file, a folder, an https URL, or - for stdin
    #[arg(value_name = "CONFIG-FILE")]
    place: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let Some(place) = &args.place else {
        bail!("please specify a kubernetes resource file");
    };
    let format = args.output.parse()?;
    let mut documents = manifest::read(place).await?;
    let mut entries = Vec::new();
    for document in &mut documents {
        transform::each(document, |object| {
            let changed = uninject::object(object);
            entries.push(Entry {
                kind: transform::kind(object).to_lowercase(),
                name: transform::name(object).to_owned(),
                outcome: if changed {
                    Outcome::Uninjected
                } else {
                    Outcome::Skipped
                },
                ..Entry::default()
            });
            changed
        });
    }
    manifest::print(context.printer, &documents, format)?;
    report::uninject(context.printer, &entries);
    Ok(())
}
