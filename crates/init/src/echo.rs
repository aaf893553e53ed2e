//! The command lines users read in the log: for each plan, the commands that would bring a table from
//! its present state to the plan. Pure. What really runs is one restore of the same rules.

use crate::observed::Existing;
use crate::rules::{Chain, Plan, Rule, Then};

/// The commands of one pass without the programs' names; `Save` lines show the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Save,
    /// Arguments of the main command.
    Change(String),
}

/// The whole sequence of one family.
pub fn apply(plan: &Plan, existing: Existing, wait: bool) -> Vec<Step> {
    let mut steps = vec![Step::Save];
    for chain in Chain::OURS {
        let verb = if existing.chain(chain) { "-F" } else { "-N" };
        steps.push(change(format!("{verb} {}", chain.name()), wait));
        for rule in plan.chain(chain) {
            steps.push(change(rule.iptables_args(), wait));
        }
        if !existing.jump_to(chain) {
            for rule in plan
                .rules
                .iter()
                .filter(|rule| rule.then == Then::Jump(chain))
            {
                steps.push(change(rule.iptables_args(), wait));
            }
        }
    }
    steps.push(Step::Save);
    steps
}

/// The sequence that removes everything ours.
pub fn cleanup(wait: bool) -> Vec<Step> {
    let jump = |hook: Chain, chain: Chain, comment: &str| {
        format!(
            "-D {} -j {} -m comment --comment proxy-init/{comment}",
            hook.name(),
            chain.name()
        )
    };
    let (redirect, output) = (Chain::ProxyRedirect, Chain::ProxyOutput);
    [
        jump(Chain::Prerouting, redirect, "install-proxy-init-prerouting"),
        jump(Chain::Output, output, "install-proxy-init-output"),
        format!("-F {}", output.name()),
        format!("-F {}", redirect.name()),
        format!("-X {}", output.name()),
        format!("-X {}", redirect.name()),
    ]
    .into_iter()
    .map(|args| change(args, wait))
    .chain([Step::Save])
    .collect()
}

fn change(args: String, wait: bool) -> Step {
    let wait = if wait { " -w" } else { "" };
    Step::Change(format!("-t nat {args}{wait}"))
}

/// The restore input that makes `plan` hold: both chains rewritten, missing jumps added, `surplus`
/// rules (saved lines) deleted; one transaction.
pub fn restore(plan: &Plan, existing: Existing, surplus: &[&str]) -> String {
    let mut text = String::from("*nat\n");
    for chain in Chain::OURS {
        text.push_str(&format!(":{} - [0:0]\n", chain.name()));
    }
    let needed = |rule: &&Rule| match rule.then {
        Then::Jump(chain) => !existing.jump_to(chain),
        Then::Return | Then::Redirect(_) => true,
    };
    for rule in plan.rules.iter().filter(needed) {
        text.push_str(&rule.iptables_args());
        text.push('\n');
    }
    delete(&mut text, surplus);
    text.push_str("COMMIT\n");
    text
}

/// The restore input that removes everything ours; `jumps` are saved lines.
pub fn restore_cleanup(existing: Existing, jumps: &[&str]) -> String {
    let mut text = String::from("*nat\n");
    delete(&mut text, jumps);
    for verb in ["-F", "-X"] {
        for chain in Chain::OURS
            .into_iter()
            .filter(|chain| existing.chain(*chain))
        {
            text.push_str(&format!("{verb} {}\n", chain.name()));
        }
    }
    text.push_str("COMMIT\n");
    text
}

fn delete(text: &mut String, lines: &[&str]) {
    for line in lines {
        if let Some(rest) = line.strip_prefix("-A ") {
            text.push_str(&format!("-D {rest}\n"));
        }
    }
}
