//! Options to an ordered rule list: pure, no kernel, no programs.
//! Every backend applies this one list; golden files under `tests/golden` show it for each scenario.

use crate::args::Config;
use crate::ports::{self, PortRange};
use crate::subnet::Subnet;

/// The address family a list is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

/// The chains we write to: two of the kernel's hooks and our own two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Chain {
    Prerouting,
    Output,
    ProxyRedirect,
    ProxyOutput,
}

/// What a packet must be for a rule to act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    Any,
    Tcp,
    /// TCP to one of these ports (a multiport match).
    TcpPorts(Vec<PortRange>),
    /// TCP to this port (listed mode).
    TcpPort(u16),
    Uid(u32),
    Gid(u32),
    /// Leaving over the loopback interface.
    Loopback,
    From(Subnet),
    To(Subnet),
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Return,
    Redirect(u16),
    Jump(Chain),
}

/// One rule of the `nat` hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub chain: Chain,
    pub when: When,
    pub then: Then,
    pub comment: String,
}

/// The whole list of one family, in the order of application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub family: Family,
    pub rules: Vec<Rule>,
}

// === impl Family ===

impl Family {
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// How nft and our messages call it.
    pub fn nft_name(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

// === impl Chain ===

impl Chain {
    /// Our own chains.
    pub const OURS: [Chain; 2] = [Chain::ProxyRedirect, Chain::ProxyOutput];

    pub fn name(self) -> &'static str {
        match self {
            Chain::Prerouting => "PREROUTING",
            Chain::Output => "OUTPUT",
            Chain::ProxyRedirect => "PROXY_INIT_REDIRECT",
            Chain::ProxyOutput => "PROXY_INIT_OUTPUT",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [
            Chain::Prerouting,
            Chain::Output,
            Chain::ProxyRedirect,
            Chain::ProxyOutput,
        ]
        .into_iter()
        .find(|chain| chain.name() == name)
    }

    /// The hook that jumps to this chain; only our own chains have one.
    pub fn hook(self) -> Chain {
        match self {
            Chain::Prerouting | Chain::ProxyRedirect => Chain::Prerouting,
            Chain::Output | Chain::ProxyOutput => Chain::Output,
        }
    }
}

// === impl Rule ===

impl Rule {
    fn new(chain: Chain, when: When, then: Then, comment: &str) -> Self {
        Self {
            chain,
            when,
            then,
            comment: format!("proxy-init/{comment}"),
        }
    }

    /// The rule as the kernel keeps it: host bits cleared, match-all subnets dropped.
    pub fn canonical(mut self) -> Self {
        self.when = match self.when {
            When::From(subnet) | When::To(subnet) if subnet.prefix == 0 => When::Any,
            When::From(subnet) => When::From(subnet.canonical()),
            When::To(subnet) => When::To(subnet.canonical()),
            when => when,
        };
        self
    }

    /// Arguments that append this rule, in the order the documented commands have.
    pub fn iptables_args(&self) -> String {
        let before = match &self.when {
            When::Any => String::new(),
            When::Tcp => " -p tcp".to_owned(),
            When::From(_) | When::To(_) => " -p all".to_owned(),
            When::TcpPort(port) => format!(" -p tcp --destination-port {port}"),
            When::TcpPorts(list) => {
                format!(" -p tcp --match multiport --dports {}", ports::join(list))
            }
            When::Uid(uid) => format!(" -m owner --uid-owner {uid}"),
            When::Gid(gid) => format!(" -m owner --gid-owner {gid}"),
            When::Loopback => " -o lo".to_owned(),
        };
        let target = match self.then {
            Then::Return => "RETURN".to_owned(),
            Then::Redirect(port) => format!("REDIRECT --to-port {port}"),
            Then::Jump(chain) => chain.name().to_owned(),
        };
        let after = match &self.when {
            When::From(subnet) => format!(" -s {subnet}"),
            When::To(subnet) => format!(" -d {subnet}"),
            _ => String::new(),
        };
        format!(
            "-A {}{before} -j {target}{after} -m comment --comment {}",
            self.chain.name(),
            self.comment
        )
    }

    /// The line `iptables-save` shows for this rule.
    pub fn saved_text(&self) -> String {
        let when = match &self.when {
            When::Any => String::new(),
            When::Tcp => " -p tcp".to_owned(),
            When::TcpPorts(list) => format!(" -p tcp -m multiport --dports {}", ports::join(list)),
            When::TcpPort(port) => format!(" -p tcp -m tcp --dport {port}"),
            When::Uid(uid) => format!(" -m owner --uid-owner {uid}"),
            When::Gid(gid) => format!(" -m owner --gid-owner {gid}"),
            When::Loopback => " -o lo".to_owned(),
            When::From(subnet) => format!(" -s {subnet}"),
            When::To(subnet) => format!(" -d {subnet}"),
        };
        let then = match self.then {
            Then::Return => "RETURN".to_owned(),
            Then::Redirect(port) => format!("REDIRECT --to-ports {port}"),
            Then::Jump(chain) => chain.name().to_owned(),
        };
        format!(
            "-A {}{when} -m comment --comment \"{}\" -j {then}",
            self.chain.name(),
            self.comment
        )
    }
}

// === impl Plan ===

impl Plan {
    /// Makes the list of one family. `slots` is the backend's limit of ports per rule.
    pub fn new(config: &Config, family: Family, slots: usize) -> Self {
        let mut rules = Vec::new();

        let inbound = Chain::ProxyRedirect;
        ignore_ports(&mut rules, inbound, &config.inbound_ignore, slots);
        for subnet in of_family(&config.inbound_subnets, family) {
            let comment = format!("ignore-subnet-{subnet}");
            rules.push(Rule::new(
                inbound,
                When::From(subnet.clone()),
                Then::Return,
                &comment,
            ));
        }
        let to_proxy = Then::Redirect(config.incoming_port);
        if config.ports_to_redirect.is_empty() {
            let comment = "redirect-all-incoming-to-proxy-port";
            rules.push(Rule::new(inbound, When::Tcp, to_proxy, comment));
        } else {
            for port in &config.ports_to_redirect {
                let comment = format!("redirect-port-{port}-to-proxy-port");
                rules.push(Rule::new(inbound, When::TcpPort(*port), to_proxy, &comment));
            }
        }
        rules.push(Rule::new(
            Chain::Prerouting,
            When::Any,
            Then::Jump(inbound),
            "install-proxy-init-prerouting",
        ));

        let outbound = Chain::ProxyOutput;
        if let Some(uid) = config.proxy_uid {
            rules.push(Rule::new(
                outbound,
                When::Uid(uid),
                Then::Return,
                "ignore-proxy-user-id",
            ));
        }
        if let Some(gid) = config.proxy_gid {
            rules.push(Rule::new(
                outbound,
                When::Gid(gid),
                Then::Return,
                "ignore-proxy-group-id",
            ));
        }
        rules.push(Rule::new(
            outbound,
            When::Loopback,
            Then::Return,
            "ignore-loopback",
        ));
        ignore_ports(&mut rules, outbound, &config.outbound_ignore, slots);
        for subnet in of_family(&config.outbound_subnets, family) {
            let comment = format!("ignore-subnet-{subnet}");
            rules.push(Rule::new(
                outbound,
                When::To(subnet.clone()),
                Then::Return,
                &comment,
            ));
        }
        rules.push(Rule::new(
            outbound,
            When::Tcp,
            Then::Redirect(config.outgoing_port),
            "redirect-all-outgoing-to-proxy-port",
        ));
        rules.push(Rule::new(
            Chain::Output,
            When::Any,
            Then::Jump(outbound),
            "install-proxy-init-output",
        ));
        Self { family, rules }
    }

    /// The rules of one chain, in order.
    pub fn chain(&self, chain: Chain) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.chain == chain)
    }
}

fn ignore_ports(rules: &mut Vec<Rule>, chain: Chain, ranges: &[PortRange], slots: usize) {
    for list in ports::chunks(ranges, slots) {
        let comment = format!("ignore-port-{}", ports::join(&list));
        rules.push(Rule::new(
            chain,
            When::TcpPorts(list),
            Then::Return,
            &comment,
        ));
    }
}

fn of_family(subnets: &[Subnet], family: Family) -> impl Iterator<Item = &Subnet> {
    subnets
        .iter()
        .filter(move |subnet| subnet.family() == family)
}
