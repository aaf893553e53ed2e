//! One element of a conflist, as the runtime hands it over with the result of the plugins before.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

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

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    pub kubeconfig: String,
    /// Where the installer's own pods are.
    pub namespace: String,
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

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            namespace: "linkerd-cni".to_owned(),
        }
    }
}

/// What a result must look like to be passed on.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only whether it can be read matters")]
struct Previous {
    interfaces: Option<Vec<Map<String, Value>>>,
    ips: Option<Vec<Map<String, Value>>>,
    routes: Option<Vec<Map<String, Value>>>,
    dns: Option<Map<String, Value>>,
}

impl NetConf {
    pub fn read(stdin: &[u8]) -> Result<Self> {
        serde_json::from_slice(stdin).context("linkerd-cni: failed to parse network configuration")
    }

    /// Refuses a result of the plugins before that is none.
    pub fn check_previous(&self) -> Result<()> {
        let Some(previous) = &self.prev_result else {
            return Ok(());
        };
        ensure!(
            previous.is_object(),
            "linkerd-cni: could not parse prevResult: not an object"
        );
        Previous::deserialize(previous)
            .map(|_| ())
            .context("linkerd-cni: could not parse prevResult")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(conf: &Value) -> NetConf {
        NetConf::read(conf.to_string().as_bytes()).expect("a configuration")
    }

    #[test]
    fn missing_keys_are_the_defaults_and_unknown_ones_ignored() {
        let conf =
            read(&json!({"name": "linkerd-cni", "policy": {"type": "k8s"}, "linkerd": {"x": 1}}));
        let linkerd = &conf.linkerd;
        assert_eq!(
            (linkerd.incoming_proxy_port, linkerd.outgoing_proxy_port),
            (4143, 4140)
        );
        assert_eq!((linkerd.proxy_uid, linkerd.proxy_gid), (2102, 0));
        assert!(!linkerd.ipv6 && !linkerd.use_wait_flag && !linkerd.simulate);
        assert!(linkerd.ports_to_redirect.is_empty() && linkerd.iptables_mode.is_empty());
        assert_eq!(conf.kubernetes.namespace, "linkerd-cni");
        assert_eq!((conf.cni_version.as_str(), conf.prev_result), ("", None));
    }

    #[test]
    fn every_key_is_read() {
        let conf = read(&json!({
            "cniVersion": "1.0.0", "log_level": "debug",
            "kubernetes": {"kubeconfig": "/k", "namespace": "net", "k8s_api_root": "unused"},
            "linkerd": {
                "incoming-proxy-port": 1, "outgoing-proxy-port": 2, "proxy-uid": 3, "proxy-gid": 4,
                "ports-to-redirect": [80], "inbound-ports-to-ignore": ["5"],
                "outbound-ports-to-ignore": ["6"], "subnets-to-ignore": ["10.0.0.0/8"],
                "simulate": true, "use-wait-flag": true, "iptables-mode": "plain", "ipv6": true,
            },
        }));
        assert_eq!(
            (conf.cni_version.as_str(), conf.log_level.as_str()),
            ("1.0.0", "debug")
        );
        assert_eq!(conf.kubernetes.kubeconfig, "/k");
        assert_eq!(conf.kubernetes.namespace, "net");
        let linkerd = conf.linkerd;
        assert_eq!(
            (linkerd.incoming_proxy_port, linkerd.outgoing_proxy_port),
            (1, 2)
        );
        assert_eq!((linkerd.proxy_uid, linkerd.proxy_gid), (3, 4));
        assert_eq!(linkerd.ports_to_redirect, [80]);
        assert_eq!(linkerd.inbound_ports_to_ignore, ["5"]);
        assert_eq!(linkerd.outbound_ports_to_ignore, ["6"]);
        assert_eq!(linkerd.subnets_to_ignore, ["10.0.0.0/8"]);
        assert!(linkerd.simulate && linkerd.use_wait_flag && linkerd.ipv6);
        assert_eq!(linkerd.iptables_mode, "plain");
    }

    #[test]
    fn a_result_that_is_none_is_refused() {
        for (name, previous, good) in [
            ("none", json!(null), true),
            ("an empty one", json!({}), true),
            (
                "a full one",
                json!({"cniVersion": "0.4.0", "interfaces": [{"name": "eth0"}], "ips": [{"address": "10.0.0.2/24"}], "routes": [], "dns": {}}),
                true,
            ),
            ("a text", json!("text"), false),
            ("a list", json!([]), false),
            ("no addresses", json!({"ips": "10.0.0.2"}), false),
        ] {
            let checked = read(&json!({"prevResult": previous})).check_previous();
            assert_eq!(checked.is_ok(), good, "{name}");
            if let Err(error) = checked {
                let said = format!("{error:#}");
                assert!(
                    said.starts_with("linkerd-cni: could not parse prevResult: "),
                    "{said}"
                );
            }
        }
    }
}
