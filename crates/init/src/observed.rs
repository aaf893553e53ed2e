//! What a backend found in the kernel, in one shape for all of them, and its comparison with a plan.

use crate::rules::{Chain, Plan, Rule, Then, When};

/// One rule found. `rule` is `None` when it is not of a kind this program makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub chain: String,
    /// As the backend's own tool shows it.
    pub text: String,
    pub rule: Option<Rule>,
    /// Where the rule jumps to or what target it calls.
    pub target: String,
}

/// The `nat` hooks of one family in one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    pub chains: Vec<String>,
    pub rules: Vec<Found>,
}

/// What of ours is there already: decides between the `-N` and `-F` forms and the need for jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    pub redirect_chain: bool,
    pub redirect_jump: bool,
    pub output_chain: bool,
    pub output_jump: bool,
}

/// One line of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Remove(String),
    Add(String),
}

// === impl Existing ===

impl Existing {
    pub fn any(self) -> bool {
        self.redirect_chain || self.redirect_jump || self.output_chain || self.output_jump
    }

    pub fn chain(self, chain: Chain) -> bool {
        match chain {
            Chain::ProxyRedirect => self.redirect_chain,
            Chain::ProxyOutput => self.output_chain,
            Chain::Prerouting | Chain::Output => true,
        }
    }

    pub fn jump_to(self, chain: Chain) -> bool {
        match chain {
            Chain::ProxyRedirect => self.redirect_jump,
            Chain::ProxyOutput => self.output_jump,
            Chain::Prerouting | Chain::Output => false,
        }
    }
}

// === impl Change ===

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Remove(text) => write!(f, "- {text}"),
            Change::Add(text) => write!(f, "+ {text}"),
        }
    }
}

// === impl Observed ===

impl Observed {
    pub fn existing(&self) -> Existing {
        let has = |chain: Chain| self.chains.iter().any(|name| name == chain.name());
        Existing {
            redirect_chain: has(Chain::ProxyRedirect),
            redirect_jump: self.jump_to(Chain::ProxyRedirect).is_some(),
            output_chain: has(Chain::ProxyOutput),
            output_jump: self.jump_to(Chain::ProxyOutput).is_some(),
        }
    }

    /// The rules of the hook that jump to one of our chains.
    pub fn jumps_to(&self, chain: Chain) -> impl Iterator<Item = &Found> {
        self.rules
            .iter()
            .filter(move |found| found.chain == chain.hook().name() && found.target == chain.name())
    }

    /// The jump that sends every packet to one of our chains.
    pub fn jump_to(&self, chain: Chain) -> Option<&Found> {
        self.jumps_to(chain).find(|found| {
            let rule = found.rule.as_ref();
            rule.is_some_and(|rule| rule.when == When::Any && rule.then == Then::Jump(chain))
        })
    }

    /// Jumps to our chains beside the one that is needed: doubled or conditional.
    pub fn surplus_jumps(&self) -> Vec<&Found> {
        let surplus = |chain: Chain| {
            let needed = self.jump_to(chain);
            self.jumps_to(chain)
                .filter(move |found| !needed.is_some_and(|needed| std::ptr::eq(needed, *found)))
        };
        Chain::OURS.into_iter().flat_map(surplus).collect()
    }

    /// Foreign rules that take a packet before our jump sees it.
    pub fn redirects_before_ours(&self) -> Vec<&Found> {
        let mut early = Vec::new();
        for chain in Chain::OURS {
            let hook = self
                .rules
                .iter()
                .filter(|found| found.chain == chain.hook().name());
            early.extend(
                hook.take_while(|found| found.target != chain.name())
                    .filter(|found| {
                        matches!(found.target.as_str(), "REDIRECT" | "DNAT" | "TPROXY")
                    }),
            );
        }
        early
    }

    /// What must change for `plan` to hold; empty when it does. `show` renders a planned rule as the
    /// backend's tool would. Comments of jumps are not compared: other versions wrote others.
    pub fn changes(&self, plan: &Plan, show: impl Fn(&Rule) -> String) -> Vec<Change> {
        let mut changes = Vec::new();
        for chain in Chain::OURS {
            let present: Vec<&Found> = self
                .rules
                .iter()
                .filter(|found| found.chain == chain.name())
                .collect();
            let planned: Vec<&Rule> = plan.chain(chain).collect();
            let same = present.len() == planned.len()
                && present
                    .iter()
                    .zip(&planned)
                    .all(|(found, rule)| found.rule.as_ref() == Some(*rule));
            if !same {
                changes.extend(chain_changes(&present, &planned, &show));
            }
            if self.jump_to(chain).is_none() {
                let jump = plan
                    .rules
                    .iter()
                    .find(|rule| rule.then == Then::Jump(chain));
                changes.extend(jump.map(|rule| Change::Add(show(rule))));
            }
        }
        let surplus = self.surplus_jumps();
        changes.extend(
            surplus
                .iter()
                .map(|found| Change::Remove(found.text.clone())),
        );
        changes
    }
}

/// Rules on one side only; the whole chain when only the order differs.
fn chain_changes(
    present: &[&Found],
    planned: &[&Rule],
    show: impl Fn(&Rule) -> String,
) -> Vec<Change> {
    let mut unmatched: Vec<&Rule> = planned.to_vec();
    let mut changes = Vec::new();
    for found in present {
        match unmatched
            .iter()
            .position(|rule| found.rule.as_ref() == Some(*rule))
        {
            Some(at) => {
                unmatched.remove(at);
            }
            None => changes.push(Change::Remove(found.text.clone())),
        }
    }
    changes.extend(unmatched.iter().map(|rule| Change::Add(show(rule))));
    if changes.is_empty() {
        changes.extend(
            present
                .iter()
                .map(|found| Change::Remove(found.text.clone())),
        );
        changes.extend(planned.iter().map(|rule| Change::Add(show(rule))));
    }
    changes
}
