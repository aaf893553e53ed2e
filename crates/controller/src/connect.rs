//! Which API server to talk to, and as whom: as a pod, unless flags or a kubeconfig say otherwise.

use anyhow::Context as _;
use linkerd_k8s::kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Connection {
    /// Kubeconfig to use instead of the pod's service account
    #[arg(long, global = true, hide = true)]
    kubeconfig: Option<String>,

    /// Context of the kubeconfig
    #[arg(long, global = true, hide = true)]
    context: Option<String>,

    /// Cluster of the kubeconfig
    #[arg(long, global = true, hide = true)]
    cluster: Option<String>,

    /// User of the kubeconfig
    #[arg(long, global = true, hide = true)]
    user: Option<String>,

    /// User to act as
    #[arg(long = "as", value_name = "USER", global = true, hide = true)]
    act_as: Option<String>,

    /// Groups to act as
    #[arg(long, global = true, hide = true)]
    as_group: Vec<String>,

    /// Accepted for compatibility
    #[arg(long, global = true, hide = true)]
    kube_api_response_headers_timeout: Option<String>,
}

impl Connection {
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let mut config = self
            .config()
            .await
            .context("cannot reach the Kubernetes API: no service account and no kubeconfig")?;
        if self.act_as.is_some() {
            config.auth_info.impersonate.clone_from(&self.act_as);
        }
        if !self.as_group.is_empty() {
            config.auth_info.impersonate_groups = Some(self.as_group.clone());
        }
        Ok(Client::try_from(config)?)
    }

    async fn config(&self) -> anyhow::Result<Config> {
        // A flag that is there but empty is how charts say that it is not set.
        let path = self.kubeconfig.as_ref().filter(|path| !path.is_empty());
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let chosen = [&self.context, &self.cluster, &self.user];
        match path {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path)?;
                Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?)
            }
            None if chosen.iter().any(|it| it.is_some()) => {
                Ok(Config::from_kubeconfig(&options).await?)
            }
            None => Ok(Config::infer().await?),
        }
    }
}
