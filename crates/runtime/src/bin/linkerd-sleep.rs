//! `/bin/sleep` of the proxy image, which has no other programs: the `preStop` hook of a pod that
//! wants its proxy to outlive its containers for a while.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(time) = parse(&words) else {
        let _ = writeln!(std::io::stderr(), "usage: sleep SECONDS");
        return ExitCode::FAILURE;
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "sleeping is all this program does"
    )]
    std::thread::sleep(time);
    ExitCode::SUCCESS
}

/// The sum of all numbers, with or without a fraction, as other sleeps do.
fn parse(words: &[String]) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for word in words {
        let seconds: f64 = word.strip_suffix('s').unwrap_or(word).parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
    }
    (!words.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_understood_or_refused() {
        for (name, line, expected) in [
            ("seconds", "30", Some(30_000)),
            ("a fraction", "0.25", Some(250)),
            ("a suffix", "2s", Some(2_000)),
            ("several", "1 2", Some(3_000)),
            ("nothing", "", None),
            ("a word", "soon", None),
            ("the past", "-1", None),
            ("for ever", "inf", None),
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(parse(&words), expected.map(Duration::from_millis), "{name}");
        }
    }
}
