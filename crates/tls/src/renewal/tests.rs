//! Tables for single decisions and a ten-year run with faults.

use std::time::UNIX_EPOCH;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

const T0: u64 = 1_800_000_000;

#[test]
fn first_attempt_is_at_once() {
    let mut renewal = Renewal::new(Config::default());
    assert_eq!(renewal.poll(at(T0), 0.5), Action::Renew);
}

#[test]
fn delays_after_success() {
    let config = Config::default();
    for (name, life, random, want) in [
        ("a day", DAY, 0.0, Duration::from_secs(60_480)),
        ("a day, most jitter", DAY, 1.0, Duration::from_secs(54_432)),
        (
            "clamped below",
            Duration::from_secs(10),
            0.0,
            config.min_refresh,
        ),
        ("clamped above", DAY * 365, 0.0, config.max_refresh),
    ] {
        let mut renewal = Renewal::new(config);
        renewal.certified((at(T0), at(T0) + life), at(T0), random);
        assert_eq!(renewal.due(), Some(at(T0) + want), "{name}");
        assert_eq!(
            renewal.poll(at(T0), 0.0),
            Action::Wait(want.min(MAX_WAIT)),
            "{name}"
        );
        assert_eq!(renewal.poll(at(T0) + want, 0.0), Action::Renew, "{name}");
    }
}

#[test]
fn delays_after_failures() {
    let uncertified = |n: u32| {
        let mut renewal = Renewal::new(Config::default());
        (0..n).for_each(|_| renewal.failed(at(T0), 0.0));
        renewal
            .due()
            .expect("planned")
            .duration_since(at(T0))
            .expect("later")
    };
    for (n, want) in [
        (1, 250),
        (2, 500),
        (3, 1000),
        (6, 8000),
        (7, 10_000),
        (60, 10_000),
    ] {
        assert_eq!(
            uncertified(n),
            Duration::from_millis(want),
            "failure {n}, no certificate"
        );
    }
    let held = |n: u32, left: Duration| {
        let mut renewal = Renewal::new(Config::default());
        renewal.certified((at(T0) - DAY, at(T0) + left), at(T0), 0.0);
        (0..n).for_each(|_| renewal.failed(at(T0), 0.0));
        renewal
            .due()
            .expect("planned")
            .duration_since(at(T0))
            .expect("later")
            .as_secs()
    };
    for (name, n, left, want) in [
        ("first failure", 1, 7 * HOUR, 10),
        ("second", 2, 7 * HOUR, 20),
        ("many", 40, 7 * HOUR, 300),
        ("little time left", 40, Duration::from_secs(100), 70),
        ("almost none left", 40, Duration::from_secs(5), 10),
    ] {
        assert_eq!(held(n, left), want, "{name}");
    }
    let mut expired = Renewal::new(Config::default());
    expired.certified((at(T0), at(T0 + 60)), at(T0), 0.0);
    expired.failed(at(T0 + 61), 0.0);
    assert_eq!(expired.due(), Some(at(T0 + 71)), "expired: the minimum");
}

#[test]
fn clock_jumps() {
    let mut renewal = Renewal::new(Config::default());
    renewal.certified((at(T0), at(T0) + DAY), at(T0), 0.0);
    assert_eq!(
        renewal.poll(at(T0) + 30 * DAY, 0.0),
        Action::Renew,
        "forward past the end"
    );
    assert_eq!(
        renewal.poll(at(T0) - 30 * DAY, 0.0),
        Action::Wait(Duration::from_secs(10)),
        "back before the start: the certificate is from the future, a new one is due soon"
    );
    assert_eq!(
        renewal.poll(at(T0) - 30 * DAY + Duration::from_secs(10), 0.0),
        Action::Renew
    );
}

/// Small deterministic generator; the run must be the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn unit(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).expect("32 bits")) / f64::from(u32::MAX)
    }
}

/// What the identity service does to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Up,
    Down,
    /// Answers after this long.
    Slow(Duration),
    /// Answers with something the caller refuses.
    Wrong,
}

/// Ten years of wall clock in which the service fails in every way for up to seven hours at a time
/// (less than the 30 % of a day that is kept in hand) and the clock jumps: as long as the clock runs
/// straight the certificate must never lapse, and the service must never be hammered.
#[test]
fn ten_years_with_faults() {
    for seed in 1..=4_u64 {
        run_ten_years(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

#[derive(Debug, Default)]
struct Tally {
    renewals: u64,
    failures: u64,
    lapses_without_jump: u64,
    /// Attempts in the running hour: all, and those made while a certificate was still good.
    this_hour: (u64, u64),
    busiest_hour: (u64, u64),
}

fn run_ten_years(seed: u64) {
    const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);
    let mut random = Random(seed);
    let mut renewal = Renewal::new(Config::default());
    // True time never jumps; the wall clock is true time plus an offset that sometimes changes.
    let (start, mut elapsed) = (at(T0), Duration::ZERO);
    let mut offset = Duration::ZERO;
    let mut service = Service::Up;
    let mut service_until = Duration::ZERO;
    let mut hour = 0;
    let mut jumped_at = None::<Duration>;
    let mut tally = Tally::default();

    while elapsed < TEN_YEARS {
        if elapsed >= service_until {
            // Trouble is always followed by a quiet spell.
            let calm = service == Service::Up;
            service = match random.below(if calm { 5 } else { 1 }) {
                1 => Service::Down,
                2 => Service::Slow(Duration::from_secs(random.below(30))),
                3 => Service::Wrong,
                _ => Service::Up,
            };
            let length = if service == Service::Up {
                72 * HOUR
            } else {
                7 * HOUR
            };
            service_until = elapsed + Duration::from_secs(random.below(length.as_secs()) + 1);
            if random.below(40) == 0 {
                offset = Duration::from_secs(random.below(400 * 86_400));
                jumped_at = Some(elapsed);
            }
        }
        let now = start + elapsed + offset;
        if let Some(end) = renewal.not_after() {
            // After a jump a new certificate is due within the backoff plus one look at the clock.
            let settled = jumped_at.is_none_or(|at| elapsed > at + 8 * HOUR);
            if now > end && settled {
                tally.lapses_without_jump += 1;
            }
        }
        match renewal.poll(now, random.unit()) {
            Action::Wait(wait) => {
                assert!(wait <= MAX_WAIT && !wait.is_zero());
                // A timer may fire late, never early.
                elapsed += wait + Duration::from_millis(random.below(2000));
            }
            Action::Renew => {
                let good = renewal
                    .held
                    .is_some_and(|h| h.not_before <= now && now < h.not_after);
                tally.this_hour.0 += 1;
                tally.this_hour.1 += u64::from(good);
                let took = match service {
                    Service::Up | Service::Wrong => Duration::from_millis(5 + random.below(20)),
                    Service::Slow(time) => time,
                    Service::Down => Duration::from_secs(3),
                };
                let signed_at = now;
                elapsed += took;
                let now = start + elapsed + offset;
                if matches!(service, Service::Up | Service::Slow(_)) {
                    let skew = Duration::from_secs(20);
                    let validity = (signed_at - skew, signed_at + DAY + skew);
                    renewal.certified(validity, now, random.unit());
                    tally.renewals += 1;
                } else {
                    renewal.failed(now, random.unit());
                    tally.failures += 1;
                }
            }
        }
        let this_hour = elapsed.as_secs() / 3600;
        if this_hour != hour {
            hour = this_hour;
            let (all, good) = std::mem::take(&mut tally.this_hour);
            let (most, most_good) = tally.busiest_hour;
            tally.busiest_hour = (most.max(all), most_good.max(good));
        }
    }
    assert_eq!(tally.lapses_without_jump, 0, "{tally:?}");
    assert!(
        tally.failures > 1000,
        "the faults must have been felt: {tally:?}"
    );
    // 3,650 days at one renewal per 15 to 17 hours, plus one for each clock jump.
    assert!((5200..=6500).contains(&tally.renewals), "{tally:?}");
    // Without a certificate that is good now (after a jump) every ten seconds; with one far less.
    assert!(
        tally.busiest_hour.0 <= 360 && tally.busiest_hour.1 <= 30,
        "{tally:?}"
    );
}
