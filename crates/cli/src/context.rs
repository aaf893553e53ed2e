//! What every command gets: the global flags, the outputs and, when asked for, the cluster.

use crate::{cluster::Cluster, printer::Printer};
use anyhow::{Result, bail};
use std::{env, time::Duration};

const DEFAULT_NAMESPACE: &str = "linkerd";

/// Flags that every command takes.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Global flags")]
pub struct Global {
    /// Namespace of the control plane [env: LINKERD_NAMESPACE]
    #[arg(short = 'L', long, global = true, value_name = "NAMESPACE", default_value = DEFAULT_NAMESPACE)]
    pub linkerd_namespace: String,
    /// Namespace of the CNI plugin
    #[arg(
        long,
        global = true,
        value_name = "NAMESPACE",
        default_value = "linkerd-cni"
    )]
    pub cni_namespace: String,
    /// kubeconfig file to use [default: $KUBECONFIG, ~/.kube/config, the pod's own account]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// Context of the kubeconfig file to use
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    pub as_user: Option<String>,
    /// Group to impersonate, together with --as; may be repeated
    #[arg(long, global = true, value_name = "GROUP")]
    pub as_group: Vec<String>,
    /// HOST:PORT of the control plane's API; spares a port-forward
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub api_addr: Option<String>,
    /// Print what is done, for debugging
    #[arg(long, global = true)]
    pub verbose: bool,
}

#[derive(Debug)]
pub struct Context<'a> {
    pub global: Global,
    pub printer: &'a mut Printer,
}

impl<'a> Context<'a> {
    pub fn new(mut global: Global, printer: &'a mut Printer) -> Result<Self> {
        if global.linkerd_namespace == DEFAULT_NAMESPACE
            && let Ok(namespace) = env::var("LINKERD_NAMESPACE")
            && !namespace.is_empty()
        {
            global.linkerd_namespace = namespace;
        }
        let namespace = &global.linkerd_namespace;
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if namespace.is_empty() || !namespace.chars().all(valid) {
            bail!("{namespace} is not a valid namespace");
        }
        if global.verbose {
            let _ = linkerd_runtime::log::init(linkerd_runtime::log::Format::Plain, "debug");
        }
        Ok(Self { global, printer })
    }

    pub fn namespace(&self) -> &str {
        &self.global.linkerd_namespace
    }

    /// The cluster of `--kubeconfig`, `--context` and `--as`; nothing is sent to it yet.
    pub async fn cluster(&self, timeout: Option<Duration>) -> Result<Cluster> {
        Cluster::new(&self.global, timeout).await
    }
}
