//! What a person sees while a task runs: one line per step with the time it took,
//! and, when something fails, one line saying what and one saying what to do next.

use std::fmt;
use std::io::{Read, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// An error whose reader is told the next step.
#[derive(Debug)]
pub(crate) struct Hint {
    problem: String,
    next: String,
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Hint {}

/// An error made of what went wrong and what to do about it.
pub(crate) fn hint(problem: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Hint {
        problem: problem.into(),
        next: next.into(),
    })
}

/// A line on standard output: results that another program may read.
pub(crate) fn out(line: impl fmt::Display) {
    // A reader that went away (`| head`) is no reason to panic.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// A line on standard error: progress and remarks for a person.
pub(crate) fn note(line: impl fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Runs one step and prints what it was and how long it took.
pub(crate) fn step<T>(what: impl fmt::Display, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let done = work();
    let mark = if done.is_ok() { "ok" } else { "FAILED" };
    note(format_args!(
        "  {what} ... {mark} ({})",
        seconds(start.elapsed())
    ));
    done
}

/// Like [`step`], but says what begins: for work that takes minutes.
pub(crate) fn long_step<T>(what: impl fmt::Display, work: impl FnOnce() -> Result<T>) -> Result<T> {
    note(format_args!("  {what} ..."));
    let start = Instant::now();
    let done = work();
    let mark = if done.is_ok() { "done" } else { "FAILED" };
    note(format_args!(
        "  {what}: {mark} ({})",
        seconds(start.elapsed())
    ));
    done
}

/// `1.2 s`, `3 min 20 s`.
pub(crate) fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(60) {
        return format!("{:.1} s", time.as_secs_f64());
    }
    let whole = time.as_secs();
    format!("{} min {:02} s", whole / 60, whole % 60)
}

/// Prints an error: the problem with its causes on one line, the next step on another.
pub(crate) fn failure(error: &anyhow::Error) {
    let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
    note(format_args!("error: {}", chain.join(": ")));
    if let Some(hint) = error.chain().find_map(|cause| cause.downcast_ref::<Hint>()) {
        note(format_args!(" next: {}", hint.next));
    }
}

/// Runs a command that may take minutes: says every half minute that it still runs, and
/// gives what it wrote to standard output.
pub(crate) fn patiently(what: &str, command: &mut Command) -> Result<String> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", command.get_program().to_string_lossy()))?;
    let stdout = child.stdout.take().context("stdout is piped")?;
    let stderr = child.stderr.take().context("stderr is piped")?;
    std::thread::scope(|threads| {
        let text = threads.spawn(move || read(stdout));
        let complaints = threads.spawn(move || read(stderr));
        let start = Instant::now();
        let mut spoken = start;
        let status = wait_for(what, Duration::from_secs(3600), || {
            if spoken.elapsed() >= Duration::from_secs(30) {
                spoken = Instant::now();
                note(format_args!(
                    "    still {what} ({})",
                    seconds(start.elapsed())
                ));
            }
            Ok(child.try_wait()?)
        });
        if status.is_err() {
            // Past its hour: without this the readers would wait for ever.
            let _ = child.kill();
            let _ = child.wait();
        }
        let text = text.join().unwrap_or_default();
        let complaints = complaints.join().unwrap_or_default();
        let status = status?;
        if !status.success() {
            let lines: Vec<&str> = complaints.lines().collect();
            let tail = lines[lines.len().saturating_sub(8)..].join("\n    ");
            bail!("{what} failed ({status}):\n    {tail}");
        }
        Ok(text)
    })
}

fn read(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What could be read before an error is still worth showing.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Asks `ready` again and again until it gives a value or `patience` is over.
pub(crate) fn wait_for<T>(
    what: &str,
    patience: Duration,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(20);
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("{what} did not happen within {}", seconds(patience));
        }
        // Nobody unparks this thread: a bounded pause between two looks.
        std::thread::park_timeout(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(250));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        let cases = [
            ("nothing", Duration::ZERO, "0.0 s"),
            ("a moment", Duration::from_millis(1240), "1.2 s"),
            ("minutes", Duration::from_secs(200), "3 min 20 s"),
        ];
        for (name, time, expected) in cases {
            assert_eq!(seconds(time), expected, "{name}");
        }
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let error = wait_for::<()>("rain", Duration::from_millis(30), || Ok(None))
            .expect_err("it never gets ready");
        assert!(error.to_string().contains("rain did not happen"));
    }
}
