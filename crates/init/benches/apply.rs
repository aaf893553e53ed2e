//! Start-to-finish time of the init program per backend, each run in a fresh network namespace.
//! Needs root. `LINKERD_INIT_BIN` names the program to measure; else the one of this build.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const RUNS: usize = 20;
const DEFAULTS: &str = "--incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 \
    --inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 4567,4568";

fn main() -> ExitCode {
    // `cargo test` starts benches too: there is nothing to measure then.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let program = std::env::var_os("LINKERD_INIT_BIN").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_linkerd-init")),
        PathBuf::from,
    );
    let size = std::fs::metadata(&program)
        .expect("the program exists")
        .len();
    report(&format!("{}: {size} bytes", program.display()));
    report("backend  families   min ms  median ms  max ms");
    for mode in ["legacy", "nft", "plain", "native"] {
        for (label, ipv6) in [("IPv4", "--ipv6=false"), ("both", "--ipv6=true")] {
            let mut times: Vec<Duration> = (0..RUNS)
                .map(|run| measure(&program, mode, ipv6, run))
                .collect();
            times.sort_unstable();
            let millis = |at: usize| times[at].as_secs_f64() * 1000.0;
            report(&format!(
                "{mode:<8} {label:<8} {:>8.1} {:>10.1} {:>7.1}",
                millis(0),
                millis(RUNS / 2),
                millis(RUNS - 1)
            ));
        }
    }
    ExitCode::SUCCESS
}

/// One cold run; the namespace is made before and removed after the clock runs.
fn measure(program: &PathBuf, mode: &str, ipv6: &str, run: usize) -> Duration {
    let name = format!("init-bench-{}-{mode}-{run}", std::process::id());
    ip(&["netns", "add", &name]);
    let path = format!("/run/netns/{name}");
    // Entered by a thread of its own, so that only the program under test is measured.
    let elapsed = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                linkerd_init::kernel::enter_netns(&path).expect("the namespace is entered");
                let mut command = Command::new(program);
                command
                    .args(DEFAULTS.split_whitespace())
                    .args([ipv6, "--iptables-mode", mode])
                    .stdout(Stdio::null());
                let start = Instant::now();
                let status = command.status().expect("the program runs");
                let elapsed = start.elapsed();
                assert!(status.success(), "{mode}: {status}");
                elapsed
            })
            .join()
            .expect("the run succeeds")
    });
    ip(&["netns", "del", &name]);
    elapsed
}

fn ip(args: &[&str]) {
    let status = Command::new("ip").args(args).status().expect("ip runs");
    assert!(status.success(), "ip {args:?}: this bench needs root");
}

#[expect(clippy::print_stdout, reason = "the report is this program's output")]
fn report(line: &str) {
    println!("{line}");
}
