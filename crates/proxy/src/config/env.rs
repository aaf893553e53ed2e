//! Every environment variable the proxy reads, with what it means. This is the whole configuration
//! surface: there is no file and no flag. [`ALL`] feeds the reference page and the name snapshot.

/// One variable: its full name and its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Var {
    /// Full name, prefix included.
    pub name: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
}

macro_rules! vars {
    ($($(#[doc = $doc:literal])+ $id:ident = $name:literal;)+) => {
        $($(#[doc = $doc])+ pub const $id: &str = $name;)+

        /// All variables, in the order of this file.
        pub const ALL: &[Var] = &[$(Var { name: $name, doc: concat!($($doc),+) }),+];
    };
}

vars! {
    /// Outbound listener, single form.
    OUTBOUND_LISTEN_ADDR = "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR";
    /// Outbound listeners, one or two; wins over the single form.
    OUTBOUND_LISTEN_ADDRS = "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS";
    /// Inbound listener.
    INBOUND_LISTEN_ADDR = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR";
    /// Tap listener.
    CONTROL_LISTEN_ADDR = "LINKERD2_PROXY_CONTROL_LISTEN_ADDR";
    /// Admin listener.
    ADMIN_LISTEN_ADDR = "LINKERD2_PROXY_ADMIN_LISTEN_ADDR";
    /// Listen backlog of the inbound socket.
    INBOUND_TCP_LISTEN_BACKLOG = "LINKERD2_PROXY_INBOUND_TCP_LISTEN_BACKLOG";
    /// Listen backlog of the outbound sockets.
    OUTBOUND_TCP_LISTEN_BACKLOG = "LINKERD2_PROXY_OUTBOUND_TCP_LISTEN_BACKLOG";

    /// Lower bound of worker threads.
    CORES_MIN = "LINKERD2_PROXY_CORES_MIN";
    /// Older name of the lower bound of worker threads.
    CORES = "LINKERD2_PROXY_CORES";
    /// Upper bound of worker threads; the wanted number when set.
    CORES_MAX = "LINKERD2_PROXY_CORES_MAX";
    /// Wanted worker threads as a share of the CPUs available.
    CORES_MAX_RATIO = "LINKERD2_PROXY_CORES_MAX_RATIO";
    /// Log filter.
    LOG = "LINKERD2_PROXY_LOG";
    /// Log format: `plain` or `json`.
    LOG_FORMAT = "LINKERD2_PROXY_LOG_FORMAT";
    /// How long an HTTP/1 head may take once it has begun; default 30s.
    HTTP1_HEAD_TIMEOUT = "LINKERD2_PROXY_HTTP1_HEAD_TIMEOUT";
    /// Access log of inbound HTTP: `apache` or `json`.
    ACCESS_LOG = "LINKERD2_PROXY_ACCESS_LOG";
    /// Enables `POST /shutdown`.
    SHUTDOWN_ENDPOINT_ENABLED = "LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED";
    /// Time after which a graceful shutdown becomes an exit.
    SHUTDOWN_GRACE_PERIOD = "LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD";
    /// Time an unused metric series is kept.
    METRICS_RETAIN_IDLE = "LINKERD2_PROXY_METRICS_RETAIN_IDLE";
    /// Routes by `l5d-dst-override` instead of the original destination.
    INGRESS_MODE = "LINKERD2_PROXY_INGRESS_MODE";
    /// `unsafe` adds the `authority` label to inbound HTTP series.
    INBOUND_METRICS_AUTHORITY_LABELS = "LINKERD2_PROXY_INBOUND_METRICS_AUTHORITY_LABELS";
    /// Fills the `hostname` label of outbound route series.
    OUTBOUND_METRICS_HOSTNAME_LABELS = "LINKERD2_PROXY_OUTBOUND_METRICS_HOSTNAME_LABELS";
    /// Hides `l5d-proxy-error` and `l5d-proxy-connection` from local applications.
    OUTBOUND_DISABLE_INFORMATIONAL_HEADERS =
        "LINKERD2_PROXY_OUTBOUND_DISABLE_INFORMATIONAL_HEADERS";

    /// Time to see the first bytes of an inbound connection.
    INBOUND_DETECT_TIMEOUT = "LINKERD2_PROXY_INBOUND_DETECT_TIMEOUT";
    /// Time to see the first bytes of an outbound connection.
    OUTBOUND_DETECT_TIMEOUT = "LINKERD2_PROXY_OUTBOUND_DETECT_TIMEOUT";
    /// Connect timeout to the application.
    INBOUND_CONNECT_TIMEOUT = "LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT";
    /// Connect timeout to a peer, TLS included.
    OUTBOUND_CONNECT_TIMEOUT = "LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT";
    /// TCP keep-alive of accepted inbound connections.
    INBOUND_ACCEPT_KEEPALIVE = "LINKERD2_PROXY_INBOUND_ACCEPT_KEEPALIVE";
    /// TCP keep-alive of connections to the application.
    INBOUND_CONNECT_KEEPALIVE = "LINKERD2_PROXY_INBOUND_CONNECT_KEEPALIVE";
    /// TCP keep-alive of accepted outbound connections.
    OUTBOUND_ACCEPT_KEEPALIVE = "LINKERD2_PROXY_OUTBOUND_ACCEPT_KEEPALIVE";
    /// TCP keep-alive of connections to peers.
    OUTBOUND_CONNECT_KEEPALIVE = "LINKERD2_PROXY_OUTBOUND_CONNECT_KEEPALIVE";
    /// TCP user timeout of accepted inbound connections.
    INBOUND_ACCEPT_USER_TIMEOUT = "LINKERD2_PROXY_INBOUND_ACCEPT_USER_TIMEOUT";
    /// TCP user timeout of connections to the application.
    INBOUND_CONNECT_USER_TIMEOUT = "LINKERD2_PROXY_INBOUND_CONNECT_USER_TIMEOUT";
    /// TCP user timeout of accepted outbound connections.
    OUTBOUND_ACCEPT_USER_TIMEOUT = "LINKERD2_PROXY_OUTBOUND_ACCEPT_USER_TIMEOUT";
    /// TCP user timeout of connections to peers.
    OUTBOUND_CONNECT_USER_TIMEOUT = "LINKERD2_PROXY_OUTBOUND_CONNECT_USER_TIMEOUT";
    /// First delay of the reconnect backoff to the application.
    INBOUND_CONNECT_EXP_BACKOFF_MIN = "LINKERD2_PROXY_INBOUND_CONNECT_EXP_BACKOFF_MIN";
    /// Longest delay of the reconnect backoff to the application.
    INBOUND_CONNECT_EXP_BACKOFF_MAX = "LINKERD2_PROXY_INBOUND_CONNECT_EXP_BACKOFF_MAX";
    /// Jitter of the reconnect backoff to the application.
    INBOUND_CONNECT_EXP_BACKOFF_JITTER = "LINKERD2_PROXY_INBOUND_CONNECT_EXP_BACKOFF_JITTER";
    /// First delay of the reconnect backoff to peers and the control plane.
    OUTBOUND_CONNECT_EXP_BACKOFF_MIN = "LINKERD2_PROXY_OUTBOUND_CONNECT_EXP_BACKOFF_MIN";
    /// Longest delay of the reconnect backoff to peers and the control plane.
    OUTBOUND_CONNECT_EXP_BACKOFF_MAX = "LINKERD2_PROXY_OUTBOUND_CONNECT_EXP_BACKOFF_MAX";
    /// Jitter of the reconnect backoff to peers and the control plane.
    OUTBOUND_CONNECT_EXP_BACKOFF_JITTER = "LINKERD2_PROXY_OUTBOUND_CONNECT_EXP_BACKOFF_JITTER";
    /// First delay of the SPIRE backoff.
    IDENTITY_SPIRE_EXP_BACKOFF_MIN = "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MIN";
    /// Longest delay of the SPIRE backoff.
    IDENTITY_SPIRE_EXP_BACKOFF_MAX = "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MAX";
    /// Jitter of the SPIRE backoff.
    IDENTITY_SPIRE_EXP_BACKOFF_JITTER = "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_JITTER";
    /// Requests that may wait for an application.
    INBOUND_HTTP_QUEUE_CAPACITY = "LINKERD2_PROXY_INBOUND_HTTP_QUEUE_CAPACITY";
    /// Time without a ready application before requests fail fast.
    INBOUND_HTTP_FAILFAST_TIMEOUT = "LINKERD2_PROXY_INBOUND_HTTP_FAILFAST_TIMEOUT";
    /// Connections that may wait for an endpoint.
    OUTBOUND_TCP_QUEUE_CAPACITY = "LINKERD2_PROXY_OUTBOUND_TCP_QUEUE_CAPACITY";
    /// Requests that may wait for an endpoint.
    OUTBOUND_HTTP_QUEUE_CAPACITY = "LINKERD2_PROXY_OUTBOUND_HTTP_QUEUE_CAPACITY";
    /// Time without a ready endpoint before connections fail fast.
    OUTBOUND_TCP_FAILFAST_TIMEOUT = "LINKERD2_PROXY_OUTBOUND_TCP_FAILFAST_TIMEOUT";
    /// Time without a ready endpoint before requests fail fast.
    OUTBOUND_HTTP_FAILFAST_TIMEOUT = "LINKERD2_PROXY_OUTBOUND_HTTP_FAILFAST_TIMEOUT";
    /// Inbound HTTP requests in flight, for the process.
    INBOUND_MAX_IN_FLIGHT = "LINKERD2_PROXY_INBOUND_MAX_IN_FLIGHT";
    /// Outbound HTTP requests in flight, for the process.
    OUTBOUND_MAX_IN_FLIGHT = "LINKERD2_PROXY_OUTBOUND_MAX_IN_FLIGHT";
    /// Idle HTTP/1 connections kept to the application.
    INBOUND_MAX_IDLE_CONNS_PER_ENDPOINT = "LINKERD2_PROXY_MAX_IDLE_CONNS_PER_ENDPOINT";
    /// Idle HTTP/1 connections kept to one endpoint.
    OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT =
        "LINKERD2_PROXY_OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT";
    /// Time an idle HTTP/1 connection to the application is kept.
    INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT =
        "LINKERD2_PROXY_INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT";
    /// Time an idle HTTP/1 connection to an endpoint is kept.
    OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT =
        "LINKERD2_PROXY_OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT";
    /// Time an unused port policy is kept.
    INBOUND_DISCOVERY_IDLE_TIMEOUT = "LINKERD2_PROXY_INBOUND_DISCOVERY_IDLE_TIMEOUT";
    /// Time an unused outbound discovery result is kept.
    OUTBOUND_DISCOVERY_IDLE_TIMEOUT = "LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT";
    /// Requests in flight to one meshed endpoint above which HTTP/1 requests travel as HTTP/2.
    OUTBOUND_HTTP1_UPGRADE_THRESHOLD = "LINKERD2_PROXY_OUTBOUND_HTTP1_UPGRADE_THRESHOLD";
    /// Bytes of memory above which new work is refused; 0 is no ceiling. By default nine tenths of
    /// the container's limit.
    MEMORY_CEILING = "LINKERD2_PROXY_MEMORY_CEILING";
    /// Time an HTTP/2 connection to a peer is kept without requests.
    OUTBOUND_HTTP2_IDLE_TIMEOUT = "LINKERD2_PROXY_OUTBOUND_HTTP2_IDLE_TIMEOUT";
    /// Age at which an HTTP/2 connection to a peer is replaced by a new one.
    OUTBOUND_HTTP2_MAX_AGE = "LINKERD2_PROXY_OUTBOUND_HTTP2_MAX_AGE";
    /// Sends requests the application has not received to another endpoint, whatever their method.
    HTTP_RESEND_UNSENT = "LINKERD2_PROXY_HTTP_RESEND_UNSENT";
    /// Repeats idempotent requests, once, whose connection died before any byte of an answer.
    HTTP_RESEND_IDEMPOTENT = "LINKERD2_PROXY_HTTP_RESEND_IDEMPOTENT";
    /// HTTP/2 stream window of client connections.
    HTTP2_INITIAL_STREAM_WINDOW_SIZE = "LINKERD2_PROXY_HTTP2_INITIAL_STREAM_WINDOW_SIZE";
    /// HTTP/2 connection window of client connections.
    HTTP2_INITIAL_CONNECTION_WINDOW_SIZE = "LINKERD2_PROXY_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE";

    /// HTTP/2 stream window of inbound server connections.
    INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE";
    /// HTTP/2 connection window of inbound server connections.
    INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE";
    /// Adaptive HTTP/2 windows on inbound server connections.
    INBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL";
    /// HTTP/2 ping interval of inbound server connections.
    INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL";
    /// HTTP/2 ping timeout of inbound server connections.
    INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT";
    /// HTTP/2 streams of one inbound server connection.
    INBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS";
    /// HTTP/2 frame size of inbound server connections.
    INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE = "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE";
    /// HTTP/2 header list size of inbound server connections.
    INBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE";
    /// HTTP/2 pending accept resets of inbound server connections.
    INBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS";
    /// HTTP/2 send buffer of inbound server connections.
    INBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE =
        "LINKERD2_PROXY_INBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE";

    /// HTTP/2 stream window of outbound server connections.
    OUTBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE";
    /// HTTP/2 connection window of outbound server connections.
    OUTBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE";
    /// Adaptive HTTP/2 windows on outbound server connections.
    OUTBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL";
    /// HTTP/2 ping interval of outbound server connections.
    OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL";
    /// HTTP/2 ping timeout of outbound server connections.
    OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT";
    /// HTTP/2 streams of one outbound server connection.
    OUTBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS";
    /// HTTP/2 frame size of outbound server connections.
    OUTBOUND_SERVER_HTTP2_MAX_FRAME_SIZE = "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_MAX_FRAME_SIZE";
    /// HTTP/2 header list size of outbound server connections.
    OUTBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE";
    /// HTTP/2 pending accept resets of outbound server connections.
    OUTBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS";
    /// HTTP/2 send buffer of outbound server connections.
    OUTBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE =
        "LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE";

    /// Address of the destination service.
    DESTINATION_SVC_ADDR = "LINKERD2_PROXY_DESTINATION_SVC_ADDR";
    /// TLS identity of the destination service.
    DESTINATION_SVC_NAME = "LINKERD2_PROXY_DESTINATION_SVC_NAME";
    /// Address of the policy service.
    POLICY_SVC_ADDR = "LINKERD2_PROXY_POLICY_SVC_ADDR";
    /// TLS identity of the policy service.
    POLICY_SVC_NAME = "LINKERD2_PROXY_POLICY_SVC_NAME";
    /// Address of the identity service.
    IDENTITY_SVC_ADDR = "LINKERD2_PROXY_IDENTITY_SVC_ADDR";
    /// TLS identity of the identity service.
    IDENTITY_SVC_NAME = "LINKERD2_PROXY_IDENTITY_SVC_NAME";
    /// Address of the trace collector; unset means no tracing.
    TRACE_COLLECTOR_SVC_ADDR = "LINKERD2_PROXY_TRACE_COLLECTOR_SVC_ADDR";
    /// TLS identity of the trace collector.
    TRACE_COLLECTOR_SVC_NAME = "LINKERD2_PROXY_TRACE_COLLECTOR_SVC_NAME";
    /// Identity that may tap; unset means no tap.
    TAP_SVC_NAME = "LINKERD2_PROXY_TAP_SVC_NAME";
    /// Token echoed in every destination request.
    DESTINATION_CONTEXT = "LINKERD2_PROXY_DESTINATION_CONTEXT";
    /// Names worth a profile lookup.
    DESTINATION_PROFILE_SUFFIXES = "LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES";
    /// Addresses worth a profile lookup.
    DESTINATION_PROFILE_NETWORKS = "LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS";
    /// Time an inbound request waits for a profile.
    DESTINATION_PROFILE_INITIAL_TIMEOUT = "LINKERD2_PROXY_DESTINATION_PROFILE_INITIAL_TIMEOUT";
    /// Workload description sent to the policy service.
    POLICY_WORKLOAD = "LINKERD2_PROXY_POLICY_WORKLOAD";
    /// Networks of the cluster, for the cluster default policies.
    POLICY_CLUSTER_NETWORKS = "LINKERD2_PROXY_POLICY_CLUSTER_NETWORKS";
    /// Policy of a port until the policy service speaks.
    INBOUND_DEFAULT_POLICY = "LINKERD2_PROXY_INBOUND_DEFAULT_POLICY";
    /// Ports whose policy is watched from the start.
    INBOUND_PORTS = "LINKERD2_PROXY_INBOUND_PORTS";
    /// Ports that are opaque until policy says otherwise.
    INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION =
        "LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION";
    /// Addresses of the pod.
    INBOUND_IPS = "LINKERD2_PROXY_INBOUND_IPS";
    /// Names the multicluster gateway serves.
    INBOUND_GATEWAY_SUFFIXES = "LINKERD2_PROXY_INBOUND_GATEWAY_SUFFIXES";
    /// Time to the first message of a control stream.
    CONTROL_STREAM_INITIAL_TIMEOUT = "LINKERD2_PROXY_CONTROL_STREAM_INITIAL_TIMEOUT";
    /// Time between messages of a control stream.
    CONTROL_STREAM_IDLE_TIMEOUT = "LINKERD2_PROXY_CONTROL_STREAM_IDLE_TIMEOUT";
    /// Life of a control stream.
    CONTROL_STREAM_LIFETIME = "LINKERD2_PROXY_CONTROL_STREAM_LIFETIME";
    /// Shortest DNS refresh.
    DNS_MIN_TTL = "LINKERD2_PROXY_DNS_MIN_TTL";
    /// Longest DNS refresh.
    DNS_MAX_TTL = "LINKERD2_PROXY_DNS_MAX_TTL";

    /// Directory of `key.p8` and `csr.der`.
    IDENTITY_DIR = "LINKERD2_PROXY_IDENTITY_DIR";
    /// Trust anchors, PEM.
    IDENTITY_TRUST_ANCHORS = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS";
    /// Service account token.
    IDENTITY_TOKEN_FILE = "LINKERD2_PROXY_IDENTITY_TOKEN_FILE";
    /// Identity and server name at once.
    IDENTITY_LOCAL_NAME = "LINKERD2_PROXY_IDENTITY_LOCAL_NAME";
    /// Identity, when it differs from the server name.
    IDENTITY_SERVER_ID = "LINKERD2_PROXY_IDENTITY_SERVER_ID";
    /// Server name, when it differs from the identity.
    IDENTITY_SERVER_NAME = "LINKERD2_PROXY_IDENTITY_SERVER_NAME";
    /// Every mesh handshake is a full one.
    TLS_RESUMPTION_DISABLED = "LINKERD2_PROXY_TLS_RESUMPTION_DISABLED";
    /// Shortest certificate refresh.
    IDENTITY_MIN_REFRESH = "LINKERD2_PROXY_IDENTITY_MIN_REFRESH";
    /// Longest certificate refresh.
    IDENTITY_MAX_REFRESH = "LINKERD2_PROXY_IDENTITY_MAX_REFRESH";
    /// SPIRE workload API socket.
    IDENTITY_SPIRE_WORKLOAD_API_ADDRESS = "LINKERD2_PROXY_IDENTITY_SPIRE_WORKLOAD_API_ADDRESS";
    /// Older name of the SPIRE workload API socket.
    IDENTITY_SPIRE_SOCKET = "LINKERD2_PROXY_IDENTITY_SPIRE_SOCKET";
    /// Refused when set: identity cannot be turned off.
    IDENTITY_DISABLED = "LINKERD2_PROXY_IDENTITY_DISABLED";

    /// Service name of exported spans.
    TRACE_SERVICE_NAME = "LINKERD2_PROXY_TRACE_SERVICE_NAME";
    /// File of labels added to exported spans.
    TRACE_ATTRIBUTES_PATH = "LINKERD2_PROXY_TRACE_ATTRIBUTES_PATH";
    /// Attributes added to exported spans.
    TRACE_EXTRA_ATTRIBUTES = "LINKERD2_PROXY_TRACE_EXTRA_ATTRIBUTES";
    /// Standard resource attributes; win over the others.
    OTEL_RESOURCE_ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES";
    /// Host name of exported spans.
    HOSTNAME = "HOSTNAME";
}

/// Where the proxy reads its environment from; tests give a map.
pub trait Env {
    /// The value of a variable; `Some(Err)` when it is not UTF-8.
    fn get(&self, name: &str) -> Option<Result<String, NotUtf8>>;
}

/// A variable whose value is not UTF-8.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("value is not UTF-8")]
pub struct NotUtf8;

/// The environment of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

impl Env for Process {
    fn get(&self, name: &str) -> Option<Result<String, NotUtf8>> {
        std::env::var_os(name).map(|v| v.into_string().map_err(|_| NotUtf8))
    }
}

impl<S: std::hash::BuildHasher> Env for std::collections::HashMap<String, String, S> {
    fn get(&self, name: &str) -> Option<Result<String, NotUtf8>> {
        std::collections::HashMap::get(self, name).map(|v| Ok(v.clone()))
    }
}
