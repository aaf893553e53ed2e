//! HTTP/1 around [`Admin::handle`]: a bounded number of connections, a bounded body, no client
//! that can hold a connection open without sending.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{Admin, Verdict, text};
use crate::drain;

/// Probes, scrapers and a person or two: more than this waits in the kernel's queue.
const MAX_CONNECTIONS: usize = 128;
const MAX_BODY: usize = 64 * 1024;
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// After a failed accept (out of descriptors), how long until the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn serve(
    admin: Arc<Admin>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (closing, watch) = drain::channel();
    let mut stop = pin!(stop);
    loop {
        let accepted = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            () = &mut stop => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = connection(admin.clone(), stream, peer.ip(), watch.clone());
                crate::spawn("admin connection", async move {
                    connection.await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "Admin listener cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    drop(watch);
    closing.drain().await;
}

async fn connection(admin: Arc<Admin>, stream: TcpStream, peer: IpAddr, mut closing: drain::Watch) {
    let service = service_fn(|request| {
        let admin = admin.clone();
        async move { Ok::<_, Infallible>(answer(&admin, request, peer).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = closing.signaled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%peer, %error, "Admin connection ended");
    }
}

pub(super) async fn either<IO>(
    admin: Arc<Admin>,
    io: IO,
    peer: IpAddr,
    gate: impl Fn(&Request<Bytes>) -> Verdict + Clone + Send + 'static,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (admin, gate) = (admin.clone(), gate.clone());
        async move {
            let (head, body) = request.into_parts();
            let head = Request::from_parts(head, Bytes::new());
            let told = match gate(&head) {
                Verdict::Answer(told) => told,
                Verdict::Refuse(refusal) => {
                    return Ok::<_, Infallible>(refusal.map(Full::new));
                }
            };
            let (head, _) = head.into_parts();
            let request = Request::from_parts(head, body);
            let response = answer(&admin, request, peer).await;
            told(response.status());
            Ok(response)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_TIMEOUT)
        .max_concurrent_streams(16);
    let connection = builder.serve_connection(TokioIo::new(io), service);
    if let Err(error) = connection.await {
        tracing::debug!(%peer, error, "Admin connection ended");
    }
}

async fn answer(admin: &Admin, request: Request<Incoming>, peer: IpAddr) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let response = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => admin.handle(&Request::from_parts(head, body.to_bytes()), peer),
        Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    response.map(Full::new)
}
