//! The `native` backend: nf_tables over netlink, no program. Rules live in a private table per family
//! and change in one transaction for both. Also finds and removes what the iptables programs made in
//! the kernel's nf_tables.

use crate::observed::{Found, Observed};
use crate::ports::{self, PortRange};
use crate::rules::{Chain, Family, Plan, Rule, Then, When};

pub mod expr;
pub mod socket;
pub mod wire;

pub use socket::NetlinkError;
use socket::{Socket, Transaction};
use wire::{Attr, F_APPEND, F_CREATE, find, nft};

/// Our private table.
pub const TABLE: &str = "linkerd_init";
/// The table the iptables programs use.
const IPTABLES_TABLE: &str = "nat";
/// The usual priority of destination address translation.
const PRIORITY: i32 = -100;
/// One set-element message stays below the 64 KiB an attribute may have.
const ELEMENTS_PER_MESSAGE: usize = 1000;
const ANONYMOUS_CONSTANT_INTERVAL: u32 = 1 | 2 | 4;
const TYPE_INET_SERVICE: u32 = 13;
const INTERVAL_END: u32 = 1;
/// A name the kernel completes; the id ties a rule to its set inside the transaction.
const SET_NAME: &str = "__set%d";

/// A connection to the kernel's nf_tables.
#[derive(Debug)]
pub struct Native {
    socket: Socket,
}

/// A chain the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelChain {
    pub family: Family,
    pub table: String,
    pub name: String,
}

/// A rule as dumped.
struct KernelRule {
    chain: String,
    handle: u64,
    jump: Option<String>,
    meaning: Option<expr::Meaning>,
    comment: String,
}

/// Rules in this backend have no port limit, sorted sets, and shorter comments.
pub fn canonical(mut rule: Rule) -> Rule {
    rule = rule.canonical();
    rule.when = match rule.when {
        When::TcpPort(port) => When::TcpPorts(vec![PortRange::single(port)]),
        When::TcpPorts(list) => When::TcpPorts(ports::merged(&list)),
        when => when,
    };
    rule.comment.truncate(expr::COMMENT_MAX);
    rule
}

/// The plan of one family as this backend keeps it.
pub fn plan(config: &crate::args::Config, family: Family) -> Plan {
    let mut plan = Plan::new(config, family, usize::MAX);
    plan.rules = plan.rules.into_iter().map(canonical).collect();
    plan
}

/// The nft commands equal to our transaction, for people and for `--simulate`.
pub fn commands(plan: &Plan) -> Vec<String> {
    let family = plan.family.nft_name();
    let mut lines = vec![format!("nft add table {family} {TABLE}")];
    for (chain, hook) in [(Chain::Prerouting, "prerouting"), (Chain::Output, "output")] {
        lines.push(format!(
            "nft add chain {family} {TABLE} {} {{ type nat hook {hook} priority {PRIORITY} ; policy accept ; }}",
            chain.name()
        ));
    }
    for chain in Chain::OURS {
        lines.push(format!("nft add chain {family} {TABLE} {}", chain.name()));
    }
    lines.push(format!("nft flush table {family} {TABLE}"));
    lines.extend(
        plan.rules
            .iter()
            .map(|rule| format!("nft add rule {family} {TABLE} {}", show(plan.family, rule))),
    );
    lines
}

/// The nft commands equal to a removal.
pub fn cleanup_command(family: Family) -> String {
    format!("nft delete table {} {TABLE}", family.nft_name())
}

/// One rule in nft's syntax, chain first.
pub fn show(family: Family, rule: &Rule) -> String {
    let ip = family.nft_name();
    let when = match &rule.when {
        When::Any => String::new(),
        When::Tcp => "meta l4proto tcp ".to_owned(),
        When::TcpPort(port) => format!("tcp dport {port} "),
        When::TcpPorts(list) => {
            let items: Vec<String> = list
                .iter()
                .map(|range| range.to_string().replace(':', "-"))
                .collect();
            match items.as_slice() {
                [single] if !single.contains('-') => format!("tcp dport {single} "),
                _ => format!("tcp dport {{ {} }} ", items.join(", ")),
            }
        }
        When::Uid(uid) => format!("meta skuid {uid} "),
        When::Gid(gid) => format!("meta skgid {gid} "),
        When::Loopback => "oifname \"lo\" ".to_owned(),
        When::From(subnet) => format!("{ip} saddr {subnet} "),
        When::To(subnet) => format!("{ip} daddr {subnet} "),
    };
    let then = match rule.then {
        Then::Return => "return".to_owned(),
        Then::Redirect(port) => format!("redirect to :{port}"),
        Then::Jump(chain) => format!("jump {}", chain.name()),
    };
    format!(
        "{} {when}counter {then} comment \"{}\"",
        rule.chain.name(),
        rule.comment
    )
}

// === impl Native ===

impl Native {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self {
            socket: Socket::open()?,
        })
    }

    /// All chains of both families, whoever made them.
    pub fn chains(&self) -> Result<Vec<KernelChain>, NetlinkError> {
        self.socket.dump(
            nft::GET_CHAIN,
            0,
            |_| {},
            |message| {
                let family = Family::BOTH
                    .into_iter()
                    .find(|family| Some(number(*family)) == message.family())?;
                Some(KernelChain {
                    family,
                    table: find(message.attrs(), 1)?.text()?.to_owned(),
                    name: find(message.attrs(), 3)?.text()?.to_owned(),
                })
            },
        )
    }

    /// What our private table of one family holds.
    pub fn observe(&self, family: Family) -> Result<Observed, NetlinkError> {
        let chains = self
            .chains()?
            .into_iter()
            .filter(|chain| chain.family == family && chain.table == TABLE)
            .map(|chain| chain.name)
            .collect();
        let mut rules = Vec::new();
        for kernel in self.rules(family, TABLE)? {
            rules.push(self.found(family, kernel)?);
        }
        Ok(Observed { chains, rules })
    }

    /// Makes every plan hold, and removes our tables of the families in `drop`, all at once.
    pub fn apply(&self, plans: &[Plan], drop: &[Family]) -> Result<(), NetlinkError> {
        let present = self.chains()?;
        let mut transaction = Transaction::default();
        for plan in plans {
            let stale = present.iter().any(|chain| {
                chain.family == plan.family
                    && chain.table == TABLE
                    && Chain::from_name(&chain.name).is_none()
            });
            write_plan(&mut transaction, plan, stale);
        }
        for family in drop {
            delete_table(&mut transaction, *family);
        }
        self.socket.commit(transaction)
    }

    /// Removes what the iptables programs of this project's kind made in `nat`: jumps, rules, chains.
    pub fn remove_iptables(&self, family: Family) -> Result<(), NetlinkError> {
        let ours: Vec<Chain> = self
            .chains()?
            .into_iter()
            .filter(|chain| chain.family == family && chain.table == IPTABLES_TABLE)
            .filter_map(|chain| Chain::from_name(&chain.name))
            .filter(|chain| Chain::OURS.contains(chain))
            .collect();
        let mut transaction = Transaction::default();
        for rule in self.rules(family, IPTABLES_TABLE)? {
            let to_ours = rule.jump.as_deref().and_then(Chain::from_name);
            if to_ours.is_some_and(|chain| Chain::OURS.contains(&chain)) {
                let what = format!("remove the jump from {}", rule.chain);
                transaction.add(what, nft::DEL_RULE, number(family), 0, |attrs| {
                    attrs.text(1, IPTABLES_TABLE);
                    attrs.text(2, &rule.chain);
                    attrs.u64(3, rule.handle);
                });
            }
        }
        for (verb, msg) in [("flush", nft::DEL_RULE), ("delete", nft::DEL_CHAIN)] {
            for chain in &ours {
                let what = format!("{verb} chain {}", chain.name());
                let name_attr = if msg == nft::DEL_RULE { 2 } else { 3 };
                transaction.add(what, msg, number(family), 0, |attrs| {
                    attrs.text(1, IPTABLES_TABLE);
                    attrs.text(name_attr, chain.name());
                });
            }
        }
        self.socket.commit(transaction)
    }

    fn rules(&self, family: Family, table: &str) -> Result<Vec<KernelRule>, NetlinkError> {
        self.socket.dump(
            nft::GET_RULE,
            number(family),
            |attrs| attrs.text(1, table),
            |message| {
                if find(message.attrs(), 1)?.text()? != table {
                    return None;
                }
                let list = find(message.attrs(), 4);
                Some(KernelRule {
                    chain: find(message.attrs(), 2)?.text()?.to_owned(),
                    handle: find(message.attrs(), 3)?.u64()?,
                    jump: list.and_then(expr::jump_target),
                    meaning: list.and_then(|list| expr::read(family, list)),
                    comment: find(message.attrs(), 7)
                        .and_then(|data| expr::read_comment(data.value))
                        .unwrap_or_default(),
                })
            },
        )
    }

    /// Completes a dumped rule: looks up its port set, gives it a text.
    fn found(&self, family: Family, kernel: KernelRule) -> Result<Found, NetlinkError> {
        let known = match kernel.meaning {
            Some(expr::Meaning::Known(when, then)) => Some((when, then)),
            Some(expr::Meaning::TcpInSet(set, then)) => {
                Some((When::TcpPorts(self.set_ports(family, &set)?), then))
            }
            None => None,
        };
        let rule = known.and_then(|(when, then)| {
            Some(Rule {
                chain: Chain::from_name(&kernel.chain)?,
                when,
                then,
                comment: kernel.comment,
            })
        });
        Ok(Found {
            text: rule.as_ref().map_or_else(
                || {
                    format!(
                        "{} # an unknown rule, handle {}",
                        kernel.chain, kernel.handle
                    )
                },
                |rule| show(family, rule),
            ),
            chain: kernel.chain,
            rule,
            target: kernel.jump.unwrap_or_default(),
        })
    }

    fn set_ports(&self, family: Family, set: &str) -> Result<Vec<PortRange>, NetlinkError> {
        let elements = self.socket.dump(
            nft::GET_SET_ELEM,
            number(family),
            |attrs| {
                attrs.text(1, TABLE);
                attrs.text(2, set);
            },
            |message| Some(set_elements(find(message.attrs(), 3)?)),
        )?;
        Ok(intervals(elements.concat()))
    }
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// Keys of a dumped element list, each with its end-of-interval mark.
fn set_elements(list: Attr<'_>) -> Vec<(u16, bool)> {
    list.nested()
        .filter_map(|elem| {
            let key = find(find(elem.nested(), 1)?.nested(), 1)?.value;
            let end = find(elem.nested(), 3).and_then(Attr::u32).unwrap_or(0) & INTERVAL_END != 0;
            Some((u16::from_be_bytes(key.try_into().ok()?), end))
        })
        .collect()
}

/// Half-open interval marks, in any order, to inclusive ranges.
fn intervals(mut marks: Vec<(u16, bool)>) -> Vec<PortRange> {
    // An end sorts before a start at the same key.
    marks.sort_unstable_by_key(|(key, end)| (*key, !*end));
    let mut ranges: Vec<PortRange> = Vec::new();
    let mut open: Option<u16> = None;
    for (key, end) in marks {
        match (open, end) {
            (Some(lower), true) if key > lower => {
                ranges.push(PortRange {
                    lower,
                    upper: key - 1,
                });
                open = None;
            }
            (None, false) => open = Some(key),
            _ => {}
        }
    }
    ranges.extend(open.map(|lower| PortRange {
        lower,
        upper: u16::MAX,
    }));
    ranges
}

fn delete_table(transaction: &mut Transaction, family: Family) {
    let what = format!("delete table {} {TABLE}", family.nft_name());
    transaction.add(what, nft::DEL_TABLE, number(family), 0, |attrs| {
        attrs.text(1, TABLE);
    });
}

/// The base chains stay hooked across runs; only the rules change hands, in one generation.
fn write_plan(transaction: &mut Transaction, plan: &Plan, stale: bool) {
    let family = number(plan.family);
    let label = plan.family.nft_name();
    let new_table = |transaction: &mut Transaction| {
        let what = format!("add table {label} {TABLE}");
        transaction.add(what, nft::NEW_TABLE, family, F_CREATE, |attrs| {
            attrs.text(1, TABLE);
        });
    };
    new_table(transaction);
    if stale {
        delete_table(transaction, plan.family);
        new_table(transaction);
    }
    let hooks = [(Chain::Prerouting, Some(0)), (Chain::Output, Some(3))];
    let plain = Chain::OURS.map(|chain| (chain, None));
    for (chain, hook) in hooks.into_iter().chain(plain) {
        let what = format!("add chain {label} {TABLE} {}", chain.name());
        transaction.add(what, nft::NEW_CHAIN, family, F_CREATE, |attrs| {
            attrs.text(1, TABLE);
            attrs.text(3, chain.name());
            if let Some(hook) = hook {
                attrs.nest(4, |attrs| {
                    attrs.u32(1, hook);
                    attrs.put(2, &PRIORITY.to_be_bytes());
                });
                attrs.text(7, "nat");
            }
        });
    }
    transaction.add(
        format!("flush table {label} {TABLE}"),
        nft::DEL_RULE,
        family,
        0,
        |attrs| {
            attrs.text(1, TABLE);
        },
    );
    for (at, rule) in plan.rules.iter().enumerate() {
        write_rule(
            transaction,
            plan.family,
            rule,
            u32::try_from(at + 1).unwrap_or(u32::MAX),
        );
    }
}

fn write_rule(transaction: &mut Transaction, family: Family, rule: &Rule, set_id: u32) {
    let matching = match &rule.when {
        When::TcpPort(port) => expr::Ports::Single(*port),
        When::TcpPorts(list) => match list.as_slice() {
            [single] if single.lower == single.upper => expr::Ports::Single(single.lower),
            list => {
                write_set(transaction, family, list, set_id);
                expr::Ports::Set {
                    id: set_id,
                    name: SET_NAME,
                }
            }
        },
        _ => expr::Ports::None,
    };
    let what = format!("add rule {}", show(family, rule));
    transaction.add(
        what,
        nft::NEW_RULE,
        number(family),
        F_CREATE | F_APPEND,
        |attrs| {
            attrs.text(1, TABLE);
            attrs.text(2, rule.chain.name());
            attrs.nest(4, |list| {
                expr::write(list, family, &rule.when, matching, rule.then)
            });
            attrs.put(7, &expr::comment(&rule.comment));
        },
    );
}

fn write_set(transaction: &mut Transaction, family: Family, ranges: &[PortRange], id: u32) {
    transaction.add(
        "add a port set",
        nft::NEW_SET,
        number(family),
        F_CREATE,
        |attrs| {
            attrs.text(1, TABLE);
            attrs.text(2, SET_NAME);
            attrs.u32(3, ANONYMOUS_CONSTANT_INTERVAL);
            attrs.u32(4, TYPE_INET_SERVICE);
            attrs.u32(5, 2);
            attrs.u32(10, id);
        },
    );
    for part in ranges.chunks(ELEMENTS_PER_MESSAGE) {
        transaction.add(
            "fill a port set",
            nft::NEW_SET_ELEM,
            number(family),
            F_CREATE,
            |attrs| {
                attrs.text(1, TABLE);
                attrs.text(2, SET_NAME);
                attrs.u32(4, id);
                attrs.nest(3, |list| {
                    for range in part {
                        list.nest(1, |elem| {
                            elem.nest(1, |key| key.put(1, &range.lower.to_be_bytes()));
                        });
                        if let Some(after) = range.upper.checked_add(1) {
                            list.nest(1, |elem| {
                                elem.nest(1, |key| key.put(1, &after.to_be_bytes()));
                                elem.u32(3, INTERVAL_END);
                            });
                        }
                    }
                });
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn interval_marks() {
        let range = |lower, upper| PortRange { lower, upper };
        type Case<'a> = (&'a [(u16, bool)], &'a [PortRange]);
        let cases: &[Case<'_>] = &[
            (&[], &[]),
            (&[(4190, false), (4192, true)], &[range(4190, 4191)]),
            // The kernel may list from the top, and marks the space below the first start.
            (
                &[(8, true), (7, false), (3, true), (2, false), (0, true)],
                &[range(2, 2), range(7, 7)],
            ),
            (&[(60000, false)], &[range(60000, 65535)]),
            (&[(5, true)], &[]),
        ];
        for (marks, ranges) in cases {
            assert_eq!(intervals(marks.to_vec()), *ranges, "{marks:?}");
        }
    }

    proptest! {
        #[test]
        fn sets_come_back(pairs in proptest::collection::vec((any::<u16>(), any::<u16>()), 0..50)) {
            let ranges: Vec<PortRange> = pairs
                .into_iter()
                .map(|(a, b)| PortRange { lower: a.min(b), upper: a.max(b) })
                .collect();
            let merged = ports::merged(&ranges);
            let mut marks = Vec::new();
            for range in &merged {
                marks.push((range.lower, false));
                marks.extend(range.upper.checked_add(1).map(|after| (after, true)));
            }
            marks.reverse();
            prop_assert_eq!(intervals(marks), merged);
        }

        #[test]
        fn any_marks_are_an_answer(marks in proptest::collection::vec((any::<u16>(), any::<bool>()), 0..40)) {
            let _ = intervals(marks);
        }
    }
}
