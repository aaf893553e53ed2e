//! Namespaces reach each other, hold what runs in them, and leave nothing behind.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use linkerd_testkit::echo::{Behavior, Echo};
use linkerd_testkit::netns::{Lan, Namespace};
use linkerd_testkit::wait_for;

/// Sends `text` to an echo and returns what came back.
fn echoed(addr: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("the echo is reachable");
    stream.write_all(text.as_bytes()).expect("sent");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("half closed");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn pods_reach_each_other_over_both_families() {
    let lan = Lan::new();
    let (client, server) = (lan.pod("client"), lan.pod("server"));
    for (any, address) in [
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(server.ip4)),
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(server.ip6)),
    ] {
        let echo = server
            .netns
            .run(|| Echo::tcp((any, 8080), Behavior::default()));
        let target = SocketAddr::new(address, 8080);
        assert_eq!(client.netns.run(|| echoed(target, "hello")), "hello");
        let peer = echo.connections()[0].peer.ip();
        let expected = if address.is_ipv4() {
            client.ip4.into()
        } else {
            IpAddr::V6(client.ip6)
        };
        assert_eq!(peer.to_canonical(), expected);
    }
}

#[test]
fn a_redirected_connection_names_where_it_wanted_to_go() {
    let lan = Lan::new();
    let (client, server) = (lan.pod("client"), lan.pod("server"));
    let echo = server
        .netns
        .run(|| Echo::http((Ipv4Addr::UNSPECIFIED, 4143)));
    server.netns.output(
        "iptables",
        &[
            "-t",
            "nat",
            "-A",
            "PREROUTING",
            "-p",
            "tcp",
            "--dport",
            "80",
            "-j",
            "REDIRECT",
            "--to-ports",
            "4143",
        ],
    );
    let target = SocketAddr::from((server.ip4, 80));
    let answer = client
        .netns
        .run(|| echoed(target, "GET / HTTP/1.0\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    assert_eq!(echo.requests()[0].connection.original_dst, Some(target));
}

#[test]
fn a_process_inside_ends_with_its_guard() {
    let namespace = Namespace::new("lonely");
    let links = namespace.output("ip", &["-brief", "link"]);
    assert_eq!(links.lines().count(), 1, "only loopback: {links}");

    let mut process = namespace.spawn(Command::new("sleep").arg("600").stdin(Stdio::null()));
    assert!(process.is_running());
    let id = process.id();
    let inside = std::fs::read_link(format!("/proc/{id}/ns/net")).expect("it runs");
    let here = std::fs::read_link("/proc/self/ns/net").expect("we run");
    assert_ne!(inside, here);
    drop(process);
    wait_for(Duration::from_secs(10), "the process is gone", || {
        !std::path::Path::new(&format!("/proc/{id}")).exists()
    });
}

#[test]
fn a_panic_inside_comes_out_and_nothing_stays() {
    let panicked = std::panic::catch_unwind(|| {
        let namespace = Namespace::new("panics");
        namespace.run(|| panic!("inside"));
    });
    let message = panicked.expect_err("the panic comes out");
    assert_eq!(message.downcast_ref::<&str>(), Some(&"inside"));
    // The thread of a test is never moved.
    let here = std::fs::read_link("/proc/thread-self/ns/net").expect("we run");
    assert_eq!(
        here,
        std::fs::read_link("/proc/self/ns/net").expect("we run")
    );
}

#[test]
fn async_work_runs_inside() {
    let lan = Lan::new();
    let (client, server) = (lan.pod("client"), lan.pod("server"));
    let _echo = server
        .netns
        .run(|| Echo::tcp((Ipv4Addr::UNSPECIFIED, 9000), Behavior::default()));
    let target = SocketAddr::from((server.ip4, 9000));
    let local = client.netns.block_on(async move || {
        let stream = tokio::net::TcpStream::connect(target)
            .await
            .expect("reachable");
        stream.local_addr().expect("an address").ip()
    });
    assert_eq!(local, IpAddr::V4(client.ip4));
}
