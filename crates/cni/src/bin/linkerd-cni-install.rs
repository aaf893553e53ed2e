//! Installs the plugin on the node and keeps it there until stopped; then takes everything away.

use anyhow::{Context as _, Result};
use linkerd_cni::installer::{Installer, Settings};
use linkerd_runtime::log;
use std::{env, process::ExitCode, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// How often the node's files are looked at.
const EVERY: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let level = match level() {
        Ok(level) => level,
        Err(given) => {
            #[expect(clippy::print_stderr, reason = "there is no log yet")]
            {
                eprintln!("Cannot parse log-level '{given}'");
            }
            return ExitCode::FAILURE;
        }
    };
    let _log = log::init(log::Format::Plain, &level);
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "The installer stops");
            ExitCode::FAILURE
        }
    }
}

/// `-log-level LEVEL` or `--log-level=LEVEL`, in any of the usual shapes.
fn level() -> Result<String, String> {
    const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
    let mut words = env::args().skip(1);
    let mut level = "debug".to_owned();
    while let Some(word) = words.next() {
        let word = word.trim_start_matches('-');
        if let Some(given) = word.strip_prefix("log-level=") {
            level = given.to_owned();
        } else if word == "log-level" {
            level = words.next().unwrap_or_default();
        }
    }
    match level.as_str() {
        "panic" | "fatal" => Ok("error".to_owned()),
        "warning" => Ok("warn".to_owned()),
        known if LEVELS.contains(&known) => Ok(level),
        _ => Err(level),
    }
}

fn run() -> Result<()> {
    let settings = Settings::read(|name| env::var(name).ok())?;
    let mut installer = Installer::new(settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        installer.programs()?;
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = ticks.tick() => installer.keep()?,
            }
        }
        tracing::info!("Taking everything away");
        installer.undo()
    })
}
