//! What `install` and `upgrade` ask the cluster before they render.

use crate::{
    chart::Chart,
    cluster::{Cluster, is_forbidden, is_missing, plain},
    failure::stop,
    install::{CRDS, Objects, defaults},
    values::{get, put, text},
};
use anyhow::{Result, bail};
use futures::future::try_join_all;
use k8s_openapi::{
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{Api, api::ListParams};
use serde_json::Value;

/// Our definitions that the cluster lacks, or has only in older versions.
pub async fn missing_crds(cluster: &Cluster, namespace: &str) -> Result<Vec<String>> {
    let values = defaults(&Chart::named(CRDS)?)?;
    let ours = Objects::crds(&values, namespace)?.parsed()?;
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let asked = ours.iter().map(|definition| {
        let name = text(definition, "metadata.name").to_owned();
        let api = api.clone();
        async move { api.get_opt(&name).await.map_err(plain) }
    });
    let found = try_join_all(asked).await?;
    let mut missing = Vec::new();
    for (ours, theirs) in ours.iter().zip(found) {
        let name = text(ours, "metadata.name");
        let versions = get(ours, "spec.versions").as_array();
        let newest = versions
            .into_iter()
            .flatten()
            .find(|v| v["storage"] == Value::Bool(true));
        let newest = newest
            .and_then(|version| version["name"].as_str())
            .unwrap_or_default();
        match theirs {
            None => missing.push(format!("missing {name}")),
            Some(theirs) if !theirs.spec.versions.iter().any(|v| v.name == newest) => {
                missing.push(format!("CRD {name} is missing version {newest}"));
            }
            Some(_) => {}
        }
    }
    Ok(missing)
}

/// Nodes that run Docker need an init container that runs as root.
pub async fn docker_runtime(cluster: &Cluster, values: &Value) -> Result<()> {
    if get(values, "proxyInit.runAsRoot") == &Value::Bool(true) {
        return Ok(());
    }
    let nodes: Api<Node> = Api::all(cluster.client());
    let nodes = match nodes.list(&ListParams::default()).await {
        Ok(nodes) => nodes,
        Err(error) if is_forbidden(&error) => return Ok(()),
        Err(error) => return Err(plain(error)),
    };
    let docker = |node: &Node| {
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        info.is_some_and(|info| info.container_runtime_version.starts_with("docker:"))
    };
    if nodes.iter().any(docker) {
        return Err(stop(
            "there are nodes using the docker container runtime and proxy-init container must run as root user.\n\
             try installing linkerd via --set proxyInit.runAsRoot=true",
        ));
    }
    Ok(())
}

/// The ports of the API server, which redirection leaves alone in the control plane's pods.
pub async fn api_server_ports(cluster: &Cluster, values: &mut Value) {
    let services: Api<Service> = Api::namespaced(cluster.client(), "default");
    let Ok(service) = services.get("kubernetes").await else {
        return;
    };
    let mut ports: Vec<String> = Vec::new();
    for port in service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
    {
        ports.push(port.port.to_string());
        if let Some(IntOrString::Int(target)) = &port.target_port {
            ports.push(target.to_string());
        }
    }
    ports.dedup();
    if !ports.is_empty() {
        put(values, "proxyInit.kubeAPIServerPorts", ports.join(","));
    }
}

/// Discovery reads EndpointSlices: they must exist.
pub async fn endpoint_slices(cluster: &Cluster, values: &Value) -> Result<()> {
    if get(values, "enableEndpointSlices") != &Value::Bool(true) {
        return Ok(());
    }
    let slices: Api<EndpointSlice> = Api::all(cluster.client());
    match slices.list_metadata(&ListParams::default().limit(1)).await {
        Ok(list) if list.items.is_empty() => {
            bail!("no EndpointSlice resources exist in the cluster")
        }
        Ok(_) => Ok(()),
        Err(error) if is_missing(&error) => bail!("EndpointSlice resource not found"),
        Err(error) if is_forbidden(&error) => Ok(()),
        Err(error) => Err(plain(error)),
    }
}
