//! `linkerd diagnostics`: what the control plane tells proxies, and what everything measures.

pub mod controller_metrics;
pub mod endpoints;
pub mod policy;
pub mod profile;
pub mod proxy_metrics;

use crate::context::Context;
use anyhow::Result;
use clap::Subcommand;

/// Deployment and ports of the services that are asked.
const DESTINATION: &str = "linkerd-destination";

/// Look into the mesh: what the control plane tells proxies, and what they measure
///
/// Examples:
///   linkerd diagnostics endpoints web.emojivoto.svc.cluster.local:80
///   linkerd diagnostics policy -n emojivoto svc/web 80
///   linkerd diagnostics profile 10.20.2.4:8080
///   linkerd diagnostics proxy-metrics -n emojivoto deploy/web
///   linkerd diagnostics controller-metrics
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Args {
    #[command(subcommand)]
    command: Commands,
}

/// What each one does is told by its own arguments, with examples.
#[derive(Debug, Subcommand)]
pub enum Commands {
    #[command(visible_alias = "cp-metrics")]
    ControllerMetrics(controller_metrics::Args),
    #[command(visible_alias = "ep")]
    Endpoints(endpoints::Args),
    Policy(policy::Args),
    Profile(profile::Args),
    ProxyMetrics(proxy_metrics::Args),
}

pub async fn run(context: &mut Context<'_>, args: Args) -> Result<()> {
    match args.command {
        Commands::ControllerMetrics(args) => controller_metrics::run(context, &args).await,
        Commands::Endpoints(args) => endpoints::run(context, &args).await,
        Commands::Policy(args) => policy::run(context, &args).await,
        Commands::Profile(args) => profile::run(context, &args).await,
        Commands::ProxyMetrics(args) => proxy_metrics::run(context, &args).await,
    }
}

/// What the server said, in the words that scripts look for.
fn said(status: &tonic::Status) -> String {
    let (code, message) = (status.code(), status.message());
    format!("rpc error: code = {code:?} desc = {message}")
}
