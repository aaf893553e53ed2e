//! HAProxy on both sides: HTTP with pools that are always reused, or TCP; TLS 1.3 with certificates on both ends.

use std::process::Command;

use anyhow::Result;

use super::{Props, SERVER_NAME, write};
use crate::plan::Load;
use crate::stage::{INBOUND_PORT, OUTBOUND_PORT, Stage};

pub(super) fn commands(stage: &Stage, props: &Props, load: Load) -> Result<(Command, Command)> {
    let mode = if load.opaque() { "tcp" } else { "http" };
    let alpn = if load == Load::Http2 { "alpn h2" } else { "" };
    let target = load.service().address();
    let (ca, leaf) = (props.ca.display(), props.leaf.display());
    let common = format!(
        "global\n  nbthread 1\n  maxconn 4096\n  ssl-default-bind-options ssl-min-ver TLSv1.3\n  ssl-default-server-options ssl-min-ver TLSv1.3\n\
         defaults\n  mode {mode}\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  {}\n",
        if mode == "http" {
            "http-reuse always"
        } else {
            ""
        }
    );
    let outbound = format!(
        "{common}frontend f\n  bind :{OUTBOUND_PORT}\n  default_backend b\nbackend b\n  server s {target} ssl verify required verifyhost {SERVER_NAME} \
         sni str({SERVER_NAME}) ca-file {ca} crt {leaf} {alpn}\n"
    );
    let inbound = format!(
        "{common}frontend f\n  bind :{INBOUND_PORT} ssl crt {leaf} ca-file {ca} verify required {}\n  default_backend b\nbackend b\n  \
         server s 127.0.0.1:{}\n",
        if mode == "http" {
            "alpn h2,http/1.1"
        } else {
            ""
        },
        load.service().port()
    );
    Ok((
        command(stage, "out", &outbound)?,
        command(stage, "in", &inbound)?,
    ))
}

fn command(stage: &Stage, side: &str, config: &str) -> Result<Command> {
    let file = stage.dir().join(format!("haproxy-{side}.cfg"));
    write(&file, config)?;
    let mut command = Command::new("/usr/sbin/haproxy");
    command.args(["-db", "-f"]).arg(file);
    Ok(command)
}
