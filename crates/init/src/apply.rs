//! One run: choose a backend, look, change, read back, and clear away what another backend left.
//! New rules are in place before old ones go, so that traffic is redirected throughout.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::args::{Config, Mode, Task};
use crate::echo::{self, Step};
use crate::iptables::{self, Programs, SearchPath, ToolError};
use crate::kernel::{self, Ipv6, KernelError, LegacyTable};
use crate::log::{Level, Logger};
use crate::native::{self, Native, NetlinkError};
use crate::observed::{Change, Observed};
use crate::ports::MULTIPORT_SLOTS;
use crate::privilege;
use crate::rules::{Chain, Family, Plan, Rule};
use crate::saved::Saved;

/// A run that failed; the text follows `Error: `.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error("{family} rules were applied but read back differently: {}", join(.changes))]
    Mismatch {
        family: &'static str,
        changes: Vec<Change>,
    },
    #[error(
        "the {0} nat table holds rules of nft that iptables cannot read: remove them, or use --iptables-mode native"
    )]
    Incompatible(&'static str),
    #[error("rules of the {0} backend are still there after their removal")]
    NotRemoved(&'static str),
}

fn join(changes: &[Change]) -> String {
    let texts: Vec<String> = changes.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// Where rules can sit in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Store {
    Legacy,
    Nft,
    Native,
}

/// The backend a run settled on.
enum Backend {
    Programs(Vec<Programs>),
    Native,
}

/// A store and family that holds rules of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    store: Store,
    family: Family,
}

struct Run<'a> {
    config: &'a Config,
    log: &'a Logger,
    path: SearchPath,
}

/// Does what the configuration asks. The calling thread must be in the right network namespace.
pub fn run(config: &Config, log: &Logger) -> Result<(), ApplyError> {
    let run = Run {
        config,
        log,
        path: SearchPath::from_env(),
    };
    for (level, text) in &config.remarks {
        log.log(*level, text, &[]);
    }
    match config.task {
        Task::Simulate => run.simulate(),
        Task::SimulateCleanup => run.simulate_cleanup(),
        Task::Diff => return run.diff(),
        Task::Cleanup => return run.cleanup(),
        Task::Apply => return run.apply(),
    }
    Ok(())
}

// === impl Store ===

impl Store {
    fn name(self) -> &'static str {
        match self {
            Store::Legacy => "legacy",
            Store::Nft => "nft",
            Store::Native => "native",
        }
    }
}

// === impl Run ===

impl Run<'_> {
    fn apply(&self) -> Result<(), ApplyError> {
        privilege::raise(self.log);
        let _turn = self.take_turn();
        self.set_close_wait()?;
        let families = self.families();
        let made = match self.backend(&families)? {
            Backend::Native => self.apply_native(&families)?,
            Backend::Programs(list) => self.apply_programs(&list)?,
        };
        for place in self.leftovers(&made) {
            let text = format!(
                "found {} rules of an earlier run in the {} backend: removing them",
                place.family.label(),
                place.store.name()
            );
            self.log.warn(&text);
            self.remove(place)?;
        }
        Ok(())
    }

    /// Without a turn the run goes on all the same: the read-back tells if another came between.
    fn take_turn(&self) -> Option<kernel::Turn> {
        kernel::take_turn()
            .inspect_err(|error| {
                let text = format!("cannot keep other runs of this program waiting: {error}");
                self.log.warn(&text);
            })
            .ok()
    }

    /// The families rules are to be made for, with a word about IPv6 where it is off.
    fn families(&self) -> Vec<Family> {
        let mut families = vec![Family::V4];
        if self.config.ipv6 {
            match kernel::ipv6() {
                Ipv6::Absent => self
                    .log
                    .warn("IPv6 is not available in this kernel: no IPv6 rules are made"),
                Ipv6::SwitchedOff => {
                    self.log.warn("IPv6 is switched off (net.ipv6.conf.all.disable_ipv6): its rules are made all the same, for the day it is switched on");
                    families.push(Family::V6);
                }
                Ipv6::On => families.push(Family::V6),
            }
        }
        families
    }

    /// The asked-for programs, else others that are complete, else (unless `--iptables-mode` asked
    /// for programs by name) the kernel itself.
    fn backend(&self, families: &[Family]) -> Result<Backend, ApplyError> {
        if self.config.mode == Mode::Native {
            return Ok(Backend::Native);
        }
        let mut list = Vec::new();
        for family in families {
            let found = Programs::resolve(self.config.mode, *family, &self.path);
            self.report(&found);
            let requested = found.programs().save.name.clone();
            match found.complete() {
                Some(programs) => list.push(programs),
                None if self.config.mode_is_explicit => {
                    return Err(ToolError::Missing(requested).into());
                }
                None => {
                    self.log.warn("using the native backend: it needs no program, and its rules are shown by nft, not by iptables");
                    return Ok(Backend::Native);
                }
            }
        }
        Ok(Backend::Programs(list))
    }

    fn report(&self, found: &iptables::Found) {
        let programs = found.programs();
        let (bin, save) = (programs.command.name.as_str(), programs.save.name.as_str());
        match found {
            iptables::Found::Requested(_) => self.log.log(
                Level::Debug,
                "iptables: using configured binaries",
                &[("requestedBin", bin), ("requestedSaveBin", save)],
            ),
            iptables::Found::Fallback(_) => self.log.log(
                Level::Warn,
                "iptables: configured binaries not found; applying fallback to available binaries",
                &[("fallbackBin", bin), ("fallbackSaveBin", save)],
            ),
            iptables::Found::Nothing(_) => self.log.log(
                Level::Error,
                "iptables: no suitable binaries found on PATH; commands may fail",
                &[("binPath", bin), ("saveBinPath", save)],
            ),
        }
    }

    fn set_close_wait(&self) -> Result<(), ApplyError> {
        let value = self.config.close_wait_secs;
        if value == 0 {
            return Ok(());
        }
        kernel::set_close_wait(value).inspect_err(|error| self.log.error(&error.to_string()))?;
        self.log
            .info(&format!("{} = {value}", kernel::CLOSE_WAIT_KEY));
        Ok(())
    }

    // --- the programs ---

    fn apply_programs(&self, list: &[Programs]) -> Result<Vec<Place>, ApplyError> {
        let mut made = Vec::new();
        for programs in list {
            let family = programs.family;
            match self.apply_family(programs) {
                Ok(store) => made.push(Place { store, family }),
                Err(error) => self.tolerate(family, error)?,
            }
        }
        Ok(made)
    }

    /// IPv6 rules may fail only where there is no IPv6 traffic to lose.
    fn tolerate(&self, family: Family, error: ApplyError) -> Result<(), ApplyError> {
        if family == Family::V6 && kernel::ipv6() != Ipv6::On {
            self.log.warn(&format!(
                "no IPv6 rules were made, and IPv6 is switched off: {error}"
            ));
            return Ok(());
        }
        Err(error)
    }

    fn apply_family(&self, programs: &Programs) -> Result<Store, ApplyError> {
        let family = programs.family;
        let plan = Plan::new(self.config, family, MULTIPORT_SLOTS);
        self.trace();
        if self.config.wait {
            self.log
                .debug("'useWaitFlag' set: iptables will wait for xtables to become available");
        }
        self.log.info(&self.shown(programs, &Step::Save));
        let (before, text) = programs.observe().inspect_err(|error| {
            self.tell_output(error);
            self.log.error("aborting firewall configuration");
        })?;
        self.tell(&text);
        readable(&before, family)?;
        for found in before.observed.redirects_before_ours() {
            self.log.warn(&format!(
                "another redirect comes before ours: {}",
                found.text
            ));
        }
        let existing = before.observed.existing();
        let steps = echo::apply(&plan, existing, self.config.wait);
        for step in steps.iter().filter(|step| matches!(step, Step::Change(_))) {
            self.log.info(&self.shown(programs, step));
        }
        let surplus = before.observed.surplus_jumps();
        let surplus: Vec<&str> = surplus.iter().map(|found| found.text.as_str()).collect();
        self.restore(programs, &echo::restore(&plan, existing, &surplus))?;

        self.log.info(&self.shown(programs, &Step::Save));
        let (after, text) = programs
            .observe()
            .inspect_err(|error| self.tell_output(error))?;
        self.tell(&text);
        check(&after.observed, &canonical(plan), Rule::saved_text)?;
        Ok(if after.nf_tables {
            Store::Nft
        } else {
            Store::Legacy
        })
    }

    fn restore(&self, programs: &Programs, text: &str) -> Result<(), ApplyError> {
        let args = programs.restore_args(self.config.wait).join(" ");
        self.log
            .info(&format!("{} {args}", programs.restore.shown()));
        self.log.debug(text);
        let output = programs
            .restore(text, self.config.wait)
            .inspect_err(|error| self.tell_output(error))?;
        self.tell(&output);
        Ok(())
    }

    fn shown(&self, programs: &Programs, step: &Step) -> String {
        let netns = self
            .config
            .netns
            .as_deref()
            .map(|netns| (netns, &self.path));
        programs.shown(step, netns)
    }

    fn trace(&self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.log
            .debug(&format!("tracing script execution as [{}]", now.as_secs()));
    }

    fn tell(&self, output: &str) {
        if !output.is_empty() {
            self.log.info(output);
        }
    }

    /// A failed program's own words, and what they usually mean.
    fn tell_output(&self, error: &ToolError) {
        let ToolError::Exit { output, .. } = error else {
            return;
        };
        self.tell(output);
        let causes = [
            (
                "xtables lock",
                "another program holds the xtables lock: use --use-wait-flag, or find out who holds /run/xtables.lock",
            ),
            (
                "Permission denied",
                "the process lacks NET_ADMIN or NET_RAW, or a security module forbids it: add both to the container's capabilities",
            ),
            (
                "not permitted",
                "the process lacks NET_ADMIN or NET_RAW: add both to the container's capabilities",
            ),
            (
                "Table does not exist",
                "the kernel lacks this iptables backend: choose another with --iptables-mode (native needs no iptables module)",
            ),
            (
                "RULE_APPEND failed",
                "the kernel lacks an xt match or target (REDIRECT, owner, multiport or comment): choose --iptables-mode native",
            ),
            (
                "missing kernel module",
                "the kernel lacks an xt match or target (REDIRECT, owner, multiport or comment): choose --iptables-mode native",
            ),
        ];
        if let Some((_, cause)) = causes.iter().find(|(words, _)| output.contains(words)) {
            self.log.error(&format!("likely cause: {cause}"));
        }
    }

    // --- native ---

    fn apply_native(&self, families: &[Family]) -> Result<Vec<Place>, ApplyError> {
        self.trace();
        let native = Native::open()?;
        let plan = |family: &Family| native::plan(self.config, *family);
        let plans: Vec<Plan> = families.iter().map(plan).collect();
        let place = |family: &Family| Place {
            store: Store::Native,
            family: *family,
        };
        match self.commit(&native, &plans) {
            Ok(()) => Ok(families.iter().map(place).collect()),
            Err(error) if families.contains(&Family::V6) => {
                self.tolerate(Family::V6, error)?;
                self.commit(&native, &plans[..1])?;
                Ok(vec![place(&Family::V4)])
            }
            Err(error) => Err(error),
        }
    }

    fn commit(&self, native: &Native, plans: &[Plan]) -> Result<(), ApplyError> {
        for plan in plans {
            for line in native::commands(plan) {
                self.log.info(&line);
            }
        }
        native.apply(plans, &[])?;
        for plan in plans {
            let observed = native.observe(plan.family)?;
            check(&observed, plan, |rule| native::show(plan.family, rule))?;
        }
        self.log
            .info("applied in one nf_tables transaction and read back");
        Ok(())
    }

    // --- other backends' rules ---

    /// Every place that holds rules of ours, except those known about.
    fn leftovers(&self, known: &[Place]) -> Vec<Place> {
        let mut found = Vec::new();
        let mut note = |store: Store, family: Family| found.push(Place { store, family });
        let chains = Native::open()
            .and_then(|native| native.chains())
            .unwrap_or_else(|error| {
                self.log
                    .debug(&format!("cannot look for nf_tables rules: {error}"));
                Vec::new()
            });
        for chain in chains {
            let ours = Chain::from_name(&chain.name).is_some_and(|own| Chain::OURS.contains(&own));
            match chain.table.as_str() {
                native::TABLE => note(Store::Native, chain.family),
                "nat" if ours => note(Store::Nft, chain.family),
                _ => {}
            }
        }
        for family in Family::BOTH {
            let place = Place {
                store: Store::Legacy,
                family,
            };
            if known.contains(&place) {
                continue;
            }
            if let Some((_, seen)) = self.legacy_observed(family)
                && seen.existing().any()
            {
                note(Store::Legacy, family);
            }
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|place| !known.contains(place));
        found
    }

    /// The legacy table, looked at only if it exists: looking would create it. Only root may know
    /// whether it does, and only a clean-up is worth a new table.
    fn legacy_observed(&self, family: Family) -> Option<(Programs, Observed)> {
        let programs = Programs::of(Mode::Legacy, family, &self.path);
        let worth_it = match kernel::legacy_nat(family) {
            LegacyTable::Present => true,
            LegacyTable::Absent => false,
            LegacyTable::Unknown => self.config.task == Task::Cleanup,
        };
        if !worth_it || !programs.is_complete() {
            return None;
        }
        match programs.observe() {
            Ok((saved, _)) => Some((programs, saved.observed)),
            Err(error) => {
                let family = family.label();
                self.log
                    .debug(&format!("cannot look for legacy {family} rules: {error}"));
                None
            }
        }
    }

    fn remove(&self, place: Place) -> Result<(), ApplyError> {
        let Place { store, family } = place;
        match store {
            Store::Native => Native::open()?.apply(&[], &[family])?,
            Store::Nft => Native::open()?.remove_iptables(family)?,
            Store::Legacy => {
                if let Some((programs, seen)) = self.legacy_observed(family) {
                    let jumps: Vec<&str> = Chain::OURS
                        .iter()
                        .flat_map(|chain| seen.jumps_to(*chain))
                        .map(|found| found.text.as_str())
                        .collect();
                    self.restore(&programs, &echo::restore_cleanup(seen.existing(), &jumps))?;
                }
            }
        }
        Ok(())
    }

    fn cleanup(&self) -> Result<(), ApplyError> {
        privilege::raise(self.log);
        let _turn = self.take_turn();
        // Without the right to look, "nothing found" would be a lie.
        if let Err(error) = Native::open().and_then(|native| native.chains())
            && error.errno() == Some(rustix::io::Errno::PERM)
        {
            return Err(error.into());
        }
        let found = self.leftovers(&[]);
        if found.is_empty() {
            self.log.info("no rules of ours were found");
        }
        for place in &found {
            self.remove(*place)?;
            let (family, store) = (place.family.label(), place.store.name());
            self.log.info(&format!(
                "removed the {family} rules of the {store} backend"
            ));
        }
        match self.leftovers(&[]).first() {
            Some(place) => Err(ApplyError::NotRemoved(place.store.name())),
            None => Ok(()),
        }
    }

    // --- looking without touching ---

    fn simulated(&self) -> Vec<Family> {
        let mut families = vec![Family::V4];
        families.extend(self.config.ipv6.then_some(Family::V6));
        families
    }

    /// The commands for an empty table, whatever the kernel holds.
    fn simulate(&self) {
        if self.config.close_wait_secs != 0 {
            self.log.info(&format!(
                "sysctl -w {}={}",
                kernel::CLOSE_WAIT_KEY,
                self.config.close_wait_secs
            ));
        }
        for family in self.simulated() {
            self.trace();
            if self.config.mode == Mode::Native {
                for line in native::commands(&native::plan(self.config, family)) {
                    self.log.info(&line);
                }
                continue;
            }
            let found = Programs::resolve(self.config.mode, family, &self.path);
            self.report(&found);
            let plan = Plan::new(self.config, family, MULTIPORT_SLOTS);
            for step in echo::apply(
                &plan,
                crate::observed::Existing::default(),
                self.config.wait,
            ) {
                self.log.info(&self.shown(found.programs(), &step));
            }
        }
    }

    fn simulate_cleanup(&self) {
        for family in self.simulated() {
            if self.config.mode == Mode::Native {
                self.log.info(&native::cleanup_command(family));
                continue;
            }
            let found = Programs::resolve(self.config.mode, family, &self.path);
            for step in echo::cleanup(self.config.wait) {
                self.log.info(&self.shown(found.programs(), &step));
            }
        }
    }

    /// Prints `-` and `+` lines; nothing when there is nothing to do.
    fn diff(&self) -> Result<(), ApplyError> {
        privilege::raise(self.log);
        let families = self.families();
        let mut wanted: Vec<Place> = Vec::new();
        let mut lines: Vec<String> = Vec::new();
        let mut note = |family: Family, changes: &[Change]| {
            lines.extend(
                changes
                    .iter()
                    .map(|change| format!("{} {change}", family.nft_name())),
            );
        };
        match self.backend(&families)? {
            Backend::Native => {
                let native = Native::open()?;
                for family in families {
                    let plan = native::plan(self.config, family);
                    let observed = native.observe(family)?;
                    note(
                        family,
                        &observed.changes(&plan, |rule| native::show(family, rule)),
                    );
                    wanted.push(Place {
                        store: Store::Native,
                        family,
                    });
                }
            }
            Backend::Programs(list) => {
                for programs in &list {
                    let family = programs.family;
                    let plan = canonical(Plan::new(self.config, family, MULTIPORT_SLOTS));
                    let saved = self.saved_without_touching(programs)?;
                    note(family, &saved.observed.changes(&plan, Rule::saved_text));
                    let store = if saved.nf_tables {
                        Store::Nft
                    } else {
                        Store::Legacy
                    };
                    wanted.push(Place { store, family });
                }
            }
        }
        for place in self.leftovers(&wanted) {
            let (family, store) = (place.family.nft_name(), place.store.name());
            lines.push(format!(
                "{family} - all rules of ours in the {store} backend"
            ));
        }
        for line in &lines {
            self.log.print(&format!("{line}\n"));
        }
        if lines.is_empty() {
            self.log.info("no difference: the rules are as asked for");
        }
        Ok(())
    }

    /// Reading an absent legacy table would create it.
    fn saved_without_touching(&self, programs: &Programs) -> Result<Saved, ApplyError> {
        if programs.is_legacy() && kernel::legacy_nat(programs.family) == LegacyTable::Absent {
            return Ok(Saved::default());
        }
        let (saved, _) = programs
            .observe()
            .inspect_err(|error| self.tell_output(error))?;
        readable(&saved, programs.family)?;
        Ok(saved)
    }
}

/// A table iptables cannot read must not be changed through it.
fn readable(saved: &Saved, family: Family) -> Result<(), ApplyError> {
    match saved.incompatible {
        true => Err(ApplyError::Incompatible(family.label())),
        false => Ok(()),
    }
}

fn canonical(mut plan: Plan) -> Plan {
    plan.rules = plan.rules.into_iter().map(Rule::canonical).collect();
    plan
}

fn check(
    observed: &Observed,
    plan: &Plan,
    show: impl Fn(&Rule) -> String,
) -> Result<(), ApplyError> {
    let changes = observed.changes(plan, show);
    if changes.is_empty() {
        return Ok(());
    }
    Err(ApplyError::Mismatch {
        family: plan.family.label(),
        changes,
    })
}
