//! The `linkerd` command.
//!
//! ```text
//! argv ─args (leaf flags moved behind their command)→ clap tree ─commands→ one file per command
//!                          unknown word ─commands::extension→ `linkerd-WORD` on PATH
//! ```
//!
//! - [`args`]: what upstream's parser accepts, put in the order clap wants
//! - [`commands`]: the tree and one file per command, `run(context, args) -> anyhow::Result<()>`
//! - [`context`]: what every command gets: global flags, [`printer::Printer`], [`cluster::Cluster`]
//! - [`failure`]: how a command ends early and with which exit code
//! - [`chart`], [`values`], [`install`]: the embedded charts and what `install` and `upgrade` do with them
//! - [`forward`], [`wire`], [`workload`]: into pods, the proxy API as JSON, pods of what people name
//! - [`complete`]: what may stand where the cursor is, for the scripts of `completion`
//! - [`manifest`], [`transform`]: reading manifests, and `inject` / `uninject` on them

pub mod args;
pub mod authz;
pub mod certificate_text;
pub mod chart;
pub mod check;
pub mod cluster;
pub mod commands;
pub mod complete;
pub mod context;
pub mod failure;
pub mod fetch;
pub mod forward;
pub mod install;
pub mod inventory;
pub mod manifest;
pub mod printer;
pub mod profile;
pub mod status;
pub mod transform;
pub mod trust;
pub mod values;
pub mod wire;
pub mod workload;
pub mod yaml;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use context::Context;
use failure::{ExitStatus, Stop};
use std::{ffi::OsString, process::ExitCode};

/// The whole life of the program: parse, run, say what went wrong, exit code.
pub async fn main(argv: Vec<OsString>) -> ExitCode {
    let mut printer = printer::Printer::standard();
    let code = run(argv, &mut printer).await;
    ExitCode::from(written(code, &mut printer))
}

/// What is still on its way to stdout decides too: a full disk is no success.
fn written(code: u8, printer: &mut printer::Printer) -> u8 {
    match printer.flush() {
        Ok(()) => code,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => code,
        Err(error) => {
            printer.err(format_args!("Error: cannot write the output: {error}"));
            code.max(1)
        }
    }
}

/// The same with the outputs given, for tests.
pub async fn run(argv: Vec<OsString>, printer: &mut printer::Printer) -> u8 {
    let words: Vec<String> = argv
        .into_iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let tree = commands::tree();
    let ordered = match args::order(&tree, &words) {
        args::Order::Parse(ordered) => ordered,
        args::Order::Unknown { word, rest } => {
            return commands::extension::run(&tree, &words, &word, &rest, printer);
        }
    };
    let command = ordered.first().cloned().unwrap_or_default();
    let parsed = tree
        .clone()
        .try_get_matches_from(std::iter::once("linkerd".to_owned()).chain(ordered));
    let matches = match parsed {
        Ok(matches) => matches,
        Err(error) => {
            let code = usage(&error, printer);
            if let Some(pointer) = gone(&command, &error) {
                printer.err(pointer);
            }
            return code;
        }
    };
    let command = match commands::Cli::read(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, printer),
    };
    let result = match Context::new(command.global, printer) {
        Ok(mut context) => commands::run(&mut context, command.command).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => 0,
        Err(error) => ended(&error, printer),
    }
}

fn ended(error: &anyhow::Error, printer: &mut printer::Printer) -> u8 {
    if let Some(ExitStatus(code)) = error.downcast_ref() {
        return *code;
    }
    if let Some(Stop(message)) = error.downcast_ref() {
        printer.err(message);
        return 1;
    }
    let closed = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    });
    if !closed {
        printer.err(format_args!("Error: {}", failure::line(error)));
    }
    1
}

/// Where the stages of older releases went.
fn gone(command: &str, error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    match (command, word.as_str()) {
        ("install" | "upgrade", "config" | "control-plane") => Some(
            "\nThe stages are gone: use `linkerd install --crds`, then `linkerd install` (or `linkerd upgrade` with the same flags).",
        ),
        ("check", "config") => {
            Some("\nThe stages are gone: use `linkerd check --crds`, then `linkerd check`.")
        }
        _ => None,
    }
}

/// Help goes to stdout with exit code 0, a mistake to stderr with `Error:`, usage and 1.
fn usage(error: &clap::Error, printer: &mut printer::Printer) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = printer.out(error.render().to_string().trim_end());
            0
        }
        // A group without its subcommand teaches, as the root does.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = printer.out(error.render().to_string().trim_end());
            0
        }
        _ => {
            let text = error.render().to_string();
            let text = text.trim_end();
            let text = text.strip_prefix("error: ").unwrap_or(text);
            printer.err(format_args!("Error: {text}"));
            1
        }
    }
}
