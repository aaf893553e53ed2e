//! What `install` and `upgrade` share: values from flags and files, issuer credentials, checks
//! against the cluster, and the objects of both charts in their order.

pub mod flags;
pub mod gateway;
pub mod preflight;
pub mod validate;

use crate::{
    chart::{Chart, Release},
    cluster::{Cluster, OVERRIDES, plain},
    commands::Format,
    manifest::Document,
    printer::Printer,
    values::{difference, put, text},
    yaml,
};
use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use linkerd_runtime::version::VERSION;
use linkerd_tls::issuer::generate::Authority;
use serde_json::{Map, Value, json};
use std::time::SystemTime;

pub const CONTROL_PLANE: &str = "linkerd-control-plane";
pub const CRDS: &str = "linkerd-crds";
pub const CNI: &str = "linkerd2-cni";

/// Templates of the control plane in the order their objects are applied.
const CONTROL_PLANE_ORDER: [&str; 12] = [
    "namespace.yaml",
    "identity-rbac.yaml",
    "destination-rbac.yaml",
    "heartbeat-rbac.yaml",
    "podmonitor.yaml",
    "proxy-injector-rbac.yaml",
    "config.yaml",
    "config-rbac.yaml",
    "identity.yaml",
    "destination.yaml",
    "heartbeat.yaml",
    "proxy-injector.yaml",
];

/// Where CRD templates stand, in the order of output.
const CRD_GROUPS: [&str; 7] = [
    "policy.linkerd.io/",
    "linkerd.io/",
    "gateway.networking.k8s.io/httproutes",
    "gateway.networking.k8s.io/grpcroutes",
    "gateway.networking.k8s.io/tlsroutes",
    "gateway.networking.k8s.io/tcproutes",
    "workload.linkerd.io/",
];

pub fn created_by() -> String {
    format!("linkerd/cli {VERSION}")
}

/// The chart's values as this CLI starts from them.
pub fn defaults(chart: &Chart) -> Result<Value> {
    let mut values = chart.values("values.yaml")?;
    put(&mut values, "cliVersion", created_by());
    if values.get("linkerdVersion").is_some() {
        put(&mut values, "linkerdVersion", VERSION);
    }
    Ok(values)
}

/// `identityTrustDomain`, or the cluster's domain.
pub fn trust_domain(values: &Value) -> &str {
    match text(values, "identityTrustDomain") {
        "" => text(values, "clusterDomain"),
        domain => domain,
    }
}

/// Makes a trust anchor that is its own issuer when no credentials are given.
pub fn ensure_issuer(values: &mut Value, namespace: &str) -> Result<()> {
    if text(values, "identity.issuer.scheme") != "linkerd.io/tls" {
        return Ok(());
    }
    let external_ca = crate::values::get(values, "identity.externalCA") == &Value::Bool(true);
    let given = [
        ("a trust anchors file", "identityTrustAnchorsPEM"),
        ("a certificate file", "identity.issuer.tls.crtPEM"),
        ("a private key file", "identity.issuer.tls.keyPEM"),
    ];
    let missing = |path: &str| text(values, path).trim().is_empty();
    if given.iter().all(|(_, path)| missing(path)) {
        if external_ca {
            bail!(
                "with an external CA the issuer must be given too: --identity-issuer-certificate-file and --identity-issuer-key-file, or --identity-external-issuer"
            );
        }
        let domain = trust_domain(values).to_owned();
        let authority = Authority::for_install(namespace, &domain, SystemTime::now())
            .context("cannot make a trust anchor")?;
        let certificate = authority.certificate.to_pem();
        put(values, "identityTrustAnchorsPEM", certificate.clone());
        put(values, "identity.issuer.tls.crtPEM", certificate);
        put(
            values,
            "identity.issuer.tls.keyPEM",
            authority.key.to_sec1_pem()?,
        );
        return Ok(());
    }
    for (what, path) in given {
        if missing(path) && !(external_ca && path == "identityTrustAnchorsPEM") {
            bail!("{what} must be specified if other credentials are provided");
        }
    }
    Ok(())
}

/// Objects of a release as YAML documents.
#[derive(Debug)]
pub struct Objects(pub Vec<String>);

impl Objects {
    /// All objects of the control plane and, at the end, the Secret that remembers how they were made.
    pub fn control_plane(values: &Value, namespace: &str) -> Result<Self> {
        let chart = Chart::named(CONTROL_PLANE)?;
        let mut objects = Self::rendered(&chart, values, namespace, &CONTROL_PLANE_ORDER)?;
        objects
            .0
            .push(yaml::write(&overrides(&chart, values, namespace)?));
        Ok(objects)
    }

    /// The custom resource definitions.
    pub fn crds(values: &Value, namespace: &str) -> Result<Self> {
        let chart = Chart::named(CRDS)?;
        let templates = chart.templates();
        let mut order = Vec::with_capacity(templates.len());
        for group in CRD_GROUPS {
            order.extend(templates.iter().filter(|file| file.starts_with(group)));
        }
        Self::rendered(&chart, values, namespace, &order)
    }

    /// The CNI plugin.
    pub fn cni(values: &Value, namespace: &str) -> Result<Self> {
        Self::rendered(&Chart::named(CNI)?, values, namespace, &["cni-plugin.yaml"])
    }

    fn rendered(chart: &Chart, values: &Value, namespace: &str, order: &[&str]) -> Result<Self> {
        let release = Release {
            namespace,
            service: "CLI",
        };
        let rendered = chart.render(&release, values, order)?;
        let mut documents = Vec::new();
        for (_, text) in rendered {
            documents.extend(crate::manifest::split(&text).map(|(_, text)| text.trim().to_owned()));
        }
        documents.retain(|text| !text.is_empty());
        Ok(Self(documents))
    }

    /// Each object as a tree.
    pub fn parsed(&self) -> Result<Vec<Value>> {
        let parsed = self.0.iter().map(|text| {
            yaml::parse(text).with_context(|| format!("a template does not give YAML:\n{text}"))
        });
        parsed.collect()
    }

    pub fn print(&self, printer: &mut Printer, format: Format) -> Result<()> {
        // Values that break the YAML of a template must not reach kubectl.
        let parsed = self.parsed()?;
        match format {
            Format::Yaml => {
                for text in &self.0 {
                    printer.out("---")?;
                    printer.out(text)?;
                }
            }
            Format::Json => {
                for object in parsed {
                    printer.out(object)?;
                }
            }
        }
        Ok(())
    }
}

/// The Secret from which `upgrade` starts: what differs from the chart's own values.
fn overrides(chart: &Chart, values: &Value, namespace: &str) -> Result<Value> {
    let difference = difference(&defaults(chart)?, values);
    let difference = difference.unwrap_or_else(|| Value::Object(Map::new()));
    let text = format!("{}\n", yaml::write(&difference));
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": OVERRIDES,
            "namespace": namespace,
            "labels": {"linkerd.io/control-plane-ns": namespace},
        },
        "data": {OVERRIDES: STANDARD.encode(text)},
    }))
}

/// Warns of values that no template reads.
pub fn warn_unknown(printer: &mut Printer, defaults: &Value, overrides: &Value) {
    for key in crate::values::unknown_keys(defaults, overrides) {
        let hint = key.nearest.map(|near| format!(" (did you mean {near:?}?)"));
        printer.err(format_args!(
            "Warning: the chart has no value {:?}; it changes nothing{}",
            key.path,
            hint.unwrap_or_default()
        ));
    }
}

/// The values an earlier `install` or `upgrade` stored in the cluster.
pub async fn stored(cluster: &Cluster, namespace: &str) -> Result<Value> {
    let secret = cluster.secret(namespace, OVERRIDES).await.map_err(plain)?;
    let Some(secret) = secret else {
        bail!(
            "Could not find the {OVERRIDES} secret.\nPlease note this command is only intended for instances of Linkerd that were installed via the CLI; use helm for those installed with Helm"
        );
    };
    let data = secret.data.and_then(|mut data| data.remove(OVERRIDES));
    let data =
        data.with_context(|| format!("Secret {namespace}/{OVERRIDES} has no key {OVERRIDES}"))?;
    read_stored(&data.0)
}

/// The same from manifests that were kept.
pub fn stored_in(documents: &[Document], namespace: &str) -> Result<Value> {
    let secret = documents
        .iter()
        .map(|document| &document.value)
        .find(|object| {
            object["kind"] == "Secret"
                && object["metadata"]["name"] == OVERRIDES
                && object["metadata"]["namespace"] == namespace
        });
    let secret = secret.with_context(|| {
        format!("the manifests hold no Secret {namespace}/{OVERRIDES}: were they made by linkerd install?")
    })?;
    let data = secret["data"][OVERRIDES].as_str().unwrap_or_default();
    read_stored(
        &STANDARD
            .decode(data)
            .context("the stored values are not base64")?,
    )
}

fn read_stored(bytes: &[u8]) -> Result<Value> {
    let text = std::str::from_utf8(bytes).context("the stored values are not text")?;
    yaml::parse(text).context("the stored values are not YAML")
}
