//! The embedded Helm charts, rendered as Helm renders them: the same templates, values and
//! functions, so that both installers give the same objects.

mod functions;

use crate::yaml;
use gotmpl::{FuncMap, Template, TemplateError, Value as Go};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

include!(concat!(env!("OUT_DIR"), "/charts.rs"));

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no chart {0:?}")]
    NoChart(String),
    #[error("{file} of the chart is not YAML")]
    Yaml {
        file: String,
        source: serde_yaml::Error,
    },
    #[error("cannot parse template {file}: {error}")]
    Parse { file: String, error: TemplateError },
    /// A template called `fail` or `required`: the message is for the user.
    #[error("{0}")]
    Refused(String),
    #[error("cannot render template {file}: {error}")]
    Render { file: String, error: TemplateError },
}

/// A chart of this binary.
#[derive(Clone, Copy, Debug)]
pub struct Chart {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
}

/// Where and by whom a chart is rendered.
#[derive(Clone, Debug)]
pub struct Release<'a> {
    pub namespace: &'a str,
    /// `CLI`, or `Helm` to see what Helm would render.
    pub service: &'a str,
}

impl Chart {
    pub fn named(name: &str) -> Result<Self, Error> {
        let found = CHARTS.iter().find(|(chart, _)| *chart == name);
        found
            .map(|(name, files)| Self { name, files })
            .ok_or_else(|| Error::NoChart(name.to_owned()))
    }

    pub fn file(&self, path: &str) -> Option<&'static str> {
        self.files
            .iter()
            .find(|(name, _)| *name == path)
            .map(|(_, text)| *text)
    }

    /// Templates that give objects, by path below `templates/`, sorted.
    pub fn templates(&self) -> Vec<&'static str> {
        self.files
            .iter()
            .filter_map(|(path, _)| path.strip_prefix("templates/"))
            .filter(|file| file.ends_with(".yaml"))
            .collect()
    }

    /// A values file of the chart, `values.yaml` or `values-ha.yaml`.
    pub fn values(&self, file: &str) -> Result<Value, Error> {
        let text = self.file(file).unwrap_or_default();
        let values = yaml::parse(text).map_err(|source| Error::Yaml {
            file: file.to_owned(),
            source,
        })?;
        Ok(if values.is_null() {
            Value::Object(Map::new())
        } else {
            values
        })
    }

    /// Renders the templates named, in that order; the result is YAML documents per template.
    pub fn render(
        &self,
        release: &Release<'_>,
        values: &Value,
        order: &[&str],
    ) -> Result<Vec<(String, String)>, Error> {
        let chart = self.values("Chart.yaml")?;
        let version = match release.service {
            "CLI" => Go::String(UNPUBLISHED.into()),
            _ => string(&chart, "version"),
        };
        let base = format!("{}/templates", self.name);
        let data = go_map([
            ("Values", to_go(values)),
            (
                "Release",
                go_map([
                    ("Name", Go::String(self.name.into())),
                    ("Namespace", Go::String(release.namespace.into())),
                    ("Service", Go::String(release.service.into())),
                    ("IsInstall", Go::Bool(true)),
                ]),
            ),
            (
                "Chart",
                go_map([
                    ("Name", string(&chart, "name")),
                    ("Version", version),
                    ("AppVersion", string(&chart, "appVersion")),
                ]),
            ),
            (
                "Template",
                go_map([("BasePath", Go::String(base.as_str().into()))]),
            ),
            ("Files", self.go_files()),
        ]);
        let refused: Arc<OnceLock<String>> = Arc::default();
        let engine: Arc<OnceLock<Template>> = Arc::default();
        let mut template = Template::new(self.name)
            .funcs(functions::all(&refused))
            .funcs(self.includes(&engine));
        for (path, text) in self.files {
            let Some(file) = path
                .strip_prefix("templates/")
                .filter(|file| !file.ends_with(".txt"))
            else {
                continue;
            };
            // A file is a template of its own name, so that `include` finds it by path.
            let wrapped = format!("{{{{define \"{base}/{file}\"}}}}{text}{{{{end}}}}");
            let source = if file.ends_with(".tpl") {
                (*text).to_owned()
            } else {
                wrapped
            };
            template = template.parse(&source).map_err(|error| Error::Parse {
                file: file.to_owned(),
                error,
            })?;
        }
        let template = engine.get_or_init(|| template);
        order
            .iter()
            .map(|file| {
                let rendered =
                    template.execute_template_to_string(&format!("{base}/{file}"), &data);
                let rendered = rendered.map_err(|error| match refused.get() {
                    Some(message) => Error::Refused(message.clone()),
                    None => Error::Render {
                        file: (*file).to_owned(),
                        error,
                    },
                })?;
                Ok(((*file).to_owned(), rendered))
            })
            .collect()
    }

    /// `include` renders another template of the chart; it needs the parsed chart itself.
    fn includes(&self, engine: &Arc<OnceLock<Template>>) -> FuncMap {
        let engine = Arc::downgrade(engine);
        let include: gotmpl::ValueFunc = Arc::new(move |args: &[Go]| {
            let [name, data] = args else {
                return Err(TemplateError::Exec(
                    "include takes a name and data".to_owned(),
                ));
            };
            let engine = engine.upgrade();
            let engine = engine.as_ref().and_then(|engine| engine.get());
            let engine = engine.ok_or_else(|| {
                TemplateError::Exec("include before the chart is parsed".to_owned())
            })?;
            let rendered =
                engine.execute_template_to_string(name.as_str().unwrap_or_default(), data)?;
            Ok(Go::String(rendered.into()))
        });
        FuncMap::from([
            ("include".to_owned(), include),
            ("tpl".to_owned(), Arc::new(nested) as gotmpl::ValueFunc),
        ])
    }

    /// Files outside `templates/`, by path.
    fn go_files(&self) -> Go {
        let files = self
            .files
            .iter()
            .filter(|(path, _)| !path.starts_with("templates/"));
        let files: BTreeMap<Arc<str>, Go> = files
            .map(|(path, text)| (Arc::from(*path), Go::String((*text).into())))
            .collect();
        Go::Map(Arc::new(files))
    }
}

/// `tpl`: a value that is itself a template.
fn nested(args: &[Go]) -> Result<Go, TemplateError> {
    let [text, data] = args else {
        return Err(TemplateError::Exec("tpl takes a text and data".to_owned()));
    };
    let template = Template::new("tpl")
        .funcs(functions::all(&Arc::default()))
        .parse(text.as_str().unwrap_or_default())?;
    Ok(Go::String(template.execute_to_string(data)?.into()))
}

/// The version of a chart that no Helm repository published.
const UNPUBLISHED: &str = "0.0.0-undefined";

fn string(map: &Value, key: &str) -> Go {
    map.get(key).map_or(Go::Nil, to_go)
}

fn go_map<const N: usize>(entries: [(&str, Go); N]) -> Go {
    Go::Map(Arc::new(
        entries
            .into_iter()
            .map(|(key, value)| (Arc::from(key), value))
            .collect(),
    ))
}

/// Lays `over` on `under`; `null` deletes a key.
pub fn overlay(under: &mut Value, over: Value) {
    let (Value::Object(under), Value::Object(over)) = (under, over) else {
        return;
    };
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (_, Value::Null) => {
                under.shift_remove(&key);
            }
            (Some(existing @ Value::Object(_)), value @ Value::Object(_)) => {
                overlay(existing, value)
            }
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

pub(crate) fn to_go(value: &Value) -> Go {
    match value {
        Value::Null => Go::Nil,
        Value::Bool(value) => Go::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Go::Int(int),
            (None, Some(float)) => Go::Float(float),
            (None, None) => Go::Nil,
        },
        Value::String(text) => Go::String(text.as_str().into()),
        Value::Array(items) => Go::List(items.iter().map(to_go).collect()),
        Value::Object(map) => Go::Map(Arc::new(
            map.iter()
                .map(|(key, value)| (Arc::from(key.as_str()), to_go(value)))
                .collect(),
        )),
    }
}

pub(crate) fn from_go(value: &Go) -> Value {
    match value {
        Go::Nil | Go::Function(_) => Value::Null,
        Go::Bool(value) => Value::from(*value),
        Go::Int(int) => Value::from(*int),
        Go::Uint(int) => Value::from(*int),
        Go::Float(float) => Value::from(*float),
        Go::String(text) => Value::from(&**text),
        Go::List(items) => items.iter().map(from_go).collect(),
        Go::Map(map) => Value::Object(
            map.iter()
                .map(|(key, value)| (key.to_string(), from_go(value)))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Every template of both charts renders to YAML documents.
    #[test]
    fn charts_render() {
        for (chart, values) in [
            ("linkerd-crds", json!({})),
            ("linkerd2-cni", json!({})),
            (
                "linkerd-control-plane",
                json!({"identityTrustAnchorsPEM": "anchors", "identity": {"issuer": {"tls": {"crtPEM": "c", "keyPEM": "k"}}}}),
            ),
        ] {
            let chart = Chart::named(chart).expect("a chart");
            let mut merged = chart.values("values.yaml").expect("values");
            overlay(&mut merged, values);
            let release = Release {
                namespace: "linkerd",
                service: "CLI",
            };
            let order: Vec<&str> = chart
                .files
                .iter()
                .filter_map(|(path, _)| path.strip_prefix("templates/"))
                .collect();
            let order: Vec<&str> = order
                .into_iter()
                .filter(|file| file.ends_with(".yaml"))
                .collect();
            for (file, text) in chart.render(&release, &merged, &order).expect("renders") {
                for document in text.split("\n---\n") {
                    let value = yaml::parse(document)
                        .unwrap_or_else(|error| panic!("{file}: {error}\n{document}"));
                    assert!(
                        value.is_null() || value["kind"].is_string(),
                        "{file}: {document}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_refusal_is_the_charts_own_message() {
        let chart = Chart::named("linkerd-control-plane").expect("a chart");
        let values = chart.values("values.yaml").expect("values");
        let release = Release {
            namespace: "linkerd",
            service: "CLI",
        };
        let error = chart
            .render(&release, &values, &["identity.yaml"])
            .expect_err("no issuer");
        let expected =
            "Please provide the identity issuer certificate (identity.issuer.tls.crtPEM)";
        assert_eq!(error.to_string(), expected);
    }
}
