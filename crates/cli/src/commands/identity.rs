//! `linkerd identity`: the certificates with which proxies present themselves.

use crate::{
    certificate_text,
    cluster::plain,
    context::Context,
    failure::{ExitStatus, line},
    forward,
    workload::container_port,
};
use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use linkerd_tls::{
    Certificate, provider,
    rustls::{
        self, ClientConfig, DigitallySignedStruct, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const PROXY: &str = "linkerd-proxy";
const PATIENCE: Duration = Duration::from_secs(30);

/// Print the certificates of proxies
///
/// Examples:
///   linkerd identity -n emojivoto web-5f86686c4d-58p7k
///   linkerd identity -n emojivoto -l app=web-svc
///   linkerd identity -n emojivoto -l app=web-svc -o pem
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Names of pods
    #[arg(value_name = "PODS")]
    pods: Vec<String>,
    /// Namespace of the pods [default: the kubeconfig's]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Label selector of the pods
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// How to print certificates: text, pem or json
    #[arg(short, long, default_value = "text", value_name = "FORMAT")]
    output: String,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let selector = args.selector.as_deref().filter(|text| !text.is_empty());
    if args.pods.is_empty() && selector.is_none() {
        bail!("Provide the pod name argument or use the selector flag");
    }
    if !["text", "pem", "json"].contains(&args.output.as_str()) {
        bail!("--output supports text, pem and json");
    }
    let cluster = context.cluster(None).await?;
    let namespace = args.namespace.as_deref().filter(|name| !name.is_empty());
    let namespace = namespace
        .unwrap_or_else(|| cluster.default_namespace())
        .to_owned();
    let client = cluster.client();
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pods = match selector {
        Some(selector) => {
            let params = ListParams::default().labels(selector);
            let mut pods = api.list(&params).await.map_err(plain)?.items;
            pods.sort_by_key(ResourceExt::name_any);
            pods
        }
        None => {
            let found = futures::future::join_all(args.pods.iter().map(|name| api.get(name))).await;
            found.into_iter().collect::<Result<_, _>>().map_err(plain)?
        }
    };
    if pods.is_empty() {
        bail!(
            "Could not fetch Certificate. Ensure that the pod(s) are meshed by running \
             `linkerd inject`: nothing in namespace {namespace} matches {}",
            selector.unwrap_or_default()
        );
    }
    let asked = pods.iter().map(|pod| async {
        let fetched = timeout(PATIENCE, fetch(&client, &namespace, pod)).await;
        fetched.unwrap_or_else(|_| Err(anyhow!("no answer within {PATIENCE:?}")))
    });
    let answers = futures::future::join_all(asked).await;
    let now = jiff::Timestamp::now().as_second();
    let (count, mut failed) = (pods.len(), false);
    let mut documents = Vec::new();
    for (at, (pod, answer)) in pods.iter().zip(answers).enumerate() {
        let name = pod.name_any();
        let chain = match answer {
            Ok(chain) => chain,
            Err(error) => {
                failed = true;
                context.printer.err(line(&error));
                continue;
            }
        };
        match args.output.as_str() {
            "json" => documents.push(document(&namespace, &name, &chain, now)?),
            "pem" => {
                for certificate in &chain {
                    context
                        .printer
                        .text(&Certificate::from_der(certificate)?.to_pem())?;
                }
            }
            _ => {
                let head = format!("\nPOD {name} ({} of {count})\n", at + 1);
                context.printer.out(head)?;
                for certificate in leaves(&chain) {
                    let text = certificate_text::text(certificate, now)?;
                    context.printer.text(&text)?;
                }
            }
        }
    }
    if args.output == "json" {
        context
            .printer
            .out(serde_json::to_string_pretty(&documents)?)?;
    }
    if failed {
        return Err(ExitStatus(1).into());
    }
    Ok(())
}

/// The certificates of the chain that belong to no authority.
fn leaves<'a>(chain: &'a [CertificateDer<'static>]) -> impl Iterator<Item = &'a [u8]> {
    let leaf = |der: &&CertificateDer<'static>| {
        Certificate::from_der(der).is_ok_and(|certificate| !certificate.is_ca)
    };
    chain.iter().filter(leaf).map(|der| der.as_ref())
}

fn document(
    namespace: &str,
    pod: &str,
    chain: &[CertificateDer<'static>],
    now: i64,
) -> Result<Value> {
    let mut certificates = Vec::new();
    for der in chain {
        let certificate = Certificate::from_der(der)?;
        let after = seconds(certificate.not_after)?;
        let time = |at: i64| jiff::Timestamp::from_second(at).map(|time| time.to_string());
        let names: Vec<String> = certificate.names.iter().map(ToString::to_string).collect();
        certificates.push(json!({
            "subject": certificate.subject,
            "names": names,
            "serial": certificate.serial,
            "ca": certificate.is_ca,
            "notBefore": time(seconds(certificate.not_before)?)?,
            "notAfter": time(after)?,
            "secondsLeft": (after - now).max(0),
            "pem": certificate.to_pem(),
        }));
    }
    Ok(json!({"namespace": namespace, "pod": pod, "certificates": certificates}))
}

fn seconds(at: std::time::SystemTime) -> Result<i64> {
    Ok(i64::try_from(linkerd_tls::unix_seconds(at))?)
}

/// The proxy's certificate chain, from a handshake with it.
async fn fetch(
    client: &Client,
    namespace: &str,
    pod: &Pod,
) -> Result<Vec<CertificateDer<'static>>> {
    let name = pod.name_any();
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if phase != Some("Running") {
        bail!("pod not running: {name}");
    }
    let port = |port| container_port(pod, PROXY, port);
    let Some(admin) = port("linkerd-admin") else {
        bail!("failed to find linkerd-admin port in {PROXY} container for given pod spec");
    };
    let server = local_name(pod).with_context(|| format!("pod {name} names no identity"))?;
    let server = ServerName::try_from(server)?;
    handshake(client, namespace, &name, admin, server).await
}

async fn handshake(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
    server: ServerName<'static>,
) -> Result<Vec<CertificateDer<'static>>> {
    let io = forward::stream(client, namespace, pod, port).await?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anything))
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector
        .connect(server, io)
        .await
        .with_context(|| format!("no TLS handshake with port {port} of pod {pod}"))?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.to_vec())
}

/// The identity the proxy was told to have, with the pod's names filled in.
fn local_name(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let mut env = containers
        .find(|container| container.name == PROXY)?
        .env
        .iter()
        .flatten();
    let name = env.find(|var| var.name == "LINKERD2_PROXY_IDENTITY_LOCAL_NAME")?;
    let account = spec.service_account_name.as_deref().unwrap_or("default");
    let namespace = pod.metadata.namespace.as_deref()?;
    let name = name.value.as_deref()?;
    Some(
        name.replace("$(_pod_sa)", account)
            .replace("$(_pod_ns)", namespace),
    )
}

/// We print what is presented; whether it is trusted is the reader's question.
#[derive(Debug)]
struct Anything;

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_filled_in() {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "emojivoto"},
            "spec": {"serviceAccountName": "web-sa", "containers": [{"name": PROXY, "env": [{
                "name": "LINKERD2_PROXY_IDENTITY_LOCAL_NAME",
                "value": "$(_pod_sa).$(_pod_ns).serviceaccount.identity.linkerd.cluster.local",
            }]}]},
        }));
        assert_eq!(
            local_name(&pod.expect("a pod")).as_deref(),
            Some("web-sa.emojivoto.serviceaccount.identity.linkerd.cluster.local")
        );
    }
}
