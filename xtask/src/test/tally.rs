//! Reads what `cargo test` prints, line by line: counts, names of failures, and what to show.

use std::fmt::Write as _;

/// What has been counted so far, and where the reading stands.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    /// Everything that failed, by name.
    pub(crate) failures: Vec<String>,
    /// Tests that were left out on purpose, by name.
    pub(crate) ignored: Vec<String>,
    /// The test program that runs, if one does.
    program: Option<String>,
    /// What it printed so far; before the first one, what the compiler printed.
    printed: Vec<String>,
    /// Failures before this run of cargo.
    before: usize,
    compiled: usize,
}

/// More than this of one program's output is only in the log.
const SHOWN: usize = 2_000;

impl Tally {
    pub(crate) fn failed(&self) -> usize {
        self.failures.len()
    }

    /// Whether nothing was run at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed == 0 && self.failures.is_empty() && self.ignored.is_empty()
    }

    pub(crate) fn fail(&mut self, name: String) {
        self.failures.push(name);
    }

    /// Starts the reading of another run of cargo.
    pub(crate) fn begin(&mut self) {
        self.program = None;
        self.printed.clear();
        self.before = self.failures.len();
        self.compiled = 0;
    }

    /// Takes one line; gives text to show when a test program ended.
    pub(crate) fn line(&mut self, line: &str) -> Option<String> {
        let words = line.trim_start();
        if let Some(program) = running(words) {
            let unfinished = self.end();
            self.program = Some(program);
            return unfinished;
        }
        if words.starts_with("Compiling ") {
            self.compiled += 1;
            return None;
        }
        if self.printed.len() < SHOWN {
            self.printed.push(line.to_owned());
        }
        if let Some((name, verdict)) = words
            .strip_prefix("test ")
            .and_then(|l| l.rsplit_once(" ... "))
        {
            let full = || format!("{}: {name}", self.program.as_deref().unwrap_or("?"));
            match verdict {
                "FAILED" => self.failures.push(full()),
                verdict if verdict.starts_with("ignored") => self.ignored.push(full()),
                _ => drop(self.printed.pop_if(|last| last == line)),
            }
            return None;
        }
        self.result(words.strip_prefix("test result: ")?)
    }

    /// `ok. 22 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s`
    fn result(&mut self, text: &str) -> Option<String> {
        let count = |word: &str| {
            let number = text
                .split(['.', ';'])
                .find_map(|part| part.trim().strip_suffix(word))?;
            number.trim().parse::<usize>().ok()
        };
        let passed = count("passed")?;
        let failed = count("failed")?;
        self.passed += passed;
        let program = self.program.take()?;
        let printed = std::mem::take(&mut self.printed);
        let time = text
            .rsplit_once("finished in ")
            .map_or("", |(_, time)| time);
        let mut report = format!("  {program:<32} {passed:>5} passed  {failed:>3} failed  {time}");
        if failed > 0 {
            for line in printed {
                let _ = write!(report, "\n    {line}");
            }
        }
        (passed + failed > 0).then_some(report)
    }

    /// The end of the output, or of a test program that died: gives what it had printed.
    pub(crate) fn end(&mut self) -> Option<String> {
        let printed = std::mem::take(&mut self.printed);
        let died = self.program.take();
        if let Some(program) = &died {
            self.failures.push(format!(
                "{program}: the test program ended before its tests did"
            ));
        }
        let errors = printed
            .iter()
            .any(|line| line.starts_with("error") && !is_epilogue(line));
        (died.is_some() || errors).then(|| {
            let mut report = String::from("  what was printed:");
            for line in printed {
                let _ = write!(report, "\n    {line}");
            }
            report
        })
    }

    /// Whether a failure of cargo itself would otherwise go unreported.
    pub(crate) fn explains_failure(&self) -> bool {
        self.failures.len() == self.before
    }

    /// What goes on now, in a few words.
    pub(crate) fn doing(&self) -> String {
        match &self.program {
            Some(program) => format!("still running {program}"),
            None => format!("still compiling, {} crates so far", self.compiled),
        }
    }
}

/// What cargo says about failures that were counted already.
fn is_epilogue(line: &str) -> bool {
    line.starts_with("error: test failed")
        || line.ends_with("target failed:")
        || line.ends_with("targets failed:")
}

/// `Running unittests src/lib.rs (target/debug/deps/linkerd_runtime-92b914cac39af2da)`: the
/// program's name without its hash.
fn running(words: &str) -> Option<String> {
    let rest = words.strip_prefix("Running ")?;
    let (_, path) = rest.rsplit_once(" (")?;
    let file = path.strip_suffix(')')?.rsplit('/').next()?;
    let (name, hash) = file.rsplit_once('-')?;
    hash.bytes()
        .all(|b| b.is_ascii_hexdigit())
        .then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Tally, String) {
        let mut tally = Tally::default();
        tally.begin();
        let mut shown: Vec<String> = text.lines().filter_map(|line| tally.line(line)).collect();
        shown.extend(tally.end());
        (tally, shown.join("\n"))
    }

    #[test]
    fn passed_and_failed_are_counted_over_programs() {
        let (tally, shown) = read(
            "   Compiling linkerd-runtime v25.10.7\n\
             \x20    Running unittests src/lib.rs (target/debug/deps/linkerd_runtime-92b914cac39af2da)\n\
             \n\
             running 3 tests\n\
             test log::tests::one ... ok\n\
             test wait::tests::two - should panic ... ok\n\
             test skipped ... ignored, needs the moon\n\
             \n\
             test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             \x20    Running tests/process_admin.rs (target/debug/deps/process_admin-92962db063015f87)\n\
             test works ... FAILED\n\
             failures:\n\
             \n\
             ---- works stdout ----\n\
             thread 'works' panicked at a.rs:1:1:\n\
             \n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s\n\
             error: test failed, to rerun pass `-p linkerd-runtime --test process_admin`\n",
        );
        assert!(!shown.contains("to rerun"), "{shown}");
        assert_eq!(tally.passed, 2);
        assert_eq!(tally.failures, ["process_admin: works"]);
        assert_eq!(tally.ignored, ["linkerd_runtime: skipped"]);
        assert!(shown.contains("linkerd_runtime"), "{shown}");
        assert!(shown.contains("thread 'works' panicked"), "{shown}");
        assert!(!shown.contains("should panic"), "{shown}");
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let (tally, shown) = read(
            "     Running tests/netns_x.rs (target/debug/deps/netns_x-92962db063015f87)\n\
             running 2 tests\n\
             memory allocation of 5 bytes failed\n\
             error: test failed, to rerun pass `-p x --test netns_x`\n",
        );
        assert_eq!(tally.failures.len(), 1);
        assert!(shown.contains("memory allocation"), "{shown}");
        assert!(!tally.explains_failure());
    }

    #[test]
    fn a_compile_error_is_shown() {
        let (tally, shown) = read(
            "   Compiling a v1\nerror[E0425]: cannot find value `x`\n --> src/lib.rs:1:1\nerror: could not compile `a`\n",
        );
        assert!(shown.contains("cannot find value"), "{shown}");
        assert!(
            tally.explains_failure(),
            "the caller adds the failure of cargo itself"
        );
    }
}
