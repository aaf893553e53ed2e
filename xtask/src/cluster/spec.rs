//! What one cluster is: its name, how many nodes, and everything that follows from these:
//! directories, addresses, names of namespaces and links. Saved as `cluster.json`.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::{machine, program, ui};

/// Clusters that fit beside each other: sixteen in each of the two address pools.
const SLOTS: u8 = 32;
pub(crate) const MOST_NODES: u8 = 9;

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) nodes: u8,
    /// Picks the subnets; no two clusters on a machine share one.
    slot: u8,
    #[serde(skip)]
    pub(crate) dir: PathBuf,
}

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Net {
    pub(crate) base: Ipv4Addr,
    pub(crate) bits: u8,
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl Net {
    fn new(a: u8, b: u8, c: u8, bits: u8) -> Self {
        Self {
            base: Ipv4Addr::new(a, b, c, 0),
            bits,
        }
    }

    /// `10.0.0.0/8`, or one address.
    fn parse(text: &str) -> Option<Self> {
        let (base, bits) = text.split_once('/').unwrap_or((text, "32"));
        Some(Self {
            base: base.parse().ok()?,
            bits: bits.parse().ok().filter(|b| *b <= 32)?,
        })
    }

    fn overlaps(self, other: Self) -> bool {
        let bits = u32::from(self.bits.min(other.bits));
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        (u32::from(self.base) ^ u32::from(other.base)) & mask == 0
    }

    pub(crate) fn address(self, last: u8) -> Ipv4Addr {
        let [a, b, c, _] = self.base.octets();
        Ipv4Addr::new(a, b, c, last)
    }
}

impl Spec {
    /// The saved cluster of this name, if there is one.
    pub(crate) fn load(name: &str) -> Result<Option<Self>> {
        let dir = machine::state_dir().join(name);
        let file = dir.join("cluster.json");
        let Ok(text) = fs::read_to_string(&file) else {
            return Ok(None);
        };
        let spec: Self = serde_json::from_str(&text).map_err(|error| {
            ui::hint(
                format!("{} cannot be read: {error}", file.display()),
                format!("run `cargo xtask cluster down --name {name}`, which clears it away"),
            )
        })?;
        Ok(Some(Self { dir, ..spec }))
    }

    /// A new cluster in the first slot whose subnets nobody uses; saved at once.
    pub(crate) fn create(name: &str, nodes: u8) -> Result<Self> {
        let _lock =
            machine::Lock::wait(&machine::state_dir().join("slots.lock"), "picking subnets")?;
        let spec = Self::choose(name, nodes)?;
        fs::create_dir_all(&spec.dir)
            .with_context(|| format!("creating {}", spec.dir.display()))?;
        spec.save()?;
        Ok(spec)
    }

    /// What would be created now. Fails when there is no room for it.
    pub(crate) fn choose(name: &str, nodes: u8) -> Result<Self> {
        let taken: Vec<u8> = all()?.iter().map(|spec| spec.slot).collect();
        let routes = host_routes(None)?;
        let dir = machine::state_dir().join(name);
        (0..SLOTS)
            .filter(|slot| !taken.contains(slot))
            .map(|slot| Self { name: name.to_owned(), nodes, slot, dir: dir.clone() })
            .find(|spec| spec.clash(&routes).is_none())
            .ok_or_else(|| {
                ui::hint(
                    "every subnet a local cluster could use is routed elsewhere on this machine",
                    "look at `ip route` and `cargo xtask cluster status`; take a cluster down or free \
                     10.128.0.0/16, 10.160.0.0/16 and 10.192.0.0/24",
                )
            })
    }

    pub(crate) fn save(&self) -> Result<()> {
        machine::write(
            &self.dir.join("cluster.json"),
            serde_json::to_vec_pretty(self)?,
        )
    }

    /// Fails when the machine has since been given routes into this cluster's subnets.
    pub(crate) fn require_free_subnets(&self) -> Result<()> {
        match self.clash(&host_routes(Some(&self.host_link()))?) {
            None => Ok(()),
            Some((ours, theirs)) => Err(ui::hint(
                format!(
                    "this machine routes {theirs}, which cluster {} uses ({ours})",
                    self.name
                ),
                format!(
                    "remove that route, or run `cargo xtask cluster down --name {0}` and up again \
                     to get another subnet",
                    self.name
                ),
            )),
        }
    }

    fn clash(&self, routes: &[Net]) -> Option<(Net, Net)> {
        let ours = [self.node_net(), self.pod_net(), self.service_net()];
        ours.iter()
            .flat_map(|net| routes.iter().map(move |route| (*net, *route)))
            .find(|(net, route)| net.overlaps(*route))
    }

    /// The first octet and the second octets of pods, services and nodes.
    fn pool(&self) -> (u8, u8, u8, u8) {
        let slot = self.slot % 16;
        if self.slot < 16 {
            (10, 128 + slot, 160 + slot, 192 + slot)
        } else {
            (100, 64 + slot, 80 + slot, 96 + slot)
        }
    }

    pub(crate) fn pod_net(&self) -> Net {
        let (first, pods, _, _) = self.pool();
        Net::new(first, pods, 0, 16)
    }

    pub(crate) fn service_net(&self) -> Net {
        let (first, _, services, _) = self.pool();
        Net::new(first, services, 0, 16)
    }

    pub(crate) fn node_net(&self) -> Net {
        let (first, _, _, nodes) = self.pool();
        Net::new(first, nodes, 0, 24)
    }

    /// The pods of one node, counted from 1.
    pub(crate) fn node_pods(&self, node: u8) -> Net {
        let (first, pods, _, _) = self.pool();
        Net::new(first, pods, node, 24)
    }

    pub(crate) fn host_ip(&self) -> Ipv4Addr {
        self.node_net().address(1)
    }

    pub(crate) fn node_ip(&self, node: u8) -> Ipv4Addr {
        self.node_net().address(10 + node)
    }

    /// The `kubernetes` service.
    pub(crate) fn api_service_ip(&self) -> Ipv4Addr {
        self.service_net().address(1)
    }

    pub(crate) fn dns_ip(&self) -> Ipv4Addr {
        self.service_net().address(10)
    }

    pub(crate) fn api_url(&self) -> String {
        format!("https://{}:6443", self.node_ip(1))
    }

    pub(crate) fn node_numbers(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.nodes
    }

    pub(crate) fn node_name(&self, node: u8) -> String {
        format!("{}-node{node}", self.name)
    }

    pub(crate) fn node_dir(&self, node: u8) -> PathBuf {
        self.dir.join(format!("node{node}"))
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(crate) fn pki(&self, file: &str) -> PathBuf {
        self.dir.join("pki").join(file)
    }

    /// The kubeconfig people and tests use.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn node_netns(&self, node: u8) -> String {
        format!("{}node{node}", netns_prefix(&self.name))
    }

    pub(crate) fn hub_netns(&self) -> String {
        format!("{}hub", netns_prefix(&self.name))
    }

    /// The machine's end of the link into the cluster; link names have 15 characters.
    pub(crate) fn host_link(&self) -> String {
        format!("l5d-c{}", self.slot)
    }
}

/// Every network namespace of a cluster begins with this.
pub(crate) fn netns_prefix(name: &str) -> String {
    format!("l5d-{name}-")
}

/// Fails unless a cluster may be called this.
pub(crate) fn check_name(name: &str) -> Result<String, String> {
    let fits = (1..=20).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if fits {
        return Ok(name.to_owned());
    }
    Err(
        "a cluster's name has up to 20 lower-case letters, digits and dashes, a letter first"
            .to_owned(),
    )
}

/// Every cluster that has state on this machine.
pub(crate) fn all() -> Result<Vec<Spec>> {
    let Ok(entries) = fs::read_dir(machine::state_dir()) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // A damaged one is reported when it is named; its slot may be lost, its routes are seen.
        if let Ok(Some(spec)) = Spec::load(&name) {
            found.push(spec);
        }
    }
    Ok(found)
}

/// Networks this machine has routes to, other than those through `except`.
fn host_routes(except: Option<&str>) -> Result<Vec<Net>> {
    let text = program::output(&mut program::command(
        "ip",
        ["-json", "-4", "route", "show", "table", "all"],
    ))?;
    parse_routes(&text, except)
}

fn parse_routes(text: &str, except: Option<&str>) -> Result<Vec<Net>> {
    #[derive(Deserialize)]
    struct Route {
        dst: String,
        #[serde(default)]
        dev: Option<String>,
    }
    let routes: Vec<Route> = serde_json::from_str(text).context("reading `ip -json route`")?;
    Ok(routes
        .iter()
        .filter(|route| route.dst != "default" && route.dev.as_deref() != except.or(Some("")))
        .filter_map(|route| Net::parse(&route.dst))
        .collect())
}

/// Whether a path lies in the state of a local cluster.
pub(crate) fn is_ours(path: &Path) -> bool {
    path.starts_with(machine::state_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(slot: u8) -> Spec {
        Spec {
            name: "dev".to_owned(),
            nodes: 3,
            slot,
            dir: PathBuf::from("/state/dev"),
        }
    }

    #[test]
    fn slots_do_not_overlap() {
        for one in 0..SLOTS {
            for other in 0..one {
                let nets = [
                    spec(other).node_net(),
                    spec(other).pod_net(),
                    spec(other).service_net(),
                ];
                assert_eq!(spec(one).clash(&nets), None, "slots {one} and {other}");
            }
        }
    }

    #[test]
    fn addresses_follow_from_slot_and_node() {
        let spec = spec(1);
        assert_eq!(spec.node_ip(2).to_string(), "10.193.0.12");
        assert_eq!(spec.node_pods(2).to_string(), "10.129.2.0/24");
        assert_eq!(spec.dns_ip().to_string(), "10.161.0.10");
        assert_eq!(spec.node_netns(2), "l5d-dev-node2");
    }

    #[test]
    fn names() {
        let cases = [
            ("usual", "dev", true),
            ("with digits", "dev-2", true),
            ("empty", "", false),
            ("path", "../etc", false),
            ("upper case", "Dev", false),
            ("dash last", "dev-", false),
            ("too long", "abcdefghijklmnopqrstu", false),
        ];
        for (case, name, fits) in cases {
            assert_eq!(check_name(name).is_ok(), fits, "{case}");
        }
    }

    #[test]
    fn routes_of_the_machine_are_seen() {
        let text = r#"[{"dst":"default","gateway":"192.0.2.1","dev":"eth0"},
            {"dst":"10.128.0.0/9","dev":"tun0"},
            {"dst":"10.192.0.0/24","dev":"l5d-c0"},
            {"type":"local","dst":"192.0.2.2","dev":"eth0","table":"local"}]"#;
        let all = parse_routes(text, None).expect("valid");
        assert_eq!(all.len(), 3);
        assert!(spec(0).clash(&all).is_some());
        assert!(spec(16).clash(&all).is_none(), "the second pool is free");
        let others = parse_routes(text, Some("l5d-c0")).expect("valid");
        assert_eq!(others.len(), 2);
    }

    #[test]
    fn overlaps() {
        let net = |text| Net::parse(text).expect("valid");
        assert!(net("10.0.0.0/8").overlaps(net("10.128.3.0/24")));
        assert!(net("0.0.0.0/0").overlaps(net("10.128.3.0/24")));
        assert!(!net("10.127.0.0/16").overlaps(net("10.128.0.0/16")));
    }
}
