//! Waiting for a condition with a deadline, instead of sleeping and hoping.

use std::time::{Duration, Instant};

/// How long between two looks: short enough not to be felt, long enough to leave the cores free.
const PAUSE: Duration = Duration::from_millis(10);

/// Ends when `condition` holds; panics naming `what` when it does not within `deadline`.
#[track_caller]
pub fn wait_for(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait_for_some(deadline, what, || condition().then_some(()));
}

/// Like [`wait_for`], for a condition that yields a value.
#[track_caller]
pub fn wait_for_some<T>(
    deadline: Duration,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> T {
    let until = Instant::now() + deadline;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < until, "not within {deadline:?}: {what}");
        #[expect(
            clippy::disallowed_methods,
            reason = "the wait with a deadline the ban asks for"
        )]
        std::thread::sleep(PAUSE);
    }
}

/// [`wait_for`] inside a runtime: `wait_for_async(…, "ready", async || probe().await)`.
pub async fn wait_for_async(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) {
    wait_for_some_async(deadline, what, async || condition().await.then_some(())).await;
}

/// [`wait_for_some`] inside a runtime. The deadline also ends a look that hangs.
pub async fn wait_for_some_async<T>(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let found = tokio::time::timeout(deadline, async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    match found.await {
        Ok(value) => value,
        Err(_) => panic!("not within {deadline:?}: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_until_it_holds() {
        let mut looks = 0;
        wait_for(Duration::from_secs(30), "three looks", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }

    #[test]
    #[should_panic(expected = "not within 1ms: the moon")]
    fn the_deadline_names_what_was_missing() {
        wait_for(Duration::from_millis(1), "the moon", || false);
    }

    #[tokio::test(start_paused = true)]
    async fn looks_inside_a_runtime() {
        let mut looks = 0;
        let value = wait_for_some_async(Duration::from_secs(1), "two looks", async || {
            looks += 1;
            (looks == 2).then_some("found")
        });
        assert_eq!(value.await, "found");
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not within 1s: an end")]
    async fn a_look_that_hangs_ends_too() {
        wait_for_async(Duration::from_secs(1), "an end", async || {
            std::future::pending().await
        })
        .await;
    }
}
