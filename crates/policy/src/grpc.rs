//! The services proxies talk to: requests in, domain lookups, wire messages out.
//!
//! A stream holds a receiver of the shared policy and nothing else: it skips states it was too
//! slow for and always ends with the newest. It ends, with OK, when the policy has to be looked up
//! again or the process drains.

use futures::{Stream, StreamExt, stream};
use linkerd_api::proto::{
    inbound::inbound_server_policies_server::InboundServerPoliciesServer,
    outbound::outbound_policies_server::OutboundPoliciesServer,
};
use linkerd_runtime::drain;
use parking_lot::Mutex;
use std::{pin::Pin, sync::Arc};
use tokio::sync::watch;
use tonic::Status;

use crate::index::Index;

mod convert;
mod inbound;
mod metrics;
mod outbound;
mod token;

pub use self::{inbound::InboundPolicies, metrics::Metrics, outbound::OutboundPolicies};

type Reply<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What both services need.
#[derive(Clone, Debug)]
pub struct Policies {
    index: Arc<Mutex<Index>>,
    drain: drain::Watch,
    metrics: Metrics,
}

impl Policies {
    /// Serves policies of an index until the drain starts.
    pub fn new(index: Arc<Mutex<Index>>, drain: drain::Watch, metrics: Metrics) -> Self {
        Self {
            index,
            drain,
            metrics,
        }
    }

    /// The inbound service.
    pub fn inbound(&self) -> InboundServerPoliciesServer<InboundPolicies> {
        InboundServerPoliciesServer::new(InboundPolicies(self.clone()))
    }

    /// The outbound service.
    pub fn outbound(&self) -> OutboundPoliciesServer<OutboundPolicies> {
        OutboundPoliciesServer::new(OutboundPolicies(self.clone()))
    }

    /// A stream of what the receiver sees, starting with what it has.
    fn stream<P, W>(
        &self,
        policy: watch::Receiver<Arc<P>>,
        encode: fn(&P) -> W,
        call: metrics::Call,
    ) -> Reply<W>
    where
        P: Send + Sync + 'static,
        W: Send + 'static,
    {
        let mut policy = policy;
        policy.mark_changed();
        let updates = stream::unfold((policy, call), move |(mut policy, call)| async move {
            if policy.changed().await.is_err() {
                return None;
            }
            let current = policy.borrow_and_update().clone();
            call.sent();
            Some((Ok(encode(&current)), (policy, call)))
        });
        let mut drain = self.drain.clone();
        Box::pin(updates.take_until(Box::pin(async move { drain.signaled().await })))
    }
}

#[cfg(test)]
mod tests;
