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
use linkerd_runtime::{drain, ready::Readiness};
use parking_lot::Mutex;
use std::{pin::Pin, sync::Arc, time::Duration};
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

/// Proxies give up on a stream that says nothing for three seconds.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// What both services need.
#[derive(Clone, Debug)]
pub struct Policies {
    index: Arc<Mutex<Index>>,
    drain: drain::Watch,
    metrics: Metrics,
    ready: Readiness,
}

impl Policies {
    /// Serves policies of an index until the drain starts.
    pub fn new(index: Arc<Mutex<Index>>, drain: drain::Watch, metrics: Metrics) -> Self {
        Self {
            index,
            drain,
            metrics,
            ready: Readiness::new(),
        }
    }

    /// Answers only once everything has been listed: an index that knows the pods but not yet
    /// their Servers would allow too much.
    #[must_use]
    pub fn when_ready(self, ready: Readiness) -> Self {
        Self { ready, ..self }
    }

    async fn listed(&self) -> Result<(), Status> {
        if self.ready.is_ready() || self.drain.is_draining() {
            return Ok(());
        }
        let waited = tokio::time::timeout(FIRST_ANSWER, self.ready.ready()).await;
        waited.map_err(|_| Status::unavailable("not all watches have been listed yet"))
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
