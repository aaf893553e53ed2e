//! Reloading from disk: what is taken, what is refused, what is told.

use std::fs;

use linkerd_tls::issuer::generate::{Authority as Ca, CaProfile};

use super::*;
use crate::events::{self, Event};

const NAME: &str = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";
const DAY: Duration = Duration::from_secs(86_400);

fn profile(name: &str) -> CaProfile {
    CaProfile {
        common_name: name.to_owned(),
        not_before: SystemTime::now() - DAY,
        not_after: SystemTime::now() + 30 * DAY,
        path_len: None,
        extended_key_usage: false,
        serial: None,
    }
}

struct Disk {
    _dir: tempfile::TempDir,
    files: Files,
}

impl Disk {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        let files = Files {
            certificate: at("tls.crt"),
            key: at("tls.key"),
            anchors: at("ca-bundle.crt"),
        };
        Self { _dir: dir, files }
    }

    fn issuer(&self, ca: &Ca) {
        fs::write(&self.files.certificate, ca.certificate.to_pem()).expect("writes");
        fs::write(&self.files.key, ca.key.to_sec1_pem().expect("encodes")).expect("writes");
    }

    fn anchors(&self, roots: &[&Ca]) {
        let pem: String = roots.iter().map(|ca| ca.certificate.to_pem()).collect();
        fs::write(&self.files.anchors, pem).expect("writes");
    }
}

struct World {
    disk: Disk,
    authority: Authority,
    reload: Reload,
    recorder: Recorder,
    events: tokio::sync::mpsc::Receiver<Event>,
    root: Ca,
    issuer: Ca,
}

fn world() -> World {
    let root = Ca::self_signed(&profile("root")).expect("a root");
    let issuer = root.subordinate(&profile("issuer")).expect("an issuer");
    let disk = Disk::new();
    disk.issuer(&issuer);
    disk.anchors(&[&root]);
    let (authority, reload) = Authority::load(disk.files.clone(), NAME).expect("loads");
    let (recorder, events) = events::channel("linkerd");
    World {
        disk,
        authority,
        reload,
        recorder,
        events,
        root,
        issuer,
    }
}

impl World {
    fn poll(&mut self) -> Vec<(&'static str, String)> {
        self.reload.poll(&self.authority, &self.recorder);
        std::iter::from_fn(|| self.events.try_recv().ok())
            .map(|e| (e.reason, e.message))
            .collect()
    }

    fn in_use(&self) -> (String, usize) {
        let current = self.authority.current().expect("loaded");
        (
            current.issuer.certificate().subject.clone(),
            current.anchors.certificates().len(),
        )
    }
}

fn reasons(events: &[(&'static str, String)]) -> Vec<&'static str> {
    events.iter().map(|(reason, _)| *reason).collect()
}

#[test]
fn a_whole_rotation() {
    let mut w = world();
    assert!(w.poll().is_empty(), "nothing changed");
    let new_root = Ca::self_signed(&profile("new root")).expect("a root");
    let new_issuer = new_root
        .subordinate(&profile("new issuer"))
        .expect("an issuer");

    w.disk.anchors(&[&w.root, &new_root]);
    assert_eq!(reasons(&w.poll()), ["TrustAnchorsUpdated"]);
    assert_eq!(w.in_use(), ("CN=issuer".to_owned(), 2));

    w.disk.issuer(&new_issuer);
    let events = w.poll();
    assert_eq!(
        events,
        [("IssuerUpdated", "Updated identity issuer".to_owned())]
    );
    assert_eq!(w.in_use(), ("CN=new issuer".to_owned(), 2));

    w.disk.anchors(&[&new_root]);
    assert_eq!(reasons(&w.poll()), ["TrustAnchorsUpdated"]);
    assert_eq!(w.in_use(), ("CN=new issuer".to_owned(), 1));
}

#[test]
fn secret_and_bundle_may_arrive_in_either_order() {
    for anchors_first in [true, false] {
        let mut w = world();
        let new_root = Ca::self_signed(&profile("new root")).expect("a root");
        let new_issuer = new_root
            .subordinate(&profile("new issuer"))
            .expect("an issuer");
        if anchors_first {
            w.disk.anchors(&[&new_root]);
            assert!(reasons(&w.poll()).contains(&"TrustAnchorsUpdateSkipped"));
            assert_eq!(
                w.in_use(),
                ("CN=issuer".to_owned(), 1),
                "still the old pair"
            );
            w.disk.issuer(&new_issuer);
        } else {
            w.disk.issuer(&new_issuer);
            assert_eq!(reasons(&w.poll()), ["IssuerUpdateSkipped"]);
            assert_eq!(
                w.in_use(),
                ("CN=issuer".to_owned(), 1),
                "still the old pair"
            );
            w.disk.anchors(&[&new_root]);
        }
        assert_eq!(reasons(&w.poll()), ["IssuerUpdated", "TrustAnchorsUpdated"]);
        assert_eq!(w.in_use().0, "CN=new issuer");
    }
}

#[test]
fn bad_issuers_are_refused_and_told_once() {
    let mut w = world();
    let expired = w
        .root
        .subordinate(&CaProfile {
            not_after: SystemTime::now() - DAY / 2,
            ..profile("old")
        })
        .expect("an issuer");
    let foreign = Ca::self_signed(&profile("foreign")).expect("a root");
    type Break<'a> = &'a dyn Fn(&Disk);
    let cases: [(&str, Break<'_>, &str); 5] = [
        (
            "garbage",
            &|d| fs::write(&d.files.certificate, "hello").expect("writes"),
            "no CERTIFICATE block found",
        ),
        (
            "missing",
            &|d| fs::remove_file(&d.files.key).expect("removes"),
            "cannot read",
        ),
        ("expired", &|d| d.issuer(&expired), "expired on"),
        (
            "untrusted",
            &|d| d.issuer(&foreign),
            "do not verify against the trust anchors",
        ),
        (
            "key of another",
            &|d| {
                fs::write(&d.files.key, foreign.key.to_sec1_pem().expect("encodes"))
                    .expect("writes")
            },
            "does not hold the private key",
        ),
    ];
    for (name, spoil, want) in cases {
        w.disk.issuer(&w.issuer);
        w.poll();
        spoil(&w.disk);
        let events = w.poll();
        assert_eq!(reasons(&events), ["IssuerUpdateSkipped"], "{name}");
        let message = &events[0].1;
        let head = "Skipping issuer update as certs could not be read from disk: ";
        assert!(
            message.starts_with(head) && message.contains(want),
            "{name}: {message}"
        );
        assert!(w.poll().is_empty(), "{name} is told once");
        assert_eq!(w.in_use(), ("CN=issuer".to_owned(), 1), "{name}");
    }
}

#[test]
fn starting_needs_everything() {
    let root = Ca::self_signed(&profile("root")).expect("a root");
    let other = Ca::self_signed(&profile("other")).expect("a root");
    let issuer = root.subordinate(&profile("issuer")).expect("an issuer");
    let disk = Disk::new();
    let fails = |disk: &Disk| {
        Authority::load(disk.files.clone(), NAME)
            .map(|_| ())
            .is_err()
    };
    assert!(fails(&disk), "no files");
    disk.issuer(&issuer);
    assert!(fails(&disk), "no anchors");
    disk.anchors(&[&other]);
    assert!(fails(&disk), "other anchors");
    disk.anchors(&[&other, &root]);
    assert!(!fails(&disk));
}

#[test]
fn a_new_issuer_waits_for_its_anchor() {
    let new_root = Ca::self_signed(&profile("new root")).expect("a root");
    let new_issuer = new_root
        .subordinate(&profile("new issuer"))
        .expect("an issuer");
    let settle = Duration::from_millis(300);

    // Both at once: the anchor counts at once, the issuer when everybody has heard of the anchor.
    let mut w = world();
    w.reload.settle_for(settle);
    let started = Instant::now();
    w.disk.anchors(&[&w.root, &new_root]);
    w.disk.issuer(&new_issuer);
    assert_eq!(reasons(&w.poll()), ["TrustAnchorsUpdated"]);
    assert_eq!(w.in_use(), ("CN=issuer".to_owned(), 2));
    let deadline = started + Duration::from_secs(60);
    let events = loop {
        let events = w.poll();
        if !events.is_empty() {
            break events;
        }
        assert!(Instant::now() < deadline, "the issuer never came");
        std::thread::yield_now();
    };
    assert!(started.elapsed() >= settle);
    assert_eq!(reasons(&events), ["IssuerUpdated"]);
    assert_eq!(w.in_use(), ("CN=new issuer".to_owned(), 2));

    // An issuer below a known anchor does not wait.
    let mut w = world();
    w.reload.settle_for(DAY);
    let next = w.root.subordinate(&profile("next")).expect("an issuer");
    w.disk.issuer(&next);
    assert_eq!(reasons(&w.poll()), ["IssuerUpdated"]);

    // Nor does one that comes without the old anchor: the old issuer would be of no use.
    w.disk.anchors(&[&new_root]);
    w.disk.issuer(&new_issuer);
    w.poll();
    assert_eq!(w.in_use(), ("CN=new issuer".to_owned(), 1));
}

#[test]
fn the_bundle_of_the_api_server_comes_before_the_file() {
    let mut w = world();
    let (live, text) = watch::channel(None);
    w.reload.prefer(LiveAnchors {
        origin: "ConfigMap trust-roots".to_owned(),
        text,
    });
    assert!(w.poll().is_empty(), "nothing is known yet");
    let other = Ca::self_signed(&profile("other")).expect("a root");
    let pem = w.root.certificate.to_pem() + &other.certificate.to_pem();
    live.send_replace(Some(pem));
    assert_eq!(reasons(&w.poll()), ["TrustAnchorsUpdated"]);
    assert_eq!(w.in_use().1, 2);
    w.disk.anchors(&[&w.root]);
    assert!(w.poll().is_empty(), "the file is late");
    live.send_replace(Some("garbage".to_owned()));
    let told = w.poll();
    assert_eq!(reasons(&told), ["TrustAnchorsUpdateSkipped"]);
    assert!(told[0].1.contains("ConfigMap trust-roots"), "{told:?}");
    assert_eq!(w.in_use().1, 2);
    live.send_replace(None);
    assert_eq!(
        reasons(&w.poll()),
        ["TrustAnchorsUpdated"],
        "the file again"
    );
    assert_eq!(w.in_use().1, 1);
}
