//! A local cluster's life: `down` leaves nothing of it on the machine, `up` mends what was
//! killed, in the cluster or in the middle of `up` itself, and nodes reach each other's pods.
//! Needs root; each test makes a cluster of its own beside whatever runs already.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

/// A cluster that is taken down when the test ends, however it ends.
struct Cluster {
    name: String,
}

impl Cluster {
    fn new(stem: &str) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "a local cluster needs root: run `cargo xtask test --floor netns` as root"
        );
        Self {
            name: format!("{stem}{}", std::process::id()),
        }
    }

    fn task(&self, words: &[&str]) -> Command {
        let mut command = Command::new(XTASK);
        // Whatever cluster the caller uses, these tests are about their own.
        command
            .env_remove("KUBECONFIG")
            .args(["cluster", words[0], "--name", &self.name])
            .args(&words[1..]);
        command
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        let done = self.task(words).output().expect("xtask can be started");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "cluster {} failed:\n{said}",
            words.join(" ")
        );
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn is_healthy(&self) -> bool {
        let done = self
            .task(&["status"])
            .output()
            .expect("xtask can be started");
        #[expect(
            clippy::print_stdout,
            reason = "the runner shows it when the test fails"
        )]
        {
            println!("{}", String::from_utf8_lossy(&done.stdout));
        }
        done.status.success()
    }

    fn kubectl(&self, words: &[&str]) -> String {
        let mut all = vec!["kubectl", "--"];
        all.extend(words);
        self.run(&all)
    }

    fn dir(&self) -> PathBuf {
        Path::new("/var/lib/linkerd-rs").join(&self.name)
    }

    /// The process of this cluster whose command line contains every one of `words`.
    #[track_caller]
    fn process(&self, words: &[&str]) -> i32 {
        let dir = self.dir().display().to_string();
        let found = processes()
            .into_iter()
            .find(|(_, line)| line.contains(&dir) && words.iter().all(|word| line.contains(word)));
        found.unwrap_or_else(|| panic!("no process {words:?}")).0
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // After a test that went well there is nothing left to do, and this says so.
        let _ = self.task(&["down"]).output();
        // The name never comes again, and so nobody waits for its lock.
        let _ = fs::remove_file(self.dir().with_extension("lock"));
    }
}

/// Every process with its command line, words joined by spaces.
fn processes() -> Vec<(i32, String)> {
    let entries = fs::read_dir("/proc").expect("/proc is there");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (!line.is_empty()).then_some((pid, line))
        })
        .collect()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it can be killed");
}

/// What of the machine a cluster could leave traces in.
#[derive(Debug, PartialEq, Eq)]
struct Machine {
    /// Names of network namespaces that belong to the cluster.
    namespaces: BTreeSet<String>,
    mounts: BTreeSet<String>,
    links: BTreeSet<String>,
    routes: BTreeSet<String>,
    rules: String,
    groups: BTreeSet<PathBuf>,
    settings: Vec<String>,
}

impl Machine {
    /// Other tests may run: of what comes and goes by name, only the cluster's is looked at.
    fn look(cluster: &Cluster) -> Self {
        let ours = format!("l5d-{}-", cluster.name);
        let lines = |program: &str, words: &[&str]| -> BTreeSet<String> {
            let done = Command::new(program)
                .args(words)
                .output()
                .expect("it can be started");
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            text.lines().map(|line| line.trim().to_owned()).collect()
        };
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let mounts = mounts
            .lines()
            .map(str::to_owned)
            .filter(|line| !line.contains("/run/netns/") || line.contains(&ours));
        let links = lines("ip", &["-brief", "link", "show"])
            .into_iter()
            // `l5d-c0@if2 UP …`
            .filter_map(|line| Some(line.split([' ', '@']).next()?.to_owned()))
            .filter(|link| link.starts_with("l5d-c"));
        let own_links: BTreeSet<String> = links
            .filter(|link| {
                let text = lines("ip", &["link", "show", "dev", link]);
                text.iter()
                    .any(|line| line.ends_with(&format!("cluster {}", cluster.name)))
            })
            .collect();
        let routes = lines("ip", &["-4", "route", "show"])
            .into_iter()
            .filter(|route| own_links.iter().any(|link| route.contains(link.as_str())))
            .collect();
        // Packet counters change by themselves.
        let rules = [
            lines("nft", &["--stateless", "list", "ruleset"]),
            lines("iptables-legacy-save", &[]),
        ];
        let rules = rules
            .iter()
            .flatten()
            .filter(|line| !line.starts_with('#') && !line.starts_with(':'));
        Self {
            namespaces: lines("ls", &["/run/netns"])
                .into_iter()
                .filter(|name| name.starts_with(&ours))
                .collect(),
            mounts: mounts.collect(),
            links: own_links,
            routes,
            rules: rules.cloned().collect::<Vec<_>>().join("\n"),
            groups: groups(Path::new("/sys/fs/cgroup"), &cluster.name, 3),
            settings: [
                "kernel/panic",
                "kernel/panic_on_oops",
                "vm/overcommit_memory",
                "net/ipv4/ip_forward",
            ]
            .iter()
            .map(|name| fs::read_to_string(format!("/proc/sys/{name}")).expect("a setting"))
            .collect(),
        }
    }
}

/// Control groups named after the cluster.
fn groups(dir: &Path, cluster: &str, depth: u8) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for path in entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
    {
        if path.ends_with(cluster) {
            found.insert(path);
        } else if depth > 0 {
            found.extend(groups(&path, cluster, depth - 1));
        }
    }
    found
}

/// The process and namespaces of every process below `root`, which is one of them.
fn family(root: i32) -> (BTreeSet<(i32, String)>, BTreeSet<PathBuf>) {
    let stat = |pid: i32| -> Option<Vec<String>> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(
            text.rsplit_once(')')?
                .1
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        )
    };
    let all: Vec<(i32, Vec<String>)> = processes()
        .into_iter()
        .filter_map(|(pid, _)| Some((pid, stat(pid)?)))
        .collect();
    let mut members = BTreeSet::from([root]);
    loop {
        let before = members.len();
        // Fields after the name: state, parent, …; the 20th is the start time.
        members.extend(
            all.iter()
                .filter_map(|(pid, fields)| {
                    let parent: i32 = fields.get(1)?.parse().ok()?;
                    members.contains(&parent).then_some(*pid)
                })
                .collect::<Vec<_>>(),
        );
        if members.len() == before {
            break;
        }
    }
    let times = all.into_iter().filter(|(pid, _)| members.contains(pid));
    let times = times.filter_map(|(pid, fields)| Some((pid, fields.get(19)?.clone())));
    let host = namespaces(i32::try_from(std::process::id()).expect("a process number"));
    let inside = members
        .iter()
        .flat_map(|pid| namespaces(*pid))
        .filter(|ns| !host.contains(ns));
    (times.collect(), inside.collect())
}

/// A process number with when it was given: both together never come again.
fn born(pid: i32) -> (i32, Option<String>) {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default();
    (pid, fields.split_whitespace().nth(19).map(str::to_owned))
}

fn namespaces(pid: i32) -> BTreeSet<PathBuf> {
    ["mnt", "net", "pid", "uts", "ipc"]
        .iter()
        .filter_map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok())
        .collect()
}

/// The first `ip netns add` on a machine, whoever asks for it, mounts /run/netns on itself for
/// good: namespaces of others may hang there. That mount is the machine's, not the cluster's.
fn first_network_namespace(cluster: &Cluster) {
    let name = format!("first-{}", cluster.name);
    for verb in ["add", "delete"] {
        let done = Command::new("ip").args(["netns", verb, &name]).status();
        assert!(
            done.expect("ip can be started").success(),
            "ip netns {verb}"
        );
    }
}

#[test]
fn down_leaves_nothing_behind() {
    let cluster = Cluster::new("t-down-");
    first_network_namespace(&cluster);
    let before = Machine::look(&cluster);
    assert!(before.groups.is_empty() && before.namespaces.is_empty());

    cluster.run(&["up", "--nodes", "2"]);
    let during = Machine::look(&cluster);
    assert_eq!(during.namespaces.len(), 3, "two nodes and the hub");
    assert_eq!(during.links.len(), 1);
    assert!(!during.groups.is_empty());
    assert_eq!(
        before.rules, during.rules,
        "the machine's firewall is not touched"
    );
    assert_eq!(
        before.settings, during.settings,
        "the machine's settings are not touched"
    );
    let mut members = BTreeSet::new();
    let mut inside = BTreeSet::new();
    for node in ["node1", "node2"] {
        let (processes, namespaces) = family(cluster.process(&["pause --node", node]));
        members.extend(processes);
        inside.extend(namespaces);
    }
    assert!(
        members.len() > 10,
        "components, shims and CoreDNS: {members:?}"
    );

    let there: BTreeSet<_> = processes().iter().map(|(pid, _)| born(*pid)).collect();
    let start = Instant::now();
    cluster.run(&["down"]);
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "down took {:?}",
        start.elapsed()
    );

    assert_eq!(Machine::look(&cluster), before);
    assert!(!cluster.dir().exists());
    for (pid, started) in members {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = text
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let lives = fields.get(19) == Some(&started.as_str()) && fields[0] != "Z";
        assert!(!lives, "process {pid} is still there: {text}");
    }
    // The kernel gives the numbers of namespaces that are gone to new ones, of other tests: only
    // who was there before can have been left behind.
    let left = processes()
        .into_iter()
        .filter(|(pid, _)| there.contains(&born(*pid)));
    for (pid, line) in left {
        let shared: Vec<_> = namespaces(pid).intersection(&inside).cloned().collect();
        assert!(shared.is_empty(), "{line} is still in {shared:?}");
    }
    // Gone is gone: once more is no error.
    cluster.run(&["down"]);
}

#[test]
fn up_mends_what_was_killed() {
    let cluster = Cluster::new("t-mend-");
    // Killed again and again on its way, each time one step later.
    for marker in [
        "certificates",
        "network and nodes",
        "API server",
        "nodes ready",
    ] {
        let mut up = cluster
            .task(&["up"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("xtask can be started");
        let stderr = BufReader::new(up.stderr.take().expect("stderr is piped"));
        let seen = stderr
            .lines()
            .map_while(Result::ok)
            .any(|line| line.trim_start().starts_with(marker));
        up.kill().expect("it can be killed");
        up.wait().expect("it can be waited for");
        assert!(seen, "up never said {marker}");
    }
    cluster.run(&["up"]);
    assert!(cluster.is_healthy(), "after interrupted runs");

    for component in [
        "kube-apiserver",
        "kubelet",
        "containerd --config",
        "kube-proxy",
        "kube-scheduler",
    ] {
        kill(cluster.process(&[component]));
    }
    assert!(!cluster.is_healthy(), "five components are dead");
    cluster.run(&["up"]);
    assert!(cluster.is_healthy(), "after the death of components");

    kill(cluster.process(&["pause --node"]));
    cluster.run(&["up"]);
    assert!(cluster.is_healthy(), "after the death of a node");

    let start = Instant::now();
    cluster.run(&["up"]);
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "nothing to do took {:?}",
        start.elapsed()
    );
    cluster.run(&["down"]);
}

#[test]
fn pods_reach_each_other_across_nodes_and_nothing_outside() {
    let cluster = Cluster::new("t-nodes-");
    cluster.run(&["up", "--nodes", "3"]);
    let deployment = "deployment/coredns";
    let spread = r#"{"spec":{"replicas":3,"template":{"spec":{"affinity":{"podAntiAffinity":{
        "requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname",
        "labelSelector":{"matchLabels":{"k8s-app":"kube-dns"}}}]}}}},
        "strategy":{"type":"Recreate","rollingUpdate":null}}}"#;
    cluster.kubectl(&[
        "--namespace=kube-system",
        "patch",
        deployment,
        "--patch",
        spread,
    ]);
    cluster.kubectl(&[
        "--namespace=kube-system",
        "rollout",
        "status",
        deployment,
        "--timeout=120s",
    ]);
    let addresses = cluster.kubectl(&[
        "--namespace=kube-system",
        "get",
        "pods",
        "--selector=k8s-app=kube-dns",
        "--field-selector=status.phase=Running",
        "--output=jsonpath={.items[*].status.podIP}",
    ]);
    let addresses: Vec<&str> = addresses.split_whitespace().collect();
    assert_eq!(addresses.len(), 3, "{addresses:?}");

    let first = cluster.process(&["pause --node", "node1"]);
    let (members, _) = family(first);
    let pod = members
        .iter()
        .map(|(pid, _)| *pid)
        .find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"/coredns")
        })
        .expect("node 1 has a pod of its own");
    for address in &addresses {
        let target = format!("TCP:{address}:8181,connect-timeout=10");
        let ask = format!("printf 'GET /ready HTTP/1.0\\r\\n\\r\\n' | socat - {target}");
        let done = Command::new("nsenter")
            .args(["--target", &pod.to_string(), "--net", "sh", "-c", &ask])
            .output()
            .expect("nsenter can be started");
        let answer = String::from_utf8_lossy(&done.stdout);
        assert!(
            answer.contains("200 OK"),
            "from node 1 to {address}: {answer} {done:?}"
        );
    }

    // An address of the documentation: where would a packet to it go?
    for node in 1..=3 {
        let netns = format!("l5d-{}-node{node}", cluster.name);
        let done = Command::new("ip")
            .args(["-n", &netns, "route", "get", "198.51.100.1"])
            .output()
            .expect("ip can be started");
        let route = String::from_utf8_lossy(&done.stdout);
        assert!(route.contains("dev sink0"), "node {node}: {route}");
    }
    cluster.run(&["down"]);
}
