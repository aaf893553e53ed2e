//! Where it plays: two namespaces joined by a veth pair. Connections of the client to the measured ports are redirected
//! to port 4140 on its side and to 4143 on the server's, whichever proxy listens there; the direct ports are not.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use linkerd_testkit::netns::{End, Namespace, Process};
use linkerd_testkit::wait_for;

pub(crate) const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
pub(crate) const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 3);
pub(crate) const OUTBOUND_PORT: u16 = 4140;
pub(crate) const INBOUND_PORT: u16 = 4143;

/// The group of proxies: their own connections are not redirected.
const PROXY_GROUP: u32 = 2102;

/// What listens at the origin; each kind once behind redirection and once without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Http,
    Sink,
    Ping,
}

impl Service {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Sink, Self::Ping];

    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Http => 8080,
            Self::Sink => 8082,
            Self::Ping => 8083,
        }
    }

    /// The port that no rule touches.
    pub(crate) fn direct_port(self) -> u16 {
        self.port() + 1000
    }

    pub(crate) fn address(self) -> SocketAddr {
        SocketAddr::from((SERVER_IP, self.port()))
    }

    pub(crate) fn direct_address(self) -> SocketAddr {
        SocketAddr::from((SERVER_IP, self.direct_port()))
    }
}

/// The two namespaces and a directory for configurations and logs.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) client: Namespace,
    pub(crate) server: Namespace,
    dir: tempfile::TempDir,
}

impl Stage {
    pub(crate) fn new() -> Result<Self> {
        let stage = Self {
            client: Namespace::new("bench-client"),
            server: Namespace::new("bench-server"),
            dir: tempfile::tempdir().context("making a temporary directory")?,
        };
        let (here, there) = (format!("{CLIENT_IP}/24"), format!("{SERVER_IP}/24"));
        stage.client.link(
            End {
                link: "eth0",
                addresses: &[&here],
            },
            &stage.server,
            End {
                link: "eth0",
                addresses: &[&there],
            },
        );
        let group = PROXY_GROUP.to_string();
        let (outbound, inbound) = (OUTBOUND_PORT.to_string(), INBOUND_PORT.to_string());
        stage.client.output(
            "iptables",
            &[
                "-t",
                "nat",
                "-A",
                "OUTPUT",
                "-m",
                "owner",
                "--gid-owner",
                &group,
                "-j",
                "RETURN",
            ],
        );
        for service in Service::ALL {
            let port = service.port().to_string();
            let redirect = ["-p", "tcp", "--dport", &port, "-j", "REDIRECT", "--to-port"];
            let rule =
                |chain: &'static str| [&["-t", "nat", "-A", chain][..], &redirect[..]].concat();
            stage
                .client
                .output("iptables", &[&rule("OUTPUT")[..], &[&outbound]].concat());
            stage
                .server
                .output("iptables", &[&rule("PREROUTING")[..], &[&inbound]].concat());
        }
        Ok(stage)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a proxy in a namespace; what it prints goes to a file beside its configuration.
    pub(crate) fn spawn(
        &self,
        namespace: &Namespace,
        name: &str,
        command: &mut Command,
    ) -> Result<Process> {
        let log = self.log(name);
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        command
            .gid(PROXY_GROUP)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        Ok(namespace.spawn(command))
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.dir().join(format!("{name}.log"))
    }

    /// Waits until something listens on a port of a namespace.
    pub(crate) fn wait_listening(
        &self,
        namespace: &Namespace,
        port: u16,
        process: &mut Process,
        name: &str,
    ) -> Result<()> {
        let wanted = format!(":{port:04X}");
        let listens = |table: &str| {
            table.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.nth(1).is_some_and(|local| local.ends_with(&wanted))
                    && words.nth(1) == Some("0A")
            })
        };
        let mut ended = false;
        wait_for(Duration::from_secs(20), "the proxy listens", || {
            ended = !process.is_running();
            ended
                || namespace.run(|| {
                    ["tcp", "tcp6"].iter().any(|family| {
                        std::fs::read_to_string(format!("/proc/thread-self/net/{family}"))
                            .is_ok_and(|table| listens(&table))
                    })
                })
        });
        if ended {
            let said = std::fs::read_to_string(self.log(name)).unwrap_or_default();
            anyhow::bail!("{name} ended at once: {}", said.trim());
        }
        Ok(())
    }
}
