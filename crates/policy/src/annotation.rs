//! Annotations that configure retries, time limits, circuit breaking and load balancing.
//!
//! One grammar for Services, EgressNetworks and routes; who reads decides what a bad value means.

use linkerd_core::{
    duration,
    policy::outbound::{
        Backoff, FailureAccrual, GrpcConditions, Load, Retry, StatusRange, Timeouts,
    },
};
use linkerd_k8s::labels;
use std::{collections::BTreeMap, time::Duration};

/// Annotations of one object.
pub type Annotations = BTreeMap<String, String>;

const ACCRUAL_MAX_FAILURES: &str = "balancer.linkerd.io/failure-accrual-consecutive-max-failures";
const ACCRUAL_MIN_PENALTY: &str = "balancer.linkerd.io/failure-accrual-consecutive-min-penalty";
const ACCRUAL_MAX_PENALTY: &str = "balancer.linkerd.io/failure-accrual-consecutive-max-penalty";
const ACCRUAL_JITTER: &str = "balancer.linkerd.io/failure-accrual-consecutive-jitter-ratio";
const ACCRUAL_THRESHOLD: &str = "balancer.alpha.linkerd.io/failure-accrual-success-rate-threshold";
const ACCRUAL_WINDOW: &str = "balancer.alpha.linkerd.io/failure-accrual-success-rate-window";
const ACCRUAL_MIN_REQUESTS: &str =
    "balancer.alpha.linkerd.io/failure-accrual-success-rate-min-requests";
const ACCRUAL_RETRY_AFTER: &str = "balancer.alpha.linkerd.io/failure-accrual-honor-retry-after";
const PENALIZE_FAILURES: &str = "balancer.alpha.linkerd.io/penalize-failures";
const LOAD_PENALTY: &str = "balancer.alpha.linkerd.io/load-biaser-penalty";
const LOAD_MAX_RETRY_AFTER: &str = "balancer.alpha.linkerd.io/load-biaser-max-retry-after";

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid annotation {name}: {reason}")]
pub struct AnnotationError {
    /// The annotation.
    pub name: &'static str,
    /// What is wrong.
    pub reason: String,
}

/// Retries of HTTP requests.
pub fn http_retry(
    annotations: &Annotations,
) -> Result<Option<Retry<Vec<StatusRange>>>, AnnotationError> {
    let conditions = read(annotations, labels::RETRY_HTTP, status_ranges)?;
    retry(annotations, conditions)
}

/// Retries of gRPC calls.
pub fn grpc_retry(
    annotations: &Annotations,
) -> Result<Option<Retry<GrpcConditions>>, AnnotationError> {
    let conditions = read(annotations, labels::RETRY_GRPC, grpc_conditions)?;
    retry(annotations, conditions)
}

fn retry<C: Default>(
    annotations: &Annotations,
    conditions: Option<C>,
) -> Result<Option<Retry<C>>, AnnotationError> {
    let limit = read(annotations, labels::RETRY_LIMIT, number::<u16>)?.filter(|limit| *limit != 0);
    let timeout =
        read(annotations, labels::RETRY_TIMEOUT, duration)?.filter(|time| !time.is_zero());
    if limit.is_none() && timeout.is_none() && conditions.is_none() {
        return Ok(None);
    }
    Ok(Some(Retry {
        limit: limit.unwrap_or(1),
        timeout,
        conditions: conditions.unwrap_or_default(),
    }))
}

/// Time limits of requests.
pub fn timeouts(annotations: &Annotations) -> Result<Timeouts, AnnotationError> {
    let limit = |name| Ok(read(annotations, name, duration)?.filter(|time| !time.is_zero()));
    Ok(Timeouts {
        request: limit(labels::TIMEOUT_REQUEST)?,
        response: limit(labels::TIMEOUT_RESPONSE)?,
        idle: limit(labels::TIMEOUT_IDLE)?,
    })
}

/// Circuit breaking.
pub fn failure_accrual(
    annotations: &Annotations,
) -> Result<Option<FailureAccrual>, AnnotationError> {
    let Some(mode) = annotations.get(labels::FAILURE_ACCRUAL) else {
        return Ok(None);
    };
    let unified = match mode.trim() {
        "consecutive" => false,
        "unified" => true,
        other => {
            let reason = format!("unsupported failure accrual mode: {other}");
            return Err(AnnotationError {
                name: labels::FAILURE_ACCRUAL,
                reason,
            });
        }
    };
    let max_failures = read(annotations, ACCRUAL_MAX_FAILURES, number::<u32>)?.unwrap_or(7);
    let retry_after = read(annotations, ACCRUAL_RETRY_AFTER, boolean)?.unwrap_or(false);
    let backoff = backoff(annotations, unified && retry_after)?;
    if !unified {
        return Ok(Some(FailureAccrual::Consecutive {
            max_failures,
            backoff,
        }));
    }
    let threshold = read(annotations, ACCRUAL_THRESHOLD, ratio)?.unwrap_or(0.8);
    let window = read(annotations, ACCRUAL_WINDOW, duration)?.unwrap_or(Duration::from_secs(10));
    let min_requests = read(annotations, ACCRUAL_MIN_REQUESTS, number::<u32>)?.unwrap_or(5);
    if threshold > 0.0 {
        if window < Duration::from_millis(10) {
            let reason = "must be at least 10ms".to_owned();
            return Err(AnnotationError {
                name: ACCRUAL_WINDOW,
                reason,
            });
        }
        if min_requests > 1_000_000 {
            let reason = "must be at most 1000000".to_owned();
            return Err(AnnotationError {
                name: ACCRUAL_MIN_REQUESTS,
                reason,
            });
        }
    }
    Ok(Some(FailureAccrual::Unified {
        success_rate_threshold: threshold,
        window,
        min_requests,
        max_failures,
        backoff,
    }))
}

fn backoff(
    annotations: &Annotations,
    respect_retry_after: bool,
) -> Result<Backoff, AnnotationError> {
    let min = read(annotations, ACCRUAL_MIN_PENALTY, duration)?.unwrap_or(Duration::from_secs(1));
    let max = read(annotations, ACCRUAL_MAX_PENALTY, duration)?.unwrap_or(Duration::from_secs(60));
    let jitter = read(annotations, ACCRUAL_JITTER, jitter)?.unwrap_or(0.5);
    if max.is_zero() {
        let reason = "must be greater than zero".to_owned();
        return Err(AnnotationError {
            name: ACCRUAL_MAX_PENALTY,
            reason,
        });
    }
    if min > max {
        let reason = "must not exceed the maximum penalty".to_owned();
        return Err(AnnotationError {
            name: ACCRUAL_MIN_PENALTY,
            reason,
        });
    }
    Ok(Backoff {
        min,
        max,
        jitter,
        respect_retry_after,
    })
}

/// How balancers estimate load.
pub fn load(annotations: &Annotations) -> Result<Load, AnnotationError> {
    if !read(annotations, PENALIZE_FAILURES, boolean)?.unwrap_or(false) {
        return Ok(Load::PeakEwma);
    }
    let penalty = read(annotations, LOAD_PENALTY, duration)?.unwrap_or(Duration::from_secs(5));
    if u32::try_from(penalty.as_millis()).is_err() {
        let reason = "must fit 32 bits of milliseconds".to_owned();
        return Err(AnnotationError {
            name: LOAD_PENALTY,
            reason,
        });
    }
    let max_retry_after =
        read(annotations, LOAD_MAX_RETRY_AFTER, duration)?.unwrap_or(Duration::from_secs(300));
    Ok(Load::PenaltyPeakEwma {
        penalty,
        max_retry_after,
    })
}

fn read<T>(
    annotations: &Annotations,
    name: &'static str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, AnnotationError> {
    let Some(value) = annotations.get(name) else {
        return Ok(None);
    };
    parse(value)
        .map(Some)
        .map_err(|reason| AnnotationError { name, reason })
}

fn duration(text: &str) -> Result<Duration, String> {
    duration::parse_plain(text).map_err(|error| error.to_string())
}

fn status_ranges(text: &str) -> Result<Vec<StatusRange>, String> {
    let code = |text: &str| match text.parse::<u16>() {
        Ok(code) if (100..=599).contains(&code) => Ok(code),
        _ => Err(format!("invalid status code: {text:?}")),
    };
    text.split(',')
        .map(|member| match member {
            "5xx" => Ok(StatusRange {
                start: 500,
                end: 599,
            }),
            "gateway-error" => Ok(StatusRange {
                start: 502,
                end: 504,
            }),
            member => {
                let (start, end) = member.split_once('-').unwrap_or((member, member));
                let range = StatusRange {
                    start: code(start)?,
                    end: code(end)?,
                };
                if range.start > range.end {
                    return Err(format!("invalid status range: {member:?}"));
                }
                Ok(range)
            }
        })
        .collect()
}

fn grpc_conditions(text: &str) -> Result<GrpcConditions, String> {
    let mut conditions = GrpcConditions::default();
    for member in text.split(',') {
        match member {
            "cancelled" => conditions.cancelled = true,
            "deadline-exceeded" => conditions.deadline_exceeded = true,
            "internal" => conditions.internal = true,
            "resource-exhausted" => conditions.resource_exhausted = true,
            "unavailable" => conditions.unavailable = true,
            other => return Err(format!("unsupported grpc retry condition: {other:?}")),
        }
    }
    Ok(conditions)
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("invalid number: {text:?}"))
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(format!("must be between 0 and 1: {text:?}")),
    }
}

fn jitter(text: &str) -> Result<f32, String> {
    match text.trim().parse::<f32>() {
        Ok(jitter) if (0.0..=100.0).contains(&jitter) => Ok(jitter),
        _ => Err(format!("must be between 0 and 100: {text:?}")),
    }
}

fn boolean(text: &str) -> Result<bool, String> {
    match text.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("invalid boolean: {other:?}")),
    }
}

#[cfg(test)]
mod tests;
