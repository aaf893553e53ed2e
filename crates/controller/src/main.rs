//! The control plane: one program, a subcommand per role, only wiring.

mod destination;
mod heartbeat;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use linkerd_k8s::kube::Client;
use linkerd_runtime::{drain, log, signal, version};
use std::{process::ExitCode, time::Duration};

/// How long open streams may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Parser)]
#[command(name = "controller", version = version::VERSION, about = "The control plane of the mesh")]
struct Command {
    #[command(subcommand)]
    role: Role,

    /// Log filter: a level, or directives by target
    #[arg(long, global = true, default_value = "info")]
    log_level: String,

    /// Accepted for compatibility; there is no profiler
    #[arg(long, global = true, default_value = "false", action = clap::ArgAction::Set, hide = true)]
    enable_pprof: bool,

    /// Log filter of the policy service
    #[arg(long, global = true, hide = true)]
    policy_log_level: Option<String>,

    /// Log format
    #[arg(long, global = true, default_value = "plain")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Plain,
    Json,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Issues certificates to proxies
    Identity(linkerd_identity::Args),
    /// Serves discovery, policy and their validators
    Destination(Box<destination::Args>),
    /// Adds sidecars to pods
    ProxyInjector(linkerd_injector::webhook::Args),
    /// Reports on the installation, when an address to report to is configured
    Heartbeat(heartbeat::Args),
}

fn main() -> ExitCode {
    let command = Command::parse();
    let format = match command.log_format {
        LogFormat::Plain => log::Format::Plain,
        LogFormat::Json => log::Format::Json,
    };
    let log = match log::init(format, &command.filter()) {
        Ok(log) => log,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "there is no log to write to")]
            {
                eprintln!("Invalid logging configuration: {error}");
            }
            return ExitCode::from(64);
        }
    };
    match run(command.role, log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "Failed");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    /// A bare level is meant for our own code; dependencies stay at warnings.
    fn filter(&self) -> String {
        let bare = |level: &str| ["trace", "debug", "info", "warn", "error"].contains(&level);
        let mut filter = self.log_level.clone();
        if bare(&filter) {
            filter = format!("warn,kube_client=error,linkerd={filter}");
        }
        match &self.policy_log_level {
            Some(level) if bare(level) => format!("{filter},linkerd_policy={level}"),
            _ => filter,
        }
    }
}

fn run(role: Role, log: log::Handle) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stop = signal::shutdown().context("cannot listen for signals")?;
        let (drain, watch) = drain::channel();
        tracing::info!(version = version::VERSION, "Starting");
        let role = async {
            match role {
                Role::Identity(args) => linkerd_identity::run(args, watch).await,
                Role::Destination(args) => {
                    destination::run(*args, client().await?, log, watch).await
                }
                Role::ProxyInjector(args) => {
                    linkerd_injector::webhook::run(args, client().await?, log, watch).await
                }
                Role::Heartbeat(args) => heartbeat::run(&args).await,
            }
        };
        let mut role = std::pin::pin!(role);
        tokio::select! {
            ended = &mut role => return ended,
            _ = stop => {}
        }
        let drained = drain.drain_within(GRACE);
        let (ended, drained) = tokio::join!(tokio::time::timeout(GRACE, role), drained);
        if drained.is_err() {
            tracing::warn!("Some streams did not end in time");
        }
        ended.unwrap_or(Ok(()))
    })
}

async fn client() -> anyhow::Result<Client> {
    Client::try_default()
        .await
        .context("cannot reach the Kubernetes API: no service account and no kubeconfig")
}
