//! The network validator: see [`linkerd_init::validate`].

use std::process::ExitCode;

use clap::Parser;
use linkerd_init::validate;

fn main() -> ExitCode {
    validate::run(&validate::Args::parse())
}
