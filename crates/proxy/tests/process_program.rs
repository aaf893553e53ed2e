//! The program itself: exit codes and messages of a bad configuration, and the size of a connection.

use std::process::Command;

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
