//! What the policy controller knows about its cluster from its command line.

use ipnet::IpNet;
use linkerd_core::policy::inbound::Network;
use linkerd_k8s::PortSet;
use std::net::IpAddr;

use crate::inbound::DefaultPolicy;

/// Settings of the cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Networks of pods and services.
    pub networks: Vec<IpNet>,
    /// Where the control plane runs; part of every identity.
    pub control_plane_namespace: String,
    /// Trust domain of identities.
    pub identity_domain: String,
    /// DNS domain of services.
    pub dns_domain: String,
    /// Policy of ports nobody wrote a policy for.
    pub default_policy: DefaultPolicy,
    /// Ports that are opaque unless an annotation says otherwise.
    pub default_opaque_ports: PortSet,
    /// Where probes come from; without any, probes are not allowed by default.
    pub probe_networks: Vec<IpNet>,
    /// Namespace whose EgressNetworks are for everyone.
    pub global_egress_namespace: String,
    /// Whether request headers may override timeouts and retries.
    pub allow_l5d_request_headers: bool,
}

impl Cluster {
    /// Identity of a ServiceAccount.
    pub fn service_account_identity(&self, namespace: &str, name: &str) -> String {
        format!(
            "{name}.{namespace}.serviceaccount.identity.{}.{}",
            self.control_plane_namespace, self.identity_domain
        )
    }

    /// Identity pattern of all ServiceAccounts of a namespace.
    pub fn namespace_identity(&self, namespace: &str) -> String {
        self.service_account_identity(namespace, "*")
    }

    /// Whether an address is inside the cluster.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|net| net.contains(&ip))
    }

    /// The cluster networks as an authorization holds them.
    pub fn as_networks(&self) -> Vec<Network> {
        self.networks.iter().copied().map(Network::from).collect()
    }

    /// Name endpoints of a Service port are looked up by.
    pub fn authority(&self, namespace: &str, name: &str, port: u16) -> String {
        format!("{name}.{namespace}.svc.{}:{port}", self.dns_domain)
    }
}

/// Every address of both families.
pub(crate) fn all_networks() -> Vec<Network> {
    [IpNet::V4(Default::default()), IpNet::V6(Default::default())]
        .map(Network::from)
        .to_vec()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A cluster as the charts configure it.
    pub(crate) fn cluster() -> Cluster {
        Cluster {
            networks: [
                "10.0.0.0/8",
                "100.64.0.0/10",
                "172.16.0.0/12",
                "192.168.0.0/16",
                "fd00::/8",
            ]
            .map(|net| net.parse().expect("a network"))
            .to_vec(),
            control_plane_namespace: "linkerd".to_owned(),
            identity_domain: "cluster.local".to_owned(),
            dns_domain: "cluster.local".to_owned(),
            default_policy: DefaultPolicy::AllUnauthenticated,
            default_opaque_ports: "25,3306,4444".parse().expect("ports"),
            probe_networks: Vec::new(),
            global_egress_namespace: "linkerd-egress".to_owned(),
            allow_l5d_request_headers: false,
        }
    }

    #[test]
    fn names() {
        let cluster = cluster();
        assert_eq!(
            cluster.service_account_identity("shop", "web"),
            "web.shop.serviceaccount.identity.linkerd.cluster.local"
        );
        assert_eq!(
            cluster.namespace_identity("shop"),
            "*.shop.serviceaccount.identity.linkerd.cluster.local"
        );
        assert_eq!(
            cluster.authority("shop", "web", 80),
            "web.shop.svc.cluster.local:80"
        );
        assert!(cluster.contains("10.1.2.3".parse().expect("ip")));
        assert!(!cluster.contains("8.8.8.8".parse().expect("ip")));
    }
}
