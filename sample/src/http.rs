//! A small HTTP/1 server that ends its connections politely.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use linkerd_runtime::drain;
use tokio::net::{TcpListener, TcpStream};

/// What answers a request.
pub(crate) trait Handler: Clone + Send + Sync + 'static {
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// Serves until drained: then no new connection, and what is under way ends.
pub(crate) async fn serve(
    listen: SocketAddr,
    handler: impl Handler,
    mut drain: drain::Watch,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    tracing::info!(%listen, "Serving HTTP");
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.signaled() => return Ok(()),
        };
        match accepted {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                linkerd_runtime::spawn("http", connection(stream, handler.clone(), drain.clone()));
            }
            Err(error) => tracing::warn!(%error, "Cannot accept"),
        }
    }
}

async fn connection(stream: TcpStream, handler: impl Handler, mut drain: drain::Watch) {
    let service = hyper::service::service_fn(move |request| {
        let handler = handler.clone();
        async move { Ok::<_, Infallible>(handler.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = drain.signaled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "Connection failed");
    }
}

pub(crate) fn json(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    reply(status, "application/json", body.to_string())
}

pub(crate) fn reply(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
