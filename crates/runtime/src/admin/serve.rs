//! HTTP/1 around [`Admin::handle`]: a bounded number of connections, a bounded body, no client
//! that can hold a connection open without sending, unless it reads the log.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{Admin, Verdict, text};
use crate::{drain, log};

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
    let watch = closing.clone();
    let service = service_fn(|request| {
        let (admin, watch) = (admin.clone(), watch.clone());
        async move {
            let mut response = answer(&admin, request, peer).await;
            if let Either::Right(lines) = response.body_mut() {
                lines.until = Some(Box::pin(async move {
                    let mut watch = watch;
                    watch.signaled().await;
                }));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let done = tokio::select! {
        done = unheard(connection.as_mut()) => done,
        () = closing.signaled() => {
            connection.as_mut().graceful_shutdown();
            unheard(connection).await
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
                    return Ok::<_, Infallible>(refusal.map(whole));
                }
            };
            let (head, _) = head.into_parts();
            let request = Request::from_parts(head, body);
            let response = answer(&admin, request, peer).await;
            told(response.status());
            Ok(response)
        }
    });
    let mut builder = auto::Builder::new(Unheard);
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
    if let Err(error) = unheard(pin!(connection)).await {
        tracing::debug!(%peer, error, "Admin connection ended");
    }
}

/// All there is to say, or the log as it goes on.
type Answer = Either<Full<Bytes>, LogBody>;

fn whole(body: Bytes) -> Answer {
    Either::Left(Full::new(body))
}

async fn answer(admin: &Admin, request: Request<Incoming>, peer: IpAddr) -> Response<Answer> {
    let (head, body) = request.into_parts();
    let request = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => Request::from_parts(head, body.to_bytes()),
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")).map(whole),
    };
    match admin.logs(&request, peer) {
        None => admin.handle(&request, peer).map(whole),
        Some(Err(refusal)) => refusal.map(whole),
        Some(Ok(lines)) => {
            let mut response = Response::new(Either::Right(LogBody { lines, until: None }));
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
    }
}

/// Lines of the log, to the end of the connection or of the server.
struct LogBody {
    lines: log::Lines,
    until: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Body for LogBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(until) = &mut self.until
            && until.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(None);
        }
        let line = ready!(self.lines.poll_next(cx));
        Poll::Ready(line.map(|line| Ok(Frame::data(line))))
    }
}

/// What serving a connection logs is not for those who read the log over one.
async fn unheard<F: Future + Unpin>(mut future: F) -> F::Output {
    std::future::poll_fn(|cx| log::unheard(|| Pin::new(&mut future).poll(cx))).await
}

/// Spawns what hyper wants to run, unheard.
#[derive(Clone, Copy, Debug)]
struct Unheard;

impl<F> hyper::rt::Executor<F> for Unheard
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        crate::spawn("admin stream", unheard(Box::pin(future)));
    }
}
