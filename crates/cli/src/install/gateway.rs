//! Who provides the Gateway API's definitions: nobody, this CLI, or someone else. Foreign ones are
//! never touched.

use crate::{cluster::Cluster, cluster::plain};
use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use linkerd_k8s::labels::CREATED_BY;

/// The release whose definitions we ship and point to.
pub const VERSION: &str = "v1.4.0";
const NEEDED: [&str; 2] = [
    "httproutes.gateway.networking.k8s.io",
    "grpcroutes.gateway.networking.k8s.io",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    Absent,
    Linkerd,
    External,
}

/// What the cluster has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub provider: Provider,
    /// A definition that does not serve `v1`.
    pub outdated: Option<String>,
}

pub async fn find(cluster: &Cluster) -> Result<Found> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let mut found = Vec::new();
    for name in NEEDED {
        if let Some(definition) = api.get_opt(name).await.map_err(plain)? {
            found.push(definition);
        }
    }
    Ok(judge(&found))
}

fn judge(definitions: &[CustomResourceDefinition]) -> Found {
    let ours = |definition: &CustomResourceDefinition| {
        let annotations = definition.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| annotations.contains_key(CREATED_BY))
    };
    let serves_v1 = |definition: &CustomResourceDefinition| {
        let mut versions = definition.spec.versions.iter();
        versions.any(|version| version.name == "v1" && version.served)
    };
    let provider = if definitions.is_empty() {
        Provider::Absent
    } else if definitions.iter().any(ours) {
        Provider::Linkerd
    } else {
        Provider::External
    };
    let outdated = definitions
        .iter()
        .filter(|_| provider == Provider::External);
    Found {
        provider,
        outdated: outdated
            .into_iter()
            .find(|definition| !serves_v1(definition))
            .and_then(|definition| definition.metadata.name.clone()),
    }
}

impl Found {
    /// What `installGatewayAPI` is when the user says nothing.
    pub fn default_install(&self) -> bool {
        self.provider == Provider::Linkerd
    }

    /// Whether rendering with or without the Gateway API fits the cluster.
    pub fn check(&self, install: bool) -> Result<()> {
        if let Some(name) = &self.outdated {
            anyhow::bail!(
                "the {name} CRD is missing the v1 version, please upgrade to Gateway API v1.1.1 or later"
            );
        }
        match (self.provider, install) {
            (Provider::Absent, false) => anyhow::bail!(
                "The Gateway API CRDs must be installed prior to installing Linkerd:\n\n  \
                 kubectl apply --server-side -f https://github.com/kubernetes-sigs/gateway-api/releases/download/{VERSION}/standard-install.yaml\n\n\
                 Or let Linkerd install them: --set installGatewayAPI=true\n\
                 See https://gateway-api.sigs.k8s.io/guides/ for more"
            ),
            (Provider::Linkerd, false) => anyhow::bail!(
                "Linkerd is providing GW API, but your current install configuration will remove it: keep installGatewayAPI at true"
            ),
            (Provider::External, true) => anyhow::bail!(
                "The Gateway API CRDs of this cluster were not installed by Linkerd: installGatewayAPI must be false"
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(created_by: bool, version: &str) -> CustomResourceDefinition {
        let annotations = if created_by {
            json!({CREATED_BY: "linkerd/cli x"})
        } else {
            json!({})
        };
        serde_json::from_value(json!({
            "metadata": {"name": NEEDED[0], "annotations": annotations},
            "spec": {"group": "g", "scope": "Namespaced", "names": {"kind": "K", "plural": "p"},
                "versions": [{"name": version, "served": true, "storage": true}]},
        }))
        .expect("a definition")
    }

    #[test]
    fn the_matrix() {
        let missing = "The Gateway API CRDs must be installed prior to installing Linkerd:\n\n  \
                       kubectl apply --server-side -f https://github.com/kubernetes-sigs/gateway-api/releases/download/v1.4.0/standard-install.yaml\n\n\
                       Or let Linkerd install them: --set installGatewayAPI=true\n\
                       See https://gateway-api.sigs.k8s.io/guides/ for more";
        let removed = "Linkerd is providing GW API, but your current install configuration will remove it: keep installGatewayAPI at true";
        let foreign = "The Gateway API CRDs of this cluster were not installed by Linkerd: installGatewayAPI must be false";
        let old = "the httproutes.gateway.networking.k8s.io CRD is missing the v1 version, please upgrade to Gateway API v1.1.1 or later";
        for (name, definitions, default, with, without) in [
            ("absent", vec![], false, "", missing),
            ("ours", vec![definition(true, "v1")], true, "", removed),
            (
                "external",
                vec![definition(false, "v1")],
                false,
                foreign,
                "",
            ),
            (
                "old external",
                vec![definition(false, "v1beta1")],
                false,
                old,
                old,
            ),
        ] {
            let found = judge(&definitions);
            assert_eq!(found.default_install(), default, "{name}");
            for (install, expected) in [(true, with), (false, without)] {
                let said = found.check(install).map_err(|error| error.to_string());
                let said = said.err().unwrap_or_default();
                assert_eq!(said, expected, "{name}, install: {install}");
            }
        }
    }
}
