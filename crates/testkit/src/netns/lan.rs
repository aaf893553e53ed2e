//! Pods on one bridge, as on a Kubernetes node: each in its own namespace with an IPv4 and an
//! IPv6 address, a default route, and all of them reaching each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{End, Namespace};

/// The node: a namespace with the bridge, which also is every pod's gateway.
#[derive(Debug)]
pub struct Lan {
    node: Namespace,
    /// The last part of the next pod's addresses; 1 is the bridge.
    next: AtomicU8,
}

/// A namespace with one link, `eth0`.
#[derive(Debug)]
pub struct Pod {
    pub netns: Arc<Namespace>,
    pub ip4: Ipv4Addr,
    pub ip6: Ipv6Addr,
}

impl Lan {
    #[track_caller]
    pub fn new() -> Self {
        let node = Namespace::new("node");
        node.ip(&["link", "add", "br0", "type", "bridge", "forward_delay", "0"]);
        node.addresses(
            "br0",
            &[&format!("{}/24", ip4(1)), &format!("{}/64", ip6(1))],
        );
        node.ip(&["link", "set", "br0", "up"]);
        node.sysctl("net/ipv4/ip_forward", "1");
        node.sysctl("net/ipv6/conf/all/forwarding", "1");
        Self {
            node,
            next: AtomicU8::new(2),
        }
    }

    /// Adds a pod; `name` only appears in messages.
    ///
    /// # Panics
    /// After 250 pods.
    #[track_caller]
    pub fn pod(&self, name: &str) -> Pod {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        assert!((2..=251).contains(&number), "a node has room for 250 pods");
        let pod = Pod {
            netns: Arc::new(Namespace::new(name)),
            ip4: ip4(number),
            ip6: ip6(number),
        };
        let port = format!("pod{number}");
        let addresses = [format!("{}/24", pod.ip4), format!("{}/64", pod.ip6)];
        self.node.link(
            End {
                link: &port,
                addresses: &[],
            },
            &pod.netns,
            End {
                link: "eth0",
                addresses: &[&addresses[0], &addresses[1]],
            },
        );
        self.node.ip(&["link", "set", &port, "master", "br0"]);
        pod.netns.route("default", IpAddr::V4(ip4(1)));
        pod.netns.route("default", IpAddr::V6(ip6(1)));
        pod
    }

    /// The namespace of the bridge, reaching every pod.
    pub fn node(&self) -> &Namespace {
        &self.node
    }
}

impl Default for Lan {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

fn ip4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 11, 0, number)
}

fn ip6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd11, 0, 0, 0, 0, 0, 0, number.into())
}
