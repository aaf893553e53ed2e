//! Flags the way Go programs take them: one dash is as good as two, and log levels have more names.

use std::ffi::OsString;

/// Gives flags written with one dash their second one, up to a bare `--`.
pub(crate) fn of_go(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut over = false;
    words
        .map(|word| {
            let bytes = word.as_encoded_bytes();
            over |= bytes == b"--";
            // Two letters, such as `-h`, are a short flag.
            if over || bytes.len() <= 2 || bytes[0] != b'-' || bytes[1] == b'-' {
                return word;
            }
            let mut long = OsString::from("-");
            long.push(word);
            long
        })
        .collect()
}

/// The level a name stands for, unless it is something else than a level.
pub(crate) fn level(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "trace" => "trace",
        "debug" => "debug",
        "info" => "info",
        "warn" | "warning" => "warn",
        "error" | "fatal" | "panic" => "error",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes() {
        for (given, expected) in [
            ("-log-level=info", "--log-level=info"),
            ("--log-level=info", "--log-level=info"),
            ("-addr", "--addr"),
            ("-h", "-h"),
            ("-", "-"),
            ("destination", "destination"),
            ("", ""),
        ] {
            assert_eq!(of_go([given.into()].into_iter()), [expected], "{given}");
        }
        let after = ["a", "--", "-bcd"].map(OsString::from);
        assert_eq!(of_go(after.clone().into_iter()), after);
    }
}
