//! Definitions of our kinds, and the chart templates made of them.
//!
//! `linkerd-crds` writes [`templates`] into `charts/linkerd-crds/templates`; a test keeps the
//! files equal to what this code says.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::{external_workload, policy, service_profile};

/// A template of the chart: its path below `templates/` and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub path: String,
    pub text: String,
}

/// Every definition we install, in the order they are installed.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut all = policy::crds();
    all.push(service_profile::definition());
    all.push(external_workload::definition());
    all
}

/// One chart template per definition.
pub fn templates() -> Vec<Template> {
    all().iter().map(template).collect()
}

fn template(definition: &CustomResourceDefinition) -> Template {
    let spec = &definition.spec;
    let path = format!("{}/{}.yaml", spec.group, spec.names.plural);
    let mut object = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", spec.names.plural, spec.group)},
        "spec": spec,
    });
    tidy(&mut object);
    let yaml = serde_yaml::to_string(&object).expect("a definition is plain data");
    // The lines Helm fills in cannot come out of a YAML writer.
    let text = yaml.replacen("\nspec:\n", METADATA, 1);
    Template {
        path,
        text: format!("---\n{text}"),
    }
}

const METADATA: &str = r#"
  annotations:
    linkerd.io/created-by: {{ .Values.cliVersion | default (printf "linkerd/helm %s" .Chart.AppVersion) }}
  labels:
    helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
    linkerd.io/control-plane-ns: {{ .Release.Namespace }}
spec:
"#;

/// Drops what a generator writes and a reader does not need.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// The schema of `.spec`, for versions that differ from the newest in a detail.
pub(crate) fn spec_schema(version: &mut CustomResourceDefinitionVersion) -> &mut JSONSchemaProps {
    let schema = version.schema.get_or_insert_default();
    let root = schema.open_api_v3_schema.get_or_insert_default();
    root.properties
        .get_or_insert_default()
        .entry("spec".to_owned())
        .or_default()
}

// === Schemas that cannot be derived ===

/// Structural schemas cannot refer to themselves: matches nest as free objects.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

pub(crate) fn list_of_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    })
}

pub(crate) fn integer(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer"})
}

pub(crate) fn number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "number", "format": "float"})
}

pub(crate) fn int_or_string(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true})
}

pub(crate) fn port_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535})
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn chart_templates_say_what_the_code_says() {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/linkerd-crds/templates");
        let mut written = BTreeSet::new();
        for template in templates() {
            let path = root.join(&template.path);
            let text = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                text == template.text,
                "{} differs from the code: run `cargo xtask crds`",
                path.display()
            );
            written.insert(path);
        }
        let groups: BTreeSet<_> = written
            .iter()
            .filter_map(|path| path.parent())
            .map(Path::to_path_buf)
            .collect();
        for group in groups {
            for file in fs::read_dir(group).expect("a folder per group") {
                let path = file.expect("readable").path();
                assert!(
                    written.contains(&path),
                    "{} belongs to no kind",
                    path.display()
                );
            }
        }
    }

    #[test]
    fn every_version_is_served_and_one_is_stored() {
        for definition in all() {
            let versions = &definition.spec.versions;
            let name = &definition.spec.names.plural;
            assert!(versions.iter().all(|version| version.served), "{name}");
            assert_eq!(
                versions.iter().filter(|version| version.storage).count(),
                1,
                "{name}"
            );
            assert_eq!(definition.spec.scope, "Namespaced", "{name}");
        }
    }
}
