//! Ways into pods: a port-forward through the API server, the control plane's gRPC services over
//! one, and plain HTTP over one.

use crate::{cluster::plain, context::Context};
use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use std::{collections::HashSet, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Endpoint};

pub const CONNECT: Duration = Duration::from_secs(30);
/// No scrape is larger.
const LIMIT: usize = 256 << 20;

/// Bytes to and from a port of a pod.
pub async fn stream(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let forwarded = tokio::time::timeout(CONNECT, pods.portforward(pod, &[port])).await;
    let mut forwarder = forwarded
        .map_err(|_| anyhow!("no port-forward to pod {namespace}/{pod} within {CONNECT:?}"))?
        .map_err(plain)
        .with_context(|| format!("cannot forward to port {port} of pod {namespace}/{pod}"))?;
    forwarder
        .take_stream(port)
        .context("the port-forward carries no stream")
}

/// The body of `GET path` at a port of a pod.
pub async fn get(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
    path: &str,
) -> Result<String> {
    let io = stream(client, namespace, pod, port).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let driver = linkerd_runtime::spawn("port-forward", connection);
    let request = http::Request::get(path)
        .header(http::header::HOST, format!("{pod}:{port}"))
        .body(Empty::<bytes::Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), LIMIT).collect().await;
    driver.abort();
    let body = body.map_err(|error| anyhow!("GET {path}: {error}"))?;
    if !status.is_success() {
        bail!("GET {path}: {status}");
    }
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

/// The control plane's API at `port`: at `--api-addr`, in the named pod, or in a running pod of the
/// deployment.
pub async fn control_plane(
    context: &Context<'_>,
    deployment: &str,
    pod: Option<&str>,
    port: u16,
) -> Result<Channel> {
    if let Some(address) = context.global.api_addr.as_deref().filter(|a| !a.is_empty()) {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .with_context(|| format!("{address:?} is not HOST:PORT"))?;
        let connected = endpoint.connect_timeout(CONNECT).connect().await;
        return connected.with_context(|| format!("cannot connect to {address}"));
    }
    let client = context.cluster(None).await?.client();
    let namespace = context.namespace().to_owned();
    let pod = match pod.filter(|pod| !pod.is_empty()) {
        Some(pod) => pod.to_owned(),
        None => running_pod(&client, &namespace, deployment).await?,
    };
    let connector = tower::service_fn(move |_: http::Uri| {
        let (client, namespace, pod) = (client.clone(), namespace.clone(), pod.clone());
        async move {
            let io = stream(&client, &namespace, &pod, port).await;
            io.map(TokioIo::new)
                .map_err(|error| std::io::Error::other(crate::failure::line(&error)))
        }
    });
    let endpoint = Endpoint::from_static("http://linkerd").connect_timeout(CONNECT);
    let channel = endpoint.connect_with_connector(connector).await;
    channel.map_err(|error| anyhow!("{}", causes(&error)))
}

/// What went wrong below the transport, without its own words for it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut last = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        last = next.to_string();
        cause = next.source();
    }
    last
}

/// The first running pod of a deployment.
async fn running_pod(client: &Client, namespace: &str, deployment: &str) -> Result<String> {
    let all = ListParams::default();
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let sets = sets.list(&all).await.map_err(plain)?;
    let pods = pods.list(&all).await.map_err(plain)?;
    first_running(&sets.items, &pods.items, deployment)
        .ok_or_else(|| anyhow!("no running pods found for {deployment}"))
}

fn first_running(sets: &[ReplicaSet], pods: &[Pod], deployment: &str) -> Option<String> {
    let sets: HashSet<&str> = sets
        .iter()
        .filter(|set| {
            let mut owners = set.owner_references().iter();
            owners.any(|owner| owner.kind == "Deployment" && owner.name == deployment)
        })
        .filter_map(|set| set.metadata.name.as_deref())
        .collect();
    let mut running = pods.iter().filter(|pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let mut owners = pod.owner_references().iter();
        phase == Some("Running")
            && pod.metadata.deletion_timestamp.is_none()
            && owners.any(|owner| owner.kind == "ReplicaSet" && sets.contains(&*owner.name))
    });
    running.next().map(|pod| pod.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn owned<T: serde::de::DeserializeOwned>(
        name: &str,
        kind: &str,
        owner: &str,
        phase: &str,
    ) -> T {
        let owner: Value = json!([{"apiVersion": "v1", "kind": kind, "name": owner, "uid": "u"}]);
        serde_json::from_value(json!({
            "metadata": {"name": name, "ownerReferences": owner},
            "status": {"phase": phase, "replicas": 1},
        }))
        .expect("an object")
    }

    #[test]
    fn the_pod_belongs_to_the_deployment_and_runs() {
        let sets = [
            owned("a-1", "Deployment", "a", ""),
            owned("b-1", "Deployment", "b", ""),
        ];
        let pods = [
            owned("a-1-pending", "ReplicaSet", "a-1", "Pending"),
            owned("b-1-x", "ReplicaSet", "b-1", "Running"),
            owned("a-1-x", "ReplicaSet", "a-1", "Running"),
        ];
        assert_eq!(first_running(&sets, &pods, "a").as_deref(), Some("a-1-x"));
        assert_eq!(first_running(&sets, &pods, "c"), None);
    }
}
