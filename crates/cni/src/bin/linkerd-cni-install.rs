//! Installs the plugin on the node and keeps it there until stopped; then takes everything away, or
//! leaves it where the next one is coming. Also tells, when asked so, whether all is in place.

use anyhow::{Context as _, Result};
use linkerd_cni::installer::{Installer, Settings};
use linkerd_runtime::log;
use std::{env, process::ExitCode, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

/// How often the node's files are looked at. A pod that is made between the writing of a
/// configuration and our look at it is not redirected.
const EVERY: Duration = Duration::from_millis(100);

/// The command line.
#[derive(Debug)]
struct Options {
    level: String,
    /// Only tell whether all is in place.
    ready: bool,
    keep_on_exit: bool,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(given) => {
            #[expect(clippy::print_stderr, reason = "there is no log yet")]
            {
                eprintln!("Cannot parse log-level '{given}'");
            }
            return ExitCode::FAILURE;
        }
    };
    let _log = log::init(log::Format::Plain, &options.level);
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "The installer stops");
            ExitCode::FAILURE
        }
    }
}

/// `-log-level LEVEL` or `--log-level=LEVEL`, in any of the usual shapes, and two switches. A level
/// that is none is given back.
fn options() -> Result<Options, String> {
    const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
    let mut words = env::args().skip(1);
    let mut level = "debug".to_owned();
    let (mut ready, mut keep_on_exit) = (false, false);
    while let Some(word) = words.next() {
        match word.trim_start_matches('-') {
            "log-level" => level = words.next().unwrap_or_default(),
            "ready" => ready = true,
            "keep-on-exit" => keep_on_exit = true,
            other => {
                if let Some(given) = other.strip_prefix("log-level=") {
                    level = given.to_owned();
                }
            }
        }
    }
    let level = match level.as_str() {
        "panic" | "fatal" => "error".to_owned(),
        "warning" => "warn".to_owned(),
        known if LEVELS.contains(&known) => level,
        _ => return Err(level),
    };
    Ok(Options {
        level,
        ready,
        keep_on_exit,
    })
}

/// Whether all went well.
fn run(options: &Options) -> Result<bool> {
    let settings = Settings::read(|name| env::var(name).ok())?;
    let mut installer = Installer::new(settings)?;
    if options.ready {
        let in_place = installer.is_in_place()?;
        if !in_place {
            tracing::error!("Not every network configuration ends with the plugin");
        }
        return Ok(in_place);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        installer.programs()?;
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = ticks.tick() => installer.keep()?,
            }
        }
        if options.keep_on_exit {
            tracing::info!("Leaving everything in place");
        } else {
            tracing::info!("Taking everything away");
            installer.undo()?;
        }
        Ok(true)
    })
}
