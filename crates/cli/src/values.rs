//! Values of a chart as users give them: `-f` files, `--set`, `--set-string` and `--set-file`, laid
//! over one another as Helm does.

pub mod set;

use crate::{chart::overlay, commands::extension::distance, fetch, yaml};
use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value};

/// Value overrides, as Helm takes them.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Chart values")]
pub struct Overrides {
    /// Set a chart value: key=value, several separated by commas; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The same, the value always being a text
    #[arg(long, value_name = "KEY=VALUE")]
    pub set_string: Vec<String>,
    /// Set a chart value to the content of a file
    #[arg(long, value_name = "KEY=FILE")]
    pub set_file: Vec<String>,
    /// Read chart values from a YAML file, an https URL or stdin (-); may be repeated
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    pub values: Vec<String>,
}

impl Overrides {
    /// All of them as one tree; `null` means that a key is to be deleted.
    pub async fn read(&self) -> Result<Value> {
        let mut tree = Value::Object(Map::new());
        for file in &self.values {
            let text = fetch::text(file).await?;
            let values = yaml::parse(&text).with_context(|| format!("{file} is not YAML"))?;
            match values {
                Value::Null => {}
                Value::Object(_) => merge(&mut tree, values),
                _ => bail!("{file} holds no values: a YAML mapping is expected"),
            }
        }
        for text in &self.set {
            set::apply(&mut tree, text, set::Kind::Typed)
                .with_context(|| format!("failed parsing --set data {text:?}"))?;
        }
        for text in &self.set_string {
            set::apply(&mut tree, text, set::Kind::Text)
                .with_context(|| format!("failed parsing --set-string data {text:?}"))?;
        }
        for text in &self.set_file {
            for (key, file) in set::pairs(text)
                .with_context(|| format!("failed parsing --set-file data {text:?}"))?
            {
                let content = fetch::text(&file).await?;
                set::put_text(&mut tree, &key, content)
                    .with_context(|| format!("failed parsing --set-file data {text:?}"))?;
            }
        }
        Ok(tree)
    }
}

/// Like [`overlay`], but a `null` stays, so that a later layer still deletes.
fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                match under.get_mut(&key) {
                    Some(existing @ Value::Object(_)) if value.is_object() => {
                        merge(existing, value)
                    }
                    _ => {
                        under.insert(key, value);
                    }
                }
            }
        }
        (under, over) => *under = over,
    }
}

/// Writes a value at a dotted path, making the mappings on the way.
pub fn put(values: &mut Value, path: &str, value: impl Into<Value>) {
    let mut at = values;
    for key in path.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[key];
    }
    *at = value.into();
}

/// The value at a dotted path.
pub fn get<'a>(values: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(values, |at, key| &at[key])
}

/// The text at a dotted path; empty when there is none.
pub fn text<'a>(values: &'a Value, path: &str) -> &'a str {
    get(values, path).as_str().unwrap_or_default()
}

/// What of `values` differs from `defaults`: only the leaves that do.
pub fn difference(defaults: &Value, values: &Value) -> Option<Value> {
    match (defaults, values) {
        (Value::Object(defaults), Value::Object(values)) => {
            let mut out = Map::new();
            for (key, value) in values {
                match defaults.get(key) {
                    Some(default) => {
                        out.extend(difference(default, value).map(|value| (key.clone(), value)));
                    }
                    None => {
                        out.insert(key.clone(), value.clone());
                    }
                }
            }
            for key in defaults.keys().filter(|key| !values.contains_key(*key)) {
                out.insert(key.clone(), Value::Null);
            }
            (!out.is_empty()).then_some(Value::Object(out))
        }
        (defaults, values) => (defaults != values).then(|| values.clone()),
    }
}

/// A key that no template reads, by its dotted path, and the nearest one that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    pub path: String,
    pub nearest: Option<String>,
}

/// Keys that the charts read, or that older releases had, without a default.
const OPTIONAL: [&str; 15] = [
    "global",
    "stage",
    "configs",
    "partials",
    "enablePSP",
    "enableHttpRoutes",
    "enableTlsRoutes",
    "enableTcpRoutes",
    "additionalArgs",
    "additionalEnv",
    "experimentalArgs",
    "experimentalEnv",
    "proxy.cores",
    "proxy.runtime.workers.maximum",
    "proxy.runtime.workers.maximumCPURatio",
];
/// Mappings whose keys are the user's.
const OPEN: [&str; 11] = [
    "deploymentStrategy",
    "updateStrategy",
    "nodeSelector",
    "namespaceSelector",
    "objectSelector",
    "securityContext",
    "meshedHttp2ClientProtobuf",
    "labels",
    "inbound",
    "outbound",
    "resources",
];

/// Keys of the overrides that no template reads.
pub fn unknown_keys(defaults: &Value, overrides: &Value) -> Vec<UnknownKey> {
    let mut unknown = Vec::new();
    unknown_below("", defaults, overrides, &mut unknown);
    unknown
}

fn unknown_below(above: &str, defaults: &Value, overrides: &Value, unknown: &mut Vec<UnknownKey>) {
    let (Some(known), Some(given)) = (defaults.as_object(), overrides.as_object()) else {
        return;
    };
    for (key, value) in given {
        let path = format!("{above}{key}");
        match known.get(key) {
            // An empty mapping among the defaults takes any key.
            Some(Value::Object(below)) if below.is_empty() || OPEN.contains(&key.as_str()) => {}
            Some(below) => unknown_below(&format!("{path}."), below, value, unknown),
            None if OPTIONAL.contains(&key.as_str()) || OPTIONAL.contains(&path.as_str()) => {}
            None => {
                let near = known.keys().map(|name| (distance(name, key), name));
                let near = near.filter(|(edits, _)| *edits <= 3).min();
                unknown.push(UnknownKey {
                    path,
                    nearest: near.map(|(_, name)| format!("{above}{name}")),
                });
            }
        }
    }
}

/// Lays the user's tree over the chart's.
pub fn lay_over(values: &mut Value, overrides: Value) {
    overlay(values, overrides);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_difference_restores_the_values() {
        let defaults = json!({"a": 1, "b": {"c": "x", "d": [1]}, "gone": {"x": 1}});
        let values = json!({"a": 1, "b": {"c": "y", "d": [1, 2]}, "new": {"k": true}});
        let difference = difference(&defaults, &values).expect("they differ");
        assert_eq!(
            difference,
            json!({"b": {"c": "y", "d": [1, 2]}, "new": {"k": true}, "gone": null})
        );
        let mut restored = defaults.clone();
        lay_over(&mut restored, difference);
        assert_eq!(restored, values);
    }

    #[tokio::test]
    async fn later_layers_win_and_null_deletes() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("v.yaml");
        std::fs::write(&file, "a: {b: 1, c: 2}\nlist: [1]\nx: null\n").expect("ours");
        let overrides = Overrides {
            values: vec![file.display().to_string()],
            set: vec!["a.b=3,list={p,q}".to_owned(), "a.d=null".to_owned()],
            set_string: vec!["a.b=4".to_owned()],
            set_file: vec![format!("pem={}", file.display())],
        };
        let tree = overrides.read().await.expect("values");
        assert_eq!(tree["a"], json!({"b": "4", "c": 2, "d": null}));
        assert_eq!(tree["list"], json!(["p", "q"]));
        assert!(tree["pem"].as_str().expect("text").starts_with("a: {b"));
        let mut values = json!({"x": 1, "a": {"d": 5, "e": 6}});
        lay_over(&mut values, tree);
        assert!(values.get("x").is_none());
        assert_eq!(values["a"], json!({"b": "4", "c": 2, "e": 6}));
    }

    #[test]
    fn unknown_keys_are_found_at_every_depth() {
        let chart = crate::chart::Chart::named("linkerd-control-plane").expect("a chart");
        let defaults = chart.values("values.yaml").expect("values");
        for (set, expected) in [
            ("proxy.logLevel=debug", None),
            ("proxi.logLevel=debug", Some(("proxi", Some("proxy")))),
            (
                "proxy.logLevle=debug",
                Some(("proxy.logLevle", Some("proxy.logLevel"))),
            ),
            (
                "identity.issuer.tls.crtPem=x",
                Some((
                    "identity.issuer.tls.crtPem",
                    Some("identity.issuer.tls.crtPEM"),
                )),
            ),
            (
                "proxy.livenessProbe.timeoutSecond=2",
                Some((
                    "proxy.livenessProbe.timeoutSecond",
                    Some("proxy.livenessProbe.timeoutSeconds"),
                )),
            ),
            ("proxy.somethingElse=1", Some(("proxy.somethingElse", None))),
            ("podAnnotations.a=b,nodeSelector.disk=ssd", None),
            ("proxy.cores=2,proxy.runtime.workers.maximum=4", None),
            ("proxy.securityContext.runAsUser=1", None),
            ("proxy.inbound.server.http1.idle=1s", None),
            (
                "identityProxyResources.cores=1,heartbeat.additionalEnv[0].name=A",
                None,
            ),
            ("spValidator.experimentalEnv[0].name=A", None),
            ("policyController.additionalArgs[0]=--x", None),
            ("proxy.resources.gpu.limit=1", None),
            ("proxyInjector.objectSelector.matchLabels.a=b", None),
            ("stage=x,enablePSP=true", None),
        ] {
            let mut given = json!({});
            set::apply(&mut given, set, set::Kind::Typed).expect(set);
            let expected: Vec<UnknownKey> = expected
                .into_iter()
                .map(|(path, nearest)| UnknownKey {
                    path: path.to_owned(),
                    nearest: nearest.map(str::to_owned),
                })
                .collect();
            assert_eq!(unknown_keys(&defaults, &given), expected, "{set}");
        }
    }
}
