//! The program itself: exit codes and messages of a bad configuration, and the size of a connection.

#[path = "support/harness.rs"]
mod harness;

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    os::unix::ffi::OsStrExt,
    process::{Child, Command, Stdio},
};

use harness::{Client, environment};
use linkerd_testkit::{ca::identity, control_plane::ControlPlane};

fn proxy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkerd-proxy"));
    command.env_clear();
    command
}

#[test]
fn a_missing_configuration_exits_with_64() {
    let output = proxy().output().expect("runs");
    assert_eq!(output.status.code(), Some(64));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        stderr,
        "Invalid configuration: invalid environment variable\n"
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    for mistake in [
        "no destination service configured",
        "no policy service configured",
        "LINKERD2_PROXY_IDENTITY_DIR is required",
    ] {
        assert!(stdout.contains(mistake), "{mistake} in {stdout}");
    }
}

#[test]
fn a_bad_log_filter_exits_with_64() {
    let output = proxy()
        .env("LINKERD2_PROXY_LOG", "linkerd=loud=louder")
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(64));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.starts_with("Invalid logging configuration: "),
        "{stderr}"
    );
}

#[test]
fn a_log_filter_or_format_that_is_no_text_exits_with_64() {
    for name in ["LINKERD2_PROXY_LOG", "LINKERD2_PROXY_LOG_FORMAT"] {
        let output = proxy().env(name, OsStr::from_bytes(b"json\xff")).output();
        let output = output.expect("runs");
        assert_eq!(output.status.code(), Some(64), "{name}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let want = format!("Invalid logging configuration: {name}: value is not UTF-8\n");
        assert_eq!(stderr, want);
    }
}

#[test]
fn a_bad_access_log_is_told_on_standard_error_and_turned_off() {
    let control = ControlPlane::start();
    let dir = tempfile::tempdir().expect("a directory can be made");
    let extra = [
        ("ACCESS_LOG", "xml"),
        // The next thing that is looked at.
        ("IDENTITY_TRUST_ANCHORS", "none"),
    ];
    let env = environment(&control, dir.path(), &identity("web", "ns"), &extra);
    let output = proxy().envs(env).output().expect("runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let (first, rest) = stderr.split_once('\n').expect("lines");
    assert_eq!(
        first,
        "LINKERD2_PROXY_ACCESS_LOG=\"xml\" is neither apache nor json: there is no access log"
    );
    assert!(rest.starts_with("Initialization failure: "), "{rest}");
    assert_eq!(output.status.code(), Some(1));
}

/// A program that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_log_of_the_program_is_read_live() {
    let control = ControlPlane::start();
    let dir = tempfile::tempdir().expect("a directory can be made");
    let env = environment(&control, dir.path(), &identity("web", "ns"), &[]);
    let mut command = proxy();
    command.envs(env).stdout(Stdio::piped());
    let mut program = Program(command.spawn().expect("runs"));
    let stdout = program.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(stdout).lines();
    let mut said = |what: &str| loop {
        let line = lines.next().expect("it goes on").expect("text");
        assert!(
            line.starts_with("[     "),
            "seconds since the start: {line}"
        );
        if let Some((_, rest)) = line.split_once(what) {
            return rest.to_owned();
        }
    };
    let admin = said("Admin interface on ").parse().expect("an address");
    let outbound = said("Outbound interface on ").parse().expect("an address");
    said("Certified identity");

    let mut reader = Client::connect(admin);
    reader.send("GET /logs.json?linkerd=debug HTTP/1.1\r\nhost: a\r\n\r\n");
    let head = reader.head();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    // Nothing was redirected, so nobody knows where it wants to go.
    let _refused = Client::connect(outbound);
    let line = reader.line();
    let size = usize::from_str_radix(line.trim(), 16).expect("a chunk size");
    let line: serde_json::Value =
        serde_json::from_slice(&reader.exactly(size)).expect("a line is JSON");
    let keys: Vec<_> = line.as_object().expect("an object").keys().collect();
    let want = [
        "timestamp",
        "level",
        "fields",
        "target",
        "spans",
        "threadId",
    ];
    assert_eq!(keys, want);
    assert_eq!(line["fields"]["message"], "Connection refused");
    assert_eq!(line["target"], "linkerd_proxy::app::worker_thread");
}
