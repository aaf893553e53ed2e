//! Every variable of the environment and what it changes. A variable without a row fails.

use super::*;

/// A variable, a value, and what changes with it.
struct Row {
    name: &'static str,
    text: &'static str,
    /// What shows it.
    field: fn(&Config) -> String,
    want: &'static str,
    /// Without these it has no effect.
    also: &'static [(&'static str, &'static str)],
    /// What would win over it.
    unset: &'static [&'static str],
}

macro_rules! rows {
    ($($id:ident = $text:expr $(, with [$($also:ident = $value:literal),+])? $(, without $unset:ident)?
        => |$config:ident| $field:expr, $want:literal;)+) => {
        &[$(Row {
            name: env::$id,
            text: $text,
            field: |$config| format!("{:?}", $field),
            want: $want,
            also: &[$($((env::$also, $value)),+)?],
            unset: &[$(env::$unset)?],
        }),+]
    };
}

/// A file that is there.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs");
/// One with lines of names and values.
const LABELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

/// Directory, token and refresh bounds of the identity service.
fn linkerd(config: &Config) -> (&std::path::Path, &std::path::Path, Duration, Duration) {
    match &config.identity.source {
        IdentitySource::Linkerd {
            dir,
            token_file,
            min_refresh,
            max_refresh,
        } => (dir, token_file, *min_refresh, *max_refresh),
        other => panic!("{other:?}"),
    }
}

/// Socket and backoff of a SPIRE agent; nothing without one.
fn spire(config: &Config) -> Option<(&std::path::Path, Backoff)> {
    match &config.identity.source {
        IdentitySource::Spire { socket, backoff } => Some((socket, *backoff)),
        IdentitySource::Linkerd { .. } => None,
    }
}

const ROWS: &[Row] = rows! {
    OUTBOUND_LISTEN_ADDR = "127.0.0.1:1", without OUTBOUND_LISTEN_ADDRS
        => |c| c.outbound.listen, "[127.0.0.1:1]";
    OUTBOUND_LISTEN_ADDRS = "[::1]:2"
        => |c| c.outbound.listen, "[[::1]:2]";
    INBOUND_LISTEN_ADDR = "[::]:3"
        => |c| c.inbound.listen, "[::]:3";
    CONTROL_LISTEN_ADDR = "127.0.0.1:4", with [TAP_SVC_NAME = "tap.linkerd-viz"]
        => |c| c.tap.as_ref().map(|t| t.listen), "Some(127.0.0.1:4)";
    ADMIN_LISTEN_ADDR = "127.0.0.1:5"
        => |c| c.admin.listen, "127.0.0.1:5";
    INBOUND_TCP_LISTEN_BACKLOG = "6"
        => |c| c.inbound.backlog, "Some(6)";
    OUTBOUND_TCP_LISTEN_BACKLOG = "7"
        => |c| c.outbound.backlog, "Some(7)";
    CORES_MIN = "2"
        => |c| c.workers.min, "2";
    CORES = "3"
        => |c| c.workers.min, "3";
    CORES_MAX = "4"
        => |c| c.workers.max, "Some(4)";
    CORES_MAX_RATIO = "0.5"
        => |c| c.workers.max_ratio, "Some(0.5)";
    HTTP1_HEAD_TIMEOUT = "7s"
        => |c| c.head_timeout, "7s";
    ACCESS_LOG = "apache"
        => |c| c.access_log, "Some(Apache)";
    SHUTDOWN_ENDPOINT_ENABLED = "true"
        => |c| c.admin.shutdown_enabled, "true";
    SHUTDOWN_GRACE_PERIOD = "7m"
        => |c| c.shutdown_grace, "420s";
    METRICS_RETAIN_IDLE = "7m"
        => |c| c.admin.metrics_retain_idle, "420s";
    INGRESS_MODE = "true"
        => |c| c.outbound.ingress, "true";
    INBOUND_METRICS_AUTHORITY_LABELS = "unsafe"
        => |c| c.inbound.authority_labels, "true";
    OUTBOUND_METRICS_HOSTNAME_LABELS = "true"
        => |c| c.outbound.hostname_labels, "true";
    OUTBOUND_DISABLE_INFORMATIONAL_HEADERS = "true"
        => |c| c.outbound.informational_headers, "false";
    INBOUND_DETECT_TIMEOUT = "365d"
        => |c| c.inbound.detect_timeout, "31536000s";
    INBOUND_CONNECT_TIMEOUT = "7ms"
        => |c| c.inbound.connect_timeout, "7ms";
    INBOUND_ACCEPT_KEEPALIVE = "7s"
        => |c| c.inbound.accept.keepalive, "Some(7s)";
    INBOUND_ACCEPT_USER_TIMEOUT = "8s"
        => |c| c.inbound.accept.user_timeout, "Some(8s)";
    INBOUND_CONNECT_KEEPALIVE = "7s"
        => |c| c.inbound.connect.keepalive, "Some(7s)";
    INBOUND_CONNECT_USER_TIMEOUT = "8s"
        => |c| c.inbound.connect.user_timeout, "Some(8s)";
    INBOUND_CONNECT_EXP_BACKOFF_MIN = "7ms", with [INBOUND_CONNECT_EXP_BACKOFF_MAX = "9s"]
        => |c| c.inbound.backoff.min, "7ms";
    INBOUND_CONNECT_EXP_BACKOFF_MAX = "9s", with [INBOUND_CONNECT_EXP_BACKOFF_MIN = "7ms"]
        => |c| c.inbound.backoff.max, "9s";
    INBOUND_CONNECT_EXP_BACKOFF_JITTER = "0.7"
        => |c| c.inbound.backoff.jitter, "0.7";
    OUTBOUND_DETECT_TIMEOUT = "365d"
        => |c| c.outbound.detect_timeout, "31536000s";
    OUTBOUND_CONNECT_TIMEOUT = "7ms"
        => |c| c.outbound.connect_timeout, "7ms";
    OUTBOUND_ACCEPT_KEEPALIVE = "7s"
        => |c| c.outbound.accept.keepalive, "Some(7s)";
    OUTBOUND_ACCEPT_USER_TIMEOUT = "8s"
        => |c| c.outbound.accept.user_timeout, "Some(8s)";
    OUTBOUND_CONNECT_KEEPALIVE = "7s"
        => |c| c.outbound.connect.keepalive, "Some(7s)";
    OUTBOUND_CONNECT_USER_TIMEOUT = "8s"
        => |c| c.outbound.connect.user_timeout, "Some(8s)";
    OUTBOUND_CONNECT_EXP_BACKOFF_MIN = "7ms", with [OUTBOUND_CONNECT_EXP_BACKOFF_MAX = "9s"]
        => |c| c.outbound.backoff.min, "7ms";
    OUTBOUND_CONNECT_EXP_BACKOFF_MAX = "9s", with [OUTBOUND_CONNECT_EXP_BACKOFF_MIN = "7ms"]
        => |c| c.outbound.backoff.max, "9s";
    OUTBOUND_CONNECT_EXP_BACKOFF_JITTER = "0.7"
        => |c| c.outbound.backoff.jitter, "0.7";
    IDENTITY_SPIRE_EXP_BACKOFF_MIN = "7ms", with [IDENTITY_SPIRE_WORKLOAD_API_ADDRESS = "unix:///run/spire.sock", IDENTITY_SERVER_ID = "spiffe://domain/web", IDENTITY_SERVER_NAME = "web.ns", IDENTITY_SPIRE_EXP_BACKOFF_MAX = "9s"], without IDENTITY_LOCAL_NAME
        => |c| spire(c).map(|s| s.1.min), "Some(7ms)";
    IDENTITY_SPIRE_EXP_BACKOFF_MAX = "9s", with [IDENTITY_SPIRE_WORKLOAD_API_ADDRESS = "unix:///run/spire.sock", IDENTITY_SERVER_ID = "spiffe://domain/web", IDENTITY_SERVER_NAME = "web.ns", IDENTITY_SPIRE_EXP_BACKOFF_MIN = "7ms"], without IDENTITY_LOCAL_NAME
        => |c| spire(c).map(|s| s.1.max), "Some(9s)";
    IDENTITY_SPIRE_EXP_BACKOFF_JITTER = "0.7", with [IDENTITY_SPIRE_WORKLOAD_API_ADDRESS = "unix:///run/spire.sock", IDENTITY_SERVER_ID = "spiffe://domain/web", IDENTITY_SERVER_NAME = "web.ns"], without IDENTITY_LOCAL_NAME
        => |c| spire(c).map(|s| s.1.jitter), "Some(0.7)";
    INBOUND_HTTP_QUEUE_CAPACITY = "7"
        => |c| c.inbound.http_queue.capacity, "7";
    INBOUND_HTTP_FAILFAST_TIMEOUT = "7s"
        => |c| c.inbound.http_queue.failfast, "7s";
    OUTBOUND_TCP_QUEUE_CAPACITY = "7"
        => |c| c.outbound.tcp_queue.capacity, "7";
    OUTBOUND_TCP_FAILFAST_TIMEOUT = "7s"
        => |c| c.outbound.tcp_queue.failfast, "7s";
    OUTBOUND_HTTP_QUEUE_CAPACITY = "7"
        => |c| c.outbound.http_queue.capacity, "7";
    OUTBOUND_HTTP_FAILFAST_TIMEOUT = "7s"
        => |c| c.outbound.http_queue.failfast, "7s";
    INBOUND_MAX_IN_FLIGHT = "7"
        => |c| c.inbound.max_in_flight, "7";
    INBOUND_MAX_IDLE_CONNS_PER_ENDPOINT = "7"
        => |c| c.inbound.pool.max_idle, "7";
    INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT = "7s"
        => |c| c.inbound.pool.idle_timeout, "7s";
    INBOUND_DISCOVERY_IDLE_TIMEOUT = "7s"
        => |c| c.inbound.discovery_idle, "7s";
    OUTBOUND_MAX_IN_FLIGHT = "7"
        => |c| c.outbound.max_in_flight, "7";
    OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT = "7"
        => |c| c.outbound.pool.max_idle, "7";
    OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT = "7s"
        => |c| c.outbound.pool.idle_timeout, "7s";
    OUTBOUND_DISCOVERY_IDLE_TIMEOUT = "7s"
        => |c| c.outbound.discovery_idle, "7s";
    OUTBOUND_HTTP1_UPGRADE_THRESHOLD = "7"
        => |c| c.outbound.upgrade_threshold, "7";
    MEMORY_CEILING = "7"
        => |c| c.memory_ceiling, "Some(7)";
    OUTBOUND_HTTP2_IDLE_TIMEOUT = "7s"
        => |c| c.outbound.http2_life.idle, "7s";
    OUTBOUND_HTTP2_MAX_AGE = "7s"
        => |c| c.outbound.http2_life.age, "7s";
    HTTP_RESEND_UNSENT = "false"
        => |c| c.outbound.resend.unsent, "false";
    HTTP_RESEND_IDEMPOTENT = "false"
        => |c| c.outbound.resend.died, "Never";
    HTTP2_INITIAL_STREAM_WINDOW_SIZE = "7"
        => |c| c.http2_client.stream, "7";
    HTTP2_INITIAL_CONNECTION_WINDOW_SIZE = "7"
        => |c| c.http2_client.connection, "7";
    INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE = "7", with [INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE = "8"]
        => |c| c.inbound.http2.windows, "Some((7, 8))";
    INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE = "8", with [INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE = "7"]
        => |c| c.inbound.http2.windows, "Some((7, 8))";
    INBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL = "true"
        => |c| c.inbound.http2.adaptive, "true";
    INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL = "7s", with [INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT = "8s"]
        => |c| c.inbound.http2.keep_alive, "Some((7s, 8s))";
    INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT = "8s", with [INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL = "7s"]
        => |c| c.inbound.http2.keep_alive, "Some((7s, 8s))";
    INBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS = "7"
        => |c| c.inbound.http2.max_concurrent_streams, "Some(7)";
    INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE = "20000"
        => |c| c.inbound.http2.max_frame_size, "Some(20000)";
    INBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE = "7"
        => |c| c.inbound.http2.max_header_list_size, "Some(7)";
    INBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS = "7"
        => |c| c.inbound.http2.max_pending_accept_reset_streams, "Some(7)";
    INBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE = "7"
        => |c| c.inbound.http2.max_send_buf_size, "Some(7)";
    OUTBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE = "7", with [OUTBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE = "8"]
        => |c| c.outbound.http2.windows, "Some((7, 8))";
    OUTBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE = "8", with [OUTBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE = "7"]
        => |c| c.outbound.http2.windows, "Some((7, 8))";
    OUTBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL = "true"
        => |c| c.outbound.http2.adaptive, "true";
    OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL = "7s", with [OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT = "8s"]
        => |c| c.outbound.http2.keep_alive, "Some((7s, 8s))";
    OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT = "8s", with [OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL = "7s"]
        => |c| c.outbound.http2.keep_alive, "Some((7s, 8s))";
    OUTBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS = "7"
        => |c| c.outbound.http2.max_concurrent_streams, "Some(7)";
    OUTBOUND_SERVER_HTTP2_MAX_FRAME_SIZE = "20000"
        => |c| c.outbound.http2.max_frame_size, "Some(20000)";
    OUTBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE = "7"
        => |c| c.outbound.http2.max_header_list_size, "Some(7)";
    OUTBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS = "7"
        => |c| c.outbound.http2.max_pending_accept_reset_streams, "Some(7)";
    OUTBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE = "7"
        => |c| c.outbound.http2.max_send_buf_size, "Some(7)";
    DESTINATION_SVC_ADDR = "10.0.0.1:7"
        => |c| c.control.destination.addr.to_string(), "\"10.0.0.1:7\"";
    DESTINATION_SVC_NAME = "some.name"
        => |c| c.control.destination.identity, "Some(\"some.name\")";
    POLICY_SVC_ADDR = "10.0.0.1:7"
        => |c| c.control.policy.addr.to_string(), "\"10.0.0.1:7\"";
    POLICY_SVC_NAME = "some.name"
        => |c| c.control.policy.identity, "Some(\"some.name\")";
    IDENTITY_SVC_ADDR = "10.0.0.1:7"
        => |c| c.control.identity.as_ref().map(|a| a.addr.to_string()), "Some(\"10.0.0.1:7\")";
    IDENTITY_SVC_NAME = "some.name"
        => |c| c.control.identity.as_ref().and_then(|a| a.identity.clone()), "Some(\"some.name\")";
    TRACE_COLLECTOR_SVC_ADDR = "10.0.0.1:7", with [TRACE_COLLECTOR_SVC_NAME = "some.name"]
        => |c| c.control.trace.as_ref().map(|a| a.addr.to_string()), "Some(\"10.0.0.1:7\")";
    TRACE_COLLECTOR_SVC_NAME = "some.name", with [TRACE_COLLECTOR_SVC_ADDR = "10.0.0.1:7"]
        => |c| c.control.trace.as_ref().and_then(|a| a.identity.clone()), "Some(\"some.name\")";
    TAP_SVC_NAME = "tap.linkerd-viz"
        => |c| c.tap.as_ref().map(|t| &t.identity), "Some(\"tap.linkerd-viz\")";
    DESTINATION_CONTEXT = "token"
        => |c| c.control.context, "\"token\"";
    DESTINATION_PROFILE_SUFFIXES = "example."
        => |c| c.control.profile_suffixes.matches("a.example"), "true";
    DESTINATION_PROFILE_NETWORKS = "10.7.0.0/16"
        => |c| c.control.profile_networks, "[10.7.0.0/16]";
    DESTINATION_PROFILE_INITIAL_TIMEOUT = "7ms"
        => |c| c.inbound.profile_timeout, "7ms";
    POLICY_WORKLOAD = "ns:pod"
        => |c| c.control.workload, "\"ns:pod\"";
    POLICY_CLUSTER_NETWORKS = "10.7.0.0/16"
        => |c| c.inbound.cluster_networks, "[10.7.0.0/16]";
    INBOUND_DEFAULT_POLICY = "deny"
        => |c| c.inbound.default_policy, "Deny";
    INBOUND_PORTS = "7"
        => |c| c.inbound.ports.contains(7), "true";
    INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION = "7-9"
        => |c| c.inbound.opaque_ports.contains(8), "true";
    INBOUND_IPS = "10.0.0.7"
        => |c| c.inbound.ips, "{10.0.0.7}";
    INBOUND_GATEWAY_SUFFIXES = "example."
        => |c| c.inbound.gateway_suffixes.is_empty(), "false";
    CONTROL_STREAM_INITIAL_TIMEOUT = "2s"
        => |c| c.control.streams.initial, "Some(2s)";
    CONTROL_STREAM_IDLE_TIMEOUT = "7s"
        => |c| c.control.streams.idle, "Some(7s)";
    CONTROL_STREAM_LIFETIME = "7h"
        => |c| c.control.streams.lifetime, "Some(25200s)";
    DNS_MIN_TTL = "7s"
        => |c| c.control.dns_min_ttl, "Some(7s)";
    DNS_MAX_TTL = "8s"
        => |c| c.control.dns_max_ttl, "Some(8s)";
    IDENTITY_DIR = "/dir"
        => |c| linkerd(c).0, "\"/dir\"";
    IDENTITY_TRUST_ANCHORS = "anchors"
        => |c| c.identity.trust_anchors, "\"anchors\"";
    IDENTITY_TOKEN_FILE = FILE
        => |c| linkerd(c).1.ends_with("src/lib.rs"), "true";
    IDENTITY_LOCAL_NAME = "some.name"
        => |c| c.identity.id, "\"some.name\"";
    IDENTITY_SERVER_ID = "some.name", with [IDENTITY_SERVER_NAME = "some.name"], without IDENTITY_LOCAL_NAME
        => |c| c.identity.id, "\"some.name\"";
    IDENTITY_SERVER_NAME = "some.name", with [IDENTITY_SERVER_ID = "some.name"], without IDENTITY_LOCAL_NAME
        => |c| c.identity.server_name, "\"some.name\"";
    TLS_RESUMPTION_DISABLED = "true"
        => |c| c.identity.resumption, "false";
    IDENTITY_MIN_REFRESH = "7s"
        => |c| linkerd(c).2, "7s";
    IDENTITY_MAX_REFRESH = "8s"
        => |c| linkerd(c).3, "8s";
    IDENTITY_SPIRE_WORKLOAD_API_ADDRESS = "unix:///run/spire.sock", with [IDENTITY_SERVER_ID = "spiffe://domain/web", IDENTITY_SERVER_NAME = "web.ns"], without IDENTITY_LOCAL_NAME
        => |c| spire(c).map(|s| s.0), "Some(\"/run/spire.sock\")";
    IDENTITY_SPIRE_SOCKET = "/run/spire.sock", with [IDENTITY_SERVER_ID = "spiffe://domain/web", IDENTITY_SERVER_NAME = "web.ns"], without IDENTITY_LOCAL_NAME
        => |c| spire(c).map(|s| s.0), "Some(\"/run/spire.sock\")";
    TRACE_SERVICE_NAME = "web"
        => |c| c.trace_resource, "[(\"service.name\", \"web\")]";
    TRACE_ATTRIBUTES_PATH = LABELS
        => |c| c.trace_resource.iter().any(|(name, _)| name == "description"), "true";
    TRACE_EXTRA_ATTRIBUTES = "a=b"
        => |c| c.trace_resource, "[(\"a\", \"b\")]";
    OTEL_RESOURCE_ATTRIBUTES = "a=b"
        => |c| c.trace_resource, "[(\"a\", \"b\")]";
    HOSTNAME = "web-1"
        => |c| c.trace_resource, "[(\"host.name\", \"web-1\")]";
};

/// Read before there is a configuration, and looked at by the tests of the program itself.
const OF_THE_PROGRAM: &[&str] = &[env::LOG, env::LOG_FORMAT];
/// Refused, whatever it says.
const REFUSED: &[&str] = &[env::IDENTITY_DISABLED];

#[test]
fn every_variable_changes_what_it_should() {
    for row in ROWS {
        let base = |env: &mut HashMap<String, String>| {
            env.remove(row.name);
            for name in row.unset {
                env.remove(*name);
            }
            for (name, text) in row.also {
                env.insert((*name).to_owned(), (*text).to_owned());
            }
        };
        // Without a variable that is required there is nothing to compare with.
        if let Ok(config) = read(base) {
            assert_ne!((row.field)(&config), row.want, "without {}", row.name);
        }
        let config = read(|env| {
            base(env);
            env.insert(row.name.to_owned(), row.text.to_owned());
        });
        let config = config.unwrap_or_else(|mistakes| panic!("{}: {mistakes:?}", row.name));
        assert_eq!((row.field)(&config), row.want, "{}", row.name);
    }
}

#[test]
fn every_variable_has_a_row() {
    let rows = ROWS.iter().map(|row| row.name);
    let known: Vec<_> = rows
        .chain(OF_THE_PROGRAM.iter().copied())
        .chain(REFUSED.iter().copied())
        .collect();
    for var in env::ALL {
        let rows = known.iter().filter(|name| **name == var.name).count();
        assert_eq!(rows, 1, "{}", var.name);
    }
    assert_eq!(known.len(), env::ALL.len());
    for name in REFUSED {
        let set = read(|env| {
            env.insert((*name).to_owned(), "true".to_owned());
        });
        assert!(set.is_err(), "{name}");
    }
}
