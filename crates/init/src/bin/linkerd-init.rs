//! The init program: redirects a pod's traffic to its proxy. Logs go to stdout, the error to stderr.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use linkerd_init::apply::{self, ApplyError};
use linkerd_init::args::{self, ArgError, Args};
use linkerd_init::kernel;
use linkerd_init::log::{Format, Level, Logger};

fn main() -> ExitCode {
    let line: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let parsed = match Args::parse(&line) {
        Ok(Some(args)) => args,
        Ok(None) => {
            let _ = io::stdout().write_all(args::help().as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => return misused(&error),
    };
    // A thread of its own, because a network namespace is entered by threads.
    let worker = std::thread::spawn(move || work(parsed));
    worker.join().unwrap_or(ExitCode::FAILURE)
}

fn work(parsed: Args) -> ExitCode {
    let (format, level) = match parsed.log() {
        Ok(settings) => settings,
        Err(error) => return misused(&error),
    };
    let config = match parsed.resolve() {
        Ok(config) => config,
        Err(error) => return misused(&error),
    };
    let log = logger(format, level);
    let outcome = match &config.netns {
        Some(path) => kernel::enter_netns(path)
            .map_err(ApplyError::from)
            .and_then(|()| apply::run(&config, &log)),
        None => apply::run(&config, &log),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn logger(format: Format, level: Level) -> Logger {
    let format = if format == Format::Text && io::stdout().is_terminal() {
        Format::Colour
    } else {
        format
    };
    Logger::new(format, level, Box::new(io::stdout()))
}

/// The usage text helps only with bad flags; after anything else it would hide the error.
fn misused(error: &ArgError) -> ExitCode {
    let _ = write!(io::stderr(), "Error: {error}\n{}\n", args::usage());
    ExitCode::FAILURE
}
