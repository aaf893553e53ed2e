//! The proxy's settings, read once from the environment into one struct per room. Reading goes on
//! after a bad value, so one run reports every mistake.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

pub mod env;
mod read;
pub mod value;

pub use self::env::Env;
use self::read::Reader;
pub use self::value::{Addr, Backoff, PortSet, Suffixes};
pub use crate::http::again::Resend;
use crate::http::again::{Died, REPLAY};

/// Everything the proxy is told at start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Traffic of the local applications.
    pub outbound: Outbound,
    /// Traffic to the local applications.
    pub inbound: Inbound,
    /// Admin server.
    pub admin: Admin,
    /// Control-plane clients.
    pub control: Control,
    /// Certificates.
    pub identity: Identity,
    /// HTTP/2 client connections.
    pub http2_client: Http2Windows,
    /// Worker threads wanted.
    pub workers: Workers,
    /// How long an HTTP/1 head may take once it has begun.
    pub head_timeout: Duration,
    /// What traces say about this process.
    pub trace_resource: Vec<(String, String)>,
    /// Form of the access log, if there is one.
    pub access_log: Option<AccessLog>,
    /// Identity that may tap and where the tap server listens.
    pub tap: Option<Tap>,
    /// Bytes of memory above which new work is refused.
    pub memory_ceiling: Option<u64>,
    /// Time after which a graceful shutdown becomes an exit.
    pub shutdown_grace: Duration,
    /// What is odd about the configuration and does not keep the proxy from starting.
    pub warnings: Vec<String>,
    /// The same, for standard error: what concerns the log that goes there.
    pub complaints: Vec<String>,
}

/// Settings of the outbound side.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// One or two listeners.
    pub listen: Vec<SocketAddr>,
    /// Listen backlog.
    pub backlog: Option<u32>,
    /// Options of accepted connections.
    pub accept: SocketOptions,
    /// Options of connections to endpoints.
    pub connect: SocketOptions,
    /// Time to see first bytes.
    pub detect_timeout: Duration,
    /// TCP and TLS connect limit.
    pub connect_timeout: Duration,
    /// Reconnect backoff, also used for the control plane.
    pub backoff: Backoff,
    /// Limits on waiting connections.
    pub tcp_queue: Queue,
    /// Limits on waiting requests.
    pub http_queue: Queue,
    /// Requests in flight, for the process.
    pub max_in_flight: usize,
    /// HTTP/1 pool.
    pub pool: Pool,
    /// Discovery cache.
    pub discovery_idle: Duration,
    /// In-flight requests above which HTTP/1 travels as HTTP/2.
    pub upgrade_threshold: u32,
    /// How long HTTP/2 connections to peers live.
    pub http2_life: Http2Life,
    /// HTTP/2 server settings.
    pub http2: Http2Server,
    /// Ingress mode.
    pub ingress: bool,
    /// Whether local applications see `l5d-proxy-error`.
    pub informational_headers: bool,
    /// Whether the `hostname` label is filled.
    pub hostname_labels: bool,
    /// What is sent again without a retry policy.
    pub resend: Resend,
}

/// Settings of the inbound side.
#[derive(Clone, Debug)]
pub struct Inbound {
    /// The listener.
    pub listen: SocketAddr,
    /// Listen backlog.
    pub backlog: Option<u32>,
    /// Options of accepted connections.
    pub accept: SocketOptions,
    /// Options of connections to the application.
    pub connect: SocketOptions,
    /// Time to see first bytes.
    pub detect_timeout: Duration,
    /// Connect limit.
    pub connect_timeout: Duration,
    /// Reconnect backoff.
    pub backoff: Backoff,
    /// Limits on waiting requests.
    pub http_queue: Queue,
    /// Requests in flight, for the process.
    pub max_in_flight: usize,
    /// HTTP/1 pool.
    pub pool: Pool,
    /// Policy cache.
    pub discovery_idle: Duration,
    /// HTTP/2 server settings.
    pub http2: Http2Server,
    /// Policy before the controller speaks.
    pub default_policy: DefaultPolicy,
    /// Networks of the cluster.
    pub cluster_networks: Vec<IpNet>,
    /// Ports watched from the start.
    pub ports: PortSet,
    /// Ports opaque by default.
    pub opaque_ports: PortSet,
    /// Addresses of the pod; empty means unknown.
    pub ips: Arc<BTreeSet<IpAddr>>,
    /// Names the gateway serves.
    pub gateway_suffixes: Suffixes,
    /// Whether the `authority` label is added.
    pub authority_labels: bool,
    /// Wait for a profile.
    pub profile_timeout: Duration,
    /// What is sent again to an application that closed a connection.
    pub resend: Resend,
}

/// Admin server settings.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The listener.
    pub listen: SocketAddr,
    /// Whether `/shutdown` works.
    pub shutdown_enabled: bool,
    /// Time unused series are kept.
    pub metrics_retain_idle: Duration,
}

/// Control-plane settings.
#[derive(Clone, Debug)]
pub struct Control {
    /// Destination service.
    pub destination: ControlAddr,
    /// Policy service.
    pub policy: ControlAddr,
    /// Identity service; none with SPIRE.
    pub identity: Option<ControlAddr>,
    /// Trace collector.
    pub trace: Option<ControlAddr>,
    /// Token of every destination request.
    pub context: String,
    /// Names worth a profile lookup.
    pub profile_suffixes: Suffixes,
    /// Addresses worth a profile lookup.
    pub profile_networks: Vec<IpNet>,
    /// Workload description.
    pub workload: String,
    /// Limits of control streams.
    pub streams: StreamLimits,
    /// Shortest DNS refresh.
    pub dns_min_ttl: Option<Duration>,
    /// Longest DNS refresh.
    pub dns_max_ttl: Option<Duration>,
}

/// Where a control-plane service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlAddr {
    /// Its address.
    pub addr: Addr,
    /// Its identity; none means plain text (loopback).
    pub identity: Option<String>,
}

/// Limits of one control stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamLimits {
    /// To the first message.
    pub initial: Option<Duration>,
    /// Between messages.
    pub idle: Option<Duration>,
    /// Of the stream.
    pub lifetime: Option<Duration>,
}

/// Certificate settings.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Our identity: a DNS name or a SPIFFE URI.
    pub id: String,
    /// The server name peers ask for.
    pub server_name: String,
    /// Trust anchors, PEM.
    pub trust_anchors: String,
    /// Whether TLS sessions with peers may be resumed.
    pub resumption: bool,
    /// Where certificates come from.
    pub source: IdentitySource,
}

/// Where certificates come from.
#[derive(Clone, Debug)]
pub enum IdentitySource {
    /// The identity service of the control plane.
    Linkerd {
        /// Directory of `key.p8` and `csr.der`.
        dir: PathBuf,
        /// Service account token.
        token_file: PathBuf,
        /// Shortest refresh.
        min_refresh: Duration,
        /// Longest refresh.
        max_refresh: Duration,
    },
    /// A SPIRE agent.
    Spire {
        /// Workload API socket.
        socket: PathBuf,
        /// Reconnect backoff.
        backoff: Backoff,
    },
}

/// Socket options of one side of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// `TCP_KEEPIDLE`.
    pub keepalive: Option<Duration>,
    /// `TCP_USER_TIMEOUT`.
    pub user_timeout: Option<Duration>,
}

/// Limits on waiting work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// How many may wait.
    pub capacity: usize,
    /// How long until failing fast.
    pub failfast: Duration,
}

/// Limits of an HTTP/1 pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Idle connections kept per endpoint.
    pub max_idle: usize,
    /// How long they are kept.
    pub idle_timeout: Duration,
}

/// How long HTTP/2 connections to peers live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Life {
    /// Without requests.
    pub idle: Duration,
    /// At all: then a new connection takes over, and running requests finish on the old one.
    pub age: Duration,
}

/// HTTP/2 windows of client connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Windows {
    /// Per stream.
    pub stream: u32,
    /// Per connection.
    pub connection: u32,
}

/// HTTP/2 settings of one listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2Server {
    /// Fixed windows, when both were given.
    pub windows: Option<(u32, u32)>,
    /// Windows grow with the measured bandwidth.
    pub adaptive: bool,
    /// Ping interval and timeout.
    pub keep_alive: Option<(Duration, Duration)>,
    /// Streams per connection.
    pub max_concurrent_streams: Option<u32>,
    /// Largest frame.
    pub max_frame_size: Option<u32>,
    /// Largest header list.
    pub max_header_list_size: Option<u32>,
    /// Reset streams that may wait for accept.
    pub max_pending_accept_reset_streams: Option<usize>,
    /// Send buffer per stream.
    pub max_send_buf_size: Option<usize>,
}

/// How many worker threads are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workers {
    /// Lower bound.
    pub min: usize,
    /// Upper bound.
    pub max: Option<usize>,
    /// Share of the CPUs available.
    pub max_ratio: Option<f64>,
}

impl Workers {
    /// The number to start, with so many CPUs available.
    pub fn count(&self, available: usize) -> usize {
        let available = available.max(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "the ratio is within 0..=1, so the product fits"
        )]
        let wanted = self
            .max
            .or_else(|| {
                self.max_ratio
                    .map(|r| (available as f64 * r).round() as usize)
            })
            .unwrap_or(1);
        wanted.max(self.min).clamp(1, available)
    }
}

/// Form of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Apache's common log format.
    Apache,
    /// One object per line.
    Json,
}

/// Tap server settings.
#[derive(Clone, Debug)]
pub struct Tap {
    /// The listener.
    pub listen: SocketAddr,
    /// Identity that may tap.
    pub identity: String,
}

/// What a port allows until the controller speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPolicy {
    /// Nothing.
    Deny,
    /// Any client.
    AllUnauthenticated,
    /// Any client with an identity.
    AllAuthenticated,
    /// Any client of the cluster with an identity.
    ClusterAuthenticated,
    /// Any client of the cluster.
    ClusterUnauthenticated,
    /// Any client, and every one is logged.
    Audit,
}

impl DefaultPolicy {
    /// The name used in configuration and in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::AllUnauthenticated => "all-unauthenticated",
            Self::AllAuthenticated => "all-authenticated",
            Self::ClusterAuthenticated => "cluster-authenticated",
            Self::ClusterUnauthenticated => "cluster-unauthenticated",
            Self::Audit => "audit",
        }
    }
}

/// Which of the safe repetitions are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Safe {
    unsent: bool,
    idempotent: bool,
}

impl Safe {
    fn resend(self, died: Died) -> Resend {
        Resend {
            unsent: self.unsent,
            died: if self.idempotent { died } else { Died::Never },
            limit: if self.unsent || self.idempotent {
                REPLAY
            } else {
                0
            },
        }
    }
}

/// Why the environment is not a configuration. Every mistake is listed.
#[derive(Debug, thiserror::Error)]
#[error("invalid environment variable")]
pub struct Invalid {
    /// One line per mistake.
    pub mistakes: Vec<String>,
}

impl Config {
    /// Reads the whole configuration.
    pub fn read(source: &dyn Env) -> Result<Self, Invalid> {
        let mut reader = Reader::new(source);
        let config = reader.config();
        let mistakes = reader.into_mistakes();
        match config {
            Some(config) if mistakes.is_empty() => Ok(config),
            _ => Err(Invalid { mistakes }),
        }
    }
}

#[cfg(test)]
mod tests;
