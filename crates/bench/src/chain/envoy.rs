//! Envoy on both sides: HTTP in the protocol the client speaks, or TCP; TLS 1.3 with certificates on both ends; one worker.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Props, SERVER_NAME, write};
use crate::plan::Load;
use crate::stage::{INBOUND_PORT, OUTBOUND_PORT, Stage};

const V3: &str = "type.googleapis.com/envoy.extensions";

pub(super) fn commands(stage: &Stage, props: &Props, load: Load) -> Result<(Command, Command)> {
    let service = load.service();
    let tls = json!({
        "tls_params": { "tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3" },
        "tls_certificates": [{
            "certificate_chain": { "filename": props.leaf },
            "private_key": { "filename": props.key },
        }],
        "validation_context": {
            "trusted_ca": { "filename": props.ca },
            "match_typed_subject_alt_names": [{ "san_type": "DNS", "matcher": { "exact": SERVER_NAME } }],
        },
    });
    let client_tls = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": format!("{V3}.transport_sockets.tls.v3.UpstreamTlsContext"),
            "common_tls_context": tls,
            "sni": SERVER_NAME,
        },
    });
    let server_tls = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": format!("{V3}.transport_sockets.tls.v3.DownstreamTlsContext"),
            "common_tls_context": tls,
            "require_client_certificate": true,
        },
    });
    let peer = service.address();
    let outbound = config(
        OUTBOUND_PORT,
        load,
        None,
        &peer.ip().to_string(),
        peer.port(),
        Some(client_tls),
    );
    let inbound = config(
        INBOUND_PORT,
        load,
        Some(server_tls),
        "127.0.0.1",
        service.port(),
        None,
    );
    Ok((
        command(stage, props, "out", &outbound)?,
        command(stage, props, "in", &inbound)?,
    ))
}

fn config(
    listen: u16,
    load: Load,
    accept_tls: Option<Value>,
    address: &str,
    port: u16,
    connect_tls: Option<Value>,
) -> Value {
    let filter = if load.opaque() {
        json!({
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": format!("{V3}.filters.network.tcp_proxy.v3.TcpProxy"),
                "stat_prefix": "tcp",
                "cluster": "next",
            },
        })
    } else {
        json!({
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": format!("{V3}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
                "stat_prefix": "http",
                "codec_type": "AUTO",
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": { "@type": format!("{V3}.filters.http.router.v3.Router") },
                }],
                "route_config": { "virtual_hosts": [{
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "next" } }],
                }] },
            },
        })
    };
    let mut chain = json!({ "filters": [filter] });
    if let Some(tls) = accept_tls {
        chain["transport_socket"] = tls;
    }
    let mut cluster = json!({
        "name": "next",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": { "thresholds": [{ "max_connections": 4096, "max_pending_requests": 4096, "max_requests": 4096 }] },
        "load_assignment": {
            "cluster_name": "next",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket(address, port) } }] }],
        },
    });
    if !load.opaque() {
        cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": format!("{V3}.upstreams.http.v3.HttpProtocolOptions"),
                "use_downstream_protocol_config": { "http_protocol_options": {}, "http2_protocol_options": {} },
            },
        });
    }
    if let Some(tls) = connect_tls {
        cluster["transport_socket"] = tls;
    }
    json!({ "static_resources": {
        "listeners": [{ "name": "in", "address": socket("0.0.0.0", listen), "filter_chains": [chain] }],
        "clusters": [cluster],
    } })
}

fn socket(address: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": address, "port_value": port } })
}

fn command(stage: &Stage, props: &Props, side: &str, config: &Value) -> Result<Command> {
    let file = stage.dir().join(format!("envoy-{side}.json"));
    write(&file, &config.to_string())?;
    let mut command = Command::new(
        props
            .programs
            .envoy
            .as_ref()
            .context("where Envoy is was not told")?,
    );
    command
        .args([
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "--log-level",
            "error",
            "-c",
        ])
        .arg(file);
    Ok(command)
}
