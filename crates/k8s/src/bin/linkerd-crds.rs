//! Prints the chart templates of our custom resource definitions, or writes them below a folder.

use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Parser;
use linkerd_k8s::crd;

#[derive(Debug, Parser)]
#[command(about = "Prints the chart templates of our custom resource definitions")]
struct Args {
    /// Write one file per definition below this folder instead
    #[arg(long)]
    write: Option<PathBuf>,
}

#[expect(clippy::print_stdout, reason = "printing is what it is for")]
fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    for template in crd::templates() {
        let Some(root) = &args.write else {
            print!("{}", template.text);
            continue;
        };
        let path = root.join(&template.path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(&path, template.text)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
