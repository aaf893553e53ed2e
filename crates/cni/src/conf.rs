//! One element of a conflist, as the runtime hands it over with the result of the plugins before.

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NetConf {
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    pub log_level: String,
    pub kubernetes: Kubernetes,
    pub linkerd: Redirect,
    #[serde(rename = "prevResult")]
    pub prev_result: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    pub kubeconfig: String,
}

/// How pods are redirected that say nothing else.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Redirect {
    pub incoming_proxy_port: i64,
    pub outgoing_proxy_port: i64,
    pub proxy_uid: i64,
    pub proxy_gid: i64,
    pub ports_to_redirect: Vec<i64>,
    pub inbound_ports_to_ignore: Vec<String>,
    pub outbound_ports_to_ignore: Vec<String>,
    pub subnets_to_ignore: Vec<String>,
    pub simulate: bool,
    pub use_wait_flag: bool,
    pub iptables_mode: String,
    pub ipv6: bool,
}

impl Default for Redirect {
    fn default() -> Self {
        Self {
            incoming_proxy_port: 4143,
            outgoing_proxy_port: 4140,
            proxy_uid: 2102,
            proxy_gid: 0,
            ports_to_redirect: Vec::new(),
            inbound_ports_to_ignore: Vec::new(),
            outbound_ports_to_ignore: Vec::new(),
            subnets_to_ignore: Vec::new(),
            simulate: false,
            use_wait_flag: false,
            iptables_mode: String::new(),
            ipv6: false,
        }
    }
}

impl NetConf {
    pub fn read(stdin: &[u8]) -> Result<Self> {
        serde_json::from_slice(stdin).context("linkerd-cni: failed to parse network configuration")
    }
}
