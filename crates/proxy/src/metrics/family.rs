//! The families the data path counts in: names, help and buckets are what dashboards read.

const HISTOGRAM_MS: &[f64] = &[
    1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0,
    1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 10000.0, 20000.0, 30000.0, 40000.0, 50000.0,
];
const ROUTE_SECONDS: &[f64] = &[0.05, 0.5, 1.0, 10.0];
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
    OutboundTcpProtocolConnections "outbound_tcp_protocol_connections_total" "counter" "Outbound TCP connections by protocol configuration." &[];
    OutboundTcpDetectHttpResults "outbound_tcp_detect_http_results_total" "counter" "Results of outbound HTTP detection." &[];
    InboundTcpDetectHttpResults "inbound_tcp_detect_http_results_total" "counter" "Results of inbound HTTP detection." &[];
    InboundTcpTransportHeaderConnections "inbound_tcp_transport_header_connections_total" "counter" "TCP connections with transport headers." &[];
    OutboundTcpRouteOpen "outbound_tcp_route_open_total" "counter" "Opaque connections opened." &[];
    OutboundTcpRouteClose "outbound_tcp_route_close_total" "counter" "Opaque connections closed." &[];
    OutboundTlsRouteOpen "outbound_tls_route_open_total" "counter" "TLS connections opened." &[];
    OutboundTlsRouteClose "outbound_tls_route_close_total" "counter" "TLS connections closed." &[];
    OutboundHttpBalancerEndpoints "outbound_http_balancer_endpoints" "gauge" "The number of endpoints currently in a HTTP balancer." &[];
}

#[cfg(test)]
mod tests {
    use super::Family;

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
