//! Label selectors, compiled once and matched often.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// All requirements must hold; no requirement selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Requirement {
    Is(String, String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid label selector operator")]
pub struct UnknownOperator(pub String);

impl Selector {
    pub fn compile(selector: &LabelSelector) -> Result<Self, UnknownOperator> {
        let equal = selector.match_labels.iter().flatten();
        let mut requirements: Vec<_> = equal
            .map(|(key, value)| Requirement::Is(key.clone(), value.clone()))
            .collect();
        for expression in selector.match_expressions.iter().flatten() {
            let key = expression.key.clone();
            let values = expression.values.clone().unwrap_or_default();
            requirements.push(match expression.operator.as_str() {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::DoesNotExist(key),
                other => return Err(UnknownOperator(other.to_owned())),
            });
        }
        Ok(Self(requirements))
    }

    /// The plain form Services have.
    pub fn from_labels(labels: &BTreeMap<String, String>) -> Self {
        let equal = labels.iter();
        Self(
            equal
                .map(|(key, value)| Requirement::Is(key.clone(), value.clone()))
                .collect(),
        )
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Matches against labels held in whatever form the caller has them.
    pub fn matches_with<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::Is(key, value) => label(key) == Some(value),
            Requirement::In(key, values) => {
                label(key).is_some_and(|found| values.iter().any(|value| value == found))
            }
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|found| values.iter().all(|value| value != found))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::DoesNotExist(key) => label(key).is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selects() {
        let labels: BTreeMap<String, String> = [("app", "web"), ("tier", "front")]
            .map(|(k, v)| (k.into(), v.into()))
            .into();
        let expression = |operator: &str, key: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (name, selector, expected) in [
            ("empty selects all", json!({}), true),
            ("equal", json!({"matchLabels": {"app": "web"}}), true),
            (
                "one of two differs",
                json!({"matchLabels": {"app": "web", "tier": "back"}}),
                false,
            ),
            ("in", expression("In", "app", &["api", "web"]), true),
            ("in, other value", expression("In", "app", &["api"]), false),
            ("in, absent key", expression("In", "nope", &["web"]), false),
            ("not in", expression("NotIn", "app", &["api"]), true),
            (
                "not in, same value",
                expression("NotIn", "app", &["web"]),
                false,
            ),
            (
                "not in, absent key",
                expression("NotIn", "nope", &["web"]),
                true,
            ),
            ("exists", expression("Exists", "app", &[]), true),
            ("exists, absent", expression("Exists", "nope", &[]), false),
            (
                "does not exist",
                expression("DoesNotExist", "nope", &[]),
                true,
            ),
            (
                "does not exist, present",
                expression("DoesNotExist", "app", &[]),
                false,
            ),
        ] {
            let selector: LabelSelector = serde_json::from_value(selector).expect("selector");
            let selector = Selector::compile(&selector).expect("known operators");
            assert_eq!(selector.matches(&labels), expected, "{name}");
        }
    }

    #[test]
    fn unknown_operators_are_refused() {
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "Like"}]});
        let selector = serde_json::from_value(selector).expect("selector");
        assert_eq!(
            Selector::compile(&selector),
            Err(UnknownOperator("Like".into()))
        );
    }
}
