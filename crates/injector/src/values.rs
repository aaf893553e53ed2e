//! The part of the control plane's values that decides what a sidecar looks like: read from the
//! `linkerd-config` ConfigMap by the webhook and from the chart by the CLI.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Debug, thiserror::Error)]
pub enum InvalidValues {
    #[error("the values are not YAML")]
    Yaml(#[source] serde_yaml::Error),
    #[error("the value {path} has the wrong type")]
    Type {
        /// Dotted.
        path: String,
        source: serde_json::Error,
    },
}

/// Defaults are the chart's; a key that is missing in an older ConfigMap takes them.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Values {
    pub cluster_domain: String,
    pub cluster_networks: String,
    pub image_pull_policy: String,
    pub linkerd_version: String,
    pub cni_enabled: bool,
    #[serde(rename = "disableIPv6")]
    pub disable_ipv6: bool,
    #[serde(rename = "identityTrustAnchorsPEM")]
    pub identity_trust_anchors_pem: String,
    pub identity_trust_domain: String,
    pub webhook_failure_policy: String,
    pub identity: Identity,
    pub proxy: Proxy,
    pub proxy_init: ProxyInit,
    pub network_validator: NetworkValidator,
    pub debug_container: DebugContainer,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    pub service_account_token_projection: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Image {
    pub name: String,
    #[serde(deserialize_with = "text")]
    pub version: String,
    pub pull_policy: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct Ports {
    pub admin: u16,
    pub control: u16,
    pub inbound: u16,
    pub outbound: u16,
}

/// A request and a limit; empty means not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Bounds {
    #[serde(deserialize_with = "text")]
    pub limit: String,
    #[serde(deserialize_with = "text")]
    pub request: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub cpu: Bounds,
    pub memory: Bounds,
    #[serde(rename = "ephemeral-storage")]
    pub ephemeral_storage: Bounds,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Workers {
    #[serde(deserialize_with = "text")]
    pub minimum: String,
    #[serde(deserialize_with = "text")]
    pub maximum: String,
    #[serde(rename = "maximumCPURatio", deserialize_with = "text")]
    pub maximum_cpu_ratio: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Runtime {
    pub workers: Workers,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    pub initial_delay_seconds: u32,
    pub timeout_seconds: u32,
    pub period_seconds: u32,
    pub failure_threshold: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Streams {
    pub initial_timeout: String,
    pub idle_timeout: String,
    pub lifetime: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Control {
    pub streams: Streams,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    pub hostname_labels: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshIdentity {
    pub service_account_name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Collector {
    pub endpoint: String,
    pub mesh_identity: MeshIdentity,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tracing {
    pub enabled: bool,
    pub trace_service_name: String,
    pub labels: BTreeMap<String, String>,
    pub collector: Collector,
}

/// Server parameters by scope, protocol and name, e.g. `server.http2.keepAliveInterval`.
pub type ServerParams = BTreeMap<String, BTreeMap<String, BTreeMap<String, Value>>>;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Proxy {
    pub image: Image,
    pub log_level: String,
    pub log_format: String,
    #[serde(rename = "logHTTPHeaders", deserialize_with = "text")]
    pub log_http_headers: String,
    pub enable_shutdown_endpoint: bool,
    pub ports: Ports,
    pub uid: i64,
    pub gid: i64,
    pub security_context: BTreeMap<String, Value>,
    #[serde(deserialize_with = "text")]
    pub cores: String,
    pub runtime: Runtime,
    pub resources: Resources,
    pub outbound_connect_timeout: String,
    pub inbound_connect_timeout: String,
    pub outbound_discovery_cache_unused_timeout: String,
    pub inbound_discovery_cache_unused_timeout: String,
    pub disable_outbound_protocol_detect_timeout: bool,
    pub disable_inbound_protocol_detect_timeout: bool,
    pub enable_external_profiles: bool,
    #[serde(deserialize_with = "text")]
    pub require_identity_on_inbound_ports: String,
    #[serde(deserialize_with = "text")]
    pub opaque_ports: String,
    pub default_inbound_policy: String,
    #[serde(rename = "await")]
    pub await_ready: bool,
    pub wait_before_exit_seconds: u64,
    pub native_sidecar: bool,
    pub shutdown_grace_period: String,
    pub access_log: String,
    pub liveness_probe: Probe,
    pub readiness_probe: Probe,
    pub startup_probe: Probe,
    pub control: Control,
    pub metrics: Metrics,
    pub inbound: ServerParams,
    pub outbound: ServerParams,
    pub tracing: Tracing,
    pub additional_env: Option<Vec<Value>>,
    pub experimental_env: Option<Vec<Value>>,
    pub is_gateway: bool,
    pub is_ingress: bool,
    #[serde(deserialize_with = "text")]
    pub pod_inbound_ports: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MountPath {
    pub mount_path: String,
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyInit {
    pub iptables_mode: String,
    #[serde(deserialize_with = "text")]
    pub ignore_inbound_ports: String,
    #[serde(deserialize_with = "text")]
    pub ignore_outbound_ports: String,
    #[serde(deserialize_with = "text")]
    pub skip_subnets: String,
    /// By annotation only.
    #[serde(skip)]
    pub skip_inbound_subnets: String,
    #[serde(skip)]
    pub skip_outbound_subnets: String,
    pub log_level: String,
    pub log_format: String,
    pub image: Image,
    pub close_wait_timeout_secs: i64,
    pub privileged: bool,
    pub run_as_root: bool,
    pub run_as_user: i64,
    pub run_as_group: i64,
    pub xt_mount_path: MountPath,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkValidator {
    pub log_level: String,
    pub log_format: String,
    pub connect_addr: String,
    pub listen_addr: String,
    pub timeout: String,
    pub enable_security_context: bool,
    pub security_context: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DebugContainer {
    pub image: Image,
}

impl Values {
    /// Reads the `values` key of the ConfigMap. Very old installs nest everything under `global`.
    pub fn from_yaml(yaml: &str) -> Result<Self, InvalidValues> {
        let values: Value = serde_yaml::from_str(yaml).map_err(InvalidValues::Yaml)?;
        Self::from_value(values)
    }

    /// Reads values that are already a tree, as the CLI has them.
    pub fn from_value(mut values: Value) -> Result<Self, InvalidValues> {
        let global = values.as_object_mut().and_then(|map| map.remove("global"));
        if let (Some(map), Some(Value::Object(global))) = (values.as_object_mut(), global) {
            for (key, value) in global {
                map.entry(key).or_insert(value);
            }
        }
        drop_nulls(&mut values);
        serde_json::from_value(values.clone()).map_err(|source| InvalidValues::Type {
            path: refused(&values),
            source,
        })
    }

    pub fn trust_domain(&self) -> &str {
        if self.identity_trust_domain.is_empty() {
            &self.cluster_domain
        } else {
            &self.identity_trust_domain
        }
    }

    pub fn proxy_version(&self) -> &str {
        if self.proxy.image.version.is_empty() {
            &self.linkerd_version
        } else {
            &self.proxy.image.version
        }
    }
}

/// Where the value stands that cannot be read: every key has a default, so each can be tried alone.
fn refused(values: &Value) -> String {
    let mut path: Vec<&str> = Vec::new();
    let mut at = values;
    while let Value::Object(map) = at {
        let wrong = map.iter().find(|(key, value)| {
            let alone = std::iter::once(&key.as_str())
                .chain(path.iter().rev())
                .fold(
                    (*value).clone(),
                    |tree, key| serde_json::json!({*key: tree}),
                );
            serde_json::from_value::<Values>(alone).is_err()
        });
        let Some((key, value)) = wrong else { break };
        path.push(key);
        at = value;
    }
    path.join(".")
}

/// `null` deletes a key, so that its default holds.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}

/// YAML users write numbers and booleans where a text is meant.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => String::new(),
        Value::String(text) => text,
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return Err(serde::de::Error::custom("expected a text or a number")),
    })
}

// === Defaults ===

impl Default for Values {
    fn default() -> Self {
        Self {
            cluster_domain: "cluster.local".into(),
            cluster_networks: "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
                .into(),
            image_pull_policy: "IfNotPresent".into(),
            linkerd_version: String::new(),
            cni_enabled: false,
            disable_ipv6: true,
            identity_trust_anchors_pem: String::new(),
            identity_trust_domain: String::new(),
            webhook_failure_policy: "Ignore".into(),
            identity: Identity::default(),
            proxy: Proxy::default(),
            proxy_init: ProxyInit::default(),
            network_validator: NetworkValidator::default(),
            debug_container: DebugContainer::default(),
        }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            service_account_token_projection: true,
        }
    }
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            admin: 4191,
            control: 4190,
            inbound: 4143,
            outbound: 4140,
        }
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            minimum: "1".into(),
            maximum: String::new(),
            maximum_cpu_ratio: String::new(),
        }
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            initial_timeout: "3s".into(),
            idle_timeout: "5m".into(),
            lifetime: "1h".into(),
        }
    }
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            enabled: false,
            trace_service_name: "linkerd-proxy".into(),
            labels: BTreeMap::new(),
            collector: Collector::default(),
        }
    }
}

impl Default for Proxy {
    fn default() -> Self {
        Self {
            image: Image {
                name: "localhost/linkerd/proxy".into(),
                ..Image::default()
            },
            log_level: "warn,linkerd=info,hickory=error".into(),
            log_format: "plain".into(),
            log_http_headers: "off".into(),
            enable_shutdown_endpoint: false,
            ports: Ports::default(),
            uid: 2102,
            gid: -1,
            security_context: BTreeMap::new(),
            cores: String::new(),
            runtime: Runtime::default(),
            resources: Resources::default(),
            outbound_connect_timeout: "1000ms".into(),
            inbound_connect_timeout: "100ms".into(),
            outbound_discovery_cache_unused_timeout: "5s".into(),
            inbound_discovery_cache_unused_timeout: "90s".into(),
            disable_outbound_protocol_detect_timeout: false,
            disable_inbound_protocol_detect_timeout: false,
            enable_external_profiles: false,
            require_identity_on_inbound_ports: String::new(),
            opaque_ports: "25,587,3306,4444,5432,6379,9300,11211".into(),
            default_inbound_policy: "all-unauthenticated".into(),
            await_ready: true,
            wait_before_exit_seconds: 0,
            native_sidecar: false,
            shutdown_grace_period: String::new(),
            access_log: String::new(),
            liveness_probe: Probe {
                initial_delay_seconds: 10,
                timeout_seconds: 1,
                ..Probe::default()
            },
            readiness_probe: Probe {
                initial_delay_seconds: 2,
                timeout_seconds: 1,
                ..Probe::default()
            },
            startup_probe: Probe {
                period_seconds: 1,
                failure_threshold: 120,
                ..Probe::default()
            },
            control: Control::default(),
            metrics: Metrics::default(),
            inbound: keep_alive(),
            outbound: keep_alive(),
            tracing: Tracing::default(),
            additional_env: None,
            experimental_env: None,
            is_gateway: false,
            is_ingress: false,
            pod_inbound_ports: String::new(),
        }
    }
}

fn keep_alive() -> ServerParams {
    let http2 = [("keepAliveInterval", "10s"), ("keepAliveTimeout", "3s")];
    let http2 = http2
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .collect();
    [("server".to_owned(), [("http2".to_owned(), http2)].into())].into()
}

impl Default for MountPath {
    fn default() -> Self {
        Self {
            mount_path: "/run".into(),
            name: "linkerd-proxy-init-xtables-lock".into(),
        }
    }
}

impl Default for ProxyInit {
    fn default() -> Self {
        Self {
            iptables_mode: "nft".into(),
            ignore_inbound_ports: "4567,4568".into(),
            ignore_outbound_ports: "4567,4568".into(),
            skip_subnets: String::new(),
            skip_inbound_subnets: String::new(),
            skip_outbound_subnets: String::new(),
            log_level: String::new(),
            log_format: String::new(),
            image: Image {
                name: "localhost/linkerd/proxy-init".into(),
                ..Image::default()
            },
            close_wait_timeout_secs: 0,
            privileged: false,
            run_as_root: false,
            run_as_user: 65534,
            run_as_group: 65534,
            xt_mount_path: MountPath::default(),
        }
    }
}

impl Default for NetworkValidator {
    fn default() -> Self {
        Self {
            log_level: "debug".into(),
            log_format: "plain".into(),
            connect_addr: String::new(),
            listen_addr: String::new(),
            timeout: "10s".into(),
            enable_security_context: true,
            security_context: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chart is the one source of defaults; ours only fill what an older ConfigMap lacks.
    #[test]
    fn defaults_are_the_charts() {
        let chart = include_str!("../../../charts/linkerd-control-plane/values.yaml");
        let mut chart = Values::from_yaml(chart).expect("the chart's values");
        chart.linkerd_version.clear();
        let mut ours = Values::default();
        ours.proxy
            .tracing
            .labels
            .clone_from(&chart.proxy.tracing.labels);
        ours.network_validator
            .security_context
            .clone_from(&chart.network_validator.security_context);
        ours.debug_container
            .image
            .name
            .clone_from(&chart.debug_container.image.name);
        assert_eq!(format!("{chart:#?}"), format!("{ours:#?}"));
    }

    #[test]
    fn older_and_loose_values_are_understood() {
        let values = Values::from_yaml(
            "global: {clusterDomain: example.org}\nproxy: {opaquePorts: 25, cores: 2, accessLog: null, logHTTPHeaders: off}",
        )
        .expect("valid");
        assert_eq!(values.cluster_domain, "example.org");
        assert_eq!(values.trust_domain(), "example.org");
        assert_eq!(
            (
                values.proxy.opaque_ports.as_str(),
                values.proxy.cores.as_str()
            ),
            ("25", "2")
        );
        assert_eq!(values.proxy.log_http_headers, "off");
        for (yaml, path) in [
            (
                "proxy: {ports: {inbound: 1, admin: many}}",
                "proxy.ports.admin",
            ),
            ("proxy: {await: enabled}", "proxy.await"),
            ("cniEnabled: 'true'", "cniEnabled"),
            ("proxy: text", "proxy"),
        ] {
            let error = Values::from_yaml(yaml).expect_err(yaml).to_string();
            assert_eq!(error, format!("the value {path} has the wrong type"));
        }
    }
}
