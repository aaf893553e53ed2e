//! Which trust anchors the proxies of pods believe. Our proxy follows the anchors of the identity
//! service and tells them on its admin port; any other believes for its life what its pod was made
//! with.

use crate::{forward, workload::container_port};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use linkerd_tls::TrustAnchors;
use std::time::Duration;

/// How long a proxy may take to tell.
const PATIENCE: Duration = Duration::from_secs(5);
/// Proxies asked at once.
const AT_ONCE: usize = 16;

/// The pods outside `namespace` whose proxies believe anchors that are not `good`. Proxies are asked
/// only where the anchors their pod was made with are not.
pub async fn doubters(
    client: &Client,
    pods: Vec<Pod>,
    namespace: &str,
    good: impl Fn(&TrustAnchors) -> bool,
) -> Vec<Pod> {
    let good = |pem: &str| {
        let anchors = TrustAnchors::from_pem("pod", pem.as_bytes());
        anchors.is_ok_and(|anchors| good(&anchors))
    };
    let mut asked = Vec::new();
    for pod in pods {
        let elsewhere = pod.metadata.namespace.as_deref() != Some(namespace);
        let suspect = made_with(&pod).is_some_and(|pem| !good(pem));
        if elsewhere && suspect && is_under_way(&pod) {
            asked.push(told(client.clone(), pod));
        }
    }
    let told: Vec<(Pod, Option<String>)> = futures::stream::iter(asked)
        .buffered(AT_ONCE)
        .collect()
        .await;
    told.into_iter()
        .filter(|(_, pem)| !pem.as_deref().is_some_and(good))
        .map(|(pod, _)| pod)
        .collect()
}

/// A pod that has ended talks to nobody.
fn is_under_way(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// The anchors a proxy was started with; none when it reads them from elsewhere.
fn made_with(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let proxy = containers.find(|container| container.name == "linkerd-proxy")?;
    let mut env = proxy.env.iter().flatten();
    env.find(|var| var.name == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS")?
        .value
        .as_deref()
}

/// A pod with what its proxy says it believes now; none when it does not know the question.
async fn told(client: Client, pod: Pod) -> (Pod, Option<String>) {
    let Some(port) = container_port(&pod, "linkerd-proxy", "linkerd-admin") else {
        return (pod, None);
    };
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let answer = forward::get(&client, &namespace, &name, port, "/trust-anchors");
    let told = tokio::time::timeout(PATIENCE, answer).await;
    (pod, told.ok().and_then(Result::ok))
}
