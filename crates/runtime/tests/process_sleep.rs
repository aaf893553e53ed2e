//! The sleep program sleeps and says what it wants.

use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn it_sleeps_as_long_as_asked_and_refuses_nonsense() {
    let program = env!("CARGO_BIN_EXE_linkerd-sleep");
    let start = Instant::now();
    let status = Command::new(program)
        .arg("0.2")
        .status()
        .expect("it starts");
    assert!(status.success());
    assert!(start.elapsed() >= Duration::from_millis(200));

    let output = Command::new(program)
        .arg("soon")
        .output()
        .expect("it starts");
    assert!(!output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "usage: sleep SECONDS\n"
    );
}
