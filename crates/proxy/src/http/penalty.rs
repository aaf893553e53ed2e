//! Which answers count as slow for balancers that hold failures against an endpoint, and when such an
//! answer asks its client to come back. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A failed answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// When to come back, if it says.
    pub(super) come_back: Option<Duration>,
}

/// Judges an answer by its head.
pub(super) fn judge(
    status: u16,
    grpc: Option<u16>,
    retry_after: Option<&[u8]>,
    pushback: Option<&[u8]>,
    now: SystemTime,
) -> Option<Failure> {
    let text = |value: Option<&[u8]>| {
        value
            .and_then(|v| std::str::from_utf8(v).ok())
            .map(|v| v.trim().to_owned())
    };
    if let Some(code) = grpc {
        return matches!(code, 2 | 4 | 8 | 13..=15).then(|| Failure {
            come_back: text(pushback)
                .and_then(|ms| ms.parse().ok())
                .map(Duration::from_millis),
        });
    }
    let come_back = match status {
        429 | 503 => text(retry_after).and_then(|value| match value.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => {
                let then = UNIX_EPOCH + Duration::from_secs(http_date(&value)?);
                Some(then.duration_since(now).unwrap_or_default())
            }
        }),
        500..=599 => None,
        _ => return None,
    };
    Some(Failure { come_back })
}

/// Seconds since the epoch of a date like `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<u64> {
    let mut words = text.strip_suffix(" GMT")?.split_ascii_whitespace();
    words.next()?.strip_suffix(',')?;
    let day: u64 = words
        .next()?
        .parse()
        .ok()
        .filter(|d| (1..=31).contains(d))?;
    let names = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let name = words.next()?;
    let month = u64::try_from(names.iter().position(|m| *m == name)?).ok()? + 1;
    let year: u64 = words
        .next()?
        .parse()
        .ok()
        .filter(|y| (1970..=9999).contains(y))?;
    let mut clock = words.next()?.split(':').map(|n| n.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days of the civil calendar, counted in years that begin in March.
    let years = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = years * 365 + years / 4 - years / 100 + years / 400 + of_year;
    Some((days.checked_sub(719_468)?) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let failure = |seconds: Option<u64>| {
            Some(Failure {
                come_back: seconds.map(Duration::from_secs),
            })
        };
        for (name, status, grpc, retry_after, pushback, want) in [
            ("fine", 200, None, None, None, None),
            ("not found", 404, None, None, None, None),
            ("throttled", 429, None, None, None, failure(None)),
            (
                "throttled for a while",
                429,
                None,
                Some("7"),
                None,
                failure(Some(7)),
            ),
            (
                "unavailable until a date",
                503,
                None,
                Some("Sun, 06 Nov 1994 08:49:47 GMT"),
                None,
                failure(Some(10)),
            ),
            (
                "a date that has passed",
                503,
                None,
                Some("Sun, 06 Nov 1994 08:49:00 GMT"),
                None,
                failure(Some(0)),
            ),
            ("nonsense", 503, None, Some("soon"), None, failure(None)),
            (
                "a date that cannot be",
                503,
                None,
                Some("Sun, 06 Nov 1994 3000000000000000:00:00 GMT"),
                None,
                failure(None),
            ),
            (
                "as long as can be said",
                429,
                None,
                Some("18446744073709551615"),
                None,
                failure(Some(u64::MAX)),
            ),
            (
                "other failures have no hint",
                500,
                None,
                Some("7"),
                None,
                failure(None),
            ),
            ("gRPC fine", 200, Some(0), None, None, None),
            ("gRPC not found", 200, Some(5), None, None, None),
            ("gRPC unavailable", 200, Some(14), None, None, failure(None)),
            (
                "gRPC pushback",
                200,
                Some(8),
                None,
                Some("3000"),
                failure(Some(3)),
            ),
        ] {
            let bytes = |s: Option<&'static str>| s.map(str::as_bytes);
            let got = judge(status, grpc, bytes(retry_after), bytes(pushback), now);
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn dates() {
        for (text, want) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Tue, 29 Feb 2000 12:00:00 GMT", Some(951_825_600)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("06 Nov 1994", None),
            ("Sun, 06 Nov 1994 3000000000000000:00:00 GMT", None),
            ("Sun, 06 Nov 1994 08:18446744073709551615:00 GMT", None),
            ("Sun, 06 Nov 1994 08:49:61 GMT", None),
            ("Sat, 31 Dec 2016 23:59:60 GMT", Some(1_483_228_800)),
        ] {
            assert_eq!(http_date(text), want, "{text}");
        }
    }
}
