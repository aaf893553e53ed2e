//! HTTP/1 connections, each with one request at a time.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use bytes::BytesMut;
use linkerd_http1::{Body, Limits, Method, ResponseHead, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Schedule, Tally, record};
use crate::origin::BODY_BYTES;

/// One client connection.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    buffer: BytesMut,
    head: ResponseHead,
}

impl Client {
    async fn connect(target: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            request: format!(
                "GET /bench HTTP/1.1\r\nhost: {target}\r\nuser-agent: bench\r\naccept: */*\r\n\r\n"
            )
            .into_bytes(),
            buffer: BytesMut::with_capacity(4096),
            head: ResponseHead::new(),
        })
    }

    /// One request; anything but a complete 200 with the right number of bytes is an error.
    async fn exchange(&mut self) -> Result<()> {
        self.stream.write_all(&self.request).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("closed before the answer");
            }
            if self
                .head
                .parse(&self.buffer, &Limits::default(), Method::Get)?
                == Status::Complete
            {
                break;
            }
        }
        if self.head.status() != 200 {
            bail!(
                "answered {}: {}",
                self.head.status(),
                self.buffer.escape_ascii()
            );
        }
        let mut body = Body::new(self.head.framing());
        let (mut at, mut payload) = (self.head.len(), 0);
        while !body.is_done() {
            if at == self.buffer.len() && self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("closed inside the answer");
            }
            let step = body.decode(&self.buffer[at..])?;
            payload += step.data.len();
            at += step.take;
        }
        if payload != BODY_BYTES || at != self.buffer.len() {
            bail!(
                "{payload} bytes of payload, {} bytes too many",
                self.buffer.len() - at
            );
        }
        Ok(())
    }
}

/// A single request on a connection of its own.
pub(crate) async fn probe(target: SocketAddr) -> Result<()> {
    Client::connect(target).await?.exchange().await
}

/// Opens connections, makes one request on each and hands them back open.
pub(crate) async fn hold_idle(target: SocketAddr, connections: usize) -> Result<Vec<TcpStream>> {
    let mut open = Vec::with_capacity(connections);
    for _ in 0..connections {
        let mut client = Client::connect(target).await?;
        client.exchange().await?;
        open.push(client.stream);
    }
    Ok(open)
}

pub(super) async fn closed_loop(target: SocketAddr, tally: &Tally) -> Result<()> {
    let mut client = Client::connect(target).await?;
    while !tally.stopped() {
        client.exchange().await?;
        tally.count(1);
    }
    Ok(())
}

pub(super) async fn at_rate(
    target: SocketAddr,
    mut schedule: Schedule,
    tally: &Tally,
) -> Result<()> {
    let mut client = Client::connect(target).await?;
    client.exchange().await?;
    schedule.begin().await;
    while let Some(since) = schedule.turn().await {
        client.exchange().await?;
        record(since, tally);
    }
    Ok(())
}
