//! The command tree: one variant and one file per command.

pub mod authz;
pub mod check;
pub mod completion;
pub mod diagnostics;
pub mod doc;
pub mod extension;
pub mod identity;
pub mod inject;
pub mod install;
pub mod install_cni;
pub mod profile;
pub mod prune;
pub mod status;
pub mod uninject;
pub mod uninstall;
pub mod upgrade;
pub mod version;

use crate::context::{Context, Global};
use anyhow::Result;
use clap::{
    ArgMatches, Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
};

/// Installs, configures and explains the service mesh.
///
/// Getting started:
///   linkerd check --pre                         is the cluster ready?
///   linkerd install --crds | kubectl apply -f - needs the Gateway API, or --set installGatewayAPI=true
///   linkerd install | kubectl apply -f -
///   linkerd check                               does the mesh work?
///   kubectl get deploy -o yaml | linkerd inject - | kubectl apply -f -
#[derive(Debug, Parser)]
#[command(
    name = "linkerd",
    bin_name = "linkerd",
    verbatim_doc_comment,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_version_flag = true,
    args_override_self = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Commands,
}

/// What each one does is told by its own arguments, with examples.
#[derive(Debug, Subcommand)]
pub enum Commands {
    Authz(authz::Args),
    Check(check::Args),
    Completion(completion::Args),
    #[command(visible_alias = "dg")]
    Diagnostics(diagnostics::Args),
    #[command(name = "__complete", hide = true)]
    Complete(completion::Words),
    #[command(hide = true)]
    Doc(doc::Args),
    Identity(identity::Args),
    Inject(inject::Args),
    Install(install::Args),
    InstallCni(install_cni::Args),
    Profile(profile::Args),
    Prune(prune::Args),
    Status(status::Args),
    Uninject(uninject::Args),
    Uninstall(uninstall::Args),
    Upgrade(upgrade::Args),
    Version(version::Args),
}

impl Cli {
    pub fn read(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches(matches)
    }
}

/// The tree that arguments are parsed with.
pub fn tree() -> Command {
    repeatable(Cli::command())
}

/// The last of several values counts, as in every other Kubernetes tool.
fn repeatable(command: Command) -> Command {
    command.args_override_self(true).mut_subcommands(repeatable)
}

pub async fn run(context: &mut Context<'_>, command: Commands) -> Result<()> {
    match command {
        Commands::Authz(args) => authz::run(context, &args).await,
        Commands::Check(args) => check::run(context, &args).await,
        Commands::Completion(args) => completion::run(context, &args),
        Commands::Diagnostics(args) => diagnostics::run(context, args).await,
        Commands::Complete(words) => completion::complete(context, &words).await,
        Commands::Doc(args) => doc::run(context, &args),
        Commands::Identity(args) => identity::run(context, &args).await,
        Commands::Inject(args) => inject::run(context, args).await,
        Commands::InstallCni(args) => install_cni::run(context, &args).await,
        Commands::Install(args) => install::run(context, args).await,
        Commands::Profile(args) => profile::run(context, &args).await,
        Commands::Prune(args) => prune::run(context, &args).await,
        Commands::Status(args) => status::run(context, &args).await,
        Commands::Uninject(args) => uninject::run(context, &args).await,
        Commands::Uninstall(args) => uninstall::run(context, &args).await,
        Commands::Upgrade(args) => upgrade::run(context, args).await,
        Commands::Version(args) => version::run(context, &args).await,
    }
}

/// How objects are printed.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// How to print objects: yaml, or json with one object per line
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "yaml"
    )]
    pub format: String,
}

/// The two formats of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Yaml,
    Json,
}

impl Output {
    pub fn parse(&self) -> Result<Format> {
        match self.format.as_str() {
            "yaml" => Ok(Format::Yaml),
            "json" => Ok(Format::Json),
            other => anyhow::bail!("unsupported format {other}"),
        }
    }
}
