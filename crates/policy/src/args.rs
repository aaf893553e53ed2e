//! Flags of the policy controller and its parts, for whoever puts a process together.
//!
//! ```text
//! let index = args.index();
//! args::subscribe(&index, &mut watches);                     // then start the watches
//! tonic router: Policies::new(index, drain, metrics).inbound() / .outbound() on --grpc-addr
//! admission::serve(--server-addr, certificates, PolicyValidator)
//! let (candidate, leadership) = args.candidate(client, hostname, owner);
//! let writer = spawn(Writer::new(index, client, leadership, drain, args.patch_timeout(), …).run());
//! candidate.run_for(writer, drain, args.patch_timeout())
//! ```

use ipnet::IpNet;
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, Client, Resource};
use linkerd_k8s::{
    ExternalWorkload, Pod, PortSet, Service, Watches, labels,
    lease::{Candidate, Leadership, Params},
    policy as k8s,
};
use linkerd_runtime::listen::ListenAddr;
use parking_lot::Mutex;
use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{cluster::Cluster, inbound::DefaultPolicy, index::Index};

/// The lease under which statuses are written.
pub const LEASE: &str = "policy-controller-write";
const LEASE_DURATION: Duration = Duration::from_secs(30);

/// Flags as users write them.
// Without a group: whoever flattens these flags has others of the same name.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Address to serve policies on
    #[arg(long, default_value = "0.0.0.0:8090")]
    pub grpc_addr: ListenAddr,
    /// Address of the admission webhook
    #[arg(long, default_value = "0.0.0.0:443")]
    pub server_addr: ListenAddr,
    /// Private key of the admission webhook
    #[arg(long, default_value = "/var/run/linkerd/tls/tls.key")]
    pub server_tls_key: PathBuf,
    /// Certificate chain of the admission webhook
    #[arg(long, default_value = "/var/run/linkerd/tls/tls.crt")]
    pub server_tls_certs: PathBuf,
    /// Do not serve the admission webhook
    #[arg(long)]
    pub admission_controller_disabled: bool,
    /// Networks of pods and services
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16"
    )]
    pub cluster_networks: Vec<IpNet>,
    /// Trust domain of identities
    #[arg(long, default_value = "cluster.local")]
    pub identity_domain: String,
    /// Policy of ports that have none
    #[arg(long, default_value = "all-unauthenticated")]
    pub default_policy: DefaultPolicy,
    /// Deployment that owns the lease
    #[arg(long, default_value = "linkerd-destination")]
    pub policy_deployment_name: String,
    /// Where the control plane runs
    #[arg(long, default_value = "linkerd")]
    pub control_plane_namespace: String,
    /// Networks probes come from
    #[arg(long, value_delimiter = ',')]
    pub probe_networks: Vec<IpNet>,
    /// Time limit of writing one status
    #[arg(long, default_value_t = 5000)]
    pub patch_timeout_ms: u64,
    /// Let request headers override timeouts and retries
    #[arg(long)]
    pub allow_l5d_request_headers: bool,
    /// Namespace whose EgressNetworks are for everyone
    #[arg(long, default_value = "linkerd-egress")]
    pub global_egress_network_namespace: String,
}

/// Flags that other services of the same process have too.
#[derive(Clone, Debug, clap::Args)]
pub struct SharedArgs {
    /// DNS domain of services
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Ports that are opaque unless an annotation says otherwise
    #[arg(long)]
    pub default_opaque_ports: PortSet,
}

impl Args {
    /// The settings these flags stand for. The domain and the opaque ports come separately, since
    /// the destination service of the same process has flags of that name.
    pub fn cluster(&self, dns_domain: &str, default_opaque_ports: PortSet) -> Cluster {
        Cluster {
            networks: self.cluster_networks.clone(),
            control_plane_namespace: self.control_plane_namespace.clone(),
            identity_domain: self.identity_domain.clone(),
            dns_domain: dns_domain.to_owned(),
            default_policy: self.default_policy,
            default_opaque_ports,
            probe_networks: self.probe_networks.clone(),
            global_egress_namespace: self.global_egress_network_namespace.clone(),
            allow_l5d_request_headers: self.allow_l5d_request_headers,
        }
    }

    /// How long writing one status may take.
    pub fn patch_timeout(&self) -> Duration {
        Duration::from_millis(self.patch_timeout_ms)
    }

    /// Competes for the lease that guards statuses.
    pub fn candidate(
        &self,
        client: Client,
        identity: &str,
        owner: Option<OwnerReference>,
    ) -> (Candidate, Leadership) {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let params = Params {
            namespace: self.control_plane_namespace.clone(),
            name: LEASE.to_owned(),
            identity: identity.to_owned(),
            field_manager: "policy-controller".to_owned(),
            labels: [
                label(labels::CONTROL_PLANE_COMPONENT, "destination"),
                label(labels::CONTROL_PLANE_NS, &self.control_plane_namespace),
            ]
            .into(),
            owner,
            duration: LEASE_DURATION,
            renew_after: LEASE_DURATION - Duration::from_secs(1),
            retry: Duration::from_secs(1),
        };
        Candidate::new(client, params)
    }

    /// The Deployment that should own the lease, if it is there.
    pub async fn lease_owner(&self, client: Client) -> Option<OwnerReference> {
        let api: Api<Deployment> = Api::namespaced(client, &self.control_plane_namespace);
        let deployment = api.get_metadata_opt(&self.policy_deployment_name).await;
        let deployment = deployment
            .inspect_err(|error| tracing::warn!(%error, "Cannot read the owner of the lease"));
        let metadata = deployment.ok().flatten()?.metadata;
        Some(OwnerReference {
            api_version: Deployment::api_version(&()).into_owned(),
            kind: Deployment::kind(&()).into_owned(),
            name: metadata.name?,
            uid: metadata.uid?,
            controller: Some(true),
            block_owner_deletion: None,
        })
    }
}

/// Asks for every kind the index needs.
pub fn subscribe(index: &Arc<Mutex<Index>>, watches: &mut Watches) {
    watches.subscribe::<Pod, _>(index);
    watches.subscribe::<ExternalWorkload, _>(index);
    watches.subscribe::<Service, _>(index);
    watches.subscribe::<k8s::Server, _>(index);
    watches.subscribe::<k8s::ServerAuthorization, _>(index);
    watches.subscribe::<k8s::AuthorizationPolicy, _>(index);
    watches.subscribe::<k8s::MeshTLSAuthentication, _>(index);
    watches.subscribe::<k8s::NetworkAuthentication, _>(index);
    watches.subscribe::<k8s::HTTPLocalRateLimitPolicy, _>(index);
    watches.subscribe::<k8s::EgressNetwork, _>(index);
    watches.subscribe::<k8s::PolicyHttpRoute, _>(index);
    watches.subscribe::<k8s::HttpRoute, _>(index);
    watches.subscribe::<k8s::GrpcRoute, _>(index);
    watches.subscribe::<k8s::TlsRoute, _>(index);
    watches.subscribe::<k8s::TcpRoute, _>(index);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
        #[command(flatten)]
        shared: SharedArgs,
    }

    #[test]
    fn defaults_and_chart_values() {
        let parse = |flags: &[&str]| Cli::try_parse_from([&["policy"], flags].concat());
        let cli = parse(&["--default-opaque-ports=25,3306"]).expect("defaults");
        assert_eq!(cli.args.grpc_addr.to_string(), "0.0.0.0:8090");
        assert_eq!(cli.args.cluster_networks.len(), 4);
        assert!(cli.args.probe_networks.is_empty());
        let cluster = cli.args.cluster(
            &cli.shared.cluster_domain,
            cli.shared.default_opaque_ports.clone(),
        );
        assert!(cluster.default_opaque_ports.contains(3306));
        assert_eq!(cluster.default_policy, DefaultPolicy::AllUnauthenticated);

        let cli = parse(&[
            "--default-opaque-ports=25",
            "--grpc-addr=[::]:8090",
            "--server-addr=[::]:9443",
            "--probe-networks=0.0.0.0/0,::/0",
            "--default-policy=cluster-authenticated",
            "--cluster-networks=10.0.0.0/8,fd00::/8",
            "--global-egress-network-namespace=linkerd-egress",
        ])
        .expect("as the chart has them");
        assert_eq!(cli.args.probe_networks.len(), 2);
        assert!(parse(&[]).is_err(), "opaque ports are required");
        assert!(parse(&["--default-opaque-ports=1", "--default-policy=some"]).is_err());
    }
}
