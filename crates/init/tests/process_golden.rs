//! Whole outputs against golden files: the commands of every documented scenario in every mode and
//! family, the logs of `--simulate`, the help text. `UPDATE_GOLDEN=1` rewrites them.

use std::path::PathBuf;
use std::process::Command;

use linkerd_init::args::{Args, Config, Mode};
use linkerd_init::echo::{self, Step};
use linkerd_init::iptables::{Programs, SearchPath};
use linkerd_init::native;
use linkerd_init::observed::Existing;
use linkerd_init::ports::MULTIPORT_SLOTS;
use linkerd_init::rules::{Family, Plan};

const INIT: &str = env!("CARGO_BIN_EXE_linkerd-init");

/// The default injected pod, without the mode and the family.
const POD: &str = "--incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102";
const IGNORE: &str =
    "--inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 4567,4568";

const EMPTY: Existing = Existing {
    redirect_chain: false,
    redirect_jump: false,
    output_chain: false,
    output_jump: false,
};

fn config(line: &str) -> Config {
    // Words are separated by blanks, except inside double quotes.
    let words: Vec<String> = line
        .split('"')
        .enumerate()
        .flat_map(|(at, part)| {
            if at % 2 == 1 {
                vec![part.to_owned()]
            } else {
                part.split_whitespace().map(str::to_owned).collect()
            }
        })
        .collect();
    let args = Args::parse(&words).expect("flags").expect("no help");
    args.resolve().expect("a valid line")
}

fn compare(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        std::fs::write(&path, text).expect("the golden file is written");
        return;
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; UPDATE_GOLDEN=1 writes it", path.display()));
    assert_eq!(text, golden, "{name} differs; UPDATE_GOLDEN=1 rewrites it");
}

/// The commands of one scenario in every mode, with bare program names.
fn scenario(line: &str, existing: Existing) -> String {
    let config = config(line);
    let nothing = SearchPath::new(std::ffi::OsStr::new("/nonexistent"));
    let netns = config.netns.as_deref().map(|netns| (netns, &nothing));
    let mut families = vec![Family::V4];
    families.extend(config.ipv6.then_some(Family::V6));
    let mut text = format!("# {line}\n");
    for (name, mode) in [
        ("legacy", Mode::Legacy),
        ("nft", Mode::Nft),
        ("plain", Mode::Plain),
    ] {
        text.push_str(&format!("\n## {name}\n"));
        for family in &families {
            let programs = Programs::of(mode, *family, &nothing);
            let plan = Plan::new(&config, *family, MULTIPORT_SLOTS);
            for step in echo::apply(&plan, existing, config.wait) {
                text.push_str(&programs.shown(&step, netns));
                text.push('\n');
            }
        }
    }
    text.push_str("\n## restore input\n");
    for family in &families {
        let plan = Plan::new(&config, *family, MULTIPORT_SLOTS);
        text.push_str(&echo::restore(&plan, existing, &[]));
    }
    text.push_str("\n## native\n");
    for family in &families {
        for line in native::commands(&native::plan(&config, *family)) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

#[test]
fn scenarios() {
    let all = Existing {
        redirect_chain: true,
        redirect_jump: true,
        output_chain: true,
        output_jump: true,
    };
    let inbound_only = Existing {
        redirect_chain: true,
        redirect_jump: true,
        ..EMPTY
    };
    let default = format!("{POD} {IGNORE} --ipv6=false");
    let plus = |extra: &str| format!("{default} {extra}");
    let split = "22-23,25-27,33-34,35-35,37-38,50-54,56,58,60,63,70-72";
    let cases = [
        ("a-default", default.clone(), EMPTY),
        (
            "b-ranges",
            format!(
                "{POD} --ipv6=false --inbound-ports-to-ignore 4190,4191,4567-4568 --outbound-ports-to-ignore 4567-4568"
            ),
            EMPTY,
        ),
        (
            "c-split",
            format!("{POD} --ipv6=false --inbound-ports-to-ignore {split}"),
            EMPTY,
        ),
        (
            "d-subnets",
            plus("--subnets-to-ignore \"172.17.0.0/16, 10.1.2.3/16\""),
            EMPTY,
        ),
        ("e-listed", plus("-r 9090 -r 9099"), EMPTY),
        ("f-ipv6", format!("{POD} {IGNORE}"), EMPTY),
        ("g-uid-and-gid", plus("--proxy-gid 2102"), EMPTY),
        ("h-uid-zero", plus("--proxy-uid 0"), EMPTY),
        ("i-bare", "-p 1 -o 2 --ipv6=false".to_owned(), EMPTY),
        ("j-wait", plus("-w"), EMPTY),
        ("k-netns", plus("--netns /proc/7/ns/net"), EMPTY),
        ("l-rerun", default.clone(), all),
        ("m-half-applied", default.clone(), inbound_only),
        (
            "p-control-plane",
            format!(
                "{POD} --ipv6=false --inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 443,6443"
            ),
            EMPTY,
        ),
        (
            "q-subnets-of-both-families",
            format!(
                "{POD} --subnets-to-ignore 10.0.0.0/8,fd00::/8 --outbound-subnets-to-ignore 192.0.2.0/24,2001:db8::/32"
            ),
            EMPTY,
        ),
    ];
    for (name, line, existing) in cases {
        compare(&format!("scenario-{name}.txt"), &scenario(&line, existing));
    }
}

#[test]
fn cleanup_commands() {
    let nothing = SearchPath::new(std::ffi::OsStr::new("/nonexistent"));
    let programs = Programs::of(Mode::Legacy, Family::V4, &nothing);
    let mut text: String = echo::cleanup(false)
        .iter()
        .map(|step| format!("{}\n", programs.shown(step, None)))
        .collect();
    text.push_str(&format!("{}\n", native::cleanup_command(Family::V4)));
    assert!(matches!(echo::cleanup(false).last(), Some(Step::Save)));
    compare("cleanup.txt", &text);
}

/// Runs the program with no programs to be found, and takes the dates out of its log.
fn log_of(args: &str) -> String {
    let output = Command::new(INIT)
        .args(args.split_whitespace())
        .env("PATH", "/nonexistent")
        .output()
        .expect("the program starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stderr.is_empty());
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| {
            let is_date =
                |word: &str| word.len() >= 20 && word.starts_with("20") && word.contains('T');
            let parts: Vec<&str> = line
                .split('"')
                .map(|part| if is_date(part) { "DATE" } else { part })
                .collect();
            parts.join("\"") + "\n"
        })
        .collect()
}

#[test]
fn simulated_logs() {
    for (name, mode) in [
        ("legacy", "--iptables-mode legacy"),
        (
            "nft",
            "--firewall-bin-path iptables-nft --firewall-save-bin-path iptables-nft-save",
        ),
        ("native", "--iptables-mode native"),
    ] {
        let log = log_of(&format!("{POD} {IGNORE} --simulate {mode}"));
        compare(&format!("simulate-{name}.txt"), &log);
    }
    let json = log_of(&format!(
        "{POD} --outbound-ports-to-ignore 443,443,x --ipv6=false --simulate --log-format json --timeout-close-wait-secs 3600"
    ));
    compare("simulate-json.txt", &json);
    compare(
        "simulate-cleanup.txt",
        &log_of("--cleanup --simulate --ipv6=false"),
    );
}

#[test]
fn help_text() {
    for flag in ["--help", "-h"] {
        compare("help.txt", &log_of(flag));
    }
}
