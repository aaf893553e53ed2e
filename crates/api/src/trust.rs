//! Our own service beside Certify: the trust anchors in force, for proxies that were started with
//! older ones. Linkerd's identity service answers it with `Unimplemented` and Linkerd's proxy never
//! asks, so either side works without it.

/// The gRPC service.
pub const SERVICE: &str = "io.linkerd.rs.identity.TrustAnchors";
/// Its one method, unary.
pub const GET: &str = "/io.linkerd.rs.identity.TrustAnchors/Get";

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub struct GetRequest {}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub struct GetResponse {
    /// Every trust anchor in force, DER.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub anchors: Vec<Vec<u8>>,
    /// SHA-256 of the certificate that issues now, lower-case hexadecimal.
    #[prost(string, tag = "2")]
    pub issuer_sha256: String,
    /// When to ask again, in milliseconds.
    #[prost(uint32, tag = "3")]
    pub ask_again_ms: u32,
}
