//! Rules of ServiceProfiles. Decoding is strict: a field nobody reads is a mistake.

use linkerd_core::duration;
use linkerd_k8s::admission::{Handler, Review, Verdict};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

/// Reviews ServiceProfiles.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceProfileValidator;

impl Handler for ServiceProfileValidator {
    async fn review(&self, review: Review) -> Verdict {
        match validate(&review.object) {
            Ok(()) => Verdict::Allow,
            Err(message) => Verdict::Deny { code: 400, message },
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    #[serde(default, rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(default, rename = "kind")]
    _kind: Option<String>,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Spec {
    routes: Option<Vec<Option<Route>>>,
    retry_budget: Option<RetryBudget>,
    #[serde(rename = "dstOverrides")]
    _dst_overrides: Option<Vec<Option<Override>>>,
    #[serde(rename = "opaquePorts")]
    _opaque_ports: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Route {
    #[serde(default)]
    name: String,
    condition: Option<RequestMatch>,
    response_classes: Option<Vec<Option<ResponseClass>>>,
    #[serde(default, rename = "isRetryable")]
    _is_retryable: Option<bool>,
    #[serde(default)]
    timeout: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RequestMatch {
    all: Option<Vec<Option<RequestMatch>>>,
    any: Option<Vec<Option<RequestMatch>>>,
    not: Option<Box<RequestMatch>>,
    #[serde(default)]
    path_regex: String,
    #[serde(default)]
    method: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResponseClass {
    condition: Option<ResponseMatch>,
    #[serde(default, rename = "isFailure")]
    _is_failure: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResponseMatch {
    all: Option<Vec<Option<ResponseMatch>>>,
    any: Option<Vec<Option<ResponseMatch>>>,
    not: Option<Box<ResponseMatch>>,
    status: Option<Range>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    #[serde(default)]
    min: u32,
    #[serde(default)]
    max: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RetryBudget {
    #[serde(default)]
    retry_ratio: f32,
    #[serde(default, rename = "minRetriesPerSecond")]
    _min_retries_per_second: u32,
    #[serde(default)]
    ttl: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    #[serde(default, rename = "authority")]
    _authority: String,
    #[serde(default, rename = "weight")]
    _weight: Value,
}

/// Says what is wrong with a ServiceProfile.
pub fn validate(object: &Value) -> Result<(), String> {
    let profile: Profile = serde_json::from_value(object.clone())
        .map_err(|error| format!("failed to validate ServiceProfile: {error}"))?;
    let name = &profile.metadata.name;
    check(&profile).map_err(|reason| format!("ServiceProfile \"{name}\" {reason}"))
}

fn check(profile: &Profile) -> Result<(), String> {
    subdomain(&profile.metadata.name).map_err(|reason| format!("has invalid name: {reason}"))?;
    for route in profile.spec.routes.iter().flatten() {
        let route = route.as_ref().ok_or("has a null route")?;
        if route.name.is_empty() {
            return Err("has a route with no name".to_owned());
        }
        if let Some(timeout) = route
            .timeout
            .as_deref()
            .filter(|timeout| !timeout.is_empty())
        {
            duration::parse(timeout)
                .map_err(|error| format!("has a route with an invalid timeout: {error}"))?;
        }
        let condition = route
            .condition
            .as_ref()
            .ok_or("has a route with no condition")?;
        request(condition)
            .map_err(|reason| format!("has a route with an invalid condition: {reason}"))?;
        for class in route.response_classes.iter().flatten() {
            let class = class.as_ref().ok_or("has a null response class")?;
            let condition = class
                .condition
                .as_ref()
                .ok_or("has a response class with no condition")?;
            response(condition).map_err(|reason| {
                format!("has a response class with an invalid condition: {reason}")
            })?;
        }
    }
    if let Some(budget) = &profile.spec.retry_budget {
        if budget.retry_ratio < 0.0 {
            return Err(format!(
                "RetryBudget RetryRatio must be non-negative: {:.6}",
                budget.retry_ratio
            ));
        }
        if budget.ttl.is_empty() {
            return Err("RetryBudget missing TTL field".to_owned());
        }
        duration::parse(&budget.ttl).map_err(|error| format!("RetryBudget: {error}"))?;
    }
    Ok(())
}

fn subdomain(name: &str) -> Result<(), String> {
    let label = |label: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(inside)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 253 {
        return Err("must be no more than 253 characters".to_owned());
    }
    if !name.split('.').all(label) {
        return Err("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character".to_owned());
    }
    Ok(())
}

/// The children of `all` or `any`, none of which may be null.
fn children<'m, M>(kind: &str, list: &'m Option<Vec<Option<M>>>) -> Result<Vec<&'m M>, String> {
    let children = list.iter().flatten();
    children
        .map(|child| {
            child
                .as_ref()
                .ok_or_else(|| format!("null condition \"{kind}\""))
        })
        .collect()
}

fn request(condition: &RequestMatch) -> Result<(), String> {
    for child in children("all", &condition.all)?
        .into_iter()
        .chain(children("any", &condition.any)?)
    {
        request(child)?;
    }
    if let Some(not) = &condition.not {
        request(not)?;
    }
    let set = condition.all.is_some()
        || condition.any.is_some()
        || condition.not.is_some()
        || !condition.path_regex.is_empty()
        || !condition.method.is_empty();
    if set {
        Ok(())
    } else {
        Err("A request match must have a field set".to_owned())
    }
}

fn response(condition: &ResponseMatch) -> Result<(), String> {
    for child in children("all", &condition.all)?
        .into_iter()
        .chain(children("any", &condition.any)?)
    {
        response(child)?;
    }
    if let Some(not) = &condition.not {
        response(not)?;
    }
    if let Some(range) = &condition.status {
        let outside = |bound: u32| bound != 0 && !(100..=599).contains(&bound);
        if outside(range.min) {
            return Err("Range minimum must be between 100 and 599, inclusive".to_owned());
        }
        if outside(range.max) {
            return Err("Range maximum must be between 100 and 599, inclusive".to_owned());
        }
        if range.max != 0 && range.min != 0 && range.max < range.min {
            return Err("Range maximum cannot be smaller than minimum".to_owned());
        }
    }
    let set = condition.all.is_some()
        || condition.any.is_some()
        || condition.not.is_some()
        || condition.status.is_some();
    if set {
        Ok(())
    } else {
        Err("A response match must have a field set".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules() {
        let route = |fields: Value| {
            let mut route =
                json!({"name": "GET /", "condition": {"method": "GET", "pathRegex": "/"}});
            for (name, value) in fields.as_object().expect("fields") {
                route[name] = value.clone();
            }
            json!({"routes": [route]})
        };
        let class =
            |condition: Value| route(json!({"responseClasses": [{"condition": condition}]}));
        let budget = |fields: Value| json!({"retryBudget": fields});
        let good = "web.shop.svc.cluster.local";
        for (name, profile, spec, expected) in [
            ("empty", good, json!({}), ""),
            (
                "whole",
                good,
                route(
                    json!({"isRetryable": true, "timeout": "1.5s", "responseClasses": [{"condition": {"status": {"min": 500, "max": 599}}, "isFailure": true}]}),
                ),
                "",
            ),
            (
                "overrides",
                good,
                json!({"dstOverrides": [{"authority": "a.b.svc.cluster.local:80", "weight": "500m"}], "opaquePorts": ["80"]}),
                "",
            ),
            (
                "budget",
                good,
                budget(json!({"retryRatio": 0.2, "minRetriesPerSecond": 10, "ttl": "10s"})),
                "",
            ),
            (
                "unknown field",
                good,
                json!({"foo": 1}),
                "failed to validate ServiceProfile: unknown field `foo`",
            ),
            (
                "unknown field inside",
                good,
                route(json!({"retryable": true})),
                "failed to validate ServiceProfile: unknown field `retryable`",
            ),
            (
                "wrong type",
                good,
                json!({"routes": "x"}),
                "failed to validate ServiceProfile: ",
            ),
            (
                "not as a list",
                good,
                route(json!({"condition": {"not": [{"method": "GET"}]}})),
                "failed to validate ServiceProfile: ",
            ),
            (
                "name",
                "Web_1",
                json!({}),
                "ServiceProfile \"Web_1\" has invalid name: ",
            ),
            (
                "null route",
                good,
                json!({"routes": [null]}),
                "has a null route",
            ),
            (
                "no name",
                good,
                route(json!({"name": ""})),
                "has a route with no name",
            ),
            (
                "no condition",
                good,
                route(json!({"condition": null})),
                "has a route with no condition",
            ),
            (
                "timeout",
                good,
                route(json!({"timeout": "fast"})),
                "has a route with an invalid timeout: ",
            ),
            (
                "empty condition",
                good,
                route(json!({"condition": {}})),
                "has a route with an invalid condition: A request match must have a field set",
            ),
            (
                "empty condition below",
                good,
                route(json!({"condition": {"all": [{}]}})),
                "A request match must have a field set",
            ),
            (
                "empty condition in not",
                good,
                route(json!({"condition": {"not": {}}})),
                "A request match must have a field set",
            ),
            (
                "null in all",
                good,
                route(json!({"condition": {"all": [null]}})),
                "null condition \"all\"",
            ),
            (
                "null in any",
                good,
                route(json!({"condition": {"any": [null]}})),
                "null condition \"any\"",
            ),
            (
                "null class",
                good,
                route(json!({"responseClasses": [null]})),
                "has a null response class",
            ),
            (
                "class without condition",
                good,
                route(json!({"responseClasses": [{}]})),
                "has a response class with no condition",
            ),
            (
                "empty class condition",
                good,
                class(json!({})),
                "A response match must have a field set",
            ),
            (
                "minimum",
                good,
                class(json!({"status": {"min": 99}})),
                "Range minimum must be between 100 and 599, inclusive",
            ),
            (
                "maximum",
                good,
                class(json!({"status": {"max": 600}})),
                "Range maximum must be between 100 and 599, inclusive",
            ),
            (
                "backwards",
                good,
                class(json!({"status": {"min": 500, "max": 400}})),
                "Range maximum cannot be smaller than minimum",
            ),
            (
                "ratio",
                good,
                budget(json!({"retryRatio": -0.5, "ttl": "1s"})),
                "RetryBudget RetryRatio must be non-negative: -0.5",
            ),
            (
                "no ttl",
                good,
                budget(json!({"retryRatio": 0.5})),
                "RetryBudget missing TTL field",
            ),
            (
                "ttl",
                good,
                budget(json!({"retryRatio": 0.5, "ttl": "x"})),
                "RetryBudget: ",
            ),
        ] {
            let object = json!({
                "apiVersion": "linkerd.io/v1alpha2",
                "kind": "ServiceProfile",
                "metadata": {"name": profile, "namespace": "shop", "labels": {"a": "b"}},
                "spec": spec,
            });
            let found = validate(&object).err().unwrap_or_default();
            assert!(
                found.contains(expected) && found.is_empty() == expected.is_empty(),
                "{name}: {found:?}"
            );
        }
    }
}
