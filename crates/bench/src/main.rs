//! The proxy pair against its peers: client, outbound proxy, mTLS, inbound proxy, origin, in two network namespaces
//! behind the same redirection for everyone. Prints one row per proxy and load; see `report.rs` for what a row says.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;

mod chain;
mod load;
mod measure;
mod origin;
mod plan;
mod report;
mod stage;

use plan::{Load, Programs, Proxy};

/// Measures proxies side by side.
#[derive(Debug, Parser)]
#[command(name = "linkerd-bench")]
struct Args {
    /// Prints one JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Proxies and loads to take; none means all
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds of each measured part
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Times everything is measured; medians count
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    programs: Programs,
    /// Where the table is written
    #[arg(long)]
    results: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces need root: run this with `sudo -E`");
    }
    let (proxies, loads) = choose(&args)?;
    let samples = plan::run(&plan::Order {
        proxies,
        loads,
        seconds: args.seconds,
        rounds: args.rounds.max(1),
        programs: args.programs.clone(),
    })?;
    let rows = report::medians(&samples);
    let binary = args.programs.linkerd.as_deref();
    if args.json {
        report::print_json(&rows)?;
        plan::note(&report::bars(&rows, binary));
    } else {
        report::print_table(&rows, binary);
    }
    if let Some(path) = args.results {
        report::write_markdown(&rows, &path, args.seconds, args.rounds, binary)?;
    }
    Ok(())
}

/// Words of `--only` are names of proxies or of loads; either kind left out means all of it.
fn choose(args: &Args) -> Result<(Vec<Proxy>, Vec<Load>)> {
    let mut proxies: Vec<Proxy> = Vec::new();
    let mut loads: Vec<Load> = Vec::new();
    for word in &args.only {
        if let Some(proxy) = Proxy::ALL.into_iter().find(|proxy| proxy.name() == word) {
            proxies.push(proxy);
        } else if let Some(load) = Load::ALL.into_iter().find(|load| load.name() == word) {
            loads.push(load);
        } else {
            bail!("`{word}` is neither a proxy nor a load");
        }
    }
    if proxies.is_empty() {
        proxies = Proxy::ALL.to_vec();
    }
    if loads.is_empty() {
        loads = Load::ALL.to_vec();
    }
    proxies.retain(|proxy| args.programs.has(*proxy));
    Ok((proxies, loads))
}
