//! What a ServiceProfile means: routes with their conditions, the retry budget, and weighted
//! destinations. Reading one either succeeds as a whole or says what is wrong.

use std::time::Duration;

use linkerd_core::{duration, quantity};
use linkerd_k8s::{IntOrString, service_profile as kind};

use crate::intern::ObjectId;

#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub id: ObjectId,
    pub routes: Vec<Route>,
    pub budget: Option<RetryBudget>,
    pub overrides: Vec<Override>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub name: String,
    pub condition: RequestMatch,
    pub responses: Vec<(ResponseMatch, bool)>,
    pub retryable: bool,
    pub timeout: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestMatch {
    All(Vec<RequestMatch>),
    Any(Vec<RequestMatch>),
    Not(Box<RequestMatch>),
    Method(String),
    Path(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum ResponseMatch {
    All(Vec<ResponseMatch>),
    Any(Vec<ResponseMatch>),
    Not(Box<ResponseMatch>),
    Status { min: u32, max: u32 },
}

#[derive(Clone, Debug, PartialEq)]
pub struct RetryBudget {
    pub ratio: f32,
    pub min_per_second: u32,
    /// Zero is not sent.
    pub ttl: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// May lack a port.
    pub authority: String,
    /// Ten thousand is a weight of one.
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("route {0:?}: a request match must have a field set")]
    EmptyRequestMatch(String),
    #[error("route {0:?}: a response match must have a field set")]
    EmptyResponseMatch(String),
    #[error("retry budget: {0:?} is not a duration")]
    Ttl(String),
    #[error("{0:?} is not a weight")]
    Weight(String),
}

/// Used when a profile has no retry budget of its own.
pub const DEFAULT_BUDGET: RetryBudget = RetryBudget {
    ratio: 0.2,
    min_per_second: 10,
    ttl: Duration::from_secs(10),
};

impl Spec {
    pub fn read(id: ObjectId, spec: &kind::ServiceProfileSpec) -> Result<Self, Invalid> {
        Ok(Self {
            id,
            routes: spec
                .routes
                .iter()
                .map(Route::read)
                .collect::<Result<_, _>>()?,
            budget: spec
                .retry_budget
                .as_ref()
                .map(RetryBudget::read)
                .transpose()?,
            overrides: spec
                .dst_overrides
                .iter()
                .map(Override::read)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl Route {
    fn read(route: &kind::RouteSpec) -> Result<Self, Invalid> {
        let invalid_request = || Invalid::EmptyRequestMatch(route.name.clone());
        let invalid_response = || Invalid::EmptyResponseMatch(route.name.clone());
        let responses = route.response_classes.iter().map(|class| {
            let condition = ResponseMatch::read(&class.condition).ok_or_else(invalid_response)?;
            Ok((condition, class.is_failure.unwrap_or(false)))
        });
        Ok(Self {
            name: route.name.clone(),
            condition: RequestMatch::read(&route.condition).ok_or_else(invalid_request)?,
            responses: responses.collect::<Result<_, _>>()?,
            retryable: route.is_retryable.unwrap_or(false),
            // No time at all means no limit.
            timeout: route
                .timeout
                .as_deref()
                .and_then(|text| duration::parse(text).ok())
                .filter(|timeout| !timeout.is_zero()),
        })
    }
}

impl RequestMatch {
    /// A match with several members means all of them; one with none means nothing.
    fn read(it: &kind::RequestMatch) -> Option<Self> {
        let mut members = Vec::new();
        if let Some(all) = &it.all {
            members.push(Self::All(
                all.iter().map(Self::read).collect::<Option<_>>()?,
            ));
        }
        if let Some(any) = &it.any {
            members.push(Self::Any(
                any.iter().map(Self::read).collect::<Option<_>>()?,
            ));
        }
        if let Some(method) = it.method.as_ref().filter(|method| !method.is_empty()) {
            members.push(Self::Method(method.clone()));
        }
        if let Some(not) = &it.not {
            members.push(Self::Not(Box::new(Self::read(not)?)));
        }
        if let Some(path) = it.path_regex.as_ref().filter(|path| !path.is_empty()) {
            members.push(Self::Path(path.clone()));
        }
        one_or_all(members, Self::All)
    }
}

impl ResponseMatch {
    fn read(it: &kind::ResponseMatch) -> Option<Self> {
        let mut members = Vec::new();
        if let Some(all) = &it.all {
            members.push(Self::All(
                all.iter().map(Self::read).collect::<Option<_>>()?,
            ));
        }
        if let Some(any) = &it.any {
            members.push(Self::Any(
                any.iter().map(Self::read).collect::<Option<_>>()?,
            ));
        }
        if let Some(status) = &it.status {
            let (min, max) = (status.min.unwrap_or(0), status.max.unwrap_or(0));
            members.push(Self::Status { min, max });
        }
        if let Some(not) = &it.not {
            members.push(Self::Not(Box::new(Self::read(not)?)));
        }
        one_or_all(members, Self::All)
    }
}

fn one_or_all<T>(mut members: Vec<T>, all: impl Fn(Vec<T>) -> T) -> Option<T> {
    if members.len() > 1 {
        return Some(all(members));
    }
    members.pop()
}

impl RetryBudget {
    fn read(budget: &kind::RetryBudget) -> Result<Self, Invalid> {
        Ok(Self {
            ratio: budget.retry_ratio,
            min_per_second: budget.min_retries_per_second,
            ttl: duration::parse(&budget.ttl).map_err(|_| Invalid::Ttl(budget.ttl.clone()))?,
        })
    }
}

impl Override {
    fn read(it: &kind::WeightedDst) -> Result<Self, Invalid> {
        let weight = match &it.weight {
            None => 0,
            Some(IntOrString::Int(number)) => {
                let milli = u64::try_from(*number)
                    .ok()
                    .and_then(|it| it.checked_mul(1000));
                milli.ok_or_else(|| Invalid::Weight(number.to_string()))?
            }
            Some(IntOrString::String(text)) => {
                quantity::milli(text.trim()).ok_or_else(|| Invalid::Weight(text.clone()))?
            }
        };
        let weight = u32::try_from(weight.saturating_mul(10)).unwrap_or(u32::MAX);
        Ok(Self {
            authority: it.authority.clone().unwrap_or_default(),
            weight,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: serde_json::Value) -> Result<Spec, Invalid> {
        let spec = serde_json::from_value(spec).expect("shape of a profile");
        Spec::read(ObjectId::new("shop", "web"), &spec)
    }

    #[test]
    fn a_match_with_several_members_is_all_of_them_in_order() {
        let spec = read(json!({"routes": [{
            "name": "r",
            "timeout": "250ms",
            "isRetryable": true,
            "condition": {
                "pathRegex": "/a", "method": "GET",
                "not": {"method": "PUT"},
                "any": [{"pathRegex": "/x"}],
                "all": [{"pathRegex": "/y"}],
            },
            "responseClasses": [{
                "condition": {"status": {"min": 500, "max": 599}, "not": {"status": {"min": 503, "max": 503}}},
                "isFailure": true,
            }],
        }]}))
        .expect("valid");
        let path = |path: &str| RequestMatch::Path(path.to_owned());
        let method = |method: &str| RequestMatch::Method(method.to_owned());
        let route = &spec.routes[0];
        assert_eq!(
            route.condition,
            RequestMatch::All(vec![
                RequestMatch::All(vec![path("/y")]),
                RequestMatch::Any(vec![path("/x")]),
                method("GET"),
                RequestMatch::Not(Box::new(method("PUT"))),
                path("/a"),
            ])
        );
        assert_eq!(
            route.responses,
            [(
                ResponseMatch::All(vec![
                    ResponseMatch::Status { min: 500, max: 599 },
                    ResponseMatch::Not(Box::new(ResponseMatch::Status { min: 503, max: 503 })),
                ]),
                true
            )]
        );
        assert_eq!(route.timeout, Some(Duration::from_millis(250)));
        assert!(route.retryable);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let route = |condition: serde_json::Value| json!({"routes": [{"name": "r", "condition": condition}]});
        for (name, spec, expected) in [
            (
                "empty match",
                route(json!({})),
                Invalid::EmptyRequestMatch("r".into()),
            ),
            (
                "empty inside",
                route(json!({"any": [{}]})),
                Invalid::EmptyRequestMatch("r".into()),
            ),
            (
                "empty response",
                json!({"routes": [{"name": "r", "condition": {"method": "GET"},
                    "responseClasses": [{"condition": {}}]}]}),
                Invalid::EmptyResponseMatch("r".into()),
            ),
            (
                "budget",
                json!({"retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": 1, "ttl": "soon"}}),
                Invalid::Ttl("soon".into()),
            ),
            (
                "weight",
                json!({"dstOverrides": [{"authority": "a", "weight": "x"}]}),
                Invalid::Weight("x".into()),
            ),
        ] {
            assert_eq!(read(spec).expect_err(name), expected, "{name}");
        }
    }

    #[test]
    fn timeouts() {
        for (name, text, expected) in [
            ("nobody can read it", "1 hour", None),
            ("zero is none", "0s", None),
            ("zero without a unit", "0", None),
            ("empty", "", None),
            ("one second", "1s", Some(Duration::from_secs(1))),
        ] {
            let spec = read(
                json!({"routes": [{"name": "r", "condition": {"method": "GET"}, "timeout": text}]}),
            );
            assert_eq!(spec.expect("valid").routes[0].timeout, expected, "{name}");
        }
    }
}
