//! The part of the SPIFFE Workload API that hands an X.509 identity to a workload.

/// Server-streaming method: a new message whenever an identity is renewed.
pub const FETCH_X509_SVID: &str = "/SpiffeWorkloadAPI/FetchX509SVID";
/// Every call carries this metadata with the value `true`, so that no browser or proxy is tricked
/// into making one.
pub const HEADER: &str = "workload.spiffe.io";

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub struct X509SvidRequest {}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub struct X509SvidResponse {
    /// One for each identity the workload may have.
    #[prost(message, repeated, tag = "1")]
    pub svids: Vec<X509Svid>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub struct X509Svid {
    /// `spiffe://…`
    #[prost(string, tag = "1")]
    pub spiffe_id: String,
    /// DER certificates one after the other, leaf first.
    #[prost(bytes = "vec", tag = "2")]
    pub x509_svid: Vec<u8>,
    /// DER PKCS#8.
    #[prost(bytes = "vec", tag = "3")]
    pub x509_svid_key: Vec<u8>,
    /// DER certificates of the trust domain; not used, since anchors are configured.
    #[prost(bytes = "vec", tag = "4")]
    pub bundle: Vec<u8>,
}
