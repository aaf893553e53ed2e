//! `linkerd diagnostics profile`: the profile of a destination as proxies get it.

use super::{DESTINATION, said};
use crate::{context::Context, failure::stop, forward, wire};
use anyhow::Result;
use futures::StreamExt as _;
use linkerd_api::{
    ports,
    proto::destination::{GetDestination, destination_client::DestinationClient},
};
use std::time::Duration;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

/// Print the profile of a destination as proxies get it
///
/// Examples:
///   linkerd diagnostics profile 10.20.2.4:8080
///   linkerd diagnostics profile web.emojivoto.svc.cluster.local:80
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// An address or a name with its port
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Ask this pod of the destination service [default: any that runs]
    #[arg(long, value_name = "POD")]
    destination_pod: Option<String>,
    /// Ask as a proxy with this context token would
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TOKEN"
    )]
    token: String,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let pod = args.destination_pod.as_deref();
    let channel = forward::control_plane(context, DESTINATION, pod, ports::DESTINATION)
        .await
        .map_err(|error| {
            let error = crate::failure::line(&error);
            stop(format!("Error creating destination client: {error}"))
        })?;
    let request = GetDestination {
        scheme: String::new(),
        path: args.address.clone(),
        context_token: args.token.clone(),
    };
    let mut client = DestinationClient::new(channel);
    let first = timeout(PATIENCE, async {
        let mut profiles = client.get_profile(request).await?.into_inner();
        match profiles.next().await {
            Some(profile) => profile,
            None => Err(tonic::Status::unavailable(
                "the stream ended without a profile",
            )),
        }
    });
    let profile = first
        .await
        .unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("no answer")))
        .map_err(|status| stop(format!("Destination API error: {}", said(&status))))?;
    let profile = wire::json(wire::PROFILE, &profile);
    context
        .printer
        .out(serde_json::to_string_pretty(&profile)?)?;
    Ok(())
}
