//! Timeouts and retries a request asks for itself, where its rule allows that.

use std::{sync::Arc, time::Duration};

use http::HeaderName;
use linkerd_http1::Name;

use crate::{
    config::{Backoff, value},
    http::Edits,
    policy::{
        client::{Retry, RetryOn, Timeouts},
        matching::Request,
    },
};

static TIMEOUT: HeaderName = HeaderName::from_static("l5d-timeout");
static REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("l5d-request-timeout");
static RESPONSE_TIMEOUT: HeaderName = HeaderName::from_static("l5d-response-timeout");
static RETRY_HTTP: HeaderName = HeaderName::from_static("l5d-retry-http");
static RETRY_GRPC: HeaderName = HeaderName::from_static("l5d-retry-grpc");
static RETRY_LIMIT: HeaderName = HeaderName::from_static("l5d-retry-limit");
static RETRY_TIMEOUT: HeaderName = HeaderName::from_static("l5d-retry-timeout");

/// Body kept for another try.
const MAX_REPLAY: usize = 64 * 1024;

/// Reads the headers into the settings of the request and has them left out.
pub(super) fn apply(
    request: &impl Request,
    timeouts: &mut Timeouts,
    retry: &mut Option<Arc<Retry>>,
    edits: &mut Edits,
) {
    for name in [
        Name::L5dTimeout,
        Name::L5dRequestTimeout,
        Name::L5dResponseTimeout,
        Name::L5dRetryHttp,
        Name::L5dRetryGrpc,
        Name::L5dRetryLimit,
        Name::L5dRetryTimeout,
    ] {
        edits.drop = edits.drop.with(name);
    }
    let duration = |name| text(request, name).and_then(|t| value::duration(&t).ok());
    if let Some(limit) = duration(&REQUEST_TIMEOUT).or_else(|| duration(&TIMEOUT)) {
        timeouts.request = Some(limit).filter(|d| !d.is_zero());
    }
    if let Some(limit) = duration(&RESPONSE_TIMEOUT) {
        timeouts.response = Some(limit).filter(|d| !d.is_zero());
    }
    let on = text(request, &RETRY_HTTP)
        .and_then(|t| statuses(&t).map(RetryOn::Status))
        .or_else(|| text(request, &RETRY_GRPC).and_then(|t| codes(&t).map(RetryOn::Grpc)));
    let limit = text(request, &RETRY_LIMIT).and_then(|t| t.trim().parse().ok());
    let per_try = duration(&RETRY_TIMEOUT);
    if on.is_none() && (retry.is_none() || (limit.is_none() && per_try.is_none())) {
        return;
    }
    let mut own = match retry.as_deref() {
        Some(retry) => retry.clone(),
        None => Retry {
            max_retries: 1,
            max_request_bytes: MAX_REPLAY,
            timeout: None,
            backoff: Backoff::new(Duration::from_millis(25), Duration::from_millis(250), 1.0).ok(),
            on: RetryOn::Status(Vec::new()),
        },
    };
    if let Some(on) = on {
        own.on = on;
    }
    own.max_retries = limit.unwrap_or(own.max_retries);
    own.timeout = per_try.or(own.timeout);
    *retry = Some(Arc::new(own));
}

fn text(request: &impl Request, name: &HeaderName) -> Option<String> {
    let mut found = None;
    request.any_header(name, &mut |value| {
        found = std::str::from_utf8(value).ok().map(str::to_owned);
        true
    });
    found
}

/// `5xx`, `gateway-error`, `NNN`, `NNN-MMM`, comma separated.
fn statuses(text: &str) -> Option<Vec<(u16, u16)>> {
    text.split(',')
        .map(str::trim)
        .map(|item| match item {
            "5xx" => Some((500, 599)),
            "gateway-error" => Some((502, 504)),
            item => {
                let (low, high) = item.split_once('-').unwrap_or((item, item));
                let (low, high) = (low.parse().ok()?, high.parse().ok()?);
                (100..=599).contains(&low).then_some((low, high))
            }
        })
        .collect()
}

fn codes(text: &str) -> Option<Vec<u16>> {
    text.split(',')
        .map(|item| match item.trim() {
            "cancelled" => Some(1),
            "deadline-exceeded" => Some(4),
            "resource-exhausted" => Some(8),
            "internal" => Some(13),
            "unavailable" => Some(14),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> (Timeouts, Option<Arc<Retry>>) {
        let mut request = http::Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("valid");
        let (mut timeouts, mut retry) = (Timeouts::default(), None);
        apply(&request, &mut timeouts, &mut retry, &mut Edits::default());
        (timeouts, retry)
    }

    #[test]
    fn timeouts() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(read(&[("l5d-timeout", "1s")]).0.request, second);
        let both = [("l5d-timeout", "5s"), ("l5d-request-timeout", "1s")];
        assert_eq!(read(&both).0.request, second, "the longer name wins");
        assert_eq!(read(&[("l5d-response-timeout", "1s")]).0.response, second);
        assert_eq!(read(&[("l5d-timeout", "soon")]).0, Timeouts::default());
    }

    #[test]
    fn retries() {
        let retry = read(&[("l5d-retry-http", "5xx, 418"), ("l5d-retry-limit", "3")]).1;
        let retry = retry.expect("a policy");
        assert_eq!(retry.max_retries, 3);
        assert!(retry.wants(503, None) && retry.wants(418, None) && !retry.wants(404, None));
        let retry = read(&[("l5d-retry-grpc", "unavailable,internal")])
            .1
            .expect("a policy");
        assert_eq!(retry.max_retries, 1);
        assert!(retry.wants(200, Some(14)) && !retry.wants(200, Some(2)));
        assert!(read(&[("l5d-retry-http", "nonsense")]).1.is_none());
        assert!(
            read(&[("l5d-retry-limit", "3")]).1.is_none(),
            "nothing to retry on"
        );
    }
}
