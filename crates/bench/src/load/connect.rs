//! New connections one after the other, each with one small exchange.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Tally;

pub(super) async fn closed_loop(target: SocketAddr, tally: &Tally) -> Result<()> {
    const PING: &[u8; 16] = b"\x00ping-ping-ping\x00";
    let mut answer = [0; PING.len()];
    while !tally.stopped() {
        let mut stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        stream.write_all(PING).await?;
        stream.read_exact(&mut answer).await?;
        if &answer != PING {
            bail!("a ping came back changed");
        }
        tally.count(1);
    }
    Ok(())
}
