//! The run loop under a clock that is turned by hand.

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

async fn seen(checks: Vec<Check<usize>>, mut failures: usize, plan: &Plan) -> (bool, Vec<String>) {
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
/// `--only kubernetes-version` judged a version that nobody had asked for.
#[tokio::test(start_paused = true)]
async fn what_others_stand_on_runs_unseen() {
    let learns = || {
        Check::new("learns", "l", |known: &mut usize| {
            Box::pin(async {
                *known += 1;
                if *known > 1 {
                    return Err(Problem::failed("lost"));
                }
                Ok(())
            })
        })
        .informs(&["c"])
        .fatal()
    };
    let uses = || {
        Check::new("uses", "u", |known: &mut usize| {
            Box::pin(async move { Err(Problem::failed(format!("known {known}"))) })
        })
    };
    let (mut only, mut skip, mut none) = (plan(0), plan(0), plan(0));
    only.only = vec!["u".to_owned()];
    none.only = vec!["n".to_owned()];
    skip.skip = vec!["l".to_owned()];
    for (name, plan, known, lines) in [
        ("only", &only, 0, vec!["Error uses known 1"]),
        ("skip", &skip, 0, vec!["Error uses known 1"]),
        ("only, unknown", &only, 1, vec!["Error learns lost"]),
        ("skip, unknown", &skip, 1, vec!["Error uses known 2"]),
        ("nobody needs it", &none, 1, vec![]),
    ] {
        let checks = vec![learns(), uses()];
        assert_eq!(seen(checks, known, plan).await.1, lines, "{name}");
    }
}

#[test]
fn a_name_that_nothing_has_is_found() {
    let categories = [Category {
        id: "c",
        checks: vec![flaky("a")],
    }];
    let named = |skip: &[&str], only: &[&str]| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let plan = Plan {
            skip: owned(skip),
            only: owned(only),
            deadline: Instant::now(),
            hints: String::new(),
        };
        plan.unknown_name(&categories).map(str::to_owned)
    };
    assert_eq!(named(&["c"], &["anchor"]), None);
    assert_eq!(named(&["anchor", "x"], &[]).as_deref(), Some("x"));
    assert_eq!(named(&[], &["cc"]).as_deref(), Some("cc"));
}
