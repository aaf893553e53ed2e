//! `linkerd-extension-checks`: namespaces of extensions.

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::{Facts, name},
};
use k8s_openapi::api::core::v1::Namespace;
use linkerd_k8s::labels::EXTENSION;
use std::collections::BTreeMap;

pub fn category() -> Category<Facts> {
    let description = "namespace configuration for extensions";
    Category {
        id: "linkerd-extension-checks",
        checks: vec![
            Check::new(description, "l5d-extension-namespaces", |facts| {
                Box::pin(namespaces(facts))
            })
            .warning(),
        ],
    }
}

/// Extensions and the namespaces that claim them.
pub async fn installed(facts: &Facts) -> Result<BTreeMap<String, Vec<String>>, Problem> {
    let mut extensions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for namespace in facts.all::<Namespace>(EXTENSION).await? {
        let label = namespace
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(EXTENSION));
        if let Some(label) = label {
            let place = name(&namespace).to_owned();
            extensions.entry(label.clone()).or_default().push(place);
        }
    }
    Ok(extensions)
}

async fn namespaces(facts: &mut Facts) -> Verdict {
    let mut error = String::new();
    for (extension, namespaces) in installed(facts).await? {
        if namespaces.len() < 2 {
            continue;
        }
        error.push_str(&format!(
            "\n\t* label \"{EXTENSION}={extension}\" is present on more than one namespace:"
        ));
        for namespace in namespaces {
            error.push_str(&format!("\n\t\t* {namespace}"));
        }
    }
    if error.is_empty() {
        return Ok(());
    }
    Err(Problem::failed(format!(
        "some extensions have invalid configuration{error}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says};
    use serde_json::{Value, json};

    fn namespace(name: &str, extension: &str) -> Value {
        json!({"kind": "Namespace", "apiVersion": "v1",
            "metadata": {"name": name, "labels": {EXTENSION: extension}}})
    }

    #[tokio::test]
    async fn an_extension_has_one_namespace() {
        let one = vec![
            namespace("linkerd-viz", "viz"),
            namespace("mc", "multicluster"),
        ];
        let mut two = one.clone();
        two.push(namespace("other", "viz"));
        let error = "some extensions have invalid configuration\n\t* label \"linkerd.io/extension=viz\" is present on more than one namespace:\n\t\t* linkerd-viz\n\t\t* other";
        for (objects, error) in [(vec![], ""), (one, ""), (two, error)] {
            let mut facts = Fake::of(objects).facts();
            assert_says(
                &category(),
                "namespace configuration for extensions",
                &mut facts,
                error,
            )
            .await;
        }
    }
}
