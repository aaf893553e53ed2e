//! What concerns traffic, either way.

use std::{sync::Arc, time::Duration};

use super::{
    super::{
        Backoff, DefaultPolicy, Died, Http2Life, Http2Server, Inbound, Outbound, Pool, Queue, Safe,
        env,
        value::{self, Malformed},
    },
    Reader, SECOND,
};

impl Reader<'_> {
    pub(super) fn outbound(&mut self, backoff: Backoff, safe: Safe) -> Outbound {
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

    pub(super) fn inbound(&mut self, backoff: Backoff, safe: Safe) -> Inbound {
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
