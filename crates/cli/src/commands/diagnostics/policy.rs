//! `linkerd diagnostics policy`: what a pod's port accepts, or how a service's port is reached.

use super::{DESTINATION, said};
use crate::{
    context::Context,
    failure::{line, stop},
    forward, wire,
    workload::{Kind, Workload},
    yaml,
};
use anyhow::{Result, bail};
use linkerd_api::{
    ports,
    proto::{
        inbound::{PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
        outbound::{
            TrafficSpec, outbound_policies_client::OutboundPoliciesClient, traffic_spec::Target,
        },
    },
};
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;

const PATIENCE: Duration = Duration::from_secs(30);

/// Print the policy of a pod's or a service's port as proxies get it
///
/// Examples:
///   linkerd diagnostics policy -n emojivoto po/web-5f86686c4d-58p7k 8080
///   linkerd diagnostics policy -n emojivoto svc/web 80 -o json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// pod/NAME or svc/NAME, then the port
    #[arg(value_name = "RESOURCE PORT")]
    words: Vec<String>,
    /// Namespace of the resource
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// How to print the policy: yaml or json
    #[arg(short, long, default_value = "yaml", value_name = "FORMAT")]
    output: String,
    /// Ask this pod of the destination deployment [default: any that runs]
    #[arg(long, value_name = "POD")]
    destination_pod: Option<String>,
    /// Ask as a proxy with this token would
    #[arg(long, default_value = "default:diagnostics", value_name = "TOKEN")]
    token: String,
}

/// What is asked about.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    is_service: bool,
    name: String,
    port: u16,
}

impl Question {
    fn parse(words: &[String]) -> Result<Self> {
        let (resource, port) = match words {
            [resource, port] if resource.contains('/') => (resource.clone(), port),
            [kind, name, port] => (format!("{kind}/{name}"), port),
            _ => bail!("resource type and name are required"),
        };
        let named =
            |kind: &str| format!("invalid resource type {kind}; must be one of Pod or Service");
        let kind = resource.split('/').next().unwrap_or_default();
        Kind::parse(kind).map_err(|_| anyhow::anyhow!(named(kind)))?;
        let workload = Workload::parse_named(&resource)?;
        let is_service = match workload.kind {
            Kind::Pod => false,
            Kind::Service => true,
            kind => bail!(named(kind.name())),
        };
        let Ok(port) = port.parse() else {
            bail!("invalid port {port:?}: a number from 1 to 65535 is expected");
        };
        Ok(Self {
            is_service,
            name: workload.name.unwrap_or_default(),
            port,
        })
    }
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let question = Question::parse(&args.words)?;
    if !["yaml", "json"].contains(&args.output.as_str()) {
        bail!("output must be one of: yaml, json");
    }
    let pod = args.destination_pod.as_deref();
    let channel = forward::control_plane(context, DESTINATION, pod, ports::POLICY)
        .await
        .map_err(|error| {
            stop(format!(
                "Error creating destination client: {}",
                line(&error)
            ))
        })?;
    let asked = async {
        if question.is_service {
            let target = format!("{}.{}.svc:{}", question.name, args.namespace, question.port);
            let request = TrafficSpec {
                source_workload: args.token.clone(),
                target: Some(Target::Authority(target)),
            };
            let answer = OutboundPoliciesClient::new(channel).get(request).await?;
            Ok(wire::json(wire::OUTBOUND, &answer.into_inner()))
        } else {
            let request = PortSpec {
                workload: format!("{}:{}", args.namespace, question.name),
                port: question.port.into(),
            };
            let answer = InboundServerPoliciesClient::new(channel)
                .get_port(request)
                .await?;
            Ok(wire::json(wire::INBOUND, &answer.into_inner()))
        }
    };
    let policy: Value = timeout(PATIENCE, asked)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")))
        .map_err(|status| stop(format!("Destination API error: {}", said(&status))))?;
    if args.output == "json" {
        context
            .printer
            .out(serde_json::to_string_pretty(&policy)?)?;
    } else {
        context.printer.out(yaml::write(&policy))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Question, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Question::parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn a_resource_and_its_port() {
        let expected = Question {
            is_service: true,
            name: "web".to_owned(),
            port: 80,
        };
        assert_eq!(parse("svc/web 80"), Ok(expected));
        assert_eq!(parse("po web-1 8080").map(|q| q.is_service), Ok(false));
        for (line, error) in [
            ("", "resource type and name are required"),
            ("svc/web", "resource type and name are required"),
            (
                "deploy/web 80",
                "invalid resource type deployment; must be one of Pod or Service",
            ),
            (
                "thing/web 80",
                "invalid resource type thing; must be one of Pod or Service",
            ),
            (
                "svc/web http",
                "invalid port \"http\": a number from 1 to 65535 is expected",
            ),
        ] {
            assert_eq!(parse(line), Err(error.to_owned()), "{line}");
        }
    }
}
