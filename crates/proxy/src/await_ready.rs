//! `linkerd-await`: waits until the proxy of the pod is ready, then runs a command if one is given;
//! with `--shutdown` the proxy is asked to end when the command has ended.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    port: u16,
    timeout: Option<Duration>,
    interval: Duration,
    shutdown: bool,
    command: Vec<String>,
}

/// Does what the command line asks for.
pub fn run(args: &[String]) -> ExitCode {
    let options = match parse(args) {
        Ok(options) => options,
        Err(message) => return fail(&message, 64),
    };
    // `disabled` in the environment makes this a no-op, for pods without a proxy.
    let disabled = std::env::var("LINKERD_AWAIT_DISABLED").is_ok_and(|v| !v.is_empty())
        || std::env::var("LINKERD_DISABLED").is_ok_and(|v| !v.is_empty());
    if !disabled && !wait(&options) {
        return fail(
            "linkerd-proxy failed to become ready within the timeout",
            69,
        );
    }
    let Some((program, rest)) = options.command.split_first() else {
        return ExitCode::SUCCESS;
    };
    let mut command = Command::new(program);
    command.args(rest);
    if !options.shutdown || disabled {
        let error = command.exec();
        return fail(&format!("cannot run {program}: {error}"), 127);
    }
    let status = command.status();
    let _ = request(options.port, "POST", "/shutdown");
    match status {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => fail(&format!("cannot run {program}: {error}"), 127),
    }
}

fn wait(options: &Options) -> bool {
    let deadline = options.timeout.map(|t| Instant::now() + t);
    loop {
        if request(options.port, "GET", "/ready") == Some(200) {
            return true;
        }
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return false;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a program of its own without a runtime"
        )]
        std::thread::sleep(options.interval);
    }
}

/// The status of a request without a body to the admin server.
fn request(port: u16, method: &str, path: &str) -> Option<u16> {
    let limit = Some(Duration::from_secs(5));
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(limit).ok()?;
    stream.set_write_timeout(limit).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost:{port}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok()?;
    std::str::from_utf8(&answer[9..]).ok()?.parse().ok()
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        port: 4191,
        timeout: None,
        interval: Duration::from_secs(1),
        shutdown: false,
        command: Vec::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, mut value) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        let mut value = || {
            value
                .take()
                .or_else(|| args.clone().next().cloned())
                .ok_or_else(|| format!("{name} needs a value"))
        };
        match name {
            "--port" | "-p" => {
                let text = value()?;
                options.port = text.parse().map_err(|_| format!("{text} is not a port"))?;
            }
            "--timeout" | "-t" => options.timeout = Some(duration(&value()?)?),
            "--backoff" | "-b" => options.interval = duration(&value()?)?,
            "--shutdown" | "-S" => {
                options.shutdown = true;
                continue;
            }
            "--verbose" | "-v" => continue,
            "--" => {
                options.command = args.cloned().collect();
                break;
            }
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}")),
            _ => {
                options.command = std::iter::once(arg).chain(args).cloned().collect();
                break;
            }
        }
        if !arg.contains('=') {
            args.next();
        }
    }
    Ok(options)
}

fn duration(text: &str) -> Result<Duration, String> {
    crate::config::value::duration(text).map_err(|e| format!("{text}: {e}"))
}

fn fail(message: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{message}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<Options, String> {
        parse(&args.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_charts_hook() {
        let got = options(&["--timeout=2m", "--port=4191"]).expect("valid");
        assert_eq!(got.timeout, Some(Duration::from_secs(120)));
        assert_eq!(
            (got.port, got.shutdown, got.command.len()),
            (4191, false, 0)
        );
    }

    #[test]
    fn commands() {
        let got = options(&["-p", "1", "--shutdown", "--", "sh", "-c", "true"]).expect("valid");
        assert_eq!((got.port, got.shutdown), (1, true));
        assert_eq!(got.command, ["sh", "-c", "true"]);
        assert_eq!(
            options(&["job", "--port"]).expect("valid").command,
            ["job", "--port"]
        );
        assert!(options(&["--nonsense"]).is_err());
        assert!(options(&["--port"]).is_err());
    }
}
