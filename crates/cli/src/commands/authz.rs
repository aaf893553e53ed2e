//! `linkerd authz`: the authorizations that apply to a resource.

use crate::{
    authz::{self, Policies},
    cluster::{is_missing, plain},
    context::Context,
    failure::stop,
    workload::{self, Workload},
};
use anyhow::{Result, bail};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ListParams},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

/// Print the authorizations that apply to a resource
///
/// Examples:
///   linkerd authz -n emojivoto deploy/web
///   linkerd authz -n emojivoto deploy web
///   linkerd authz -n emojivoto po
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// TYPE/NAME, TYPE NAME, or TYPE for all of them
    #[arg(required = true, num_args = 1..=2, value_name = "RESOURCE")]
    resource: Vec<String>,
    /// Namespace of the resource [default: the kubeconfig's]
    #[arg(short, long)]
    namespace: Option<String>,
    /// How to print authorizations: table or json
    #[arg(short, long, default_value = "table", value_name = "FORMAT")]
    output: String,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let workload = Workload::parse(&args.resource)?;
    if !["table", "json"].contains(&args.output.as_str()) {
        bail!("--output supports table and json");
    }
    let cluster = context.cluster(None).await?;
    let namespace = args.namespace.as_deref().filter(|name| !name.is_empty());
    let namespace = namespace
        .unwrap_or_else(|| cluster.default_namespace())
        .to_owned();
    let client = cluster.client();
    let found = tokio::try_join!(
        workload::pods(&client, &namespace, &workload),
        policies(&client, &namespace)
    );
    let (pods, policies) = found.map_err(|error| {
        let error = crate::failure::line(&error);
        stop(format!(
            "Failed to get the authorizations of {workload}: {error}"
        ))
    })?;
    let (rows, broken) = authz::rows(&namespace, &pods, &policies);
    if args.output == "json" {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                json!({
                    "route": row.route,
                    "server": row.server,
                    "authorizationPolicy": row.authorization_policy,
                    "serverAuthorization": row.server_authorization,
                })
            })
            .collect();
        context.printer.out(serde_json::to_string_pretty(&rows)?)?;
    } else {
        context.printer.text(&authz::table(&rows))?;
    }
    for line in broken {
        context.printer.err(line);
    }
    Ok(())
}

async fn policies(client: &Client, namespace: &str) -> Result<Policies> {
    let (servers, server_authorizations, authorization_policies) = tokio::try_join!(
        typed(client, namespace),
        typed(client, namespace),
        typed(client, namespace),
    )?;
    let mut routes = Vec::new();
    for (group, version, kind, plural) in [
        ("policy.linkerd.io", "v1beta3", "HTTPRoute", "httproutes"),
        ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
        ("gateway.networking.k8s.io", "v1", "GRPCRoute", "grpcroutes"),
    ] {
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let listed = match api.list(&ListParams::default()).await {
            Ok(listed) => listed.items,
            // The Gateway API need not be installed.
            Err(error) if is_missing(&error) => continue,
            Err(error) => return Err(plain(error)),
        };
        for mut route in listed {
            // Items of a list do not say their kind.
            route.types = Some(kube::core::TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            });
            routes.push(serde_json::to_value(route)?);
        }
    }
    Ok(Policies {
        servers,
        server_authorizations,
        authorization_policies,
        routes,
    })
}

async fn typed<K>(client: &Client, namespace: &str) -> Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let listed = api.list(&ListParams::default()).await.map_err(plain)?;
    Ok(listed.items)
}
