//! The run loop of checks: categories in their order, retries until one common deadline, and a stop
//! at the first fatal failure. Time is tokio's clock, which tests turn by hand.

use futures::future::BoxFuture;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

/// Longest a single attempt may take.
pub const ATTEMPT: Duration = Duration::from_secs(30);
/// Pause between two attempts.
pub const PAUSE: Duration = Duration::from_secs(5);
const FRAME: Duration = Duration::from_millis(100);
const WAITING: &str = "waiting for check to complete";

/// Why a check did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The check does not apply here; nothing is printed.
    Skip(String),
    Failed(String),
}

pub type Verdict = Result<(), Problem>;

impl Problem {
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    pub fn skip(reason: impl Into<String>) -> Self {
        Self::Skip(reason.into())
    }
}

impl From<anyhow::Error> for Problem {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

impl From<kube::Error> for Problem {
    fn from(error: kube::Error) -> Self {
        crate::cluster::plain(error).into()
    }
}

type Run<F> = Box<dyn for<'a> Fn(&'a mut F) -> BoxFuture<'a, Verdict> + Send + Sync>;

/// One line of the output and how to find out what it says. `F` is what checks look at.
pub struct Check<F> {
    pub description: String,
    /// Where the documentation explains it; also its name for `--skip` and `--only`.
    pub anchor: &'static str,
    fatal: bool,
    warning: bool,
    retry: bool,
    /// While retrying, the real error is shown instead of a general text.
    surface: bool,
    /// Success is not worth a line.
    quiet: bool,
    run: Run<F>,
}

impl<F> std::fmt::Debug for Check<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check")
            .field("description", &self.description)
            .finish_non_exhaustive()
    }
}

impl<F> Check<F> {
    pub fn new(
        description: impl Into<String>,
        anchor: &'static str,
        run: impl for<'a> Fn(&'a mut F) -> BoxFuture<'a, Verdict> + Send + Sync + 'static,
    ) -> Self {
        Self {
            description: description.into(),
            anchor,
            fatal: false,
            warning: false,
            retry: false,
            surface: false,
            quiet: false,
            run: Box::new(run),
        }
    }

    /// Its failure ends the run.
    pub fn fatal(mut self) -> Self {
        self.fatal = true;
        self
    }

    /// Its failure is a warning.
    pub fn warning(mut self) -> Self {
        self.warning = true;
        self
    }

    /// Tried again until the deadline.
    pub fn retry(mut self) -> Self {
        self.retry = true;
        self
    }

    /// Shows the real error while it is retried.
    pub fn surface(mut self) -> Self {
        self.surface = true;
        self
    }

    /// Says nothing when it succeeds.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// One attempt.
    pub async fn attempt(&self, facts: &mut F) -> Verdict {
        (self.run)(facts).await
    }
}

/// Checks under one heading.
#[derive(Debug)]
pub struct Category<F> {
    pub id: &'static str,
    pub checks: Vec<Check<F>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Warning,
    Error,
}

/// What a check came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub category: String,
    pub description: String,
    pub outcome: Outcome,
    /// Set unless successful.
    pub error: Option<String>,
    /// Address of the explanation; set unless successful.
    pub hint: Option<String>,
}

/// Where reports go. `waiting` and `tick` serve the spinner.
pub trait Observer {
    fn report(&mut self, report: Report) -> std::io::Result<()>;
    /// A check of this category will be tried again.
    fn waiting(&mut self, category: &str, text: &str) -> std::io::Result<()>;
    fn tick(&mut self) -> std::io::Result<()>;
}

/// What all checks of a run share.
#[derive(Clone, Debug)]
pub struct Plan {
    /// No check is tried again after this.
    pub deadline: Instant,
    /// Where anchors live, up to and with the `#`.
    pub hints: String,
    /// Categories or anchors to leave out.
    pub skip: Vec<String>,
    /// Categories or anchors to run; all when empty.
    pub only: Vec<String>,
}

impl Plan {
    fn selects<F>(&self, category: &Category<F>, check: &Check<F>) -> bool {
        let named = |names: &[String]| {
            names
                .iter()
                .any(|name| name == category.id || name == check.anchor)
        };
        !named(&self.skip) && (self.only.is_empty() || named(&self.only))
    }
}

/// Runs all checks; whether none failed for good.
pub async fn run<F>(
    categories: &[Category<F>],
    facts: &mut F,
    plan: &Plan,
    observer: &mut (dyn Observer + Send),
) -> std::io::Result<bool> {
    let mut success = true;
    for category in categories {
        for check in &category.checks {
            if !plan.selects(category, check) {
                continue;
            }
            let verdict = settle(category.id, check, facts, plan, observer).await?;
            let error = match verdict {
                Ok(()) => None,
                Err(Problem::Skip(reason)) => {
                    tracing::debug!(check = check.description, reason, "skipped");
                    continue;
                }
                Err(Problem::Failed(error)) => Some(error),
            };
            let outcome = match &error {
                None => Outcome::Success,
                Some(_) if check.warning => Outcome::Warning,
                Some(_) => Outcome::Error,
            };
            success &= outcome != Outcome::Error;
            if check.quiet && error.is_none() {
                continue;
            }
            observer.report(Report {
                category: category.id.to_owned(),
                description: check.description.clone(),
                outcome,
                hint: error
                    .as_ref()
                    .map(|_| format!("{}{}", plan.hints, check.anchor)),
                error,
            })?;
            if outcome == Outcome::Error && check.fatal {
                return Ok(false);
            }
        }
    }
    Ok(success)
}

/// The verdict after the last attempt.
async fn settle<F>(
    category: &str,
    check: &Check<F>,
    facts: &mut F,
    plan: &Plan,
    observer: &mut (dyn Observer + Send),
) -> std::io::Result<Verdict> {
    loop {
        let attempt = timeout(ATTEMPT, check.attempt(facts));
        let verdict = turning(attempt, observer).await?.unwrap_or_else(|_| {
            Err(Problem::failed(format!(
                "no answer in {}s",
                ATTEMPT.as_secs()
            )))
        });
        let Err(Problem::Failed(error)) = &verdict else {
            return Ok(verdict);
        };
        let again = Instant::now() + PAUSE;
        if !check.retry || again > plan.deadline {
            return Ok(verdict);
        }
        let text = if check.surface {
            error.as_str()
        } else {
            WAITING
        };
        observer.waiting(category, text)?;
        turning(sleep_until(again), observer).await?;
    }
}

/// Waits while the spinner turns.
pub(super) async fn turning<T>(
    future: impl Future<Output = T>,
    observer: &mut (dyn Observer + Send),
) -> std::io::Result<T> {
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(future);
    loop {
        tokio::select! {
            biased;
            done = &mut future => return Ok(done),
            _ = frames.tick() => observer.tick()?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen(Vec<String>);

    impl Observer for Seen {
        fn report(&mut self, report: Report) -> std::io::Result<()> {
            let error = report.error.unwrap_or_default();
            self.0.push(format!(
                "{:?} {} {error}",
                report.outcome, report.description
            ));
            Ok(())
        }

        fn waiting(&mut self, _: &str, text: &str) -> std::io::Result<()> {
            self.0.push(format!("waiting {text}"));
            Ok(())
        }

        fn tick(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Fails until `facts` attempts have been made.
    fn flaky(description: &str) -> Check<usize> {
        Check::new(description, "anchor", |left| {
            Box::pin(async move {
                if *left == 0 {
                    return Ok(());
                }
                *left -= 1;
                Err(Problem::failed("not yet"))
            })
        })
    }

    fn plan(wait: u64) -> Plan {
        Plan {
            deadline: Instant::now() + Duration::from_secs(wait),
            hints: "https://hints/#".to_owned(),
            skip: vec![],
            only: vec![],
        }
    }

    async fn seen(
        checks: Vec<Check<usize>>,
        mut failures: usize,
        plan: &Plan,
    ) -> (bool, Vec<String>) {
        let mut seen = Seen::default();
        let categories = [Category { id: "c", checks }];
        let success = run(&categories, &mut failures, plan, &mut seen)
            .await
            .expect("nothing to write to");
        (success, seen.0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_retried_check_succeeds_before_the_deadline() {
        let start = Instant::now();
        let (success, lines) = seen(vec![flaky("a").retry()], 2, &plan(60)).await;
        assert!(success);
        let waiting = format!("waiting {WAITING}");
        assert_eq!(lines, [waiting.as_str(), waiting.as_str(), "Success a "]);
        assert_eq!(start.elapsed().as_secs(), 10);
        let (_, lines) = seen(vec![flaky("a").retry().surface()], 1, &plan(60)).await;
        assert_eq!(lines, ["waiting not yet", "Success a "]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_is_shared() {
        let start = Instant::now();
        let checks = vec![flaky("a").retry().warning(), flaky("b").retry()];
        let (success, lines) = seen(checks, 100, &plan(7)).await;
        assert!(!success);
        assert_eq!(lines.last().expect("b failed"), "Error b not yet");
        assert!(start.elapsed().as_secs() <= 7, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fatal_failure_ends_the_run_and_a_warning_does_not() {
        let checks = vec![flaky("a").warning(), flaky("b").fatal(), flaky("c")];
        let (success, lines) = seen(checks, 9, &plan(0)).await;
        assert!(!success);
        assert_eq!(lines, ["Warning a not yet", "Error b not yet"]);
        let (success, _) = seen(vec![flaky("a").warning()], 9, &plan(0)).await;
        assert!(success);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_has_its_own_limit() {
        let hangs = Check::new("hangs", "x", |_: &mut usize| {
            Box::pin(std::future::pending())
        });
        let (success, lines) = seen(vec![hangs], 0, &plan(0)).await;
        assert!(!success);
        assert_eq!(lines, ["Error hangs no answer in 30s"]);
    }

    #[tokio::test(start_paused = true)]
    async fn skipped_quiet_and_left_out_checks_say_nothing() {
        let skips = || {
            Check::new("skips", "s", |_: &mut usize| {
                Box::pin(async { Err(Problem::skip("not enabled")) })
            })
        };
        let checks = vec![skips(), flaky("q").quiet()];
        assert_eq!(seen(checks, 0, &plan(0)).await, (true, vec![]));
        let mut left_out = plan(0);
        left_out.skip = vec!["anchor".to_owned()];
        assert_eq!(seen(vec![flaky("a")], 9, &left_out).await, (true, vec![]));
        let mut only = plan(0);
        only.only = vec!["c".to_owned()];
        assert_eq!(seen(vec![flaky("a")], 0, &only).await.1.len(), 1);
        only.only = vec!["d".to_owned()];
        assert_eq!(seen(vec![flaky("a")], 0, &only).await, (true, vec![]));
    }
}
