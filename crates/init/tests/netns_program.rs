//! The init program against a real kernel (root): documented listings, refused inputs, missing or
//! failing programs, the lock, users, read-only roots, IPv6 off, `--diff`, `--simulate`, `--netns`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

#[path = "support/scene.rs"]
mod scene;

use linkerd_testkit::netns::Namespace;
use scene::{BACKENDS, INIT, Scene, Server, init, init_output, ruleset};

const PATIENCE: Duration = Duration::from_secs(60);
const POD: &[&str] = &["-p", "4143", "-o", "4140", "-u", "2102"];
const DOCUMENTED: &str = "--incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 \
    --inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 443,6443";

every_backend!(
    diff_tells_and_touches_nothing,
    as_another_user,
    on_a_read_only_root,
    ipv6_switched_off,
    in_another_namespace,
    ten_thousand_ports,
    two_at_once,
    many_at_once_on_an_empty_table,
);

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("linkerd-init-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
        Self(path)
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.0.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The command lines of a process's children.
fn child_commands(id: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|ids| {
            ids.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<String>>()
        })
        .filter_map(|id| std::fs::read_to_string(format!("/proc/{id}/cmdline")).ok())
        .collect()
}

fn run(netns: &Namespace, command: &mut Command) -> Output {
    netns.run(|| command.output()).expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        stdout(output),
        stderr(output)
    );
}

/// A listing without its counts. Newer programs show protocols by number when asked for numbers.
fn listing(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["Chain", name, "(policy", policy, ..] => format!("Chain {name} (policy {policy})"),
                ["Chain" | "pkts", ..] => words.join(" "),
                [_, _, target, protocol, rest @ ..] => {
                    let protocol = match *protocol {
                        "6" => "tcp",
                        "0" => "all",
                        other => other,
                    };
                    format!("{target} {protocol} {}", rest.join(" "))
                }
                _ => words.join(" "),
            }
        })
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn the_documented_example_holds_to_the_letter() {
    let netns = Namespace::new("documented");
    let args: Vec<&str> = DOCUMENTED.split_whitespace().collect();
    init(&netns, "legacy", &args);
    for chain in [
        "PREROUTING",
        "PROXY_INIT_REDIRECT",
        "OUTPUT",
        "PROXY_INIT_OUTPUT",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/golden/documented/{chain}.txt"));
        let documented = std::fs::read_to_string(path).expect("the documented listing");
        let actual = netns.output("iptables-legacy", &["-t", "nat", "-L", chain, "-n", "-v"]);
        assert_eq!(listing(&actual), listing(&documented), "{chain}");
    }
}

/// The default mode is legacy.
#[test]
fn without_a_mode_the_legacy_tables_are_used() {
    let netns = Namespace::new("default-mode");
    succeeded(&run(&netns, Command::new(INIT).args(POD)));
    let saved = netns.output("iptables-legacy-save", &["-t", "nat"]);
    assert!(saved.contains("-A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT"), "{saved}");
}

#[test]
fn refused_inputs_change_nothing() {
    let netns = Namespace::new("refused");
    init(
        &netns,
        "legacy",
        &[POD, &["--inbound-ports-to-ignore", "1"]].concat(),
    );
    let before = ruleset(&netns);
    let cases: &[(&[&str], &str)] = &[
        (
            &["--iptables-mode", "x"],
            "--iptables-mode valid values are only \"legacy\", \"nft\" and \"plain\"",
        ),
        (
            &["--firewall-bin-path", "x"],
            "--firewall-bin-path valid values are only \"iptables-legacy\", \"iptables-nft\" and \"iptables\"",
        ),
        (
            &["-p", "-1", "-o", "1"],
            "--incoming-proxy-port must be a valid TCP port number",
        ),
        (
            &["-p", "0", "-o", "1"],
            "--incoming-proxy-port must be a valid TCP port number",
        ),
        (
            &["-p", "100000", "-o", "1"],
            "--incoming-proxy-port must be a valid TCP port number",
        ),
        (&[], "--incoming-proxy-port must be a valid TCP port number"),
        (
            &["-p", "1", "-o", "100000"],
            "--outgoing-proxy-port must be a valid TCP port number",
        ),
        (
            &["-p", "1"],
            "--outgoing-proxy-port must be a valid TCP port number",
        ),
        (
            &["-p", "1", "-o", "2", "--subnets-to-ignore", "0.0.0.0"],
            "0.0.0.0 is not a valid CIDR address",
        ),
        (
            &["-p", "1", "-o", "2", "--log-level", "loud"],
            "not a valid logrus Level: \"loud\"",
        ),
        (&["--bogus"], "unknown flag: --bogus"),
        (
            &["-r", "x"],
            "invalid argument \"x\" for \"-r, --ports-to-redirect\" flag: strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            &["-u", "x"],
            "invalid argument \"x\" for \"-u, --proxy-uid\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            &["--ipv6=x"],
            "invalid argument \"x\" for \"--ipv6\" flag: strconv.ParseBool: parsing \"x\": invalid syntax",
        ),
        (
            &["-p", "1", "-o", "2", "--inbound-ports-to-ignore", "25-23"],
            "invalid port configuration of \"25-23\": \"25-23\": upper-bound must be greater than or equal to lower-bound",
        ),
        (
            &[
                "-p",
                "1",
                "-o",
                "2",
                "--strict-ports",
                "--outbound-ports-to-ignore",
                "80,1-2-3",
            ],
            "invalid port configuration of \"1-2-3\": ranges expected as <lower>-<upper>",
        ),
        (
            &["-p", "1", "-o", "2", "-r", "70000"],
            "--ports-to-redirect: 70000 is not a valid TCP port number",
        ),
    ];
    for (args, text) in cases {
        let output = run(&netns, Command::new(INIT).args(*args));
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let error = stderr(&output);
        assert_eq!(
            error.lines().next(),
            Some(format!("Error: {text}").as_str()),
            "{args:?}"
        );
        assert!(error.contains("Usage:"), "{args:?}");
        assert_eq!(ruleset(&netns), before, "{args:?}");
    }
    // A bad item among good ones is logged and left out.
    let log = init(
        &netns,
        "legacy",
        &[POD, &["--inbound-ports-to-ignore", "80,25-23"]].concat(),
    );
    assert!(
        log.contains("level=error msg=\"invalid port configuration of"),
        "{log}"
    );
}

/// Failures that are not about flags: one line, no usage text, the kernel as before.
#[test]
fn missing_and_failing_programs() {
    let netns = Namespace::new("programs");
    let before = ruleset(&netns);
    let folder = Folder::new("programs");
    let path = folder.0.display().to_string();
    let fail = |args: &[&str], path: &str| -> Output {
        let output = run(
            &netns,
            Command::new(INIT).args(POD).args(args).env("PATH", path),
        );
        assert_eq!(
            output.status.code(),
            Some(1),
            "{args:?}: {}",
            stdout(&output)
        );
        output
    };
    let missing = fail(&["--iptables-mode", "nft"], "/nonexistent");
    assert_eq!(
        stderr(&missing),
        "Error: exec: \"iptables-nft-save\": executable file not found in $PATH\n"
    );
    assert!(stdout(&missing).contains("no suitable binaries found on PATH"));

    for suffix in ["", "-save", "-restore"] {
        folder.script(&format!("iptables-legacy{suffix}"), "exit 0");
        folder.script(&format!("ip6tables-legacy{suffix}"), "exit 0");
    }
    // Programs that claim success without doing anything are caught by reading back.
    let lying = fail(&["--iptables-mode", "legacy"], &path);
    assert!(
        stderr(&lying).contains(
            "IPv4 rules were applied but read back differently: + -A PROXY_INIT_REDIRECT"
        ),
        "{}",
        stderr(&lying)
    );

    folder.script("iptables-legacy-save", "echo no table >&2; exit 3");
    let failing = fail(&["--iptables-mode", "legacy"], &path);
    assert_eq!(stderr(&failing), "Error: exit status 3\n");
    assert!(
        stdout(&failing).contains("msg=\"no table\\n\""),
        "{}",
        stdout(&failing)
    );
    assert!(stdout(&failing).contains("level=error msg=\"aborting firewall configuration\""));

    folder.script("iptables-legacy-save", "exit 0");
    folder.script(
        "iptables-legacy-restore",
        "echo \"can't initialize iptables table \\`nat': Table does not exist\" >&2; exit 2",
    );
    let failing = fail(&["--iptables-mode", "legacy"], &path);
    assert_eq!(stderr(&failing), "Error: exit status 2\n");
    assert!(
        stdout(&failing).contains("likely cause: the kernel lacks this iptables backend"),
        "{}",
        stdout(&failing)
    );

    folder.script("iptables-legacy-save", "kill -9 $$");
    assert_eq!(
        stderr(&fail(&["--iptables-mode", "legacy"], &path)),
        "Error: signal: 9\n"
    );
    assert_eq!(ruleset(&netns), before);
}

/// An image without any program: what the chart asks for by program name still works.
#[test]
fn without_programs_the_kernel_is_used_directly() {
    let netns = Namespace::new("no-programs");
    let output = run(
        &netns,
        Command::new(INIT)
            .args(POD)
            .args([
                "--firewall-bin-path",
                "iptables-nft",
                "--firewall-save-bin-path",
                "iptables-nft-save",
            ])
            .env("PATH", "/nonexistent"),
    );
    succeeded(&output);
    assert!(
        stdout(&output).contains("using the native backend"),
        "{}",
        stdout(&output)
    );
    assert!(ruleset(&netns).contains("table ip6 linkerd_init"));
}

#[test]
fn a_missing_mode_falls_back_to_complete_programs() {
    let netns = Namespace::new("fallback");
    let folder = Folder::new("fallback");
    for family in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{family}-nft{suffix}");
            std::os::unix::fs::symlink(target, folder.0.join(format!("{family}-nft{suffix}")))
                .expect("a link");
        }
    }
    let output = run(&netns, Command::new(INIT).args(POD).env("PATH", &folder.0));
    succeeded(&output);
    assert!(
        stdout(&output).contains("fallbackBin=iptables-nft fallbackSaveBin=iptables-nft-save"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_busy_lock_is_waited_for_and_then_named() {
    let netns = Namespace::new("lock");
    let folder = Folder::new("lock");
    let lock = folder.0.join("xtables.lock");
    let holder = std::fs::File::create(&lock).expect("a lock file");
    holder.lock().expect("the lock is taken");
    let mut command = Command::new(INIT);
    command
        .args(POD)
        .args(["--iptables-mode", "legacy"])
        .env("XTABLES_LOCKFILE", &lock);
    let output = run(&netns, &mut command);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "Error: exit status 4\n",
        "{}",
        stdout(&output)
    );
    assert!(
        stdout(&output).contains("likely cause: another program holds the xtables lock"),
        "{}",
        stdout(&output)
    );
    assert!(
        !netns
            .output("iptables-legacy-save", &["-t", "nat"])
            .contains("PROXY_INIT")
    );

    // Released while the program waits for it.
    command
        .arg("-w")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut waiting = netns.spawn(&mut command);
    linkerd_testkit::wait_for(PATIENCE, "a restore waits for the lock", || {
        child_commands(waiting.id())
            .iter()
            .any(|line| line.contains("restore"))
    });
    holder.unlock().expect("the lock is released");
    let status = waiting.ended(PATIENCE);
    assert!(status.success());
    assert!(
        netns
            .output("iptables-legacy-save", &["-t", "nat"])
            .contains("PROXY_INIT")
    );
}

#[test]
fn simulate_touches_nothing() {
    for backend in BACKENDS {
        let netns = Namespace::new("simulate");
        init(
            &netns,
            backend,
            &[POD, &["--simulate", "--timeout-close-wait-secs", "7"]].concat(),
        );
        let tables = netns.output("cat", &["/proc/thread-self/net/ip_tables_names"]);
        assert_eq!(tables, "", "{backend} made a legacy table");
        assert_eq!(netns.output("nft", &["list", "ruleset"]), "", "{backend}");
    }
}

fn diff_tells_and_touches_nothing(backend: &str) {
    let netns = Namespace::new("diff");
    let with = |extra: &[&'static str]| [POD, &["--ipv6=false", "--diff"], extra].concat();
    let fresh = init(&netns, backend, &with(&[]));
    assert_eq!(
        fresh
            .lines()
            .filter(|line| line.starts_with("ip + "))
            .count(),
        6,
        "{fresh}"
    );
    assert_eq!(
        netns.output("cat", &["/proc/thread-self/net/ip_tables_names"]),
        ""
    );
    assert_eq!(netns.output("nft", &["list", "ruleset"]), "");

    init(&netns, backend, &[POD, &["--ipv6=false"]].concat());
    let before = ruleset(&netns);
    let same = init(&netns, backend, &with(&[]));
    assert!(same.contains("no difference"), "{same}");
    let other = init(
        &netns,
        backend,
        &with(&["-u", "2103", "--outbound-ports-to-ignore", "443"]),
    );
    let changed: Vec<&str> = other
        .lines()
        .filter(|line| line.starts_with("ip "))
        .collect();
    assert_eq!(changed.len(), 3, "{other}");
    assert!(
        changed[0].starts_with("ip - ") && changed[0].contains("2102"),
        "{other}"
    );
    assert!(
        changed[1].starts_with("ip + ") && changed[1].contains("2103"),
        "{other}"
    );
    assert!(
        changed[2].starts_with("ip + ") && changed[2].contains("443"),
        "{other}"
    );
    assert_eq!(ruleset(&netns), before);
    // Another backend's rules are told of.
    let elsewhere = if backend == "native" {
        "legacy"
    } else {
        "native"
    };
    let told = init(&netns, elsewhere, &with(&[]));
    assert!(told.contains("ip - all rules of ours in the "), "{told}");
    assert_eq!(ruleset(&netns), before);
}

/// As in the image: not root, with file capabilities, and with those the runtime gives.
fn as_another_user(backend: &str) {
    let scene = Scene::new();
    let netns = &scene.pod.netns;
    let _proxy = Server::both(netns, 4143, "inbound");
    let folder = Folder::new(&format!("user-{backend}"));
    let program = folder.0.join("linkerd2-proxy-init");
    std::fs::copy(INIT, &program).expect("a copy");
    let program = program.display().to_string();
    let setpriv = |extra: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .args(extra)
            .arg(&program)
            .args(POD)
            .args(["--iptables-mode", backend]);
        run(netns, &mut command)
    };
    // Without capabilities: refused, with the reason.
    let output = setpriv(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(
        stdout(&output).contains("does not have NET_ADMIN"),
        "{}",
        stdout(&output)
    );
    netns.output("setcap", &["cap_net_raw,cap_net_admin+eip", &program]);
    succeeded(&setpriv(&[]));
    assert!(
        scene
            .inward(9090)
            .expect("an answer")
            .starts_with("inbound")
    );
    init(netns, backend, &["--cleanup"]);
    netns.output("setcap", &["-r", &program]);
    let ambient = [
        "--inh-caps=+net_admin,+net_raw",
        "--ambient-caps=+net_admin,+net_raw",
        "--no-new-privs",
    ];
    succeeded(&setpriv(&ambient));
    assert!(
        scene
            .inward6(9090)
            .expect("an answer")
            .starts_with("inbound")
    );
}

/// Nothing can be written anywhere, not even the lock file.
fn on_a_read_only_root(backend: &str) {
    let netns = Namespace::new("read-only");
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs -o ro tmpfs /run && mount -o remount,bind,ro / && \
         ! touch /run/x 2>/dev/null && exec {INIT} {} --iptables-mode {backend}",
        POD.join(" ")
    );
    succeeded(&run(
        &netns,
        Command::new("unshare").args(["--mount", "sh", "-c", &script]),
    ));
    assert!(ruleset(&netns).contains("PROXY_INIT_REDIRECT"));
}

fn ipv6_switched_off(backend: &str) {
    let netns = Namespace::new("ipv6-off");
    netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    let log = init(&netns, backend, POD);
    assert!(
        log.contains("level=warning msg=\"IPv6 is switched off"),
        "{log}"
    );
    assert!(ruleset(&netns).contains("PROXY_INIT_REDIRECT"));
}

/// IPv6 rules that cannot be made matter only where there is IPv6.
#[test]
fn failing_ipv6_programs() {
    let folder = Folder::new("ipv6-programs");
    for suffix in ["", "-save", "-restore"] {
        let target = format!("/usr/sbin/iptables-legacy{suffix}");
        std::os::unix::fs::symlink(target, folder.0.join(format!("iptables-legacy{suffix}")))
            .expect("a link");
        folder.script(
            &format!("ip6tables-legacy{suffix}"),
            "echo no ip6 >&2; exit 3",
        );
    }
    for (off, code) in [("0", 1), ("1", 0)] {
        let netns = Namespace::new("ipv6-programs");
        netns.sysctl("net/ipv6/conf/all/disable_ipv6", off);
        let mut command = Command::new(INIT);
        command
            .args(POD)
            .args(["--iptables-mode", "legacy"])
            .env("PATH", format!("{}:/usr/bin:/bin", folder.0.display()));
        let output = run(&netns, &mut command);
        assert_eq!(output.status.code(), Some(code), "{}", stdout(&output));
        // IPv4 stays in place either way.
        assert!(
            netns
                .output("iptables-legacy-save", &["-t", "nat"])
                .contains("PROXY_INIT_REDIRECT")
        );
    }
}

/// `--netns` from outside does what a run inside does, without nsenter.
fn in_another_namespace(backend: &str) {
    let (inside, outside, home) = (
        Namespace::new("inside"),
        Namespace::new("outside"),
        Namespace::new("home"),
    );
    init(&inside, backend, POD);
    let path = outside.path();
    let log = init(&home, backend, &[POD, &["--netns", &path]].concat());
    assert_eq!(ruleset(&outside), ruleset(&inside));
    assert!(!ruleset(&home).contains("PROXY_INIT"));
    if backend != "native" {
        assert!(log.contains(&format!("nsenter --net={path} -- ")), "{log}");
    }
    let output = init_output(
        &home,
        backend,
        &[POD, &["--netns", "/nonexistent"]].concat(),
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).starts_with("Error: cannot enter the network namespace /nonexistent: ")
    );
}

fn ten_thousand_ports(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 4143, "inbound");
    let list: Vec<String> = (0..10_000)
        .map(|at| (10_000 + 2 * at).to_string())
        .collect();
    scene.init(
        backend,
        &[POD, &["--inbound-ports-to-ignore", &list.join(",")]].concat(),
    );
    assert!(scene.inward(29_998).is_err());
    assert!(scene.inward6(10_000).is_err());
    assert!(
        scene
            .inward(29_999)
            .expect("an answer")
            .starts_with("inbound")
    );
    scene.init(backend, POD);
    assert!(
        scene
            .inward(29_998)
            .expect("an answer")
            .starts_with("inbound")
    );
}

/// Runs at the same time end in one whole rule set.
fn two_at_once(backend: &str) {
    let netns = Namespace::new("at-once");
    init(&netns, backend, POD);
    let whole = ruleset(&netns);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| init(&netns, backend, POD));
        }
    });
    assert_eq!(ruleset(&netns), whole);
}

/// Each decides for itself whether the jumps are missing: they must not all find them missing.
fn many_at_once_on_an_empty_table(backend: &str) {
    let netns = Namespace::new("at-first");
    std::thread::scope(|threads| {
        for id in ["1", "2", "3", "4", "5", "6"] {
            let args = [POD, &["-g", id]].concat();
            threads.spawn(|| {
                let args = args;
                init(&netns, backend, &args)
            });
        }
    });
    let after = ruleset(&netns);
    init(&netns, backend, &[POD, &["-g", "7"]].concat());
    assert_eq!(after.lines().count(), ruleset(&netns).lines().count());
}

#[test]
fn a_table_of_nft_rules_is_left_alone() {
    let netns = Namespace::new("foreign");
    let script = "add table ip nat; \
        add chain ip nat PREROUTING { type nat hook prerouting priority -100; }; \
        add rule ip nat PREROUTING tcp dport 81 redirect to :82";
    let made = run(&netns, Command::new("nft").arg(script));
    assert!(made.status.success(), "{}", stderr(&made));
    let before = ruleset(&netns);
    for task in [&[][..], &["--diff"]] {
        let output = init_output(&netns, "nft", &[POD, task].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        assert_eq!(
            stderr(&output),
            "Error: the IPv4 nat table holds rules of nft that iptables cannot read: \
             remove them, or use --iptables-mode native\n"
        );
        assert_eq!(ruleset(&netns), before);
    }
    init(&netns, "native", POD);
    assert!(ruleset(&netns).contains("redirect to :82"));
}

#[test]
fn close_wait_timeout() {
    let netns = Namespace::new("close-wait");
    let key = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let log = init(
        &netns,
        "native",
        &[POD, &["--timeout-close-wait-secs", "3600"]].concat(),
    );
    assert!(
        log.contains("msg=\"net.netfilter.nf_conntrack_tcp_timeout_close_wait = 3600\""),
        "{log}"
    );
    assert_eq!(
        netns
            .run(|| std::fs::read_to_string(key))
            .expect("readable")
            .trim(),
        "3600"
    );
    let before = ruleset(&netns);
    let output = init_output(
        &netns,
        "native",
        &[
            POD,
            &["--timeout-close-wait-secs", "99999999999", "-u", "9"],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(
        stderr(&output).starts_with(
            "Error: cannot set net.netfilter.nf_conntrack_tcp_timeout_close_wait to 99999999999: "
        ),
        "{}",
        stderr(&output)
    );
    assert_eq!(ruleset(&netns), before);
}
