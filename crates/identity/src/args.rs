//! The flags of `linkerd-controller identity`, named as Linkerd names them.

use std::{path::PathBuf, time::Duration};

use anyhow::ensure;
use linkerd_core::{
    duration,
    identity::{is_dns_label, is_dns_subdomain},
};
use linkerd_runtime::listen::ListenAddr;
use linkerd_tls::Validity;

use crate::{authority::Files, certify::Config};

const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_CLOCK_SKEW: Duration = Duration::from_secs(10);
/// How often a proxy asks for the trust anchors when there are few of them.
const ANCHORS_INTERVAL: Duration = Duration::from_secs(10);
/// The scheme whose secret uses Linkerd's own file names.
const LINKERD_SCHEME: &str = "linkerd.io/tls";

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// address to serve on
    #[arg(long, default_value = ":8080")]
    pub addr: ListenAddr,

    /// address of HTTP admin server
    #[arg(long, default_value = ":9990")]
    pub admin_addr: ListenAddr,

    /// namespace in which Linkerd is installed
    #[arg(long, default_value = "")]
    pub controller_namespace: String,

    /// scheme used for the identity issuer secret format
    #[arg(long, default_value = "")]
    pub identity_scheme: String,

    /// configures the name suffix used for identities
    #[arg(long, default_value = "")]
    pub identity_trust_domain: String,

    /// the amount of time for which the Identity issuer should certify identity
    #[arg(long, default_value = "")]
    pub identity_issuance_lifetime: String,

    /// the amount of time to allow for clock skew within a Linkerd cluster
    #[arg(long, default_value = "")]
    pub identity_clock_skew_allowance: String,

    /// maximum QPS sent to the kube-apiserver before throttling
    #[arg(long, default_value_t = 100.0)]
    pub kube_apiclient_qps: f64,

    /// burst value over kube-apiclient-qps
    #[arg(long, default_value_t = 200)]
    pub kube_apiclient_burst: u32,

    /// path to directory containing issuer credentials
    #[arg(long, default_value = "/var/run/linkerd/identity/issuer")]
    pub issuer: PathBuf,

    /// path to the trust anchor bundle
    #[arg(
        long,
        hide = true,
        default_value = "/var/run/linkerd/identity/trust-roots/ca-bundle.crt"
    )]
    pub trust_roots: PathBuf,

    /// ConfigMap the trust anchor bundle is mounted from; read directly where that is allowed,
    /// because a mounted one comes up to two minutes later
    #[arg(long, hide = true, default_value = "linkerd-identity-trust-roots")]
    pub trust_roots_config_map: String,

    /// path to kube config
    #[arg(long, default_value = "")]
    pub kubeconfig: String,
}

impl Args {
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        ensure!(
            is_dns_label(&self.controller_namespace),
            "invalid controller namespace {:?}: not a DNS-1123 label",
            self.controller_namespace
        );
        ensure!(
            is_dns_subdomain(&self.identity_trust_domain),
            "invalid identity trust domain {:?}: not a DNS-1123 subdomain",
            self.identity_trust_domain
        );
        Ok(Config {
            controller_namespace: self.controller_namespace.clone(),
            trust_domain: self.identity_trust_domain.clone(),
            validity: Validity {
                lifetime: duration_or(
                    "identity-issuance-lifetime",
                    &self.identity_issuance_lifetime,
                    DEFAULT_LIFETIME,
                ),
                clock_skew: duration_or(
                    "identity-clock-skew-allowance",
                    &self.identity_clock_skew_allowance,
                    DEFAULT_CLOCK_SKEW,
                ),
            },
            anchors_interval: ANCHORS_INTERVAL,
        })
    }

    pub(crate) fn files(&self) -> Files {
        let (certificate, key) = if self.identity_scheme == LINKERD_SCHEME {
            ("crt.pem", "key.pem")
        } else {
            ("tls.crt", "tls.key")
        };
        Files {
            certificate: self.issuer.join(certificate),
            key: self.issuer.join(key),
            anchors: self.trust_roots.clone(),
        }
    }
}

/// A bad value is no reason not to start: certificates would stop for the whole mesh.
fn duration_or(flag: &'static str, value: &str, default: Duration) -> Duration {
    if value.is_empty() {
        return default;
    }
    match duration::parse(value) {
        Ok(parsed) => parsed,
        Err(error) => {
            tracing::warn!(flag, %error, ?default, "Invalid duration, using the default");
            default
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &[&str]) -> Args {
        Command::try_parse_from([&["identity"], flags].concat())
            .expect("flags parse")
            .args
    }

    #[test]
    fn the_charts_flags_parse() {
        let args = parse(&[
            "--controller-namespace=linkerd",
            "--identity-trust-domain=cluster.local",
            "--identity-issuance-lifetime=24h0m0s",
            "--identity-clock-skew-allowance=20s",
            "--identity-scheme=linkerd.io/tls",
            "--kube-apiclient-qps=100",
            "--kube-apiclient-burst=200",
        ]);
        let config = args.config().expect("valid");
        assert_eq!(config.validity.lifetime, Duration::from_secs(86_400));
        assert_eq!(config.validity.clock_skew, Duration::from_secs(20));
        let files = args.files();
        assert_eq!(
            files.certificate,
            PathBuf::from("/var/run/linkerd/identity/issuer/crt.pem")
        );
        assert_eq!(
            files.key,
            PathBuf::from("/var/run/linkerd/identity/issuer/key.pem")
        );
    }

    #[test]
    fn other_schemes_use_the_names_of_tls_secrets() {
        let files = parse(&["--identity-scheme=kubernetes.io/tls"]).files();
        assert_eq!(
            files.certificate,
            PathBuf::from("/var/run/linkerd/identity/issuer/tls.crt")
        );
        assert_eq!(
            files.key,
            PathBuf::from("/var/run/linkerd/identity/issuer/tls.key")
        );
    }

    #[test]
    fn bad_values() {
        let base = [
            "--controller-namespace=linkerd",
            "--identity-trust-domain=cluster.local",
        ];
        let odd = [&base[..], &["--identity-issuance-lifetime=soon"]].concat();
        let config = parse(&odd)
            .config()
            .expect("a bad lifetime is only a warning");
        assert_eq!(config.validity.lifetime, DEFAULT_LIFETIME);
        for bad in [
            [
                "--controller-namespace=a.b",
                "--identity-trust-domain=cluster.local",
            ],
            [
                "--controller-namespace=linkerd",
                "--identity-trust-domain=Cluster_Local",
            ],
        ] {
            assert!(parse(&bad).config().is_err(), "{bad:?}");
        }
    }
}
