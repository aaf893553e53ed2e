//! How a process moves to the trust anchors its identity service has in force: a pure state machine.
//! New anchors are believed at once; an anchor that is gone is believed a while longer, so that
//! everybody has time to get a certificate of the new issuer before anybody refuses the old one.

use std::time::{Duration, Instant};

use crate::anchors::TrustAnchors;

/// More anchors than a rotation ever needs at once.
const MAX_ANCHORS: usize = 256;

/// Pauses of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Shortest time for which an anchor that is gone is still believed.
    pub min_grace: Duration,
    /// Shortest time between two renewals asked for because of the same offer.
    pub renew_again: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_grace: Duration::from_secs(30),
            renew_again: Duration::from_secs(60),
        }
    }
}

/// What the identity service says.
#[derive(Debug, Clone)]
pub struct Offer {
    pub anchors: TrustAnchors,
    /// Fingerprint of the certificate that issues now.
    pub issuer: String,
    /// How long until everybody has heard it.
    pub round: Duration,
}

/// What this process has.
#[derive(Debug, Clone, Copy)]
pub struct Held<'a> {
    pub anchors: &'a TrustAnchors,
    pub certificate: Own<'a>,
}

/// Our own certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own<'a> {
    /// None yet.
    Missing,
    Present {
        /// Fingerprint of the certificate it was issued by, as far as known.
        issuer: Option<&'a str>,
        /// Whether it verifies against the offered anchors.
        chains: bool,
    },
}

/// What to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Believe these from now on.
    pub anchors: Option<TrustAnchors>,
    /// Ask for a certificate now.
    pub renew: bool,
}

#[derive(Debug)]
pub struct Rotation {
    config: Config,
    /// The smaller bundle that waits, and since when.
    smaller: Option<(TrustAnchors, Instant)>,
    /// The issuer for whose sake a renewal was asked for, and when.
    asked: Option<(String, Instant)>,
}

impl Rotation {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            smaller: None,
            asked: None,
        }
    }

    /// Whether an anchor waits to be dropped.
    pub fn is_waiting(&self) -> bool {
        self.smaller.is_some()
    }

    pub fn step(&mut self, held: Held<'_>, offer: &Offer, now: Instant) -> Step {
        let wanted = self.wanted(held, offer, now);
        let anchors = (!wanted.same_as(held.anchors)).then_some(wanted);
        let stale = match held.certificate {
            // Anchors that were missing may be why there is no certificate.
            Own::Missing => anchors.is_some(),
            Own::Present { issuer, chains } => {
                !chains || issuer.is_some_and(|issuer| issuer != offer.issuer)
            }
        };
        Step {
            anchors,
            renew: stale && self.may_ask(&offer.issuer, now),
        }
    }

    fn wanted(&mut self, held: Held<'_>, offer: &Offer, now: Instant) -> TrustAnchors {
        if held.anchors.is_within(&offer.anchors) {
            self.smaller = None;
            return offer.anchors.clone();
        }
        let since = match &self.smaller {
            Some((anchors, since)) if anchors.same_as(&offer.anchors) => *since,
            _ => now,
        };
        let grace = self.config.min_grace.max(offer.round.saturating_mul(3));
        let usable = match held.certificate {
            Own::Missing => true,
            Own::Present { chains, .. } => chains,
        };
        if usable && now.saturating_duration_since(since) >= grace {
            self.smaller = None;
            return offer.anchors.clone();
        }
        self.smaller = Some((offer.anchors.clone(), since));
        let both = held.anchors.union(&offer.anchors);
        if both.certificates().len() > MAX_ANCHORS {
            // Nobody rotates like this; stay as we are until it settles.
            return held.anchors.clone();
        }
        both
    }

    fn may_ask(&mut self, issuer: &str, now: Instant) -> bool {
        let again = match &self.asked {
            Some((last, at)) if last == issuer => {
                now.saturating_duration_since(*at) >= self.config.renew_again
            }
            _ => true,
        };
        if again {
            self.asked = Some((issuer.to_owned(), now));
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issuer::generate::{Authority, CaProfile};

    const SECOND: Duration = Duration::from_secs(1);
    const CONFIG: Config = Config {
        min_grace: Duration::from_secs(30),
        renew_again: Duration::from_secs(60),
    };

    fn root(name: &str) -> TrustAnchors {
        let now = std::time::SystemTime::now();
        let ca = Authority::self_signed(&CaProfile {
            common_name: name.to_owned(),
            not_before: now - 60 * SECOND,
            not_after: now + 3600 * SECOND,
            path_len: None,
            extended_key_usage: false,
            serial: None,
        });
        let ca = ca.expect("a root");
        TrustAnchors::from_certificates(vec![ca.certificate]).expect("anchors")
    }

    fn offer(anchors: &TrustAnchors, issuer: &str) -> Offer {
        Offer {
            anchors: anchors.clone(),
            issuer: issuer.to_owned(),
            round: 10 * SECOND,
        }
    }

    fn own(issuer: &str, chains: bool) -> Own<'_> {
        Own::Present {
            issuer: Some(issuer),
            chains,
        }
    }

    #[test]
    fn a_whole_rotation() {
        let (old, new) = (root("old"), root("new"));
        let both = old.union(&new);
        let start = Instant::now();
        let mut rotation = Rotation::new(CONFIG);
        let mut anchors = old.clone();
        let nothing = (None, false);
        // second, what is offered, our issuer, whether we chain; then: new anchors, renewal
        let script = [
            ("quiet", 0, &old, "a", own("a", true), nothing),
            (
                "one more",
                10,
                &both,
                "a",
                own("a", true),
                (Some(&both), false),
            ),
            ("new issuer", 20, &both, "b", own("a", true), (None, true)),
            ("not yet renewed", 30, &both, "b", own("a", true), nothing),
            ("still not", 80, &both, "b", own("a", true), (None, true)),
            ("renewed", 90, &both, "b", own("b", true), nothing),
            ("one gone", 100, &new, "b", own("b", true), nothing),
            ("grace", 129, &new, "b", own("b", true), nothing),
            ("over", 130, &new, "b", own("b", true), (Some(&new), false)),
            ("quiet again", 140, &new, "b", own("b", true), nothing),
        ];
        for (name, second, offered, issuer, certificate, (want, renew)) in script {
            let held = Held {
                anchors: &anchors,
                certificate,
            };
            let step = rotation.step(held, &offer(offered, issuer), start + second * SECOND);
            assert_eq!(step.anchors.as_ref(), want, "{name}");
            assert_eq!(step.renew, renew, "{name}");
            anchors = step.anchors.unwrap_or(anchors);
        }
        assert!(!rotation.is_waiting());
    }

    #[test]
    fn everything_replaced_at_once_is_survived() {
        let (old, new) = (root("old"), root("new"));
        let both = old.union(&new);
        let start = Instant::now();
        let mut rotation = Rotation::new(CONFIG);
        let step = |rotation: &mut Rotation, anchors: &TrustAnchors, certificate, second| {
            let held = Held {
                anchors,
                certificate,
            };
            rotation.step(held, &offer(&new, "b"), start + second * SECOND)
        };
        let first = step(&mut rotation, &old, own("a", false), 0);
        assert_eq!(first.anchors.as_ref(), Some(&both), "both meanwhile");
        assert!(first.renew);
        let late = step(&mut rotation, &both, own("a", false), 45);
        assert_eq!(late, Step::default(), "never without a certificate of ours");
        let done = step(&mut rotation, &both, own("b", true), 46);
        assert_eq!(done.anchors, Some(new.clone()));
    }

    #[test]
    fn the_grace_grows_with_the_round_and_restarts_with_another_bundle() {
        let (old, new, newest) = (root("old"), root("new"), root("newest"));
        let all = old.union(&new).union(&newest);
        let start = Instant::now();
        let mut rotation = Rotation::new(CONFIG);
        let held = Held {
            anchors: &all,
            certificate: own("a", true),
        };
        let slow = |anchors: &TrustAnchors| Offer {
            round: 100 * SECOND,
            ..offer(anchors, "a")
        };
        for (second, offered, dropped) in [
            (0, &new, false),
            (299, &new, false),
            (299, &newest, false),
            (300, &newest, false),
            (598, &newest, false),
            (599, &newest, true),
        ] {
            let step = rotation.step(held, &slow(offered), start + second * SECOND);
            assert_eq!(step.anchors.is_some(), dropped, "{second}");
        }
    }

    #[test]
    fn without_a_certificate_new_anchors_are_a_reason_to_ask() {
        let (old, new) = (root("old"), root("new"));
        let mut rotation = Rotation::new(CONFIG);
        let held = Held {
            anchors: &old,
            certificate: Own::Missing,
        };
        let step = rotation.step(held, &offer(&old.union(&new), "b"), Instant::now());
        assert!(step.renew);
        let step = rotation.step(held, &offer(&old, "b"), Instant::now());
        assert_eq!(step, Step::default());
    }
}
