//! The flags of `install`, `upgrade` and `inject`, and the chart value each one sets.

use crate::{
    chart::{Chart, overlay},
    values::put,
};
use anyhow::{Context as _, Result};
use linkerd_injector::settings::processors;
use serde_json::Value;
use std::{env, fs};

/// Settings of the sidecar, shared by `install`, `upgrade` and `inject`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Proxy flags")]
pub struct ProxyFlags {
    /// Image of the proxy
    #[arg(long, value_name = "IMAGE", hide = true)]
    pub proxy_image: Option<String>,
    /// Tag of the proxy's image
    #[arg(short = 'v', long, value_name = "TAG", hide = true)]
    pub proxy_version: Option<String>,
    /// When images are pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY", hide = true)]
    pub image_pull_policy: Option<String>,
    #[arg(long, value_name = "IMAGE", hide = true)]
    pub init_image: Option<String>,
    #[arg(long, value_name = "TAG", hide = true)]
    pub init_image_version: Option<String>,
    /// Registry of every image [env: LINKERD_DOCKER_REGISTRY]
    #[arg(long, value_name = "REGISTRY")]
    pub registry: Option<String>,
    /// Port of the proxy for connections to the pod
    #[arg(long, value_name = "PORT")]
    pub inbound_port: Option<u16>,
    /// Port of the proxy for connections from the pod
    #[arg(long, value_name = "PORT")]
    pub outbound_port: Option<u16>,
    /// Port on which the proxy answers control requests
    #[arg(long, value_name = "PORT")]
    pub control_port: Option<u16>,
    /// Port on which the proxy serves metrics and probes
    #[arg(long, value_name = "PORT")]
    pub admin_port: Option<u16>,
    /// Ports and ranges that skip the proxy on the way in
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    pub skip_inbound_ports: Option<Vec<String>>,
    /// Ports and ranges that skip the proxy on the way out
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    pub skip_outbound_ports: Option<Vec<String>>,
    /// User ID of the proxy
    #[arg(long, value_name = "UID", allow_negative_numbers = true)]
    pub proxy_uid: Option<i64>,
    /// Group ID of the proxy
    #[arg(long, value_name = "GID", allow_negative_numbers = true)]
    pub proxy_gid: Option<i64>,
    /// Log level of the proxy, such as warn,linkerd=info
    #[arg(long, value_name = "LEVEL")]
    pub proxy_log_level: Option<String>,
    /// CPU a proxy requests; its threads follow
    #[arg(long, value_name = "QUANTITY")]
    pub proxy_cpu_request: Option<String>,
    /// Most CPU a proxy may use; its threads follow
    #[arg(long, value_name = "QUANTITY")]
    pub proxy_cpu_limit: Option<String>,
    /// Memory a proxy requests
    #[arg(long, value_name = "QUANTITY")]
    pub proxy_memory_request: Option<String>,
    /// Most memory a proxy may use
    #[arg(long, value_name = "QUANTITY")]
    pub proxy_memory_limit: Option<String>,
    #[arg(long, value_name = "QUANTITY", hide = true)]
    pub proxy_cpu: Option<String>,
    #[arg(long, value_name = "QUANTITY", hide = true)]
    pub proxy_memory: Option<String>,
    /// Look up profiles of services outside the cluster
    #[arg(long)]
    pub enable_external_profiles: bool,
    /// What proxies allow where no policy speaks: all-authenticated, all-unauthenticated,
    /// cluster-authenticated, cluster-unauthenticated, deny or audit
    #[arg(long, value_name = "POLICY")]
    pub default_inbound_policy: Option<String>,
}

/// Settings of the control plane, shared by `install` and `upgrade`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Control plane flags")]
pub struct ControlPlaneFlags {
    /// Run the control plane highly available: three replicas, budgets, admission that fails closed
    #[arg(long)]
    pub ha: bool,
    /// Replicas of each control plane component
    #[arg(long, value_name = "COUNT")]
    pub controller_replicas: Option<u32>,
    /// User ID of the control plane
    #[arg(long, value_name = "UID", allow_negative_numbers = true)]
    pub controller_uid: Option<i64>,
    /// Group ID of the control plane
    #[arg(long, value_name = "GID", allow_negative_numbers = true)]
    pub controller_gid: Option<i64>,
    /// Log level of the control plane: panic, fatal, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub controller_log_level: Option<String>,
    /// How long certificates of proxies are valid
    #[arg(long, value_name = "DURATION")]
    pub identity_issuance_lifetime: Option<String>,
    /// How much clocks may differ within the cluster
    #[arg(long, value_name = "DURATION")]
    pub identity_clock_skew_allowance: Option<String>,
    /// Issuer certificate, PEM; needs the key too, and at install the trust anchors
    #[arg(long, value_name = "FILE")]
    pub identity_issuer_certificate_file: Option<String>,
    /// Private key of the issuer, PEM
    #[arg(long, value_name = "FILE")]
    pub identity_issuer_key_file: Option<String>,
    /// Trust anchors, PEM; several certificates while they are being rotated
    #[arg(long, value_name = "FILE")]
    pub identity_trust_anchors_file: Option<String>,
    /// Leave the redirection of traffic to the CNI plugin
    #[arg(long)]
    pub linkerd_cni_enabled: bool,
    /// Do not carry HTTP/1 over HTTP/2 between proxies
    #[arg(long)]
    pub disable_h2_upgrade: bool,
    /// Do not create the heartbeat CronJob
    #[arg(long)]
    pub disable_heartbeat: bool,
    /// Watch EndpointSlices
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_endpoint_slices: Option<bool>,
}

/// Choices that cannot be changed by a later `upgrade`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Install flags")]
pub struct InstallFlags {
    /// DNS domain of the cluster
    #[arg(long, value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// Trust domain of identities [default: the cluster's domain]
    #[arg(long, value_name = "DOMAIN")]
    pub identity_trust_domain: Option<String>,
    /// The issuer's Secret linkerd-identity-issuer is made by something else, such as cert-manager
    #[arg(long)]
    pub identity_external_issuer: bool,
    /// The trust anchors' ConfigMap linkerd-identity-trust-roots is made by something else
    #[arg(long)]
    pub identity_external_ca: bool,
}

fn set<T: Clone + Into<Value>>(values: &mut Value, path: &str, value: &Option<T>) {
    if let Some(value) = value {
        put(values, path, value.clone());
    }
}

impl InstallFlags {
    pub fn apply(&self, values: &mut Value) {
        set(values, "clusterDomain", &self.cluster_domain);
        set(values, "identityTrustDomain", &self.identity_trust_domain);
        if self.identity_external_issuer {
            put(values, "identity.issuer.scheme", "kubernetes.io/tls");
        }
        if self.identity_external_ca {
            put(values, "identity.externalCA", true);
        }
    }
}

impl ControlPlaneFlags {
    pub fn apply(&self, chart: &Chart, values: &mut Value) -> Result<()> {
        if self.ha {
            overlay(values, chart.values("values-ha.yaml")?);
        }
        set(values, "controllerReplicas", &self.controller_replicas);
        set(values, "controllerUID", &self.controller_uid);
        set(values, "controllerGID", &self.controller_gid);
        set(values, "controllerLogLevel", &self.controller_log_level);
        set(values, "enableEndpointSlices", &self.enable_endpoint_slices);
        let issuer = "identity.issuer";
        set(
            values,
            &format!("{issuer}.issuanceLifetime"),
            &self.identity_issuance_lifetime,
        );
        set(
            values,
            &format!("{issuer}.clockSkewAllowance"),
            &self.identity_clock_skew_allowance,
        );
        for (path, file) in [
            (
                "identity.issuer.tls.crtPEM",
                &self.identity_issuer_certificate_file,
            ),
            ("identity.issuer.tls.keyPEM", &self.identity_issuer_key_file),
            ("identityTrustAnchorsPEM", &self.identity_trust_anchors_file),
        ] {
            if let Some(file) = file {
                let pem =
                    fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
                put(values, path, pem);
            }
        }
        for (given, path, value) in [
            (self.linkerd_cni_enabled, "cniEnabled", true),
            (self.disable_h2_upgrade, "enableH2Upgrade", false),
            (self.disable_heartbeat, "disableHeartBeat", true),
        ] {
            if given {
                put(values, path, value);
            }
        }
        Ok(())
    }
}

impl ProxyFlags {
    pub fn apply(&self, values: &mut Value) {
        set(values, "proxy.image.name", &self.proxy_image);
        set(values, "proxy.image.version", &self.proxy_version);
        set(values, "proxyInit.image.name", &self.init_image);
        set(values, "proxyInit.image.version", &self.init_image_version);
        if let Some(policy) = &self.image_pull_policy {
            for path in [
                "imagePullPolicy",
                "proxy.image.pullPolicy",
                "proxyInit.image.pullPolicy",
                "debugContainer.image.pullPolicy",
            ] {
                put(values, path, policy.clone());
            }
        }
        let registry = self.registry.clone();
        let registry = registry.or_else(|| env::var("LINKERD_DOCKER_REGISTRY").ok());
        if let Some(registry) = registry.filter(|registry| !registry.is_empty()) {
            for path in [
                "controllerImage",
                "debugContainer.image.name",
                "proxy.image.name",
                "proxyInit.image.name",
            ] {
                let name = crate::values::text(values, path);
                let name = name.rsplit('/').next().unwrap_or_default().to_owned();
                put(
                    values,
                    path,
                    format!("{}/{name}", registry.trim_end_matches('/')),
                );
            }
        }
        set(values, "proxy.ports.inbound", &self.inbound_port);
        set(values, "proxy.ports.outbound", &self.outbound_port);
        set(values, "proxy.ports.control", &self.control_port);
        set(values, "proxy.ports.admin", &self.admin_port);
        let list = |ports: &Option<Vec<String>>| ports.as_ref().map(|ports| ports.join(","));
        set(
            values,
            "proxyInit.ignoreInboundPorts",
            &list(&self.skip_inbound_ports),
        );
        set(
            values,
            "proxyInit.ignoreOutboundPorts",
            &list(&self.skip_outbound_ports),
        );
        set(values, "proxy.uid", &self.proxy_uid);
        set(values, "proxy.gid", &self.proxy_gid);
        set(values, "proxy.logLevel", &self.proxy_log_level);
        set(values, "proxy.resources.cpu.request", &self.proxy_cpu);
        set(values, "proxy.resources.memory.request", &self.proxy_memory);
        for (quantity, path, workers) in [
            (
                &self.proxy_cpu_request,
                "proxy.resources.cpu.request",
                "minimum",
            ),
            (
                &self.proxy_cpu_limit,
                "proxy.resources.cpu.limit",
                "maximum",
            ),
        ] {
            let Some(quantity) = quantity else { continue };
            put(values, path, quantity.clone());
            if let Some(Ok(cores)) = processors(quantity).map(|cores| cores.parse::<u64>()) {
                put(values, &format!("proxy.runtime.workers.{workers}"), cores);
            }
        }
        set(
            values,
            "proxy.resources.memory.request",
            &self.proxy_memory_request,
        );
        set(
            values,
            "proxy.resources.memory.limit",
            &self.proxy_memory_limit,
        );
        if self.enable_external_profiles {
            put(values, "proxy.enableExternalProfiles", true);
        }
        set(
            values,
            "proxy.defaultInboundPolicy",
            &self.default_inbound_policy,
        );
    }

    /// What to say about flags that are on their way out.
    pub fn deprecations(&self) -> Vec<String> {
        [
            (
                "proxy-cpu",
                "use --proxy-cpu-request instead",
                self.proxy_cpu.is_some(),
            ),
            (
                "proxy-memory",
                "use --proxy-memory-request instead",
                self.proxy_memory.is_some(),
            ),
            (
                "proxy-version",
                "use --set proxy.image.version instead",
                self.proxy_version.is_some(),
            ),
            (
                "init-image",
                "use --set proxyInit.image.name instead",
                self.init_image.is_some(),
            ),
            (
                "init-image-version",
                "use --set proxyInit.image.version instead",
                self.init_image_version.is_some(),
            ),
        ]
        .into_iter()
        .filter(|(_, _, given)| *given)
        .map(|(flag, advice, _)| format!("Flag --{flag} has been deprecated, {advice}"))
        .collect()
    }
}

#[cfg(test)]
mod tests;
