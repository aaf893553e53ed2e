//! Reads the variables of `env.rs` into `Config`, collecting every mistake on the way.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{
    AccessLog, Addr, Admin, Backoff, Config, Control, ControlAddr, DefaultPolicy, Died, Env,
    Http2Life, Http2Server, Http2Windows, Identity, IdentitySource, Inbound, Outbound, Pool, Queue,
    Safe, SocketOptions, StreamLimits, Tap, Workers, env,
    value::{self, Malformed},
};
use crate::control::identity::TokenFile;

/// Variables in, values out; mistakes are kept.
pub(super) struct Reader<'a> {
    env: &'a dyn Env,
    mistakes: Vec<String>,
    warnings: Vec<String>,
    complaints: Vec<String>,
}

const SECOND: Duration = Duration::from_secs(1);

impl<'a> Reader<'a> {
    pub(super) fn new(env: &'a dyn Env) -> Self {
        Self {
            env,
            mistakes: Vec::new(),
            warnings: Vec::new(),
            complaints: Vec::new(),
        }
    }

    pub(super) fn into_mistakes(self) -> Vec<String> {
        self.mistakes
    }

    fn get<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, Malformed>,
    ) -> Option<T> {
        let text = match self.env.get(name)? {
            Ok(text) => text,
            Err(error) => {
                self.mistakes.push(format!("{name} is not valid: {error}"));
                return None;
            }
        };
        match parse(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.mistakes
                    .push(format!("{name}={text:?} is not valid: {error}"));
                None
            }
        }
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.get(name, |s| Ok(s.to_owned()))
    }

    fn duration(&mut self, name: &str, default: Duration) -> Duration {
        self.get(name, value::duration).unwrap_or(default)
    }

    fn boolean(&mut self, name: &str) -> bool {
        self.get(name, value::boolean).unwrap_or(false)
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str, default: T) -> T {
        self.get(name, value::number).unwrap_or(default)
    }

    fn required(&mut self, name: &str) -> Option<String> {
        let value = self.text(name);
        if value.is_none() && self.env.get(name).is_none() {
            self.mistakes.push(format!("{name} is required"));
        }
        value
    }

    pub(super) fn config(&mut self) -> Option<Config> {
        let inbound_backoff = self.backoff(
            [
                env::INBOUND_CONNECT_EXP_BACKOFF_MIN,
                env::INBOUND_CONNECT_EXP_BACKOFF_MAX,
                env::INBOUND_CONNECT_EXP_BACKOFF_JITTER,
            ],
            10 * SECOND,
        );
        let outbound_backoff = self.backoff(
            [
                env::OUTBOUND_CONNECT_EXP_BACKOFF_MIN,
                env::OUTBOUND_CONNECT_EXP_BACKOFF_MAX,
                env::OUTBOUND_CONNECT_EXP_BACKOFF_JITTER,
            ],
            60 * SECOND,
        );
        let safe = Safe {
            unsent: self
                .get(env::HTTP_RESEND_UNSENT, value::boolean)
                .unwrap_or(true),
            idempotent: self
                .get(env::HTTP_RESEND_IDEMPOTENT, value::boolean)
                .unwrap_or(true),
        };
        let outbound = self.outbound(outbound_backoff, safe);
        let inbound = self.inbound(inbound_backoff, safe);
        let admin = Admin {
            listen: self
                .get(env::ADMIN_LISTEN_ADDR, value::socket_addr)
                .unwrap_or_else(|| ([127, 0, 0, 1], 4191).into()),
            shutdown_enabled: self.boolean(env::SHUTDOWN_ENDPOINT_ENABLED),
            metrics_retain_idle: self.duration(env::METRICS_RETAIN_IDLE, 600 * SECOND),
        };
        let http2_client = Http2Windows {
            stream: self
                .get(env::HTTP2_INITIAL_STREAM_WINDOW_SIZE, value::window)
                .unwrap_or(65_535),
            connection: self
                .get(env::HTTP2_INITIAL_CONNECTION_WINDOW_SIZE, value::window)
                .unwrap_or(1_048_576),
        };
        let tap_listen = self
            .get(env::CONTROL_LISTEN_ADDR, value::socket_addr)
            .unwrap_or_else(|| ([0, 0, 0, 0], 4190).into());
        let tap = self
            .get(env::TAP_SVC_NAME, value::identity)
            .map(|identity| Tap {
                listen: tap_listen,
                identity,
            });
        let memory_ceiling = match self.get(env::MEMORY_CEILING, value::number) {
            Some(0) => None,
            Some(bytes) => Some(bytes),
            None => crate::memory::of_container(),
        };
        let shutdown_grace = self.duration(env::SHUTDOWN_GRACE_PERIOD, 120 * SECOND);
        let workers = self.workers();
        let identity = self.identity();
        let spire = matches!(
            identity,
            Some(Identity {
                source: IdentitySource::Spire { .. },
                ..
            })
        );
        let control = self.control(spire);
        Some(Config {
            outbound,
            inbound,
            admin,
            control: control?,
            identity: identity?,
            http2_client,
            workers,
            head_timeout: self.duration(env::HTTP1_HEAD_TIMEOUT, 30 * SECOND),
            trace_resource: self.trace_resource(),
            access_log: self.access_log(),
            tap,
            memory_ceiling,
            shutdown_grace,
            warnings: std::mem::take(&mut self.warnings),
            complaints: std::mem::take(&mut self.complaints),
        })
    }

    /// Later sources win: host, service name, labels of the pod, extra attributes, OpenTelemetry's own.
    fn trace_resource(&mut self) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        let mut put = |name: &str, value: &str| {
            let (name, value) = (name.trim(), value.trim());
            if !name.is_empty() {
                found.retain(|(n, _)| n != name);
                found.push((name.to_owned(), value.to_owned()));
            }
        };
        if let Some(host) = self.text(env::HOSTNAME) {
            put("host.name", &host);
        }
        if let Some(name) = self.text(env::TRACE_SERVICE_NAME) {
            put("service.name", &name);
        }
        if let Some(path) = self.text(env::TRACE_ATTRIBUTES_PATH) {
            match std::fs::read_to_string(&path) {
                Ok(labels) => {
                    for (name, value) in labels.lines().filter_map(|l| l.split_once('=')) {
                        put(name, value.trim().trim_matches('"'));
                    }
                }
                Err(error) => self
                    .warnings
                    .push(format!("{path} cannot be read: {error}")),
            }
        }
        if let Some(extra) = self.text(env::TRACE_EXTRA_ATTRIBUTES) {
            for (name, value) in extra.lines().filter_map(|l| l.split_once('=')) {
                put(name, value);
            }
        }
        if let Some(theirs) = self.text(env::OTEL_RESOURCE_ATTRIBUTES) {
            for (name, value) in theirs.split(',').filter_map(|a| a.split_once('=')) {
                put(name, value);
            }
        }
        found
    }

    /// A form nobody knows only turns the access log off.
    fn access_log(&mut self) -> Option<AccessLog> {
        let name = self.get(env::ACCESS_LOG, |text| Ok(text.trim().to_owned()))?;
        match name.as_str() {
            "apache" => Some(AccessLog::Apache),
            "json" => Some(AccessLog::Json),
            "" => None,
            _ => {
                self.complaints.push(format!(
                    "{}={name:?} is neither apache nor json: there is no access log",
                    env::ACCESS_LOG
                ));
                None
            }
        }
    }

    fn outbound(&mut self, backoff: Backoff, safe: Safe) -> Outbound {
        let single = self
            .get(env::OUTBOUND_LISTEN_ADDR, value::socket_addr)
            .unwrap_or_else(|| ([127, 0, 0, 1], 4140).into());
        let ingress = self.boolean(env::INGRESS_MODE);
        let hidden = self
            .get(env::OUTBOUND_DISABLE_INFORMATIONAL_HEADERS, value::boolean)
            .unwrap_or(ingress);
        Outbound {
            listen: self
                .get(env::OUTBOUND_LISTEN_ADDRS, value::socket_addrs)
                .unwrap_or_else(|| vec![single]),
            backlog: self.get(env::OUTBOUND_TCP_LISTEN_BACKLOG, value::number),
            accept: self.socket_options(
                env::OUTBOUND_ACCEPT_KEEPALIVE,
                env::OUTBOUND_ACCEPT_USER_TIMEOUT,
            ),
            connect: self.socket_options(
                env::OUTBOUND_CONNECT_KEEPALIVE,
                env::OUTBOUND_CONNECT_USER_TIMEOUT,
            ),
            detect_timeout: self.duration(env::OUTBOUND_DETECT_TIMEOUT, 10 * SECOND),
            connect_timeout: self.duration(env::OUTBOUND_CONNECT_TIMEOUT, SECOND),
            backoff,
            tcp_queue: Queue {
                capacity: self.number(env::OUTBOUND_TCP_QUEUE_CAPACITY, 10_000),
                failfast: self.duration(env::OUTBOUND_TCP_FAILFAST_TIMEOUT, 3 * SECOND),
            },
            http_queue: Queue {
                capacity: self.number(env::OUTBOUND_HTTP_QUEUE_CAPACITY, 10_000),
                failfast: self.duration(env::OUTBOUND_HTTP_FAILFAST_TIMEOUT, 3 * SECOND),
            },
            max_in_flight: self.number(env::OUTBOUND_MAX_IN_FLIGHT, 100_000),
            pool: Pool {
                max_idle: self.number(env::OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT, 10_000),
                idle_timeout: self
                    .duration(env::OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT, 3 * SECOND),
            },
            discovery_idle: self.duration(env::OUTBOUND_DISCOVERY_IDLE_TIMEOUT, 5 * SECOND),
            upgrade_threshold: self.number(env::OUTBOUND_HTTP1_UPGRADE_THRESHOLD, 16),
            http2_life: Http2Life {
                idle: self.duration(env::OUTBOUND_HTTP2_IDLE_TIMEOUT, 300 * SECOND),
                age: self.duration(env::OUTBOUND_HTTP2_MAX_AGE, 3600 * SECOND),
            },
            http2: self.http2_server(&OUTBOUND_HTTP2),
            ingress,
            informational_headers: !hidden,
            hostname_labels: self.boolean(env::OUTBOUND_METRICS_HOSTNAME_LABELS),
            resend: safe.resend(Died::Any),
        }
    }

    fn inbound(&mut self, backoff: Backoff, safe: Safe) -> Inbound {
        let cluster_networks = self
            .get(env::POLICY_CLUSTER_NETWORKS, value::networks)
            .unwrap_or_default();
        let default_policy = self.default_policy(!cluster_networks.is_empty());
        let authority_labels = self
            .get(env::INBOUND_METRICS_AUTHORITY_LABELS, |s| match s {
                "" => Ok(false),
                "unsafe" => Ok(true),
                _ => Err(Malformed::Other("must be empty or unsafe")),
            })
            .unwrap_or(false);
        Inbound {
            listen: self
                .get(env::INBOUND_LISTEN_ADDR, value::socket_addr)
                .unwrap_or_else(|| ([0, 0, 0, 0], 4143).into()),
            backlog: self.get(env::INBOUND_TCP_LISTEN_BACKLOG, value::number),
            accept: self.socket_options(
                env::INBOUND_ACCEPT_KEEPALIVE,
                env::INBOUND_ACCEPT_USER_TIMEOUT,
            ),
            connect: self.socket_options(
                env::INBOUND_CONNECT_KEEPALIVE,
                env::INBOUND_CONNECT_USER_TIMEOUT,
            ),
            detect_timeout: self.duration(env::INBOUND_DETECT_TIMEOUT, 10 * SECOND),
            connect_timeout: self
                .duration(env::INBOUND_CONNECT_TIMEOUT, Duration::from_millis(300)),
            backoff,
            http_queue: Queue {
                capacity: self.number(env::INBOUND_HTTP_QUEUE_CAPACITY, 10_000),
                failfast: self.duration(env::INBOUND_HTTP_FAILFAST_TIMEOUT, SECOND),
            },
            max_in_flight: self.number(env::INBOUND_MAX_IN_FLIGHT, 100_000),
            pool: Pool {
                max_idle: self.number(env::INBOUND_MAX_IDLE_CONNS_PER_ENDPOINT, 10_000),
                idle_timeout: self
                    .duration(env::INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT, 3 * SECOND),
            },
            discovery_idle: self.duration(env::INBOUND_DISCOVERY_IDLE_TIMEOUT, 90 * SECOND),
            http2: self.http2_server(&INBOUND_HTTP2),
            default_policy,
            cluster_networks,
            ports: self
                .get(env::INBOUND_PORTS, value::ports)
                .unwrap_or_default(),
            opaque_ports: self
                .get(env::INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION, value::ports)
                .unwrap_or_default(),
            ips: Arc::new(self.get(env::INBOUND_IPS, value::ips).unwrap_or_default()),
            gateway_suffixes: self
                .get(env::INBOUND_GATEWAY_SUFFIXES, value::suffixes)
                .unwrap_or_default(),
            authority_labels,
            profile_timeout: self.duration(
                env::DESTINATION_PROFILE_INITIAL_TIMEOUT,
                Duration::from_millis(500),
            ),
            resend: safe.resend(Died::Reused),
        }
    }

    fn default_policy(&mut self, cluster_known: bool) -> DefaultPolicy {
        if self.env.get(env::INBOUND_DEFAULT_POLICY).is_none() {
            self.warnings.push(format!(
                "{} was not set; using all-unauthenticated",
                env::INBOUND_DEFAULT_POLICY
            ));
        }
        self.get(env::INBOUND_DEFAULT_POLICY, |s| {
            let policy = match s {
                "deny" => DefaultPolicy::Deny,
                "all-unauthenticated" => DefaultPolicy::AllUnauthenticated,
                "all-authenticated" => DefaultPolicy::AllAuthenticated,
                "cluster-authenticated" => DefaultPolicy::ClusterAuthenticated,
                "cluster-unauthenticated" => DefaultPolicy::ClusterUnauthenticated,
                "audit" => DefaultPolicy::Audit,
                _ => return Err(Malformed::Other("not a default policy")),
            };
            match policy {
                DefaultPolicy::ClusterAuthenticated
                | DefaultPolicy::ClusterUnauthenticated
                | DefaultPolicy::Audit
                    if !cluster_known =>
                {
                    Err(Malformed::Other("needs the cluster networks"))
                }
                policy => Ok(policy),
            }
        })
        .unwrap_or(DefaultPolicy::AllUnauthenticated)
    }

    fn socket_options(&mut self, keepalive: &str, user_timeout: &str) -> SocketOptions {
        SocketOptions {
            keepalive: self.get(keepalive, value::duration),
            user_timeout: self.get(user_timeout, value::duration),
        }
    }

    fn backoff(&mut self, names: [&str; 3], default_max: Duration) -> Backoff {
        let default = Backoff {
            min: Duration::from_millis(100),
            max: default_max,
            jitter: 0.1,
        };
        let [min_name, max_name, jitter_name] = names;
        let min = self.get(min_name, value::duration);
        let max = self.get(max_name, value::duration);
        let jitter = self.get(jitter_name, value::number::<f64>);
        match (min, max) {
            (None, None) => {
                match Backoff::new(default.min, default.max, jitter.unwrap_or(default.jitter)) {
                    Ok(backoff) => backoff,
                    Err(error) => {
                        self.mistakes
                            .push(format!("{jitter_name} is not valid: {error}"));
                        default
                    }
                }
            }
            (Some(min), Some(max)) => match Backoff::new(min, max, jitter.unwrap_or(0.0)) {
                Ok(backoff) => backoff,
                Err(error) => {
                    self.mistakes
                        .push(format!("{min_name} and {max_name} are not valid: {error}"));
                    default
                }
            },
            // A variable that is present but bad has been reported already.
            _ => {
                let both = self.env.get(min_name).is_some() && self.env.get(max_name).is_some();
                if !both {
                    self.mistakes
                        .push(format!("{min_name} and {max_name} must be set together"));
                }
                default
            }
        }
    }

    fn http2_server(&mut self, names: &Http2Names) -> Http2Server {
        let stream = self.get(names.stream_window, value::window);
        let connection = self.get(names.connection_window, value::window);
        let interval = self.get(names.keep_alive_interval, value::duration);
        let timeout = self.get(names.keep_alive_timeout, value::duration);
        Http2Server {
            windows: stream.zip(connection),
            adaptive: self.boolean(names.adaptive),
            keep_alive: interval.zip(timeout),
            max_concurrent_streams: self.get(names.max_concurrent_streams, value::number),
            max_frame_size: self.get(names.max_frame_size, |s| {
                let size = value::number::<u32>(s)?;
                if (16_384..=16_777_215).contains(&size) {
                    Ok(size)
                } else {
                    Err(Malformed::Other("must be between 16384 and 16777215"))
                }
            }),
            max_header_list_size: self.get(names.max_header_list_size, value::number),
            max_pending_accept_reset_streams: self
                .get(names.max_pending_accept_reset_streams, value::number),
            max_send_buf_size: self.get(names.max_send_buf_size, |s| {
                let size = value::number::<usize>(s)?;
                match u32::try_from(size) {
                    Ok(_) => Ok(size),
                    Err(_) => Err(Malformed::Other("must be at most 4294967295")),
                }
            }),
        }
    }

    /// Bad values here are only warnings, as upstream.
    fn workers(&mut self) -> Workers {
        let before = self.mistakes.len();
        let at_least_one = |s: &str| match value::number::<usize>(s)? {
            0 => Err(Malformed::Other("must be at least 1")),
            n => Ok(n),
        };
        let min = match self.get(env::CORES_MIN, at_least_one) {
            Some(min) => min,
            None => self.get(env::CORES, at_least_one).unwrap_or(1),
        };
        let max = self.get(env::CORES_MAX, at_least_one);
        let max_ratio = self.get(env::CORES_MAX_RATIO, |s| {
            let ratio = value::number::<f64>(s)?;
            if ratio > 0.0 && ratio <= 1.0 {
                Ok(ratio)
            } else {
                Err(Malformed::Other("must be above 0 and at most 1"))
            }
        });
        self.warnings.extend(self.mistakes.drain(before..));
        Workers {
            min,
            max,
            max_ratio,
        }
    }

    fn control_addr(&mut self, addr: &str, name: &str) -> Option<ControlAddr> {
        let addr_value: Option<Addr> = self.get(addr, str::parse);
        let identity = self.get(name, value::identity);
        let addr_value = addr_value?;
        if addr_value.is_loopback() {
            return Some(ControlAddr {
                addr: addr_value,
                identity: None,
            });
        }
        if identity.is_none() && self.env.get(name).is_none() {
            self.mistakes
                .push(format!("{name} is required when {addr} is not loopback"));
        }
        Some(ControlAddr {
            addr: addr_value,
            identity: Some(identity?),
        })
    }

    fn control(&mut self, spire: bool) -> Option<Control> {
        let destination = self.control_addr(env::DESTINATION_SVC_ADDR, env::DESTINATION_SVC_NAME);
        if self.env.get(env::DESTINATION_SVC_ADDR).is_none() {
            self.mistakes
                .push("no destination service configured".into());
        }
        let policy = self.control_addr(env::POLICY_SVC_ADDR, env::POLICY_SVC_NAME);
        if self.env.get(env::POLICY_SVC_ADDR).is_none() {
            self.mistakes.push("no policy service configured".into());
        }
        let identity = if spire {
            None
        } else {
            let addr = self.control_addr(env::IDENTITY_SVC_ADDR, env::IDENTITY_SVC_NAME);
            if self.env.get(env::IDENTITY_SVC_ADDR).is_none() {
                self.mistakes.push("no identity service configured".into());
            }
            addr
        };
        let trace = self.control_addr(env::TRACE_COLLECTOR_SVC_ADDR, env::TRACE_COLLECTOR_SVC_NAME);
        let streams = self.stream_limits();
        let control = Control {
            destination: destination?,
            policy: policy?,
            identity,
            trace,
            context: self.text(env::DESTINATION_CONTEXT).unwrap_or_default(),
            profile_suffixes: self
                .get(env::DESTINATION_PROFILE_SUFFIXES, value::suffixes)
                .unwrap_or_else(|| {
                    value::suffixes("svc.cluster.local.").expect("constant is a suffix list")
                }),
            profile_networks: self
                .get(env::DESTINATION_PROFILE_NETWORKS, value::networks)
                .unwrap_or_default(),
            workload: self.required(env::POLICY_WORKLOAD)?,
            streams,
            dns_min_ttl: self.get(env::DNS_MIN_TTL, value::duration),
            dns_max_ttl: self.get(env::DNS_MAX_TTL, value::duration),
        };
        Some(control)
    }

    fn stream_limits(&mut self) -> StreamLimits {
        let limits = StreamLimits {
            initial: self.get(env::CONTROL_STREAM_INITIAL_TIMEOUT, value::duration),
            idle: self.get(env::CONTROL_STREAM_IDLE_TIMEOUT, value::duration),
            lifetime: self.get(env::CONTROL_STREAM_LIFETIME, value::duration),
        };
        let ordered = [limits.initial, limits.idle, limits.lifetime];
        if !ordered.iter().flatten().is_sorted() {
            self.mistakes.push(format!(
                "{}, {} and {} must not decrease",
                env::CONTROL_STREAM_INITIAL_TIMEOUT,
                env::CONTROL_STREAM_IDLE_TIMEOUT,
                env::CONTROL_STREAM_LIFETIME
            ));
        }
        limits
    }

    fn identity(&mut self) -> Option<Identity> {
        if self
            .text(env::IDENTITY_DISABLED)
            .is_some_and(|v| !v.is_empty())
        {
            self.mistakes.push(format!(
                "{} is no longer supported: identity must be enabled",
                env::IDENTITY_DISABLED
            ));
        }
        let dns = |s: &str| {
            if value::is_dns_name(s) {
                Ok(s.to_owned())
            } else {
                Err(Malformed::Identity)
            }
        };
        let local = self.get(env::IDENTITY_LOCAL_NAME, dns);
        let id = self.get(env::IDENTITY_SERVER_ID, value::identity);
        let server_name = self.get(env::IDENTITY_SERVER_NAME, dns);
        // One name for both wins over one for each.
        let (id, server_name) = match local {
            Some(name) => (Some(name.clone()), Some(name)),
            None => (id, server_name),
        };
        for (name, missing) in [
            (env::IDENTITY_SERVER_ID, id.is_none()),
            (env::IDENTITY_SERVER_NAME, server_name.is_none()),
        ] {
            if missing
                && self.env.get(name).is_none()
                && self.env.get(env::IDENTITY_LOCAL_NAME).is_none()
            {
                self.mistakes.push(format!("{name} is required"));
            }
        }
        let trust_anchors = self.required(env::IDENTITY_TRUST_ANCHORS).filter(|pem| {
            let empty = pem.trim().is_empty();
            if empty {
                self.mistakes
                    .push(format!("{} must not be empty", env::IDENTITY_TRUST_ANCHORS));
            }
            !empty
        });
        let spire = match self.text(env::IDENTITY_SPIRE_WORKLOAD_API_ADDRESS) {
            Some(addr) => Some(addr),
            None => self.text(env::IDENTITY_SPIRE_SOCKET),
        };
        let source = match spire {
            Some(addr) => {
                let socket = addr.strip_prefix("unix:").unwrap_or(&addr);
                let socket = PathBuf::from(socket.strip_prefix("//").unwrap_or(socket));
                if id.as_deref().is_some_and(|id| !id.starts_with("spiffe://")) {
                    self.mistakes
                        .push("spire identity requires a SPIFFE TLS Id".into());
                }
                let backoff = self.backoff(
                    [
                        env::IDENTITY_SPIRE_EXP_BACKOFF_MIN,
                        env::IDENTITY_SPIRE_EXP_BACKOFF_MAX,
                        env::IDENTITY_SPIRE_EXP_BACKOFF_JITTER,
                    ],
                    SECOND,
                );
                IdentitySource::Spire { socket, backoff }
            }
            None => {
                if id.is_some() && server_name.is_some() && id != server_name {
                    self.mistakes.push(
                        "linkerd identity requires a TLS Id and server name to be the same".into(),
                    );
                }
                let dir = self.required(env::IDENTITY_DIR);
                let token_file = self.required(env::IDENTITY_TOKEN_FILE);
                if let Some(Err(error)) = token_file.clone().map(|f| TokenFile::open(f.into())) {
                    let name = env::IDENTITY_TOKEN_FILE;
                    self.mistakes.push(format!("{name} is not usable: {error}"));
                }
                let min_refresh = self.duration(env::IDENTITY_MIN_REFRESH, 10 * SECOND);
                let max_refresh = self.duration(env::IDENTITY_MAX_REFRESH, 86_400 * SECOND);
                IdentitySource::Linkerd {
                    dir: dir?.into(),
                    token_file: token_file?.into(),
                    min_refresh,
                    max_refresh,
                }
            }
        };
        let resumption = !self.boolean(env::TLS_RESUMPTION_DISABLED);
        Some(Identity {
            id: id?,
            server_name: server_name?,
            trust_anchors: trust_anchors?,
            resumption,
            source,
        })
    }
}

struct Http2Names {
    stream_window: &'static str,
    connection_window: &'static str,
    adaptive: &'static str,
    keep_alive_interval: &'static str,
    keep_alive_timeout: &'static str,
    max_concurrent_streams: &'static str,
    max_frame_size: &'static str,
    max_header_list_size: &'static str,
    max_pending_accept_reset_streams: &'static str,
    max_send_buf_size: &'static str,
}

const INBOUND_HTTP2: Http2Names = Http2Names {
    stream_window: env::INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE,
    connection_window: env::INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE,
    adaptive: env::INBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL,
    keep_alive_interval: env::INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL,
    keep_alive_timeout: env::INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT,
    max_concurrent_streams: env::INBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS,
    max_frame_size: env::INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE,
    max_header_list_size: env::INBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE,
    max_pending_accept_reset_streams: env::INBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS,
    max_send_buf_size: env::INBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE,
};

const OUTBOUND_HTTP2: Http2Names = Http2Names {
    stream_window: env::OUTBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE,
    connection_window: env::OUTBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE,
    adaptive: env::OUTBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL,
    keep_alive_interval: env::OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL,
    keep_alive_timeout: env::OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT,
    max_concurrent_streams: env::OUTBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS,
    max_frame_size: env::OUTBOUND_SERVER_HTTP2_MAX_FRAME_SIZE,
    max_header_list_size: env::OUTBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE,
    max_pending_accept_reset_streams: env::OUTBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS,
    max_send_buf_size: env::OUTBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE,
};
