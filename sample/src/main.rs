//! The sample application: `web` shows emoji and takes votes, `emoji` knows them, `voting` counts
//! them, `vote-bot` votes all the time. `load` asks one address at a steady rate and reports.

mod api;
mod bot;
mod emoji;
mod grpc;
mod http;
mod load;
mod voting;
mod web;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use linkerd_runtime::{drain, log, signal, version};

/// How long requests under way may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Parser)]
#[command(name = "emojivoto", version = version::VERSION, about = "The quick start's sample application")]
struct Command {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves the page and its JSON API
    Web(web::Args),
    /// Serves the list of emoji
    Emoji(Listen),
    /// Counts votes; those for :doughnut: always fail
    Voting(Listen),
    /// Votes all the time, with a liking for doughnuts
    VoteBot(bot::Args),
    /// Asks an address at a steady rate, and tells what came of it
    Load(load::Args),
}

#[derive(Debug, clap::Args)]
struct Listen {
    /// Where to serve gRPC
    #[arg(long, env = "GRPC_ADDRESS", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
}

fn main() -> ExitCode {
    let command = Command::parse();
    let filter = std::env::var("LOG").unwrap_or_else(|_| "warn,emojivoto=info".to_owned());
    if let Err(error) = log::init(log::Format::Plain, &filter) {
        #[expect(clippy::print_stderr, reason = "there is no log to write to")]
        {
            eprintln!("LOG: {error}");
        }
        return ExitCode::from(64);
    }
    match run(command.role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "Failed");
            ExitCode::FAILURE
        }
    }
}

fn run(role: Role) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stop = signal::shutdown().context("cannot listen for signals")?;
        let (drain, watch) = drain::channel();
        let role = async {
            match role {
                Role::Web(args) => web::run(args, watch).await,
                Role::Emoji(at) => grpc::serve(at.listen, emoji::Emoji, watch).await,
                Role::Voting(at) => grpc::serve(at.listen, voting::Voting::default(), watch).await,
                Role::VoteBot(args) => bot::run(args, watch).await,
                Role::Load(args) => load::run(args, watch).await,
            }
        };
        let mut role = std::pin::pin!(role);
        tokio::select! {
            ended = &mut role => return ended,
            _ = stop => {}
        }
        let (ended, drained) = tokio::join!(role, drain.drain_within(GRACE));
        if let Err(late) = drained {
            tracing::warn!(grace = ?late.0, "Requests were still open");
        }
        ended
    })
}
