//! The proxy program. Its name decides what it does: `linkerd2-proxy-identity` makes key and signing
//! request before it proxies, `linkerd-await` waits for a proxy to be ready, anything else proxies.

use std::{path::Path, process::ExitCode};

use linkerd_proxy::{
    app::{self, Seams},
    await_ready,
    config::{self, Config, Env, env::Process},
    identity_bootstrap,
    presence::Presence,
};
use linkerd_runtime::{log, version};

/// What `sysexits.h` calls a usage error.
const BAD_CONFIGURATION: u8 = 64;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let program = args.first().map(String::as_str).unwrap_or_default();
    let program = Path::new(program).file_name().and_then(|n| n.to_str());
    if program == Some("linkerd-await") {
        return await_ready::run(&args[1..]);
    }
    match run(program == Some("linkerd2-proxy-identity")) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            complain(&message);
            ExitCode::from(code)
        }
    }
}

fn run(bootstrap: bool) -> Result<(), (u8, String)> {
    let log = init_log().map_err(|e| {
        (
            BAD_CONFIGURATION,
            format!("Invalid logging configuration: {e}"),
        )
    })?;
    tracing::info!(
        "{} {} ({})",
        version::PROFILE,
        version::VERSION,
        version::GIT_SHA
    );
    let config = Config::read(&Process).map_err(|invalid| {
        for mistake in &invalid.mistakes {
            tracing::error!("{mistake}");
        }
        (
            BAD_CONFIGURATION,
            format!("Invalid configuration: {invalid}"),
        )
    })?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    for complaint in &config.complaints {
        complain(complaint);
    }
    let failed = |e: &dyn std::error::Error| (1, format!("Initialization failure: {}", chain(e)));
    if bootstrap && let config::IdentitySource::Linkerd { dir, .. } = &config.identity.source {
        identity_bootstrap::bootstrap(dir, &config.identity.id).map_err(|e| failed(&e))?;
    }
    let seams = Seams {
        log: Some(log),
        application: Presence::OtherUsers,
        ..Seams::default()
    };
    let running = app::start(config, seams).map_err(|e| failed(&e))?;
    running.join();
    Ok(())
}

fn init_log() -> Result<log::Handle, String> {
    let get = |name: &str| {
        let value = Process.get(name).transpose();
        value.map_err(|error| format!("{name}: {error}"))
    };
    let filter = get(config::env::LOG)?;
    let filter = filter.unwrap_or_else(|| "warn,linkerd=info,hickory=error".into());
    let format = match get(config::env::LOG_FORMAT)?.as_deref() {
        Some("json" | "JSON") => log::Format::Json,
        Some("plain" | "PLAIN") | None => log::Format::Plain,
        Some(other) => return Err(log::Error::Format(other.to_owned()).to_string()),
    };
    log::init(format, &filter).map_err(|error| error.to_string())
}

fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |e| e.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn complain(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{message}");
}
