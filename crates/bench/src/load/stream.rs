//! One connection with bytes in one direction, as fast as they go.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Tally;

pub(super) async fn pour(target: SocketAddr, tally: &Tally) -> Result<()> {
    // Not like any protocol a proxy could recognise.
    let block = vec![0xa5; 256 * 1024];
    let mut stream = TcpStream::connect(target).await?;
    let mut sent = 0u64;
    while !tally.stopped() {
        let wrote = stream.write(&block).await?;
        sent += wrote as u64;
        tally.count(wrote as u64);
    }
    stream.shutdown().await?;
    let arrived = stream.read_u64().await?;
    anyhow::ensure!(arrived == sent, "{sent} bytes went out, {arrived} arrived");
    Ok(())
}
