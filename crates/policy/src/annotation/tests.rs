//! Annotations by tables.

use super::*;

fn annotations(pairs: &[(&str, &str)]) -> Annotations {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn http_retries() {
    let range = |start, end| StatusRange { start, end };
    for (name, pairs, expected) in [
        ("none", vec![], Ok(None)),
        (
            "5xx",
            vec![(labels::RETRY_HTTP, "5xx")],
            Ok(Some((1, vec![range(500, 599)]))),
        ),
        (
            "gateway errors",
            vec![(labels::RETRY_HTTP, "gateway-error")],
            Ok(Some((1, vec![range(502, 504)]))),
        ),
        (
            "codes and ranges",
            vec![(labels::RETRY_HTTP, "429,500-502")],
            Ok(Some((1, vec![range(429, 429), range(500, 502)]))),
        ),
        (
            "limit",
            vec![(labels::RETRY_HTTP, "5xx"), (labels::RETRY_LIMIT, "3")],
            Ok(Some((3, vec![range(500, 599)]))),
        ),
        (
            "limit alone",
            vec![(labels::RETRY_LIMIT, "3")],
            Ok(Some((3, vec![]))),
        ),
        (
            "limit of zero is unset",
            vec![(labels::RETRY_LIMIT, "0")],
            Ok(None),
        ),
        (
            "timeout alone",
            vec![(labels::RETRY_TIMEOUT, "1s")],
            Ok(Some((1, vec![]))),
        ),
        (
            "timeout of zero is unset",
            vec![(labels::RETRY_TIMEOUT, "0")],
            Ok(None),
        ),
        ("word", vec![(labels::RETRY_HTTP, "4xx")], Err(())),
        ("blank", vec![(labels::RETRY_HTTP, "500, 501")], Err(())),
        ("too small", vec![(labels::RETRY_HTTP, "99")], Err(())),
        ("too large", vec![(labels::RETRY_HTTP, "500-600")], Err(())),
        ("backwards", vec![(labels::RETRY_HTTP, "502-500")], Err(())),
        ("empty", vec![(labels::RETRY_HTTP, "")], Err(())),
        ("limit word", vec![(labels::RETRY_LIMIT, "many")], Err(())),
        (
            "limit too large",
            vec![(labels::RETRY_LIMIT, "65536")],
            Err(()),
        ),
        (
            "bad timeout",
            vec![(labels::RETRY_TIMEOUT, "soon")],
            Err(()),
        ),
    ] {
        let found = http_retry(&annotations(&pairs)).map_err(drop);
        assert_eq!(
            found.map(|retry| retry.map(|retry| (retry.limit, retry.conditions))),
            expected,
            "{name}"
        );
    }
}

#[test]
fn grpc_retries() {
    let all = GrpcConditions {
        cancelled: true,
        deadline_exceeded: true,
        internal: true,
        resource_exhausted: true,
        unavailable: true,
    };
    for (name, value, expected) in [
        (
            "all",
            "cancelled,deadline-exceeded,internal,resource-exhausted,unavailable",
            Some(all),
        ),
        (
            "one",
            "internal",
            Some(GrpcConditions {
                internal: true,
                ..GrpcConditions::default()
            }),
        ),
        ("word", "aborted", None),
        ("blank", "internal, unavailable", None),
        ("empty", "", None),
    ] {
        let found = grpc_retry(&annotations(&[(labels::RETRY_GRPC, value)]));
        assert_eq!(
            found.ok().flatten().map(|retry| retry.conditions),
            expected,
            "{name}"
        );
    }
}

#[test]
fn time_limits() {
    let found = timeouts(&annotations(&[
        (labels::TIMEOUT_REQUEST, "10s"),
        (labels::TIMEOUT_RESPONSE, "300ms"),
        (labels::TIMEOUT_IDLE, "0"),
    ]));
    let expected = Timeouts {
        request: Some(Duration::from_secs(10)),
        response: Some(Duration::from_millis(300)),
        idle: None,
    };
    assert_eq!(found, Ok(expected));
    let error = timeouts(&annotations(&[(labels::TIMEOUT_IDLE, "x")])).expect_err("not a duration");
    assert_eq!(
        error.to_string(),
        "invalid annotation timeout.linkerd.io/idle: invalid duration: \"x\""
    );
}

fn consecutive(max_failures: u32, min: u64, max: u64, jitter: f32) -> FailureAccrual {
    FailureAccrual::Consecutive {
        max_failures,
        backoff: seconds(min, max, jitter),
    }
}

fn seconds(min: u64, max: u64, jitter: f32) -> Backoff {
    Backoff {
        min: Duration::from_secs(min),
        max: Duration::from_secs(max),
        jitter,
        respect_retry_after: false,
    }
}

#[test]
fn accruals() {
    const MODE: &str = labels::FAILURE_ACCRUAL;
    let unified = |threshold, window, min_requests| FailureAccrual::Unified {
        success_rate_threshold: threshold,
        window,
        min_requests,
        max_failures: 7,
        backoff: seconds(1, 60, 0.5),
    };
    let ten = Duration::from_secs(10);
    for (name, pairs, expected) in [
        ("none", vec![], Ok(None)),
        (
            "none, with settings",
            vec![(ACCRUAL_MAX_FAILURES, "3")],
            Ok(None),
        ),
        (
            "defaults",
            vec![(MODE, "consecutive")],
            Ok(Some(consecutive(7, 1, 60, 0.5))),
        ),
        (
            "settings",
            vec![
                (MODE, "consecutive"),
                (ACCRUAL_MAX_FAILURES, "3"),
                (ACCRUAL_MIN_PENALTY, "2s"),
                (ACCRUAL_MAX_PENALTY, "5s"),
                (ACCRUAL_JITTER, "1.5"),
            ],
            Ok(Some(consecutive(3, 2, 5, 1.5))),
        ),
        (
            "min equals max",
            vec![(MODE, "consecutive"), (ACCRUAL_MIN_PENALTY, "60s")],
            Ok(Some(consecutive(7, 60, 60, 0.5))),
        ),
        (
            "retry-after is for unified",
            vec![(MODE, "consecutive"), (ACCRUAL_RETRY_AFTER, "true")],
            Ok(Some(consecutive(7, 1, 60, 0.5))),
        ),
        (
            "unified",
            vec![(MODE, "unified")],
            Ok(Some(unified(0.8, ten, 5))),
        ),
        (
            "unified settings",
            vec![
                (MODE, "unified"),
                (ACCRUAL_THRESHOLD, "0.5"),
                (ACCRUAL_WINDOW, "10ms"),
                (ACCRUAL_MIN_REQUESTS, "1000000"),
            ],
            Ok(Some(unified(0.5, Duration::from_millis(10), 1_000_000))),
        ),
        (
            "unified without success rate",
            vec![
                (MODE, "unified"),
                (ACCRUAL_THRESHOLD, "0"),
                (ACCRUAL_WINDOW, "1ms"),
                (ACCRUAL_MIN_REQUESTS, "1000001"),
            ],
            Ok(Some(unified(0.0, Duration::from_millis(1), 1_000_001))),
        ),
        ("unknown mode", vec![(MODE, "random")], Err(())),
        (
            "failures",
            vec![(MODE, "consecutive"), (ACCRUAL_MAX_FAILURES, "x")],
            Err(()),
        ),
        (
            "min above max",
            vec![(MODE, "consecutive"), (ACCRUAL_MIN_PENALTY, "61s")],
            Err(()),
        ),
        (
            "max zero",
            vec![
                (MODE, "consecutive"),
                (ACCRUAL_MIN_PENALTY, "0"),
                (ACCRUAL_MAX_PENALTY, "0"),
            ],
            Err(()),
        ),
        (
            "jitter negative",
            vec![(MODE, "consecutive"), (ACCRUAL_JITTER, "-1")],
            Err(()),
        ),
        (
            "jitter too large",
            vec![(MODE, "consecutive"), (ACCRUAL_JITTER, "101")],
            Err(()),
        ),
        (
            "jitter NaN",
            vec![(MODE, "consecutive"), (ACCRUAL_JITTER, "NaN")],
            Err(()),
        ),
        (
            "threshold above one",
            vec![(MODE, "unified"), (ACCRUAL_THRESHOLD, "1.1")],
            Err(()),
        ),
        (
            "window too short",
            vec![(MODE, "unified"), (ACCRUAL_WINDOW, "9ms")],
            Err(()),
        ),
        (
            "too many requests",
            vec![(MODE, "unified"), (ACCRUAL_MIN_REQUESTS, "1000001")],
            Err(()),
        ),
        (
            "retry-after",
            vec![(MODE, "unified"), (ACCRUAL_RETRY_AFTER, "maybe")],
            Err(()),
        ),
    ] {
        assert_eq!(
            failure_accrual(&annotations(&pairs)).map_err(drop),
            expected,
            "{name}"
        );
    }
    let hinted = failure_accrual(&annotations(&[
        (MODE, "unified"),
        (ACCRUAL_RETRY_AFTER, "T"),
    ]));
    assert!(matches!(
        hinted,
        Ok(Some(FailureAccrual::Unified {
            backoff: Backoff {
                respect_retry_after: true,
                ..
            },
            ..
        }))
    ));
}

#[test]
fn loads() {
    let penalty = |penalty, max_retry_after| Load::PenaltyPeakEwma {
        penalty: Duration::from_secs(penalty),
        max_retry_after: Duration::from_secs(max_retry_after),
    };
    for (name, pairs, expected) in [
        ("none", vec![], Ok(Load::PeakEwma)),
        (
            "off",
            vec![(PENALIZE_FAILURES, "false"), (LOAD_PENALTY, "x")],
            Ok(Load::PeakEwma),
        ),
        ("on", vec![(PENALIZE_FAILURES, "true")], Ok(penalty(5, 300))),
        (
            "settings",
            vec![
                (PENALIZE_FAILURES, "1"),
                (LOAD_PENALTY, "2s"),
                (LOAD_MAX_RETRY_AFTER, "1m"),
            ],
            Ok(penalty(2, 60)),
        ),
        ("not a boolean", vec![(PENALIZE_FAILURES, "yes")], Err(())),
        (
            "penalty too long",
            vec![(PENALIZE_FAILURES, "true"), (LOAD_PENALTY, "50d")],
            Err(()),
        ),
    ] {
        assert_eq!(load(&annotations(&pairs)).map_err(drop), expected, "{name}");
    }
}
