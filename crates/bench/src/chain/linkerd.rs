//! Our own pair: the program that ships, behind real redirection, each side with a control plane of the test kit that sends
//! what Linkerd's sends for a service with one meshed endpoint.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use linkerd_testkit::ca::identity;
use linkerd_testkit::control_plane::{ControlPlane, objects};

use super::write;
use crate::plan::Load;
use crate::stage::{INBOUND_PORT, OUTBOUND_PORT, Service, Stage};

/// Both control planes; ended when dropped.
#[derive(Debug)]
pub(super) struct Control {
    _client: ControlPlane,
    _server: ControlPlane,
}

pub(super) fn commands(
    stage: &Stage,
    program: &Path,
    load: Load,
) -> Result<(Command, Command, Control)> {
    // Loopback of each namespace, where a control plane may speak plain text.
    let client = stage.client.run(ControlPlane::start);
    let server = stage.server.run(ControlPlane::start);
    let server_name = identity("server", "bench");
    for service in Service::ALL {
        let path = format!("bench.bench.svc.cluster.local:{}", service.port());
        client.set_outbound(service.address(), objects::service(&path));
        client.set_endpoints(
            &path,
            [objects::meshed(
                service.address(),
                &server_name,
                INBOUND_PORT,
            )],
        );
        server.set_inbound(
            service.port(),
            objects::inbound_detect(vec![objects::allow("all", None)]),
        );
    }
    // Each control plane has an authority of its own; both are trusted.
    let anchors = format!("{}{}", client.anchors_pem(), server.anchors_pem());
    let outbound = command(stage, program, load, "client", &client, &anchors)?;
    let inbound = command(stage, program, load, "server", &server, &anchors)?;
    Ok((
        outbound,
        inbound,
        Control {
            _client: client,
            _server: server,
        },
    ))
}

fn command(
    stage: &Stage,
    program: &Path,
    load: Load,
    side: &str,
    control: &ControlPlane,
    anchors: &str,
) -> Result<Command> {
    let dir = stage.dir().join(format!("identity-{side}"));
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let token = dir.join("token");
    write(&token, "token")?;
    let control = control.addr().to_string();
    let mut settings = BTreeMap::from([
        ("OUTBOUND_LISTEN_ADDR", format!("127.0.0.1:{OUTBOUND_PORT}")),
        ("INBOUND_LISTEN_ADDR", format!("0.0.0.0:{INBOUND_PORT}")),
        ("ADMIN_LISTEN_ADDR", "0.0.0.0:4191".to_owned()),
        ("CONTROL_LISTEN_ADDR", "0.0.0.0:4190".to_owned()),
        ("DESTINATION_SVC_ADDR", control.clone()),
        ("POLICY_SVC_ADDR", control.clone()),
        ("IDENTITY_SVC_ADDR", control),
        ("POLICY_WORKLOAD", format!("bench:{side}")),
        ("DESTINATION_CONTEXT", "{}".to_owned()),
        ("DESTINATION_PROFILE_NETWORKS", "10.0.0.0/8".to_owned()),
        (
            "DESTINATION_PROFILE_SUFFIXES",
            "svc.cluster.local.".to_owned(),
        ),
        ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8".to_owned()),
        ("IDENTITY_DIR", dir.display().to_string()),
        ("IDENTITY_TOKEN_FILE", token.display().to_string()),
        ("IDENTITY_TRUST_ANCHORS", anchors.to_owned()),
        ("IDENTITY_LOCAL_NAME", identity(side, "bench")),
        ("INBOUND_DEFAULT_POLICY", "all-unauthenticated".to_owned()),
        (
            "INBOUND_PORTS",
            Service::ALL
                .map(|service| service.port().to_string())
                .join(","),
        ),
        ("LOG", "warn".to_owned()),
    ]);
    if load == Load::ConnectFull {
        settings.insert("TLS_RESUMPTION_DISABLED", "true".to_owned());
    }
    let mut command = Command::new(program);
    command.arg0("linkerd2-proxy-identity").env_clear();
    for (name, value) in settings {
        command.env(format!("LINKERD2_PROXY_{name}"), value);
    }
    Ok(command)
}
