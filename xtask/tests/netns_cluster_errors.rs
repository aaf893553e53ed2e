//! What a person gets wrong, or the machine lacks: each gives one line on what failed and one
//! on what to do next, and leaves nothing half made. Needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

/// A directory for clusters that are never made, removed at the end.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests become other users and mount things: run them as root"
        );
        let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a temporary directory");
        Self { dir }
    }

    /// xtask on this place, started by `wrapper` when that is not empty.
    fn xtask(&self, wrapper: &[&str], words: &[&str]) -> Command {
        let mut line: Vec<&str> = wrapper.to_vec();
        line.push(XTASK);
        line.extend(words);
        let mut command = Command::new(line[0]);
        command
            .args(&line[1..])
            .env_remove("KUBECONFIG")
            .env("LINKERD_RS_STATE", &self.dir)
            .stdin(Stdio::null());
        command
    }

    fn clusters(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.dir).expect("the place").flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Best effort: it lies in the temporary directory.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Runs it; it must fail and say both things.
#[track_caller]
fn fails(command: &mut Command, problem: &str, next: &str) {
    let done: Output = command.output().expect("it can be started");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "it went well:\n{said}");
    let line = |begin: &str| {
        said.lines()
            .find(|line| line.starts_with(begin))
            .unwrap_or_default()
    };
    assert!(
        line("error: ").contains(problem),
        "no `{problem}` in:\n{said}"
    );
    assert!(line(" next: ").contains(next), "no `{next}` in:\n{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn without_root_the_command_to_run_is_told() {
    let place = Place::new("root");
    // Where everybody may read it.
    let copy = place.dir.join("xtask");
    fs::copy(XTASK, &copy).expect("a copy");
    let mut up = Command::new("setpriv");
    up.args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .args(["cluster", "up", "--name", "x"])
        .env_remove("KUBECONFIG")
        .env("LINKERD_RS_STATE", &place.dir);
    fails(&mut up, "a local cluster needs root", "sudo -E env");
    assert!(place.clusters().is_empty());
}

#[test]
fn without_disk_nothing_is_begun() {
    let place = Place::new("disk");
    let script = r#"mount -t tmpfs -o size=1m tmpfs "$LINKERD_RS_STATE" && exec "$@""#;
    let wrapper = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let mut up = place.xtask(&wrapper, &["cluster", "up", "--name", "x"]);
    fails(&mut up, "a local cluster needs 2000 MB", "free some space");
    assert!(place.clusters().is_empty());
}

#[test]
fn without_a_free_subnet_nothing_is_begun() {
    let place = Place::new("subnet");
    // In a network of its own, where all our subnets lead somewhere else.
    let script = r#"ip link set lo up && ip route add 10.0.0.0/8 dev lo \
        && ip route add 100.64.0.0/10 dev lo && exec "$@""#;
    let wrapper = ["unshare", "--net", "sh", "-c", script, "sh"];
    let mut up = place.xtask(&wrapper, &["cluster", "up", "--name", "x"]);
    fails(&mut up, "every subnet", "ip route");
    assert!(place.clusters().is_empty());
}

#[test]
fn a_kubeconfig_that_does_not_work_is_not_passed_over() {
    let place = Place::new("kubeconfig");
    let dead = place.dir.join("dead.json");
    let text = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
        "clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],
        "contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
        "users":[{"name":"u","user":{}}]}"#;
    fs::write(&dead, text).expect("a file");
    // Outside of the place, so that it is not taken for a cluster of ours.
    let foreign = Place::new("foreign");
    let moved = foreign.dir.join("dead.json");
    fs::rename(&dead, &moved).expect("the same file system");
    let cases = [
        (Path::new("/no/such/kubeconfig"), "which does not exist"),
        (moved.as_path(), "does not answer"),
    ];
    for (kubeconfig, problem) in cases {
        let mut up = place.xtask(&[], &["cluster", "up", "--name", "x"]);
        fails(
            up.env("KUBECONFIG", kubeconfig),
            problem,
            "unset it to use a local one",
        );
    }
    assert!(place.clusters().is_empty());
}

#[test]
fn a_second_run_on_the_same_cluster_is_told_to_wait() {
    let place = Place::new("lock");
    let lock = place.dir.join("x.lock");
    let held = place.dir.join("held");
    let script = format!("touch {} && exec cat", held.display());
    // It holds the lock until its input ends.
    let mut holder = Command::new("flock")
        .arg(&lock)
        .args(["sh", "-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .expect("flock can be started");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !held.exists() {
        assert!(Instant::now() < deadline, "the lock was not taken");
        std::thread::yield_now();
    }
    let mut up = place.xtask(&[], &["cluster", "up", "--name", "x"]);
    fails(
        &mut up,
        "another run is working on cluster x",
        "wait for the other run",
    );
    drop(holder.stdin.take());
    holder.wait().expect("it ends with its input");
    assert!(place.clusters().is_empty());
}

#[test]
fn damaged_state_is_named_and_can_be_cleared_away() {
    let place = Place::new("damage");
    fs::create_dir(place.dir.join("x")).expect("a directory");
    fs::write(place.dir.join("x/cluster.json"), "{").expect("a file");
    let mut up = place.xtask(&[], &["cluster", "up", "--name", "x"]);
    fails(&mut up, "cannot be read", "cluster down --name x");
    let down = place
        .xtask(&[], &["cluster", "down", "--name", "x"])
        .output();
    assert!(down.expect("it can be started").status.success());
    assert!(place.clusters().is_empty());
}

#[test]
fn what_is_not_there_is_told() {
    let place = Place::new("absent");
    let cases: [&[&str]; 3] = [
        &["cluster", "status", "--name", "x"],
        &["cluster", "kubeconfig", "--name", "x"],
        &["cluster", "logs", "--name", "x", "etcd"],
    ];
    for words in cases {
        fails(
            &mut place.xtask(&[], words),
            "there is no cluster x",
            "cluster up --name x",
        );
    }
    let bad = place
        .xtask(&[], &["cluster", "up", "--name", "../x"])
        .output();
    let said = String::from_utf8_lossy(&bad.expect("it can be started").stderr).into_owned();
    assert!(said.contains("lower-case letters"), "{said}");
}
