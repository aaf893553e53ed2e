//! What happens to the mesh while the chaos or the soak test has traffic flow, drawn from a seed.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use linkerd_testkit::ca::Validity;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{
    fleet::{Backend, publish},
    mesh::{Mesh, Meshed},
    traffic::pause,
};

/// Number in the environment, or what is said here.
pub fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|t| t.parse().ok()).unwrap_or(default)
}

/// What happens, and what has happened.
pub struct Events {
    random: StdRng,
    /// What is still to come of the present round, in which everything comes once.
    round: Vec<u32>,
    /// Proxies of these are not killed: they are measured.
    spared: &'static [&'static str],
    pub story: Vec<String>,
    /// How often an endpoint of the bank may have been seen failing for the first time.
    pub spells: u32,
    /// For how long backends were failing, all together.
    pub failing: Duration,
    since: Vec<Option<Instant>>,
}

impl Events {
    pub fn new(seed: u64, spared: &'static [&'static str]) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            round: Vec::new(),
            spared,
            story: Vec::new(),
            spells: 0,
            failing: Duration::ZERO,
            since: Vec::new(),
        }
    }

    /// Makes things happen until then; everything is well again afterwards.
    pub fn until(
        &mut self,
        until: Instant,
        mesh: &mut Mesh,
        client: &Meshed,
        backends: &mut [Backend],
        mut also: impl FnMut(&mut StdRng),
    ) {
        self.since.resize(backends.len(), None);
        while Instant::now() < until {
            let what = self.happen(mesh, client, backends);
            self.story.push(what);
            also(&mut self.random);
            let time = Duration::from_millis(self.random.random_range(200..1500));
            pause(time.min(until.saturating_duration_since(Instant::now())));
        }
        for (at, backend) in backends.iter_mut().enumerate() {
            self.well(at, backend);
            backend.mood.slow.store(0, Ordering::Relaxed);
            backend.mood.torn.store(0, Ordering::Relaxed);
            backend.mood.cut.store(0, Ordering::Relaxed);
            backend.set_in_service(true);
        }
        publish(mesh, backends);
    }

    fn well(&mut self, at: usize, backend: &Backend) {
        backend.mood.failing.store(false, Ordering::Relaxed);
        backend.mood.stalled.store(false, Ordering::Relaxed);
        if let Some(since) = self.since[at].take() {
            self.failing += since.elapsed();
        }
    }

    /// Whether another backend is in the services and does not fail.
    fn another(&self, backends: &[Backend], at: usize) -> bool {
        let mut others = backends.iter().zip(&self.since).enumerate();
        others.any(|(n, (b, since))| n != at && b.in_service() && since.is_none())
    }

    /// A backend whose proxy may be killed.
    fn victim(&self, backends: &[Backend], at: usize) -> Option<usize> {
        let spared = self.spared.contains(&backends[at].name);
        (self.another(backends, at) && !spared).then_some(at)
    }

    /// Kills a proxy without a word, and starts it again: clients find out before the control plane
    /// does.
    fn kill(&mut self, mesh: &Mesh, backends: &mut [Backend], at: usize) {
        let was = backends[at].in_service();
        let proxy = &mut backends[at].meshed.proxy;
        proxy.signal(rustix::process::Signal::KILL);
        backends[at].set_in_service(false);
        publish(mesh, backends);
        backends[at].meshed.restart();
        backends[at].set_in_service(was);
        publish(mesh, backends);
        self.spells += 1;
    }

    fn next(&mut self) -> u32 {
        if self.round.is_empty() {
            self.round.extend(0..16);
            self.round.shuffle(&mut self.random);
        }
        self.round.pop().expect("just filled")
    }

    fn happen(&mut self, mesh: &mut Mesh, client: &Meshed, backends: &mut [Backend]) -> String {
        let at = self.random.random_range(0..backends.len());
        let what = self.next();
        let ms = self.random.random_range(1000..4000);
        let name = backends[at].name;
        match what {
            0 | 1 if backends[at].in_service() && self.another(backends, at) => {
                backends[at].set_in_service(false);
                publish(mesh, backends);
                format!("{name} leaves the services")
            }
            2 | 3 if !backends[at].in_service() => {
                backends[at].set_in_service(true);
                publish(mesh, backends);
                self.spells += 1;
                format!("{name} joins the services")
            }
            4 => match self.victim(backends, at) {
                Some(at) => {
                    self.kill(mesh, backends, at);
                    format!("{name} is killed and comes back")
                }
                None => self.slow(&backends[at]),
            },
            5 => {
                mesh.control.cut_streams();
                "the control plane ends its streams".to_owned()
            }
            6 => {
                mesh.control.restart();
                "the control plane restarts".to_owned()
            }
            7 => {
                mesh.control.stop();
                pause(Duration::from_millis(ms));
                mesh.control.restart();
                format!("the control plane is away for {ms} ms")
            }
            8 => {
                let apart = client.cut_off();
                let victim = self.victim(backends, at);
                if let Some(at) = victim {
                    self.kill(mesh, backends, at);
                }
                pause(Duration::from_millis(ms));
                drop(apart);
                let killed = victim.map_or_else(String::new, |_| format!(", {name} is killed"));
                format!("the client is parted from the control plane for {ms} ms{killed}")
            }
            9 => {
                let apart = backends[at].meshed.cut_off();
                pause(Duration::from_millis(ms));
                drop(apart);
                format!("{name} is parted from the control plane for {ms} ms")
            }
            10 => {
                backends[at].mood.torn.store(3, Ordering::Relaxed);
                format!("three answers of {name} break")
            }
            11 => {
                backends[at].mood.cut.store(3, Ordering::Relaxed);
                format!("three requests to {name} get no answer")
            }
            12 | 13 if self.since[at].is_none() && self.another(backends, at) => {
                let late = what == 13;
                let mood = &backends[at].mood;
                let how = if late { &mood.stalled } else { &mood.failing };
                how.store(true, Ordering::Relaxed);
                self.since[at] = Some(Instant::now());
                self.spells += 1;
                let how = if late { "answer too late" } else { "fail" };
                format!("shop and bank of {name} {how}")
            }
            12..=14 if self.since[at].is_some() => {
                self.well(at, &backends[at]);
                format!("shop and bank of {name} are well again")
            }
            15 => {
                let seconds = self.random.random_range(15..40);
                let validity = Validity::For(time::Duration::seconds(seconds));
                mesh.control.set_validity(validity);
                format!("certificates last {seconds} s from now on")
            }
            _ => self.slow(&backends[at]),
        }
    }

    fn slow(&mut self, backend: &Backend) -> String {
        let ms = self.random.random_range(0..200);
        backend.mood.slow.store(ms, Ordering::Relaxed);
        format!("{} takes {ms} ms", backend.name)
    }
}
