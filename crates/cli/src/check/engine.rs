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
    /// Categories whose checks stand on what it finds out.
    informs: &'static [&'static str],
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
            informs: &[],
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

    /// Checks of these categories need what it finds out: for them it runs, unseen, when it is left
    /// out itself.
    pub fn informs(mut self, categories: &'static [&'static str]) -> Self {
        self.informs = categories;
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

fn named<F>(names: &[String], category: &Category<F>, check: &Check<F>) -> bool {
    names
        .iter()
        .any(|name| name == category.id || name == check.anchor)
}

impl Plan {
    fn skips<F>(&self, category: &Category<F>, check: &Check<F>) -> bool {
        named(&self.skip, category, check)
    }

    fn selects<F>(&self, category: &Category<F>, check: &Check<F>) -> bool {
        !self.skips(category, check) && (self.only.is_empty() || named(&self.only, category, check))
    }

    /// Whether a check runs that stands on this one.
    fn needs<F>(&self, check: &Check<F>, categories: &[Category<F>]) -> bool {
        categories.iter().any(|category| {
            let mut checks = category.checks.iter();
            check.informs.contains(&category.id) && checks.any(|c| self.selects(category, c))
        })
    }

    /// The first name to skip or to run that no category and no check has.
    pub fn unknown_name<F>(&self, categories: &[Category<F>]) -> Option<&str> {
        let known = |name: &str| {
            categories.iter().any(|category| {
                let mut checks = category.checks.iter();
                name == category.id || checks.any(|check| name == check.anchor)
            })
        };
        let mut names = self.skip.iter().chain(&self.only).map(String::as_str);
        names.find(|name| !known(name))
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
            let verdict = if plan.selects(category, check) {
                settle(category.id, check, facts, plan, observer).await?
            } else if plan.needs(check, categories) {
                let verdict = timed(check, facts, observer).await?;
                // What was asked for cannot be judged without it; who skips it by name knows.
                if !check.fatal || plan.skips(category, check) || verdict.is_ok() {
                    continue;
                }
                verdict
            } else {
                continue;
            };
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

/// One attempt within its time.
async fn timed<F>(
    check: &Check<F>,
    facts: &mut F,
    observer: &mut (dyn Observer + Send),
) -> std::io::Result<Verdict> {
    let attempt = timeout(ATTEMPT, check.attempt(facts));
    let late = |_| {
        let seconds = ATTEMPT.as_secs();
        Err(Problem::failed(format!("no answer in {seconds}s")))
    };
    Ok(turning(attempt, observer).await?.unwrap_or_else(late))
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
        let verdict = timed(check, facts, observer).await?;
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
mod tests;
