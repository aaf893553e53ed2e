//! The `linkerd` program: hands its arguments to the library and exits with its answer.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    linkerd_cli::main(std::env::args_os().collect()).await
}
