//! Settings of discovery after flags have been read and checked.

use std::time::Duration;

use linkerd_k8s::PortSet;

/// What shapes the answers of one cluster's index.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where our own control plane runs; only its pods' identities are known.
    pub controller_namespace: String,
    pub trust_domain: String,
    pub cluster_domain: String,
    pub default_opaque_ports: PortSet,
    /// Send the transport header to every meshed port, not only to opaque ones.
    pub transport_header: bool,
    pub enable_h2_upgrade: bool,
    pub enable_endpoint_slices: bool,
    pub enable_ipv6: bool,
    /// Endpoints in the client's zone weigh ten times as much.
    pub zone_weights: bool,
    /// Settings of HTTP/2 connections between proxies.
    pub http2: Option<Http2Params>,
    /// Snapshots a reader may lag behind before it counts as slow.
    pub stream_queue_capacity: u64,
}

/// The part of the HTTP/2 client's settings that is configurable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Http2Params {
    pub flow_control: Option<FlowControl>,
    pub keep_alive: Option<KeepAlive>,
    pub max_concurrent_reset_streams: Option<u32>,
    pub max_frame_size: Option<u32>,
    pub max_send_buf_size: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowControl {
    pub initial_connection_window_size: u32,
    pub initial_stream_window_size: u32,
    pub adaptive: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepAlive {
    pub interval: Option<Duration>,
    pub timeout: Option<Duration>,
    pub while_idle: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            controller_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            default_opaque_ports: PortSet::default(),
            transport_header: false,
            enable_h2_upgrade: true,
            enable_endpoint_slices: true,
            enable_ipv6: true,
            zone_weights: false,
            http2: None,
            stream_queue_capacity: 100,
        }
    }
}
