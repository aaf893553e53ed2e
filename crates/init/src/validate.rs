//! The network validator: proves that outbound connections are redirected by connecting to an address
//! nobody answers on and expecting its own listener's secret. Exit code 95 is what repairs react to.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::log::{Format, Level, Logger};
use crate::signal::{Blocked, Signal};

/// The exit code of every failed validation.
pub const UNSUCCESSFUL: u8 = 95;
/// The exit code when logging cannot be set up.
pub const NO_LOGGING: u8 = 101;

const TARGET: &str = "linkerd_network_validator";
const TOKEN_LEN: usize = 64;

/// Verifies that connections are redirected to this process.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "linkerd-network-validator", version)]
pub struct Args {
    #[arg(
        long,
        env = "LINKERD_NETWORK_VALIDATOR_LOG_LEVEL",
        default_value = "info"
    )]
    log_level: String,

    #[arg(long, env = "LINKERD_NETWORK_VALIDATOR_LOG_FORMAT", default_value = "plain", value_parser = ["plain", "json"])]
    log_format: String,

    /// How long to wait for the connection to be redirected
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,

    /// Where redirected connections arrive
    #[arg(long, default_value = "0.0.0.0:4140")]
    listen_addr: SocketAddr,

    /// An address that only redirection makes answer
    #[arg(long, default_value = "192.0.2.2:1404")]
    connect_addr: SocketAddr,
}

/// Why the network is not what it should be.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot listen on {0}: {1}")]
    Bind(SocketAddr, io::Error),
    #[error("cannot make a token: {0}")]
    Token(io::Error),
    #[error("{0}")]
    Connect(io::Error),
    #[error("expected client to receive {expected:?}; got {got:?} instead")]
    WrongData { expected: String, got: String },
    #[error("timed out")]
    Timeout,
    #[error("Killed by {}", .0.name())]
    Killed(Signal),
}

/// What the waiting thread hears of.
enum Event {
    Client(Result<(), Failure>),
    Signal(Signal),
}

/// Runs the validator to its exit code.
pub fn run(args: &Args) -> ExitCode {
    let Some(level) = log_level(&args.log_level) else {
        // Logging is what would have reported it.
        let _ = writeln!(io::stderr(), "invalid log level {:?}", args.log_level);
        return ExitCode::from(NO_LOGGING);
    };
    let format = match args.log_format.as_str() {
        "json" => Format::PlainJson(TARGET),
        _ => Format::Plain(TARGET),
    };
    let log = Logger::new(format, level, Box::new(io::stdout()));
    match validate(args, &log) {
        Ok(()) => {
            log.info("Validated");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            report(&log, args, &failure);
            ExitCode::from(UNSUCCESSFUL)
        }
    }
}

fn report(log: &Logger, args: &Args, failure: &Failure) {
    let text = failure.to_string();
    match failure {
        Failure::Connect(error) => {
            log.log(
                Level::Error,
                "Unable to connect to validator. Please ensure iptables rules are rewriting traffic as expected",
                &[("error", &text)],
            );
            let unreachable = [io::ErrorKind::NetworkUnreachable, io::ErrorKind::HostUnreachable];
            if unreachable.contains(&error.kind()) {
                log.warn(&format!(
                    "There is no route to {}: the connection ends before it can be redirected. Choose a --connect-addr that has one",
                    args.connect_addr
                ));
            }
        }
        Failure::Timeout => log.log(
            Level::Error,
            "Failed to validate networking configuration. Please ensure traffic redirection rules are rewriting traffic as expected.",
            &[("timeout", &format!("{:?}", args.timeout))],
        ),
        Failure::Killed(_) => log.info(&text),
        Failure::Bind(..) | Failure::Token(_) | Failure::WrongData { .. } => log.error(&text),
    }
}

fn validate(args: &Args, log: &Logger) -> Result<(), Failure> {
    let deadline = Instant::now() + args.timeout;
    let bind_error = |error| Failure::Bind(args.listen_addr, error);
    let signals = Blocked::block().map_err(bind_error)?;
    let listener = TcpListener::bind(args.listen_addr).map_err(bind_error)?;
    let addr = listener.local_addr().map_err(bind_error)?;
    let token = token().map_err(Failure::Token)?;
    let (events, inbox) = mpsc::sync_channel(2);

    log.info(&format!("Listening for connections on {addr}"));
    // These threads end with the process: nothing here outlives the answer.
    std::thread::spawn(move || serve(&listener, &token));
    let to = events.clone();
    std::thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            let _ = to.send(Event::Signal(signal));
        }
    });
    log.info(&format!("Connecting to {}", args.connect_addr));
    let connect_addr = args.connect_addr;
    std::thread::spawn(move || {
        let _ = events.send(Event::Client(connect(connect_addr, &token, deadline)));
    });

    match inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Event::Client(result)) => result,
        Ok(Event::Signal(signal)) => Err(Failure::Killed(signal)),
        Err(_) => Err(Failure::Timeout),
    }
}

/// Gives the token to every connection, then closes it.
fn serve(listener: &TcpListener, token: &[u8]) {
    for stream in listener.incoming().flatten() {
        let mut stream = stream;
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = stream.write_all(token);
    }
}

fn connect(addr: SocketAddr, token: &[u8], deadline: Instant) -> Result<(), Failure> {
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(Failure::Timeout)
        } else {
            Ok(left)
        }
    };
    let timed = |error: io::Error| match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Failure::Timeout,
        _ => Failure::Connect(error),
    };
    let mut stream = TcpStream::connect_timeout(&addr, left()?).map_err(timed)?;
    let mut got = Vec::with_capacity(TOKEN_LEN);
    let mut buffer = [0; TOKEN_LEN];
    while got.len() < TOKEN_LEN {
        stream
            .set_read_timeout(Some(left()?))
            .map_err(Failure::Connect)?;
        match stream.read(&mut buffer[got.len()..]).map_err(timed)? {
            0 => break,
            len => got.extend_from_slice(&buffer[got.len()..][..len]),
        }
    }
    if got == token {
        return Ok(());
    }
    Err(Failure::WrongData {
        expected: String::from_utf8_lossy(token).into_owned(),
        got: String::from_utf8_lossy(&got).into_owned(),
    })
}

/// 63 random letters and digits and a newline.
fn token() -> io::Result<[u8; TOKEN_LEN]> {
    const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut token = [0; TOKEN_LEN];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut token)?;
    for byte in &mut token {
        *byte = ALPHABET[usize::from(*byte) % ALPHABET.len()];
    }
    token[TOKEN_LEN - 1] = b'\n';
    Ok(token)
}

/// `info`, or directives of which the one that names us, else the bare one, counts.
fn log_level(filter: &str) -> Option<Level> {
    let (mut general, mut named) = (None, None);
    for directive in filter.split(',').filter(|directive| !directive.is_empty()) {
        match directive.split_once('=') {
            None => general = Some(level(directive)?),
            Some((target, text)) => {
                let level = level(text)?;
                if target == TARGET {
                    named = Some(level);
                }
            }
        }
    }
    named.or(general).or(Some(Level::Error))
}

/// `off` still lets a failure be seen in the exit code alone.
fn level(text: &str) -> Option<Level> {
    match text {
        "off" | "OFF" => Some(Level::Panic),
        "panic" | "fatal" | "warning" => None,
        text => Level::parse(text),
    }
}

/// An unsigned integer and a unit; a bare `0` needs none.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: u64 = digits
        .parse()
        .map_err(|_| "not a valid duration".to_owned())?;
    let millis = match unit {
        "" if number == 0 => 1,
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("a duration needs a unit: ms, s, m, h or d".to_owned()),
    };
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| "the duration is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for text in [
            "120",
            "s",
            "foobars",
            "18446744073709551615s",
            "999999999999999999999s",
            "-1s",
            "1.5s",
            "",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for (text, seconds) in [
            ("0", 0),
            ("0ms", 0),
            ("0s", 0),
            ("0m", 0),
            ("120s", 120),
            ("120000ms", 120),
            ("2m", 120),
            ("2h", 7_200),
            ("2d", 172_800),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_secs(seconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn levels() {
        for (filter, level) in [
            ("info", Some(Level::Info)),
            ("DEBUG", Some(Level::Debug)),
            ("linkerd_network_validator=trace,warn", Some(Level::Trace)),
            ("warn,hyper=debug", Some(Level::Warn)),
            ("hyper=debug", Some(Level::Error)),
            ("loud", None),
            ("x=loud", None),
        ] {
            assert_eq!(log_level(filter), level, "{filter}");
        }
    }

    #[test]
    fn tokens_are_words_of_64_bytes() {
        let token = token().expect("randomness");
        assert!(token[..63].iter().all(u8::is_ascii_alphanumeric));
        assert_eq!(token[63], b'\n');
    }
}
