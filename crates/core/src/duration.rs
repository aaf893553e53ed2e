//! Durations as Kubernetes users and Go programs write them: `1h30m`, `1.5s`, `300ms`.

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
}
