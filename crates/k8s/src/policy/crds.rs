//! The custom resource definitions of the policy kinds, in the order the charts list them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::schema::{self, RouteFeatures, ServerFeatures};

/// How a kind is called.
struct Names {
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
}

/// One served version of a kind.
struct Version {
    name: &'static str,
    storage: bool,
    /// The version to use instead of a deprecated one.
    successor: Option<&'static str>,
    status: bool,
    schema: Value,
    columns: Vec<Value>,
}

/// Every policy kind.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        authorization_policy(),
        egress_network(),
        rate_limit(),
        http_route(),
        mesh_tls_authentication(),
        network_authentication(),
        server_authorization(),
        server(),
    ]
}

fn authorization_policy() -> CustomResourceDefinition {
    let names = Names::new("AuthorizationPolicy", "authorizationpolicies").short(&["authzpolicy"]);
    definition(
        &names,
        [Version::new("v1alpha1", schema::authorization_policy()).stored()],
    )
}

fn egress_network() -> CustomResourceDefinition {
    let names = Names::new("EgressNetwork", "egressnetworks").categories(&["policy"]);
    let version = Version::new("v1alpha1", schema::egress_network())
        .with_status(schema::egress_network_status())
        .stored();
    definition(&names, [version])
}

fn rate_limit() -> CustomResourceDefinition {
    let names = Names::new("HTTPLocalRateLimitPolicy", "httplocalratelimitpolicies");
    let version = Version::new("v1alpha1", schema::rate_limit())
        .with_status(schema::rate_limit_status())
        .column("Target_kind", "string", ".spec.targetRef.kind")
        .column("Target_name", "string", ".spec.targetRef.name")
        .column("Total_RPS", "integer", ".spec.total.requestsPerSecond")
        .column(
            "Identity_RPS",
            "integer",
            ".spec.identity.requestsPerSecond",
        )
        .stored();
    definition(&names, [version])
}

fn http_route() -> CustomResourceDefinition {
    let version = |name, features| {
        Version::new(name, schema::http_route(features))
            .with_status(schema::route_status())
            .column("Hostnames", "string", ".spec.hostnames")
            .column("Age", "date", ".metadata.creationTimestamp")
    };
    definition(
        &Names::new("HTTPRoute", "httproutes"),
        [
            version("v1alpha1", RouteFeatures::LooseBackends),
            version("v1beta1", RouteFeatures::LooseBackends),
            version("v1beta2", RouteFeatures::Backends),
            version("v1beta3", RouteFeatures::Timeouts).stored(),
        ],
    )
}

fn mesh_tls_authentication() -> CustomResourceDefinition {
    let names =
        Names::new("MeshTLSAuthentication", "meshtlsauthentications").short(&["meshtlsauthn"]);
    definition(
        &names,
        [Version::new("v1alpha1", schema::mesh_tls_authentication()).stored()],
    )
}

fn network_authentication() -> CustomResourceDefinition {
    let names = Names::new("NetworkAuthentication", "networkauthentications")
        .short(&["netauthn", "networkauthn"]);
    definition(
        &names,
        [Version::new("v1alpha1", schema::network_authentication()).stored()],
    )
}

fn server_authorization() -> CustomResourceDefinition {
    let names = Names::new("ServerAuthorization", "serverauthorizations").short(&[
        "saz",
        "serverauthz",
        "srvauthz",
    ]);
    definition(
        &names,
        [
            Version::new("v1alpha1", schema::server_authorization()).replaced_by("v1beta1"),
            Version::new("v1beta1", schema::server_authorization())
                .column("Server", "string", ".spec.server.name")
                .stored(),
        ],
    )
}

fn server() -> CustomResourceDefinition {
    let version = |name, features| {
        let version = Version::new(name, schema::server(features));
        if features == ServerFeatures::StrictSelector {
            return version;
        }
        version.column("Port", "string", ".spec.port").column(
            "Protocol",
            "string",
            ".spec.proxyProtocol",
        )
    };
    definition(
        &Names::new("Server", "servers").short(&["srv"]),
        [
            version("v1alpha1", ServerFeatures::StrictSelector).replaced_by("v1beta1"),
            version("v1beta1", ServerFeatures::PodsOnly).replaced_by("v1beta3"),
            version("v1beta2", ServerFeatures::Workloads),
            version("v1beta3", ServerFeatures::AccessPolicy)
                .column("Access Policy", "string", ".spec.accessPolicy")
                .stored(),
        ],
    )
}

fn definition<const N: usize>(names: &Names, versions: [Version; N]) -> CustomResourceDefinition {
    let mut called = json!({
        "kind": names.kind,
        "plural": names.plural,
        "singular": names.kind.to_lowercase(),
    });
    if !names.short.is_empty() {
        called["shortNames"] = json!(names.short);
    }
    if !names.categories.is_empty() {
        called["categories"] = json!(names.categories);
    }
    let versions: Vec<Value> = versions
        .into_iter()
        .map(|version| version.into_json(names.kind))
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.policy.linkerd.io", names.plural)},
        "spec": {
            "group": "policy.linkerd.io",
            "scope": "Namespaced",
            "names": called,
            "versions": versions,
        },
    }))
    .expect("the tables above spell valid definitions; a test makes them all")
}

impl Names {
    fn new(kind: &'static str, plural: &'static str) -> Self {
        Self {
            kind,
            plural,
            short: &[],
            categories: &[],
        }
    }

    fn short(self, short: &'static [&'static str]) -> Self {
        Self { short, ..self }
    }

    fn categories(self, categories: &'static [&'static str]) -> Self {
        Self { categories, ..self }
    }
}

impl Version {
    fn new(name: &'static str, spec: Value) -> Self {
        Self {
            name,
            storage: false,
            successor: None,
            status: false,
            schema: schema::resource(spec, None),
            columns: Vec::new(),
        }
    }

    fn stored(self) -> Self {
        Self {
            storage: true,
            ..self
        }
    }

    fn replaced_by(self, successor: &'static str) -> Self {
        Self {
            successor: Some(successor),
            ..self
        }
    }

    fn with_status(mut self, status: Value) -> Self {
        self.status = true;
        self.schema["properties"]["status"] = status;
        self
    }

    fn column(mut self, name: &str, type_: &str, path: &str) -> Self {
        self.columns
            .push(json!({"name": name, "type": type_, "jsonPath": path}));
        self
    }

    fn into_json(self, kind: &str) -> Value {
        let mut version = json!({
            "name": self.name,
            "served": true,
            "storage": self.storage,
            "schema": {"openAPIV3Schema": self.schema},
        });
        if let Some(successor) = self.successor {
            let name = self.name;
            version["deprecated"] = json!(true);
            version["deprecationWarning"] = json!(format!(
                "policy.linkerd.io/{name} {kind} is deprecated; use policy.linkerd.io/{successor} {kind}"
            ));
        }
        if self.status {
            version["subresources"] = json!({"status": {}});
        }
        if !self.columns.is_empty() {
            version["additionalPrinterColumns"] = json!(self.columns);
        }
        version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_versions() {
        let expected = [
            ("authorizationpolicies", "authzpolicy", "v1alpha1*", false),
            ("egressnetworks", "", "v1alpha1*", true),
            ("httplocalratelimitpolicies", "", "v1alpha1*", true),
            ("httproutes", "", "v1alpha1 v1beta1 v1beta2 v1beta3*", true),
            ("meshtlsauthentications", "meshtlsauthn", "v1alpha1*", false),
            (
                "networkauthentications",
                "netauthn networkauthn",
                "v1alpha1*",
                false,
            ),
            (
                "serverauthorizations",
                "saz serverauthz srvauthz",
                "v1alpha1! v1beta1*",
                false,
            ),
            (
                "servers",
                "srv",
                "v1alpha1! v1beta1! v1beta2 v1beta3*",
                false,
            ),
        ];
        let crds = crds();
        assert_eq!(crds.len(), expected.len());
        for (crd, (plural, short, versions, status)) in crds.iter().zip(expected) {
            let spec = &crd.spec;
            assert_eq!(spec.names.plural, plural);
            assert_eq!(
                crd.metadata.name,
                Some(format!("{plural}.policy.linkerd.io"))
            );
            assert_eq!(
                spec.names.short_names.clone().unwrap_or_default().join(" "),
                short,
                "{plural}"
            );
            let found: Vec<_> = spec
                .versions
                .iter()
                .map(|version| {
                    let stored = if version.storage { "*" } else { "" };
                    let deprecated = if version.deprecated == Some(true) {
                        "!"
                    } else {
                        ""
                    };
                    assert_eq!(
                        version.subresources.is_some(),
                        status,
                        "{plural} {}",
                        version.name
                    );
                    format!("{}{stored}{deprecated}", version.name)
                })
                .collect();
            assert_eq!(found.join(" "), versions, "{plural}");
        }
    }
}
