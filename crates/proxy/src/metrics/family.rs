//! The families the data path counts in: names, help and buckets are what dashboards read.

use std::sync::LazyLock;

const HISTOGRAM_MS: &[f64] = &[
    1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0,
    1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 10000.0, 20000.0, 30000.0, 40000.0, 50000.0,
];
const ROUTE_SECONDS: &[f64] = &[0.05, 0.5, 1.0, 10.0];
const FRAME_BYTES: &[f64] = &[128.0, 1024.0, 10240.0];
const DETECT_SECONDS: &[f64] = &[0.001, 0.1];
const QUEUE_SECONDS: &[f64] = &[0.0005, 0.005, 0.05, 0.5, 1.0, 3.0];
const BACKEND_SECONDS: &[f64] = &[0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0];

macro_rules! families {
    ($($id:ident $name:literal $kind:literal $help:literal $bounds:expr;)+) => {
        /// A metric family.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Family {
            $(#[doc = $help] $id,)+
        }

        impl Family {
            /// Every family.
            pub const ALL: &[Self] = &[$(Self::$id,)+];

            /// The name in the exposition.
            pub fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)+ }
            }

            /// `counter`, `gauge` or `histogram`.
            pub fn kind(self) -> &'static str {
                match self { $(Self::$id => $kind,)+ }
            }

            /// One line of help.
            pub fn help(self) -> &'static str {
                match self { $(Self::$id => $help,)+ }
            }

            /// Upper bounds of a histogram's buckets.
            pub fn bounds(self) -> &'static [f64] {
                match self { $(Self::$id => $bounds,)+ }
            }
        }
    };
}

families! {
    RequestTotal "request_total" "counter" "Total count of HTTP requests." &[];
    ResponseTotal "response_total" "counter" "Total count of HTTP responses." &[];
    ResponseLatencyMs "response_latency_ms" "histogram" "Elapsed times between a request's headers being received and its response stream beginning." HISTOGRAM_MS;
    RouteRequestTotal "route_request_total" "counter" "Total count of HTTP requests of profile routes." &[];
    RouteResponseTotal "route_response_total" "counter" "Total count of HTTP responses of profile routes." &[];
    RouteResponseLatencyMs "route_response_latency_ms" "histogram" "Response latency of profile routes." HISTOGRAM_MS;
    RouteActualRequestTotal "route_actual_request_total" "counter" "Total count of HTTP requests of profile routes, retries included." &[];
    RouteActualResponseTotal "route_actual_response_total" "counter" "Total count of HTTP responses of profile routes, retries included." &[];
    RouteRetryableTotal "route_retryable_total" "counter" "Total count of retryable HTTP responses of profile routes." &[];
    ControlRequestTotal "control_request_total" "counter" "Total count of control-plane requests." &[];
    ControlResponseTotal "control_response_total" "counter" "Total count of control-plane responses." &[];
    TcpOpenTotal "tcp_open_total" "counter" "Total count of opened connections." &[];
    TcpOpenConnections "tcp_open_connections" "gauge" "Number of currently-open connections." &[];
    TcpReadBytesTotal "tcp_read_bytes_total" "counter" "Total count of bytes read from peers." &[];
    TcpWriteBytesTotal "tcp_write_bytes_total" "counter" "Total count of bytes written to peers." &[];
    TcpCloseTotal "tcp_close_total" "counter" "Total count of closed connections." &[];
    InboundHttpAuthzAllowTotal "inbound_http_authz_allow_total" "counter" "The total number of inbound HTTP requests that were authorized." &[];
    InboundHttpAuthzDenyTotal "inbound_http_authz_deny_total" "counter" "The total number of inbound HTTP requests that could not be processed due to being denied by policy." &[];
    InboundHttpRouteNotFoundTotal "inbound_http_route_not_found_total" "counter" "The total number of inbound HTTP requests that could not be associated with a route." &[];
    InboundHttpLocalRatelimitTotal "inbound_http_local_ratelimit_total" "counter" "The total number of inbound HTTP requests that were rate limited." &[];
    InboundTcpAuthzAllowTotal "inbound_tcp_authz_allow_total" "counter" "The total number of inbound TCP connections that were authorized." &[];
    InboundTcpAuthzDenyTotal "inbound_tcp_authz_deny_total" "counter" "The total number of inbound TCP connections that were denied." &[];
    InboundTcpAuthzTerminateTotal "inbound_tcp_authz_terminate_total" "counter" "The total number of inbound TCP connections that were terminated due to an authorization change." &[];
    InboundTlsHandshakes "inbound_tls_handshakes_total" "counter" "TLS handshakes with clients of the mesh: full, resumed, or refused because too many were waiting." &[];
    InboundTlsHandshakeQueueLength "inbound_tls_handshake_queue_length" "gauge" "TLS handshakes that wait for their turn." &[];
    InboundHttpErrorsTotal "inbound_http_errors_total" "counter" "The total number of inbound HTTP requests that could not be processed due to a proxy error." &[];
    InboundTcpErrorsTotal "inbound_tcp_errors_total" "counter" "The total number of inbound TCP connections that could not be processed due to a proxy error." &[];
    OutboundHttpErrorsTotal "outbound_http_errors_total" "counter" "The total number of outbound HTTP requests that could not be processed due to a proxy error." &[];
    OutboundTcpErrorsTotal "outbound_tcp_errors_total" "counter" "The total number of outbound TCP connections that could not be processed due to a proxy error." &[];
    OutboundHttpRouteRequestDuration "outbound_http_route_request_duration_seconds" "histogram" "The time between request initialization and response completion." ROUTE_SECONDS;
    OutboundHttpRouteRequestStatuses "outbound_http_route_request_statuses_total" "counter" "Completed request-response streams." &[];
    OutboundHttpRouteBackendRequests "outbound_http_route_backend_requests_total" "counter" "The total number of requests dispatched to a backend." &[];
    OutboundHttpRouteBackendResponseDuration "outbound_http_route_backend_response_duration_seconds" "histogram" "The time between request completion and response completion." BACKEND_SECONDS;
    OutboundHttpRouteBackendResponseStatuses "outbound_http_route_backend_response_statuses_total" "counter" "Completed responses." &[];
    OutboundGrpcRouteRequestDuration "outbound_grpc_route_request_duration_seconds" "histogram" "The time between request initialization and response completion." ROUTE_SECONDS;
    OutboundGrpcRouteRequestStatuses "outbound_grpc_route_request_statuses_total" "counter" "Completed request-response streams." &[];
    OutboundGrpcRouteBackendRequests "outbound_grpc_route_backend_requests_total" "counter" "The total number of requests dispatched to a backend." &[];
    OutboundGrpcRouteBackendResponseDuration "outbound_grpc_route_backend_response_duration_seconds" "histogram" "The time between request completion and response completion." BACKEND_SECONDS;
    OutboundGrpcRouteBackendResponseStatuses "outbound_grpc_route_backend_response_statuses_total" "counter" "Completed responses." &[];
    OutboundHttpRouteRetryLimitExceeded "outbound_http_route_retry_limit_exceeded_total" "counter" "Retryable requests not sent due to retry limits." &[];
    OutboundHttpRouteRetryOverflow "outbound_http_route_retry_overflow_total" "counter" "Retryable requests not sent due to circuit breakers or body limits." &[];
    OutboundHttpRouteRetryRequests "outbound_http_route_retry_requests_total" "counter" "Retry requests emitted." &[];
    OutboundHttpRouteRetrySuccesses "outbound_http_route_retry_successes_total" "counter" "Successful responses to retry requests." &[];
    OutboundGrpcRouteRetryLimitExceeded "outbound_grpc_route_retry_limit_exceeded_total" "counter" "Retryable requests not sent due to retry limits." &[];
    OutboundGrpcRouteRetryOverflow "outbound_grpc_route_retry_overflow_total" "counter" "Retryable requests not sent due to circuit breakers or body limits." &[];
    OutboundGrpcRouteRetryRequests "outbound_grpc_route_retry_requests_total" "counter" "Retry requests emitted." &[];
    OutboundGrpcRouteRetrySuccesses "outbound_grpc_route_retry_successes_total" "counter" "Successful responses to retry requests." &[];
    OutboundHttpResends "outbound_http_resends_total" "counter" "Requests sent once more because the application had not received them, or because they are idempotent and their connection died." &[];
    InboundHttpResends "inbound_http_resends_total" "counter" "Requests sent once more to the application because their connection was closed before it answered." &[];
    OutboundTcpProtocolConnections "outbound_tcp_protocol_connections_total" "counter" "Outbound TCP connections by protocol configuration." &[];
    OutboundTcpDetectHttpResults "outbound_tcp_detect_http_results_total" "counter" "Results of outbound HTTP detection." &[];
    InboundTcpDetectHttpResults "inbound_tcp_detect_http_results_total" "counter" "Results of inbound HTTP detection." &[];
    InboundTcpTransportHeaderConnections "inbound_tcp_transport_header_connections_total" "counter" "TCP connections with transport headers." &[];
    OutboundTcpRouteOpen "outbound_tcp_route_open_total" "counter" "Opaque connections opened." &[];
    OutboundTcpRouteClose "outbound_tcp_route_close_total" "counter" "Opaque connections closed." &[];
    OutboundTlsRouteOpen "outbound_tls_route_open_total" "counter" "TLS connections opened." &[];
    OutboundTlsRouteClose "outbound_tls_route_close_total" "counter" "TLS connections closed." &[];
    ControlResponseLatencyMs "control_response_latency_ms" "histogram" "Response latency of control-plane requests." HISTOGRAM_MS;
    StackCreateTotal "stack_create_total" "counter" "Total number of things made for one endpoint or destination." &[];
    StackDropTotal "stack_drop_total" "counter" "Total number of them dropped." &[];
    StackPollTotal "stack_poll_total" "counter" "Total number of times one was asked whether it is ready. Always 0: none has to be asked." &[];
    StackPollTotalMs "stack_poll_total_ms" "counter" "Total milliseconds until one was ready. Always 0: none has to be asked." &[];
    OutboundHttpRouteRequestFrameSize "outbound_http_route_request_frame_size_bytes" "histogram" "Sizes of request body frames." FRAME_BYTES;
    OutboundHttpRouteBackendResponseFrameSize "outbound_http_route_backend_response_frame_size_bytes" "histogram" "Sizes of response body frames." FRAME_BYTES;
    InboundHttpRequests "inbound_http_requests_total" "counter" "Inbound requests dispatched to the application." &[];
    InboundHttpStatuses "inbound_http_statuses_total" "counter" "Completed inbound responses." &[];
    InboundHttpRequestDuration "inbound_http_request_duration_seconds" "histogram" "The time between request initialization and response completion." BACKEND_SECONDS;
    InboundHttpResponseDuration "inbound_http_response_duration_seconds" "histogram" "The time between dispatch and response completion." ROUTE_SECONDS;
    InboundHttpRequestFrameSize "inbound_http_request_frame_size_bytes" "histogram" "Sizes of request body frames." FRAME_BYTES;
    InboundHttpResponseFrameSize "inbound_http_response_frame_size_bytes" "histogram" "Sizes of response body frames." FRAME_BYTES;
    OutboundGrpcRouteRequestFrameSize "outbound_grpc_route_request_frame_size_bytes" "histogram" "Sizes of request body frames." FRAME_BYTES;
    OutboundGrpcRouteBackendResponseFrameSize "outbound_grpc_route_backend_response_frame_size_bytes" "histogram" "Sizes of response body frames." FRAME_BYTES;
    InboundGrpcRequests "inbound_grpc_requests_total" "counter" "Inbound requests dispatched to the application." &[];
    InboundGrpcStatuses "inbound_grpc_statuses_total" "counter" "Completed inbound responses." &[];
    InboundGrpcRequestDuration "inbound_grpc_request_duration_seconds" "histogram" "The time between request initialization and response completion." BACKEND_SECONDS;
    InboundGrpcResponseDuration "inbound_grpc_response_duration_seconds" "histogram" "The time between dispatch and response completion." ROUTE_SECONDS;
    InboundGrpcRequestFrameSize "inbound_grpc_request_frame_size_bytes" "histogram" "Sizes of request body frames." FRAME_BYTES;
    InboundGrpcResponseFrameSize "inbound_grpc_response_frame_size_bytes" "histogram" "Sizes of response body frames." FRAME_BYTES;
    OutboundTcpDetectHttpDuration "outbound_tcp_detect_http_duration_seconds" "histogram" "Time taken by outbound HTTP detection." DETECT_SECONDS;
    InboundTcpDetectHttpDuration "inbound_tcp_detect_http_duration_seconds" "histogram" "Time taken by inbound HTTP detection." DETECT_SECONDS;
    OutboundTcpTransferCost "outbound_tcp_transfer_cost_bytes_total" "counter" "Bytes exchanged with endpoints, by zone." &[];
    ControlDnsResolutions "control_dns_resolutions_total" "counter" "DNS resolutions of control-plane names." &[];
    SpanExportStreams "opentelemetry_span_export_streams" "counter" "Total count of opened span export streams." &[];
    SpanExportRequests "opentelemetry_span_export_requests" "counter" "Total count of span export request messages." &[];
    SpanExports "opentelemetry_span_exports" "counter" "Total count of spans exported." &[];
    OutboundHttpBalancerP2cEndpoints "outbound_http_balancer_p2c_endpoints" "gauge" "The number of endpoints in the balancer." &[];
    OutboundHttpBalancerP2cUpdates "outbound_http_balancer_p2c_updates_total" "counter" "Discovery updates of the balancer." &[];
    OutboundHttpBalancerEndpoints "outbound_http_balancer_endpoints" "gauge" "The number of endpoints by whether they are ready." &[];
    OutboundHttpBalancerQueueLength "outbound_http_balancer_queue_length" "gauge" "Requests waiting for an endpoint." &[];
    OutboundHttpBalancerQueueRequests "outbound_http_balancer_queue_requests_total" "counter" "Requests given to the balancer." &[];
    OutboundHttpBalancerQueueLatency "outbound_http_balancer_queue_latency_seconds" "histogram" "Time requests waited for an endpoint." QUEUE_SECONDS;
    OutboundHttpBalancerGateOpen "outbound_http_balancer_queue_gate_open_total" "counter" "Times the balancer left fail-fast." &[];
    OutboundHttpBalancerGateShut "outbound_http_balancer_queue_gate_shut_total" "counter" "Times the balancer entered fail-fast." &[];
    OutboundHttpBalancerGateOpenTime "outbound_http_balancer_queue_gate_open_time_seconds" "gauge" "When the balancer last left fail-fast." &[];
    OutboundHttpBalancerGateShutTime "outbound_http_balancer_queue_gate_shut_time_seconds" "gauge" "When the balancer last entered fail-fast." &[];
    OutboundHttpBalancerGateTimeout "outbound_http_balancer_queue_gate_timeout_seconds" "gauge" "Time without a ready endpoint before fail-fast." &[];
    OutboundTcpBalancerP2cEndpoints "outbound_tcp_balancer_p2c_endpoints" "gauge" "The number of endpoints in the balancer." &[];
    OutboundTcpBalancerP2cUpdates "outbound_tcp_balancer_p2c_updates_total" "counter" "Discovery updates of the balancer." &[];
    OutboundTcpBalancerEndpoints "outbound_tcp_balancer_endpoints" "gauge" "The number of endpoints by whether they are ready." &[];
    OutboundTcpBalancerQueueLength "outbound_tcp_balancer_queue_length" "gauge" "Requests waiting for an endpoint." &[];
    OutboundTcpBalancerQueueRequests "outbound_tcp_balancer_queue_requests_total" "counter" "Requests given to the balancer." &[];
    OutboundTcpBalancerQueueLatency "outbound_tcp_balancer_queue_latency_seconds" "histogram" "Time requests waited for an endpoint." QUEUE_SECONDS;
    OutboundTcpBalancerGateOpen "outbound_tcp_balancer_queue_gate_open_total" "counter" "Times the balancer left fail-fast." &[];
    OutboundTcpBalancerGateShut "outbound_tcp_balancer_queue_gate_shut_total" "counter" "Times the balancer entered fail-fast." &[];
    OutboundTcpBalancerGateOpenTime "outbound_tcp_balancer_queue_gate_open_time_seconds" "gauge" "When the balancer last left fail-fast." &[];
    OutboundTcpBalancerGateShutTime "outbound_tcp_balancer_queue_gate_shut_time_seconds" "gauge" "When the balancer last entered fail-fast." &[];
    OutboundTcpBalancerGateTimeout "outbound_tcp_balancer_queue_gate_timeout_seconds" "gauge" "Time without a ready endpoint before fail-fast." &[];
    OutboundTlsBalancerP2cEndpoints "outbound_tls_balancer_p2c_endpoints" "gauge" "The number of endpoints in the balancer." &[];
    OutboundTlsBalancerP2cUpdates "outbound_tls_balancer_p2c_updates_total" "counter" "Discovery updates of the balancer." &[];
    OutboundTlsBalancerEndpoints "outbound_tls_balancer_endpoints" "gauge" "The number of endpoints by whether they are ready." &[];
    OutboundTlsBalancerQueueLength "outbound_tls_balancer_queue_length" "gauge" "Requests waiting for an endpoint." &[];
    OutboundTlsBalancerQueueRequests "outbound_tls_balancer_queue_requests_total" "counter" "Requests given to the balancer." &[];
    OutboundTlsBalancerQueueLatency "outbound_tls_balancer_queue_latency_seconds" "histogram" "Time requests waited for an endpoint." QUEUE_SECONDS;
    OutboundTlsBalancerGateOpen "outbound_tls_balancer_queue_gate_open_total" "counter" "Times the balancer left fail-fast." &[];
    OutboundTlsBalancerGateShut "outbound_tls_balancer_queue_gate_shut_total" "counter" "Times the balancer entered fail-fast." &[];
    OutboundTlsBalancerGateOpenTime "outbound_tls_balancer_queue_gate_open_time_seconds" "gauge" "When the balancer last left fail-fast." &[];
    OutboundTlsBalancerGateShutTime "outbound_tls_balancer_queue_gate_shut_time_seconds" "gauge" "When the balancer last entered fail-fast." &[];
    OutboundTlsBalancerGateTimeout "outbound_tls_balancer_queue_gate_timeout_seconds" "gauge" "Time without a ready endpoint before fail-fast." &[];
    ControlIdentityBalancerP2cEndpoints "control_identity_balancer_p2c_endpoints" "gauge" "The number of endpoints in the balancer." &[];
    ControlIdentityBalancerP2cUpdates "control_identity_balancer_p2c_updates_total" "counter" "Discovery updates of the balancer." &[];
    ControlIdentityBalancerEndpoints "control_identity_balancer_endpoints" "gauge" "The number of endpoints by whether they are ready." &[];
    ControlIdentityBalancerQueueLength "control_identity_balancer_queue_length" "gauge" "Requests waiting for an endpoint." &[];
    ControlIdentityBalancerQueueRequests "control_identity_balancer_queue_requests_total" "counter" "Requests given to the balancer." &[];
    ControlIdentityBalancerQueueLatency "control_identity_balancer_queue_latency_seconds" "histogram" "Time requests waited for an endpoint." QUEUE_SECONDS;
    ControlIdentityBalancerGateOpen "control_identity_balancer_queue_gate_open_total" "counter" "Times the balancer left fail-fast." &[];
    ControlIdentityBalancerGateShut "control_identity_balancer_queue_gate_shut_total" "counter" "Times the balancer entered fail-fast." &[];
    ControlIdentityBalancerGateOpenTime "control_identity_balancer_queue_gate_open_time_seconds" "gauge" "When the balancer last left fail-fast." &[];
    ControlIdentityBalancerGateShutTime "control_identity_balancer_queue_gate_shut_time_seconds" "gauge" "When the balancer last entered fail-fast." &[];
    ControlIdentityBalancerGateTimeout "control_identity_balancer_queue_gate_timeout_seconds" "gauge" "Time without a ready endpoint before fail-fast." &[];
    ControlDestinationBalancerP2cEndpoints "control_destination_balancer_p2c_endpoints" "gauge" "The number of endpoints in the balancer." &[];
    ControlDestinationBalancerP2cUpdates "control_destination_balancer_p2c_updates_total" "counter" "Discovery updates of the balancer." &[];
    ControlDestinationBalancerEndpoints "control_destination_balancer_endpoints" "gauge" "The number of endpoints by whether they are ready." &[];
    ControlDestinationBalancerQueueLength "control_destination_balancer_queue_length" "gauge" "Requests waiting for an endpoint." &[];
    ControlDestinationBalancerQueueRequests "control_destination_balancer_queue_requests_total" "counter" "Requests given to the balancer." &[];
    ControlDestinationBalancerQueueLatency "control_destination_balancer_queue_latency_seconds" "histogram" "Time requests waited for an endpoint." QUEUE_SECONDS;
    ControlDestinationBalancerGateOpen "control_destination_balancer_queue_gate_open_total" "counter" "Times the balancer left fail-fast." &[];
    ControlDestinationBalancerGateShut "control_destination_balancer_queue_gate_shut_total" "counter" "Times the balancer entered fail-fast." &[];
    ControlDestinationBalancerGateOpenTime "control_destination_balancer_queue_gate_open_time_seconds" "gauge" "When the balancer last left fail-fast." &[];
    ControlDestinationBalancerGateShutTime "control_destination_balancer_queue_gate_shut_time_seconds" "gauge" "When the balancer last entered fail-fast." &[];
    ControlDestinationBalancerGateTimeout "control_destination_balancer_queue_gate_timeout_seconds" "gauge" "Time without a ready endpoint before fail-fast." &[];
    ControlPolicyBalancerP2cEndpoints "control_policy_balancer_p2c_endpoints" "gauge" "The number of endpoints in the balancer." &[];
    ControlPolicyBalancerP2cUpdates "control_policy_balancer_p2c_updates_total" "counter" "Discovery updates of the balancer." &[];
    ControlPolicyBalancerEndpoints "control_policy_balancer_endpoints" "gauge" "The number of endpoints by whether they are ready." &[];
    ControlPolicyBalancerQueueLength "control_policy_balancer_queue_length" "gauge" "Requests waiting for an endpoint." &[];
    ControlPolicyBalancerQueueRequests "control_policy_balancer_queue_requests_total" "counter" "Requests given to the balancer." &[];
    ControlPolicyBalancerQueueLatency "control_policy_balancer_queue_latency_seconds" "histogram" "Time requests waited for an endpoint." QUEUE_SECONDS;
    ControlPolicyBalancerGateOpen "control_policy_balancer_queue_gate_open_total" "counter" "Times the balancer left fail-fast." &[];
    ControlPolicyBalancerGateShut "control_policy_balancer_queue_gate_shut_total" "counter" "Times the balancer entered fail-fast." &[];
    ControlPolicyBalancerGateOpenTime "control_policy_balancer_queue_gate_open_time_seconds" "gauge" "When the balancer last left fail-fast." &[];
    ControlPolicyBalancerGateShutTime "control_policy_balancer_queue_gate_shut_time_seconds" "gauge" "When the balancer last entered fail-fast." &[];
    ControlPolicyBalancerGateTimeout "control_policy_balancer_queue_gate_timeout_seconds" "gauge" "Time without a ready endpoint before fail-fast." &[];
    OpentelemetryBalancerP2cEndpoints "opentelemetry_balancer_p2c_endpoints" "gauge" "The number of endpoints in the balancer." &[];
    OpentelemetryBalancerP2cUpdates "opentelemetry_balancer_p2c_updates_total" "counter" "Discovery updates of the balancer." &[];
    OpentelemetryBalancerEndpoints "opentelemetry_balancer_endpoints" "gauge" "The number of endpoints by whether they are ready." &[];
    OpentelemetryBalancerQueueLength "opentelemetry_balancer_queue_length" "gauge" "Requests waiting for an endpoint." &[];
    OpentelemetryBalancerQueueRequests "opentelemetry_balancer_queue_requests_total" "counter" "Requests given to the balancer." &[];
    OpentelemetryBalancerQueueLatency "opentelemetry_balancer_queue_latency_seconds" "histogram" "Time requests waited for an endpoint." QUEUE_SECONDS;
    OpentelemetryBalancerGateOpen "opentelemetry_balancer_queue_gate_open_total" "counter" "Times the balancer left fail-fast." &[];
    OpentelemetryBalancerGateShut "opentelemetry_balancer_queue_gate_shut_total" "counter" "Times the balancer entered fail-fast." &[];
    OpentelemetryBalancerGateOpenTime "opentelemetry_balancer_queue_gate_open_time_seconds" "gauge" "When the balancer last left fail-fast." &[];
    OpentelemetryBalancerGateShutTime "opentelemetry_balancer_queue_gate_shut_time_seconds" "gauge" "When the balancer last entered fail-fast." &[];
    OpentelemetryBalancerGateTimeout "opentelemetry_balancer_queue_gate_timeout_seconds" "gauge" "Time without a ready endpoint before fail-fast." &[];
}

/// How cells of several workers make one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// They add up.
    Sum,
    /// All see the same thing: the largest counts.
    Max,
}

/// Families of which nobody asks for more than what is going on: by their whole name, or by how it
/// begins.
const EXPIRE: &[&str] = &[
    "request_total",
    "response_total",
    "response_latency_ms",
    "route_",
    "control_request_",
    "control_response_",
    "tcp_",
    "stack_",
    "inbound_http_authz_",
    "inbound_http_route_not_found_",
    "inbound_http_local_ratelimit_",
    "inbound_tcp_authz_",
    "inbound_http_errors_",
    "inbound_tcp_errors_",
    "outbound_http_errors_",
    "outbound_tcp_errors_",
    "opentelemetry_span_",
];

impl Family {
    /// Whether series that nobody uses any more are forgotten.
    pub fn expires(self) -> bool {
        EXPIRES[self as usize]
    }

    /// How cells of several workers make one number.
    pub fn merge(self) -> Merge {
        let name = self.name();
        let shared = name.ends_with("_endpoints") || name.ends_with("_seconds");
        if self.kind() == "gauge" && shared {
            Merge::Max
        } else {
            Merge::Sum
        }
    }

    /// Gauges of seconds are kept in milliseconds.
    pub fn in_millis(self) -> bool {
        self.kind() == "gauge" && self.name().ends_with("_seconds")
    }
}

/// Answers of [`Family::expires`], found once.
static EXPIRES: LazyLock<Vec<bool>> = LazyLock::new(|| {
    let expires = |name: &str| EXPIRE.iter().any(|start| name.starts_with(start));
    Family::ALL.iter().map(|f| expires(f.name())).collect()
});

#[cfg(test)]
mod tests {
    use super::Family;

    #[test]
    fn families_of_the_older_registry_expire() {
        for (name, want) in [
            ("request_total", true),
            ("response_latency_ms", true),
            ("route_actual_response_total", true),
            ("control_response_latency_ms", true),
            ("tcp_open_connections", true),
            ("stack_poll_total_ms", true),
            ("inbound_tcp_authz_terminate_total", true),
            ("outbound_tcp_errors_total", true),
            ("opentelemetry_span_exports", true),
            ("opentelemetry_balancer_p2c_endpoints", false),
            ("control_dns_resolutions_total", false),
            ("control_policy_balancer_queue_length", false),
            ("outbound_http_route_request_statuses_total", false),
            ("outbound_grpc_route_backend_requests_total", false),
            ("outbound_tcp_route_open_total", false),
            ("outbound_tcp_balancer_endpoints", false),
            ("inbound_http_requests_total", false),
            ("inbound_tcp_transport_header_connections_total", false),
            ("inbound_tcp_detect_http_results_total", false),
        ] {
            let family = Family::ALL.iter().find(|f| f.name() == name);
            assert_eq!(family.map(|f| f.expires()), Some(want), "{name}");
        }
    }

    #[test]
    fn names_are_unique_and_histograms_have_bounds() {
        let mut names: Vec<_> = Family::ALL.iter().map(|f| f.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Family::ALL.len());
        for family in Family::ALL {
            let histogram = family.kind() == "histogram";
            assert_eq!(histogram, !family.bounds().is_empty(), "{}", family.name());
            assert!(family.bounds().is_sorted(), "{}", family.name());
        }
    }
}
