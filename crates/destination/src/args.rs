//! Flags of the destination service.

use std::time::Duration;

use linkerd_core::duration;
use linkerd_k8s::PortSet;
use linkerd_runtime::listen::ListenAddr;
use serde::Deserialize;
use tracing::{error, warn};

use crate::config::{Config, FlowControl, Http2Params, KeepAlive};

/// Flags as users write them; [`Args::config`] turns them into settings.
// Without a group: whoever flattens these flags has others of the same name.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Address to serve on
    #[arg(long, default_value = ":8086")]
    pub addr: ListenAddr,
    /// Address to serve scrapable metrics on
    #[arg(long, default_value = ":9996")]
    pub metrics_addr: ListenAddr,
    /// Namespace in which the control plane is installed
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// How proxies reach meshed peers: transparent or transport-header
    #[arg(long, default_value = "transparent")]
    pub outbound_transport_mode: String,
    /// Carry HTTP/1 between proxies as HTTP/2
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_h2_upgrade: bool,
    /// Read EndpointSlices instead of Endpoints
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_endpoint_slices: bool,
    /// Answer with IPv6 addresses
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_ipv6: bool,
    /// Trust domain of identities
    #[arg(long, default_value = "")]
    pub identity_trust_domain: String,
    /// Domain of the cluster's DNS names
    #[arg(long, default_value = "")]
    pub cluster_domain: String,
    /// Ports whose protocol is not detected unless annotated otherwise
    #[arg(long, default_value = "")]
    pub default_opaque_ports: String,
    /// Updates a stream may lag behind before it counts as slow
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub stream_queue_capacity: u64,
    /// Accepted for compatibility: streams have no queues to measure
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", hide = true)]
    pub export_queue_metrics: bool,
    /// Prefer endpoints in the client's zone
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub ext_endpoint_zone_weights: bool,
    /// Name of this replica, under which it claims leases
    #[arg(long, env = "HOSTNAME", default_value = "", hide = true)]
    pub hostname: String,
    /// HTTP/2 settings of connections between proxies, as JSON
    #[arg(long, default_value = "")]
    pub meshed_http2_client_params: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidArgs {
    #[error("IPv6 requires EndpointSlices: set --enable-endpoint-slices or unset --enable-ipv6")]
    Ipv6WithoutSlices,
    #[error("--meshed-http2-client-params: {0}")]
    Http2Params(String),
}

impl Args {
    pub fn config(&self) -> Result<Config, InvalidArgs> {
        if self.enable_ipv6 && !self.enable_endpoint_slices {
            return Err(InvalidArgs::Ipv6WithoutSlices);
        }
        let transport_header = match self.outbound_transport_mode.as_str() {
            "transport-header" => true,
            "transparent" => false,
            mode => {
                error!(
                    mode,
                    "Unknown --outbound-transport-mode, acting as transparent"
                );
                false
            }
        };
        let default_opaque_ports = PortSet::parse_named(
            &self.default_opaque_ports,
            |_| None,
            |entry| warn!(entry, "--default-opaque-ports has an entry that is no port"),
        );
        Ok(Config {
            controller_namespace: self.controller_namespace.clone(),
            trust_domain: or_cluster_local(&self.identity_trust_domain, "--identity-trust-domain"),
            cluster_domain: or_cluster_local(&self.cluster_domain, "--cluster-domain"),
            default_opaque_ports,
            transport_header,
            enable_h2_upgrade: self.enable_h2_upgrade,
            enable_endpoint_slices: self.enable_endpoint_slices,
            enable_ipv6: self.enable_ipv6,
            zone_weights: self.ext_endpoint_zone_weights,
            http2: http2_params(&self.meshed_http2_client_params)?,
            stream_queue_capacity: self.stream_queue_capacity,
        })
    }
}

fn or_cluster_local(value: &str, flag: &str) -> String {
    if value.is_empty() {
        warn!("{flag} is not set, using cluster.local");
        return "cluster.local".to_owned();
    }
    value.to_owned()
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Params {
    flow_control: Option<Flow>,
    keep_alive: Option<Alive>,
    internals: Internals,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Flow {
    initial_connection_window_size: u32,
    initial_stream_window_size: u32,
    adaptive_flow_control: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Alive {
    interval: Option<Time>,
    timeout: Option<Time>,
    while_idle: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Internals {
    max_concurrent_reset_streams: Option<u32>,
    max_frame_size: Option<u32>,
    max_send_buf_size: Option<u32>,
}

/// Seconds and nanoseconds as protobuf has them, or a text such as `10s`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Time {
    Text(String),
    Parts {
        #[serde(default)]
        seconds: u64,
        #[serde(default)]
        nanos: u32,
    },
}

fn http2_params(json: &str) -> Result<Option<Http2Params>, InvalidArgs> {
    if json.trim().is_empty() {
        return Ok(None);
    }
    let invalid = |error: &dyn std::fmt::Display| InvalidArgs::Http2Params(error.to_string());
    let params: Params = serde_json::from_str(json).map_err(|error| invalid(&error))?;
    let time = |time: Option<Time>| match time {
        None => Ok(None),
        Some(Time::Text(text)) => duration::parse(&text)
            .map(Some)
            .map_err(|error| invalid(&error)),
        Some(Time::Parts { seconds, nanos }) => Ok(Some(Duration::new(seconds, nanos))),
    };
    let keep_alive = match params.keep_alive {
        None => None,
        Some(it) => Some(KeepAlive {
            interval: time(it.interval)?,
            timeout: time(it.timeout)?,
            while_idle: it.while_idle,
        }),
    };
    Ok(Some(Http2Params {
        flow_control: params.flow_control.map(|it| FlowControl {
            initial_connection_window_size: it.initial_connection_window_size,
            initial_stream_window_size: it.initial_stream_window_size,
            adaptive: it.adaptive_flow_control,
        }),
        keep_alive,
        max_concurrent_reset_streams: params.internals.max_concurrent_reset_streams,
        max_frame_size: params.internals.max_frame_size,
        max_send_buf_size: params.internals.max_send_buf_size,
    }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn config(flags: &[&str]) -> Result<Config, InvalidArgs> {
        let flags = std::iter::once("destination").chain(flags.iter().copied());
        Cli::try_parse_from(flags)
            .expect("known flags")
            .args
            .config()
    }

    #[test]
    fn defaults() {
        let args = Cli::try_parse_from(["destination"])
            .expect("no flag is required")
            .args;
        assert_eq!(args.addr.to_string(), ":8086");
        assert_eq!(args.metrics_addr.to_string(), ":9996");
        let config = args.config().expect("valid");
        assert_eq!(config.trust_domain, "cluster.local");
        assert!(config.enable_ipv6 && config.enable_h2_upgrade && !config.transport_header);
    }

    #[test]
    fn what_the_chart_passes() {
        let config = config(&[
            "--outbound-transport-mode=transport-header",
            "--enable-ipv6=false",
            "--enable-endpoint-slices",
            "--default-opaque-ports=25,587,3306",
            r#"--meshed-http2-client-params={"keep_alive":{"interval":{"seconds":10},"timeout":"3s","while_idle":true}}"#,
        ])
        .expect("valid");
        assert!(config.transport_header && !config.enable_ipv6);
        assert!(config.default_opaque_ports.contains(3306));
        let keep_alive = config
            .http2
            .expect("params")
            .keep_alive
            .expect("keep alive");
        assert_eq!(keep_alive.interval, Some(Duration::from_secs(10)));
        assert_eq!(keep_alive.timeout, Some(Duration::from_secs(3)));
    }

    #[test]
    fn refusals() {
        assert_eq!(
            config(&["--enable-endpoint-slices=false"]).expect_err("no slices, no IPv6"),
            InvalidArgs::Ipv6WithoutSlices
        );
        assert!(matches!(
            config(&["--meshed-http2-client-params={"]).expect_err("not JSON"),
            InvalidArgs::Http2Params(_)
        ));
    }
}
