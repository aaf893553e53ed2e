//! Messages of the control plane as bytes: decoded and converted, without panics, whatever they are.
//! For fuzzing and for tests; the streams decode for themselves.

use linkerd_api::proto::{destination, inbound, outbound};
use prost::Message;

use crate::policy::{client::ClientPolicy, server::ServerPolicy};

/// An `OutboundPolicy`.
pub fn client_policy(bytes: &[u8]) -> Option<ClientPolicy> {
    let policy = outbound::OutboundPolicy::decode(bytes).ok()?;
    Some(super::policy::client_policy(policy))
}

/// An inbound `Server`.
pub fn server_policy(bytes: &[u8]) -> Option<ServerPolicy> {
    let server = inbound::Server::decode(bytes).ok()?;
    Some(super::policy::server_policy(server))
}

/// A destination `Update`; whether it said anything.
pub fn endpoint_update(bytes: &[u8]) -> Option<bool> {
    let update = destination::Update::decode(bytes).ok()?;
    Some(super::convert::endpoint_update(update).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_messages_do_not_panic() {
        let message = outbound::OutboundPolicy {
            metadata: None,
            protocol: Some(outbound::ProxyProtocol { kind: None }),
        }
        .encode_to_vec();
        for n in 0..=message.len() {
            let _ = client_policy(&message[..n]);
            let _ = server_policy(&message[..n]);
            let _ = endpoint_update(&message[..n]);
        }
        assert!(client_policy(&[0xff; 8]).is_none());
    }
}
