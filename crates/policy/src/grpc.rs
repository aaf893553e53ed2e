//! The services proxies talk to: requests in, domain lookups, wire messages out.
//!
//! A stream holds a receiver of the shared policy and nothing else: it skips states it was too
//! slow for and always ends with the newest. It ends, with OK, when the policy has to be looked up
//! again or the process drains.

use futures::{Stream, stream};
use linkerd_api::proto::{
    inbound::inbound_server_policies_server::InboundServerPoliciesServer,
    outbound::outbound_policies_server::OutboundPoliciesServer,
};
use linkerd_runtime::{
    drain,
    gate::Gate,
    metrics::grpc::{Call, Calls},
    ready::Readiness,
};
use parking_lot::Mutex;
use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::index::Index;

mod convert;
mod inbound;
mod outbound;
mod token;

pub use self::{inbound::InboundPolicies, outbound::OutboundPolicies};

type Reply<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Proxies give up on a stream that says nothing for three seconds.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// What both services need.
#[derive(Clone, Debug)]
pub struct Policies {
    index: Arc<Mutex<Index>>,
    drain: drain::Watch,
    calls: Calls,
    ready: Readiness,
    gate: Arc<Gate>,
}

impl Policies {
    /// Serves policies of an index until the drain starts.
    pub fn new(index: Arc<Mutex<Index>>, drain: drain::Watch, calls: Calls) -> Self {
        Self {
            index,
            drain,
            calls,
            ready: Readiness::new(),
            gate: Arc::new(Gate::open()),
        }
    }

    /// Takes on new streams only as fast as the gate says.
    #[must_use]
    pub fn behind(self, gate: Gate) -> Self {
        let gate = Arc::new(gate);
        Self { gate, ..self }
    }

    /// Whether there is time for one more stream of this client now. One that names no workload
    /// is refused for that, not for how often it asks.
    fn enter(&self, client: &str) -> Result<(), Status> {
        let named = token::workload(client).is_ok();
        let entered = self.gate.enter(named.then_some(client), Instant::now());
        entered.map_err(|too_many| {
            let mut status = Status::unavailable(too_many.to_string());
            let pause = u64::try_from(too_many.0.as_millis()).unwrap_or(u64::MAX);
            let metadata = status.metadata_mut();
            metadata.insert("grpc-retry-pushback-ms", pause.max(1).into());
            status
        })
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
        call: Call,
    ) -> Reply<W>
    where
        P: Send + Sync + 'static,
        W: Send + 'static,
    {
        let mut policy = policy;
        policy.mark_changed();
        let state = (policy, call, self.drain.clone());
        Box::pin(stream::unfold(state, move |state| async move {
            let (mut policy, mut call, mut drain) = state;
            let changed = tokio::select! {
                changed = policy.changed() => changed.is_ok(),
                () = drain.signaled() => false,
            };
            if !changed {
                call.end(Code::Ok.into());
                return None;
            }
            let current = policy.borrow_and_update().clone();
            call.sent();
            Some((Ok(encode(&current)), (policy, call, drain)))
        }))
    }
}

/// Remembers how a call that is refused ends.
fn note<T>(call: &mut Call, result: Result<T, Status>) -> Result<T, Status> {
    result.inspect_err(|status| call.end(status.code().into()))
}

#[cfg(test)]
mod tests;
