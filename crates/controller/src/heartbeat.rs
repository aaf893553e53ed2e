//! The heartbeat: reports on the installation to an address the operator chose. Without one it
//! sends nothing; no cluster phones home by default. What cannot be found out is left out.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail};
use linkerd_k8s::kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
};
use linkerd_runtime::version::VERSION;
use serde_json::Value;

use crate::connect::Connection;

const TIMEOUT: Duration = Duration::from_secs(30);
const EXTENSION: &str = "linkerd.io/extension";
/// Containers whose use of memory and processors is told.
const CONTAINERS: [&str; 3] = ["linkerd-proxy", "destination", "prometheus"];

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Namespace of the control plane
    #[arg(long, default_value = "linkerd")]
    controller_namespace: String,

    /// Prometheus to take figures from
    #[arg(long, default_value = "")]
    prometheus_url: String,

    /// Where to report; nothing is sent without it
    #[arg(long)]
    url: Option<String>,
}

pub(crate) async fn run(args: &Args, connection: &Connection) -> anyhow::Result<()> {
    let Some(url) = args.url.as_deref().filter(|url| !url.is_empty()) else {
        tracing::info!(namespace = %args.controller_namespace, "No address to report to is configured: nothing is sent");
        return Ok(());
    };
    let mut report = BTreeMap::from([
        ("arch".to_owned(), std::env::consts::ARCH.to_owned()),
        ("version".to_owned(), VERSION.to_owned()),
        ("source".to_owned(), "heartbeat".to_owned()),
    ]);
    match connection.client().await {
        Ok(client) => cluster(&client, &args.controller_namespace, &mut report).await,
        Err(error) => tracing::warn!(error = format!("{error:#}"), "The cluster tells nothing"),
    }
    if !args.prometheus_url.is_empty() {
        prometheus(&args.prometheus_url, &mut report).await;
    }
    let target = address(url, &report);
    get(&target)
        .await
        .with_context(|| format!("cannot report to {url}"))?;
    tracing::info!(url, fields = report.len(), "Reported");
    Ok(())
}

/// What the cluster knows of the installation.
async fn cluster(client: &Client, namespace: &str, report: &mut BTreeMap<String, String>) {
    let list = ListParams::default();
    let kind = |group: &str, version: &str, kind: &str, plural: &str| ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    match client.apiserver_version().await {
        Ok(version) => drop(report.insert("k8s-version".to_owned(), version.git_version)),
        Err(error) => tracing::warn!(%error, "The version of Kubernetes is not known"),
    }
    let maps = kind("", "v1", "ConfigMap", "configmaps");
    let maps: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &maps);
    match maps.get_metadata("linkerd-config").await {
        Ok(config) => {
            report.extend(config.uid().map(|uid| ("uuid".to_owned(), uid)));
            let made = config.creation_timestamp();
            report.extend(made.map(|made| {
                let seconds = made.0.as_second();
                ("install-time".to_owned(), seconds.to_string())
            }));
        }
        Err(error) => tracing::warn!(%error, "linkerd-config is not known"),
    }
    let namespaces = kind("", "v1", "Namespace", "namespaces");
    let namespaces: Api<DynamicObject> = Api::all_with(client.clone(), &namespaces);
    match namespaces
        .list_metadata(&list.clone().labels(EXTENSION))
        .await
    {
        Ok(found) => {
            let names = found
                .iter()
                .filter_map(|object| object.labels().get(EXTENSION));
            report.extend(names.map(|name| (format!("ext-{name}"), "1".to_owned())));
        }
        Err(error) => tracing::warn!(%error, "Extensions are not known"),
    }
    let profiles = kind(
        "linkerd.io",
        "v1alpha2",
        "ServiceProfile",
        "serviceprofiles",
    );
    let profiles: Api<DynamicObject> = Api::all_with(client.clone(), &profiles);
    match profiles.list_metadata(&list).await {
        Ok(found) => {
            let count = found.items.len().to_string();
            report.insert("service-profile-count".to_owned(), count);
        }
        Err(error) => tracing::warn!(%error, "Profiles are not counted"),
    }
}

/// Names of figures and the queries that give them.
fn queries() -> Vec<(String, String)> {
    let mut all = vec![
        (
            "total-rps".to_owned(),
            r#"sum(rate(request_total{direction="inbound"}[30s]))"#.to_owned(),
        ),
        (
            "meshed-pods".to_owned(),
            r#"count(count by (pod) (request_total{direction="inbound"}))"#.to_owned(),
        ),
        (
            "p99-handle-us".to_owned(),
            "histogram_quantile(0.99, sum(rate(request_handle_us_bucket[24h])) by (le))".to_owned(),
        ),
        (
            "proxy-injector-injections".to_owned(),
            r#"sum(proxy_inject_admission_responses_total{skip="false"})"#.to_owned(),
        ),
    ];
    for name in CONTAINERS {
        all.push((
            format!("max-mem-{name}"),
            format!(r#"max(container_memory_working_set_bytes{{container="{name}"}})"#),
        ));
        all.push((
            format!("p95-cpu-{name}"),
            format!(
                r#"max(quantile_over_time(0.95, rate(container_cpu_usage_seconds_total{{container="{name}"}}[5m])[24h:5m]))"#
            ),
        ));
    }
    all
}

async fn prometheus(url: &str, report: &mut BTreeMap<String, String>) {
    for (name, query) in queries() {
        let place = format!(
            "{}/api/v1/query?query={}",
            url.trim_end_matches('/'),
            encoded(&query)
        );
        match get(&place).await {
            Ok(answer) => report.extend(figure(&answer).map(|value| (name, value))),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::info!(url, error, "Prometheus tells nothing");
                return;
            }
        }
    }
}

/// The value of an instant query's first series.
fn figure(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let value = answer["data"]["result"][0]["value"][1].as_str()?;
    let number: f64 = value.parse().ok()?;
    number.is_finite().then(|| number.round().to_string())
}

fn address(url: &str, report: &BTreeMap<String, String>) -> String {
    let pairs = report
        .iter()
        .map(|(key, value)| format!("{}={}", encoded(key), encoded(value)));
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{}", pairs.collect::<Vec<_>>().join("&"))
}

fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The body of a successful answer. The Kubernetes client is an https client with the machine's
/// trusted roots.
async fn get(url: &str) -> anyhow::Result<String> {
    let uri: http::Uri = url
        .parse()
        .with_context(|| format!("{url:?} is not a URL"))?;
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.authority()) else {
        bail!("{url:?} is not a URL with a scheme and a host");
    };
    let mut config = Config::new(format!("{scheme}://{host}").parse()?);
    config.connect_timeout = Some(TIMEOUT);
    config.read_timeout = Some(TIMEOUT);
    config.default_retry = false;
    let client = Client::try_from(config).context("cannot make an https client")?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};

    #[test]
    fn figures_are_whole_numbers() {
        let answer = |value: &str| {
            format!(r#"{{"status":"success","data":{{"result":[{{"value":[1,"{value}"]}}]}}}}"#)
        };
        for (text, expected) in [
            (answer("12.4"), Some("12")),
            (answer("NaN"), None),
            (r#"{"data":{"result":[]}}"#.to_owned(), None),
            ("nonsense".to_owned(), None),
        ] {
            assert_eq!(figure(&text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn everything_is_encoded() {
        let report = BTreeMap::from([("k8s-version".to_owned(), "v1.34.1+a b".to_owned())]);
        assert_eq!(
            address("https://example.org/v", &report),
            "https://example.org/v?k8s-version=v1.34.1%2Ba%20b"
        );
        assert_eq!(address("https://a/?x=1", &report).matches('?').count(), 1);
    }

    /// Nothing is sent without an address; with one, one request carries the report.
    #[tokio::test]
    async fn a_report_is_one_request() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a report");
            let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
            let first = lines.next().expect("a line").expect("text");
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).expect("an answer");
            first
        });
        let report = BTreeMap::from([("source".to_owned(), "heartbeat".to_owned())]);
        let target = super::address(&format!("http://{address}/version.json"), &report);
        assert_eq!(get(&target).await.expect("an answer"), "{}");
        let line = server.join().expect("no panic");
        assert_eq!(line, "GET /version.json?source=heartbeat HTTP/1.1");
        let silent = Args {
            controller_namespace: "linkerd".to_owned(),
            prometheus_url: String::new(),
            url: None,
        };
        let connection = Connection::default();
        run(&silent, &connection).await.expect("nothing to do");
    }
}
