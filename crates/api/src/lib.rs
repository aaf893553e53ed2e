//! The proxy API as Linkerd speaks it, with the header, ALPN and port names of the wire.
//!
//! The generated gRPC types come from the `linkerd2-proxy-api` crate; they are re-exported here so
//! that one place decides the version. Names that are public contract but not part of the protobuf
//! files live in [`headers`], [`alpn`] and [`ports`]. Two services have no crate to come from:
//! [`trust`] is our own, [`spiffe`] belongs to SPIFFE.

pub mod spiffe;
pub mod trust;

pub use linkerd2_proxy_api as proto;

/// Headers the mesh reads or writes.
pub mod headers {
    /// Routing name chosen by an ingress; consumed by the outbound proxy in ingress mode.
    pub const DST_OVERRIDE: &str = "l5d-dst-override";
    /// Profile name the outbound proxy routed by; read by the inbound proxy.
    pub const DST_CANONICAL: &str = "l5d-dst-canonical";
    /// Verified identity of the client, set by the inbound proxy for the application.
    pub const CLIENT_ID: &str = "l5d-client-id";
    /// Identity an endpoint must have; consumed by the outbound proxy.
    pub const REQUIRE_ID: &str = "l5d-require-id";
    /// The HTTP/1 version of a request that travels as HTTP/2 between two proxies.
    pub const ORIG_PROTO: &str = "l5d-orig-proto";
    /// What went wrong, when a proxy made the response itself.
    pub const PROXY_ERROR: &str = "l5d-proxy-error";
    /// `close` asks the peer proxy to drop the connection.
    pub const PROXY_CONNECTION: &str = "l5d-proxy-connection";
}

/// TLS application protocols.
pub mod alpn {
    /// Announces that a transport header precedes the payload.
    pub const TRANSPORT_HEADER: &[u8] = b"transport.l5d.io/v1";
}

/// Well-known ports.
pub mod ports {
    /// Outbound listener of the proxy.
    pub const OUTBOUND: u16 = 4140;
    /// Inbound listener of the proxy.
    pub const INBOUND: u16 = 4143;
    /// Tap server of the proxy.
    pub const TAP: u16 = 4190;
    /// Admin server of the proxy.
    pub const ADMIN: u16 = 4191;
    /// Identity service.
    pub const IDENTITY: u16 = 8080;
    /// Destination service.
    pub const DESTINATION: u16 = 8086;
    /// Policy service.
    pub const POLICY: u16 = 8090;
}
