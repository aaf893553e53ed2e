//! `linkerd install-cni`: prints the manifests of the CNI plugin.

use crate::{
    chart::Chart,
    context::Context,
    install::{CNI, Objects, defaults, validate, warn_unknown},
    values::{Overrides, lay_over, put, text},
};
use anyhow::{Result, bail};
use linkerd_runtime::version::VERSION;
use serde_json::Value;
use std::env;

/// Print the manifests that install the CNI plugin
///
/// With the plugin, pods need no init container to redirect their traffic: the node does it when it
/// makes them. Install it before the control plane.
///
/// Examples:
///   linkerd install-cni | kubectl apply -f -
///   linkerd install --crds | kubectl apply -f -
///   linkerd install --linkerd-cni-enabled | kubectl apply -f -
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Version of the plugin
    #[arg(short = 'v', long, value_name = "VERSION")]
    linkerd_version: Option<String>,
    /// Registry of the image [env: LINKERD_DOCKER_REGISTRY]
    #[arg(long, value_name = "REGISTRY")]
    registry: Option<String>,
    /// Image of the plugin
    #[arg(long, value_name = "IMAGE")]
    cni_image: Option<String>,
    /// Tag of the plugin's image
    #[arg(long, value_name = "TAG")]
    cni_image_version: Option<String>,
    /// Log level of the plugin: panic, fatal, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    cni_log_level: Option<String>,
    /// User ID of the proxy
    #[arg(long, value_name = "UID", allow_negative_numbers = true)]
    proxy_uid: Option<i64>,
    /// Group ID of the proxy
    #[arg(long, value_name = "GID", allow_negative_numbers = true)]
    proxy_gid: Option<i64>,
    /// Port of the proxy for connections to the pod
    #[arg(long, value_name = "PORT")]
    inbound_port: Option<u16>,
    /// Port of the proxy for connections from the pod
    #[arg(long, value_name = "PORT")]
    outbound_port: Option<u16>,
    /// Port on which the proxy answers control requests
    #[arg(long, value_name = "PORT")]
    control_port: Option<u16>,
    /// Port on which the proxy serves metrics and probes
    #[arg(long, value_name = "PORT")]
    admin_port: Option<u16>,
    /// Ports and ranges that skip the proxy on the way in
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    skip_inbound_ports: Option<Vec<String>>,
    /// Ports and ranges that skip the proxy on the way out
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    skip_outbound_ports: Option<Vec<String>>,
    /// Redirect only these ports on the way in [default: all]
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    redirect_ports: Option<Vec<u16>>,
    /// Directory of the node with the network configuration
    #[arg(long, value_name = "DIR")]
    dest_cni_net_dir: Option<String>,
    /// Directory of the node with the plugins
    #[arg(long, value_name = "DIR")]
    dest_cni_bin_dir: Option<String>,
    /// Priority class of the plugin's pods
    #[arg(long, value_name = "NAME")]
    priority_class_name: Option<String>,
    /// Let iptables wait for its lock
    #[arg(long)]
    use_wait_flag: bool,
    #[command(flatten)]
    overrides: Overrides,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let chart = Chart::named(CNI)?;
    let mut values = defaults(&chart)?;
    args.apply(&mut values, env::var("LINKERD_DOCKER_REGISTRY").ok());
    let given = args.overrides.read().await?;
    warn_unknown(context.printer, &defaults(&chart)?, &given);
    lay_over(&mut values, given);
    validated(&values)?;
    let namespace = context.global.cni_namespace.clone();
    Objects::cni(&values, &namespace)?.print(context.printer, super::Format::Yaml)?;
    context.printer.out("---")?;
    Ok(())
}

impl Args {
    /// The environment's registry wins over the flag's here, other than at `install`.
    fn apply(&self, values: &mut Value, environment: Option<String>) {
        put(values, "image.version", VERSION);
        if let Some(image) = &self.cni_image {
            put(values, "image.name", image.as_str());
        }
        let version = self
            .cni_image_version
            .as_ref()
            .or(self.linkerd_version.as_ref());
        if let Some(version) = version {
            put(values, "image.version", version.as_str());
        }
        let registry = environment.filter(|registry| !registry.is_empty());
        if let Some(registry) = registry.or_else(|| self.registry.clone()) {
            let name = text(values, "image.name");
            let name = name.rsplit('/').next().unwrap_or_default().to_owned();
            let name = format!("{}/{name}", registry.trim_end_matches('/'));
            put(values, "image.name", name);
        }
        for (path, given) in [
            ("logLevel", &self.cni_log_level),
            ("destCNINetDir", &self.dest_cni_net_dir),
            ("destCNIBinDir", &self.dest_cni_bin_dir),
            ("priorityClassName", &self.priority_class_name),
        ] {
            if let Some(given) = given {
                put(values, path, given.as_str());
            }
        }
        for (path, given) in [("proxyUID", self.proxy_uid), ("proxyGID", self.proxy_gid)] {
            if let Some(given) = given {
                put(values, path, given);
            }
        }
        for (path, given) in [
            ("inboundProxyPort", self.inbound_port),
            ("outboundProxyPort", self.outbound_port),
            ("proxyControlPort", self.control_port),
            ("proxyAdminPort", self.admin_port),
        ] {
            if let Some(given) = given {
                put(values, path, given);
            }
        }
        for (path, given) in [
            ("ignoreInboundPorts", &self.skip_inbound_ports),
            ("ignoreOutboundPorts", &self.skip_outbound_ports),
        ] {
            if let Some(given) = given {
                put(values, path, given.join(","));
            }
        }
        if let Some(ports) = &self.redirect_ports {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            put(values, "portsToRedirect", ports.join(","));
        }
        if self.use_wait_flag {
            put(values, "useWaitFlag", true);
        }
    }
}

fn validated(values: &Value) -> Result<()> {
    let levels = validate::CONTROLLER_LEVELS;
    if !levels.contains(&text(values, "logLevel")) {
        bail!("--cni-log-level must be one of: {}", levels.join(", "));
    }
    validate::version(text(values, "image.version"), false)?;
    for path in [
        "ignoreInboundPorts",
        "ignoreOutboundPorts",
        "portsToRedirect",
    ] {
        let entries = text(values, path).split(',').map(str::trim);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            validate::port_range(entry)?;
        }
    }
    Ok(())
}
