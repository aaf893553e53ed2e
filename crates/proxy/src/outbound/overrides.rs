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
    let statuses = text(request, &RETRY_HTTP).map(|t| statuses(&t));
    let statuses = statuses.filter(|list| !list.is_empty());
    let codes = text(request, &RETRY_GRPC).map(|t| codes(&t));
    let codes = codes.filter(|list| !list.is_empty());
    let limit = text(request, &RETRY_LIMIT).and_then(|t| t.trim().parse().ok());
    let per_try = duration(&RETRY_TIMEOUT);
    let listed = statuses.is_some() || codes.is_some();
    if !listed && (retry.is_none() || (limit.is_none() && per_try.is_none())) {
        return;
    }
    let mut own = match retry.as_deref() {
        Some(retry) => retry.clone(),
        None => Retry {
            max_retries: 1,
            max_request_bytes: MAX_REPLAY,
            timeout: None,
            backoff: Backoff::new(Duration::from_millis(25), Duration::from_millis(250), 1.0).ok(),
            on: RetryOn::Listed {
                statuses: Vec::new(),
                codes: Vec::new(),
            },
        },
    };
    if listed {
        // What the rule lists of the other kind stays.
        let (of_rule, codes_of_rule) = match own.on {
            RetryOn::Listed { statuses, codes } => (statuses, codes),
            RetryOn::Class(_) => (Vec::new(), Vec::new()),
        };
        own.on = RetryOn::Listed {
            statuses: statuses.unwrap_or(of_rule),
            codes: codes.unwrap_or(codes_of_rule),
        };
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

/// `5xx`, `gateway-error`, `NNN`, `NNN-MMM`, comma separated; what is unknown is passed over.
fn statuses(text: &str) -> Vec<(u16, u16)> {
    let items = text.split(',').map(str::trim);
    let known = items.filter_map(|item| match item {
        item if item.eq_ignore_ascii_case("5xx") => Some((500, 599)),
        item if item.eq_ignore_ascii_case("gateway-error") => Some((502, 504)),
        item => {
            let (low, high) = item.split_once('-').unwrap_or((item, item));
            let (low, high) = (low.parse().ok()?, high.parse().ok()?);
            (100..=599).contains(&low).then_some((low, high))
        }
    });
    known.collect()
}

/// Names of gRPC codes, in the same way.
fn codes(text: &str) -> Vec<u16> {
    const NAMES: [(&str, u16); 5] = [
        ("cancelled", 1),
        ("deadline-exceeded", 4),
        ("resource-exhausted", 8),
        ("internal", 13),
        ("unavailable", 14),
    ];
    let known = text.split(',').filter_map(|item| {
        let named = |(name, _): &&(&str, u16)| item.trim().eq_ignore_ascii_case(name);
        NAMES.iter().find(named).map(|(_, code)| *code)
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> (Timeouts, Option<Arc<Retry>>) {
        read_with(headers, None)
    }

    fn read_with(headers: &[(&str, &str)], rule: Option<Retry>) -> (Timeouts, Option<Arc<Retry>>) {
        let mut request = http::Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("valid");
        let (mut timeouts, mut retry) = (Timeouts::default(), rule.map(Arc::new));
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

    #[test]
    fn lists() {
        for (name, text, want) in [
            ("ranges", "500-503, 418", &[(500, 503), (418, 418)][..]),
            ("any case", "5XX,Gateway-Error", &[(500, 599), (502, 504)]),
            ("unknown words are passed over", "what,503", &[(503, 503)]),
            ("no status", "99,600,x-y,", &[]),
        ] {
            assert_eq!(statuses(text), want, "{name}");
        }
        for (name, text, want) in [
            ("any case", "Unavailable, INTERNAL", &[14, 13][..]),
            ("unknown words are passed over", "what,cancelled", &[1]),
            ("no code", "14", &[]),
        ] {
            assert_eq!(codes(text), want, "{name}");
        }
    }

    #[test]
    fn both_kinds_hold_together() {
        let http = ("l5d-retry-http", "503");
        let grpc = ("l5d-retry-grpc", "unavailable");
        let rule = || Retry {
            max_retries: 7,
            max_request_bytes: 1,
            timeout: None,
            backoff: None,
            on: RetryOn::Listed {
                statuses: vec![(500, 500)],
                codes: vec![13],
            },
        };
        for (name, headers, rule, wants) in [
            (
                "both asked for",
                &[http, grpc][..],
                None,
                [true, false, true, false],
            ),
            (
                "only statuses",
                &[http],
                Some(rule()),
                [true, false, false, true],
            ),
            (
                "only codes",
                &[grpc],
                Some(rule()),
                [false, true, true, false],
            ),
            ("neither", &[], Some(rule()), [false, true, false, true]),
        ] {
            let retry = read_with(headers, rule).1.expect("a policy");
            let got = [
                retry.wants(503, None),
                retry.wants(500, None),
                retry.wants(200, Some(14)),
                retry.wants(200, Some(13)),
            ];
            assert_eq!(got, wants, "{name}");
        }
    }
}
