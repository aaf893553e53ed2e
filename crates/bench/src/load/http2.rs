//! HTTP/2 connections with several streams at a time.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::task::{JoinSet, spawn_local};

use super::{Schedule, Tally, record};
use crate::origin::BODY_BYTES;

async fn connect(target: SocketAddr) -> Result<SendRequest<Bytes>> {
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    let (send, connection) = h2::client::handshake(stream).await?;
    spawn_local(async move {
        // Streams report what goes wrong.
        let _ended = connection.await;
    });
    Ok(send)
}

async fn exchange(send: &SendRequest<Bytes>, target: SocketAddr) -> Result<()> {
    let mut send = send.clone().ready().await?;
    let request = http::Request::builder()
        .uri(format!("http://{target}/bench"))
        .header("user-agent", "bench")
        .header("accept", "*/*")
        .body(())?;
    let (response, _) = send.send_request(request, true)?;
    let response = response.await?;
    if response.status() != 200 {
        bail!("answered {} {:?}", response.status(), response.headers());
    }
    let mut body = response.into_body();
    let mut payload = 0;
    while let Some(data) = body.data().await {
        let data = data?;
        payload += data.len();
        body.flow_control().release_capacity(data.len())?;
    }
    if payload != BODY_BYTES {
        bail!("{payload} bytes of payload");
    }
    Ok(())
}

pub(super) async fn closed_loop(
    target: SocketAddr,
    streams: usize,
    tally: &Rc<Tally>,
) -> Result<()> {
    let send = connect(target).await?;
    let mut lanes = JoinSet::new();
    for _ in 0..streams {
        let (send, tally) = (send.clone(), Rc::clone(tally));
        lanes.spawn_local(async move {
            while !tally.stopped() {
                exchange(&send, target).await?;
                tally.count(1);
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    finish(lanes).await
}

pub(super) async fn at_rate(
    target: SocketAddr,
    schedules: Vec<Schedule>,
    tally: &Rc<Tally>,
) -> Result<()> {
    let send = connect(target).await?;
    let mut lanes = JoinSet::new();
    for mut schedule in schedules {
        let (send, tally) = (send.clone(), Rc::clone(tally));
        lanes.spawn_local(async move {
            exchange(&send, target).await?;
            schedule.begin().await;
            while let Some(since) = schedule.turn().await {
                exchange(&send, target).await?;
                record(since, &tally);
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    finish(lanes).await
}

async fn finish(mut lanes: JoinSet<Result<()>>) -> Result<()> {
    while let Some(lane) = lanes.join_next().await {
        lane.context("a stream's task")??;
    }
    Ok(())
}
