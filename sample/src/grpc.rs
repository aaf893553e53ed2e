//! gRPC without generated code: a service is a function from a method's name and message to an
//! answer, and a client calls methods by name.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Context as _;
use bytes::{Buf as _, Bytes};
use linkerd_runtime::drain;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Response, Status, body::Body, transport::Channel};

/// Answers unary calls. The messages are encoded; each method knows its own.
pub(crate) trait Unary: Clone + Send + Sync + 'static {
    const NAME: &'static str;

    fn call(&self, method: &str, message: Bytes) -> Result<Vec<u8>, Status>;
}

/// Serves until drained: then no new connection, and what is under way ends.
pub(crate) async fn serve<S: Unary>(
    listen: SocketAddr,
    service: S,
    mut drain: drain::Watch,
) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    tracing::info!(%listen, service = S::NAME, "Serving gRPC");
    tonic::transport::Server::builder()
        .add_service(Served(service))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async move {
            drain.signaled().await;
        })
        .await?;
    Ok(())
}

/// Calls a method; `A` is what it answers.
pub(crate) async fn call<A: prost::Message + Default>(
    channel: &Channel,
    service: &str,
    method: &str,
    message: &impl prost::Message,
) -> Result<A, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let path = format!("/{service}/{method}")
        .parse()
        .map_err(|_| Status::invalid_argument("not a method"))?;
    let request = Request::new(Bytes::from(message.encode_to_vec()));
    let answer = grpc.unary(request, path, Encoded).await?.into_inner();
    A::decode(answer).map_err(|error| Status::internal(error.to_string()))
}

#[derive(Clone, Debug)]
struct Served<S>(S);

impl<S: Unary> tonic::server::NamedService for Served<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Unary> tower::Service<http::Request<Body>> for Served<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.0.clone();
        let path = request.uri().path().to_owned();
        let answer = tower::service_fn(move |message: Request<Bytes>| {
            let method = path.rsplit('/').next().unwrap_or_default();
            let answer = service.call(method, message.into_inner());
            std::future::ready(answer.map(|bytes| Response::new(Bytes::from(bytes))))
        });
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(Encoded)
                .unary(answer, request)
                .await)
        })
    }
}

/// Messages that are bytes already.
#[derive(Debug, Default)]
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(buffer, item);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
