//! The application: HTTP/1 and HTTP/2 answering 1 KB, a sink that counts bytes, and a ping, each on its redirected and its
//! direct port. One thread of its own inside the server's namespace.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use linkerd_http1::{Body, Limits, RequestHead, Status};
use linkerd_testkit::netns::Namespace;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

use crate::stage::Service;

/// Payload of every answer.
pub(crate) const BODY_BYTES: usize = 1024;

/// Serves for as long as the program runs.
pub(crate) fn start(namespace: &Namespace) -> Result<()> {
    let listeners: Vec<(Service, std::net::TcpListener)> = namespace.run(|| {
        let ports = Service::ALL
            .into_iter()
            .flat_map(|service| [(service, service.port()), (service, service.direct_port())]);
        ports
            .map(|(service, port)| {
                Ok((
                    service,
                    std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?,
                ))
            })
            .collect::<std::io::Result<_>>()
            .context("binding the origin's ports")
    })?;
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built");
        LocalSet::new().block_on(&runtime, async move {
            for (service, listener) in listeners {
                listener
                    .set_nonblocking(true)
                    .expect("a listener can be made asynchronous");
                let listener = TcpListener::from_std(listener).expect("a runtime takes a listener");
                spawn_local(accept(service, listener));
            }
            std::future::pending::<()>().await;
        });
    });
    Ok(())
}

async fn accept(service: Service, listener: TcpListener) {
    let answer: Rc<[u8]> = answer().into();
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let answer = Rc::clone(&answer);
        spawn_local(async move {
            // A client that goes away ends its connection, nothing else.
            let _ended = match service {
                Service::Http => http(stream, &answer).await,
                Service::Sink => sink(stream).await,
                Service::Ping => ping(stream).await,
            };
        });
    }
}

fn answer() -> Vec<u8> {
    let mut text = format!("HTTP/1.1 200 OK\r\nserver: origin\r\ncontent-type: text/plain\r\ncontent-length: {BODY_BYTES}\r\n\r\n").into_bytes();
    text.extend(std::iter::repeat_n(b'x', BODY_BYTES));
    text
}

async fn http(mut stream: TcpStream, answer: &[u8]) -> Result<()> {
    let mut first = [0; 14];
    let peeked = stream.peek(&mut first).await?;
    if first[..peeked].starts_with(b"PRI * HTTP/2.0") {
        return http2(stream).await;
    }
    let mut buffer = BytesMut::with_capacity(8192);
    let mut head = RequestHead::new();
    loop {
        while buffer.is_empty() || head.parse(&buffer, &Limits::default())? == Status::Partial {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let mut body = Body::new(head.framing());
        let _head = buffer.split_to(head.len());
        while !body.is_done() {
            let progress = body.consume(&buffer)?;
            let _used = buffer.split_to(progress.take);
            if !progress.done && stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        stream.write_all(answer).await?;
        if !head.keep_alive() {
            return Ok(());
        }
    }
}

async fn http2(stream: TcpStream) -> Result<()> {
    let payload = Bytes::from(vec![b'x'; BODY_BYTES]);
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (_request, mut respond) = request?;
        let response = http::Response::builder()
            .header("server", "origin")
            .header("content-type", "text/plain")
            .header("content-length", BODY_BYTES)
            .body(())?;
        respond
            .send_response(response, false)?
            .send_data(payload.clone(), true)?;
    }
    Ok(())
}

/// Counts until the other side is done, then says how many bytes came.
async fn sink(mut stream: TcpStream) -> Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    let mut count = 0u64;
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            read => count += read as u64,
        }
    }
    stream.write_all(&count.to_be_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}

async fn ping(mut stream: TcpStream) -> Result<()> {
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            read => stream.write_all(&buffer[..read]).await?,
        }
    }
}

/// Where a service is reached, through the proxies or not.
pub(crate) fn address(service: Service, direct: bool) -> SocketAddr {
    if direct {
        service.direct_address()
    } else {
        service.address()
    }
}
