//! The control plane: one program, a subcommand per role, only wiring.

mod connect;
mod destination;
mod diagnostics;
mod flags;
mod heartbeat;
mod parts;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use linkerd_runtime::{drain, log, signal, version};
use std::{process::ExitCode, time::Duration};

/// How long open streams may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Parser)]
#[command(name = "controller", version = version::VERSION, propagate_version = true, about = "The control plane of the mesh")]
struct Command {
    #[command(subcommand)]
    role: Role,

    /// Log filter: a level, or directives by target
    #[arg(long, global = true, default_value = "info")]
    log_level: String,

    /// Accepted for compatibility; there is no profiler
    #[arg(long, global = true, default_value = "false", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide = true)]
    enable_pprof: bool,

    /// Accepted for compatibility; traces are the proxies' business
    #[arg(long, global = true, default_value = "", hide = true)]
    trace_collector: String,

    /// Log filter of the policy service
    #[arg(
        long,
        global = true,
        hide = true,
        env = "LINKERD_POLICY_CONTROLLER_LOG"
    )]
    policy_log_level: Option<String>,

    /// Log format
    #[arg(long, global = true, default_value = "plain")]
    log_format: LogFormat,

    #[command(flatten)]
    cluster: connect::Connection,
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
    let command = Command::parse_from(flags::of_go(std::env::args_os()));
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
    match run(command.role, &command.cluster, log) {
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
        let filter = match flags::level(&self.log_level) {
            Some(level) => format!("warn,kube_client=error,linkerd={level}"),
            None => self.log_level.clone(),
        };
        match self.policy_log_level.as_deref().and_then(flags::level) {
            Some(level) => format!("{filter},linkerd_policy={level}"),
            None => filter,
        }
    }
}

fn run(role: Role, cluster: &connect::Connection, log: log::Handle) -> anyhow::Result<()> {
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
                    destination::run(*args, cluster.client().await?, log, watch).await
                }
                Role::ProxyInjector(args) => {
                    linkerd_injector::webhook::run(args, cluster.client().await?, log, watch).await
                }
                Role::Heartbeat(args) => heartbeat::run(&args, cluster).await,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Command {
        let words = line.split(' ').map(Into::into);
        Command::try_parse_from(flags::of_go(words)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What other versions of the charts, and people, pass.
    #[test]
    fn flags_as_go_programs_take_them() {
        for (name, line) in [
            (
                "one dash",
                "controller destination -log-level=debug -addr=:8086 -enable-ipv6=false",
            ),
            (
                "a word apart",
                "controller destination -log-level debug -controller-namespace linkerd",
            ),
            (
                "no value",
                "controller destination -enable-pprof -log-level=debug -enable-h2-upgrade",
            ),
            (
                "two dashes",
                "controller destination --log-level=debug --enable-pprof=false",
            ),
            (
                "flags of upstream",
                "controller destination -trace-collector= -kubeconfig=/k -log-level debug --context c --cluster d --user u --as a --as-group g --kube-api-response-headers-timeout 10s",
            ),
            (
                "identity",
                "controller identity -log-level=debug -log-format=json -trace-collector collector:55678 -kube-apiclient-qps=100 -kube-apiclient-burst 200",
            ),
            (
                "injector",
                "controller proxy-injector -log-level=debug -enable-pprof=false",
            ),
            (
                "heartbeat",
                "controller heartbeat -controller-namespace=linkerd -log-level=debug -prometheus-url http://p:9090",
            ),
        ] {
            let command = parse(line);
            assert_eq!(command.log_level, "debug", "{name}");
            assert_eq!(
                command.filter(),
                "warn,kube_client=error,linkerd=debug",
                "{name}"
            );
        }
    }

    #[test]
    fn levels() {
        for (level, expected) in [
            ("-log-level=panic", "warn,kube_client=error,linkerd=error"),
            ("-log-level=WARNING", "warn,kube_client=error,linkerd=warn"),
            ("-log-level=kube=debug,info", "kube=debug,info"),
            (
                "-policy-log-level=trace",
                "warn,kube_client=error,linkerd=info,linkerd_policy=trace",
            ),
        ] {
            assert_eq!(
                parse(&format!("controller heartbeat {level}")).filter(),
                expected
            );
        }
    }

    #[test]
    fn a_version_can_be_asked_for_anywhere() {
        for line in ["controller -version", "controller destination -version"] {
            let words = line.split(' ').map(Into::into);
            let asked = Command::try_parse_from(flags::of_go(words)).expect_err("not a run");
            assert_eq!(
                asked.kind(),
                clap::error::ErrorKind::DisplayVersion,
                "{line}"
            );
        }
    }
}
