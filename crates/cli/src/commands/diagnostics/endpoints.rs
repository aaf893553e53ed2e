//! `linkerd diagnostics endpoints`: where proxies would send requests for an authority.

use super::{DESTINATION, said};
use crate::{context::Context, failure::stop, forward, wire};
use anyhow::{Result, bail};
use futures::StreamExt as _;
use linkerd_api::{
    ports,
    proto::destination::{
        GetDestination, Update, WeightedAddr, WeightedAddrSet,
        destination_client::DestinationClient, update,
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// An answer is whole when nothing more follows it for this long.
const QUIET: Duration = Duration::from_millis(300);
/// Nobody waits longer for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Print the endpoints of services as proxies get them
///
/// Examples:
///   linkerd diagnostics endpoints web.emojivoto.svc.cluster.local:80
///   linkerd diagnostics endpoints web.emojivoto.svc.cluster.local:80 -o json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// SERVICE.NAMESPACE.svc.DOMAIN:PORT, or an address with its port
    #[arg(required = true, value_name = "AUTHORITIES")]
    authorities: Vec<String>,
    /// How to print endpoints: table or json
    #[arg(short, long, default_value = "table", value_name = "FORMAT")]
    output: String,
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

/// One endpoint, as it is printed.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    namespace: String,
    ip: String,
    port: u16,
    pod: String,
    service: String,
    weight: u32,
    http2: Option<Value>,
    labels: BTreeMap<String, String>,
}

pub async fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    if !["table", "json"].contains(&args.output.as_str()) {
        bail!("--output supports table and json");
    }
    let pod = args.destination_pod.as_deref();
    let channel = forward::control_plane(context, DESTINATION, pod, ports::DESTINATION)
        .await
        .map_err(|error| {
            let error = crate::failure::line(&error);
            stop(format!("Error creating destination client: {error}"))
        })?;
    let client = DestinationClient::new(channel);
    let asked = args.authorities.iter().map(|authority| {
        let request = GetDestination {
            scheme: "http:".to_owned(),
            path: authority.clone(),
            context_token: args.token.clone(),
        };
        collect(client.clone(), request)
    });
    let mut rows = Vec::new();
    for answer in futures::future::join_all(asked).await {
        rows.extend(
            answer
                .or_else(unknown_has_none)
                .map_err(|status| stop(format!("Destination API error: {}", said(&status))))?,
        );
    }
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.namespace.clone(), row.service.clone(), row.pod.clone());
        key(a)
            .cmp(&key(b))
            .then_with(|| (&a.ip, a.port).cmp(&(&b.ip, b.port)))
    });
    if args.output == "json" {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        context.printer.out(serde_json::to_string_pretty(&rows)?)?;
    } else if rows.is_empty() {
        context.printer.err("No endpoints found.");
    } else {
        context.printer.text(&tables(&rows))?;
    }
    Ok(())
}

/// A service that does not exist has no endpoints either.
fn unknown_has_none(status: tonic::Status) -> Result<Vec<Row>, tonic::Status> {
    match status.code() {
        tonic::Code::NotFound => Ok(Vec::new()),
        _ => Err(status),
    }
}

/// The endpoints once the first answer is whole.
async fn collect(
    mut client: DestinationClient<tonic::transport::Channel>,
    request: GetDestination,
) -> Result<Vec<Row>, tonic::Status> {
    let end = Instant::now() + PATIENCE;
    let mut updates = match timeout_at(end, client.get(request)).await {
        Ok(answer) => answer?.into_inner(),
        Err(_) => return Err(tonic::Status::deadline_exceeded("no answer")),
    };
    let mut state = State::default();
    let mut until = end;
    while let Ok(Some(update)) = timeout_at(until, updates.next()).await {
        if state.apply(update?) {
            until = end.min(Instant::now() + QUIET);
        }
    }
    Ok(state.rows.into_values().collect())
}

#[derive(Debug, Default)]
struct State {
    rows: HashMap<SocketAddr, Row>,
}

impl State {
    /// Whether the update says anything about endpoints.
    fn apply(&mut self, update: Update) -> bool {
        match update.update {
            Some(update::Update::Add(set)) => self.add(set),
            Some(update::Update::Remove(set)) => {
                for address in set.addrs {
                    if let Ok(address) = SocketAddr::try_from(address) {
                        self.rows.remove(&address);
                    }
                }
            }
            Some(update::Update::NoEndpoints(_)) => self.rows.clear(),
            None => return false,
        }
        true
    }

    fn add(&mut self, set: WeightedAddrSet) {
        for endpoint in set.addrs {
            let address = endpoint.addr.map(SocketAddr::try_from);
            if let Some(Ok(address)) = address {
                self.rows
                    .insert(address, row(&set.metric_labels, endpoint, address));
            }
        }
    }
}

fn row(shared: &HashMap<String, String>, endpoint: WeightedAddr, address: SocketAddr) -> Row {
    let mut labels: BTreeMap<String, String> = shared.clone().into_iter().collect();
    labels.extend(endpoint.metric_labels);
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    let namespace = label("namespace");
    let pod = ["pod", "external_workload"]
        .iter()
        .find_map(|key| labels.get(*key).cloned());
    Row {
        ip: address.ip().to_string(),
        port: address.port(),
        pod: pod.unwrap_or_default(),
        service: format!("{}.{namespace}", label("service")),
        namespace,
        weight: endpoint.weight,
        http2: endpoint.http2.map(|http2| wire::json(wire::HTTP2, &http2)),
        labels,
    }
}

impl Row {
    fn json(&self) -> Value {
        let mut out = json!({
            "namespace": self.namespace,
            "ip": self.ip,
            "port": self.port,
            "pod": self.pod,
            "service": self.service,
            "weight": self.weight,
        });
        if let Some(http2) = &self.http2 {
            out["http2"] = http2.clone();
        }
        out["labels"] = json!(self.labels);
        out
    }
}

/// A table for each namespace; namespaces and pods stand in the same columns in all of them.
fn tables(rows: &[Row]) -> String {
    let widest = |cell: fn(&Row) -> &str, head: &str| {
        let widths = rows.iter().map(|row| cell(row).chars().count());
        widths.max().unwrap_or_default().max(head.len())
    };
    let namespace = widest(|row| &row.namespace, "NAMESPACE");
    let pod = widest(|row| &row.pod, "POD");
    let mut namespaces: Vec<&str> = rows.iter().map(|row| row.namespace.as_str()).collect();
    namespaces.dedup();
    let mut tables = Vec::new();
    for name in namespaces {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.namespace == name).collect();
        let ip = rows
            .iter()
            .map(|row| row.ip.len())
            .max()
            .unwrap_or(2)
            .max(2);
        let ports = rows.iter().map(|row| row.port.to_string().len());
        let port = ports.max().unwrap_or(4).max(4);
        let line = |cells: [&str; 5]| {
            let [a, b, c, d, e] = cells;
            format!("{a:namespace$}   {b:ip$}   {c:port$}   {d:pod$}   {e}\n")
        };
        let mut table = line(["NAMESPACE", "IP", "PORT", "POD", "SERVICE"]);
        for row in rows {
            let port = row.port.to_string();
            table += &line([&row.namespace, &row.ip, &port, &row.pod, &row.service]);
        }
        tables.push(table);
    }
    tables.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(ip: [u8; 4], port: u16, pod: &str) -> WeightedAddr {
        let address = SocketAddr::from((ip, port));
        WeightedAddr {
            addr: Some(address.into()),
            weight: 10000,
            metric_labels: [("pod".to_owned(), pod.to_owned())].into(),
            ..WeightedAddr::default()
        }
    }

    fn add(namespace: &str, endpoints: Vec<WeightedAddr>) -> Update {
        let labels = [("namespace", namespace), ("service", "web")];
        Update {
            update: Some(update::Update::Add(WeightedAddrSet {
                addrs: endpoints,
                metric_labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            })),
        }
    }

    #[test]
    fn updates_add_up() {
        let mut state = State::default();
        let one = endpoint([10, 0, 0, 1], 8080, "web-1");
        let gone = one.addr.expect("an address");
        assert!(state.apply(add("a", vec![one, endpoint([10, 0, 0, 20], 80, "web-2")])));
        assert!(state.apply(Update {
            update: Some(update::Update::Remove(
                linkerd_api::proto::destination::AddrSet { addrs: vec![gone] }
            )),
        }));
        assert!(!state.apply(Update::default()));
        let pods: Vec<&str> = state.rows.values().map(|row| row.pod.as_str()).collect();
        assert_eq!(pods, ["web-2"]);
        let none = update::Update::NoEndpoints(Default::default());
        state.apply(Update { update: Some(none) });
        assert!(state.rows.is_empty());
    }

    #[test]
    fn an_unknown_service_has_no_endpoints() {
        let unknown = tonic::Status::not_found("Service web.app not found");
        assert_eq!(unknown_has_none(unknown).expect("no error"), []);
        unknown_has_none(tonic::Status::invalid_argument("x")).expect_err("still an error");
    }

    #[test]
    fn tables_are_aligned() {
        let mut state = State::default();
        state.apply(add(
            "emojivoto",
            vec![endpoint([10, 0, 0, 1], 8080, "web-7")],
        ));
        state.apply(add(
            "b",
            vec![endpoint([10, 0, 100, 200], 80, "web-long-name")],
        ));
        let mut rows: Vec<Row> = state.rows.into_values().collect();
        rows.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        assert_eq!(
            tables(&rows),
            "NAMESPACE   IP             PORT   POD             SERVICE\n\
             b           10.0.100.200   80     web-long-name   web.b\n\
             \n\
             NAMESPACE   IP         PORT   POD             SERVICE\n\
             emojivoto   10.0.0.1   8080   web-7           web.emojivoto\n"
        );
        assert_eq!(
            rows[0].json(),
            json!({"namespace": "b", "ip": "10.0.100.200", "port": 80, "pod": "web-long-name",
                "service": "web.b", "weight": 10000,
                "labels": {"namespace": "b", "service": "web", "pod": "web-long-name"}})
        );
    }
}
