//! `cargo xtask fuzz`: builds the targets of the crate `fuzz` and runs each for a while. The
//! instrumentation is what the stable compiler's LLVM offers, so that nothing needs installing.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::workspace::{self, Workspace};
use crate::{images, ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Targets, or parts of their names [default: all]
    targets: Vec<String>,
    /// How long each runs
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
}

/// What libFuzzer needs to see: the edges of the program and what it compares.
const RUSTFLAGS: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];
/// A target that takes more is a fault of its own.
const MEMORY_MB: u32 = 2048;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let all = targets(&workspace)?;
    let wanted = |name: &&String| {
        args.targets.is_empty() || args.targets.iter().any(|part| name.contains(part))
    };
    let chosen: Vec<&String> = all.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(ui::hint(
            format!("there is no fuzz target like {}", args.targets.join(", ")),
            format!("there are {}", all.join(", ")),
        ));
    }
    let built = workspace.target.join("fuzz");
    // With a target named, proc macros and build scripts are spared the instrumentation.
    let host = images::triple();
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--release", "--target", &host, "--manifest-path"])
        .arg(workspace.root.join("fuzz/Cargo.toml"))
        .env("CARGO_TARGET_DIR", &built)
        .env("RUSTFLAGS", RUSTFLAGS.join(" "));
    for name in &chosen {
        cargo.args(["--bin", name]);
    }
    ui::patiently("building the fuzz targets", &mut cargo)?;
    let mut broken = Vec::new();
    for name in chosen {
        let corpus = built.join("corpus").join(name);
        fs::create_dir_all(&corpus).with_context(|| format!("creating {}", corpus.display()))?;
        let found = built.join("found").join(name);
        fs::create_dir_all(&found).with_context(|| format!("creating {}", found.display()))?;
        let mut target = Command::new(built.join(&host).join("release").join(name));
        target
            .arg(&corpus)
            .args(seeds(&workspace, name))
            .arg(format!("-max_total_time={}", args.seconds))
            .arg(format!("-rss_limit_mb={MEMORY_MB}"))
            .arg("-timeout=10")
            .arg("-print_final_stats=1")
            .arg(format!("-artifact_prefix={}/", found.display()));
        let done = target
            .output()
            .with_context(|| format!("starting {name}"))?;
        let said = String::from_utf8_lossy(&done.stderr);
        let count = |key: &str| {
            let line = said.lines().find(|line| line.contains(key));
            line.and_then(|line| line.rsplit(' ').next())
                .unwrap_or("?")
                .to_owned()
        };
        ui::out(format_args!(
            "{name:20} {:>10} runs, {:>6} a second, peak {:>4} MB: {}",
            count("number_of_executed_units"),
            count("average_exec_per_sec"),
            count("peak_rss_mb"),
            if done.status.success() {
                "ok"
            } else {
                "FAILED"
            }
        ));
        if !done.status.success() {
            let lines: Vec<&str> = said.lines().collect();
            ui::note(lines[lines.len().saturating_sub(25)..].join("\n"));
            broken.push(format!("{name}: {}", found.display()));
        }
    }
    if broken.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(ui::hint(
        format!("broken by input: {}", broken.join(", ")),
        "make a unit test of the input found there, then mend the code",
    ))
}

/// The programs of the crate `fuzz`, by their files.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let dir = workspace.root.join("fuzz/fuzz_targets");
    let files = fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut names: Vec<String> = files
        .filter_map(|file| Some(file.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn seeds(workspace: &Workspace, name: &str) -> Option<PathBuf> {
    let dir = workspace.root.join("fuzz/seeds").join(name);
    dir.is_dir().then_some(dir)
}
