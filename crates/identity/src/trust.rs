//! Tells proxies which trust anchors are in force and which issuer issues, so that both can be
//! rotated without restarting anybody. A proxy asks again when it is told to: each gets a turn of its
//! own, so that the load stays the same however many there are.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures::future::{BoxFuture, Ready, ready};
use linkerd_api::trust::{GET, GetRequest, GetResponse, SERVICE};
use parking_lot::Mutex;
use tonic::{Response, Status, body::Body, codegen::StdError};
use tonic_prost::ProstCodec;

use crate::authority::Authority;

/// Turns are this far apart: at most fifty questions a second.
const TURN: Duration = Duration::from_millis(20);
/// Nobody waits longer for a turn.
const MAX_ROUND: Duration = Duration::from_secs(300);

/// Deals out turns.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Shortest time until somebody's next turn.
    shortest: Duration,
    last: Mutex<Option<Instant>>,
}

impl Turns {
    pub(crate) fn new(shortest: Duration) -> Self {
        Self {
            shortest,
            last: Mutex::new(None),
        }
    }

    /// How long the one who asks now shall wait.
    pub(crate) fn next(&self, now: Instant) -> Duration {
        let mut last = self.last.lock();
        let earliest = now + self.shortest;
        let turn = last.map_or(earliest, |last| earliest.max(last + TURN));
        let turn = turn.min(now + MAX_ROUND.max(self.shortest));
        *last = Some(turn);
        turn.duration_since(now)
    }
}

/// The service on the wire; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TrustAnchorsServer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    authority: Arc<Authority>,
    turns: Turns,
}

impl TrustAnchorsServer {
    /// `shortest` is the time after which a proxy asks again when there are few of them.
    pub(crate) fn new(authority: Arc<Authority>, shortest: Duration) -> Self {
        let turns = Turns::new(shortest);
        Self(Arc::new(Inner { authority, turns }))
    }
}

impl Inner {
    fn get(&self) -> Result<GetResponse, Status> {
        let Some(current) = self.authority.current() else {
            return Err(Status::unavailable("cert issuer not ready yet"));
        };
        let anchors = current.anchors.certificates().iter();
        let wait = self.turns.next(Instant::now());
        self.authority.set_round(wait);
        Ok(GetResponse {
            anchors: anchors.map(|c| c.der.to_vec()).collect(),
            issuer_sha256: current.issuer.certificate().sha256(),
            ask_again_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
        })
    }
}

impl tonic::server::NamedService for TrustAnchorsServer {
    const NAME: &'static str = SERVICE;
}

/// One call of the method.
struct Get(Arc<Inner>);

impl tonic::server::UnaryService<GetRequest> for Get {
    type Response = GetResponse;
    type Future = Ready<Result<Response<GetResponse>, Status>>;

    fn call(&mut self, _: tonic::Request<GetRequest>) -> Self::Future {
        ready(self.0.get().map(Response::new))
    }
}

impl<B> tower::Service<http::Request<B>> for TrustAnchorsServer
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let inner = self.0.clone();
        Box::pin(async move {
            if request.uri().path() != GET {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let codec = ProstCodec::<GetResponse, GetRequest>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(1024);
            Ok(grpc.unary(Get(inner), request).await)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_a_turn_of_their_own() {
        let start = Instant::now();
        let turns = Turns::new(Duration::from_secs(10));
        let ms = Duration::from_millis;
        let first: Vec<_> = (0..3).map(|_| turns.next(start)).collect();
        assert_eq!(first, [ms(10_000), ms(10_020), ms(10_040)], "together");
        let later = turns.next(start + ms(5_000));
        assert_eq!(later, ms(10_000), "apart");
        let many: Vec<_> = (0..20_000).map(|_| turns.next(start)).collect();
        assert!(many.is_sorted(), "a longer round for more");
        assert_eq!(many.last(), Some(&MAX_ROUND), "but not for ever");
    }
}
