//! `kubernetes-api`, `kubernetes-version` and `gateway-api-crd`: what everything else stands on.

use super::{
    engine::{Category, Check, Problem, Verdict},
    facts::{Facts, name},
};
use crate::install::gateway;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

const MINIMUM: [u64; 3] = [1, 23, 0];
const ROUTES: [&str; 2] = [
    "httproutes.gateway.networking.k8s.io",
    "grpcroutes.gateway.networking.k8s.io",
];

pub fn api() -> Category<Facts> {
    Category {
        id: "kubernetes-api",
        checks: vec![
            Check::new("can initialize the client", "k8s-api", |facts| {
                Box::pin(client(facts))
            })
            .fatal(),
            Check::new("can query the Kubernetes API", "k8s-api", |facts| {
                Box::pin(query(facts))
            })
            .fatal()
            .informs(&["kubernetes-version"]),
        ],
    }
}

pub fn version() -> Category<Facts> {
    let description = "is running the minimum Kubernetes API version";
    Category {
        id: "kubernetes-version",
        checks: vec![Check::new(
            description,
            "k8s-version",
            |facts: &mut Facts| {
                Box::pin(async { recent(facts.server_version.as_deref().unwrap_or_default()) })
            },
        )],
    }
}

/// The section shows itself only when something is wrong. It warns, for an install can bring the
/// definitions along.
pub fn gateway_api() -> Category<Facts> {
    let description = "Gateway API CRDs are installed";
    Category {
        id: "gateway-api-crd",
        checks: vec![
            Check::new(description, "gateway-api-crd", |facts| {
                Box::pin(gateway_crds(facts))
            })
            .warning()
            .quiet(),
        ],
    }
}

async fn client(facts: &mut Facts) -> Verdict {
    match facts.client() {
        Err(Problem::Failed(error)) => Err(Problem::failed(format!(
            "error configuring Kubernetes API client: {error}"
        ))),
        _ => Ok(()),
    }
}

async fn query(facts: &mut Facts) -> Verdict {
    let info = facts.client()?.apiserver_version().await?;
    facts.server_version = Some(info.git_version);
    Ok(())
}

fn recent(version: &str) -> Verdict {
    let unknown = || Problem::failed(format!("unknown version string format [{version}]"));
    let digits = version.strip_prefix('v').unwrap_or(version);
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.');
    let digits = &digits[..end.unwrap_or(digits.len())];
    let parts: Vec<u64> = digits
        .split('.')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| unknown())?;
    let [major, minor, patch] = parts[..] else {
        return Err(unknown());
    };
    if [major, minor, patch] < MINIMUM {
        return Err(Problem::failed(format!(
            "Kubernetes is on version [{major}.{minor}.{patch}], but version [{}.{}.{}] or more recent is required",
            MINIMUM[0], MINIMUM[1], MINIMUM[2]
        )));
    }
    Ok(())
}

async fn gateway_crds(facts: &mut Facts) -> Verdict {
    let mut found = Vec::new();
    for route in ROUTES {
        found.extend(facts.named::<CustomResourceDefinition>(route).await?);
    }
    if found.is_empty() {
        return Err(Problem::failed(format!(
            "the Gateway API CRDs are missing; install them with\n\tkubectl apply --server-side -f https://github.com/kubernetes-sigs/gateway-api/releases/download/{}/standard-install.yaml",
            gateway::VERSION
        )));
    }
    let serves = |crd: &&CustomResourceDefinition| {
        let mut versions = crd.spec.versions.iter();
        !versions.any(|version| version.name == "v1" && version.served)
    };
    match found.iter().find(serves) {
        Some(crd) => Err(Problem::failed(format!(
            "the {} CRD is missing the v1 version, please upgrade to Gateway API v1.1.1 or later",
            name(crd)
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fake::{Fake, assert_says, now};
    use serde_json::{Value, json};

    #[test]
    fn old_and_odd_versions() {
        for (version, error) in [
            ("v1.34.1", ""),
            ("v1.23.0", ""),
            ("v1.30.2-gke.7", ""),
            ("v1.33.4+k3s1", ""),
            (
                "v1.22.17",
                "Kubernetes is on version [1.22.17], but version [1.23.0] or more recent is required",
            ),
            ("", "unknown version string format []"),
            ("v1.x", "unknown version string format [v1.x]"),
        ] {
            let expected = if error.is_empty() {
                Ok(())
            } else {
                Err(Problem::failed(error))
            };
            assert_eq!(recent(version), expected, "{version}");
        }
    }

    #[tokio::test]
    async fn the_client() {
        let mut facts = Facts::new(
            Err("no kubeconfig".to_owned()),
            crate::check::facts::Settings::default(),
            now(),
        );
        let error = "error configuring Kubernetes API client: no kubeconfig";
        assert_says(&api(), "can initialize the client", &mut facts, error).await;
        assert_says(
            &api(),
            "can query the Kubernetes API",
            &mut facts,
            "no kubeconfig",
        )
        .await;
        let mut facts = Fake::of(vec![]).facts();
        assert_says(&api(), "can initialize the client", &mut facts, "").await;
        assert_says(&api(), "can query the Kubernetes API", &mut facts, "").await;
        assert_says(
            &version(),
            "is running the minimum Kubernetes API version",
            &mut facts,
            "",
        )
        .await;
    }

    fn route(version: &str) -> Value {
        json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
            "metadata": {"name": ROUTES[0]},
            "spec": {"group": "g", "scope": "Namespaced", "names": {"kind": "K", "plural": "p"},
                "versions": [{"name": version, "served": true, "storage": true}]}})
    }

    #[tokio::test]
    async fn the_gateway_api() {
        let outdated = "the httproutes.gateway.networking.k8s.io CRD is missing the v1 version, please upgrade to Gateway API v1.1.1 or later";
        for (objects, error) in [(vec![route("v1")], ""), (vec![route("v1beta1")], outdated)] {
            let mut facts = Fake::of(objects).facts();
            assert_says(
                &gateway_api(),
                "Gateway API CRDs are installed",
                &mut facts,
                error,
            )
            .await;
        }
        let mut facts = Fake::of(vec![]).facts();
        let missing = crate::check::fake::verdict(
            &gateway_api(),
            "Gateway API CRDs are installed",
            &mut facts,
        )
        .await;
        assert!(
            matches!(missing, Err(Problem::Failed(error)) if error.starts_with("the Gateway API CRDs are missing"))
        );
    }
}
