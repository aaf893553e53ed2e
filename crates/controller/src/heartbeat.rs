//! The heartbeat: reports on the installation to an address the operator chose. Without one it
//! sends nothing; no cluster phones home by default.

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Namespace of the control plane
    #[arg(long, default_value = "linkerd")]
    controller_namespace: String,

    /// Prometheus to take figures from
    #[arg(long, default_value = "")]
    prometheus_url: String,

    /// Where to report; nothing is sent without it
    #[arg(long)]
    url: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.url {
        None => {
            tracing::info!(namespace = %args.controller_namespace, "No address to report to is configured: nothing is sent");
            Ok(())
        }
        Some(url) => anyhow::bail!("reporting to {url} is not supported yet"),
    }
}
