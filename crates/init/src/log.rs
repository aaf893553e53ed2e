//! Log lines in the shapes users already parse: those of the original init program (text, colour on a
//! terminal, JSON) and those of the network validator. Lines go to the writer as they are made.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Severity, least verbose first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Panic,
    Fatal,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The shape of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    /// Text for a person's terminal.
    Colour,
    Json,
    /// The validator's plain shape, with the program as target.
    Plain(&'static str),
    /// The validator's JSON shape.
    PlainJson(&'static str),
}

/// Writes lines at or above a level. Single-threaded by design.
pub struct Logger {
    format: Format,
    level: Level,
    out: RefCell<Box<dyn Write>>,
}

// === impl Level ===

impl Level {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "panic" => Level::Panic,
            "fatal" => Level::Fatal,
            "error" => Level::Error,
            "warn" | "warning" => Level::Warn,
            "info" => Level::Info,
            "debug" => Level::Debug,
            "trace" => Level::Trace,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Level::Panic => "panic",
            Level::Fatal => "fatal",
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }

    fn colour(self) -> u8 {
        match self {
            Level::Panic | Level::Fatal | Level::Error => 31,
            Level::Warn => 33,
            Level::Info => 36,
            Level::Debug | Level::Trace => 37,
        }
    }
}

// === impl Logger ===

impl std::fmt::Debug for Logger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logger")
            .field("format", &self.format)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

impl Logger {
    pub fn new(format: Format, level: Level, out: Box<dyn Write>) -> Self {
        Self {
            format,
            level,
            out: RefCell::new(out),
        }
    }

    pub fn error(&self, msg: &str) {
        self.log(Level::Error, msg, &[]);
    }

    pub fn warn(&self, msg: &str) {
        self.log(Level::Warn, msg, &[]);
    }

    pub fn info(&self, msg: &str) {
        self.log(Level::Info, msg, &[]);
    }

    pub fn debug(&self, msg: &str) {
        self.log(Level::Debug, msg, &[]);
    }

    /// Writes one line; a log that cannot be written never stops the work.
    pub fn log(&self, level: Level, msg: &str, fields: &[(&str, &str)]) {
        if level > self.level {
            return;
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let line = render(self.format, now, level, msg, fields);
        let mut out = self.out.borrow_mut();
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }

    /// Text that is an answer, not a log line (`--diff`).
    pub fn print(&self, text: &str) {
        let mut out = self.out.borrow_mut();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

fn render(
    format: Format,
    now: std::time::Duration,
    level: Level,
    msg: &str,
    fields: &[(&str, &str)],
) -> String {
    let mut sorted = fields.to_vec();
    sorted.sort_unstable();
    let mut line = String::with_capacity(msg.len() + 64);
    match format {
        Format::Text => {
            let _ = write!(
                line,
                "time=\"{}\" level={} msg={}",
                rfc3339(now),
                level.name(),
                word(msg)
            );
            for (key, value) in sorted {
                let _ = write!(line, " {key}={}", word(value));
            }
        }
        Format::Colour => {
            let colour = level.colour();
            let name = &level.name().to_ascii_uppercase()[..4];
            let _ = write!(
                line,
                "\x1b[{colour}m{name}\x1b[0m[{}] {msg:<44}",
                rfc3339(now)
            );
            for (key, value) in sorted {
                let _ = write!(line, " \x1b[{colour}m{key}\x1b[0m={}", word(value));
            }
        }
        Format::Json => {
            let mut all: Vec<(&str, String)> = sorted
                .into_iter()
                .map(|(key, value)| (key, value.to_owned()))
                .collect();
            all.push(("level", level.name().to_owned()));
            all.push(("msg", msg.to_owned()));
            all.push(("time", rfc3339(now)));
            all.sort();
            let members: Vec<String> = all
                .iter()
                .map(|(key, value)| format!("{}:{}", json(key), json(value)))
                .collect();
            let _ = write!(line, "{{{}}}", members.join(","));
        }
        Format::Plain(target) => {
            let name = validator_level(level);
            let _ = write!(line, "{} {name:>5} {target}: {msg}", rfc3339_micros(now));
            for (key, value) in fields {
                let _ = write!(line, " {key}={value}");
            }
        }
        Format::PlainJson(target) => {
            let mut members = vec![format!("\"message\":{}", json(msg))];
            for (key, value) in fields {
                members.push(format!("{}:{}", json(key), json(value)));
            }
            let _ = write!(
                line,
                "{{\"timestamp\":\"{}\",\"level\":\"{}\",\"fields\":{{{}}},\"target\":{}}}",
                rfc3339_micros(now),
                validator_level(level),
                members.join(","),
                json(target)
            );
        }
    }
    line.push('\n');
    line
}

fn validator_level(level: Level) -> &'static str {
    match level {
        Level::Panic | Level::Fatal | Level::Error => "ERROR",
        Level::Warn => "WARN",
        Level::Info => "INFO",
        Level::Debug => "DEBUG",
        Level::Trace => "TRACE",
    }
}

/// Bare when every character is plain, else quoted.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+".contains(c);
    if text.chars().all(plain) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A JSON string, with the characters that are special in HTML escaped too.
fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn rfc3339(since_epoch: std::time::Duration) -> String {
    let (date, clock) = civil(since_epoch.as_secs());
    format!("{date}T{clock}Z")
}

fn rfc3339_micros(since_epoch: std::time::Duration) -> String {
    let (date, clock) = civil(since_epoch.as_secs());
    format!("{date}T{clock}.{:06}Z", since_epoch.subsec_micros())
}

/// Date and time of day in UTC.
fn civil(secs: u64) -> (String, String) {
    let (days, rest) = (secs / 86_400, secs % 86_400);
    // Days since 0000-03-01, so that the leap day is the last of its year.
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (
        format!("{year:04}-{month:02}-{day:02}"),
        format!("{:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const AT: Duration = Duration::from_micros(1_747_579_347_250_001);

    #[test]
    fn shapes() {
        let fields = [("saveBin", "b c"), ("bin", "a")];
        let cases = [
            (
                Format::Text,
                "time=\"2025-05-18T14:42:27Z\" level=warning msg=\"x <y>\" bin=a saveBin=\"b c\"\n",
            ),
            (
                Format::Json,
                "{\"bin\":\"a\",\"level\":\"warning\",\"msg\":\"x \\u003cy\\u003e\",\"saveBin\":\"b c\",\"time\":\"2025-05-18T14:42:27Z\"}\n",
            ),
            (
                Format::Plain("prog"),
                "2025-05-18T14:42:27.250001Z  WARN prog: x <y> saveBin=b c bin=a\n",
            ),
        ];
        for (format, expected) in cases {
            let line = render(format, AT, Level::Warn, "x <y>", &fields);
            assert_eq!(line, expected, "{format:?}");
        }
        let line = render(Format::Colour, AT, Level::Warn, "x", &[]);
        assert_eq!(
            line.trim_end(),
            "\x1b[33mWARN\x1b[0m[2025-05-18T14:42:27Z] x"
        );
    }

    #[test]
    fn quoting() {
        assert_eq!(word("/usr/sbin/iptables"), "/usr/sbin/iptables");
        assert_eq!(word("a b"), "\"a b\"");
        assert_eq!(word("a\nb\"c\\"), "\"a\\nb\\\"c\\\\\"");
        assert_eq!(word(""), "");
    }

    #[test]
    fn calendar() {
        for (secs, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_secs(secs)), expected);
        }
    }
}
