//! The network validator in a pod (root): it succeeds exactly where the init program has been.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

#[path = "support/scene.rs"]
mod scene;

use linkerd_testkit::netns::Namespace;
use rustix::process::Signal;
use scene::{Scene, VALIDATOR};

const POD: &[&str] = &["-p", "4143", "-o", "4140", "-u", "2102"];
const PATIENCE: Duration = Duration::from_secs(60);

every_backend!(redirected_pods_are_valid);

fn validate(netns: &Namespace, args: &[&str]) -> Output {
    let mut command = Command::new(VALIDATOR);
    command.args(args);
    netns
        .run(|| command.output())
        .expect("the validator starts")
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn redirected_pods_are_valid(backend: &str) {
    let scene = Scene::new();
    scene.init(backend, POD);
    let output = validate(
        &scene.pod.netns,
        &["--connect-addr", "1.1.1.1:20001", "--log-level", "debug"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    let text = log(&output);
    for line in [
        " INFO linkerd_network_validator: Listening for connections on 0.0.0.0:4140",
        " INFO linkerd_network_validator: Connecting to 1.1.1.1:20001",
        " INFO linkerd_network_validator: Validated",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let six = [
        "--listen-addr",
        "[::]:4140",
        "--connect-addr",
        "[fd00::1]:20001",
        "--log-format",
        "json",
    ];
    let output = validate(&scene.pod.netns, &six);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(
        log(&output).contains("\"message\":\"Validated\""),
        "{}",
        log(&output)
    );
}

/// Every failed validation ends with 95, whatever the reason.
#[test]
fn failures() {
    let scene = Scene::new();
    let netns = &scene.pod.netns;
    let peer = format!("{}:9", scene.peer.ip4);
    let refused = validate(netns, &["--connect-addr", &peer]);
    assert_eq!(refused.status.code(), Some(95));
    assert!(
        log(&refused).contains("Unable to connect to validator. Please ensure iptables rules are rewriting traffic as expected error="),
        "{}",
        log(&refused)
    );

    // Somebody answers, but not us.
    let _other = scene::Server::both(&scene.peer.netns, 10, "other");
    let other = format!("{}:10", scene.peer.ip4);
    let wrong = validate(netns, &["--connect-addr", &other, "--timeout", "5s"]);
    assert_eq!(wrong.status.code(), Some(95));

    // Packets that vanish: nothing answers, nothing refuses.
    scene.peer.netns.output(
        "iptables-nft",
        &["-A", "INPUT", "-p", "tcp", "--dport", "11", "-j", "DROP"],
    );
    let nobody = format!("{}:11", scene.peer.ip4);
    let late = validate(netns, &["--connect-addr", &nobody, "--timeout", "300ms"]);
    assert_eq!(late.status.code(), Some(95));
    assert!(
        log(&late).contains("Failed to validate networking configuration. Please ensure traffic redirection rules are rewriting traffic as expected. timeout=300ms"),
        "{}",
        log(&late)
    );

    let unroutable = Namespace::new("no-route");
    let output = validate(&unroutable, &["--connect-addr", "1.1.1.1:1"]);
    assert_eq!(output.status.code(), Some(95));
    assert!(
        log(&output).contains("There is no route to 1.1.1.1:1"),
        "{}",
        log(&output)
    );

    let _taken = scene::Server::new(netns, "0.0.0.0:4140".parse().expect("an address"), "taken");
    assert_eq!(validate(netns, &[]).status.code(), Some(95));
}

#[test]
fn signals_end_it_with_95() {
    let scene = Scene::new();
    scene.peer.netns.output(
        "iptables-nft",
        &["-A", "INPUT", "-p", "tcp", "--dport", "11", "-j", "DROP"],
    );
    let nobody = format!("{}:11", scene.peer.ip4);
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let mut command = Command::new(VALIDATOR);
        command
            .args(["--connect-addr", &nobody, "--timeout", "60s"])
            .stdout(Stdio::piped());
        let mut process = scene.pod.netns.spawn(&mut command);
        let mut stdout = process.child().stdout.take().expect("a pipe");
        let mut text = String::new();
        // The signals are blocked before the first line is written.
        while !text.contains("Connecting to") {
            let mut byte = [0];
            std::io::Read::read_exact(&mut stdout, &mut byte).expect("more log");
            text.push(char::from(byte[0]));
        }
        process.signal(signal);
        let status = process.ended(PATIENCE);
        std::io::Read::read_to_string(&mut stdout, &mut text).expect("the rest of the log");
        assert_eq!(status.code(), Some(95), "{text}");
        assert!(text.contains(&format!("Killed by {name}")), "{text}");
    }
}

#[test]
fn command_lines() {
    let netns = Namespace::new("command-lines");
    for (args, code) in [
        (&["--help"][..], 0),
        (&["--version"], 0),
        (&["--timeout", "120"], 2),
        (&["--bogus"], 2),
        (&["--listen-addr", "x"], 2),
        (&["--log-format", "x"], 2),
        (&["--log-level", "loud"], 101),
    ] {
        assert_eq!(validate(&netns, args).status.code(), Some(code), "{args:?}");
    }
}
