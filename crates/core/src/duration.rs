//! Durations as people write them: as Go programs do (`1h30m`, `1.5s`), as annotations of policies
//! do (`300ms`, `2d`), and as the Gateway API does (`1h30m`, no fractions).

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    #[error("time: invalid duration {0:?}")]
    Syntax(String),
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit { text: String, unit: String },
    #[error("invalid duration: {0:?}")]
    Plain(String),
    #[error("duration out of range: {0:?}")]
    OutOfRange(String),
}

/// Protobuf durations hold about ten thousand years; those of annotations hold a hundred.
const LONGEST_MS: u64 = 100 * 365 * 86_400_000;

/// Reads what annotations hold: one integer with a unit up to days, or a bare zero.
pub fn parse_plain(text: &str) -> Result<Duration, InvalidDuration> {
    let text = text.trim();
    let invalid = || InvalidDuration::Plain(text.to_owned());
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (magnitude, unit) = text.split_at(digits);
    let magnitude: u64 = magnitude.parse().map_err(|_| invalid())?;
    let milliseconds = match unit {
        "" if magnitude == 0 => 0,
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(invalid()),
    };
    let total = magnitude.checked_mul(milliseconds);
    total
        .filter(|total| *total <= LONGEST_MS)
        .map(Duration::from_millis)
        .ok_or_else(|| InvalidDuration::OutOfRange(text.to_owned()))
}

/// Reads a duration of the Gateway API: up to four numbers of up to five digits, with units.
pub fn parse_gateway(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration::Plain(text.to_owned());
    let mut rest = text;
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 || digits > 5 {
            return Err(invalid());
        }
        let (magnitude, after) = rest.split_at(digits);
        let magnitude: u64 = magnitude.parse().map_err(|_| invalid())?;
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
        let (unit, milliseconds) = units
            .into_iter()
            .find(|(unit, _)| after.starts_with(unit))
            .ok_or_else(invalid)?;
        total += Duration::from_millis(magnitude * milliseconds);
        rest = &after[unit.len()..];
        if rest.is_empty() {
            return Ok(total);
        }
    }
    Err(invalid())
}

/// Reads a non-negative duration: one or more decimal numbers, each with a unit; `0` needs none.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let syntax = || InvalidDuration::Syntax(text.to_owned());
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    if unsigned.is_empty() {
        return Err(syntax());
    }
    let mut rest = unsigned;
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if !number.bytes().any(|b| b.is_ascii_digit()) {
            return Err(syntax());
        }
        let number: f64 = number.parse().map_err(|_| syntax())?;
        let letters = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let seconds = match unit {
            "" => return Err(InvalidDuration::MissingUnit(text.to_owned())),
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            unit => {
                return Err(InvalidDuration::UnknownUnit {
                    text: text.to_owned(),
                    unit: unit.to_owned(),
                });
            }
        };
        total += number * seconds;
        rest = tail;
    }
    Duration::try_from_secs_f64(total).map_err(|_| syntax())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, expected) in [
            ("0", Some(0)),
            ("10s", Some(10_000)),
            ("1h30m", Some(5_400_000)),
            ("24h0m0s", Some(86_400_000)),
            ("1.5s", Some(1_500)),
            (".5s", Some(500)),
            ("300ms", Some(300)),
            ("+2m", Some(120_000)),
            ("", None),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("1d", None),
            ("1..5s", None),
            ("1s junk", None),
        ] {
            let parsed = parse(text).ok().map(|d| d.as_millis());
            assert_eq!(parsed, expected, "{text:?}");
        }
    }

    #[test]
    fn as_annotations_write_them() {
        let ms = Duration::from_millis;
        for (text, expected) in [
            ("0", Some(ms(0))),
            ("0s", Some(ms(0))),
            ("100ms", Some(ms(100))),
            ("10s", Some(ms(10_000))),
            ("2m", Some(ms(120_000))),
            ("1h", Some(ms(3_600_000))),
            ("1d", Some(ms(86_400_000))),
            (" 5s ", Some(ms(5_000))),
            ("", None),
            ("5", None),
            ("s", None),
            ("-5s", None),
            ("+5s", None),
            ("1.5s", None),
            ("5 s", None),
            ("1h30m", None),
            ("5us", None),
            ("18446744073709551616s", None),
            ("18446744073709551615h", None),
            ("99999999999999d", None),
        ] {
            assert_eq!(parse_plain(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn as_the_gateway_api_writes_them() {
        let ms = Duration::from_millis;
        for (text, expected) in [
            ("0s", Some(ms(0))),
            ("10s", Some(ms(10_000))),
            ("1h30m", Some(ms(5_400_000))),
            ("1h2m3s4ms", Some(ms(3_723_004))),
            ("500ms", Some(ms(500))),
            ("0", None),
            ("", None),
            ("1.5s", None),
            ("100000s", None),
            ("1h1h1h1h1h", None),
            ("1d", None),
            ("-1s", None),
        ] {
            assert_eq!(parse_gateway(text).ok(), expected, "{text:?}");
        }
    }
}
