//! Real connections through real rules, in network namespaces (root), for every backend: who answers,
//! and which destination the proxy recovers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[path = "support/scene.rs"]
mod scene;

use scene::{PROXY_ID, Scene, Server, Who, ask, connect, echoes, first_line, ruleset};

/// The integration set-up upstream uses: one proxy stub for both directions on 8080.
const STUB: &[&str] = &[
    "-p",
    "8080",
    "-o",
    "8080",
    "-u",
    "2102",
    "-g",
    "2102",
    "--ipv6=false",
];
/// An injected pod's.
const POD: &[&str] = &["-p", "4143", "-o", "4140", "-u", "2102"];
const APP: Who = Who::User(1000);

every_backend!(
    without_rules,
    existing_rules,
    all_ports,
    listed_ports,
    ignored_range,
    outbound,
    ignored_source_subnets,
    ipv6,
    dual_stack_subnets,
    ignored_destination_subnets,
    user_and_group,
    many_ports,
    overlapping_and_edge_ports,
    last_run_wins,
    ipv6_rules_go_when_no_longer_asked_for,
    rerun_under_traffic,
    established_connections_survive,
    half_applied_states,
    odd_jumps,
    foreign_rules_are_kept,
    cleanup_leaves_nothing,
);

fn proxied(answer: std::io::Result<String>, who: &str, wanted: impl Into<SocketAddr>) {
    let wanted: SocketAddr = wanted.into();
    assert_eq!(answer.expect("an answer"), format!("{who} for {wanted}"));
}

fn reached(answer: std::io::Result<String>, who: &str) {
    let answer = answer.expect("an answer");
    assert!(
        answer.starts_with(&format!("{who} for ")),
        "wanted {who}, got {answer}"
    );
}

fn refused(answer: std::io::Result<String>) {
    let error = answer.expect_err("nobody listens there");
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::ConnectionRefused,
        "{error}"
    );
}

fn without_rules(_backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 8080, "proxy");
    reached(scene.inward(8080), "proxy");
    for port in [8088, 8888, 8988] {
        refused(scene.inward(port));
    }
}

fn existing_rules(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 8080, "proxy");
    scene.init(backend, STUB);
    let once = ruleset(&scene.pod.netns);
    let log = scene.init(backend, STUB);
    assert_eq!(ruleset(&scene.pod.netns), once);
    if backend != "native" {
        assert!(log.contains("-t nat -F PROXY_INIT_REDIRECT"), "{log}");
        assert!(!log.contains("-t nat -A PREROUTING"), "{log}");
    }
    proxied(scene.inward(8088), "proxy", (scene.pod.ip4, 8088));
}

fn all_ports(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 8080, "proxy");
    scene.init(backend, STUB);
    for port in [8080, 8088, 8888, 8988, 1, 65535] {
        proxied(scene.inward(port), "proxy", (scene.pod.ip4, port));
    }
    // IPv6 was not asked for.
    refused(scene.inward6(8088));
}

fn listed_ports(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 8080, "proxy");
    scene.init(backend, &[STUB, &["-r", "9090", "-r", "9099"]].concat());
    reached(scene.inward(8080), "proxy");
    for port in [9090, 9099] {
        proxied(scene.inward(port), "proxy", (scene.pod.ip4, port));
    }
    for port in [8088, 8888, 8988] {
        refused(scene.inward(port));
    }
}

fn ignored_range(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 8080, "proxy");
    let _app = Server::both(&scene.pod.netns, 7070, "app");
    scene.init(
        backend,
        &[STUB, &["--inbound-ports-to-ignore", "6000-8000"]].concat(),
    );
    for port in [8080, 9090, 9099, 5999, 8001] {
        proxied(scene.inward(port), "proxy", (scene.pod.ip4, port));
    }
    reached(scene.inward(7070), "app");
    for port in [6000, 8000] {
        refused(scene.inward(port));
    }
}

fn outbound(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 8080, "proxy");
    let _app = Server::both(&scene.pod.netns, 9090, "app");
    let _far = [
        Server::both(&scene.peer.netns, 7070, "peer"),
        Server::both(&scene.peer.netns, 9090, "peer"),
    ];
    scene.init(
        backend,
        &[STUB, &["--inbound-ports-to-ignore", "6000-8000"]].concat(),
    );
    proxied(scene.outward(APP, 7070), "proxy", (scene.peer.ip4, 7070));
    proxied(
        scene.outward(Who::Root, 7070),
        "proxy",
        (scene.peer.ip4, 7070),
    );
    reached(scene.outward(Who::User(PROXY_ID), 9090), "peer");
    // Over loopback nothing is redirected: neither 127.0.0.1 nor the pod's own address.
    for addr in [Ipv4Addr::LOCALHOST, scene.pod.ip4] {
        reached(ask(&scene.pod.netns, APP, (addr, 9090).into()), "app");
    }
}

fn ignored_source_subnets(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 8080, "proxy");
    let _app = Server::both(&scene.pod.netns, 9090, "app");
    scene.init(
        backend,
        &[STUB, &["--subnets-to-ignore", "0.0.0.0/0"]].concat(),
    );
    reached(scene.inward(9090), "app");
    reached(scene.inward(8080), "proxy");

    // One address that is the peer's, then one that is not.
    let peer = format!("{}/32", scene.peer.ip4);
    scene.init(backend, &[STUB, &["--subnets-to-ignore", &peer]].concat());
    reached(scene.inward(9090), "app");
    scene.init(
        backend,
        &[
            STUB,
            &["--subnets-to-ignore", "192.0.2.0/24 , 198.51.100.7/32"],
        ]
        .concat(),
    );
    proxied(scene.inward(9090), "proxy", (scene.pod.ip4, 9090));
}

fn ipv6(backend: &str) {
    let scene = Scene::new();
    let (pod, peer) = (&scene.pod, &scene.peer);
    let _proxy = [
        Server::both(&pod.netns, 4143, "inbound"),
        Server::both(&pod.netns, 4140, "outbound"),
    ];
    let _app = Server::both(&pod.netns, 4191, "admin");
    let _far = [
        Server::both(&peer.netns, 80, "peer"),
        Server::both(&peer.netns, 443, "peer"),
    ];
    let ports = [
        "--inbound-ports-to-ignore",
        "4190,4191",
        "--outbound-ports-to-ignore",
        "443",
    ];
    scene.init(backend, &[POD, &ports].concat());
    proxied(scene.inward(8080), "inbound", (pod.ip4, 8080));
    proxied(scene.inward6(8080), "inbound", (pod.ip6, 8080));
    proxied(scene.outward(APP, 80), "outbound", (peer.ip4, 80));
    proxied(scene.outward6(APP, 80), "outbound", (peer.ip6, 80));
    reached(scene.inward6(4191), "admin");
    reached(scene.outward6(APP, 443), "peer");
    reached(scene.outward6(Who::User(PROXY_ID), 80), "peer");
    let loopback = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 4191));
    reached(ask(&pod.netns, APP, loopback), "admin");
    reached(ask(&pod.netns, APP, (pod.ip6, 4191).into()), "admin");
}

/// Subnets of both families in one list: each goes to its own.
fn dual_stack_subnets(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 4143, "inbound");
    let _app = Server::both(&scene.pod.netns, 9090, "app");
    let v6 = format!("{}/64", scene.peer.ip6);
    let list = format!("192.0.2.0/24,{v6}");
    scene.init(backend, &[POD, &["--subnets-to-ignore", &list]].concat());
    proxied(scene.inward(9090), "inbound", (scene.pod.ip4, 9090));
    reached(scene.inward6(9090), "app");
    scene.init(backend, &[POD, &["--subnets-to-ignore", "::/0"]].concat());
    reached(scene.inward6(9090), "app");
}

fn ignored_destination_subnets(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 4140, "outbound");
    let _far = Server::both(&scene.peer.netns, 80, "peer");
    let v4 = format!("{}/24", scene.peer.ip4);
    scene.init(
        backend,
        &[POD, &["--outbound-subnets-to-ignore", &v4]].concat(),
    );
    reached(scene.outward(APP, 80), "peer");
    proxied(scene.outward6(APP, 80), "outbound", (scene.peer.ip6, 80));
}

fn user_and_group(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 4140, "outbound");
    let _far = Server::both(&scene.peer.netns, 80, "peer");
    let proxy = [Who::User(PROXY_ID), Who::Group(PROXY_ID)];
    let cases: [(&[&str], [bool; 2]); 4] = [
        (&["-u", "2102"], [true, false]),
        (&["-g", "2102"], [false, true]),
        (&["-u", "2102", "-g", "2102"], [true, true]),
        (&["-u", "0"], [false, false]),
    ];
    for (ids, direct) in cases {
        scene.init(backend, &[&["-p", "4143", "-o", "4140"], ids].concat());
        for (who, direct) in proxy.into_iter().zip(direct) {
            let expected = if direct { "peer" } else { "outbound" };
            reached(scene.outward(who, 80), expected);
            reached(scene.outward6(who, 80), expected);
        }
        reached(scene.outward(Who::User(2103), 80), "outbound");
        reached(scene.outward(Who::Group(2103), 80), "outbound");
    }
}

/// More ports than one multiport match takes.
fn many_ports(backend: &str) {
    let scene = Scene::new();
    let _proxy = [
        Server::both(&scene.pod.netns, 4143, "inbound"),
        Server::both(&scene.pod.netns, 4140, "outbound"),
    ];
    let last = Server::both(&scene.pod.netns, 5060, "app");
    let _far = Server::both(&scene.peer.netns, 7040, "peer");
    let inbound: Vec<String> = (0..31).map(|at| (5000 + 2 * at).to_string()).collect();
    let outbound: Vec<String> = (0..21)
        .map(|at| format!("{}-{}", 7000 + 2 * at, 7000 + 2 * at))
        .collect();
    let (inbound, outbound) = (inbound.join(","), outbound.join(","));
    let ports = [
        "--inbound-ports-to-ignore",
        &inbound,
        "--outbound-ports-to-ignore",
        &outbound,
    ];
    scene.init(backend, &[POD, &ports].concat());
    reached(scene.inward(5060), "app");
    drop(last);
    for port in [5000, 5028, 5030, 5058] {
        refused(scene.inward(port));
        refused(scene.inward6(port));
    }
    proxied(scene.inward(5061), "inbound", (scene.pod.ip4, 5061));
    proxied(scene.inward6(5001), "inbound", (scene.pod.ip6, 5001));
    reached(scene.outward(APP, 7040), "peer");
    reached(scene.outward6(APP, 7040), "peer");
    proxied(scene.outward(APP, 7041), "outbound", (scene.peer.ip4, 7041));
}

fn overlapping_and_edge_ports(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 4143, "inbound");
    let list = "0,443,443,100-200,150-300,301,65535,60000-65534";
    scene.init(
        backend,
        &[POD, &["--inbound-ports-to-ignore", list]].concat(),
    );
    for port in [443, 100, 200, 250, 300, 301, 60000, 65534, 65535] {
        refused(scene.inward(port));
    }
    for port in [99, 302, 442, 444, 59999] {
        proxied(scene.inward(port), "inbound", (scene.pod.ip4, port));
    }
    scene.init(
        backend,
        &[POD, &["--inbound-ports-to-ignore", "0-65535"]].concat(),
    );
    refused(scene.inward(99));
}

/// The state after a run does not depend on what ran before it.
fn last_run_wins(backend: &str) {
    let variants: [&[&str]; 5] = [
        &[
            "-u",
            "2102",
            "--inbound-ports-to-ignore",
            "4190,4191,4567-4568",
            "--outbound-ports-to-ignore",
            "443,6443",
        ],
        &["-u", "2103", "-g", "7", "-r", "9090,9099"],
        &[
            "-u",
            "2102",
            "--subnets-to-ignore",
            "10.1.2.3/16,fd00::/8",
            "--outbound-subnets-to-ignore",
            "192.0.2.0/24",
        ],
        &["-u", "2102"],
        &[
            "-u",
            "2102",
            "--inbound-ports-to-ignore",
            "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33",
        ],
    ];
    let base = ["-p", "4143", "-o", "4140"];
    let scene = Scene::new();
    for args in variants {
        let args = [&base, args].concat();
        scene.init(backend, &args);
        let fresh = Scene::new();
        fresh.init(backend, &args);
        // The kernel of a first run has its base chains made after ours; only nft shows that order.
        assert_eq!(
            sorted(&ruleset(&scene.pod.netns)),
            sorted(&ruleset(&fresh.pod.netns)),
            "{args:?}"
        );
    }
}

/// Lines of a ruleset by the chain they are in.
fn sorted(text: &str) -> Vec<Vec<&str>> {
    let mut blocks: Vec<Vec<&str>> = vec![vec![]];
    for line in text.lines() {
        if line.trim_start().starts_with("chain ") {
            blocks.push(vec![]);
        }
        blocks.last_mut().expect("never empty").push(line.trim());
    }
    for block in &mut blocks {
        block.retain(|line| !line.is_empty() && *line != "}" && !line.starts_with("table "));
    }
    blocks.sort();
    blocks
}

fn ipv6_rules_go_when_no_longer_asked_for(backend: &str) {
    let scene = Scene::new();
    let _proxy = Server::both(&scene.pod.netns, 4143, "inbound");
    scene.init(backend, POD);
    proxied(scene.inward6(9090), "inbound", (scene.pod.ip6, 9090));
    let log = scene.init(backend, &[POD, &["--ipv6=false"]].concat());
    assert!(log.contains("found IPv6 rules of an earlier run"), "{log}");
    refused(scene.inward6(9090));
    proxied(scene.inward(9090), "inbound", (scene.pod.ip4, 9090));
}

/// No connection fails and none gets past the proxy while the rules are rewritten.
fn rerun_under_traffic(backend: &str) {
    let scene = Scene::new();
    let _proxy = [
        Server::both(&scene.pod.netns, 4143, "inbound"),
        Server::both(&scene.pod.netns, 4140, "outbound"),
    ];
    // What a leak would reach.
    let _leaks = [
        Server::both(&scene.pod.netns, 9090, "leak"),
        Server::both(&scene.peer.netns, 9090, "leak"),
    ];
    scene.init(backend, POD);
    let stop = AtomicBool::new(false);
    let asked = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        let flow = |ask: fn(&Scene) -> std::io::Result<String>, who: &'static str| {
            let (scene, stop, asked) = (&scene, &stop, &asked);
            threads.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    reached(ask(scene), who);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let flows = [
            flow(|scene| scene.inward(9090), "inbound"),
            flow(|scene| scene.inward6(9090), "inbound"),
            flow(|scene| scene.outward(APP, 9090), "outbound"),
            flow(|scene| scene.outward6(APP, 9090), "outbound"),
        ];
        let other = [
            "--inbound-ports-to-ignore",
            "4190,4191,5000-6000",
            "--outbound-ports-to-ignore",
            "443",
        ];
        for round in 0..10 {
            let before = asked.load(Ordering::Relaxed);
            let extra: &[&str] = if round % 2 == 0 { &other } else { &[] };
            scene.init(backend, &[POD, extra].concat());
            linkerd_testkit::wait_for(
                std::time::Duration::from_secs(60),
                "traffic between runs",
                || {
                    asked.load(Ordering::Relaxed) > before + 8
                        || flows.iter().any(|flow| flow.is_finished())
                },
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(asked.load(Ordering::Relaxed) > 80);
}

fn established_connections_survive(backend: &str) {
    let scene = Scene::new();
    let _proxy = [
        Server::both(&scene.pod.netns, 4143, "inbound"),
        Server::both(&scene.pod.netns, 4140, "outbound"),
    ];
    scene.init(backend, POD);
    let inward = connect(&scene.peer.netns, APP, (scene.pod.ip4, 9090).into()).expect("connected");
    let outward = connect(&scene.pod.netns, APP, (scene.peer.ip6, 9090).into()).expect("connected");
    assert_eq!(
        first_line(&inward).expect("a line"),
        format!("inbound for {}:9090", scene.pod.ip4)
    );
    assert_eq!(
        first_line(&outward).expect("a line"),
        format!("outbound for [{}]:9090", scene.peer.ip6)
    );
    let everything = [
        "--inbound-ports-to-ignore",
        "0-65535",
        "--outbound-ports-to-ignore",
        "0-65535",
    ];
    scene.init(backend, POD);
    for stream in [&inward, &outward] {
        echoes(stream, "after the same rules");
    }
    scene.init(backend, &[POD, &everything].concat());
    for stream in [&inward, &outward] {
        echoes(stream, "after rules that would let it pass");
    }
    // Another backend takes over before the rules of this one go.
    let other = if backend == "native" { "nft" } else { "native" };
    scene.init(other, POD);
    for stream in [&inward, &outward] {
        echoes(stream, "after another backend took over");
    }
}

/// Whatever part of the rules is there, a run completes them and doubles nothing.
fn half_applied_states(backend: &str) {
    let scene = Scene::new();
    let netns = &scene.pod.netns;
    scene.init(backend, POD);
    let whole = ruleset(netns);
    let whole = sorted(&whole).concat();
    let states: Vec<Vec<String>> = if backend == "native" {
        let nft = |line: &str| format!("nft {line}");
        vec![
            vec![nft("add table ip linkerd_init")],
            vec![
                nft("add table ip6 linkerd_init"),
                nft("add chain ip6 linkerd_init PROXY_INIT_OUTPUT"),
            ],
            vec![
                nft("add table ip linkerd_init"),
                nft("add chain ip linkerd_init OUTPUT { type nat hook output priority -100 ; }"),
                nft("add rule ip linkerd_init OUTPUT tcp dport 1 redirect to :2"),
            ],
            vec![
                nft("add table ip linkerd_init"),
                nft("add chain ip linkerd_init SOMETHING_ELSE"),
            ],
        ]
    } else {
        let program = if backend == "plain" {
            "iptables".to_owned()
        } else {
            format!("iptables-{backend}")
        };
        let mut states = Vec::new();
        // Absent, chain only, chain with a stale rule and its jump, and the jump twice; both ways.
        for inbound in 0..4 {
            for outbound in 0..4 {
                let mut lines = Vec::new();
                for (degree, hook, chain) in [
                    (inbound, "PREROUTING", "PROXY_INIT_REDIRECT"),
                    (outbound, "OUTPUT", "PROXY_INIT_OUTPUT"),
                ] {
                    let steps = [
                        format!("{program} -t nat -N {chain}"),
                        format!("{program} -t nat -A {chain} -p tcp --dport 5 -j RETURN"),
                        format!("{program} -t nat -A {hook} -j {chain} -m comment --comment old/1"),
                        format!("{program} -t nat -A {hook} -j {chain} -m comment --comment old/2"),
                    ];
                    lines.extend(steps.into_iter().take([0, 1, 3, 4][degree]));
                }
                states.push(lines);
            }
        }
        states
    };
    for state in states {
        scene.init(backend, &["--cleanup"]);
        for line in &state {
            let words: Vec<&str> = line.split(' ').collect();
            netns.output(words[0], &words[1..]);
        }
        scene.init(backend, POD);
        let after = ruleset(netns).replace("old/1", "proxy-init/install-x");
        let ours = |text: &str, what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert!(
            !after.contains("old/2") && !after.contains("dport 5"),
            "{state:?}\n{after}"
        );
        for jump in [
            "j PROXY_INIT_OUTPUT",
            "j PROXY_INIT_REDIRECT",
            "jump PROXY_INIT_OUTPUT",
            "jump PROXY_INIT_REDIRECT",
        ] {
            let expected = whole.iter().filter(|line| line.contains(jump)).count();
            assert_eq!(
                ours(&after, jump),
                expected,
                "{jump} after {state:?}\n{after}"
            );
        }
        assert_eq!(
            sorted(&after).concat().len(),
            whole.len(),
            "{state:?}\n{after}"
        );
    }
}

/// A jump with a condition, or to a chain with a longer name, is not the jump that is needed.
fn odd_jumps(backend: &str) {
    let scene = Scene::new();
    let netns = &scene.pod.netns;
    let _proxy = Server::both(netns, 4140, "outbound");
    let _far = Server::both(&scene.peer.netns, 80, "peer");
    let lines: &[&str] = match backend {
        "native" => &[
            "nft add table ip linkerd_init",
            "nft add chain ip linkerd_init OUTPUT { type nat hook output priority -100 ; }",
            "nft add chain ip linkerd_init PROXY_INIT_OUTPUT",
            "nft add chain ip linkerd_init PROXY_INIT_OUTPUT_X",
            "nft add rule ip linkerd_init OUTPUT tcp dport 81 jump PROXY_INIT_OUTPUT",
            "nft add rule ip linkerd_init OUTPUT jump PROXY_INIT_OUTPUT_X",
        ],
        _ => &[
            "IPT -t nat -N PROXY_INIT_OUTPUT",
            "IPT -t nat -N PROXY_INIT_OUTPUT_X",
            "IPT -t nat -A OUTPUT -p tcp --dport 81 -j PROXY_INIT_OUTPUT",
            "IPT -t nat -A OUTPUT -j PROXY_INIT_OUTPUT_X",
            "IPT -t nat -A OUTPUT -p tcp -g PROXY_INIT_OUTPUT",
        ],
    };
    let program = match backend {
        "plain" => "iptables".to_owned(),
        mode => format!("iptables-{mode}"),
    };
    for line in lines {
        let line = line.replace("IPT", &program);
        let words: Vec<&str> = line.split(' ').collect();
        netns.output(words[0], &words[1..]);
    }
    scene.init(backend, POD);
    proxied(scene.outward(APP, 80), "outbound", (scene.peer.ip4, 80));
    let rules = ruleset(netns);
    assert!(!rules.contains("dport 81"), "{rules}");
    scene.init(backend, &["--cleanup"]);
    reached(scene.outward(APP, 80), "peer");
}

fn foreign_rules_are_kept(backend: &str) {
    let scene = Scene::new();
    let netns = &scene.pod.netns;
    let program = match backend {
        "plain" | "native" => "iptables".to_owned(),
        mode => format!("iptables-{mode}"),
    };
    let _other = Server::both(netns, 5555, "other");
    let _proxy = Server::both(netns, 4143, "inbound");
    netns.output(
        &program,
        &[
            "-t",
            "nat",
            "-A",
            "PREROUTING",
            "-p",
            "tcp",
            "--dport",
            "77",
            "-j",
            "REDIRECT",
            "--to-ports",
            "5555",
        ],
    );
    netns.output(&program, &["-t", "nat", "-N", "PROXY_INIT_OTHER"]);
    let log = scene.init(backend, POD);
    if backend != "native" {
        assert!(log.contains("another redirect comes before ours"), "{log}");
        reached(scene.inward(77), "other");
    }
    reached(scene.inward(78), "inbound");
    scene.init(backend, &["--cleanup"]);
    reached(scene.inward(77), "other");
    refused(scene.inward(78));
    assert!(ruleset(netns).contains("PROXY_INIT_OTHER"));
}

fn cleanup_leaves_nothing(backend: &str) {
    let scene = Scene::new();
    let netns = &scene.pod.netns;
    scene.init(backend, POD);
    scene.init(backend, &["--cleanup"]);
    let left = ruleset(netns);
    assert!(
        !left.contains("PROXY_INIT") && !left.contains("linkerd_init"),
        "{left}"
    );
    let log = scene.init(backend, &["--cleanup"]);
    assert!(log.contains("no rules of ours were found"), "{log}");
}

/// Changing the backend under traffic: never two sets, never none.
#[test]
fn another_backend_takes_over() {
    let scene = Scene::new();
    let netns = &scene.pod.netns;
    let _proxy = Server::both(netns, 4143, "inbound");
    let _leak = Server::both(netns, 9090, "leak");
    scene.init("legacy", POD);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let flow = threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                reached(scene.inward(9090), "inbound");
            }
        });
        for (from, to) in [
            ("legacy", "nft"),
            ("nft", "native"),
            ("native", "plain"),
            ("nft", "legacy"),
            ("legacy", "native"),
            ("native", "legacy"),
        ] {
            let log = scene.init(to, POD);
            for family in ["IPv4", "IPv6"] {
                let line = format!(
                    "found {family} rules of an earlier run in the {from} backend: removing them"
                );
                assert!(log.contains(&line), "{to}: {log}");
            }
            let rules = ruleset(netns);
            let count = rules
                .lines()
                .filter(|line| {
                    line.contains("redirect-all-incoming") || line.contains("redirect to :4143")
                })
                .count();
            // nft does not show the port of IPv6 redirects made by iptables.
            assert!((1..=2).contains(&count), "{from} to {to}: {rules}");
            assert!(
                !flow.is_finished(),
                "traffic failed when going from {from} to {to}"
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
}
