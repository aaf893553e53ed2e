//! `cargo xtask test`: every floor of tests, one after the other, with a summary at the end.
//! Which floor a test is on is told by the name of its target. A floor that cannot run fails:
//! leaving one out must be asked for by naming the others.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::workspace::{self, Workspace};
use crate::{charts, images, machine, setup, ui};

mod cluster;
mod tally;

use tally::Tally;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only this floor; may be given more than once [default: all]
    #[arg(long, value_enum, value_name = "FLOOR")]
    floor: Vec<Floor>,
    /// Run only the tests whose name contains this
    #[arg(long, value_name = "FILTER")]
    only: Option<String>,
    /// Put the images into the cluster as they ship; otherwise they are built quickly
    #[arg(long)]
    release: bool,
    /// Leave the cluster of the tests running
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Floor {
    /// Format, lints, and the tests inside the sources
    Unit,
    /// Whole programs in one process, against fakes: `tests/process_*.rs`
    Process,
    /// Real redirection in network namespaces, as root: `tests/netns_*.rs`
    Netns,
    /// A real Kubernetes, as root: `tests/cluster_*.rs`
    Cluster,
}

const FLOORS: [Floor; 4] = [Floor::Unit, Floor::Process, Floor::Netns, Floor::Cluster];

/// No floor is waited for longer than this.
const PATIENCE: Duration = Duration::from_secs(40 * 60);
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);

/// How one floor went.
#[derive(Debug)]
struct Outcome {
    floor: Floor,
    time: Duration,
    tally: Tally,
}

/// What all floors share.
struct Run<'a> {
    args: &'a Args,
    workspace: Workspace,
    logs: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let floors = if args.floor.is_empty() {
        FLOORS.to_vec()
    } else {
        args.floor.clone()
    };
    setup::ensure(&[setup::Purpose::Build])?;
    charts::run()?;
    let workspace = Workspace::find()?;
    let logs = workspace.target.join("xtask-test");
    std::fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    let run = Run {
        args,
        workspace,
        logs,
    };

    let mut outcomes = Vec::new();
    for floor in floors {
        ui::note(format_args!("floor {}", floor.name()));
        let start = Instant::now();
        let mut tally = Tally::default();
        if let Err(error) = run.floor(floor, &mut tally) {
            ui::failure(&error);
            tally.fail(format!("{} floor: {error:#}", floor.name()));
        }
        outcomes.push(Outcome {
            floor,
            time: start.elapsed(),
            tally,
        });
    }
    if let Some(filter) = &args.only
        && outcomes.iter().all(|outcome| outcome.tally.is_empty())
    {
        return Err(ui::hint(
            format!("no test of these floors has {filter:?} in its name"),
            "name another part of a test's path, or other floors",
        ));
    }
    Ok(summary(&outcomes))
}

/// The table, the names of what failed, and the closing line, alone.
fn summary(outcomes: &[Outcome]) -> ExitCode {
    ui::out(format_args!(
        "\n{:<8} {:>14} {:>8} {:>8}",
        "floor", "time", "passed", "failed"
    ));
    let (mut passed, mut failed) = (0, 0);
    for Outcome { floor, time, tally } in outcomes {
        let (name, time) = (floor.name(), ui::seconds(*time));
        ui::out(format_args!(
            "{name:<8} {time:>14} {:>8} {:>8}",
            tally.passed,
            tally.failed()
        ));
        passed += tally.passed;
        failed += tally.failed();
    }
    for Outcome { floor, tally, .. } in outcomes {
        for ignored in &tally.ignored {
            ui::out(format_args!("ignored  {:<8} {ignored}", floor.name()));
        }
        for failure in &tally.failures {
            ui::out(format_args!("FAILED   {:<8} {failure}", floor.name()));
        }
    }
    ui::out(format_args!("\n{passed} passed, {failed} failed"));
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

// === impl Floor ===

impl Floor {
    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Process => "process",
            Self::Netns => "netns",
            Self::Cluster => "cluster",
        }
    }

    /// What the names of its test targets begin with.
    fn prefix(self) -> String {
        format!("{}_", self.name())
    }
}

// === impl Run ===

impl Run<'_> {
    fn floor(&self, floor: Floor, tally: &mut Tally) -> Result<()> {
        match floor {
            Floor::Unit => {
                self.lints(tally);
                self.tests(floor, &["--lib", "--bins", "--examples"], &[], tally)
            }
            Floor::Process => self.targets(floor, &[], tally),
            Floor::Netns => {
                machine::require_root("the netns floor")?;
                setup::ensure(&[setup::Purpose::Cluster, setup::Purpose::Test])?;
                self.targets(floor, &[], tally)
            }
            Floor::Cluster => self.cluster(tally),
        }
    }

    /// Runs the cluster floor in a cluster that has the images of this tree.
    fn cluster(&self, tally: &mut Tally) -> Result<()> {
        if self.nothing_on(Floor::Cluster) {
            return Ok(());
        }
        let cluster = cluster::Cluster::up(self.args.keep)?;
        for archive in images::make(&images::quick(!self.args.release))? {
            cluster.load(&archive)?;
        }
        // A cluster that is not ours pulls from wherever its owner says.
        let said = |name: &str, ours: String| std::env::var(name).unwrap_or(ours);
        let registry = said("LINKERD_IMAGE_REGISTRY", images::REGISTRY.to_owned());
        let version = said("LINKERD_IMAGE_VERSION", images::version());
        let environment = [
            ("KUBECONFIG", cluster.kubeconfig()),
            ("LINKERD_IMAGE_REGISTRY", registry.as_ref()),
            ("LINKERD_IMAGE_VERSION", version.as_ref()),
        ];
        self.targets(Floor::Cluster, &environment, tally)?;
        cluster.down()
    }

    /// Runs the test targets that belong to a floor by their names.
    fn targets(
        &self,
        floor: Floor,
        environment: &[(&str, &Path)],
        tally: &mut Tally,
    ) -> Result<()> {
        if self.nothing_on(floor) {
            return Ok(());
        }
        self.tests(
            floor,
            &["--test", &format!("{}*", floor.prefix())],
            environment,
            tally,
        )
    }

    fn nothing_on(&self, floor: Floor) -> bool {
        let empty = self.workspace.test_targets(&floor.prefix()).is_empty();
        if empty {
            ui::note(format_args!(
                "  the workspace has no tests/{}*.rs",
                floor.prefix()
            ));
        }
        empty
    }

    /// Format and lints of everything; someone who filters tests does not ask for these.
    fn lints(&self, tally: &mut Tally) {
        if self.args.only.is_some() {
            ui::note("  no rustfmt and clippy, because of --only");
            return;
        }
        let rustfmt = "fmt --all -- --check -l";
        let clippy = "clippy --workspace --all-targets -- -D warnings";
        for (name, words) in [("rustfmt", rustfmt), ("clippy", clippy)] {
            self.lint(name, words, tally);
        }
    }

    /// Runs a check of the sources; a failure shows everything it said.
    fn lint(&self, name: &str, words: &str, tally: &mut Tally) {
        let log = self.logs.join(format!("{name}.log"));
        let checked = ui::long_step(name, || {
            let file = File::create(&log).with_context(|| format!("writing {}", log.display()))?;
            let mut cargo = workspace::cargo();
            let mut child = cargo
                .current_dir(&self.workspace.root)
                .args(words.split(' '))
                .env("CARGO_TERM_COLOR", "never")
                .stdout(file.try_clone().context("sharing the log")?)
                .stderr(file)
                .spawn()
                .context("starting cargo")?;
            let mut signs = Signs::new();
            let status = ui::wait_for(name, PATIENCE, || {
                signs.tell(|| format!("still at {name}"));
                Ok(child.try_wait()?)
            })?;
            anyhow::ensure!(status.success(), "{name} found something");
            Ok(())
        });
        if checked.is_err() {
            for line in std::fs::read_to_string(&log).unwrap_or_default().lines() {
                if !line.trim_start().starts_with("Checking ") {
                    ui::note(format_args!("    {line}"));
                }
            }
            tally.fail(format!("{name}: run `cargo {words}`"));
        }
    }

    fn tests(
        &self,
        floor: Floor,
        selection: &[&str],
        environment: &[(&str, &Path)],
        tally: &mut Tally,
    ) -> Result<()> {
        let mut cargo = workspace::cargo();
        cargo
            .current_dir(&self.workspace.root)
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(selection)
            .envs(environment.iter().copied())
            .args(["--"])
            .args(&self.args.only);
        let log = self.logs.join(format!("{}.log", floor.name()));
        watch(&mut cargo, &log, tally)
            .with_context(|| format!("running tests (all they printed is in {})", log.display()))
    }
}

/// Runs `cargo test`, prints a line for each test program as it ends and everything of those
/// that failed, and keeps the whole output in `log`.
fn watch(cargo: &mut Command, log: &Path, tally: &mut Tally) -> Result<()> {
    let (reader, writer) = std::io::pipe().context("making a pipe")?;
    let mut child = cargo
        .env("CARGO_TERM_COLOR", "never")
        .stdout(writer.try_clone().context("sharing a pipe")?)
        .stderr(writer)
        .spawn()
        .context("starting cargo")?;
    // The command holds our copies of the pipe's end: the reader would never see its end.
    cargo
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());

    let (lines, received) = mpsc::sync_channel::<String>(1024);
    let reading = std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if lines
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    let watched = follow(&received, log, tally);
    drop(received);
    if watched.is_err() {
        end_family(&child);
    }
    let status = child.wait().context("waiting for cargo")?;
    // Threads that read a closed pipe end by themselves.
    drop(reading);
    watched?;
    if !status.success() && tally.explains_failure() {
        tally.fail(format!(
            "cargo test ended with {status}; see {}",
            log.display()
        ));
    }
    Ok(())
}

fn follow(lines: &mpsc::Receiver<String>, log: &Path, tally: &mut Tally) -> Result<()> {
    let mut log = File::create(log).with_context(|| format!("writing {}", log.display()))?;
    let start = Instant::now();
    let mut signs = Signs::new();
    tally.begin();
    loop {
        if start.elapsed() > PATIENCE {
            anyhow::bail!("the tests did not end within {}", ui::seconds(PATIENCE));
        }
        match lines.recv_timeout(SIGN_OF_LIFE) {
            Ok(line) => {
                writeln!(log, "{line}").context("writing the log")?;
                if let Some(report) = tally.line(&line) {
                    ui::note(report);
                    signs.told = Instant::now();
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        signs.tell(|| tally.doing());
    }
    if let Some(rest) = tally.end() {
        ui::note(rest);
    }
    Ok(())
}

/// Tells now and then what goes on, when nothing else does.
struct Signs {
    start: Instant,
    told: Instant,
}

impl Signs {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            told: now,
        }
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.told.elapsed() >= SIGN_OF_LIFE {
            self.told = Instant::now();
            ui::note(format_args!(
                "    {} ({})",
                what(),
                ui::seconds(self.start.elapsed())
            ));
        }
    }
}

/// Ends cargo and the test programs it started. They are not a group of their own: a person's
/// Ctrl-C has to reach them all.
fn end_family(child: &Child) {
    let mut family = vec![child.id()];
    let mut known = 0;
    while let Some(parent) = family.get(known).copied() {
        known += 1;
        family.extend(children(parent));
    }
    for pid in family {
        let pid = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `1 (any) name) S 0 …`: what follows the name are the state and the parent.
        let parent_of = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parent_of == Some(parent)
    };
    let Ok(all) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    all.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_child)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_reaches_grandchildren() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 600 & wait"])
            .spawn()
            .expect("a shell");
        let grandchildren = ui::wait_for("a sleeping grandchild", SIGN_OF_LIFE, || {
            let found = children(shell.id());
            Ok((!found.is_empty()).then_some(found))
        })
        .expect("the shell starts one");
        end_family(&shell);
        shell.wait().expect("ended");
        ui::wait_for("its end", SIGN_OF_LIFE, || {
            let alive = |pid: &u32| {
                let path = format!("/proc/{pid}/cmdline");
                std::fs::read(path).is_ok_and(|words| !words.is_empty())
            };
            Ok((!grandchildren.iter().any(alive)).then_some(()))
        })
        .expect("it ended too");
    }
}
