//! Mixed traffic while endpoints and the control plane come and go. Afterwards both proxies, the
//! client's and a server's, hold no connection, and the memory they had when they were idle before.
//!
//! `LINKERD_SOAK_SECONDS` (default 20) says for how long, `LINKERD_SOAK_SEED` repeats a run,
//! `LINKERD_TEST_PROXY` names another program than the one built for tests.

#[path = "support/events.rs"]
mod events;
#[path = "support/fleet.rs"]
mod fleet;
#[path = "support/mesh.rs"]
mod mesh;
#[path = "support/traffic.rs"]
mod traffic;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use events::{Events, number};
use fleet::{Backend, Ledger};
use linkerd_testkit::{ca::Validity, wait_for};
use mesh::{DEADLINE, Held, Mesh, Meshed, Process};
use rand::Rng;
use traffic::Tally;

/// Clients of each kind.
const CLIENTS: u64 = 2;
/// Connections of a burst, at most.
const BURST: usize = 150;
/// Memory is steady when it has not grown or shrunk by a hundredth for so long. A proxy gives memory
/// back eight seconds after the last connection.
const STEADY: Duration = Duration::from_secs(9);
/// The proxies that are measured: they live through it all.
const WATCHED: [&str; 3] = ["client", "one", "two"];

#[test]
fn proxies_give_back_what_they_took() {
    let seconds = number("LINKERD_SOAK_SECONDS", 20);
    let seed = number("LINKERD_SOAK_SEED", 7);
    let mut mesh = Mesh::new();
    mesh.control
        .set_validity(Validity::For(time::Duration::seconds(30)));
    // What is kept for later is to be given up soon.
    let env = [
        ("CORES", "2"),
        ("IDENTITY_MIN_REFRESH", "2s"),
        ("OUTBOUND_HTTP2_IDLE_TIMEOUT", "2s"),
        ("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", "2s"),
        ("INBOUND_DISCOVERY_IDLE_TIMEOUT", "2s"),
    ];
    let ledger = Arc::<Ledger>::default();
    let mut backends = ["one", "two", "three"].map(|n| Backend::new(&mut mesh, n, &env, &ledger));
    let client = mesh.meshed("client", &env);
    fleet::serve(&mesh, &backends);
    let netns = client.pod.netns.clone();
    let tally = Arc::<Tally>::default();

    // Code and caches have been used once, and one burst has come: that is the measure, not a proxy
    // that has just started.
    let mut warm = Events::new(seed, &WATCHED);
    traffic::during(&netns, &tally, CLIENTS, 0, || {
        let until = Instant::now() + Duration::from_secs((seconds / 10).clamp(5, 20));
        warm.until(until, &mut mesh, &client, &mut backends, |_| {});
        traffic::burst(&netns, &tally, BURST);
    });
    let idle = settled(watched(&client, &backends));

    let mut events = Events::new(seed + 1, &WATCHED);
    let mut peak = idle;
    let proxies = watched(&client, &backends);
    traffic::during(&netns, &tally, CLIENTS, 100, || {
        let until = Instant::now() + Duration::from_secs(seconds);
        events.until(until, &mut mesh, &client, &mut backends, |random| {
            if random.random_range(0..5) == 0 {
                traffic::burst(&netns, &tally, random.random_range(20..BURST));
            }
            for (peak, proxy) in peak.iter_mut().zip(proxies) {
                *peak = peak.max(proxy.held());
            }
        });
    });
    let story = format!("seed {seed}\n{}{:#?}", tally.report(), events.story);
    let wrongs = tally.wrongs();
    assert!(wrongs.is_empty(), "wrong or hung: {wrongs:#?}\n{story}");
    let strays = ledger.strays();
    assert!(strays.is_empty(), "to whom has left: {strays:#?}\n{story}");
    let twice = ledger.beyond(traffic::receptions);
    assert!(twice.is_empty(), "received too often: {twice:?}\n{story}");

    let after = settled(watched(&client, &backends));
    let mut report = format!(
        "seed {seed}, {} events\n{}",
        events.story.len(),
        tally.report()
    );
    for (n, name) in WATCHED.into_iter().enumerate() {
        for (when, held) in [("idle", idle[n]), ("peak", peak[n]), ("after", after[n])] {
            report += &format!("{name}, {when}: {held:?}\n");
        }
    }
    tell(&report);
    for (n, (before, after)) in idle.into_iter().zip(after).enumerate() {
        let name = WATCHED[n];
        // One may be open just now: a certificate is renewed with a token that is read anew.
        wait_for(DEADLINE, &format!("files of {name}: {report}"), || {
            proxies[n].held().files <= before.files
        });
        assert!(
            after.resident * 10 <= before.resident * 11,
            "{name}: memory\n{report}{story}"
        );
    }
}

/// The processes of the proxies that are measured.
fn watched(client: &Meshed, backends: &[Backend]) -> [Process; 3] {
    let [one, two, ..] = backends else {
        panic!("three backends");
    };
    [client, &one.meshed, &two.meshed].map(Meshed::process)
}

/// Waits until no proxy has a connection and their memory is steady; gives what they hold then.
fn settled(proxies: [Process; 3]) -> [Held; 3] {
    let held = || proxies.map(Process::held);
    let closed = |held: [Held; 3]| held.iter().all(|h| h.connections == 0);
    wait_for(DEADLINE, "no proxy has a connection", || closed(held()));
    let mut reference = (Instant::now(), held());
    wait_for(DEADLINE, "memory is steady", || {
        let now = held();
        let (since, then) = reference;
        let same = |(a, b): (&Held, &Held)| a.resident.abs_diff(b.resident) * 100 < a.resident;
        if !closed(now) || !then.iter().zip(&now).all(same) {
            reference = (Instant::now(), now);
            return false;
        }
        since.elapsed() > STEADY
    });
    held()
}

fn tell(report: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{report}");
}
