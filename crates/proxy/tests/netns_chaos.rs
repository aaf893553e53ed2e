//! Traffic of every kind through proxies in pods while endpoints come, go, slow down, fail and break,
//! the control plane restarts and cannot be reached, and certificates are renewed. What happens is
//! drawn from a seed.
//!
//! `LINKERD_CHAOS_SECONDS` (default 20) says for how long, `LINKERD_CHAOS_SEED` repeats a run.

#[path = "support/events.rs"]
mod events;
#[path = "support/fleet.rs"]
mod fleet;
#[path = "support/mesh.rs"]
mod mesh;
#[path = "support/traffic.rs"]
mod traffic;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use events::{Events, number};
use fleet::{BREAK, BREAKS_AFTER, Backend, Ledger, WORKERS};
use linkerd_testkit::{ca::Validity, control_plane::Call, wait_for};
use mesh::{DEADLINE, Mesh, Meshed};
use traffic::{KINDS, Kind, TOLD, Tally};

/// Clients of each kind.
const CLIENTS: u64 = 1;

#[test]
fn nothing_goes_astray_while_everything_changes() {
    let seconds = number("LINKERD_CHAOS_SECONDS", 20);
    let seed = number("LINKERD_CHAOS_SEED", 7);
    let mut mesh = Mesh::new();
    mesh.control
        .set_validity(Validity::For(time::Duration::seconds(15)));
    let env = [("IDENTITY_MIN_REFRESH", "2s"), ("CORES", "2")];
    let ledger = Arc::<Ledger>::default();
    let mut backends = ["one", "two", "three"].map(|n| Backend::new(&mut mesh, n, &env, &ledger));
    let client = mesh.meshed("client", &env);
    fleet::serve(&mesh, &backends);

    let tally = Arc::<Tally>::default();
    let mut events = Events::new(seed, &[]);
    let netns = client.pod.netns.clone();
    traffic::during(&netns, &tally, CLIENTS, 0, || {
        let until = Instant::now() + Duration::from_secs(seconds);
        events.until(until, &mut mesh, &client, &mut backends, |_| {});
    });
    let story = format!("seed {seed}\n{}{:#?}", tally.report(), events.story);

    let wrongs = tally.wrongs();
    assert!(wrongs.is_empty(), "wrong or hung: {wrongs:#?}\n{story}");
    let strays = ledger.strays();
    assert!(strays.is_empty(), "to whom has left: {strays:#?}\n{story}");
    // What does not meet an application that fails may fail, but not often. Shop and bank meet them:
    // tries of one request may all come to the same backend.
    for kind in &KINDS {
        let of = |k: &Kind| k.name == kind.name;
        let (sent, good) = (tally.sum(of, |s| s.sent), tally.sum(of, |s| s.good));
        assert!(good > 20, "{} flowed: {story}", kind.name);
        let meets_failures = ["shop", "bank"].contains(&kind.service.name);
        let share = if meets_failures { 2 } else { 20 };
        let failed = sent - good;
        assert!(failed * share < sent, "{} failed: {story}", kind.name);
    }

    let twice = ledger.beyond(traffic::receptions);
    assert!(twice.is_empty(), "received too often: {twice:?}\n{story}");
    breakers_broke(&backends, &events, &story);
    counters_add_up(&client, &tally, &ledger, &story);

    let renewed = mesh.control.calls();
    let renewed = renewed
        .iter()
        .filter(|call| **call == Call::Certify(client.identity.clone()))
        .count();
    assert!(
        renewed > 1 || seconds < 20,
        "{renewed} certificates: {story}"
    );
    tell(&format!(
        "seed {seed}, {} events\n{}",
        events.story.len(),
        tally.report()
    ));
}

/// A backend of the bank that fails gets what it takes to find out, and one request after each break.
fn breakers_broke(backends: &[Backend], events: &Events, story: &str) {
    let failures = backends.iter().map(|b| &b.mood.bank_failures);
    let failures: u64 = failures.map(|n| n.load(Ordering::Relaxed)).sum();
    // Those under way when it broke count, too.
    let finding_out = BREAKS_AFTER + 4 * u32::try_from(CLIENTS).expect("few");
    let breaks = events.failing.as_millis() / BREAK.as_millis();
    let allowed = u128::from(WORKERS) * (u128::from(events.spells * finding_out) + breaks);
    assert!(
        u128::from(failures) <= allowed,
        "{failures} requests to failing backends of the bank, {allowed} allowed: {story}"
    );
}

/// What the client's proxy has counted is what its clients and the applications have.
fn counters_add_up(client: &Meshed, tally: &Tally, ledger: &Ledger, story: &str) {
    let count = |family: &str, labels: &[&str]| whole(client.metric(family, labels));
    let statuses = "outbound_http_route_request_statuses_total";
    let sent = tally.sum(Kind::is_http, |s| s.sent);
    let opened = tally.sum(|k| !k.is_http(), |s| s.sent);
    let closed = || count("outbound_tcp_route_close_total", &[]);
    wait_for(DEADLINE, "everything has ended", || {
        count(statuses, &[]) >= sent && closed() >= opened
    });
    let metrics = client.admin("/metrics").unwrap_or_default();
    let told = [
        "route_request_statuses",
        "backend_requests",
        "resends",
        "retry",
        "tcp_route",
    ];
    let lines = metrics
        .lines()
        .filter(|l| told.iter().any(|t| l.contains(t)));
    let about = format!("{story}\n{}", lines.collect::<Vec<_>>().join("\n"));

    assert_eq!(closed(), opened, "connections: {about}");
    for service in ["web", "shop", "bank"] {
        let parent = format!("parent_name=\"{service}\"");
        let of = |k: &Kind| k.is_http() && k.service.name == service;
        let sent = tally.sum(of, |s| s.sent);
        assert_eq!(count(statuses, &[&parent]), sent, "{service}: {about}");
        let seen = |status| tally.sum(of, |s| s.statuses.get(&status).copied().unwrap_or(0));
        let counted = |status: &str, error: &str| {
            let status = format!("http_status=\"{status}\"");
            let error = format!("error=\"{error}\"");
            count(statuses, &[&parent, &status, &error])
        };
        for status in [502, 503] {
            let counted = counted(&status.to_string(), "");
            assert_eq!(counted, seen(status), "{status} of {service}: {about}");
        }
        let late = counted("504", "") + counted("", "REQUEST_TIMEOUT");
        assert_eq!(late, seen(504), "late, of {service}: {about}");
        // A gRPC failure may be an answer like any other, when a proxy has made it.
        let good = counted("200", "");
        let might = seen(200)..=seen(200) + seen(TOLD);
        assert!(might.contains(&good), "{good} good of {service}: {about}");
        // Every try is one of a client's requests, a retry or a repetition, and no application has
        // received more than was sent.
        let tries = count("outbound_http_route_backend_requests_total", &[&parent]);
        let retries = count("outbound_http_route_retry_requests_total", &[&parent]);
        let again = count("outbound_http_resends_total", &[&parent]);
        assert!(tries <= sent + retries + again, "{service}: {about}");
        assert!(retries == 0 || service == "shop", "{service}: {about}");
        let kinds = KINDS.iter().filter(|k| of(k)).map(|k| ledger.of(k.name));
        let (known, received) = kinds.fold((0, 0), |(a, b), (x, y)| (a + x, b + y));
        assert!(known <= sent, "{service}: {known} of {sent} known: {about}");
        let repeated = received - known;
        tell(&format!(
            "{service}: {sent} sent, {tries} tries, {retries} retries, {again} sent again, \
             {known} received, {repeated} once more"
        ));
    }
    // What is not idempotent is repeated by the policy alone.
    let retries = count("outbound_http_route_retry_requests_total", &[]);
    let (known, received) = ledger.of("buy");
    assert!(
        received - known <= retries,
        "{received} of {known}: {about}"
    );
}

fn whole(number: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let number = number.round() as u64;
    number
}

fn tell(report: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{report}");
}
